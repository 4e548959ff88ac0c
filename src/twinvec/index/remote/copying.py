"""A local collection copied up to a server, and what was copied compared with what is there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from twinvec.errors import CollectionError, UsageError
from twinvec.index.checks import METRICS, normalised
from twinvec.index.entries import Settings
from twinvec.index.lexical_reader import settings as lexical_settings
from twinvec.index.models import check_model
from twinvec.index.packing import unpack
from twinvec.index.ranking import by_block
from twinvec.index.remote.address import is_remote
from twinvec.index.remote.base import RemoteCollection
from twinvec.index.remote.planning import Entry, Piece
from twinvec.progress import Progress
from twinvec.records import Document, Vectors

if TYPE_CHECKING:
    from twinvec.index.collection import Collection

BATCH = 1000
SAMPLE, QUERIES, K = 50, 5, 10
_KINDS = {"exact": "exact", "flat": "exact", "hnsw": "hnsw", "ivf": "ivf", "ivfpq": "ivf"}


@dataclass(frozen=True, slots=True)
class _Source:
    """What is copied: the settings, how words are cut, the caller's own settings, all ids, the number of vectors."""

    settings: Settings
    words: dict[str, str]
    kept: dict[str, Any]
    ids: list[str]
    vectors: int


def copy_to(source: Collection, url: str, *, batch: int = BATCH, progress: bool = False, wait: float = 60.0) -> dict[str, Any]:
    """Copy `source` up to `url` (postgresql://, milvus://): texts, metadata, passages, vectors, settings, fingerprint; then compare.

    Every `batch` documents are one commit. Called again after it was stopped, it leaves what is there already and goes on. Compared are the
    numbers of documents and vectors, and of a sample the texts, metadata and vectors, and the exact top 10 of some queries; CollectionError says
    what differs. Returns what was copied and compared, ready for JSON. The server's approximate index is built by `optimize` afterwards.
    """
    if isinstance(source, RemoteCollection):
        raise UsageError(f"--to: {source.path} is on a server already; copy from the local collection")
    if not is_remote(url):
        raise UsageError(f"--to {url}: wanted a server's URL, for example postgresql://user@host/database?collection=faq or milvus://host:19530/faq")
    start = time.perf_counter()
    told = _source(source)
    with _target(url, told, str(source.path), wait) as target:
        copied, left = 0, 0
        with Progress(len(told.ids), "copy", show=progress, unit="documents") as bar:
            for at in range(0, len(told.ids), batch):
                names = told.ids[at : at + batch]
                entries = list(_missing(target, _entries(source, names, told.settings)))
                if entries:
                    with target._writing():
                        target._check([entry.document for entry in entries], at)
                        target._write(entries, target._settings())
                copied, left = copied + len(entries), left + len(names) - len(entries)
                bar.advance(len(names))
        target._written()
        for name, value in told.kept.items():
            target.put_setting(name, value)
        seconds = time.perf_counter() - start
        found = _compared(source, target, told)
        return {
            "to": target.path, "documents": len(told.ids), "vectors": told.vectors, "copied": copied, "already_there": left,
            "seconds": round(seconds, 3), "compared": found,
        }  # fmt: skip


def lines(place: str, found: dict[str, Any]) -> list[str]:
    """What `twinvec index --to` prints."""
    compared, rate = found["compared"], found["copied"] / found["seconds"] if found["seconds"] else 0.0
    there = f", {found['already_there']:,} were there already" if found["already_there"] else ""
    return [
        f"{place} -> {found['to']}: {found['copied']:,} documents copied ({found['seconds']:.1f} s, {rate:.0f} documents/s){there}",
        f"  compared: {found['documents']:,} documents and {found['vectors']:,} vectors on both sides; {compared['sample']} documents with text, "
        f"metadata and {compared['vectors']} vectors ({compared['equal']}); the same top {compared['k']} for {compared['queries']} queries",
    ]


def _source(source: Collection) -> _Source:
    with source._reader.snapshot() as (store, state):
        names = [name.removeprefix("user:") for (name,) in store.db.execute("SELECT name FROM settings WHERE name LIKE 'user:%'")]
        how = lexical_settings(store.db)
        return _Source(
            store.settings(),
            {"cut": how["cut"], "stem": how["stem"]},
            {name: store.setting(f"user:{name}") for name in names},
            store.ids("1", []),
            state.blocks.live,
        )


def _target(url: str, told: _Source, source: str, wait: float) -> RemoteCollection:
    """The collection at `url`, made like the source when it is not there; refused when it is another one."""
    from twinvec.index.remote import _engine, _remote_exists

    kind, address = _engine(url)
    settings = replace(told.settings, kind=_KINDS.get(told.settings.kind, "auto"))
    if settings.dimensions is None:
        raise UsageError(f"--to: {source} has no vectors yet; add documents first")
    if not _remote_exists(kind, address):
        made: RemoteCollection = kind.create_like(address, settings, wait=wait, **told.words)
        return made
    found: RemoteCollection = kind.open(address, wait=wait)
    try:
        there = found.settings
        check_model(found.path, there, settings.fingerprint)  # type: ignore[arg-type]  # only shown
        if (there.metric, there.dimensions) != (settings.metric, settings.dimensions):
            mine, theirs = (f"metric {one.metric} and {one.dimensions} dimensions" for one in (settings, there))
            raise CollectionError(f"{found.path}: has {theirs}, {source} has {mine}; copy to another name")
        if found._words_cut() != (told.words["cut"], told.words["stem"]):
            raise CollectionError(f"{found.path}: cuts words in another way than {source}; copy to another name")
    except BaseException:
        found.close()
        raise
    return found


