"""`read_vectors`: ids, texts and float32 vectors of a file that `encode` has written, however the numbers are stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twinvec.errors import DataError
from twinvec.records import Vectors
from twinvec.scale.outputs import notes_path, seal
from twinvec.scale.parts import KEY, as_rows
from twinvec.scale.stored import NUMPY, Ranges, from_store, width


@dataclass(frozen=True)
class StoredVectors:
    """float32 (n, D); ids and texts, None for a .npy; `store`: how they lie in the file; `notes`: model, fingerprint, prompt where known."""

    vectors: Vectors
    ids: list[str] | None
    texts: list[str] | None
    store: str
    notes: dict[str, Any]

    def __len__(self) -> int:
        return len(self.vectors)


def read_vectors(path: str | Path) -> StoredVectors:
    """All rows of a .npy or .parquet. int8 is put back to its ranges, binary becomes +-1/sqrt(D). DataError: no such file, or not one of ours."""
    parts = list(iterate_vectors(path))
    first = parts[0]
    return StoredVectors(
        np.concatenate([part.vectors for part in parts]),
        None if first.ids is None else [name for part in parts for name in part.ids or []],
        None if first.texts is None else [text for part in parts for text in part.texts or []],
        first.store,
        first.notes,
    )


def iterate_vectors(path: str | Path, rows: int = 16_384) -> Iterator[StoredVectors]:
    """The same in blocks, at least one, for files larger than memory."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file; wanted .npy or .parquet, as twinvec encode writes them")
    if path.suffix.lower() == ".npy":
        yield from _npy(path, rows)
    elif path.suffix.lower() in (".parquet", ".pq"):
        yield from _parquet(path, rows)
    else:
        raise DataError(f"{path}: the name's ending tells the format; wanted .npy or .parquet, as twinvec encode writes them")


def _npy(path: Path, rows: int) -> Iterator[StoredVectors]:
    try:
        stored = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as err:
        raise DataError(f"{path}: not a readable .npy file ({err})") from err
    store = next((name for name, type in NUMPY.items() if stored.dtype == type), None)
    if store is None or stored.ndim != 2:
        raise DataError(f"{path}: an array {stored.dtype} of shape {stored.shape}; wanted rows of {', '.join(NUMPY)} numbers")
    notes, ranges, dimensions = {}, None, stored.shape[1]
    if store in ("int8", "binary"):
        notes = _notes_beside(path, store)
        dimensions = int(notes["dimensions"])
        ranges = Ranges.from_dict(notes.get("ranges"), str(notes_path(path)), dimensions) if store == "int8" else None
        if width(store, dimensions) != stored.shape[1]:
            raise DataError(f"{notes_path(path)}: it tells of {dimensions} dimensions, the rows of {path.name} have {stored.shape[1]} bytes")
    for at in range(0, max(len(stored), 1), rows):
        block = np.asarray(stored[at : at + rows])
        yield StoredVectors(from_store(block, store, dimensions, ranges), None, None, store, notes)


def _notes_beside(npy: Path, store: str) -> dict[str, Any]:
    path = notes_path(npy)
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        with open(npy, "rb") as stream:
            belongs = found["store"] == store and found["file"] == seal(stream)
        int(found["dimensions"])
    except FileNotFoundError as err:
        raise DataError(f"{npy}: {store} numbers need the table that was written beside them, {path.name}; put it there") from err
    except (OSError, ValueError, TypeError, KeyError) as err:
        raise DataError(f"{path}: not a table of {store} vectors ({type(err).__name__}); encode again") from err
    if not belongs:
        raise DataError(f"{path} belongs to another file than {npy.name}; put the two that were written together side by side, or encode again")
    return found


def parquet_notes(path: Path) -> dict[str, Any]:
    """What `encode` has written into the schema of a Parquet file; empty for one that others wrote."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_schema(path).metadata or {}
    except (pa.ArrowException, OSError) as err:
        raise DataError(f"{path}: not a readable Parquet file ({str(err).splitlines()[0]})") from err
    found: dict[str, Any] = json.loads(metadata.get(KEY, b"{}"))
    return found


def _parquet(path: Path, rows: int) -> Iterator[StoredVectors]:
    import pyarrow.parquet as pq

    notes = parquet_notes(path)
    with pq.ParquetFile(path, buffer_size=1 << 20) as file:
        kind: Any = file.schema_arrow.field("vector").type if "vector" in file.schema_arrow.names else None
        size = getattr(kind, "list_size", None)
        if size is None:
            raise DataError(f"{path}: no column 'vector' of rows of one length; wanted a file that twinvec encode wrote")
        store = notes.get("store") or {"float": "float32", "halffloat": "float16"}.get(str(kind.value_type))
        if store not in NUMPY:
            raise DataError(f"{path}: vectors of {kind.value_type} without the notes of twinvec encode; their ranges are not known")
        dimensions = int(notes.get("dimensions", size))
        ranges = Ranges.from_dict(notes.get("ranges"), str(path), dimensions) if store == "int8" else None
        names = file.schema_arrow.names
        found = False
        for batch in file.iter_batches(batch_size=rows, columns=[name for name in ("id", "text", "vector") if name in names]):
            found = True
            ids, texts = (batch.column(name).to_pylist() if name in names else None for name in ("id", "text"))
            yield StoredVectors(from_store(as_rows(batch.column("vector"), size), store, dimensions, ranges), ids, texts, store, notes)
        if not found:
            yield StoredVectors(np.zeros((0, dimensions), np.float32), [], [], store, notes)
