"""Approximate indexes of a collection: built over all its rows, saved beside the vectors, named by a commit. The vectors stay the truth."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from twinvec.errors import UsageError, choose
from twinvec.index import segments as files
from twinvec.index.ann.plan import check_recall
from twinvec.index.checks import normalised
from twinvec.index.exact import as_queries
from twinvec.index.packing import unpack
from twinvec.index.searching import KINDS
from twinvec.index.segments import IndexFile, Mapped
from twinvec.index.writing import Writer
from twinvec.records import Vectors

_BLOCK = 65_536
FEWEST, MOST = 50, 1000  # queries that an index is tuned on
_DEAD = 0.1  # share of dead rows above which they are dropped first


class StoredRows:
    """The rows of some segments as float32 blocks (n_i, D), as often as they are asked for; never all in memory."""

    def __init__(self, parts: Sequence[Mapped]) -> None:
        self.parts = list(parts)
        self.rows = sum(part.segment.rows for part in parts)
        self.dimensions = parts[0].segment.dimensions if parts else 0

    def __iter__(self) -> Iterator[Vectors]:
        """See ann.RowSource."""
        for part in self.parts:
            for start in range(0, part.segment.rows, _BLOCK):
                yield unpack(part, slice(start, start + _BLOCK))


def optimize(
    folder: Path, writer: Writer, kind: str | None, recall: float | None, memory: int | None, threads: int | None = None, queries: Any = None
) -> dict[str, Any]:
    """Build the index that `kind` asks for over all rows of now, and name it instead of the ones before. "exact" and "flat" need none.

    queries: vectors (q, D) to tune it on. They are kept, so that an index that is built again for the same model is tuned on them too.
    """
    if kind is not None:
        choose("kind", kind, KINDS)
    check_recall(recall)
    if memory is not None and (isinstance(memory, bool) or not isinstance(memory, int) or memory < 1):
        raise UsageError(f"memory = {memory!r}: wanted a number of bytes, 1 or more")
    start, store = time.perf_counter(), writer.store
    asked = _given(writer, queries) if queries is not None else _kept(writer)
    with store.read():
        rows, dead, settings = sum(segment.rows for segment in store.segments()), store.count("tombstones"), writer.settings
    if dead > _DEAD * rows:
        writer.compactor.compact()
    with store.read():
        segments, number, old = store.segments(), store.counter("next_segment"), store.indexes()
    rows = sum(segment.rows for segment in segments)
    chosen = _kind(kind or settings.kind, rows, settings.dimensions or 1, memory)
    built: IndexFile | None = None
    if chosen not in ("exact", "flat") and rows:
        parts = [files.mapped(folder, segment) for segment in segments]
        built = _built(folder, number, parts, chosen, recall, memory, threads, asked)
    _register(writer, built, old, kind, None if queries is None else asked)
    detail = {} if built is None else json.loads(built.detail)
    return {"kind": chosen, "rows": rows, "bytes": built.bytes if built else 0, "detail": detail, "seconds": time.perf_counter() - start}


def _kind(kind: str, rows: int, dimensions: int, memory: int | None) -> str:
    if kind != "auto":
        return kind
    from twinvec.index import ann

    return str(ann.choose_kind(rows, dimensions, memory))


def _built(
    folder: Path, number: int, parts: Sequence[Mapped], kind: str, recall: float | None, memory: int | None, threads: int | None,
    queries: Vectors | None,
) -> IndexFile:  # fmt: skip
    from twinvec.index import ann

    source = StoredRows(parts)
    path = folder / files.FOLDER / f"{number:08d}.index"
    files.check_space(folder, path, ann.index_bytes(kind, source.rows, source.dimensions), "building this index")
    made = ann.build(source, kind, recall=recall, memory=memory, threads=threads, queries=queries)
    detail = made.save(path)
    text = json.dumps(detail, allow_nan=False)
    return IndexFile(number, path.name, kind, parts[0].segment.first, source.rows, int(detail["bytes"]), str(detail["sha256"]), text)


def _given(writer: Writer, queries: Any) -> Vectors:
    """Queries as rows fit for the collection's metric, MOST of them at most; UsageError for too few to tune on."""
    settings = writer.settings
    wide = as_queries(queries, settings.dimensions)
    if len(wide) < FEWEST:
        raise UsageError(f"queries: {len(wide)} of them say little about a recall; give {FEWEST} or more, or none, to tune on held-out rows")
    step = -(-len(wide) // MOST)
    return np.asarray(normalised(wide[::step], settings.metric)[0], dtype=np.float32)


def _name(writer: Writer) -> str:
    return f"queries:{writer.settings.fingerprint}"  # another model's queries are of no use


def _kept(writer: Writer) -> Vectors | None:
    with writer.store.read():
        found = writer.store.setting(_name(writer))
    if not found:
        return None
    return np.frombuffer(base64.b64decode(found["float16"]), dtype=np.float16).reshape(found["shape"]).astype(np.float32)


def _register(writer: Writer, built: IndexFile | None, old: Sequence[IndexFile], kind: str | None, queries: Vectors | None) -> None:
    store, settings = writer.store, writer.settings
    try:
        with store.write():
            store.drop_entries("indexes", (index.number for index in old))
            if built is not None:
                store.put_index(built)
                store.set_counter("next_segment", built.number + 1)
            store.set_setting("indexing", None)
            if queries is not None:
                packed = base64.b64encode(queries.astype(np.float16).tobytes()).decode()
                store.set_setting(_name(writer), {"shape": list(queries.shape), "float16": packed})
            if kind is not None and kind != settings.kind:
                writer.settings = replace(settings, kind=kind)
                store.set_settings(writer.settings)
    finally:
        with suppress(Exception):
            writer.sweep()


def unfinished(writer: Writer) -> tuple[str, float | None] | None:
    """(kind, recall) of an index that a compaction took away and that is to be built again."""
    with writer.store.read():
        wanted = writer.store.setting("indexing")
    return None if wanted is None else (str(wanted["kind"]), wanted["recall"])
