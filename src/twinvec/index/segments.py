"""Segments: immutable files of vectors, written and synced before the transaction that names them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from twinvec.errors import CollectionError
from twinvec.files import atomic_file, sha256_file
from twinvec.index.ranking import Rows

FOLDER = "segments"
DTYPES = ("float32", "float16", "int8", "binary")
_OURS = re.compile(r"\.?\d{8}(\.(numbers|full|ranges|scales))?\.(npy|index)(\..*\.tmp|\.tmp)?")  # what a writer leaves, whole or broken off
_npy: Any = np.lib.format  # untyped in numpy
_SPARE = 16 << 20  # bytes kept free for the database when a segment is written
_TYPES: dict[str, tuple[str, torch.dtype]] = {
    "<f4": ("float32", torch.float32), "<f2": ("float16", torch.float16), "|i1": ("int8", torch.int8), "|u1": ("uint8", torch.uint8),
    "<i8": ("int64", torch.int64),
}  # fmt: skip
REMEDY = "restore it from a copy, or index the documents again into a new collection"


class MissingFileError(CollectionError):
    """A file that the database names is not there: lost, or taken away by a compaction since the snapshot began."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One row of the table of segments. Its vectors belong to the passages `first` to `first + rows - 1`, or to those in its file of numbers.

    kind "vectors" is the only one so far. dtype: float32, float16, int8 (a file of ranges beside it) or binary (the signs; a file "full" holds
    float16 for scoring again). `detail` (JSON): the files beside it, and the number of the last passage.
    """

    number: int
    file: str
    kind: str
    dtype: str
    first: int
    rows: int
    dimensions: int
    bytes: int
    sha256: str
    max_norm: float
    detail: str = "{}"

    @property
    def beside(self) -> dict[str, dict[str, Any]]:
        """Its other files: name -> file, bytes, sha256."""
        found: dict[str, dict[str, Any]] = json.loads(self.detail).get("files", {})
        return found

    @property
    def last(self) -> int:
        return int(json.loads(self.detail).get("last", self.first + self.rows - 1))

    @property
    def files(self) -> set[str]:
        return {self.file, *(entry["file"] for entry in self.beside.values())}

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return self.bytes + sum(int(entry["bytes"]) for entry in self.beside.values())


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One row of the table of indexes: an approximate index over the `rows` stored rows whose passage numbers begin at `first_passage`.

    `detail` (JSON) is what the index said of itself when it was built: kind, parameters for each recall, measured recall.
    """

    number: int
    file: str
    kind: str
    first_passage: int
    rows: int
    bytes: int
    sha256: str
    detail: str = "{}"


@dataclass(frozen=True, slots=True)
class Mapped:
    """A segment's arrays, mapped and not loaded.

    vectors (rows, D) in the segment's number type, or (rows, ceil(D / 8)) uint8 signs; full (rows, D) float16 beside signs; ranges (2, D) float32,
    lowest and highest value of each dimension, beside int8; numbers (rows,) int64 ascending, None when they run from `segment.first`;
    scales (rows,) float32, by which rows of a narrow type are multiplied to be unit rows again ("cosine").
    """

    segment: Segment
    vectors: torch.Tensor
    full: torch.Tensor | None = None
    ranges: npt.NDArray[np.float32] | None = None
    numbers: Rows | None = None
    scales: torch.Tensor | None = None


