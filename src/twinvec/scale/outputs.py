"""Shards put together: one .npy, one Parquet file, or a collection."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from twinvec.data.blocks import Block
from twinvec.errors import UsageError
from twinvec.files import write_json
from twinvec.scale.compute import Facts
from twinvec.scale.parts import KEY, as_rows
from twinvec.scale.stored import NUMPY, Ranges, width

if TYPE_CHECKING:
    from twinvec.index.collection import Collection

SUFFIXES: Final = (".npy", ".parquet")
COLLECTION: Final = "collection:"
HEAD: Final = 1 << 16  # bytes of a .npy that its table answers for


@dataclass(frozen=True)
class Layout:
    """What is in the file: how the numbers are stored, and whose they are."""

    store: str
    dimensions: int
    ranges: Ranges | None
    model: str
    fingerprint: str
    prompt: str

    def notes(self) -> dict[str, Any]:
        found: dict[str, Any] = {"store": self.store, "dimensions": self.dimensions, "model": self.model}
        found |= {"fingerprint": self.fingerprint, "prompt": self.prompt}
        return found | ({"ranges": self.ranges.to_dict()} if self.ranges else {})


def notes_path(npy: Path) -> Path:
    """vectors.npy -> vectors.store.json, the table beside an int8 or binary file: its ranges and dimensions."""
    return npy.with_suffix(".store.json")


def write_npy(stream: BinaryIO, batches: Iterable[Any], rows: int, layout: Layout) -> None:
    """The header, and the numbers of each batch after it as they lie."""
    columns = width(layout.store, layout.dimensions)
    fields = {"descr": np.lib.format.dtype_to_descr(np.dtype(NUMPY[layout.store])), "fortran_order": False, "shape": (rows, columns)}  # type: ignore[no-untyped-call]
    np.lib.format.write_array_header_1_0(stream, fields)  # type: ignore[no-untyped-call]
    for batch in batches:
        stream.write(as_rows(batch.column("vector"), columns).data.cast("B"))


def write_npy_notes(stream: BinaryIO, output: Path, layout: Layout) -> None:
    """The table beside `output`, which will be the file that `stream` holds. A table of an earlier file is taken away where none is needed."""
    path = notes_path(output)
    if layout.store in ("int8", "binary"):
        write_json(path, {**layout.notes(), "file": seal(stream)})
    elif path.is_file():
        path.unlink()


def seal(stream: BinaryIO) -> dict[str, Any]:
    """What ties a table to its .npy: length and the hash of its first bytes. Ranges of another file would give wrong numbers without an error."""
    stream.seek(0)
    head = hashlib.sha256(stream.read(HEAD)).hexdigest()
    return {"bytes": stream.seek(0, io.SEEK_END), "sha256_of_head": head}


def write_parquet(stream: BinaryIO, batches: Iterable[Any], layout: Layout) -> None:
    """One row group a batch: id, text, vector; the layout as JSON under "twinvec" in the schema."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer: Any = None
    # Parquet has no numbers of one byte: without a dictionary int8 would take four. Float vectors do not compress, so they are left as they are.
    dictionary: Any = ["vector.list.element"] if layout.store in ("int8", "binary") else False
    packed = {"id": "zstd", "text": "zstd", "vector.list.element": "zstd" if dictionary else "none"}
    try:
        for batch in batches:
            part = batch.select(["id", "text", "vector"])
            if writer is None:
                schema = part.schema.with_metadata({KEY: json.dumps(layout.notes(), ensure_ascii=False)})
                writer = pq.ParquetWriter(stream, schema, compression=packed, use_dictionary=dictionary, write_statistics=False)
            writer.write_table(pa.Table.from_batches([part.cast(writer.schema)]), row_group_size=max(part.num_rows, 1))
    finally:
        if writer is not None:
            writer.close()


def open_collection(path: Path, facts: Facts, prompt: str | None) -> Collection:
    """The collection to fill, made when it is not there. `prompt` must be the one it has, or None."""
    from twinvec.index.collection import AUTO, Collection

    # The collection is filled with vectors; `facts` stands for the model that makes them.
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return Collection.create(path, facts, document_prompt=AUTO if prompt is None else prompt)
    found = Collection.open(path, facts)
    has = found.settings.document_prompt or ""
    if prompt is not None and prompt != has:
        found.close()
        raise UsageError(f"--prompt {prompt!r}: {path} was made with {has or 'none'!r}, which stays for its life; leave the option out")
    return found


def add_to_collection(collection: Collection, block: Block, vectors: npt.NDArray[np.float32]) -> None:
    """One commit. Adding the same rows again changes nothing, so a run that is killed between this and its own note doubles no row."""
    collection.add(block.documents, vectors, batch=max(len(block), 1))
