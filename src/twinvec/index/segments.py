"""Segments: immutable files of vectors, written and synced before the transaction that names them."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from twinvec.errors import CollectionError
from twinvec.files import atomic_file, sha256_file
from twinvec.records import Vectors

FOLDER = "segments"
_OURS = re.compile(r"\.?\d{8}\.npy(\..*\.tmp)?")  # what `write` leaves, whole or broken off
_npy: Any = np.lib.format  # untyped in numpy
_SPARE = 16 << 20  # bytes kept free for the database when a segment is written
REMEDY = "restore it from a copy, or index the documents again into a new collection"


@dataclass(frozen=True, slots=True)
class Segment:
    """One row of the table of segments. Its vectors belong to the passages `first` to `first + rows - 1`.

    kind "vectors" is the only one so far (later kinds: FAISS indexes over other segments, narrower number types); `detail` is theirs (JSON).
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


def write(folder: Path, number: int, first: int, vectors: Vectors) -> Segment:
    """Write vectors (n, D) float32 as a synced .npy file. CollectionError when the disk is full."""
    header = io.BytesIO()
    _npy.write_array_header_1_0(header, _npy.header_data_from_array_1_0(vectors))
    head, body = header.getvalue(), memoryview(vectors.data).cast("B")
    name = f"{number:08d}.npy"
    path = folder / FOLDER / name
    free = shutil.disk_usage(folder).free
    if free < len(head) + len(body) + _SPARE:
        raise CollectionError(f"{path}: the disk has {free >> 20} MB free, this batch needs {(len(head) + len(body) + _SPARE) >> 20} MB; make room")
    try:
        with atomic_file(path) as stream:
            stream.write(head)
            stream.write(body)
    except OSError as err:
        raise CollectionError(f"{path}: could not be written ({os.strerror(err.errno or 0)}); nothing of this batch was stored") from err
    state = hashlib.sha256(head)
    state.update(body)
    longest = float(np.sqrt((vectors.astype(np.float64) ** 2).sum(axis=1)).max())
    return Segment(
        number, name, "vectors", "float32", first, len(vectors), vectors.shape[1], len(head) + len(body), state.hexdigest(), longest * (1 + 1e-9)
    )


def check(folder: Path, segment: Segment, *, content: bool) -> None:
    """The file is there, has its size and, with `content`, its SHA-256; else CollectionError with the file and the remedy."""
    path = folder / FOLDER / segment.file
    if segment.kind != "vectors" or segment.dtype != "float32":
        raise CollectionError(
            f"{path}: a segment of kind {segment.kind!r} ({segment.dtype}), which this version of twinvec does not know; upgrade it"
        )
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise CollectionError(f"{path}: missing ({segment.rows} vectors); {REMEDY}") from None
    except OSError as err:
        raise CollectionError(f"{path}: cannot be read ({os.strerror(err.errno or 0)})") from err
    if size != segment.bytes:
        raise CollectionError(f"{path}: damaged, {size} bytes where {segment.bytes} were written; {REMEDY}")
    if content and sha256_file(path) != segment.sha256:
        raise CollectionError(f"{path}: damaged, its content is not what was written (SHA-256 differs); {REMEDY}")


def mapped(folder: Path, segment: Segment) -> torch.Tensor:
    """The segment's vectors (rows, D), mapped and not loaded. Pages are private, so nothing can write through to the file.

    torch's own mapping closes the file again; numpy's keeps a handle for each, and a process has about a thousand.
    """
    path = folder / FOLDER / segment.file
    try:
        with open(path, "rb") as stream:
            _npy.read_magic(stream)
            shape, fortran, dtype = _npy.read_array_header_1_0(stream)
            offset = stream.tell()
        size = segment.rows * segment.dimensions
        if shape != (segment.rows, segment.dimensions) or fortran or dtype != np.dtype("<f4") or offset + 4 * size != segment.bytes:
            raise ValueError(f"it holds {dtype} of shape {shape}, wanted float32 of ({segment.rows}, {segment.dimensions})")
        flat = torch.from_file(str(path), shared=False, size=segment.bytes // 4, dtype=torch.float32)
        return flat[offset // 4 :].view(segment.rows, segment.dimensions)
    except (OSError, ValueError, RuntimeError) as err:
        raise CollectionError(f"{path}: cannot be read ({str(err).splitlines()[0]}); {REMEDY}") from err


def orphans(folder: Path, known: set[str]) -> list[Path]:
    """Files that a killed writer left: named like a segment, but not by the database."""
    place = folder / FOLDER
    return sorted(path for path in (place.iterdir() if place.is_dir() else ()) if _OURS.fullmatch(path.name) and path.name not in known)
