"""The door of the index: arrays and numbers checked before anything is stored or searched."""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.errors import CollectionError, UsageError
from twinvec.records import Vectors

METRICS = ("cosine", "dot")
LARGEST = 1e18  # two such norms still have an inner product inside float32 (3.4e38)


class SearchError(UsageError, ValueError):
    """A query, or a number of hits, that cannot be searched for."""


class VectorError(CollectionError, ValueError):
    """Vectors of the wrong shape, type or value."""


def check_k(k: Any) -> int:
    """`k` as an int of at least 1, or SearchError."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise SearchError(f"k = {k!r}: wanted a whole number of hits, 1 or more")
    if k < 1:
        raise SearchError(f"k = {k}: wanted 1 hit or more")
    return int(k)


def is_blank(text: str) -> bool:
    """True when nothing but spaces, control and format characters (zero-width space, byte-order mark) is there."""
    return not text or text.isspace() or all(unicodedata.category(char) in ("Cc", "Cf", "Zs", "Zl", "Zp") for char in text)


def as_matrix(vectors: Any, dimensions: int | None, what: str) -> npt.NDArray[Any]:
    """`vectors` as a real (n, D) array of its own float type; a 1-D array becomes one row. VectorError says what came.

    Float64, float16, integers, lists, strided and Fortran arrays are welcome; what differs from `dimensions` is not.
    """
    try:
        array = np.asarray(vectors)
    except Exception as err:  # ragged lists, tensors that need a gradient or live on a GPU: each library raises its own kind
        raise VectorError(f"{what}: cannot be read as one array ({str(err).splitlines()[0]}); give an array of shape (n, dimensions)") from err
    if array.dtype.kind not in "fiu":
        raise VectorError(f"{what}: wanted numbers, got an array of type {array.dtype}; give float32 of shape (n, dimensions)")
    if array.ndim == 1:
        array = array[None, :]
    if array.ndim != 2 or array.shape[1] == 0:
        raise VectorError(f"{what}: wanted shape (n, {dimensions or 'dimensions'}), got {np.shape(vectors)}")
    if dimensions is not None and array.shape[1] != dimensions:
        raise VectorError(
            f"{what}: wanted {dimensions} dimensions, got {array.shape[1]} (shape {array.shape}); use the model that the collection was made with"
        )
    return array


def check_values(block: npt.NDArray[Any], what: str, start: int = 0, names: list[str] | None = None) -> None:
    """VectorError for the first row with NaN, infinity or a norm above 1e18; `start` is the number of the block's first row."""
    with np.errstate(over="ignore", invalid="ignore"):
        wide = block.astype(np.float64)
        norms = np.sqrt((wide * wide).sum(axis=1))
    bad = np.flatnonzero(~(norms <= LARGEST))
    if len(bad):
        row = int(bad[0])
        name = f" (id {names[row]!r})" if names is not None else ""
        fault = f"has a norm above {LARGEST:g}" if np.isfinite(wide[row]).all() else "holds NaN or infinity"
        more = f"; {len(bad)} such rows" if len(bad) > 1 else ""
        raise VectorError(f"{what}: row {start + row} from 0{name} {fault}{more}. Encode these texts again in float32, or leave them out")


def normalised(block: npt.NDArray[Any], metric: str) -> tuple[Vectors, npt.NDArray[np.float64]]:
    """(n, D) -> rows as they are stored (unit rows for "cosine"; float32, contiguous) and the norms of what came (float64).

    The division is done in float64, so tiny and zero rows stay finite; a zero row stays zero.
    """
    wide = block.astype(np.float64)
    norms = np.sqrt((wide * wide).sum(axis=1))
    if metric == "cosine":
        wide /= np.where(norms > 0, norms, 1.0)[:, None]
    return np.ascontiguousarray(wide, dtype=np.float32), norms
