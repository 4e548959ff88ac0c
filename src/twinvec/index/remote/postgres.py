"""A collection in PostgreSQL with pgvector."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np

from twinvec.errors import CollectionError, UsageError, choose
from twinvec.index.checks import LARGEST as LARGEST_NORM
from twinvec.index.documents import DocumentError
from twinvec.index.entries import Settings
from twinvec.index.lexical_terms import CUT, STEM, cutter
from twinvec.index.models import AUTO, EncoderLike
from twinvec.index.remote import postgres_index as approximate
from twinvec.index.remote import postgres_overview as overview
from twinvec.index.remote import postgres_sql as tables
from twinvec.index.remote import postgres_words as words
from twinvec.index.remote.address import Address
from twinvec.index.remote.base import WAIT, RemoteCollection, StoredText
from twinvec.index.remote.inputs import new_settings
from twinvec.index.remote.planning import Entry, Known
from twinvec.index.remote.postgres_link import Link
from twinvec.index.remote.scoring import Best, Found
from twinvec.index.report import AddReport
from twinvec.index.where import Node, to_postgres
from twinvec.records import Document, Vectors

LONGEST_ID = 2_000  # bytes; PostgreSQL's index on ids holds no longer ones
_COPY = "(number, document, part, start, stop, vector, words, counts, length)"


class PostgresCollection(RemoteCollection):
    """See RemoteCollection. A batch is a transaction; one writer at a time (an advisory lock); a search sees one commit."""

    engine = "postgresql"

    def __init__(self, address: Address, *, wait: float = WAIT) -> None:
        super().__init__(address, wait=wait)
        self.link = Link(address)

    @staticmethod
    def create(
        address: Address, encoder: EncoderLike | str, *, kind: str = "auto", halfvec: bool = False, cut: str = CUT, stem: str = STEM,
        wait: float = WAIT, **options: Any,
    ) -> PostgresCollection:  # fmt: skip
        """A new, empty collection; options as in Collection.create. halfvec: store vectors as float16, half the room.

        CollectionError when it is there already, when the server cannot be reached, or has no pgvector.
        """
        choose("kind", kind, PostgresCollection.kinds)
        settings = replace(
            new_settings(encoder, kind=kind, metric=options.pop("metric", "cosine"), **options), store="float16" if halfvec else "float32"
        )
        return PostgresCollection.create_like(address, settings, cut=cut, stem=stem, wait=wait, encoder=encoder)

    @staticmethod
    def create_like(
        address: Address, settings: Settings, *, cut: str, stem: str, wait: float = WAIT, encoder: EncoderLike | str | None = None
    ) -> PostgresCollection:  # fmt: skip
        """As `create`, with settings that are there already (of a collection that is copied)."""
        _check_size(settings)
        cutter(cut, stem)
        settings = replace(settings, store="float16" if settings.store == "float16" else "float32")
        made = PostgresCollection(address, wait=wait)
        return made._begun(encoder, lambda: made._make({**asdict(settings), "format": tables.FORMAT, "cut": cut, "stem": stem}))

    @staticmethod
    def open(address: Address, encoder: EncoderLike | str | None = None, *, wait: float = WAIT) -> PostgresCollection:
        """An existing collection; a model that is not its own is refused."""
        return PostgresCollection(address, wait=wait)._begun(encoder)

    def exists(self) -> bool:
        with self._reading():
            return bool(self.link.value("SELECT to_regclass(%s) IS NOT NULL", [f"{self.link.schema}.settings"]))

    def _make(self, values: dict[str, Any]) -> None:
        link, settings = self.link, _settings_of(values)
        with link.transaction():
            if link.value("SELECT count(*) FROM pg_namespace WHERE nspname = %s", [self.address.collection]):
                what = "a collection is there already" if self.exists() else "the database has a schema of that name"
                raise CollectionError(f"{self.path}: {what}; open it with open_collection(url, encoder), or choose another name")
            if not link.value("SELECT count(*) FROM pg_extension WHERE extname = 'vector'"):
                link.run("CREATE EXTENSION vector")
            link.run(f"CREATE SCHEMA {link.schema}")
            kind = tables.vector_type(settings.dimensions, settings.store == "float16")
            for statement in tables.SCHEMA.format(schema=link.schema, vector=kind).split(";"):
                if statement.strip():
                    link.run(statement)
            self._pin(settings)
            self._set("collection", values)

    def _pin(self, settings: Settings) -> None:
        if settings.dimensions and settings.dimensions * (2 if settings.store == "float16" else 4) <= tables.PLAIN_BYTES:
            self.link.run(tables.PLAIN.format(schema=self.link.schema))

    # settings

    def _settings(self) -> Settings:
        values = self._setting("collection")
        if values["format"] > tables.FORMAT:
            raise CollectionError(
                f"{self.path}: written by a newer twinvec (format {values['format']}, this one reads up to {tables.FORMAT}): upgrade"
            )
        return _settings_of(values)

    def _words_cut(self) -> tuple[str, str]:
        values = self._setting("collection")
        return values["cut"], values["stem"]

    def setting(self, name: str) -> Any:
        with self._lock, self._reading():
            return self._setting(f"user:{name}")

    def put_setting(self, name: str, value: Any) -> None:
        with self._lock, self._writing():
            if value is None:
                self.link.run(f"DELETE FROM {self.link.schema}.settings WHERE name = %s", [f"user:{name}"])
            else:
                self._set(f"user:{name}", value)

    def _setting(self, name: str) -> Any:
        if self._seen is not None and name in self._seen:
            return self._seen[name]
        found = self.link.rows(f"SELECT value FROM {self.link.schema}.settings WHERE name = %s", [name])
        value = json.loads(found[0][0]) if found else None
        if self._seen is not None:
            self._seen[name] = value
        return value

    def _set(self, name: str, value: Any) -> None:
        sql = f"INSERT INTO {self.link.schema}.settings VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
        self.link.run(sql, [name, json.dumps(value)])

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self.link.snapshot(), self._once():
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        key, end = f"twinvec {self.address.collection}", time.monotonic() + self.wait
        while not self.link.value("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", [key]):
            if time.monotonic() > end:
                raise CollectionError(f"{self.path}: another writer has held it for {self.wait:g} seconds; try again when it is done")
            time.sleep(0.05)
        try:
            yield
        finally:
            self.link.unlock(key)

    # changing

    def _check_document(self, document: Document, row: int) -> None:
        if "\x00" in document.text:
            raise DocumentError(f"document {row} (id {document.id!r}): its text holds a NUL character, which PostgreSQL cannot store; remove it")
        if len(document.id.encode()) > LONGEST_ID:
            raise DocumentError(f"document {row}: its id has {len(document.id.encode())} bytes; PostgreSQL takes up to {LONGEST_ID}")

    def _known(self, ids: Sequence[str]) -> dict[str, Known]:
        texts = self._texts(ids)
        found = {number: Known(text, metadata, []) for number, _, text, metadata in texts}
        for number, _, start, stop in self._passages(list(found)):
            found[number].spans.append(None if start is None else (start, stop))
        return {name: found[number] for number, name, _, _ in texts}

    def _texts(self, ids: Sequence[str]) -> list[Any]:
        return self.link.rows(f"SELECT number, id, text, metadata FROM {self.link.schema}.documents WHERE id = ANY (%s::text[])", [list(ids)])

    def _passages(self, documents: Sequence[int]) -> list[Any]:
        # Not joined with the documents: before the first ANALYZE the planner would read the whole table for that.
        sql = f"SELECT document, part, start, stop FROM {self.link.schema}.passages WHERE document = ANY (%s::bigint[]) ORDER BY document, part"
        return self.link.rows(sql, [list(documents)])

    def _write(self, entries: Sequence[Entry], settings: Settings) -> None:
        link, s = self.link, self.link.schema
        with link.transaction():
            names = [entry.document.id for entry in entries]
            numbers = dict(link.rows(f"SELECT id, number FROM {s}.documents WHERE id = ANY (%s::text[])", [names]))
            new = [entry for entry in entries if entry.document.id not in numbers]
            old = [entry for entry in entries if entry.document.id in numbers]
            first, passage = link.rows(f"SELECT next_document, next_passage FROM {s}.counters FOR UPDATE")[0]
            numbers.update({entry.document.id: first + i for i, entry in enumerate(new)})
            self._remember(entries, settings)
            if new:
                link.copy(
                    f"{s}.documents (number, id, text, metadata, fields)",
                    # jsonb's binary form is a version byte and the text
                    [(numbers[e.document.id], *_row(e)[:3], b"\x01" + _row(e)[3].encode()) for e in new],
                    "int8 text text text bytea",
                )
            if old:
                link.run(
                    f"UPDATE {s}.documents d SET text = n.text, metadata = n.metadata, fields = n.fields::jsonb "
                    "FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[]) n (number, text, metadata, fields) WHERE d.number = n.number",
                    [[numbers[e.document.id] for e in old], *map(list, zip(*(_row(e)[1:] for e in old), strict=True))],
                )
                self._forget([numbers[e.document.id] for e in old if e.pieces is not None])
            rows = self._passage_rows(entries, numbers, passage, settings)
            link.copy(f"{s}.passages {_COPY}", rows, "int8 int8 int4 int4 int4 bytea text[] int4[] int4")
            longest = max((float(np.sqrt((p.vector.astype(np.float64) ** 2).sum())) for e in entries for p in e.pieces or []), default=0.0)
            link.run(
                f"UPDATE {s}.counters SET commits = commits + 1, next_document = next_document + %s, next_passage = next_passage + %s, "
                "passages = passages + %s, words = words + %s, max_norm = greatest(max_norm, %s)",
                [len(new), len(rows), len(rows), sum(row[-1] for row in rows), min(longest * 1.001, LARGEST_NORM)],
            )

    def _passage_rows(self, entries: Sequence[Entry], numbers: dict[str, int], first: int, settings: Settings) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        half, cut = settings.store == "float16", cutter(*self._words_cut())
        for entry in entries:
            for piece in entry.pieces or []:
                start, stop = piece.span or (None, None)
                text = entry.document.text if piece.span is None else entry.document.text[start:stop]
                vector = tables.to_wire(piece.vector, half)
                rows.append((first + len(rows), numbers[entry.document.id], piece.part, start, stop, vector, *words.counted(cut(text))))
        return rows

    def _remember(self, entries: Sequence[Entry], settings: Settings) -> None:
        """The first vectors settle the dimensions; a new way to cut long texts holds from now on."""
        size = next((len(piece.vector) for entry in entries for piece in entry.pieces or []), None)
        stored = self._settings()
        if stored.dimensions is None and size is not None:
            settings = replace(settings, dimensions=size)
            _check_size(settings)
            kind = tables.vector_type(size, settings.store == "float16")
            self.link.run(f"ALTER TABLE {self.link.schema}.passages ALTER COLUMN vector TYPE {kind}")
            self._pin(settings)
        if settings != stored:
            self._set("collection", {**self._setting("collection"), **asdict(settings)})

    def _forget(self, documents: Sequence[int]) -> None:
        """The passages of these documents go."""
        s = self.link.schema
        gone = self.link.rows(f"DELETE FROM {s}.passages WHERE document = ANY (%s::bigint[]) RETURNING length", [list(documents)])
        self.link.run(f"UPDATE {s}.counters SET passages = passages - %s, words = words - %s", [len(gone), sum(length for (length,) in gone)])

    def _remove(self, ids: Sequence[str]) -> int:
        s = self.link.schema
        with self.link.transaction():
            numbers = [number for (number,) in self.link.rows(f"SELECT number FROM {s}.documents WHERE id = ANY (%s::text[])", [list(ids)])]
            if numbers:
                self._forget(numbers)
                self.link.run(f"DELETE FROM {s}.documents WHERE number = ANY (%s::bigint[])", [numbers])
                self.link.run(f"UPDATE {s}.counters SET commits = commits + 1")
        return len(numbers)

    def _written(self) -> None:
        """New statistics for the planner when the collection has grown by a fifth; the server's own come a minute later."""
        s = self.link.schema
        counted, known = self.link.rows(
            f"SELECT c.passages, r.reltuples FROM {s}.counters c, pg_class r WHERE r.oid = %s::regclass", [f"{s}.passages"]
        )[0]  # fmt: skip
        if counted >= 1000 and counted > 1.2 * known:
            for table in ("documents", "passages"):
                self.link.run(f"ANALYZE {s}.{table}")

    # reading

    def _ids(self, where: Node | None) -> list[str]:
        sql, values = to_postgres(where) if where is not None else ("true", [])
        return [name for (name,) in self.link.rows(f"SELECT d.id FROM {self.link.schema}.documents d WHERE {sql} ORDER BY d.id", values)]

    def count(self, where: str | Node | None = None) -> int:
        if where is not None:
            return super().count(where)
        with self._lock, self._reading():
            return int(self.link.value(f"SELECT count(*) FROM {self.link.schema}.documents"))

    def _stored(self, ids: Sequence[str]) -> dict[str, StoredText]:
        texts = self._texts(ids)
        spans: dict[int, dict[int, Any]] = {number: {} for number, *_ in texts}
        for number, part, start, stop in self._passages(list(spans)):
            spans[number][part] = None if start is None else (start, stop)
        return {name: StoredText(text, metadata, spans[number]) for number, name, text, metadata in texts}

    def _vectors(self, ids: Sequence[str]) -> dict[str, list[Vectors]]:
        settings = self._settings()
        sql = (
            f"SELECT d.id, p.vector FROM {self.link.schema}.documents d JOIN {self.link.schema}.passages p ON p.document = d.number "
            "WHERE d.id = ANY (%s::text[]) ORDER BY d.id, p.part"
        )
        found: dict[str, list[Vectors]] = {}
        for name, row in self.link.rows(sql, [list(ids)], binary=True):
            found.setdefault(name, []).append(tables.from_wire([row], settings.store == "float16", settings.dimensions or 1)[0])
        return found

    def _longest(self) -> float:
        return float(self.link.value(f"SELECT max_norm FROM {self.link.schema}.counters"))

    def _candidates(self, query: Vectors, where: Node | None, kind: str, recall: float | None, k: int, take: int) -> Found:
        settings = self._settings()
        index = None if kind == "exact" else self._setting("index")
        if kind in approximate.KINDS and (index is None or index["kind"] != kind):
            raise UsageError(f"kind = {kind!r}: {self.path} has no such index; build it with optimize(kind={kind!r}), or leave the option out")
        if index is not None:
            found = approximate.candidates(self.link, settings, index, query, where, recall, take)
            if len(set(found.ids)) >= k:
                return found
        return approximate.exact(self.link, settings, query, where, take)  # the index found fewer than k, or there is none

    def _words(self, query: str, k: int, where: Node | None) -> list[Best]:
        return words.search(self.link, cutter(*self._words_cut())(query), k, where)

    # the whole

    def info(self) -> dict[str, Any]:
        with self._lock, self._reading():
            return {"path": self.path, **overview.info(self.link, self._setting("collection"), self._setting("index"))}

    def verify(self) -> dict[str, Any]:
        with self._lock, self._reading():
            return overview.verify(self.link, self.path, self._settings().dimensions)

    def compact(self) -> dict[str, Any]:
        with self._lock, self._writing():
            for table in ("documents", "passages"):
                self.link.run(f"VACUUM (ANALYZE) {self.link.schema}.{table}")
        return {"documents": len(self)}

    def optimize(self, kind: str | None = None, recall: float | None = None, memory: int | None = None) -> dict[str, Any]:
        """Build the approximate index over all rows and measure what it reaches. kind: "hnsw" (default) or "ivf"; memory: bytes for the build."""
        with self._lock, self._writing():
            settings = self._settings()
            detail = approximate.build(self.link, settings, kind or ("hnsw" if settings.kind == "auto" else settings.kind), recall, memory)
            if detail is not None:
                self._set("index", detail)
            return detail or {"kind": "exact"}

    def reindex(self, encoder: EncoderLike, *, document_prompt: str | None = AUTO, query_prompt: str | None = AUTO) -> AddReport:
        """Move to another model: new vectors are made beside the old ones, which serve until one transaction puts the new ones in their place."""
        from twinvec.index.remote.postgres_reindex import reindex

        with self._lock, self._writing():
            report, settings = reindex(self.link, self._settings(), encoder, document_prompt, query_prompt)
            with self.link.transaction():
                approximate.drop(self.link)
                self.link.run(f"DELETE FROM {self.link.schema}.settings WHERE name = 'index'")
                self.link.run(f"ALTER TABLE {self.link.schema}.passages DROP COLUMN vector")
                self.link.run(f"ALTER TABLE {self.link.schema}.passages RENAME COLUMN staged TO vector")
                self.link.run(f"ALTER TABLE {self.link.schema}.passages ALTER COLUMN vector SET NOT NULL")
                self.link.run(f"UPDATE {self.link.schema}.counters SET commits = commits + 1")
                self._set("collection", {**self._setting("collection"), **asdict(settings)})
            self.encoder, self._fingerprint = encoder, encoder.fingerprint
            return report

    def index_field(self, name: str) -> None:
        raise UsageError(f"{name}: PostgreSQL keeps one index over all metadata fields already; leave the option out")

    def drop(self) -> None:
        with self._lock, self._writing():
            self.link.run(f"DROP SCHEMA {self.link.schema} CASCADE")

    def close(self) -> None:
        self.link.close()

    def __del__(self) -> None:
        try:
            if self.link.pid == os.getpid():
                self.close()
        except Exception:  # half of the interpreter may be gone already
            pass


def _check_size(settings: Settings) -> None:
    if settings.dimensions is not None and settings.dimensions > tables.LARGEST:
        raise CollectionError(
            f"{settings.dimensions} dimensions: pgvector stores up to {tables.LARGEST:,}; use a model with fewer, or its dimensions option"
        )


def _settings_of(values: dict[str, Any]) -> Settings:
    return Settings(**{field.name: values[field.name] for field in fields(Settings) if field.name in values})


def _row(entry: Entry) -> tuple[str, str, str, str]:
    return entry.document.id, entry.document.text, entry.metadata, tables.fields_of(entry.document.metadata)
