"""The SQLite file that is the truth of a collection: what is in it, which vector files count, what was deleted.

Tables (format 1)
- settings: one JSON row; metric, kind, dimensions, the model and its fingerprint, the prompts.
- documents: the caller's id, text and metadata. A document keeps its number when it is replaced.
- passages: which document a vector belongs to. A passage's number is its place in the vectors: segment.first + row. Today a document has one
  passage, or none when its text is empty; `part` numbers the pieces of a long one.
- tombstones: passages that were deleted or replaced; their vectors stay in the immutable files until those are rewritten.
- segments: the vector files. Other kinds (FAISS over segments, int8, ...) get their own `kind`; a reader refuses a kind it does not know.
- counters: the number of the last commit, and the next free numbers, which are never used twice.
A lexical index, filters and passage offsets are further tables and columns of this file; PRAGMA user_version is the format.

SQLite has no checksums of its own, so rows carry a CRC-32 of what they say (`seal`), checked whenever a row is read.
"""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from twinvec.errors import CollectionError
from twinvec.index.ranking import Rows
from twinvec.index.segments import REMEDY, Segment

FORMAT = 1
APPLICATION = 0x74776E76  # "twnv"
NAME = "collection.db"
QUICK = 16 << 20  # databases up to this size are checked whole when they are opened
_CHUNK = 500  # values in one IN (...) list
_COUNTERS = ("commit", "next_document", "next_passage", "next_segment")

SCHEMA = f"""
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL, seal INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE documents (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, text TEXT NOT NULL, metadata TEXT NOT NULL, seal INTEGER NOT NULL);
CREATE TABLE passages (number INTEGER PRIMARY KEY, document INTEGER NOT NULL REFERENCES documents (number), part INTEGER NOT NULL DEFAULT 0,
    seal INTEGER NOT NULL);
CREATE INDEX passages_document ON passages (document);
CREATE TABLE tombstones (number INTEGER PRIMARY KEY);
CREATE TABLE segments (number INTEGER PRIMARY KEY, file TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, dtype TEXT NOT NULL, first INTEGER NOT NULL,
    rows INTEGER NOT NULL, dimensions INTEGER NOT NULL, bytes INTEGER NOT NULL, sha256 TEXT NOT NULL, max_norm REAL NOT NULL, detail TEXT NOT NULL,
    seal INTEGER NOT NULL);
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {FORMAT};
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a collection was made for. `dimensions` is None until the first vectors when no model was given."""

    fingerprint: str
    model: str
    model_path: str | None
    dimensions: int | None
    kind: str
    metric: str
    document_prompt: str | None
    query_prompt: str | None
    created: str
    twinvec: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored document: `metadata` as JSON text, `passage` the number of its vector, None when it has none."""

    number: int
    id: str
    text: str
    metadata: str
    passage: int | None


def seal(*parts: Any) -> int:
    """CRC-32 over the parts of a row. The length of each part is part of it, so nothing can move from one column to the next."""
    return zlib.crc32("".join(f"{len(text)}:{text}" for text in map(str, parts)).encode("utf-8", "surrogatepass"))


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """SQLite's errors as CollectionError with the remedy."""
    try:
        yield
    except sqlite3.DatabaseError as err:
        said = str(err)
        if "full" in said or "disk I/O" in said:
            raise CollectionError(f"{path}: could not be written ({said}); make room on the disk. Nothing of this batch was stored") from err
        if "readonly" in said or "unable to open" in said:
            raise CollectionError(f"{path}: cannot be written from here ({said}); change the rights of the folder, or copy it") from err
        if "locked" in said or "busy" in said:
            raise CollectionError(f"{path}: another program holds the database ({said}); wait for it to end") from err
        raise damaged(path, said) from err
    except UnicodeDecodeError as err:  # a text of the database, or SQLite's own words about it, is no text any more
        raise damaged(path, "a text in it is not UTF-8") from err


def damaged(path: Path, what: str) -> CollectionError:
    return CollectionError(f"{path}: damaged ({what}); {REMEDY}")


