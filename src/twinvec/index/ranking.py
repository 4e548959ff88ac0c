"""From candidates to hits: the same answer for one query or a thousand, one thread or eight, any block size.

A matrix product in float32 rounds differently with every shape, so its scores decide only who is a candidate. Candidates are scored again in
float64, one fixed order of summation a row, and sorted by (-score, id). With u = 2^-24 an inner product of D terms is off by at most
e = (D + 8) u |q| |v| (Higham 2002, section 3.1; 8 covers rounding both vectors to float32). At least k rows truly score s_k - e or more,
where s_k is the k-th float32 score; so every row of the true top k has a float32 score of at least s_k - 2e. All of those are scored again:
the result is the float64 ranking of everything, exactly, and top k is a prefix of top K.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from twinvec.records import Vectors

Rows = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]
PAIRS = 16_384  # query-row pairs scored again at a time: 50 MB of float64 at 384 dimensions


@dataclass(frozen=True, slots=True)
class Ranked:
    """rows (q, k) int64, best first, and their scores (q, k) float64; k is at most the number of live rows."""

    rows: Rows
    scores: Scores


class Finder(Protocol):
    """Something that finds rows by inner product in float32."""

    @property
    def live(self) -> int:
        """Rows that can be found."""

    def candidates(self, queries: Vectors, k: int) -> tuple[npt.NDArray[np.float32], Rows]:
        """queries (q, D), k <= live -> the k largest inner products of each, largest first, and their rows; never a dead row."""

    def vectors(self, rows: Rows) -> Vectors:
        """(m,) -> (m, D) as stored."""


def rank(
    queries: Scores, finder: Finder, k: int, *, metric: str, max_norm: float, ids: Callable[[Iterable[int]], Mapping[int, str]] | None = None
) -> Ranked:
    """queries (q, D) float64, finite and not zero -> the best k rows of each by (-score, id).

    metric: "cosine" (clamped to [-1, 1]) or "dot". max_norm: no stored row is longer. ids: names of rows, asked only for rows that tie;
    None breaks ties by row number.
    """
    k = min(k, finder.live)
    if k == 0 or not len(queries):
        return Ranked(np.zeros((len(queries), k), dtype=np.int64), np.zeros((len(queries), k), dtype=np.float64))
    if metric == "cosine":
        queries = queries / _lengths(queries)[:, None]
    found = _certified(queries, finder, k, max_norm)
    counts = np.asarray([len(rows) for rows in found])
    scores = _exact(queries, np.repeat(np.arange(len(queries)), counts), np.concatenate(found), finder, metric)
    return _order(found, np.split(scores, np.cumsum(counts)[:-1]), k, ids)


def _lengths(x: Scores) -> Scores:
    # Along the last axis of a contiguous array numpy adds each row alone, pairwise: the sum does not depend on how many rows there are.
    lengths: Scores = np.sqrt((x * x).sum(axis=1))
    return lengths


def _certified(queries: Scores, finder: Finder, k: int, max_norm: float) -> list[Rows]:
    """For each query the rows that can be in its true top k (module docstring); more are asked for until the bound is met."""
    narrow = np.ascontiguousarray(queries, dtype=np.float32)
    dimensions = queries.shape[1]
    slack = (dimensions + 8) * 2.0**-24 * _lengths(queries) * max_norm + dimensions * 2.0**-126  # the last term: products below float32's range
    found: list[Rows] = [np.zeros(0, dtype=np.int64)] * len(queries)
    todo = np.arange(len(queries))
    take = k + max(16, k // 8)
    while len(todo):
        take = min(take, finder.live)
        scores, rows = finder.candidates(narrow[todo], take)
        floor = scores[:, k - 1].astype(np.float64) - 2 * slack[todo]
        for i in np.flatnonzero(ready := (scores[:, -1] < floor) | (take == finder.live)):
            found[todo[i]] = rows[i][scores[i] >= floor[i]]
        todo = todo[~ready]
        take *= 4
    return found


def _exact(queries: Scores, which: Rows, rows: Rows, finder: Finder, metric: str) -> Scores:
    """Scores in float64 of the pairs (queries[which], rows)."""
    scores = np.empty(len(rows), dtype=np.float64)
    for at in range(0, len(rows), PAIRS):
        part = slice(at, at + PAIRS)
        stored = finder.vectors(rows[part]).astype(np.float64)
        scores[part] = (stored * queries[which[part]]).sum(axis=1)
        if metric == "cosine":
            scores[part] /= _lengths(stored)
    return np.clip(scores, -1.0, 1.0) if metric == "cosine" else scores


def _order(found: Sequence[Rows], scores: Sequence[Scores], k: int, ids: Callable[[Iterable[int]], Mapping[int, str]] | None) -> Ranked:
    kept: list[tuple[Rows, Scores]] = []
    tied: set[int] = set()
    for rows, values in zip(found, scores, strict=True):
        order = np.lexsort((rows, -values))
        rows, values = rows[order], values[order]
        last = int(np.searchsorted(-values, -values[k - 1], side="right"))  # everything that ties with the k-th stays in the race
        rows, values = rows[:last], values[:last]
        same = values[1:] == values[:-1]
        tied.update(rows[np.concatenate(([False], same)) | np.concatenate((same, [False]))].tolist())
        kept.append((rows, values))
    names = ids(tied) if ids is not None and tied else {}
    out = Ranked(np.empty((len(kept), k), dtype=np.int64), np.empty((len(kept), k), dtype=np.float64))
    for i, (rows, values) in enumerate(kept):
        if names and len(rows) > 1:
            pairs = sorted(zip((-values).tolist(), rows.tolist(), strict=True), key=lambda pair: (pair[0], names.get(pair[1], "")))
            out.rows[i], out.scores[i] = [row for _, row in pairs[:k]], [-score for score, _ in pairs[:k]]
        else:
            out.rows[i], out.scores[i] = rows[:k], values[:k]
    return out
