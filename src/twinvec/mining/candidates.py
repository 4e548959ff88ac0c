"""The nearest texts of a corpus for each anchor, block by block: exact, deterministic, never a text that belongs to the anchor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from twinvec.index.checks import check_values, normalised
from twinvec.index.exact import WINDOW, Blocks
from twinvec.index.ranking import rank
from twinvec.mining.known import Known, Rows
from twinvec.records import Vectors

Floats = npt.NDArray[np.float64]
_BLOCK, _FOUND = 1_024, 2_000_000  # anchors searched at once, and hits held at once (16 bytes each)


@dataclass(frozen=True, slots=True)
class Candidates:
    """What one anchor may take its negatives from: rows of the corpus within the window, best first, their scores, and the rank of the first.

    `known`: how many texts on the way to the window's end were passed over because they belong to the anchor.
    """

    anchor: int
    rows: Rows
    scores: Floats
    known: int


class Corpus:
    """Texts by their vectors (n, D), made `fit` before, searched exactly (index.ranking). `usable` (n,): False where a text is never to be found."""

    def __init__(self, vectors: Vectors, norms: Floats, usable: npt.NDArray[np.bool_], metric: str) -> None:
        self.metric = metric
        self._finder = Blocks([torch.from_numpy(vectors)], np.flatnonzero(~usable))
        self._longest = (1.0 if metric == "cosine" else float(norms.max(initial=0.0))) * (1 + 1e-6)

    @property
    def usable(self) -> int:
        return self._finder.live

    def search(self, queries: Vectors, k: int) -> tuple[Rows, Floats]:
        """queries (q, D), none of them zero -> rows and scores (q, k) by (-score, row), fewer columns where the corpus has fewer texts."""
        found = rank(queries.astype(np.float64), self._finder, k, metric=self.metric, max_norm=self._longest)
        return found.rows, found.scores


def fit(vectors: Vectors, metric: str, what: str) -> Floats:
    """Make rows (n, D) unit rows in place for "cosine"; returns the norms (n,) that they had. VectorError for NaN, infinity, norms above 1e18."""
    norms = np.empty(len(vectors), dtype=np.float64)
    for at in range(0, len(vectors), WINDOW):
        check_values(vectors[at : at + WINDOW], what, at)
        vectors[at : at + WINDOW], norms[at : at + WINDOW] = normalised(vectors[at : at + WINDOW], metric)
    return norms


def similarity(query: Vectors, vectors: Vectors, metric: str) -> Floats:
    """query (D,), vectors (m, D), both fit and not zero -> (m,) float64, to the last bit what a search gives for the same texts."""
    wide, stored = query.astype(np.float64), vectors.astype(np.float64)
    if metric == "dot":
        return np.asarray((stored * wide).sum(axis=1))
    wide = wide / np.sqrt((wide * wide).sum())
    cosine: Floats = np.clip((stored * wide).sum(axis=1) / np.sqrt((stored * stored).sum(axis=1)), -1.0, 1.0)
    return cosine


def candidates(
    anchors: Sequence[str], vectors: Vectors, corpus: Corpus, known: Known, *, rank_from: int, rank_to: int, block: int = _BLOCK
) -> Iterator[list[Candidates]]:
    """For each anchor (text and vector (D,), not zero) the corpus at its ranks rank_from to rank_to, known texts not counted; in blocks.

    Anchors with few known texts come first, so that one with thousands makes its own block deep and not everyone's.
    """
    excluded = [known.rows(anchor) for anchor in anchors]
    order = sorted(range(len(anchors)), key=lambda i: len(excluded[i]))
    at = 0
    while at < len(order):
        chunk = order[at : at + block]
        # Sorted by depth: the last is the deepest of the chunk. A chunk too deep for memory is cut to a share of itself.
        while len(chunk) > 1 and (rank_to + len(excluded[chunk[-1]])) * len(chunk) > _FOUND:
            chunk = chunk[: max(1, len(chunk) // 2)]
        rows, scores = corpus.search(vectors[chunk], rank_to + len(excluded[chunk[-1]]))
        yield [_window(i, rows[j], scores[j], excluded[i], rank_from, rank_to) for j, i in enumerate(chunk)]
        at += len(chunk)


def _window(anchor: int, rows: Rows, scores: Floats, excluded: Rows, rank_from: int, rank_to: int) -> Candidates:
    free = np.flatnonzero(~np.isin(rows, excluded))[:rank_to]
    passed = int(free[-1]) + 1 - len(free) if len(free) == rank_to else len(rows) - len(free)
    chosen = free[rank_from - 1 :]
    return Candidates(anchor, rows[chosen], scores[chosen], passed)
