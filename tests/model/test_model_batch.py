"""Batches by tokens: every row once, within the budget."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twinvec.model import encoder
from twinvec.model.batch import PackedBatch, chunks, padded, rounded

LENGTHS = st.lists(st.integers(0, 40), max_size=60)


@given(LENGTHS, st.integers(1, 90), st.booleans())
def test_chunks_hold_every_row_once_within_the_budget(lengths: list[int], budget: int, pad: bool) -> None:
    found = list(chunks(lengths, budget, pad=pad))
    assert sorted(i for chunk in found for i in chunk) == list(range(len(lengths)))
    for chunk in found:
        cost = max(lengths[i] for i in chunk) * len(chunk) if pad else sum(lengths[i] for i in chunk)
        assert cost <= budget or len(chunk) == 1


@given(LENGTHS)
def test_packed_batches_account_for_every_token(lengths: list[int]) -> None:
    rows = [[100 + i] * length for i, length in enumerate(lengths)]
    batch = PackedBatch.of(rows)
    assert sorted(batch.order) == list(range(len(rows)))
    assert batch.empty_rows == lengths.count(0)
    assert sum(group.rows * group.length for group in batch.groups) == sum(lengths)
    assert len(batch.ids) == len(batch.positions) >= sum(lengths)
    place = batch.empty_rows
    for group in batch.groups:
        for i in range(group.rows):
            at = group.start + i * group.length
            assert batch.ids[at : at + group.length].tolist() == rows[batch.order[place]]
            place += 1


@given(st.integers(0, 100_000))
def test_round_numbers_are_near(tokens: int) -> None:
    assert tokens <= rounded(tokens) <= tokens + max(15, tokens // 16 * 2)


def test_padded_both_ways() -> None:
    ids, mask = padded([[1, 2, 3], [], [4]], 9)
    assert ids.tolist() == [[1, 2, 3], [9, 9, 9], [4, 9, 9]]
    assert mask.tolist() == [[True] * 3, [False] * 3, [True, False, False]]
    ids, mask = padded([[1, 2, 3], [4]], 9, left=True)
    assert ids.tolist() == [[1, 2, 3], [9, 9, 4]]
    assert mask.tolist() == [[True] * 3, [False, False, True]]
    assert padded([[]], 9)[0].shape == (1, 1)


@given(st.lists(st.integers(0, 50), max_size=40))
def test_blocks_are_small_and_leave_nothing_out(lengths: list[int]) -> None:
    texts = ["x" * length for length in lengths]
    before = encoder._BLOCK_TEXTS, encoder._BLOCK_CHARACTERS
    encoder._BLOCK_TEXTS, encoder._BLOCK_CHARACTERS = 5, 60
    try:
        found = list(encoder._blocks(texts))
    finally:
        encoder._BLOCK_TEXTS, encoder._BLOCK_CHARACTERS = before
    assert [i for at, stop in found for i in range(at, stop)] == list(range(len(texts)))
    for at, stop in found:
        assert stop - at <= 5
        assert sum(lengths[at:stop]) <= 60 or stop - at == 1
