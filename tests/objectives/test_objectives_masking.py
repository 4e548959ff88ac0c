"""Which tokens are hidden: shares, what may never be chosen, whole words, and that a seed decides all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinvec.objectives.masking import apart, choose_tokens, choose_words, end_to_end, hide, how_many, visible_keys

ROWS = st.lists(st.lists(st.integers(0, 19), max_size=12), max_size=8)


def prepared(rows: list[list[int]], share: float, *, least: int = 0, keep: int = 0) -> tuple[np.ndarray, ...]:
    ids, lengths = end_to_end(rows)
    allowed = ids >= 3  # 0, 1, 2 are special
    counts = np.array([sum(token >= 3 for token in row) for row in rows], dtype=np.int64)
    return ids, lengths, allowed, counts, how_many(counts, share, least=least, keep=keep)


@given(ROWS, st.floats(0.01, 0.99), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_exactly_the_wanted_tokens_of_each_row_are_chosen(rows: list[list[int]], share: float, seed: int) -> None:
    ids, lengths, allowed, counts, wanted = prepared(rows, share, least=1)
    chosen = choose_tokens(allowed, lengths, wanted, np.random.default_rng(seed))
    assert not (chosen & ~allowed).any()
    assert [int(part.sum()) for part in apart(chosen.astype(np.int64), lengths)] == wanted.tolist()
    assert all(want >= min(1, count) for want, count in zip(wanted, counts, strict=True))
    assert all(abs(want - share * count) <= 0.5 or want == 1 for want, count in zip(wanted, counts, strict=True))
    again = choose_tokens(allowed, lengths, wanted, np.random.default_rng(seed))
    assert (again == chosen).all()
    assert [part.tolist() for part in apart(ids, lengths)] == rows


def test_every_token_is_as_likely_as_its_neighbour() -> None:
    _, lengths, allowed, _, wanted = prepared([[1, *range(3, 13), 2]] * 4000, 0.3)
    chosen = choose_tokens(allowed, lengths, wanted, np.random.default_rng(0)).reshape(4000, 12)
    rates = chosen.mean(0)
    assert rates[0] == rates[-1] == 0
    np.testing.assert_allclose(rates[1:-1], 0.3, atol=0.03)


def test_how_many_rounds_and_keeps() -> None:
    counts = np.array([0, 1, 2, 3, 10, 20])
    assert how_many(counts, 0.15, least=1).tolist() == [0, 1, 1, 1, 2, 3]
    assert how_many(counts, 0.6, keep=1).tolist() == [0, 0, 1, 2, 6, 12]


@given(ROWS, st.floats(0.05, 0.95), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_words_are_chosen_whole_or_not_at_all(rows: list[list[int]], share: float, seed: int) -> None:
    continues = np.arange(20) >= 12
    ids, lengths, allowed, counts, wanted = prepared(rows, share, least=1)
    chosen = choose_words(ids, allowed, lengths, wanted, continues, np.random.default_rng(seed), least=1)
    assert not (chosen & ~allowed).any()
    start = 0
    for row, count, want in zip(rows, counts, wanted, strict=True):
        part = chosen[start : start + len(row)]
        start += len(row)
        for i in range(1, len(row)):
            if row[i] >= 12 and row[i - 1] >= 3:  # goes on with its neighbour
                assert part[i] == part[i - 1]
        assert bool(part.sum()) == bool(count)
        word = max((len(run) for run in _words(row)), default=0)
        assert part.sum() <= max(want, word)


def _words(row: list[int]) -> list[list[int]]:
    out: list[list[int]] = []
    before = False
    for token in row:
        if token < 3:
            before = False
            continue
        if token >= 12 and before:
            out[-1].append(token)
        else:
            out.append([token])
        before = True
    return out


def test_a_long_word_alone_is_hidden_but_never_deleted() -> None:
    ids, lengths, allowed, _, wanted = prepared([[0, 5, 12, 13, 14, 2]], 0.3)
    continues = np.arange(20) >= 12
    assert choose_words(ids, allowed, lengths, wanted, continues, np.random.default_rng(0), least=1).sum() == 4
    assert choose_words(ids, allowed, lengths, wanted, continues, np.random.default_rng(0)).sum() == 0


def test_hidden_tokens_are_80_10_10() -> None:
    ids = np.full(30_000, 7)
    chosen = np.arange(30_000) % 3 == 0
    out = hide(ids, chosen, 4, np.arange(8, 20), np.random.default_rng(1))
    assert (out[~chosen] == 7).all()
    masked, same = (out[chosen] == 4).mean(), (out[chosen] == 7).mean()
    assert masked == pytest.approx(0.8, abs=0.02)
    assert same == pytest.approx(0.1, abs=0.02)
    assert set(np.unique(out[chosen])) == {4, 7, *range(8, 20)}
    assert (ids == 7).all()  # what was given is left alone


def test_no_position_sees_itself_or_a_special_token() -> None:
    allowed = np.array([False, *[True] * 40, False])
    seen = visible_keys(allowed, 0.5, np.random.default_rng(0))
    assert not seen.diagonal().any()
    assert not seen[:, [0, 41]].any()
    assert seen[:, 1:41].mean() == pytest.approx(0.5, abs=0.05)
    assert visible_keys(np.zeros(0, dtype=np.bool_), 0.5, np.random.default_rng(0)).shape == (0, 0)
