"""What collections on servers have in common: the public methods of `Collection`, over a few operations that each server does its own way."""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from twinvec.errors import CollectionError, UsageError, choose
from twinvec.index.checks import SearchError, check_k
from twinvec.index.documents import DocumentError, as_document, batches, document_stream
from twinvec.index.entries import Settings
from twinvec.index.models import AUTO, EncoderLike, check_model
from twinvec.index.passages import Span, asked, cut_of
from twinvec.index.remote.address import Address
from twinvec.index.remote.inputs import as_queries, check_recall
from twinvec.index.remote.planning import Entry, Known, Planner, given_vectors
from twinvec.index.remote.scoring import Best, Found, best
from twinvec.index.report import AddReport
from twinvec.index.where import Node, parse_where
from twinvec.progress import Progress
from twinvec.records import Document, Hit, Passage, Vectors

BATCH = 4096
WAIT = 60.0  # seconds to wait for another writer


@dataclass(frozen=True, slots=True)
class StoredText:
    """A stored document; spans: characters of its passages by their number, None where the passage is all of it."""

    text: str
    metadata: str
    spans: Mapping[int, Span | None]


_Remote = TypeVar("_Remote", bound="RemoteCollection")


class RemoteCollection(ABC):
    """A collection on a server, with the methods of `Collection`. `path` is its URL without the password."""

    engine: str = ""
    kinds: tuple[str, ...] = ("auto", "exact", "flat", "hnsw", "ivf")

    def __init__(self, address: Address, *, wait: float = WAIT) -> None:
        self.address, self.path, self.wait = address, address.shown, wait
        self.encoder: EncoderLike | None = None
        self._fingerprint: str | None = None  # of the model that this collection was opened with
        self._seen: dict[str, Any] | None = None  # settings that were read, while one commit is looked at
        self._lock = threading.RLock()

    # what each server does its own way

    @abstractmethod
    def _settings(self) -> Settings: ...

    @abstractmethod
    def _words_cut(self) -> tuple[str, str]:
        """How texts become words: the `cut` and `stem` of lexical_terms.terms."""

    @abstractmethod
    def _reading(self) -> AbstractContextManager[None]:
        """Around several reads that should see one commit."""

    @abstractmethod
    def _writing(self) -> AbstractContextManager[None]:
        """Around a whole change: one writer at a time, where the server can hold others off."""

    @abstractmethod
    def _known(self, ids: Sequence[str]) -> dict[str, Known]: ...

    @abstractmethod
    def _write(self, entries: Sequence[Entry], settings: Settings) -> None:
        """All of it or, where the server has transactions, nothing."""

    @abstractmethod
    def _remove(self, ids: Sequence[str]) -> int: ...

    @abstractmethod
    def _ids(self, where: Node | None) -> list[str]: ...

    @abstractmethod
    def _stored(self, ids: Sequence[str]) -> dict[str, StoredText]: ...

    @abstractmethod
    def _vectors(self, ids: Sequence[str]) -> dict[str, list[Vectors]]:
        """The vectors of each document, in the order of its passages."""

    @abstractmethod
    def _candidates(self, query: Vectors, where: Node | None, kind: str, recall: float | None, k: int, take: int) -> Found: ...

    @abstractmethod
    def _words(self, query: str, k: int, where: Node | None) -> list[Best]: ...

    @abstractmethod
    def _longest(self) -> float:
        """No stored vector is longer."""

    @abstractmethod
    def setting(self, name: str) -> Any:
        """What `put_setting` kept under this name; None when there is nothing."""

    @abstractmethod
    def put_setting(self, name: str, value: Any) -> None:
        """Keep a JSON value under a name of the caller's in the collection; None removes it."""

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """Everything worth knowing, ready for JSON."""

    @abstractmethod
    def verify(self) -> dict[str, Any]:
        """Check what the server can check; CollectionError says what is wrong, else the counts."""

    @abstractmethod
    def compact(self) -> dict[str, Any]:
        """Give back the room of deleted rows."""

    @abstractmethod
    def optimize(self, kind: str | None = None, recall: float | None = None, memory: int | None = None) -> dict[str, Any]:
        """Build the approximate index over all rows."""

    @abstractmethod
    def reindex(self, encoder: EncoderLike, *, document_prompt: str | None = AUTO, query_prompt: str | None = AUTO) -> AddReport:
        """Move to another model."""

    @abstractmethod
    def index_field(self, name: str) -> None:
        """Servers index metadata their own way: UsageError says how."""

    @abstractmethod
    def drop(self) -> None:
        """Remove the collection from the server, with everything in it."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _check_document(self, document: Document, row: int) -> None:
        """DocumentError for what this server cannot store."""

    # changing

    def add(
        self, documents: Any, vectors: Any = None, *, batch: int = BATCH, on_long: str | None = None, passage_tokens: int | None = None,
        passage_overlap: int | None = None, progress: bool = False,
    ) -> AddReport:  # fmt: skip
        """Add documents, or replace those whose id is there; every `batch` documents are one commit. As Collection.add."""
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise UsageError(f"batch = {batch!r}: wanted a number of documents, 1 or more")
        cut = cut_of(on_long, passage_tokens, passage_overlap, vectors)
        start, report = time.perf_counter(), AddReport()
        stream, total = document_stream(documents)
        with self._lock, self._writing():
            settings = self._checked_settings()
            if vectors is None and self.encoder is None:
                raise self._no_encoder()
            matrix = None
            if vectors is not None:
                listed = list(stream)
                matrix, stream, total = given_vectors(vectors, listed, settings.dimensions), iter(listed), len(listed)
            settings = asked(settings, on_long, cut)
            planner, at = Planner(self.encoder, settings), 0
            with Progress(total, "index", show=progress, unit="documents") as bar:
                for block in batches(stream, batch):
                    self._check(block, at)
                    part = None if matrix is None else matrix[at : at + len(block)]
                    entries, report = planner.batch(block, self._known(_unique(block)), part, report, bar)
                    self._put(entries, settings)
                    at += len(block)
            self._written()
        return replace(report, seconds=time.perf_counter() - start)

    upsert = add

    def update(self, id: str, text: str | None = None, metadata: Mapping[str, Any] | None = None) -> None:
        """Change a document's text, its metadata (all of it), or both; DocumentError when the id is not there."""
        with self._lock, self._writing():
            known = self._known([id]).get(id)
            if known is None:
                raise DocumentError(f"update: no document has the id {id!r}; add it with: add([({id!r}, text)])")
            if text is not None and text != known.text and self.encoder is None:
                raise self._no_encoder()
            item = (id, known.text if text is None else text, json.loads(known.metadata) if metadata is None else metadata)
            document, settings = as_document(item, 1), self._checked_settings()
            self._check([document], 0)
            with Progress(None, "index", show=False) as bar:
                planner = Planner(self.encoder, settings)
                entries, _ = planner.batch([document], {id: known}, None, AddReport(), bar, keep=text is None)
            self._put(entries, settings)

    def delete(self, ids: str | Iterable[str] | None = None, *, where: str | None = None) -> int:
        """Remove documents by id, or all that a filter matches; how many were there."""
        if (ids is None) == (where is None):
            raise UsageError("delete: give either ids or where=, the filter of what is to go")
        with self._lock, self._writing():
            if ids is None:
                wanted = self._ids(_node(where))
            else:
                wanted = [ids] if isinstance(ids, str) else list(ids)
            for name in wanted:
                if not isinstance(name, str):
                    raise CollectionError(f"delete: id {name!r} ({type(name).__name__}) is no string; ids are strings")
            return self._remove(list(dict.fromkeys(wanted))) if wanted else 0

    def _written(self) -> None:
        """After many documents were added."""
        return

    def _put(self, entries: Sequence[Entry], settings: Settings) -> None:
        if entries:
            self._write(entries, settings)

    def _check(self, documents: Sequence[Document], at: int) -> None:
        for row, document in enumerate(documents, start=at + 1):
            self._check_document(document, row)

    def _no_encoder(self) -> CollectionError:
        return CollectionError(
            f"{self.path}: opened without a model, so texts cannot be encoded; use open_collection(url, encoder), or give their vectors"
        )

    # reading

    def search(
        self, vectors: Any, k: int = 10, *, kind: str | None = None, recall: float | None = None, where: str | Node | None = None,
        fingerprint: str | None = None,
    ) -> list[list[Hit]]:  # fmt: skip
        """The `k` nearest documents of each query, best first, ties by id; all that match when there are fewer. As Collection.search.

        kind: "exact" for the exact answer, or the kind of the approximate index; None takes the index where there is one. recall: what the
        index should reach, 0 to 1. fingerprint: of the model that made the vectors; another one is refused. Scores are always float64 inner
        products of the stored vectors.
        """
        k, node = check_k(k), _node(where)
        chosen = choose("kind", kind or "auto", self.kinds)
        check_recall(recall)
        with self._lock, self._reading():
            settings = self._checked_settings(fingerprint)
            queries, longest = as_queries(vectors, settings.dimensions), self._longest()
            found = []
            for query in queries:
                fetch = partial(self._candidates, query.astype(np.float32), node, "exact" if chosen == "flat" else chosen, recall, k)
                found.append(best(query, fetch, k, metric=settings.metric, max_norm=longest, most=self._most()))
            return self._hits(found)

    def lexical(self, queries: str | Sequence[str], k: int = 10, *, where: str | Node | None = None) -> list[list[Hit]]:
        """The `k` best documents of each query by BM25 over the words that twinvec cuts; fewer when fewer hold a word of the query."""
        k, node = check_k(k), _node(where)
        asked = [queries] if isinstance(queries, str) else list(queries)
        for row, text in enumerate(asked, start=1):
            if not isinstance(text, str):
                raise SearchError(f"query {row} is {text!r} ({type(text).__name__}); wanted a text")
        with self._lock, self._reading():
            return self._hits([self._words(query, k, node) for query in asked])

    def _most(self) -> int | None:
        return None

    def _hits(self, found: Sequence[Sequence[Best]]) -> list[list[Hit]]:
        stored = self._stored(list(dict.fromkeys(item.id for row in found for item in row)))
        return [[_hit(item, stored[item.id]) for item in row if item.id in stored] for row in found]

    def get(self, id: str) -> Document | None:
        """The document with this id, or None."""
        with self._lock, self._reading():
            found = self._stored([id]).get(id)
            return None if found is None else Document(id, found.text, json.loads(found.metadata))

    def vector(self, id: str) -> Vectors | None:
        """The stored vector (D,) float32 of a document (of its first passage); None when there is no such id, or no vector for it."""
        with self._lock, self._reading():
            found = self._vectors([id]).get(id)
            return found[0] if found else None

    def ids(self, where: str | Node | None = None) -> list[str]:
        """All ids, or those that a filter matches, ascending."""
        with self._lock, self._reading():
            return self._ids(_node(where))

    def count(self, where: str | Node | None = None) -> int:
        """Documents, or those that a filter matches."""
        return len(self.ids(where))

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        return True  # an empty collection is still a collection

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and self.get(id) is not None

    @property
    def settings(self) -> Settings:
        with self._lock, self._reading():
            return self._settings()

    @property
    def fingerprint(self) -> str:
        return self.settings.fingerprint

    @property
    def model(self) -> str:
        """What to give to Encoder.load for the model of this collection."""
        settings = self.settings
        return settings.model_path if settings.model_path and Path(settings.model_path).is_dir() else settings.model

    @contextmanager
    def _once(self) -> Iterator[None]:
        """Settings are asked for once while this lasts."""
        outer = self._seen
        self._seen = {} if outer is None else outer
        try:
            yield
        finally:
            self._seen = outer

    def _begun(self: _Remote, encoder: EncoderLike | str | None, make: Callable[[], None] | None = None) -> _Remote:
        """This collection, made first where `make` is given, and opened for `encoder`; its connection does not outlive a refusal."""
        try:
            if make is not None:
                make()
            self._opened(encoder)
        except BaseException:
            self.close()
            raise
        return self

    def _opened(self, encoder: EncoderLike | str | None) -> None:
        check_model(self.path, self.settings, encoder)  # type: ignore[arg-type]  # only shown
        if encoder is not None:
            self._fingerprint = encoder if isinstance(encoder, str) else encoder.fingerprint
            self.encoder = None if isinstance(encoder, str) else encoder

    def _checked_settings(self, fingerprint: str | None = None) -> Settings:
        """The settings; refused when the collection has moved to another model since it was opened."""
        settings = self._settings()
        check_model(self.path, settings, fingerprint or self._fingerprint)  # type: ignore[arg-type]  # only shown
        return settings

    def __enter__(self) -> RemoteCollection:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"


def _node(where: str | Node | None) -> Node | None:
    return parse_where(where) if isinstance(where, str) else where


def _unique(documents: Sequence[Document]) -> list[str]:
    return list(dict.fromkeys(document.id for document in documents))


def _hit(item: Best, stored: StoredText) -> Hit:
    span = stored.spans.get(item.part)
    passage = None if span is None else Passage(stored.text[span[0] : span[1]], span[0], span[1], item.part)
    return Hit(item.id, item.score, stored.text, json.loads(stored.metadata), passage)
