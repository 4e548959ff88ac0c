"""Top k as a prefix of top K where an index names the candidates.

An index is tuned for 10 hits, for 100 and so on, and each of these levels looks further than the one before: what level 100 finds, level 10 may have
missed. A caller who asks for 10 hits and then for 20, to show a second page, must not see a hit twice or lose one. So the hits of a higher level
begin with those of the levels below it, and what it finds that would rank among them is left out: at recall 0.95 that is one row in seven queries
(benchmarks/RESULTS.md). Scores stay in order, and there are k hits while there are k rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twinvec.index.ann.plan import level_of
from twinvec.index.ranking import Candidates, Names, Ranked, Rows


def below(k: int) -> list[int]:
    """The levels below that of k, ascending."""
    found, level = [], level_of(1)
    while level < k:
        found.append(level)
        level = level_of(level + 1)
    return found


@dataclass(slots=True)
class Level:
    """One level's view of all queries.

    found: its candidates, None when the level is answered exactly. enough: a query with fewer candidates is answered exactly. available: rows that
    may be found. settled: (queries, candidates of these, k) -> their best k. exact: (queries, k) -> the best k of all rows that may be found.
    """

    found: Candidates | None
    count: int  # queries
    enough: int
    available: int
    settled: Callable[[Rows, Candidates, int], Ranked]
    exact: Callable[[Rows, int], Ranked]

    def short(self) -> npt.NDArray[np.bool_]:
        """(q,) queries that are answered exactly."""
        return np.ones(self.count, dtype=np.bool_) if self.found is None else self.found.counts < self.enough

    def best(self, which: Rows, k: int) -> Ranked:
        """The best k candidates of queries that are not short and have as many."""
        assert self.found is not None
        if len(which) == self.count:
            return self.settled(which, self.found, k)
        mine = np.zeros(self.count, dtype=np.bool_)
        mine[which] = True
        return self.settled(which, Candidates(self.found.counts[which], self.found.rows[np.repeat(mine, self.found.counts)]), k)

    def first(self, k: int) -> Ranked:
        """The best k without any level below."""
        short = self.short()
        if not short.any():
            return self.best(np.arange(self.count), k)
        out = Ranked(np.empty((self.count, k), dtype=np.int64), np.empty((self.count, k)))
        for which, run in ((np.flatnonzero(~short), self.best), (np.flatnonzero(short), self.exact)):
            if len(which):
                found = run(which, k)
                out.rows[which], out.scores[which] = found.rows, found.scores
        return out

    def behind(self, head: Ranked, k: int, ids: Names | None) -> Ranked:
        """The head (q, h < k) of the level below, and behind it what ranks there: candidates while there are some, then any row."""
        size = head.rows.shape[1]
        out = Ranked(np.empty((self.count, k), dtype=np.int64), np.empty((self.count, k)))
        out.rows[:, :size], out.scores[:, :size] = head.rows, head.scores
        have = np.full(self.count, size)
        todo, take = np.flatnonzero(~self.short()), k + _spare(size)
        while len(todo):
            assert self.found is not None
            counts = self.found.counts[todo]
            take = min(take, int(counts.min()))  # k at least: a query with fewer is short
            have[todo] = size + _fill(out, size, todo, self.best(todo, take), ids)
            # A query whose candidates are not enough goes on behind the last of them, whatever k is: else its hits would depend on k.
            todo, take = todo[(have[todo] < k) & (counts > take)], 4 * take
        for filled in np.unique(have[have < k]).tolist():
            self._exactly(out, filled, np.flatnonzero(have == filled), ids)
        return out

    def _exactly(self, out: Ranked, size: int, todo: Rows, ids: Names | None) -> None:
        """Fill up queries that have `size` hits from all rows that may be found."""
        k = out.rows.shape[1]
        take = k + _spare(size)
        while len(todo):
            take = min(take, self.available)
            found = self.exact(todo, take)
            left = _fill(out, size, todo, found, ids) < k - size
            todo = todo[left]
            if take == self.available:  # so many were passed over that fewer than k are left behind the head: everything, in its order
                out.rows[todo], out.scores[todo] = found.rows[left, :k], found.scores[left, :k]
                break
            take *= 4


def _spare(size: int) -> int:
    """Rows more than asked for behind a head of `size`: some rank among it and are left out."""
    return max(16, size // 4)


def _fill(out: Ranked, size: int, which: Rows, found: Ranked, ids: Names | None) -> Rows:
    """Write what ranks behind the first `size` hits of out[which], as far as it goes; returns how many that are for each."""
    score, row = out.scores[which, size - 1, None], out.rows[which, size - 1, None]
    fits = found.scores < score
    ties = (found.scores == score) & (found.rows != row)
    if ties.any():
        fits |= ties & _later(found.rows, row, ties, ids)
    wanted = min(out.rows.shape[1] - size, found.rows.shape[1])
    order = np.argsort(~fits, axis=1, kind="stable")[:, :wanted]
    out.rows[which, size : size + wanted] = np.take_along_axis(found.rows, order, axis=1)
    out.scores[which, size : size + wanted] = np.take_along_axis(found.scores, order, axis=1)
    counts: Rows = np.minimum(fits.sum(axis=1), wanted)
    return counts


def _later(rows: Rows, last: Rows, ties: npt.NDArray[np.bool_], ids: Names | None) -> npt.NDArray[np.bool_]:
    """(q, m) which of the rows that tie come after `last` (q, 1): by id, then by row."""
    if ids is None:
        return np.greater(rows, last)
    out = np.zeros(rows.shape, dtype=np.bool_)
    names = ids({*rows[ties].tolist(), *last[ties.any(axis=1), 0].tolist()})
    for i, j in np.argwhere(ties).tolist():
        one, other = int(rows[i, j]), int(last[i, 0])
        out[i, j] = (names.get(one, ""), one) > (names.get(other, ""), other)
    return out
