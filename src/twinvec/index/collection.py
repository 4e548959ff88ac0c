"""`Collection`: vectors, texts and the model's fingerprint in one folder that opens at its last commit, or says why not."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from twinvec import __version__
from twinvec.errors import CollectionError, choose
from twinvec.files import atomic_folder
from twinvec.index import segments as files
from twinvec.index.checks import METRICS, check_k
from twinvec.index.exact import Blocks, as_queries
from twinvec.index.flat import Flat
from twinvec.index.lock import WAIT, writer_lock
from twinvec.index.models import AUTO, EncoderLike, check_model, identity, prompt_names
from twinvec.index.ranking import Ranked, Rows, rank
from twinvec.index.segments import Segment
from twinvec.index.store import NAME, Settings, Store, damaged
from twinvec.index.writing import BATCH, AddReport, Writer
from twinvec.records import Document, Hit, Vectors

KINDS = ("auto", "exact", "flat")
HASHED = 64 << 20  # collections with less than this many bytes of vectors are checked by SHA-256 whenever they are opened
_SMALL = 256  # segments with fewer rows are joined in memory, so that a thousand single additions do not cost a thousand products a query


@dataclass(slots=True)
class _State:
    """What a reader holds of one commit."""

    commit: int
    segments: list[Segment]
    blocks: Blocks
    flat: Flat | None = None


class Collection:
    """A folder of documents with their vectors. One writer at a time, any number of readers, across threads and processes.

    Every `add` batch and every `delete` is one commit: after a kill at any moment the folder opens at the last one. A search sees one commit
    whole. Use it as a context manager, or `close()` it.
    """

    def __init__(self, path: Path, encoder: EncoderLike | str | None, *, wait: float, verify: bool | None) -> None:
        self.path, self.wait = path, wait
        self._read_lock, self._write_lock = threading.RLock(), threading.RLock()
        self._readers: Store | None = None
        self._state: _State | None = None
        self._maps: dict[str, torch.Tensor] = {}
        self._hash = verify
        self.encoder: EncoderLike | None = None
        try:
            with self._snapshot() as (store, _):
                check_model(path, store.settings(), encoder)
                if verify:
                    self._verify(store)
        except BaseException:
            self.close()
            raise
        if encoder is not None and not isinstance(encoder, str):
            self.encoder = encoder

    @staticmethod
    def create(
        path: str | Path, encoder: EncoderLike | str, *, kind: str = "auto", metric: str = "cosine", document_prompt: str | None = AUTO,
        query_prompt: str | None = AUTO, dimensions: int | None = None, model: str | None = None, wait: float = WAIT,
    ) -> Collection:  # fmt: skip
        """A new, empty collection in a new folder.

        encoder: the encoder of its documents, or only a fingerprint (then vectors are given to `add`; `model` names it, `dimensions` may wait
        for the first vectors). kind: "exact", "flat" (FAISS IndexFlatIP) or "auto". metric: "cosine", or "dot" for inner products as they are.
        document_prompt, query_prompt: names of the model's prompts, "" for none, None for the model's default; "auto" takes the prompt named
        "document" or "passage", and "query", where the model has them. CollectionError when the path is taken.
        """
        path = Path(path)
        choose("kind", kind, KINDS)
        choose("metric", metric, METRICS)
        fingerprint, name, place, size = identity(encoder, model, dimensions)
        prompts = prompt_names(encoder, document_prompt, query_prompt)
        created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        settings = Settings(fingerprint, name, place, size, kind, metric, *prompts, created, __version__)
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            what = "a collection is there already" if (path / NAME).exists() else "the path is taken"
            raise CollectionError(f"{path}: {what}; add to it with Collection.open({str(path)!r}, encoder), or choose another path")
        try:
            if path.exists():
                path.rmdir()  # empty a moment ago; should another process have filled it since, this refuses
            with atomic_folder(path) as folder:
                (folder / files.FOLDER).mkdir()
                Store.create(folder, settings)
                (folder / "lock").touch()
        except OSError as err:
            raise CollectionError(f"{path}: cannot be made ({os.strerror(err.errno or 0)}); choose a folder that you may write to") from err
        return Collection.open(path, encoder, wait=wait)

    @staticmethod
    def open(path: str | Path, encoder: EncoderLike | str | None = None, *, verify: bool | None = None, wait: float = WAIT) -> Collection:
        """An existing collection, at its last commit.

        encoder: to add texts with (or a fingerprint); one that differs from the collection's model is refused. verify: True reads and checks
        everything, False only the sizes of files, None hashes the vectors when they are under 64 MB. wait: seconds to wait for another writer.
        CollectionError: no collection, damage (with the file and the remedy), a newer format, another model.
        """
        path = Path(path)
        if not (path / NAME).is_file():
            if path.is_dir() and (path / files.FOLDER).is_dir():
                raise CollectionError(f"{path / NAME}: missing, and with it every text of this collection; {files.REMEDY}")
            what = "a file" if path.is_file() else "a folder, but no collection" if path.is_dir() else "not there"
            raise CollectionError(f"{path}: {what}; make a collection with: twinvec index {path} DOCUMENTS --model MODEL")
        return Collection(path, encoder, wait=wait, verify=verify)

    # changing

    def add(
        self, documents: Any, vectors: Any = None, *, batch: int = BATCH, on_long: str | None = None, progress: bool = False
    ) -> AddReport:  # fmt: skip
        """Add documents, or replace those whose id is there. Every `batch` documents are one commit; killed, the earlier ones stay.

        documents: an iterable (streamed: only one batch is in memory) of Document, dicts with "id" and "text", or (id, text[, metadata])
        tuples. vectors: (n, D), one a document, when they are encoded already; else the collection's encoder makes them, with the document
        prompt, and a document whose text is stored already keeps its vector. A document without text, or with a zero vector, is stored but
        never found by search; the report counts it. on_long: passed to the encoder. Of the same id twice the last one counts.
        """
        with self._write_lock, writer_lock(self.path, self.wait):
            with self._writer() as store:
                writer = Writer(self.path, store, self.encoder, on_long)
                return writer.add(documents, vectors, batch=batch, progress=progress)

    def delete(self, ids: str | Iterable[str]) -> int:
        """Remove documents by id, all in one commit; how many were there. Ids that are not there change nothing."""
        wanted = [ids] if isinstance(ids, str) else list(ids)
        for name in wanted:
            if not isinstance(name, str):
                raise CollectionError(f"delete: id {name!r} ({type(name).__name__}) is no string; ids are strings")
        with self._write_lock, writer_lock(self.path, self.wait):
            with self._writer() as store:
                return Writer(self.path, store, self.encoder, None).delete(wanted)

    # reading

    def search(self, vectors: Any, k: int = 10, *, kind: str | None = None) -> list[list[Hit]]:
        """The `k` nearest documents of each query, best first, ties by id; all of them when there are fewer.

        vectors: (q, D), or (D,) for one query; any float type. kind: "exact" or "flat" for this search only; both give the same hits.
        Deterministic: a query's hits do not depend on the other queries, on threads or on segments, and top k is a prefix of top K.
        """
        k = check_k(k)
        with self._snapshot() as (store, state):
            settings = store.settings()
            queries = as_queries(vectors, settings.dimensions)
            chosen = choose("kind", kind or settings.kind, KINDS)
            finder = self._flat(state) if chosen == "flat" and state.blocks.rows else state.blocks
            longest = max((segment.max_norm for segment in state.segments), default=1.0)

            def names(rows: Iterable[int]) -> dict[int, str]:
                listed = list(rows)
                numbers = self._numbers(state, np.asarray(listed)).tolist()
                found = store.passage_ids(numbers)
                return {row: found.get(number, "") for row, number in zip(listed, numbers, strict=True)}

            return self._hits(store, state, rank(queries, finder, k, metric=settings.metric, max_norm=longest, ids=names))

    def get(self, id: str) -> Document | None:
        """The document with this id, or None."""
        with self._snapshot() as (store, _):
            found = store.find([id]).get(id)
            return None if found is None else Document(found.id, found.text, json.loads(found.metadata))

    def vector(self, id: str) -> Vectors | None:
        """The stored vector (D,) float32 of a document (a unit vector for "cosine"); None when there is no such id, or no vector for it."""
        with self._snapshot() as (store, state):
            found = store.find([id]).get(id)
            if found is None or found.passage is None:
                return None
            before = 0
            for segment in state.segments:
                if segment.first <= found.passage < segment.first + segment.rows:
                    row: Vectors = state.blocks.vectors(np.asarray([before + found.passage - segment.first]))[0]
                    return row
                before += segment.rows
            raise damaged(store.path, f"no vector for document {id!r}")

    def ids(self) -> list[str]:
        """All ids, ascending."""
        with self._snapshot() as (store, _):
            return store.ids()

    def __len__(self) -> int:
        with self._snapshot() as (store, _):
            return store.count("documents")

    def __bool__(self) -> bool:
        return True  # an empty collection is still a collection

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and self.get(id) is not None

    @property
    def settings(self) -> Settings:
        with self._snapshot() as (store, _):
            return store.settings()

    @property
    def fingerprint(self) -> str:
        return self.settings.fingerprint

    @property
    def model(self) -> str:
        """What to give to Encoder.load for the model of this collection."""
        settings = self.settings
        return settings.model_path if settings.model_path and Path(settings.model_path).is_dir() else settings.model

    def info(self) -> dict[str, Any]:
        """Everything worth knowing, ready for JSON."""
        with self._snapshot() as (store, state):
            settings, documents = store.settings(), store.count("documents")
            return {
                "path": str(self.path),
                "documents": documents,
                "searchable": state.blocks.live,
                "without_vector": documents - store.count("passages"),
                "tombstones": len(state.blocks.dead),
                "segments": len(state.segments),
                "vector_bytes": sum(segment.bytes for segment in state.segments),
                "database_bytes": store.path.stat().st_size,
                "commit": state.commit,
                "format": store.db.execute("PRAGMA user_version").fetchone()[0],
                "kind": settings.kind,
                "search": "flat" if settings.kind == "flat" else "exact",
                **{name: getattr(settings, name) for name in ("metric", "dimensions", "model", "model_path", "fingerprint")},
                **{name: getattr(settings, name) for name in ("document_prompt", "query_prompt", "created", "twinvec")},
            }

    def verify(self) -> dict[str, Any]:
        """Read and check everything: every row, every vector file by SHA-256. CollectionError lists what is wrong; else the counts."""
        with self._snapshot() as (store, _):
            return self._verify(store)

    def close(self) -> None:
        """Let go of the database and of the mapped files. The collection opens itself again when it is used again."""
        with self._read_lock:
            if self._readers is not None and self._readers.pid == os.getpid():
                self._readers.close()
            self._readers = self._state = None
            self._maps = {}

    def __enter__(self) -> Collection:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        try:  # noqa: SIM105
            self.close()
        except Exception:  # at the end of the interpreter half of it is gone already, contextlib included
            pass

    def __repr__(self) -> str:
        return f"Collection({str(self.path)!r})"

    # inside

    @contextmanager
    def _snapshot(self) -> Iterator[tuple[Store, _State]]:
        """A connection inside one commit, and the vectors of that commit."""
        with self._read_lock:
            if self._readers is not None and self._readers.pid != os.getpid():
                self._readers = None  # a SQLite connection must not be used on both sides of a fork
            if self._readers is None:
                self._readers = Store(self.path)
            with self._readers.read():
                commit = self._readers.counter("commit")
                if self._state is None or self._state.commit != commit:
                    self._state = self._load(self._readers, commit)
                yield self._readers, self._state

    @contextmanager
    def _writer(self) -> Iterator[Store]:
        store = Store(self.path, writable=True)
        try:
            yield store
        finally:
            store.close()

    def _load(self, store: Store, commit: int) -> _State:
        segments = store.segments()
        if self._state is None and (faults := store.miscounts(segments)):
            raise damaged(store.path, faults[0].removeprefix(f"{store.path}: "))
        total = sum(segment.bytes for segment in segments)
        maps = {}
        for segment in segments:
            if segment.file in self._maps:
                maps[segment.file] = self._maps[segment.file]
            else:
                files.check(self.path, segment, content=self._hash is not False and total < HASHED)
                maps[segment.file] = files.mapped(self.path, segment)
        self._maps = maps
        blocks = _joined(list(maps.values()))
        dead = store.tombstones()
        firsts = np.asarray([segment.first for segment in segments], dtype=np.int64)
        starts = np.cumsum([0, *(segment.rows for segment in segments)])[:-1]
        if len(dead):
            place = np.searchsorted(firsts, dead, side="right") - 1
            inside = dead - firsts[place]
            if place[0] < 0 or np.any(inside >= np.asarray([segment.rows for segment in segments])[place]):
                raise damaged(store.path, "a tombstone for a vector that is not there")
            dead = inside + starts[place]
        state = _State(commit, segments, Blocks(blocks, dead))
        old = self._state
        if old is not None and old.flat is not None and segments and segments[: len(old.segments)] == old.segments:
            state.flat = old.flat.grown(blocks, dead)
        return state

    def _flat(self, state: _State) -> Flat:
        if state.flat is None:
            state.flat = Flat(state.blocks.blocks, state.blocks.dead)
        return state.flat

    def _numbers(self, state: _State, rows: Rows) -> Rows:
        """Passage numbers of rows counted through all segments."""
        starts = np.cumsum([0, *(segment.rows for segment in state.segments)])
        place = np.searchsorted(starts, rows, side="right") - 1
        numbers: Rows = np.asarray([segment.first for segment in state.segments], dtype=np.int64)[place] + rows - starts[place]
        return numbers

    def _hits(self, store: Store, state: _State, ranked: Ranked) -> list[list[Hit]]:
        if not ranked.rows.size:
            return [[] for _ in ranked.rows]
        numbers = self._numbers(state, ranked.rows)
        found = store.passages(numbers.ravel().tolist())
        hits = []
        for row, scores in zip(numbers.tolist(), ranked.scores.tolist(), strict=True):
            documents = [found[number] for number in row]
            hits.append([Hit(doc.id, score, doc.text, json.loads(doc.metadata)) for doc, score in zip(documents, scores, strict=True)])
        return hits

    def _verify(self, store: Store) -> dict[str, Any]:
        faults = store.faults()
        segments = store.segments() if not faults else []
        for segment in segments:
            try:
                files.check(self.path, segment, content=True)
            except CollectionError as err:
                faults.append(str(err))
        if faults:
            more = f" (and {len(faults) - 10} more)" if len(faults) > 10 else ""
            raise CollectionError(f"{self.path}: {len(faults)} faults: " + "; ".join(faults[:10]) + more)
        return {
            "documents": store.count("documents"),
            "vectors": sum(segment.rows for segment in segments),
            "tombstones": store.count("tombstones"),
            "segments": len(segments),
            "bytes": sum(segment.bytes for segment in segments),
            "orphans": [path.name for path in files.orphans(self.path, {segment.file for segment in segments})],
        }


def _joined(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same rows in the same order, runs of small blocks copied into one."""
    out: list[torch.Tensor] = []
    run: list[torch.Tensor] = []
    for tensor in [*tensors, None]:
        if tensor is not None and len(tensor) < _SMALL:
            run.append(tensor)
            continue
        if run:
            out.append(torch.cat(run) if len(run) > 1 else run[0])
            run = []
        if tensor is not None:
            out.append(tensor)
    return out


__all__ = ["AUTO", "KINDS", "AddReport", "Collection"]
