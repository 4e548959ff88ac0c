"""Orders over several data sets, over classes, and with rows kept apart: exact lengths, no row lost, repeatable from (seed, epoch) alone."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinvec.data.apart import keep_apart
from twinvec.data.sampling import MIXINGS, ClassOrder, LengthBucketedOrder, MixedOrder

Keys = list[tuple[int, ...]]


def order(n: int, batch_size: int = 4, seed: int = 0) -> LengthBucketedOrder:
    return LengthBucketedOrder([i % 7 for i in range(n)], batch_size, seed)


def meetings(batches: list[list[int]], keys: Keys) -> int:
    """How often a key stands once more in a batch than it should."""
    return sum(count - 1 for batch in batches for count in Counter(key for row in batch for key in set(keys[row])).values())


# --- rows kept apart


@given(
    keys=st.lists(st.tuples(st.integers(0, 30), st.integers(31, 60)), min_size=1, max_size=120), batch_size=st.integers(1, 20), seed=st.integers(0, 3)
)  # fmt: skip
def test_no_row_is_lost_and_no_batch_changes_its_size(keys: Keys, batch_size: int, seed: int) -> None:
    lengths = list(range(len(keys)))
    plain = LengthBucketedOrder(lengths, batch_size, seed)
    apart = LengthBucketedOrder(lengths, batch_size, seed, keys=keys)
    batches = apart.batches(1)
    assert sorted(itertools.chain(*batches)) == lengths
    assert [len(batch) for batch in batches] == [len(batch) for batch in plain.batches(1)]
    assert len(batches) == len(apart) == math.ceil(len(keys) / batch_size)  # ST#3348: a sampler shorter than its length
    assert meetings(batches, keys) <= meetings(plain.batches(1), keys)
    assert apart.batches(1) == batches


def test_what_can_be_kept_apart_is() -> None:
    """NLI's shape: each premise three times, in files sorted by premise, and some hypotheses that come often."""
    rng = np.random.default_rng(0)
    keys = [(row // 3, 5000 + int(other)) for row, other in enumerate(rng.zipf(1.6, 6000).clip(max=2000))]
    often = Counter(key for _, key in keys)
    keys = [(first, second) if often[second] <= 40 else (first,) for first, second in keys]
    lengths = rng.integers(3, 40, 6000).tolist()
    for batch_size in (8, 32, 64):
        plain = LengthBucketedOrder(lengths, batch_size, 1)
        apart = LengthBucketedOrder(lengths, batch_size, 1, keys=keys)
        assert meetings(plain.batches(0), keys) > 10
        assert meetings(apart.batches(0), keys) == 0
        padded = [sum(len(batch) * max(lengths[row] for row in batch) for batch in made.batches(0)) for made in (plain, apart)]
        assert padded[1] < 1.1 * padded[0]  # lengths still lie together


def test_pairs_in_two_batches_that_must_swap() -> None:
    batches = [[0, 1], [2, 3]]
    assert keep_apart(batches, [(0,), (0,), (1,), (1,)], np.random.default_rng(0)) == 0
    assert meetings(batches, [(0,), (0,), (1,), (1,)]) == 0


def test_what_cannot_be_kept_apart_stays_and_is_counted() -> None:
    keys: Keys = [(0,)] * 30 + [(i,) for i in range(1, 71)]
    batches = [list(range(start, start + 10)) for start in range(0, 100, 10)]
    left = keep_apart(batches, keys, np.random.default_rng(0))
    assert left == meetings(batches, keys) == 20  # 30 rows of one text in 10 batches
    same = [list(range(50)), list(range(50, 100))]
    assert keep_apart(same, [(7,)] * 100, np.random.default_rng(0)) == 98
    assert keep_apart([], [], np.random.default_rng(0)) == 0
    assert keep_apart([[0], []], [(1, 1)], np.random.default_rng(0)) == 0  # both texts of one row are no meeting


def test_keys_without_repeats_change_nothing() -> None:
    lengths = [i % 9 for i in range(101)]
    keys = [(2 * i, 2 * i + 1) for i in range(101)]
    assert LengthBucketedOrder(lengths, 8, 3, keys=keys).batches(2) == LengthBucketedOrder(lengths, 8, 3).batches(2)


# --- several data sets


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5), mixing=st.sampled_from(MIXINGS), temperature=st.floats(1, 10), seed=st.integers(0, 3)
)  # fmt: skip
def test_every_mixture_has_its_length_and_its_sources(sizes: list[int], mixing: str, temperature: float, seed: int) -> None:
    orders = [order(n, seed=seed) for n in sizes]
    weights = [1.0 + i for i in range(len(sizes))] if mixing == "weights" else None
    mixed = MixedOrder(orders, mixing, temperature=temperature, weights=weights, seed=seed)  # type: ignore[arg-type]
    first = mixed.batches(0)
    assert len(first) == len(mixed) == sum(map(len, orders))
    assert {source for source, _ in first} == set(range(len(sizes)))
    assert all(0 <= row < sizes[source] for source, rows in first for row in rows)
    mixed.batches(7)
    assert mixed.batches(0) == first  # no state: any epoch can be asked for, in any order


