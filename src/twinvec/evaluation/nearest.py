"""Nearest neighbours by blocks of one matrix product, for evaluation sets that fit in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from twinvec.errors import DataError

Ints = npt.NDArray[np.int64]
_BLOCK_CELLS = 16_000_000  # scores held at once: 64 MB of float32


def unit_rows(x: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Rows divided by their norm, float32, contiguous; zero rows stay zero. A row with NaN or infinity: DataError with its number."""
    values = np.asarray(x, dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if bad.size:
        raise DataError(f"evaluation: vector {bad[0] + 1} of {len(values)} holds NaN or infinity ({bad.size} do); the model gives broken vectors")
    norms = np.linalg.norm(values.astype(np.float64), axis=1, keepdims=True)
    return np.ascontiguousarray(values / np.where(norms > 0, norms, 1.0), dtype=np.float32)


def nearest(queries: npt.NDArray[np.float32], documents: npt.NDArray[np.float32], k: int) -> Iterator[Ints]:
    """queries (q, D), documents (n, D) -> for each query the rows of its min(k, n) largest inner products, best first, ties by row."""
    size = max(1, _BLOCK_CELLS // max(1, len(documents)))
    for start in range(0, len(queries), size):
        for scores in queries[start : start + size] @ documents.T:
            # Everything from the k-th score up, then an exact order: argpartition alone would break ties at the edge by chance.
            edge = np.partition(scores, -k)[-k] if k < len(scores) else -np.inf
            found = np.flatnonzero(scores >= edge)
            yield found[np.lexsort((found, -scores[found]))][:k]
