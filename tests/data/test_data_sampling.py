"""The order of rows: all of them, once, anew each epoch, the same for the same seed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinvec.data.sampling import LengthBucketedOrder, split_rows


@given(
    lengths=st.lists(st.integers(1, 500), max_size=200), batch_size=st.integers(1, 40), seed=st.integers(0, 5), epoch=st.integers(0, 3),
    bucket=st.integers(1, 5),
)  # fmt: skip
def test_every_row_exactly_once(lengths: list[int], batch_size: int, seed: int, epoch: int, bucket: int) -> None:
    order = LengthBucketedOrder(lengths, batch_size, seed, bucket)
    batches = order.batches(epoch)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    assert len(batches) == len(order) == math.ceil(len(lengths) / batch_size)  # ST#3348: a sampler shorter than its length
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert LengthBucketedOrder(lengths, batch_size, seed, bucket).batches(epoch) == batches


def test_epochs_and_seeds_differ() -> None:
    order = LengthBucketedOrder(list(range(300)), 16, 1)
    assert order.batches(0) != order.batches(1)
    assert order.batches(0) == order.batches(0)  # no state: epoch 1 in between changes nothing
    assert LengthBucketedOrder(list(range(300)), 16, 2).batches(0) != order.batches(0)


def test_batches_hold_like_lengths_and_come_shuffled() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 200, 3000)
    batches = LengthBucketedOrder(lengths.tolist(), 32, 7).batches(0)
    waste = sum(len(batch) * max(lengths[batch]) for batch in batches) / lengths.sum()
    plain = rng.permutation(3000)
    padded = sum(32 * max(lengths[plain[i : i + 32]]) for i in range(0, 2976, 32)) / lengths[plain[:2976]].sum()
    assert waste < 1.1 < 1.7 < padded
    means = [lengths[batch].mean() for batch in batches[:-1]]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.3  # neither short nor long texts first


def test_the_short_batch_is_no_extreme() -> None:
    """Its rows are drawn at random, not the longest or the shortest of the epoch."""
    lengths = list(range(103))
    last = [lengths[row] for seed in range(300) for row in LengthBucketedOrder(lengths, 10, seed).batches(0)[-1]]
    assert len(last) == 900
    assert 45 < np.mean(last) < 57


@pytest.mark.parametrize(("n", "share", "held"), [(10, 0.1, 1), (10, 0.0, 0), (10, 1.0, 10), (5749, 0.1, 575), (0, 0.5, 0), (3, 0.1, 0)])
def test_split(n: int, share: float, held: int) -> None:
    kept, out = split_rows(n, share, 42)
    assert len(out) == held
    assert sorted(kept + out) == list(range(n))
    assert kept == sorted(kept)
    assert out == sorted(out)
    assert split_rows(n, share, 42) == (kept, out)


def test_splits_of_other_seeds_differ() -> None:
    assert split_rows(1000, 0.1, 1) != split_rows(1000, 0.1, 2)
    assert all(type(row) is int for row in split_rows(10, 0.5, 0)[0])
