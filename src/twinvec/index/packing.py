"""Vectors as a segment holds them: float32, float16, int8 between stored ranges, or signs with float16 beside them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.index.entries import Settings
from twinvec.index.ranking import Rows
from twinvec.index.segments import Mapped, Segment, write
from twinvec.records import Vectors

LEARNED = 1024  # rows that int8 ranges are learned from; with fewer at hand a segment is float16
SLACK = {"float32": 1 + 1e-9, "float16": 1.001, "int8": 1.05, "binary": 1.001}  # how much longer a row may be as it is stored
_MARGIN = 0.1  # ranges are this share wider on each side than what was seen; what lies outside is clipped


def learned(vectors: Vectors) -> npt.NDArray[np.float32]:
    """(n, D) -> (2, D) float32: the lowest and highest value of each dimension, with a margin."""
    low, high = vectors.min(axis=0), vectors.max(axis=0)
    wider = np.maximum((high - low) * _MARGIN, 1e-6)
    return np.stack((low - wider, high + wider)).astype(np.float32)


def pack(vectors: Vectors, dtype: str, ranges: npt.NDArray[np.float32] | None = None, *, unit: bool = False) -> dict[str, npt.NDArray[Any]]:
    """(n, D) float32 -> the arrays of a segment of this type: "vectors", "full" beside signs, and with `unit` the "scales" of narrower types.

    int8 clips to `ranges` (2, D), never wraps. scales (n,): 1 / length of each row as it reads back, so that it is read as a unit row.
    """
    if dtype == "float32":
        return {"vectors": vectors}
    if dtype == "int8":
        assert ranges is not None
        low, step = ranges[0], (ranges[1] - ranges[0]) / 255
        found = {"vectors": (np.clip(np.rint((vectors - low) / step), 0, 255) - 128).astype(np.int8)}
    else:
        largest = np.finfo(np.float16).max  # beyond it float16 is infinite
        halves = np.clip(vectors, -largest, largest).astype(np.float16)
        found = {"vectors": halves} if dtype == "float16" else {"vectors": np.packbits(vectors > 0, axis=1), "full": halves}
    if unit:
        wide = _read(found.get("full", found["vectors"]), ranges).astype(np.float64)
        lengths = np.sqrt((wide * wide).sum(axis=1))
        found["scales"] = (1 / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
    return found


def write_batch(
    folder: Path, number: int, numbers: Rows, vectors: Vectors, settings: Settings, ranges: Any, *, what: str = "this batch"
) -> tuple[Segment, Any]:
    """Vectors (n, D) of the passages `numbers` as a segment of the collection's number type.

    ranges: those of int8, None before there are any: they are learned from the first batch that is large enough, until then float16 is written.
    Returns the segment and the ranges.
    """
    dtype = settings.store
    if dtype == "int8" and ranges is None:
        if len(vectors) >= LEARNED:
            ranges = learned(vectors).tolist()
        else:
            dtype = "float16"
    between = np.asarray(ranges, dtype=np.float32) if dtype == "int8" else None
    unit = settings.metric == "cosine"
    longest = float(np.sqrt((vectors.astype(np.float64) ** 2).sum(axis=1)).max()) * SLACK[dtype]
    segment = write(
        folder, number, numbers, [pack(vectors, dtype, between, unit=unit)], dtype=dtype, dimensions=vectors.shape[1], max_norm=longest,
        ranges=between, unit=unit, what=what,
    )  # fmt: skip
    return segment, ranges


def unpack(stored: Mapped, rows: Any) -> Vectors:
    """The rows (a slice or an array of row numbers) as float32 (m, D), as near to what was given as the type allows."""
    source = stored.full if stored.full is not None else stored.vectors
    found = _read(source.numpy()[rows], stored.ranges)
    return found if stored.scales is None else np.asarray(found * stored.scales.numpy()[rows][:, None], dtype=np.float32)


def _read(codes: npt.NDArray[Any], ranges: npt.NDArray[np.float32] | None) -> Vectors:
    if codes.dtype != np.int8:
        return np.ascontiguousarray(codes, dtype=np.float32)
    assert ranges is not None
    return np.asarray((codes.astype(np.float32) + 128) * ((ranges[1] - ranges[0]) / 255) + ranges[0], dtype=np.float32)


def raw(stored: Mapped, rows: Any) -> Mapping[str, npt.NDArray[Any]]:
    """The rows as they are stored, for copying into a segment of the same type and ranges."""
    more = {"full": stored.full, "scales": stored.scales}
    return {"vectors": stored.vectors.numpy()[rows], **{name: array.numpy()[rows] for name, array in more.items() if array is not None}}
