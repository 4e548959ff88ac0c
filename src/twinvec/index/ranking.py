"""From candidates to hits: the same answer for one query or a thousand, one thread or eight, any block size.

A matrix product rounds differently with every shape, so its scores decide only who is a candidate. Candidates are scored again in float64, one
fixed order of summation a row, and sorted by (-score, id). With u = 2^-24 a float32 inner product of D terms is off by at most
e = (D + 8) u |q| |v| (Higham 2002, section 3.1; 8 covers rounding both vectors to float32). At least k rows truly score s_k - e or more,
where s_k is the k-th float32 score; so every row of the true top k has a float32 score of at least s_k - 2e. All of those are scored again:
the result is the float64 ranking of everything, exactly, and top k is a prefix of top K. exact.py does the same with bfloat16 and its error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from twinvec.records import Vectors

Rows = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]
Names = Callable[[Iterable[int]], Mapping[int, str]]
PAIRS = 128  # query-row pairs scored again at a time: 800 KB of float64 at 384 dimensions, which stays in the cache
_READ = 16 * PAIRS  # stored rows fetched at a time, which are 3 MB
_CELLS = 1 << 22  # scores of `_nth` at once
_SPARE = 4  # candidates a query that are not worth a float32 pass


@dataclass(frozen=True, slots=True)
class Ranked:
    """rows (q, k) int64, best first, and their scores (q, k) float64; k is at most the number of live rows."""

    rows: Rows
    scores: Scores


@dataclass(frozen=True, slots=True)
class Candidates:
    """`rows` of all queries one after the other, `counts` (q,) of them for each; no row twice for one query."""

    counts: Rows
    rows: Rows


class Finder(Protocol):
    """Something that knows which rows can be among the nearest."""

    @property
    def live(self) -> int:
        """Rows that can be found."""

    def candidates(self, queries: Scores, k: int, max_norm: float) -> Candidates:
        """queries (q, D), k <= live; no stored row is longer than max_norm -> at least k rows a query, the true k nearest among them, none dead."""

    def vectors(self, rows: Rows) -> Vectors:
        """(m,) -> (m, D) as stored."""

    def products(self, queries: Vectors, which: Rows, rows: Rows) -> Vectors:
        """queries (q, D) float32, which and rows (m,) -> the inner products (m,) of queries[which] and the rows, in float32."""


def rank(queries: Scores, finder: Finder, k: int, *, metric: str, max_norm: float, ids: Names | None = None) -> Ranked:
    """queries (q, D) float64, finite and not zero -> the best k rows of each by (-score, id).

    metric: "cosine" (clamped to [-1, 1]) or "dot". max_norm: no stored row is longer. ids: names of rows, asked only for rows that tie;
    None breaks ties by row number.
    """
    k = min(k, finder.live)
    if k == 0 or not len(queries):
        return Ranked(np.zeros((len(queries), k), dtype=np.int64), np.zeros((len(queries), k), dtype=np.float64))
    if metric == "cosine":
        queries = queries / lengths(queries)[:, None]
    return settle(queries, finder.candidates(queries, k, max_norm), finder, k, metric=metric, max_norm=max_norm, ids=ids)


def settle(
    queries: Scores, found: Candidates, finder: Finder, k: int, *, metric: str, max_norm: float, ids: Names | None = None
) -> Ranked:  # fmt: skip
    """The best k of the candidates of each query (at least k each), scored in float64, by (-score, id). Unit queries for "cosine"."""
    found = _narrowed(queries, found, finder, k, max_norm)
    which = np.repeat(np.arange(len(queries)), found.counts)
    scores = _exact(queries, which, found.rows, finder, metric)
    return _order(found, which, scores, k, ids)


def lengths(x: Scores) -> Scores:
    """(n, D) -> (n,). Along the last axis of a contiguous array numpy adds each row alone, pairwise: no row's sum depends on the others."""
    found: Scores = np.sqrt((x * x).sum(axis=1))
    return found


def float32_slack(queries: Scores, max_norm: float) -> Scores:
    """(q, D) -> (q,): no float32 inner product with a stored row is further off (module docstring)."""
    dimensions = queries.shape[1]
    slack: Scores = (dimensions + 8) * 2.0**-24 * lengths(queries) * max_norm + dimensions * 2.0**-126  # products below float32's range
    return slack


