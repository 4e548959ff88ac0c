"""Numbers as they are stored: float32, float16, int8 with a range for each dimension, or one bit a dimension."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from twinvec.errors import DataError, EncodeError, UsageError, choose
from twinvec.records import Vectors

STORES: Final = ("float32", "float16", "int8", "binary")
NUMPY: Final[dict[str, Any]] = {"float32": np.float32, "float16": np.float16, "int8": np.int8, "binary": np.uint8}
FLOAT16_MAX: Final = 65504


@dataclass(frozen=True)
class Ranges:
    """float32 (D,) each: the value that int8 -128 stands for, and that of 127. Between them lie 255 equal steps."""

    low: Vectors
    high: Vectors

    @staticmethod
    def of(vectors: Vectors) -> Ranges:
        """The range of each dimension in sample vectors (n, D), n at least 1."""
        return Ranges(vectors.min(axis=0).astype(np.float32), vectors.max(axis=0).astype(np.float32))

    @property
    def step(self) -> Vectors:
        width = (self.high - self.low) / np.float32(255)
        return np.where(width > 0, width, np.float32(1)).astype(np.float32)  # a dimension that never changes is its lowest value

    def to_dict(self) -> dict[str, list[float]]:
        return {"low": [float(value) for value in self.low], "high": [float(value) for value in self.high]}

    @staticmethod
    def from_dict(found: Any, where: str, dimensions: int | None = None) -> Ranges:
        """DataError when these are no ranges of `dimensions` dimensions."""
        try:
            low, high = (np.asarray(found[name], dtype=np.float32) for name in ("low", "high"))
        except (KeyError, TypeError, ValueError) as err:
            raise DataError(f'{where}: no ranges; wanted {{"low": [...], "high": [...]}} with a number for each dimension') from err
        if low.ndim != 1 or low.shape != high.shape or not np.isfinite(low).all() or not np.isfinite(high).all() or (low > high).any():
            raise DataError(f"{where}: low and high have {low.size} and {high.size} numbers; wanted two equal rows of finite numbers, low <= high")
        if dimensions is not None and len(low) != dimensions:
            raise DataError(f"{where}: ranges of {len(low)} dimensions, but the vectors have {dimensions}; take those made with this model")
        return Ranges(low, high)


def read_ranges(path: str | Path, dimensions: int) -> Ranges:
    """Ranges from a file: JSON with low and high, the table beside an int8 .npy, an int8 .parquet, or a float .npy of sample vectors (n, D)."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file; wanted ranges (.json), an int8 .parquet, or sample vectors (.npy)")
    kind = path.suffix.lower()
    if kind == ".npy":
        try:
            sample = np.load(path, allow_pickle=False)
        except (ValueError, OSError, EOFError) as err:
            raise DataError(f"{path}: not a readable .npy file ({err})") from err
        if sample.ndim != 2 or not len(sample) or sample.dtype.kind != "f" or sample.shape[1] != dimensions or not np.isfinite(sample).all():
            raise DataError(f"{path}: an array {sample.dtype} of shape {sample.shape}; wanted finite float sample vectors (n, {dimensions})")
        return Ranges.of(sample.astype(np.float32))
    if kind in (".parquet", ".pq"):
        from twinvec.scale.read import parquet_notes

        return Ranges.from_dict(parquet_notes(path).get("ranges"), str(path), dimensions)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as err:
        raise DataError(f"{path}: not JSON; wanted ranges (.json), an int8 .parquet, or sample vectors (.npy)") from err
    return Ranges.from_dict(found.get("ranges", found) if isinstance(found, dict) else None, str(path), dimensions)


def width(store: str, dimensions: int) -> int:
    """Numbers a row in the file: one a dimension, or one byte for eight of them."""
    return -(-dimensions // 8) if store == "binary" else dimensions


def to_store(vectors: Vectors, store: str, ranges: Ranges | None = None) -> tuple[npt.NDArray[Any], int]:
    """Rows (n, D) as they are stored, (n, `width`), and how many numbers were clipped.

    float16: EncodeError when a number does not fit (largest: 65,504). int8: low..high of each dimension to -128..127, what lies outside is clipped,
    never wrapped. binary: bit 1 where the number is above 0, eight dimensions a byte, the first in the highest bit, zeros after the last.
    """
    choose("store", store, STORES)
    if store == "binary":
        return np.packbits(vectors > 0, axis=1), 0
    if store == "int8":
        if ranges is None:
            raise UsageError("store = 'int8' needs ranges; make them with Ranges.of(sample vectors)")
        steps = np.rint((vectors - ranges.low) / ranges.step) - 128
        return np.clip(steps, -128, 127).astype(np.int8), int(((vectors < ranges.low) | (vectors > ranges.high)).sum())
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(vectors, dtype=NUMPY[store])
    if store == "float16" and not np.isfinite(stored).all():
        row = int(np.flatnonzero(~np.isfinite(stored).all(axis=1))[0])
        raise EncodeError(f"row {row} has numbers above {FLOAT16_MAX}, which float16 cannot hold; use --store float32")
    return stored, 0


def from_store(stored: npt.NDArray[Any], store: str, dimensions: int, ranges: Ranges | None = None) -> Vectors:
    """float32 (n, D) of stored rows. int8 comes back to within half a step where nothing was clipped; binary as +-1/sqrt(D), a unit vector."""
    if store == "binary":
        bits = np.unpackbits(stored, axis=1, count=dimensions)
        return ((bits.astype(np.float32) * 2 - 1) / np.float32(np.sqrt(dimensions))).astype(np.float32)
    if store == "int8":
        if ranges is None:
            raise DataError("int8 vectors without their ranges cannot be read back")
        return (ranges.low + (stored.astype(np.float32) + 128) * ranges.step).astype(np.float32)
    return np.ascontiguousarray(stored, dtype=np.float32)


def shortened(vectors: Vectors, dimensions: int) -> Vectors:
    """The first `dimensions` numbers of each row, at length 1 again (a row of zeros stays): Matryoshka representation learning, 2022, section 3."""
    if dimensions == vectors.shape[1]:
        return vectors
    cut = np.ascontiguousarray(vectors[:, :dimensions])
    norms = np.linalg.norm(cut, axis=1, keepdims=True)
    out: Vectors = (cut / np.where(norms > 0, norms, 1)).astype(np.float32)
    return out