def write(
    folder: Path, number: int, numbers: Rows, blocks: Iterable[Mapping[str, npt.NDArray[Any]]], *, dtype: str, dimensions: int, max_norm: float,
    ranges: npt.NDArray[np.float32] | None = None, unit: bool = False, what: str = "this batch",
) -> Segment:  # fmt: skip
    """Write a segment as synced .npy files. CollectionError when the disk is full.

    numbers: the passages of its rows, ascending. blocks: arrays "vectors" (and "full", "scales") of some rows each, as packing.pack makes them
    with this `unit`.
    """
    rows, name, place = len(numbers), f"{number:08d}.npy", folder / FOLDER
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {"vectors": (_DTYPE[dtype], (rows, -(-dimensions // 8) if dtype == "binary" else dimensions))}
    if dtype == "binary":
        shapes["full"] = ("<f2", (rows, dimensions))
    if unit and dtype != "float32":
        shapes["scales"] = ("<f4", (rows,))
    gaps = bool(rows) and int(numbers[-1]) - int(numbers[0]) + 1 != rows
    small = {"numbers": numbers.astype("<i8")} if gaps else {}
    if dtype == "int8":
        assert ranges is not None
        small["ranges"] = np.ascontiguousarray(ranges, dtype="<f4")
    needed = sum(int(np.prod(shape)) * np.dtype(kind).itemsize + 128 for kind, shape in shapes.values()) + sum(a.nbytes + 128 for a in small.values())
    check_space(folder, place / name, needed, what)
    written: dict[str, dict[str, Any]] = {}
    try:
        with ExitStack() as stack:
            streams = {part: _Stream(stack, place, number, part, kind, shape) for part, (kind, shape) in shapes.items()}
            for block in blocks:
                for part, stream in streams.items():
                    stream.write(block[part])
            for part, array in small.items():
                streams[part] = _Stream(stack, place, number, part, array.dtype.str, array.shape)
                streams[part].write(array)
            written = {part: stream.entry() for part, stream in streams.items()}
    except OSError as err:
        for entry in written.values():
            (place / entry["file"]).unlink(missing_ok=True)
        raise CollectionError(f"{place / name}: could not be written ({os.strerror(err.errno or 0)}); nothing of {what} was stored") from err
    main = written.pop("vectors")
    detail = {**({"files": written} if written else {}), **({"last": int(numbers[-1])} if gaps else {})}
    return Segment(number, name, "vectors", dtype, int(numbers[0]), rows, dimensions, main["bytes"], main["sha256"], max_norm, json.dumps(detail))


_DTYPE = {"float32": "<f4", "float16": "<f2", "int8": "|i1", "binary": "|u1"}


class _Stream:
    """One .npy file that is written in blocks, with its checksum."""

    def __init__(self, stack: ExitStack, place: Path, number: int, part: str, kind: str, shape: tuple[int, ...]) -> None:
        self.name = f"{number:08d}.npy" if part == "vectors" else f"{number:08d}.{part}.npy"
        self.kind, self.shape, self.done, self.bytes, self.state = np.dtype(kind), shape, 0, 0, hashlib.sha256()
        self.stream = stack.enter_context(atomic_file(place / self.name))
        header = io.BytesIO()
        _npy.write_array_header_1_0(header, {"descr": self.kind.str, "fortran_order": False, "shape": shape})
        self._put(memoryview(header.getvalue()))

    def write(self, block: npt.NDArray[Any]) -> None:
        self.done += len(block)
        self._put(memoryview(np.ascontiguousarray(block, dtype=self.kind).data).cast("B") if block.size else memoryview(b""))

    def _put(self, content: memoryview) -> None:
        self.stream.write(content)
        self.state.update(content)
        self.bytes += len(content)

    def entry(self) -> dict[str, Any]:
        assert self.done == self.shape[0], f"{self.name}: {self.done} of {self.shape[0]} rows"
        return {"file": self.name, "bytes": self.bytes, "sha256": self.state.hexdigest()}


def check_space(folder: Path, path: Path, needed: int, what: str) -> None:
    """CollectionError when the disk has not `needed` bytes, and some for the database, before anything is written."""
    free = shutil.disk_usage(folder).free
    if free < needed + _SPARE:
        raise CollectionError(f"{path}: the disk has {free >> 20} MB free, {what} needs {(needed + _SPARE) >> 20} MB; make room")


def check(folder: Path, segment: Segment, *, content: bool) -> None:
    """Its files are there, have their sizes and, with `content`, their SHA-256; else CollectionError with the file and the remedy."""
    path = folder / FOLDER / segment.file
    if segment.kind != "vectors" or segment.dtype not in DTYPES:
        raise CollectionError(
            f"{path}: a segment of kind {segment.kind!r} ({segment.dtype}), which this version of twinvec does not know; upgrade it"
        )
    check_file(path, segment.bytes, segment.sha256, f"{segment.rows} vectors", content=content)
    for part, entry in segment.beside.items():
        check_file(folder / FOLDER / entry["file"], entry["bytes"], entry["sha256"], f"{part} of {segment.rows} vectors", content=content)


def check_file(path: Path, size: int, sha256: str, holds: str, *, content: bool, remedy: str = REMEDY) -> None:
    """As `check`, of one file."""
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        raise MissingFileError(f"{path}: missing ({holds}); {remedy}") from None
    except OSError as err:
        raise CollectionError(f"{path}: cannot be read ({os.strerror(err.errno or 0)})") from err
    if found != size:
        raise CollectionError(f"{path}: damaged, {found} bytes where {size} were written; {remedy}")
    try:
        differs = content and sha256_file(path) != sha256
    except FileNotFoundError:
        raise MissingFileError(f"{path}: missing ({holds}); {remedy}") from None
    if differs:
        raise CollectionError(f"{path}: damaged, its content is not what was written (SHA-256 differs); {remedy}")


def mapped(folder: Path, segment: Segment) -> Mapped:
    """The segment's arrays. Pages are private, so nothing can write through to the files.

    torch's own mapping closes the file again; numpy's keeps a handle for each, and a process has about a thousand.
    """
    place, beside, rows, size = folder / FOLDER, segment.beside, segment.rows, segment.dimensions
    vectors = _array(place / segment.file, segment.bytes, _DTYPE[segment.dtype], (rows, -(-size // 8) if segment.dtype == "binary" else size))
    more = {
        part: _array(place / entry["file"], entry["bytes"], kind, shape)
        for part, kind, shape in (
            ("full", "<f2", (rows, size)),
            ("ranges", "<f4", (2, size)),
            ("numbers", "<i8", (rows,)),
            ("scales", "<f4", (rows,)),
        )
        if (entry := beside.get(part))
    }
    numbers = more["numbers"].numpy() if "numbers" in more else None
    ranges = more["ranges"].numpy() if "ranges" in more else None
    return Mapped(segment, vectors, more.get("full"), ranges, numbers, more.get("scales"))


def _array(path: Path, size: int, kind: str, shape: tuple[int, ...]) -> torch.Tensor:
    try:
        with open(path, "rb") as stream:
            _npy.read_magic(stream)
            found, fortran, dtype = _npy.read_array_header_1_0(stream)
            offset = stream.tell()
        count, width = int(np.prod(shape)), np.dtype(kind).itemsize
        if found != shape or fortran or dtype != np.dtype(kind) or offset + width * count != size:
            raise ValueError(f"it holds {dtype} of shape {found}, wanted {_TYPES[kind][0]} of {shape}")
        flat = torch.from_file(str(path), shared=False, size=size // width, dtype=_TYPES[kind][1])
        return flat[offset // width :].view(shape)
    except FileNotFoundError:
        raise MissingFileError(f"{path}: missing; {REMEDY}") from None
    except (OSError, ValueError, RuntimeError) as err:
        if not path.exists():  # taken away between the two openings
            raise MissingFileError(f"{path}: missing; {REMEDY}") from None
        raise CollectionError(f"{path}: cannot be read ({str(err).splitlines()[0]}); {REMEDY}") from err


def orphans(folder: Path, known: set[str]) -> list[Path]:
    """Files that a killed writer left: named like a segment or an index, but not by the database."""
    place = folder / FOLDER
    return sorted(path for path in (place.iterdir() if place.is_dir() else ()) if _OURS.fullmatch(path.name) and path.name not in known)