class Store:
    """One connection. `read()` is a snapshot of one commit, `write()` a transaction that counts as one commit."""

    def __init__(self, folder: Path, *, writable: bool = False) -> None:
        self.folder, self.path, self.pid = folder, folder / NAME, os.getpid()
        with sqlite_errors(self.path):
            self.db = self._connect(writable)
        try:
            with sqlite_errors(self.path):
                self._check_format()
                if writable:
                    self.db.execute("PRAGMA synchronous = FULL")
                else:
                    self.db.execute("PRAGMA query_only = 1")
                    self._check_pages()
        except BaseException:
            self.db.close()
            raise

    def _connect(self, writable: bool) -> sqlite3.Connection:
        where = f"file:{quote(str(self.path.absolute()))}"
        log = self.path.with_name(NAME + "-wal")
        if not writable and not os.access(self.folder, os.W_OK) and not (log.exists() and log.stat().st_size):
            # Reading in WAL mode writes a small index file beside the database; where that is impossible nobody writes either.
            return self._opened(f"{where}?mode=ro&immutable=1")
        return self._opened(f"{where}?mode=rw")

    @staticmethod
    def _opened(uri: str) -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, timeout=30.0, isolation_level=None, check_same_thread=False)

    @staticmethod
    def create(folder: Path, settings: Settings) -> None:
        """A new database in an existing empty folder; it is whole on disk when this returns."""
        path = folder / NAME
        with sqlite_errors(path):
            db = sqlite3.connect(path, isolation_level=None)
            try:
                db.execute("PRAGMA journal_mode = WAL")
                db.executescript(SCHEMA)
                db.executemany("INSERT INTO counters VALUES (?, 0)", [(name,) for name in _COUNTERS])
                text = json.dumps(asdict(settings))
                db.execute("INSERT INTO settings VALUES ('collection', ?, ?)", (text, seal("collection", text)))
            finally:
                db.close()

    def _check_format(self) -> None:
        application = self.db.execute("PRAGMA application_id").fetchone()[0]
        version = self.db.execute("PRAGMA user_version").fetchone()[0]
        if application != APPLICATION:
            raise CollectionError(f"{self.path}: not the database of a collection, or it was emptied; {REMEDY}")
        if version > FORMAT:
            raise CollectionError(
                f"{self.folder}: written by a newer twinvec (collection format {version}, this one reads up to {FORMAT}): upgrade twinvec"
            )

    def _check_pages(self) -> None:
        if self.path.stat().st_size <= QUICK:
            found = str(self.db.execute("PRAGMA quick_check(1)").fetchone()[0])
            if found != "ok":
                raise damaged(self.path, found.splitlines()[0])

    @contextmanager
    def read(self) -> Iterator[None]:
        with sqlite_errors(self.path):
            self.db.execute("BEGIN")
            try:
                yield
            finally:
                self.db.execute("ROLLBACK")

    @contextmanager
    def write(self) -> Iterator[None]:
        with sqlite_errors(self.path):
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.db.execute("UPDATE counters SET value = value + 1 WHERE name = 'commit'")
                self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise

    def close(self) -> None:
        self.db.close()

    # what is there

    def settings(self) -> Settings:
        row = self.db.execute("SELECT value, seal FROM settings WHERE name = 'collection'").fetchone()
        if row is None or seal("collection", row[0]) != row[1]:
            raise damaged(self.path, "its settings are not what was written")
        values = json.loads(row[0])
        return Settings(**{field.name: values[field.name] for field in fields(Settings)})

    def counter(self, name: str) -> int:
        row = self.db.execute("SELECT value FROM counters WHERE name = ?", (name,)).fetchone()
        if row is None or not isinstance(row[0], int):
            raise damaged(self.path, f"no counter {name}")
        return row[0]

    def segments(self) -> list[Segment]:
        """Every segment, in the order of its vectors."""
        names = ", ".join(field.name for field in fields(Segment))
        found = []
        for *values, check in self.db.execute(f"SELECT {names}, seal FROM segments ORDER BY first"):
            if seal(*values) != check:
                raise damaged(self.path, f"the entry of segment {values[1]} is not what was written")
            found.append(Segment(*values))
        return found

    def tombstones(self) -> Rows:
        numbers = [number for (number,) in self.db.execute("SELECT number FROM tombstones ORDER BY number")]
        if not all(isinstance(number, int) for number in numbers):  # SQLite reads a damaged row as NULL
            raise damaged(self.path, "a tombstone without a number")
        return np.asarray(numbers, dtype=np.int64)

    def count(self, table: str) -> int:
        return int(self.db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

    def ids(self) -> list[str]:
        """All ids in ascending order (of code points, as Python sorts them)."""
        return [name for (name,) in self.db.execute("SELECT id FROM documents ORDER BY id")]

    def find(self, ids: Iterable[str]) -> dict[str, Stored]:
        """The documents with these ids; what is not there is left out."""
        found = {}
        for row in self._many(
            "SELECT d.number, d.id, d.text, d.metadata, d.seal, p.number FROM documents d LEFT JOIN passages p ON p.document = d.number "
            "WHERE d.id IN",
            list(dict.fromkeys(ids)),
        ):
            found[row[1]] = Stored(*self._checked(row[:5]), row[5])
        return found

    def passages(self, numbers: Iterable[int]) -> dict[int, Stored]:
        """The document of each passage. A passage without a document is damage: CollectionError."""
        wanted = list(dict.fromkeys(numbers))
        found = {}
        for number, part, check, *row in self._many(
            "SELECT p.number, p.part, p.seal, d.number, d.id, d.text, d.metadata, d.seal FROM passages p JOIN documents d ON d.number = p.document "
            "WHERE p.number IN",
            wanted,
        ):
            if seal(number, row[0], part) != check:
                raise damaged(self.path, f"passage {number} is not what was written")
            found[number] = Stored(*self._checked(row), number)
        if len(found) < len(wanted):
            raise damaged(self.path, f"no document for passage {next(number for number in wanted if number not in found)}")
        return found

    def passage_ids(self, numbers: Iterable[int]) -> dict[int, str]:
        """Only the ids, for breaking ties."""
        sql = "SELECT p.number, d.id FROM passages p JOIN documents d ON d.number = p.document WHERE p.number IN"
        return dict(self._many(sql, list(numbers)))

    def _checked(self, row: Sequence[Any]) -> tuple[int, str, str, str]:
        number, name, text, metadata, check = row
        if seal(number, name, text, metadata) != check:
            raise damaged(self.path, f"document {name!r} is not what was written")
        return number, name, text, metadata

    def _many(self, sql: str, values: Sequence[Any]) -> Iterator[Any]:
        for at in range(0, len(values), _CHUNK):
            part = values[at : at + _CHUNK]
            yield from self.db.execute(f"{sql} ({','.join('?' * len(part))})", part)

    # changes, inside write()

    def set_counter(self, name: str, value: int) -> None:
        self.db.execute("UPDATE counters SET value = ? WHERE name = ?", (value, name))

    def set_settings(self, settings: Settings) -> None:
        text = json.dumps(asdict(settings))
        self.db.execute("UPDATE settings SET value = ?, seal = ? WHERE name = 'collection'", (text, seal("collection", text)))

    def put_segment(self, segment: Segment) -> None:
        values = astuple(segment)
        self.db.execute(f"INSERT INTO segments VALUES ({','.join('?' * (len(values) + 1))})", (*values, seal(*values)))

    def put_documents(self, rows: Iterable[tuple[int, str, str, str]]) -> None:
        """(number, id, text, metadata); a number that is there is replaced."""
        self.db.executemany(
            "INSERT INTO documents VALUES (?, ?, ?, ?, ?) ON CONFLICT (number) DO UPDATE SET text = excluded.text, metadata = excluded.metadata, "
            "seal = excluded.seal",
            ((*row, seal(*row)) for row in rows),
        )

    def put_passages(self, rows: Iterable[tuple[int, int]]) -> None:
        """(number, document number)"""
        self.db.executemany("INSERT INTO passages VALUES (?, ?, 0, ?)", ((*row, seal(*row, 0)) for row in rows))

    def bury(self, passages: Iterable[int]) -> None:
        """These passages get tombstones."""
        gone = [(number,) for number in passages]
        self.db.executemany("DELETE FROM passages WHERE number = ?", gone)
        self.db.executemany("INSERT INTO tombstones VALUES (?)", gone)

    def drop_documents(self, numbers: Iterable[int]) -> None:
        self.db.executemany("DELETE FROM documents WHERE number = ?", [(number,) for number in numbers])

    # the whole truth, for verify()

    def faults(self) -> list[str]:
        """Everything in the database that is not as it was written; empty when all is well. Reads all of it."""
        found = [f"{self.path}: {row[0]}" for row in self.db.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
        if found:
            return found
        documents = self.db.execute("SELECT number, id, text, metadata, seal FROM documents")
        found += [f"{self.path}: document {row[1]!r} is not what was written" for row in documents if seal(*row[:4]) != row[4]]
        passages = self.db.execute("SELECT number, document, part, seal FROM passages")
        found += [f"{self.path}: passage {row[0]} is not what was written" for row in passages if seal(*row[:3]) != row[3]]
        lost = self.db.execute("SELECT count(*) FROM passages WHERE document NOT IN (SELECT number FROM documents)").fetchone()[0]
        both = self.db.execute("SELECT count(*) FROM passages WHERE number IN (SELECT number FROM tombstones)").fetchone()[0]
        if lost or both:
            found.append(f"{self.path}: {lost} passages without a document, {both} both deleted and not")
        return found + self.miscounts(self.segments())

    def miscounts(self, segments: Sequence[Segment]) -> list[str]:
        """Each vector belongs to a living passage or to a tombstone; segments do not overlap."""
        vectors = sum(segment.rows for segment in segments)
        living, dead = self.count("passages"), self.count("tombstones")
        found = []
        if living + dead != vectors:
            found.append(f"{self.path}: {living} passages and {dead} tombstones for {vectors} vectors")
        end = 0
        for segment in segments:
            if segment.first < end:
                found.append(f"{self.path}: segment {segment.file} overlaps the one before it")
            end = segment.first + segment.rows
        if end > self.counter("next_passage"):
            found.append(f"{self.path}: the counter of passages is behind its segments")
        return found