def certified(queries: Scores, nearest: Callable[[Vectors, int], tuple[Vectors, Rows]], live: int, k: int, max_norm: float) -> Candidates:
    """For each query the rows that can be in its true top k; more are asked for until the bound is met.

    nearest: (queries float32, how many) -> float32 scores and rows, largest first.
    """
    narrow = np.ascontiguousarray(queries, dtype=np.float32)
    slack = float32_slack(queries, max_norm)
    found: list[Rows] = [np.zeros(0, dtype=np.int64)] * len(queries)
    todo = np.arange(len(queries))
    take = k + max(16, k // 8)
    while len(todo):
        take = min(take, live)
        scores, rows = nearest(narrow[todo], take)
        floor = scores[:, k - 1].astype(np.float64) - 2 * slack[todo]
        for i in np.flatnonzero(ready := (scores[:, -1] < floor) | (take == live)):
            found[todo[i]] = rows[i][scores[i] >= floor[i]]
        todo = todo[~ready]
        take *= 4
    return Candidates(np.asarray([len(rows) for rows in found], dtype=np.int64), np.concatenate(found))


def _narrowed(queries: Scores, found: Candidates, finder: Finder, k: int, max_norm: float) -> Candidates:
    """Those candidates that a float32 score leaves in the race: float64 arithmetic is forty times dearer."""
    if len(found.rows) <= max(2 * PAIRS, len(queries) * (k + _SPARE)):  # so few that the pass would take longer than it saves
        return found
    which = np.repeat(np.arange(len(queries)), found.counts)
    scores = finder.products(np.ascontiguousarray(queries, dtype=np.float32), which, found.rows)
    floor = (_nth(scores, found.counts, k).astype(np.float64) - 2 * float32_slack(queries, max_norm)).repeat(found.counts)
    stays = scores >= floor
    return Candidates(np.bincount(which[stays], minlength=len(queries)), found.rows[stays])


def _nth(scores: Vectors, counts: Rows, k: int) -> Vectors:
    """scores (m,) of all queries one after the other, counts (q,), each at least k -> (q,) the k-th largest of each query."""
    out = np.empty(len(counts), dtype=np.float32)
    starts = np.cumsum(counts) - counts
    order = np.argsort(counts, kind="stable")  # queries with about as many go together, so that little of a table is empty
    ordered = counts[order]
    at = 0
    while at < len(order):
        stop = int(np.searchsorted(ordered, max(2 * int(ordered[at]), 4 * k), side="right"))
        stop = min(stop, at + max(1, _CELLS // int(ordered[stop - 1])))
        here, width = order[at:stop], int(ordered[stop - 1])
        place = starts[here, None] + np.arange(width)
        table = np.where(np.arange(width) < counts[here, None], scores.take(place, mode="clip"), np.float32(-np.inf))
        out[here] = np.partition(table, width - k, axis=1)[:, width - k]
        at = stop
    return out


def _exact(queries: Scores, which: Rows, rows: Rows, finder: Finder, metric: str) -> Scores:
    """Scores in float64 of the pairs (queries[which], rows)."""
    scores = np.empty(len(rows), dtype=np.float64)
    wide, products = np.empty((2, min(PAIRS, len(rows)), queries.shape[1]))
    for at in range(0, len(rows), PAIRS):
        if at % _READ == 0:
            read = finder.vectors(rows[at : at + _READ])
        part = slice(at, at + PAIRS)
        stored, product = wide[: len(rows[part])], products[: len(rows[part])]
        stored[:] = read[at % _READ : at % _READ + PAIRS]
        np.take(queries, which[part], axis=0, out=product, mode="clip")  # "raise", the default, would go through a copy
        product *= stored
        scores[part] = product.sum(axis=1)
        if metric == "cosine":
            stored *= stored
            scores[part] /= np.sqrt(stored.sum(axis=1))
    return np.clip(scores, -1.0, 1.0) if metric == "cosine" else scores


def _order(found: Candidates, which: Rows, scores: Scores, k: int, ids: Names | None) -> Ranked:
    """Sorted by (-score, id); rows of equal score get their names only where the order is at stake."""
    order = np.lexsort((found.rows, -scores, which))
    rows, scores = found.rows[order], scores[order]
    starts = np.concatenate(([0], np.cumsum(found.counts)[:-1]))
    top = starts[:, None] + np.arange(k)
    out = Ranked(rows[top], scores[top])
    if ids is None:
        return out
    same = (scores[1:] == scores[:-1]) & (which[1:] == which[:-1])
    ranks = np.arange(len(rows)) - starts[which]
    if not np.any(same & (ranks[:-1] < k)):
        return out
    _untie(out, rows, scores, same, starts, found.counts, k, ids)
    return out


def _untie(out: Ranked, rows: Rows, scores: Scores, same: npt.NDArray[np.bool_], starts: Rows, counts: Rows, k: int, ids: Names) -> None:
    ends = starts + counts
    spans: list[tuple[int, int, int]] = []  # query, first and last + 1 of what is in the race there
    tied: set[int] = set()
    for query in np.unique(np.searchsorted(starts, np.flatnonzero(same), side="right") - 1).tolist():
        first = int(starts[query])
        last = first + k
        while last < ends[query] and same[last - 1]:  # everything that ties with the k-th stays in the race
            last += 1
        inside = same[first : last - 1]
        if inside.any():
            spans.append((query, first, last))
            tied.update(rows[first:last][np.concatenate(([False], inside)) | np.concatenate((inside, [False]))].tolist())
    names = ids(tied)
    for query, first, last in spans:
        pairs = sorted(
            zip((-scores[first:last]).tolist(), rows[first:last].tolist(), strict=True), key=lambda pair: (pair[0], names.get(pair[1], ""), pair[1])
        )
        out.rows[query], out.scores[query] = [row for _, row in pairs[:k]], [-score for score, _ in pairs[:k]]


def by_block(starts: Rows, rows: Rows) -> Iterator[tuple[int, Rows, Rows]]:
    """rows (m,), counted through blocks of which `starts` has the first rows -> for each block that holds some: its number, their places in `rows`,
    and where they stand in the block."""
    place = np.searchsorted(starts, rows, side="right") - 1
    for i in np.unique(place).tolist():
        mine = np.flatnonzero(place == i)
        yield i, mine, rows[mine] - starts[i]


def joined(parts: Sequence[Candidates]) -> Candidates:
    """The candidates of the same queries from several finders, whose rows differ, side by side."""
    counts = np.sum([part.counts for part in parts], axis=0)
    which = np.concatenate([np.repeat(np.arange(len(part.counts)), part.counts) for part in parts])
    rows = np.concatenate([part.rows for part in parts])
    return Candidates(counts, rows[np.argsort(which, kind="stable")])
