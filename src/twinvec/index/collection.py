"""`Collection`: vectors, texts and the model's fingerprint in one folder that opens at its last commit, or says why not."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from twinvec import __version__
from twinvec.errors import CollectionError, UsageError, choose
from twinvec.files import atomic_folder
from twinvec.index import fields, overview
from twinvec.index import segments as files
from twinvec.index.checks import METRICS, SearchError, check_k
from twinvec.index.finding import by_words, dense
from twinvec.index.lexical_terms import CUT, STEM
from twinvec.index.lock import WAIT, writer_lock
from twinvec.index.models import AUTO, EncoderLike, check_model, identity, prompt_names
from twinvec.index.optimizing import optimize, unfinished
from twinvec.index.packing import unpack
from twinvec.index.passages import Cut, cut_of
from twinvec.index.reading import Reader
from twinvec.index.reindexing import Reindexer, check_reindex
from twinvec.index.report import AddReport
from twinvec.index.schema import NAME
from twinvec.index.searching import KINDS
from twinvec.index.segments import DTYPES
from twinvec.index.store import Settings, Store, damaged
from twinvec.index.where import parse_where, to_sqlite
from twinvec.index.writing import BATCH, Writer
from twinvec.records import Document, Hit, Vectors


class Collection:
    """A folder of documents with their vectors. One writer at a time, any number of readers, across threads and processes.

    Every batch of `add`, every `update` and every `delete` is one commit: after a kill at any moment the folder opens at the last one. A search
    sees one commit whole. Use it as a context manager, or `close()` it.
    """

    def __init__(self, path: Path, encoder: EncoderLike | str | None, *, wait: float, verify: bool | None) -> None:
        self.path, self.wait = path, wait
        self._write_lock = threading.RLock()
        self._reader = Reader(path, verify)
        self.encoder: EncoderLike | None = None
        try:
            with self._reader.snapshot() as (store, _):
                check_model(path, store.settings(), encoder)
                if verify:
                    overview.verify(self._reader, store)
        except BaseException:
            self.close()
            raise
        self._expect(encoder)

    def _expect(self, encoder: EncoderLike | str | None) -> None:
        if encoder is not None:
            self._reader.fingerprint = encoder if isinstance(encoder, str) else encoder.fingerprint
            self.encoder = None if isinstance(encoder, str) else encoder

    @staticmethod
    def create(
        path: str | Path, encoder: EncoderLike | str, *, kind: str = "auto", metric: str = "cosine", document_prompt: str | None = AUTO,
        query_prompt: str | None = AUTO, dimensions: int | None = None, model: str | None = None, store: str = "float32", cut: str = CUT,
        stem: str = STEM, wait: float = WAIT,
    ) -> Collection:  # fmt: skip
        """A new, empty collection in a new folder.

        encoder: the encoder of its documents, or only a fingerprint (then vectors are given to `add`; `model` names it, `dimensions` may wait
        for the first vectors). kind: how it is searched, "auto" (exact until `optimize` builds an index), or one of KINDS. metric: "cosine", or
        "dot" for inner products as they are. document_prompt, query_prompt: names of the model's prompts, "" for none, None for the model's
        default; "auto" takes the prompt named "document" or "passage", and "query", where the model has them. store: how vectors are kept,
        "float32", "float16", "int8" or "binary" (with float16 beside it for the final scores). cut, stem: how texts become the words of the
        lexical index (see lexical_terms.terms). CollectionError when the path is taken.
        """
        path = Path(path)
        choose("kind", kind, KINDS)
        choose("metric", metric, METRICS)
        choose("store", store, DTYPES)
        fingerprint, name, place, size = identity(encoder, model, dimensions)
        prompts = prompt_names(encoder, document_prompt, query_prompt)
        created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        settings = Settings(fingerprint, name, place, size, kind, metric, *prompts, created, __version__, store)
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            what = "a collection is there already" if (path / NAME).exists() else "the path is taken"
            raise CollectionError(f"{path}: {what}; add to it with Collection.open({str(path)!r}, encoder), or choose another path")
        try:
            if path.exists():
                path.rmdir()  # empty a moment ago; should another process have filled it since, this refuses
            with atomic_folder(path) as folder:
                (folder / files.FOLDER).mkdir()
                Store.create(folder, settings, cut=cut, stem=stem)
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
        self, documents: Any, vectors: Any = None, *, batch: int = BATCH, on_long: str | None = None, passage_tokens: int | None = None,
        passage_overlap: int | None = None, progress: bool = False,
    ) -> AddReport:  # fmt: skip
        """Add documents, or replace those whose id is there. Every `batch` documents are one commit; killed, the earlier ones stay.

        documents: an iterable (streamed: only one batch is in memory) of Document, dicts with "id" and "text", or (id, text[, metadata])
        tuples. vectors: (n, D), one a document, when they are encoded already; else the collection's encoder makes them, with the document
        prompt, and a document whose text is stored already keeps its vectors. A document without text, or with a zero vector, is stored but
        never found by search; the report counts it. Of the same id twice the last one counts.
        on_long: "truncate", "error" or "split" as the encoder does it, or "passages": a text of more than `passage_tokens` (200) tokens gets a
        vector for each of its passages, which overlap by `passage_overlap` (40) tokens and end with a sentence where possible; a hit names the
        document once, by its best passage. None: as the last time.
        """
        cut = cut_of(on_long, passage_tokens, passage_overlap, vectors)
        with self._writing(on_long, cut) as writer:
            return writer.add(documents, vectors, batch=batch, progress=progress)

    upsert = add

    def update(self, id: str, text: str | None = None, metadata: Mapping[str, Any] | None = None) -> None:
        """Change a document's text, its metadata (the new takes the place of all of the old), or both. Metadata alone encodes nothing.

        CollectionError when no document has this id.
        """
        with self._writing() as writer:
            writer.update(id, text, metadata)

    def delete(self, ids: str | Iterable[str] | None = None, *, where: str | None = None) -> int:
        """Remove documents by id, or all that a filter allows, in one commit; how many were there. Ids that are not there change nothing."""
        if (ids is None) == (where is None):
            raise UsageError("delete: give either ids or where=, the filter of what is to go")
        wanted = [ids] if isinstance(ids, str) else list(ids or ())
        for name in wanted:
            if not isinstance(name, str):
                raise CollectionError(f"delete: id {name!r} ({type(name).__name__}) is no string; ids are strings")
        condition = None if where is None else to_sqlite(parse_where(where))
        with self._writing() as writer:
            if condition is not None:
                with writer.store.read():
                    wanted = writer.store.ids(*condition)
            return writer.delete(wanted)

    def compact(self) -> dict[str, Any]:
        """Drop the rows of replaced and deleted documents, join small files, build indexes again: what was there before, in less room.

        Readers are not disturbed. Needs room for the largest file (1 GB at most) beside the old ones. Returns counts and bytes before and after.
        """
        with self._writing() as writer:
            found = writer.compactor.compact()
            again = unfinished(writer)
            if again is not None:
                optimize(self.path, writer, again[0], again[1], None)
            return found

    def optimize(self, kind: str | None = None, recall: float | None = None, memory: int | None = None, queries: Any = None) -> dict[str, Any]:
        """Build an approximate index over all rows of now, for searches that find `recall` (0.95) of the true neighbours.

        kind: one of KINDS; None is what the collection was made for, and "auto" chooses by the number of rows and `memory` (bytes that the index
        may take). "exact" takes the index away. Rows that come later are searched exactly until the next time. Returns what was built and measured.
        queries: 50 or more texts (or their vectors) of the kind that will be asked: the recall is promised for queries like those that the index was
        tuned on, which otherwise are rows that were held out. They are kept for the next time.
        """
        if queries is not None and len(queries) and isinstance(queries[0], str):
            encoder: Any = self.encoder
            if encoder is None:
                raise UsageError("optimize: queries given as texts need the model; open the collection with its encoder, or give vectors")
            queries = encoder.encode(list(queries), prompt=self.settings.query_prompt)
        with self._writing() as writer:
            return optimize(self.path, writer, kind, recall, memory, queries=queries)

    def reindex(
        self, encoder: EncoderLike, *, document_prompt: str | None = AUTO, query_prompt: str | None = AUTO, batch: int = BATCH, progress: bool = False
    ) -> dict[str, Any]:  # fmt: skip
        """Move the collection to another model. Searches go on with the old one until all vectors are there; then one commit switches.

        Killed and called again with the same model it goes on. Passages stay as they were cut. An approximate index is built again afterwards;
        until then the search is exact. Whoever has the collection open with the old model is refused from the switch on.
        """
        check_reindex(self.path, self.settings, encoder)
        with self._writing() as writer:
            move = Reindexer(self.path, writer, encoder, document_prompt=document_prompt, query_prompt=query_prompt)
            found = move.run(batch=batch, progress=progress)
            self._expect(encoder)
            again = unfinished(writer)
            if again is not None:
                optimize(self.path, writer, again[0], again[1], None)
            return found

    def index_field(self, name: str) -> None:
        """Keep an index of a metadata field ("year", "author.name"), so that filters on it need not read every document."""
        with self._writing() as writer:
            fields.index_field(writer.store, name)

    def put_setting(self, name: str, value: Any) -> None:
        """Keep a JSON value under a name of the caller's in the collection; None removes it. One commit."""
        with self._writing() as writer, writer.store.write():
            writer.store.set_setting(f"user:{name}", value)

    # reading

    def setting(self, name: str) -> Any:
        """What `put_setting` kept under this name; None when there is nothing."""
        with self._reader.snapshot() as (store, _):
            return store.setting(f"user:{name}")

    def search(
        self, vectors: Any, k: int = 10, *, kind: str | None = None, recall: float | None = None, where: str | None = None,
        fingerprint: str | None = None,
    ) -> list[list[Hit]]:  # fmt: skip
        """The `k` nearest documents of each query, best first, ties by id; all of them when there are fewer.

        vectors: (q, D), or (D,) for one query; any float type. kind: a kind of search for this time only ("exact" and "flat" give the same hits).
        recall: the share of true neighbours that an approximate index is to find. where: only documents that a filter allows, for example
        "lang = 'zh' and year >= 2020" (docs/search.md). fingerprint: of the model that made the vectors; refused when it is not the collection's.
        Deterministic: a query's hits do not depend on the other queries, on threads or on segments, and top k is a prefix of top K.
        """
        k = check_k(k)
        while True:
            with self._reader.snapshot() as (store, state):
                if fingerprint is not None:
                    check_model(self.path, store.settings(), fingerprint)
                try:
                    return dense(self._reader, store, state, vectors, k, kind=kind, recall=recall, where=where)
                except CollectionError:
                    # An index is opened when it is first searched: the writer may have put another in its place since the snapshot began.
                    if not self._reader.behind(store, state):
                        raise

    def lexical(self, queries: str | Sequence[str], k: int = 10, *, where: str | None = None) -> list[list[Hit]]:
        """The `k` best documents of each query by words (BM25), best first, ties by id; only documents that hold a word of the query."""
        k = check_k(k)
        asked = [queries] if isinstance(queries, str) else list(queries)
        for row, text in enumerate(asked, start=1):
            if not isinstance(text, str):
                raise SearchError(f"query {row} is {text!r} ({type(text).__name__}); wanted a text")
        with self._reader.snapshot() as (store, state):
            return by_words(self._reader, store, state, asked, k, where=where)

    def get(self, id: str) -> Document | None:
        """The document with this id, or None."""
        with self._reader.snapshot() as (store, _):
            found = store.find([id]).get(id)
            return None if found is None else Document(found.id, found.text, json.loads(found.metadata))

    def vector(self, id: str) -> Vectors | None:
        """The stored vector (D,) float32 of a document (a unit vector for "cosine"), of its first passage when it has several.

        None when there is no such id, or no vector for it.
        """
        with self._reader.snapshot() as (store, state):
            found = store.find([id]).get(id)
            if found is None or not found.pieces:
                return None
            layout = state.layout
            row = int(layout.places(np.asarray([found.pieces[0].number]))[0])
            if row < 0:
                raise damaged(store.path, f"no vector for document {id!r}")
            part = int(np.searchsorted(layout.starts, row, side="right")) - 1
            vector: Vectors = unpack(state.parts[part], slice(row - int(layout.starts[part]), row - int(layout.starts[part]) + 1))[0]
            return vector

    def ids(self, where: str | None = None) -> list[str]:
        """The ids of all documents, or of those that a filter allows, ascending."""
        condition = ("1", []) if where is None else to_sqlite(parse_where(where))
        with self._reader.snapshot() as (store, _):
            return store.ids(*condition)

    def count(self, where: str | None = None) -> int:
        """The number of documents, or of those that a filter allows."""
        condition, values = ("1", []) if where is None else to_sqlite(parse_where(where))
        with self._reader.snapshot() as (store, _):
            return int(store.db.execute(f"SELECT count(*) FROM documents d WHERE {condition}", values).fetchone()[0])

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        return True  # an empty collection is still a collection

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and self.get(id) is not None

    @property
    def settings(self) -> Settings:
        with self._reader.snapshot() as (store, _):
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
        """Everything worth knowing, ready for JSON; "advice" says what could be done."""
        with self._reader.snapshot() as (store, state):
            return overview.describe(self._reader, store, state)

    def verify(self) -> dict[str, Any]:
        """Read and check everything: every row, every vector file by SHA-256. CollectionError lists what is wrong; else the counts."""
        with self._reader.snapshot() as (store, _):
            return overview.verify(self._reader, store)

    def close(self) -> None:
        """Let go of the database and of the mapped files. The collection opens itself again when it is used again."""
        self._reader.close()

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
    def _writing(self, on_long: str | None = None, cut: Cut | None = None) -> Iterator[Writer]:
        """A writer that holds the lock, across threads and processes."""
        with self._write_lock, writer_lock(self.path, self.wait):
            store = Store(self.path, writable=True)
            try:
                if self._reader.fingerprint is not None:
                    with store.read():
                        check_model(self.path, store.settings(), self.encoder or self._reader.fingerprint)
                yield Writer(self.path, store, self.encoder, on_long, cut)
            finally:
                store.close()


__all__ = ["AUTO", "KINDS", "AddReport", "Collection"]
