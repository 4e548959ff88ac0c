"""Vectors to disk as they come: .npy row by row, .parquet with id and text beside each vector."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from twinvec.errors import EncodeError
from twinvec.files import atomic_file
from twinvec.records import Vectors

SUFFIXES = (".npy", ".parquet")


class Sink(Protocol):
    """Where blocks of rows go."""

    def add(self, ids: list[str], texts: list[str], vectors: Vectors) -> None: ...

    def close(self) -> None: ...


class NpySink:
    """A .npy file whose number of rows is known at its end only: the header is written again over a first one of the same length."""

    def __init__(self, stream: BinaryIO, dimensions: int, store: str) -> None:
        self.stream, self.dimensions, self.type = stream, dimensions, np.dtype(store)
        self.rows = 0
        self._header()
        self.start = stream.tell()

    def _header(self) -> None:
        # numpy leaves space in the header for the first dimension to grow.
        fields = {"descr": np.lib.format.dtype_to_descr(self.type), "fortran_order": False, "shape": (self.rows, self.dimensions)}  # type: ignore[no-untyped-call]
        np.lib.format.write_array_header_1_0(self.stream, fields)  # type: ignore[no-untyped-call]

    def add(self, ids: list[str], texts: list[str], vectors: Vectors) -> None:
        self.stream.write(as_stored(vectors, self.type).tobytes())
        self.rows += len(vectors)

    def close(self) -> None:
        end = self.stream.tell()
        self.stream.seek(0)
        self._header()
        if self.stream.tell() != self.start:
            raise RuntimeError("the .npy header changed its length")
        self.stream.seek(end)


class ParquetSink:
    """Columns id, text, vector. The blocks are kept until the end: Parquet is written in one go."""

    def __init__(self, stream: BinaryIO, dimensions: int, store: str) -> None:
        self.stream, self.dimensions, self.type = stream, dimensions, np.dtype(store)
        self.frames: list[Any] = []

    def add(self, ids: list[str], texts: list[str], vectors: Vectors) -> None:
        import polars

        stored = as_stored(vectors, self.type)
        self.frames.append(polars.DataFrame({"id": ids, "text": texts, "vector": stored}))

    def close(self) -> None:
        import polars

        if not self.frames:
            self.add([], [], np.zeros((0, self.dimensions), np.float32))
        polars.concat(self.frames, rechunk=False).write_parquet(self.stream)


@contextmanager
def sink(path: Path, dimensions: int, store: str) -> Iterator[Sink]:
    """A sink that becomes `path`, whole, when the block ends well."""
    with atomic_file(path) as stream:
        made: Sink = (NpySink if path.suffix.lower() == ".npy" else ParquetSink)(stream, dimensions, store)
        yield made
        made.close()


def as_stored(vectors: Vectors, type: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Rows in the type they are stored in; EncodeError when a number does not fit float16 (largest: 65,504)."""
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(vectors, dtype=type)
    if type != np.float32 and not np.isfinite(stored).all():
        raise EncodeError("a vector has numbers above 65504, which float16 cannot hold; use --store float32")
    return stored
