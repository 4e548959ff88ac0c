"""Rows given in a stream: an index is built from blocks, never from everything in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from twinvec.errors import CollectionError
from twinvec.records import Vectors

BLOCK = 16_384


class RowSource(Protocol):
    """Rows of vectors that can be read from the start as often as needed, each time the same."""

    @property
    def rows(self) -> int: ...

    @property
    def dimensions(self) -> int: ...

    def __iter__(self) -> Iterator[Vectors]:
        """float32 (n_i, D), any n_i; together all rows in order."""


class ArrayRows:
    """An array (n, D), mapped or in memory, of any float type."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array, self.rows, self.dimensions = array, len(array), int(array.shape[1])

    def __iter__(self) -> Iterator[Vectors]:
        for low in range(0, self.rows, BLOCK):
            yield np.ascontiguousarray(self.array[low : low + BLOCK], dtype=np.float32)


class FileRows:
    """A .npy file of (n, D) float32, read block by block: unlike a mapping, what was read does not stay in this process's memory."""

    def __init__(self, path: str | Path) -> None:
        array = np.load(path, mmap_mode="r")
        if array.ndim != 2 or array.dtype != np.float32 or not array.flags.c_contiguous:
            raise CollectionError(f"{path}: holds {array.dtype} of shape {array.shape}, wanted float32 rows of shape (n, dimensions)")
        self.path, self.rows, self.dimensions, self._start = Path(path), len(array), int(array.shape[1]), int(array.offset)

    def __iter__(self) -> Iterator[Vectors]:
        with open(self.path, "rb") as stream:
            stream.seek(self._start)
            for low in range(0, self.rows, BLOCK):
                count = min(BLOCK, self.rows - low) * self.dimensions
                block = np.fromfile(stream, dtype=np.float32, count=count)
                if len(block) < count:
                    raise CollectionError(f"{self.path}: ends in the middle of row {low + len(block) // self.dimensions}; write it again")
                yield block.reshape(-1, self.dimensions)


def checked(source: RowSource) -> Iterator[tuple[int, Vectors]]:
    """(number of the first row, block) in blocks of at most BLOCK rows; CollectionError for a wrong shape, NaN or a wrong number of rows."""
    start = 0
    for block in source:
        if block.ndim != 2 or block.shape[1] != source.dimensions:
            raise CollectionError(f"rows {start} and on: shape {block.shape}, wanted (n, {source.dimensions})")
        for low in range(0, len(block), BLOCK):
            part = np.ascontiguousarray(block[low : low + BLOCK], dtype=np.float32)
            if not np.isfinite(part).all():
                bad = start + int(np.flatnonzero(~np.isfinite(part).all(axis=1))[0])
                raise CollectionError(f"row {bad} from 0 holds NaN or infinity; leave it out or encode its text again")
            yield start, part
            start += len(part)
    if start != source.rows:
        raise CollectionError(f"the source said {source.rows} rows and gave {start}")
