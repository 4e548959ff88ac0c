"""Lexical search: BM25 over terms that twinvec cuts (lexical_terms.py), kept in the collection's SQLite file.

`put` and `drop` run inside the caller's transaction, so words, vectors and texts change in one commit. Rows are whatever whole numbers the
caller gives (numbers of passages); the texts are not stored here.

Tables
- lexical_settings: how texts are cut, the version of the rules, and a counter of changes by which readers see that they must look again.
- lexical_blocks: up to 65,536 rows each: their numbers and lengths in terms. A block never changes; small ones are merged into a new one.
- lexical_postings: for each block and term, which rows hold it and how often. A blob is a CRC-32 (4 bytes), then places in the block (2 bytes
  each), then counts (1 byte each, at most 255: BM25 hardly tells 255 from 1,000).
- lexical_dropped: rows of blocks that are gone. They count for nothing, neither as hits nor in the statistics; a merge leaves them out.

Why not SQLite's FTS5: see docs/search.md; in short it reads every posting of every term for every query (6 queries a second at 100,000
passages), its bm25() gives words in more than half of the texts a score of one in a million, and without a second copy of the text its
indexes forget rows only from SQLite 3.43 on.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.errors import CollectionError
from twinvec.index.lexical_reader import K1, B, Ids, Lexical, damaged, pack, settings, unpack
from twinvec.index.lexical_terms import CUT, CUTS, STEM, STEMS, VERSION, cutter, terms

BLOCK = 65_536  # rows of a block: places fit in two bytes
_FAN = 8  # so many blocks of one size are merged into one
_MERGED = 32_768  # blocks from this size on are merged by `compact` only, so that no single commit takes seconds

SCHEMA = """
CREATE TABLE lexical_settings (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE lexical_blocks (block INTEGER PRIMARY KEY, rows INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    numbers BLOB NOT NULL, lengths BLOB NOT NULL);
CREATE TABLE lexical_postings (block INTEGER NOT NULL, term TEXT NOT NULL, rows BLOB NOT NULL, PRIMARY KEY (block, term)) WITHOUT ROWID;
CREATE TABLE lexical_dropped (block INTEGER NOT NULL, place INTEGER NOT NULL, PRIMARY KEY (block, place)) WITHOUT ROWID;
"""
TABLES = ("lexical_settings", "lexical_blocks", "lexical_postings", "lexical_dropped")

Numbers = npt.NDArray[np.int64]


def create(db: sqlite3.Connection, *, cut: str = CUT, stem: str = STEM) -> None:
    """The empty tables, inside the caller's transaction. cut, stem: as in `terms`; they hold for the life of the index."""
    cutter(cut, stem)
    for statement in SCHEMA.split(";"):
        if statement.strip():
            db.execute(statement)  # executescript would commit the caller's transaction
    rows = (("cut", cut), ("stem", stem), ("version", VERSION), ("changes", 0), ("next_block", 0))
    db.executemany("INSERT INTO lexical_settings VALUES (?, ?)", rows)


def exists(db: sqlite3.Connection) -> bool:
    """Whether the index is there and was made by the rules of this version; if not, `rebuild` makes it."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'lexical_settings'").fetchone() is None:
        return False
    return bool(settings(db)["version"] == VERSION)


def rebuild(db: sqlite3.Connection, rows: Iterable[tuple[int, str]], *, cut: str | None = None, stem: str | None = None) -> None:
    """The index made anew from all (number, text), inside the caller's transaction; `rows` are streamed.

    cut, stem: None keeps those of the index that is there, or takes the defaults.
    """
    there = db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'lexical_settings'").fetchone()
    old = {"cut": CUT, "stem": STEM, "changes": 0, "next_block": 0, **(dict(db.execute("SELECT name, value FROM lexical_settings")) if there else {})}
    for table in TABLES:
        db.execute(f"DROP TABLE IF EXISTS {table}")
    create(db, cut=cut or old["cut"], stem=stem or old["stem"])
    # Readers know blocks by their numbers and changes by the counter: neither may come again.
    _set(db, "next_block", old["next_block"])
    _set(db, "changes", old["changes"] + 1)
    put(db, rows)


def put(db: sqlite3.Connection, rows: Iterable[tuple[int, str]]) -> None:
    """Index (number, text) rows; a number that is there already is replaced, and of the same number twice the last one counts.

    A text without terms is kept as a row of length 0 and never found.
    """
    how = settings(db)
    cut = cutter(how["cut"], how["stem"])
    put_terms(db, ((number, cut(text)) for number, text in rows))


def put_terms(db: sqlite3.Connection, rows: Iterable[tuple[int, Sequence[str]]]) -> None:
    """As `put`, with texts that are cut already."""
    stream, last = iter(rows), settings(db)
    number = last["next_block"]
    while True:
        block: dict[int, Sequence[str]] = {}
        for row, found in stream:
            block[row] = found
            if len(block) == BLOCK:
                break
        if not block:
            break
        drop(db, block)
        _write(db, number, block)
        number += 1
    if number > last["next_block"]:
        _set(db, "next_block", number)
        _set(db, "changes", settings(db)["changes"] + 1)
        _merge_small(db)


def drop(db: sqlite3.Connection, numbers: Iterable[int]) -> None:
    """These rows are found no more and count no more; numbers that are not there change nothing."""
    gone = np.unique(np.fromiter(numbers, dtype=np.int64))
    if not len(gone):
        return
    found: list[tuple[int, int]] = []
    blocks = db.execute("SELECT block, numbers FROM lexical_blocks WHERE last >= ? AND first <= ?", (int(gone[0]), int(gone[-1])))
    for block, blob in blocks.fetchall():
        places = np.flatnonzero(np.isin(unpack(db, blob, np.int64, f"block {block}"), gone))
        found += [(block, place) for place in places.tolist()]
    if found:
        db.executemany("INSERT OR IGNORE INTO lexical_dropped VALUES (?, ?)", found)
        _set(db, "changes", settings(db)["changes"] + 1)


def search(db: sqlite3.Connection, query: str, k: int, *, allowed: Numbers | None = None, ids: Ids | None = None) -> list[tuple[int, float]]:
    """The k best rows for a query as (number, score), best first. To ask more than once keep a `Lexical(db)`, which remembers what it read."""
    return Lexical(db).search(query, k, allowed=allowed, ids=ids)


def compact(db: sqlite3.Connection) -> None:
    """All blocks packed into as few as there can be, without the rows that are gone; inside the caller's transaction."""
    sizes = _living(db)
    if not any(live < rows for _, rows, live in sizes) and sum(rows < BLOCK for _, rows, _ in sizes) < 2:
        return
    group: list[int] = []
    size = 0
    for block, _, live in [*sizes, (-1, 0, BLOCK + 1)]:
        if group and size + live > BLOCK:
            _merge(db, group)
            group, size = [], 0
        group.append(block)
        size += live


def faults(db: sqlite3.Connection) -> list[str]:
    """What is not as it was written; empty when all is well. Reads everything."""
    found: list[str] = []
    try:
        reader = Lexical(db)
        reader.refresh()
        sizes = {block.number: len(block.numbers) for block in reader.blocks}
        for block, term, blob in db.execute("SELECT block, term, rows FROM lexical_postings"):
            if block not in sizes:
                found.append(f"lexical index: postings of a block {block} that is not there")
                break
            places, _ = reader.decode(block, term, blob)
            if len(places) and int(places.max()) >= sizes[block]:
                found.append(f"lexical index: {term!r} stands in a row that block {block} does not have")
    except CollectionError as err:
        found.append(str(err))
    return found


def numbers(db: sqlite3.Connection) -> Numbers:
    """The numbers of all rows that can be found or that were put with an empty text, ascending."""
    reader = Lexical(db)
    reader.refresh()
    parts = [block.numbers[block.living] for block in reader.blocks]
    return np.sort(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.int64)


# inside


def _set(db: sqlite3.Connection, name: str, value: int) -> None:
    db.execute("UPDATE lexical_settings SET value = ? WHERE name = ?", (value, name))


def _write(db: sqlite3.Connection, number: int, block: Mapping[int, Sequence[str]]) -> None:
    postings: dict[str, tuple[array[int], bytearray]] = {}
    lengths = array("I")
    for place, found in enumerate(block.values()):
        lengths.append(len(found))
        for term, count in Counter(found).items():
            entry = postings.get(term)
            if entry is None:
                entry = postings[term] = array("H"), bytearray()
            entry[0].append(place)
            entry[1].append(count if count < 256 else 255)
    _put_block(db, number, np.fromiter(block, np.int64, len(block)), np.asarray(lengths, dtype=np.uint32))
    rows = ((term, np.asarray(places, dtype="<u2").tobytes() + bytes(counts)) for term, (places, counts) in sorted(postings.items()))
    _put_postings(db, number, rows)


def _put_block(db: sqlite3.Connection, number: int, numbers: Numbers, lengths: npt.NDArray[np.uint32]) -> None:
    first, last = int(numbers.min()), int(numbers.max())
    row = (number, len(numbers), first, last, pack(numbers.astype("<i8").tobytes()), pack(lengths.astype("<u4").tobytes()))
    db.execute("INSERT INTO lexical_blocks VALUES (?, ?, ?, ?, ?, ?)", row)


def _put_postings(db: sqlite3.Connection, number: int, rows: Iterable[tuple[str, bytes]]) -> None:
    # The term is part of the checksum, so a posting cannot pass for another word's.
    db.executemany("INSERT INTO lexical_postings VALUES (?, ?, ?)", ((number, term, pack(body, term)) for term, body in rows))


def _living(db: sqlite3.Connection) -> list[tuple[int, int, int]]:
    """(block, rows, rows that live) of every block."""
    return db.execute(
        "SELECT b.block, b.rows, b.rows - (SELECT count(*) FROM lexical_dropped d WHERE d.block = b.block) FROM lexical_blocks b ORDER BY b.block"
    ).fetchall()


def _merge_small(db: sqlite3.Connection) -> None:
    """Eight blocks of a size class (1-7 rows, 8-63, ...) become one of the next: a row is written again once a class, not once a commit."""
    while True:
        classes: dict[int, list[int]] = {}
        for block, rows in db.execute("SELECT block, rows FROM lexical_blocks WHERE rows < ? ORDER BY block", (_MERGED,)).fetchall():
            classes.setdefault((rows.bit_length() - 1) // 3, []).append(block)
        full = next((blocks for _, blocks in sorted(classes.items()) if len(blocks) >= _FAN), None)
        if full is None:
            return
        sizes = dict(db.execute(f"SELECT block, rows FROM lexical_blocks WHERE block IN ({','.join('?' * len(full))})", full).fetchall())
        group: list[int] = []
        while full and (len(group) < 2 or sum(sizes[block] for block in [*group, full[0]]) <= _MERGED * 2):
            group.append(full.pop(0))
        _merge(db, group)


def _merge(db: sqlite3.Connection, blocks: Sequence[int]) -> None:
    """One new block with the living rows of these (65,536 at most), which go."""
    new = settings(db)["next_block"]
    marks = ",".join("?" * len(blocks))
    places: dict[int, npt.NDArray[np.int64]] = {}  # old place -> new place, -1 where the row is gone
    kept_numbers, kept_lengths, size = [], [], 0
    rows = db.execute(f"SELECT block, numbers, lengths FROM lexical_blocks WHERE block IN ({marks}) ORDER BY block", blocks).fetchall()
    for block, blob, lengths in rows:
        old = unpack(db, blob, np.int64, f"block {block}")
        living = np.ones(len(old), dtype=bool)
        living[[place for (place,) in db.execute("SELECT place FROM lexical_dropped WHERE block = ?", (block,))]] = False
        places[block] = np.where(living, size + np.cumsum(living) - 1, -1)
        kept_numbers.append(old[living])
        kept_lengths.append(unpack(db, lengths, np.uint32, f"block {block}")[living])
        size += int(living.sum())
    if size:
        _put_block(db, new, np.concatenate(kept_numbers), np.concatenate(kept_lengths))
        postings = db.execute(f"SELECT term, block, rows FROM lexical_postings WHERE block IN ({marks}) ORDER BY term, block", blocks)
        _put_postings(db, new, _merged(db, postings, places))
    for table in ("lexical_blocks", "lexical_postings", "lexical_dropped"):
        db.execute(f"DELETE FROM {table} WHERE block IN ({marks})", blocks)
    _set(db, "next_block", new + 1)
    _set(db, "changes", settings(db)["changes"] + 1)


def _merged(db: sqlite3.Connection, postings: Iterable[Any], places: Mapping[int, Numbers]) -> Iterator[tuple[str, bytes]]:
    for term, group in groupby(postings, key=lambda row: row[0]):
        where, counts = [], []
        for _, block, blob in group:
            body = _checked(db, blob, term)
            rows = len(body) // 3
            new = places[block][np.frombuffer(body, dtype="<u2", count=rows)]
            where.append(new[new >= 0])
            counts.append(np.frombuffer(body, dtype=np.uint8, offset=2 * rows)[new >= 0])
        if any(map(len, where)):
            yield term, np.concatenate(where).astype("<u2").tobytes() + np.concatenate(counts).tobytes()


def _checked(db: sqlite3.Connection, blob: bytes, term: str) -> bytes:
    body = blob[4:]
    if pack(body, term)[:4] != blob[:4] or len(body) % 3:
        raise damaged(db, f"the postings of {term!r}")
    return body


__all__ = [
    "CUTS",
    "K1",
    "STEMS",
    "B",
    "Lexical",
    "compact",
    "create",
    "drop",
    "exists",
    "faults",
    "numbers",
    "put",
    "put_terms",
    "rebuild",
    "search",
    "terms",
]  # fmt: skip
