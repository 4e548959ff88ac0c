"""Lexical search: building, size and queries a second, beside SQLite's FTS5 and bm25s on the same terms.

    python benchmarks/lexical.py --data ../shared/data/retrieval/scifact --rows 100000

Passages of 100 words: windows of the abstracts, then halves of two windows joined. Queries: the 300 claims, ten hits each.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import machine, versions

from twinvec.data.beir import read_retrieval
from twinvec.index import lexical
from twinvec.index.lexical import K1, B, Lexical, terms


def passages(folder: Path, count: int) -> tuple[list[str], list[str]]:
    labelled = read_retrieval(folder)
    found = []
    for document in labelled.corpus:
        words = document.text.split()
        found += [words[at : at + 100] for at in range(0, len(words), 60)]
    rng, whole = random.Random(0), len(found)
    while len(found) < count:
        found.append(found[rng.randrange(whole)][:50] + found[rng.randrange(whole)][50:])
    print(f"{min(whole, count)} windows and {max(count - whole, 0)} joined halves; {sum(map(len, found[:count])) / count:.0f} words each")
    return [" ".join(words) for words in found[:count]], list(labelled.queries.values())


def rate(search: Callable[[str], object], queries: list[str]) -> float:
    start = time.process_time()
    for query in queries:
        search(query)
    return len(queries) / (time.process_time() - start)


def connect(folder: str, name: str) -> sqlite3.Connection:
    db = sqlite3.connect(Path(folder) / name, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    return db


def ours(folder: str, texts: list[str], queries: list[str]) -> None:
    db = connect(folder, "ours.db")
    db.execute("BEGIN")
    lexical.create(db)
    db.execute("COMMIT")
    start = time.process_time()
    for at in range(0, len(texts), 4096):
        db.execute("BEGIN")
        lexical.put(db, enumerate(texts[at : at + 4096], start=at))
        db.execute("COMMIT")
    built = time.process_time() - start
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = (Path(folder) / "ours.db").stat().st_size
    start = time.process_time()
    Lexical(db).search(queries[0], 10)
    first = time.process_time() - start
    reader = Lexical(db)
    cold, warm = rate(lambda query: reader.search(query, 10), queries), rate(lambda query: reader.search(query, 10), queries)
    print(f"twinvec: built in {built:.1f} s ({len(texts) / built:.0f} passages/s, cutting included), {size / 1e6:.0f} MB;")
    print(f"  first query of a new reader {first * 1000:.0f} ms, then {cold:.0f} queries/s, {warm:.0f} when every term was seen")


def fts5(folder: str, texts: list[str], queries: list[str]) -> None:
    db = connect(folder, "fts5.db")
    db.execute("CREATE VIRTUAL TABLE t USING fts5(text, content = '', tokenize = 'ascii')")
    cut = [" ".join(term for term in terms(text) if term.isalnum()) for text in texts]
    start = time.process_time()
    for at in range(0, len(cut), 4096):
        db.execute("BEGIN")
        db.executemany("INSERT INTO t (rowid, text) VALUES (?, ?)", enumerate(cut[at : at + 4096], start=at))
        db.execute("COMMIT")
    built = time.process_time() - start
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def search(query: str) -> object:
        wanted = " OR ".join(f'"{term}"' for term in dict.fromkeys(terms(query)) if term.isalnum())
        return db.execute("SELECT rowid, rank FROM t WHERE t MATCH ? ORDER BY rank LIMIT 10", (wanted,)).fetchall()

    size = (Path(folder) / "fts5.db").stat().st_size
    print(f"FTS5: built in {built:.1f} s (texts cut before), {size / 1e6:.0f} MB; {rate(search, queries[:100]):.1f} queries/s")


def peer(texts: list[str], queries: list[str]) -> None:
    import bm25s

    cut = [terms(text) for text in texts]
    start = time.process_time()
    model = bm25s.BM25(method="lucene", k1=K1, b=B)
    model.index(cut, show_progress=False)
    built = time.process_time() - start

    def search(query: str) -> object:
        scores = model.get_scores([term for term in terms(query) if term in model.vocab_dict])
        return np.argpartition(scores, -10)[-10:]

    print(f"bm25s: built in {built:.1f} s (texts cut before), in memory, cannot change; {rate(search, queries):.0f} queries/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the scifact folder")
    parser.add_argument("--rows", type=int, default=100_000)
    options = parser.parse_args()
    texts, queries = passages(options.data, options.rows)
    print(f"{machine()}, one thread, seconds of CPU time; {versions('twinvec', 'bm25s')}, SQLite {sqlite3.sqlite_version}")
    with tempfile.TemporaryDirectory() as folder:
        ours(folder, texts, queries)
        fts5(folder, texts, queries)
    peer(texts, queries)


if __name__ == "__main__":
    main()
