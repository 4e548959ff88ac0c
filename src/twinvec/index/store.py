"""One connection to the database of a collection: snapshots, transactions, and rows that are checked whenever they are read (see schema.py)."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from twinvec.errors import CollectionError
from twinvec.index import lexical, schema
from twinvec.index.entries import Piece, Settings, Stored, document_seal, passage_seal, seal
from twinvec.index.lexical_reader import Lexical
from twinvec.index.lexical_terms import CUT, STEM
from twinvec.index.ranking import Rows
from twinvec.index.schema import FORMAT, NAME
from twinvec.index.segments import REMEDY, IndexFile, Segment

Found = tuple[str, str, str, int, int | None, int | None]  # id, text, metadata as JSON, and of the passage its part, start and stop
QUICK = 16 << 20  # databases up to this size are checked whole when they are opened
BUSY = 30_000  # milliseconds that a statement waits for another connection
_CACHE = 32 << 20  # bytes of pages that a reader keeps; hits are read from all over the file
_MANY = 500  # below this many values an IN (...) list; above it one statement reads them from a JSON array


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
    """One connection. `read()` is a snapshot of one commit, `write()` a transaction that counts as one commit.

    A writable one upgrades an older format when it is opened, so open it only while holding the writer's lock.
    """

    def __init__(self, folder: Path, *, writable: bool = False) -> None:
        self.folder, self.path, self.pid, self.version = folder, folder / NAME, os.getpid(), FORMAT
        self.words: Lexical | None = None  # what a reader keeps of the lexical index
        with sqlite_errors(self.path):
            self.db = self._connect(writable)
        try:
            with sqlite_errors(self.path):
                self._check_format()
                if writable:
                    self.db.execute("PRAGMA synchronous = FULL")
                    self._upgrade()
                else:
                    self.db.execute("PRAGMA query_only = 1")
                    self.db.execute(f"PRAGMA cache_size = -{_CACHE >> 10}")
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
        return sqlite3.connect(uri, uri=True, timeout=BUSY / 1000, isolation_level=None, check_same_thread=False)

    @staticmethod
    def create(folder: Path, settings: Settings, *, cut: str = CUT, stem: str = STEM) -> None:
        """A new database in an existing empty folder; it is whole on disk when this returns."""
        path = folder / NAME
        with sqlite_errors(path):
            db = sqlite3.connect(path, isolation_level=None)
            try:
                db.execute("PRAGMA journal_mode = WAL")
                schema.make(db, cut=cut, stem=stem)
                text = json.dumps(asdict(settings))
                db.execute("INSERT INTO settings VALUES ('collection', ?, ?)", (text, seal("collection", text)))
            finally:
                db.close()

    def _check_format(self) -> None:
        application = self.db.execute("PRAGMA application_id").fetchone()[0]
        self.version = self.db.execute("PRAGMA user_version").fetchone()[0]
        if application != schema.APPLICATION:
            raise CollectionError(f"{self.path}: not the database of a collection, or it was emptied; {REMEDY}")
        if self.version > FORMAT:
            raise CollectionError(
                f"{self.folder}: written by a newer twinvec (collection format {self.version}, this one reads up to {FORMAT}): upgrade twinvec"
            )

    def _upgrade(self) -> None:
        if self.version < FORMAT or not lexical.exists(self.db):
            with self.write():
                schema.upgrade(self.db, self.version, self._texts())
            self.version = FORMAT

    def _texts(self) -> Iterator[tuple[int, str]]:
        """(number, text) of every passage; read once it is asked for, when the tables are today's already."""
        self.version, last = FORMAT, -1
        while rows := self.living(last, 4096):
            yield from rows
            last = rows[-1][0]

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
                self._check_format()  # the writer may have upgraded it since
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
        values = self.setting("collection")
        if values is None:
            raise damaged(self.path, "its settings are not what was written")
        return Settings(**{field.name: values[field.name] for field in fields(Settings) if field.name in values})

    def setting(self, name: str) -> Any:
        """A JSON value of the table of settings; None when it is not there."""
        row = self.db.execute("SELECT value, seal FROM settings WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        if seal(name, row[0]) != row[1]:
            raise damaged(self.path, "its settings are not what was written")
        return json.loads(row[0])

    def counter(self, name: str) -> int:
        row = self.db.execute("SELECT value FROM counters WHERE name = ?", (name,)).fetchone()
        if row is None and self.version == 1 and name in ("layout", "parts"):
            return 0
        if row is None or not isinstance(row[0], int):
            raise damaged(self.path, f"no counter {name}")
        return row[0]

    def segments(self, table: str = "segments") -> list[Segment]:
        """Every segment (or "staged" one), in the order of its vectors."""
        return self._entries(table, Segment, "first") if self.version > 1 or table == "segments" else []

    def indexes(self) -> list[IndexFile]:
        """Every approximate index, in the order of its vectors."""
        return self._entries("indexes", IndexFile, "first_passage") if self.version > 1 else []

    def _entries(self, table: str, kind: type[Any], order: str) -> list[Any]:
        names = ", ".join(field.name for field in fields(kind))
        found = []
        for *values, check in self.db.execute(f"SELECT {names}, seal FROM {table} ORDER BY {order}"):
            if seal(*values) != check:
                raise damaged(self.path, f"the entry of {'index' if table == 'indexes' else 'segment'} {values[1]} is not what was written")
            found.append(kind(*values))
        return found

    def tombstones(self, after: int = -1) -> Rows:
        """Numbers of buried passages, ascending; only those of later commits than `after`."""
        later = f"WHERE at > {int(after)} " if after >= 0 else ""
        numbers = [number for (number,) in self.db.execute(f"SELECT number FROM tombstones {later}ORDER BY number")]
        if not all(isinstance(number, int) for number in numbers):  # SQLite reads a damaged row as NULL
            raise damaged(self.path, "a tombstone without a number")
        return np.asarray(numbers, dtype=np.int64)

    def count(self, table: str) -> int:
        return int(self.db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

    def ids(self, condition: str = "1", values: Sequence[Any] = ()) -> list[str]:
        """All ids that a condition (SQL over `d`) allows, in ascending order (of code points, as Python sorts them)."""
        return [name for (name,) in self.db.execute(f"SELECT d.id FROM documents d WHERE {condition} ORDER BY d.id", values)]

    def matching(self, condition: str, values: Sequence[Any]) -> Rows:
        """Numbers of the passages of all documents that a condition (SQL over `d`) allows, ascending."""
        sql = f"SELECT p.number FROM documents d JOIN passages p ON p.document = d.number WHERE {condition}"
        return np.sort(np.fromiter((number for (number,) in self.db.execute(sql, values)), dtype=np.int64))

    @property
    def _span(self) -> str:
        return "p.start, p.stop" if self.version > 1 else "NULL, NULL"

    def find(self, ids: Iterable[str]) -> dict[str, Stored]:
        """The documents with these ids; what is not there is left out."""
        found: dict[str, Stored] = {}
        for *row, number, part, start, stop in self._many(
            f"SELECT d.number, d.id, d.text, d.metadata, d.seal, p.number, p.part, {self._span} FROM documents d "
            "LEFT JOIN passages p ON p.document = d.number WHERE d.id IN",
            list(dict.fromkeys(ids)),
            " ORDER BY d.number, p.part",
        ):
            before = found.get(row[1])
            pieces = () if number is None else (Piece(number, part, start, stop),)
            found[row[1]] = replace(before, pieces=before.pieces + pieces) if before else Stored(*self._checked(row), pieces)
        return found

    def passages(self, numbers: Iterable[int]) -> dict[int, Found]:
        """What hits need of each passage. A passage without a document is damage: CollectionError."""
        wanted = sorted(set(numbers))
        found: dict[int, Found] = {}
        span = ", p.start, p.stop" if self.version > 1 and self.counter("parts") else ""
        start = stop = None
        for number, part, check, document, name, text, metadata, stamp, *place in self._many(
            f"SELECT p.number, p.part, p.seal, d.number, d.id, d.text, d.metadata, d.seal{span} "
            "FROM passages p JOIN documents d ON d.number = p.document WHERE p.number IN",
            wanted,
        ):
            if place:
                start, stop = place
            if passage_seal(number, document, part, start, stop) != check:
                raise damaged(self.path, f"passage {number} is not what was written")
            if document_seal(document, name, text, metadata) != stamp:
                raise damaged(self.path, f"document {name!r} is not what was written")
            found[number] = name, text, metadata, part, start, stop
        if len(found) < len(wanted):
            raise damaged(self.path, f"no document for passage {next(number for number in wanted if number not in found)}")
        return found

    def passage_ids(self, numbers: Iterable[int]) -> dict[int, str]:
        """Only the ids of the documents, for breaking ties."""
        sql = "SELECT p.number, d.id FROM passages p JOIN documents d ON d.number = p.document WHERE p.number IN"
        return dict(self._many(sql, list(numbers)))

    def owners(self, numbers: Iterable[int]) -> dict[int, int]:
        """The number of the document of each passage."""
        return dict(self._many("SELECT number, document FROM passages WHERE number IN", list(numbers)))

    def pieces(self, ids: Iterable[str]) -> dict[int, list[int]]:
        """Document numbers of these ids with the numbers of their passages; less to read than `find`."""
        found: dict[int, list[int]] = {}
        for document, passage in self._many(
            "SELECT d.number, p.number FROM documents d LEFT JOIN passages p ON p.document = d.number WHERE d.id IN", list(dict.fromkeys(ids))
        ):
            found.setdefault(document, []).extend([] if passage is None else [passage])
        return found

    def living(self, after: int, limit: int) -> list[tuple[int, str]]:
        """(number, text) of the next passages behind number `after`, ascending."""
        rows = self.db.execute(
            f"SELECT p.number, p.part, {self._span}, d.number, d.id, d.text, d.metadata, d.seal FROM passages p "
            "JOIN documents d ON d.number = p.document WHERE p.number > ? ORDER BY p.number LIMIT ?",
            (after, limit),
        )
        return [(number, Piece(number, part, start, stop).of(self._checked(row)[2])) for number, part, start, stop, *row in rows]

    def _checked(self, row: Sequence[Any]) -> tuple[int, str, str, str]:
        number, name, text, metadata, check = row
        if seal(number, name, text, metadata) != check:
            raise damaged(self.path, f"document {name!r} is not what was written")
        return number, name, text, metadata

    def _many(self, sql: str, values: Sequence[Any], end: str = "") -> Iterator[Any]:
        values = list(values)
        if len(values) <= _MANY:
            return self.db.execute(f"{sql} ({','.join('?' * len(values))}){end}", values)
        return self.db.execute(f"{sql} (SELECT value FROM json_each(?)){end}", (json.dumps(values),))

    # changes, inside write()

    def set_counter(self, name: str, value: int) -> None:
        self.db.execute("UPDATE counters SET value = ? WHERE name = ?", (value, name))

    def set_setting(self, name: str, value: Any) -> None:
        """None removes it."""
        text = json.dumps(value)
        self.db.execute("DELETE FROM settings WHERE name = ?", (name,))
        if value is not None:
            self.db.execute("INSERT INTO settings VALUES (?, ?, ?)", (name, text, seal(name, text)))

    def set_settings(self, settings: Settings) -> None:
        self.set_setting("collection", asdict(settings))

    def put_segment(self, segment: Segment, table: str = "segments") -> None:
        self._put(table, astuple(segment))

    def put_index(self, index: IndexFile) -> None:
        self._put("indexes", astuple(index))

    def _put(self, table: str, values: tuple[Any, ...]) -> None:
        self.db.execute(f"INSERT INTO {table} VALUES ({','.join('?' * (len(values) + 1))})", (*values, seal(*values)))

    def drop_entries(self, table: str, numbers: Iterable[int]) -> None:
        """Out of the table of segments, of staged ones or of indexes; the files go with the next sweep."""
        self.db.executemany(f"DELETE FROM {table} WHERE number = ?", [(number,) for number in numbers])

    def put_documents(self, rows: Iterable[tuple[int, str, str, str]]) -> None:
        """(number, id, text, metadata); a number that is there is replaced."""
        self.db.executemany(
            "INSERT INTO documents VALUES (?, ?, ?, ?, ?) ON CONFLICT (number) DO UPDATE SET text = excluded.text, metadata = excluded.metadata, "
            "seal = excluded.seal",
            ((*row, seal(*row)) for row in rows),
        )

    def put_passages(self, rows: Sequence[tuple[int, int, int, int | None, int | None, str]]) -> None:
        """(number, document number, part, start, stop, text): into the passages and into the lexical index."""
        self.db.executemany(
            "INSERT INTO passages (number, document, part, start, stop, seal) VALUES (?, ?, ?, ?, ?, ?)",
            [(*row[:5], passage_seal(*row[:5])) for row in rows],
        )
        lexical.put(self.db, [(row[0], row[5]) for row in rows])

    def bury(self, passages: Iterable[int]) -> None:
        """These passages get tombstones. Call it while their texts are still there."""
        gone = list(passages)
        if not gone:
            return
        at = self.counter("commit") + 1
        lexical.drop(self.db, gone)
        self.db.executemany("DELETE FROM passages WHERE number = ?", [(number,) for number in gone])
        self.db.executemany("INSERT INTO tombstones (number, at) VALUES (?, ?)", [(number, at) for number in gone])

    def unbury(self, low: int, high: int) -> None:
        """Forget the tombstones from `low` to `high`: their vectors are gone."""
        self.db.execute("DELETE FROM tombstones WHERE number BETWEEN ? AND ?", (low, high))

    def drop_documents(self, numbers: Iterable[int]) -> None:
        self.db.executemany("DELETE FROM documents WHERE number = ?", [(number,) for number in numbers])


__all__ = ["Piece", "Settings", "Store", "Stored", "damaged", "passage_seal", "seal", "sqlite_errors"]
