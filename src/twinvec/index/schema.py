"""The tables of a collection's database, and how an older one becomes today's.

Tables (format 2)
- settings: JSON rows. "collection": metric, kind, dimensions, the model and its fingerprint, the prompts, the number type of new vectors, how
  long texts are cut. "ranges": the int8 ranges. "staging": the model that a re-index is moving to.
- documents: the caller's id, text and metadata. A document keeps its number when it is replaced.
- passages: which document a vector belongs to, and which characters of its text (start and stop; NULL: all of it). A document has none when its
  text is empty, and several when it was cut; `part` numbers them from 0. A passage never changes: a new text gets new passages.
- tombstones: passages that were deleted or replaced while their vectors still stand in the immutable files; `at` is the commit that did it.
- segments: the vector files, in the order of their passages' numbers. A segment that lost rows to compaction has a file with the numbers of those
  left. staged: the same for the vectors of a re-index that is not finished.
- indexes: approximate indexes (FAISS files) over the vectors of segments.
- counters: the number of the last commit; the next free numbers, which are never used twice; `layout`, which changes when vectors move.
- the tables of lexical.py.

Format 1 had no spans, staging, indexes or lexical tables. It is read as it is, and upgraded by the first writer in one transaction.
SQLite has no checksums of its own, so rows carry a CRC-32 of what they say (`seal`), checked whenever a row is read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from twinvec.index import lexical

FORMAT = 2
APPLICATION = 0x74776E76  # "twnv"
NAME = "collection.db"
COUNTERS = ("commit", "next_document", "next_passage", "next_segment", "layout", "parts")

_SEGMENT = """(number INTEGER PRIMARY KEY, file TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, dtype TEXT NOT NULL, first INTEGER NOT NULL,
    rows INTEGER NOT NULL, dimensions INTEGER NOT NULL, bytes INTEGER NOT NULL, sha256 TEXT NOT NULL, max_norm REAL NOT NULL, detail TEXT NOT NULL,
    seal INTEGER NOT NULL)"""
_NEW = f"""
CREATE TABLE staged {_SEGMENT};
CREATE TABLE indexes (number INTEGER PRIMARY KEY, file TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, first_passage INTEGER NOT NULL,
    rows INTEGER NOT NULL, bytes INTEGER NOT NULL, sha256 TEXT NOT NULL, detail TEXT NOT NULL, seal INTEGER NOT NULL);
CREATE INDEX tombstones_at ON tombstones (at);
"""
_SCHEMA = f"""
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL, seal INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE documents (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, text TEXT NOT NULL, metadata TEXT NOT NULL, seal INTEGER NOT NULL);
CREATE TABLE passages (number INTEGER PRIMARY KEY, document INTEGER NOT NULL REFERENCES documents (number), part INTEGER NOT NULL DEFAULT 0,
    seal INTEGER NOT NULL, start INTEGER, stop INTEGER);
CREATE INDEX passages_document ON passages (document);
CREATE TABLE tombstones (number INTEGER PRIMARY KEY, at INTEGER NOT NULL DEFAULT 0);
CREATE TABLE segments {_SEGMENT};
{_NEW}
"""
_FROM_1 = f"""
ALTER TABLE passages ADD COLUMN start INTEGER;
ALTER TABLE passages ADD COLUMN stop INTEGER;
ALTER TABLE tombstones ADD COLUMN at INTEGER NOT NULL DEFAULT 0;
{_NEW}
"""


def make(db: sqlite3.Connection, *, cut: str, stem: str) -> None:
    """All tables, in an empty database. cut, stem: as lexical.create takes them."""
    db.executescript(_SCHEMA)
    lexical.create(db, cut=cut, stem=stem)
    db.executemany("INSERT INTO counters VALUES (?, 0)", [(name,) for name in COUNTERS])
    db.execute(f"PRAGMA application_id = {APPLICATION}")
    db.execute(f"PRAGMA user_version = {FORMAT}")


def upgrade(db: sqlite3.Connection, version: int, texts: Iterable[tuple[int, str]]) -> None:
    """From `version` to FORMAT, inside the caller's transaction: half an upgrade never stands. texts: (number, text) of every passage."""
    if version == 1:
        for statement in _FROM_1.split(";"):
            if statement.strip():
                db.execute(statement)  # executescript would end the transaction
        db.executemany("INSERT OR IGNORE INTO counters VALUES (?, 0)", [(name,) for name in COUNTERS])
    if not lexical.exists(db):
        lexical.rebuild(db, texts)
    db.execute(f"PRAGMA user_version = {FORMAT}")
