"""Nearest neighbours of evaluation sets: the same exact search that a collection does."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from twinvec.errors import DataError
from twinvec.index.exact import exact_search

Ints = npt.NDArray[np.int64]


def nearest(queries: npt.ArrayLike, documents: npt.ArrayLike, k: int) -> list[Ints]:
    """queries (q, D), documents (n, D) -> for each query the rows of its k documents of largest cosine, best first, ties by row.

    Zero rows (empty texts) are near to nothing: such a document is never found, such a query finds nothing. NaN or infinity: DataError.
    """
    wanted, stored = _finite(queries), _finite(documents)
    found: list[Ints] = [np.zeros(0, dtype=np.int64)] * len(wanted)
    alive = np.flatnonzero(wanted.any(axis=1))
    if alive.size and len(stored):
        for row, best in zip(alive, exact_search(wanted[alive], [stored], k).rows, strict=True):
            found[row] = best
    return found


def _finite(x: npt.ArrayLike) -> npt.NDArray[np.float32]:
    values = np.ascontiguousarray(x, dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if bad.size:
        raise DataError(f"evaluation: vector {bad[0] + 1} of {len(values)} holds NaN or infinity ({bad.size} do); the model gives broken vectors")
    return values
