"""Hits of several levels against a plain account of them: one list a query, sorted by (-score, id)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinvec.index.ann.plan import level_of
from twinvec.index.levels import Level, below
from twinvec.index.ranking import Candidates, Ranked, Rows

QUERIES = 5


@pytest.mark.parametrize(("k", "level", "lower"), [(1, 10, []), (10, 10, []), (11, 100, [10]), (100, 100, [10]), (101, 1000, [10, 100]),
                                                   (20_000, 100_000, [10, 100, 1000, 10_000])])  # fmt: skip
def test_levels_of_a_number_of_hits(k: int, level: int, lower: list[int]) -> None:
    assert level_of(k) == level
    assert below(k) == lower


class World:
    """Rows with a score for each query and a name each; what the levels know of them."""

    def __init__(self, scores: np.ndarray, names: list[str] | None, known: dict[int, list[np.ndarray] | None]) -> None:
        self.scores, self.names, self.known = scores, names, known
        self.rows = scores.shape[1]

    def ordered(self, query: int, rows: Iterable[int]) -> list[int]:
        return sorted(rows, key=lambda row: (-self.scores[query, row], self.names[row] if self.names else "", row))

    def ids(self, rows: Iterable[int]) -> dict[int, str]:
        assert self.names is not None
        return {row: self.names[row] for row in rows}

    def ranked(self, which: Rows, lists: list[list[int]], k: int) -> Ranked:
        rows = np.asarray([self.ordered(int(q), line)[:k] for q, line in zip(which, lists, strict=True)]).reshape(len(which), k)
        return Ranked(rows, self.scores[which[:, None], rows])

    def level(self, k: int) -> Level:
        known = self.known[level_of(k)]
        found = None if known is None else Candidates(np.asarray([len(line) for line in known]), np.concatenate(known))

        def settled(which: Rows, given: Candidates, take: int) -> Ranked:
            return self.ranked(which, [line.tolist() for line in np.split(given.rows, np.cumsum(given.counts)[:-1])], take)

        def exact(which: Rows, take: int) -> Ranked:
            return self.ranked(which, [list(range(self.rows))] * len(which), take)

        return Level(found, QUERIES, min(level_of(k), self.rows), self.rows, settled, exact)

    def hits(self, k: int) -> np.ndarray:
        out = None
        for size in (*below(k), k):
            level = self.level(size)
            out = level.first(size) if out is None else level.behind(out, size, self.ids if self.names else None)
        assert out is not None
        assert np.array_equal(out.scores, np.take_along_axis(self.scores, out.rows, axis=1))
        return out.rows

    def plain(self, query: int, k: int) -> list[int]:
        every = self.ordered(query, range(self.rows))
        out: list[int] = []
        for size in (*below(k), k):
            known = self.known[level_of(size)]
            lists = [every]
            if known is not None and len(known[query]) >= min(level_of(size), self.rows):
                lists.insert(0, self.ordered(query, known[query].tolist()))
            for line in lists:
                out += [row for row in line if not out or every.index(row) > every.index(out[-1])][: size - len(out)]
            if len(out) < size:
                out = every[:size]
        return out


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(150, 400), values=st.sampled_from([4, 40, 10_000]), named=st.booleans())
def test_hits_are_those_of_the_plain_account(seed: int, rows: int, values: int, named: bool) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, values, (QUERIES, rows)) / values  # few values: ties everywhere
    names = [f"n{i}" for i in rng.permutation(rows)] if named else None
    known: dict[int, list[np.ndarray] | None] = {}
    for level in (10, 100, 1000):
        lists = []
        for query in range(QUERIES):
            best = np.argsort(-scores[query], kind="stable")[: min(rows, 2 * level + 30)]
            lists.append(best[rng.random(len(best)) < rng.choice([0.3, 0.7, 0.95, 1.0])])
        known[level] = None if rng.random() < 0.2 else lists
    world = World(scores, names, known)
    for k in (3, 10, 11, 60, 100, 120, rows - 5, rows):
        found = world.hits(k)
        for query in range(QUERIES):
            assert found[query].tolist() == world.plain(query, k)
            assert len(set(found[query].tolist())) == k
        assert np.all(np.diff(np.take_along_axis(scores, found, axis=1), axis=1) <= 0)


def test_what_ranks_among_the_head_is_left_out_and_the_rest_follows() -> None:
    scores = np.linspace(1, 0, 300)[None].repeat(QUERIES, axis=0)
    head = np.asarray([0, 1, 2, 3, 4, 5, 6, 8, 9, 11, *range(20, 40)])  # misses 7 and 10
    world = World(scores, None, {10: [head] * QUERIES, 100: [np.arange(200)] * QUERIES})
    assert world.hits(10)[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9, 11]
    assert world.hits(14)[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9, 11, 12, 13, 14, 15]