def test_proportional_is_each_batch_once() -> None:
    orders = [order(90), order(11), order(3)]
    mixed = MixedOrder(orders, seed=5)
    for epoch in range(3):
        found = mixed.batches(epoch)
        for number, own in enumerate(orders):
            assert [rows for source, rows in found if source == number] == own.batches(epoch)
    turns = [source for source, _ in mixed.batches(0)]
    assert turns != sorted(turns)
    assert turns != [source for source, _ in mixed.batches(1)]


def test_one_source_is_its_own_order() -> None:
    for mixing in ("proportional", "even", "temperature"):
        assert [rows for _, rows in MixedOrder([order(50)], mixing, temperature=3).batches(2)] == order(50).batches(2)


@pytest.mark.parametrize(
    ("sizes", "mixing", "option", "counts"),
    [
        ([80, 20], "even", {}, [50, 50]),
        ([80, 21], "even", {}, [51, 50]),
        ([80, 20], "temperature", {"temperature": 1.0}, [80, 20]),
        ([80, 20], "temperature", {"temperature": 2.0}, [67, 33]),  # sqrt(80) : sqrt(20) = 2 : 1
        ([81, 16, 1], "temperature", {"temperature": 2.0}, [63, 28, 7]),  # 9 : 4 : 1 of 98
        ([80, 20], "temperature", {"temperature": 1e9}, [50, 50]),
        ([80, 20], "weights", {"weights": [1, 3]}, [25, 75]),
        ([98, 1, 1], "weights", {"weights": [1e9, 1, 1]}, [98, 1, 1]),  # nobody is left out
        ([1, 1], "weights", {"weights": [5, 1]}, [1, 1]),
        ([63, 7, 30], "proportional", {}, [63, 7, 30]),
    ],
)
def test_shares(sizes: list[int], mixing: str, option: dict[str, object], counts: list[int]) -> None:
    mixed = MixedOrder([order(n, 1) for n in sizes], mixing, **option)  # type: ignore[arg-type]
    assert mixed.counts == counts
    assert Counter(source for source, _ in mixed.batches(3)) == dict(enumerate(counts))


def test_small_sources_repeat_and_large_ones_go_on_where_they_stopped() -> None:
    large, small = order(90, 1), order(10, 1)
    mixed = MixedOrder([large, small], "even", seed=1)
    found = [[rows for source, rows in mixed.batches(epoch) if source == 1] for epoch in range(2)]
    assert found[0] == [batch for epoch in range(5) for batch in small.batches(epoch)]
    assert found[1] == [batch for epoch in range(5, 10) for batch in small.batches(epoch)]
    rows = [row for epoch in range(9) for source, batch in mixed.batches(epoch) if source == 0 for row in batch]
    assert set(Counter(rows).values()) == {5}  # 9 x 50 batches over 90 rows: none is favoured


# --- classes


@settings(deadline=None)
@given(
    labels=st.lists(st.integers(-1, 12), max_size=150), per_class=st.integers(2, 5), classes=st.integers(2, 6), seed=st.integers(0, 3),
    epoch=st.integers(0, 2),
)  # fmt: skip
def test_batches_of_classes(labels: list[int], per_class: int, classes: int, seed: int, epoch: int) -> None:
    sizes = Counter(label for label in labels if label >= 0)
    usable = {label for label, count in sizes.items() if count > 1}
    if len(usable) < 2:
        return
    made = ClassOrder(labels, per_class * classes, per_class, seed=seed)
    batches = made.batches(epoch)
    assert len(batches) == len(made)
    assert made.batches(epoch) == batches
    assert {row for batch in batches for row in batch} == {row for row, label in enumerate(labels) if label in usable}
    assert made.left_out == sum(label not in usable for label in labels)
    for batch in batches:
        assert len(batch) == len(set(batch)) <= per_class * classes
        there = Counter(labels[row] for row in batch)
        assert len(there) >= 2
        assert all(count == min(made.per_class, sizes[label]) for label, count in there.items())


def test_balanced_classes_are_used_once() -> None:
    labels = np.repeat(np.arange(40), 8)
    made = ClassOrder(labels, 32, seed=0)
    batches = made.batches(0)
    assert [len(batch) for batch in batches] == [32] * 10
    assert sorted(itertools.chain(*batches)) == list(range(320))
    assert all(set(Counter(labels[batch]).values()) == {4} for batch in batches)
    assert made.batches(1) != batches
    assert ClassOrder(labels, 32, seed=1).batches(0) != batches


def test_few_classes_fill_the_batch_and_rare_ones_come_again() -> None:
    labels = [0] * 900 + [1] * 100
    made = ClassOrder(labels, 32, seed=0)
    assert (made.classes, made.per_class) == (2, 16)
    assert all(Counter(labels[row] for row in batch) == {0: 16, 1: 16} for batch in made.batches(0))
    assert len(made) == math.ceil(900 / 16)


def test_classes_of_two_make_full_batches() -> None:
    """Paraphrase groups: K is never more than the largest class."""
    labels = np.repeat(np.arange(100), 2)
    assert [len(batch) for batch in ClassOrder(labels, 20, 4, seed=0).batches(0)] == [20] * 10