def _entries(source: Collection, names: Sequence[str], settings: Settings) -> Iterator[Entry]:
    """Documents with their vectors, as they are stored; those that were deleted meanwhile are left out."""
    with source._reader.snapshot() as (store, state):
        found = store.find(names)
        pieces = [(name, piece) for name in names if name in found for piece in found[name].pieces]
        layout = state.layout
        rows = layout.places(np.asarray([piece.number for _, piece in pieces], dtype=np.int64))
        vectors: Vectors = np.zeros((len(rows), settings.dimensions or 1), dtype=np.float32)
        for part, mine, inside in by_block(layout.starts, rows):
            vectors[mine] = unpack(state.parts[part], inside)
    vectors = _as_sent(vectors, settings)
    mine_of: dict[str, list[Piece]] = {name: [] for name in found}
    for (name, piece), vector in zip(pieces, vectors, strict=True):
        span = None if piece.start is None or piece.stop is None else (piece.start, piece.stop)
        mine_of[name].append(Piece(piece.part, span, vector))
    for name in names:
        if name in found:
            yield Entry(Document(name, found[name].text, json.loads(found[name].metadata)), found[name].metadata, mine_of[name])


def _as_sent(vectors: Vectors, settings: Settings) -> Vectors:
    """float32 rows go as they are; smaller types come back with other lengths, so unit rows are made of them again."""
    if settings.store == "float32" or settings.metric != METRICS[0]:
        return vectors
    return normalised(vectors, settings.metric)[0]


def _missing(target: RemoteCollection, entries: Iterator[Entry]) -> Iterator[Entry]:
    """Those that the server does not have with the same text, metadata and passages."""
    listed = list(entries)
    with target._reading():
        known = target._known([entry.document.id for entry in listed])
    for entry in listed:
        there = known.get(entry.document.id)
        spans = [piece.span for piece in entry.pieces or []]
        if there is None or (there.text, there.metadata, there.spans) != (entry.document.text, entry.metadata, spans):
            yield entry


def _compared(source: Collection, target: RemoteCollection, told: _Source) -> dict[str, Any]:
    """CollectionError for the first difference that matters; else what was compared."""
    now = _source(source)
    if (now.ids, now.vectors, now.settings) != (told.ids, told.vectors, told.settings):
        raise CollectionError(f"{source.path}: was changed while it was copied; run the same command again, which copies what is new")
    there = target.ids()
    if there != told.ids:
        more = sorted(set(there) - set(told.ids))
        if not more:
            raise CollectionError(f"{target.path}: {len(told.ids) - len(there)} documents are missing there; run the same command again")
        raise CollectionError(
            f"{target.path}: has {len(more)} documents that {source.path} has not ({', '.join(map(repr, more[:3]))} ...); copy to another name, "
            "or delete them there: twinvec index URL --delete-ids FILE"
        )
    vectors = int(target.info()["passages"])
    if vectors != told.vectors:
        raise CollectionError(f"{target.path}: has {vectors} vectors, {source.path} has {told.vectors}; run the same command again")
    step = max(1, len(told.ids) // SAMPLE)
    sample = list(_entries(source, told.ids[::step][:SAMPLE], told.settings))
    half = target.settings.store == "float16"
    count = _same_documents(target, sample, half)
    queries = [entry.pieces[0].vector for entry in sample if entry.pieces][:QUERIES]
    tried = _same_hits(source, target, queries, exact=told.settings.store == "float32" and not half)
    equal = "equal to the last bit" if not half else "equal as float16"
    return {"documents": len(there), "sample": len(sample), "vectors": count, "equal": equal, "queries": tried, "k": K}


def _same_documents(target: RemoteCollection, sample: Sequence[Entry], half: bool) -> int:
    names, count = [entry.document.id for entry in sample], 0
    with target._lock, target._reading():
        stored, vectors = target._stored(names), target._vectors(names)
    for entry in sample:
        found = stored[entry.document.id]
        if (found.text, json.loads(found.metadata)) != (entry.document.text, entry.document.metadata):
            raise CollectionError(f"{target.path}: document {entry.document.id!r} has another text or metadata there; run the same command again")
        sent = [piece.vector.astype(np.float16).astype(np.float32) if half else piece.vector for piece in entry.pieces or []]
        got = vectors.get(entry.document.id, [])
        if len(sent) != len(got) or any(not np.array_equal(a, b) for a, b in zip(sent, got, strict=True)):
            raise CollectionError(
                f"{target.path}: document {entry.document.id!r} has other vectors there; delete it there and run the same command again"
            )
        count += len(got)
    return count


def _same_hits(source: Collection, target: RemoteCollection, queries: Sequence[Vectors], *, exact: bool) -> int:
    """The exact top 10 on both sides: the same ids and scores; scores only, where the numbers were rounded on the way."""
    if not queries:
        return 0
    here, there = source.search(np.stack(queries), K, kind="exact"), target.search(np.stack(queries), K, kind="exact")
    for row, (mine, theirs) in enumerate(zip(here, there, strict=True)):
        near = np.allclose([hit.score for hit in mine], [hit.score for hit in theirs], atol=1e-6 if exact else 5e-3)
        if not near or (exact and [hit.id for hit in mine] != [hit.id for hit in theirs]):
            raise CollectionError(f"{target.path}: query {row + 1} finds other documents there than in {source.path}; run: twinvec inspect --verify")
    return len(queries)


__all__ = ["copy_to", "lines"]
