"""The lexical index: BM25 against a plain reference and bm25s, changes, filters, merging, damage."""

from __future__ import annotations

import math
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from index_fakes import FakeEncoder

from twinvec.errors import CollectionError
from twinvec.index import lexical, lexical_reader
from twinvec.index.collection import Collection
from twinvec.index.lexical import K1, B, Lexical, terms

WORDS = [f"w{i}" for i in range(300)]


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    lexical.create(connection)
    yield connection
    connection.close()


def zipf(rng: random.Random, length: int) -> str:
    return " ".join(WORDS[min(int(rng.paretovariate(0.6)) - 1, 299)] for _ in range(length))


def reference(rows: dict[int, list[str]], query: list[str]) -> dict[int, float]:
    """BM25 of every row that holds a term of the query, term by term from the formula."""
    count, mean = len(rows), sum(map(len, rows.values())) / max(len(rows), 1)
    found: dict[int, float] = {}
    for number, row in rows.items():
        held = Counter(row)
        for term, times in Counter(query).items():
            if held[term]:
                holders = sum(term in other for other in rows.values())
                idf = math.log(1 + (count - holders + 0.5) / (holders + 0.5))
                part = times * idf * held[term] / (held[term] + K1 * (1 - B + B * len(row) / mean))
                found[number] = found.get(number, 0.0) + part
    return found


def ranked(scores: dict[int, float], k: int) -> list[tuple[int, float]]:
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:k]


def close(found: list[tuple[int, float]], wanted: list[tuple[int, float]]) -> None:
    assert [number for number, _ in found] == [number for number, _ in wanted]
    np.testing.assert_allclose([score for _, score in found], [score for _, score in wanted], rtol=1e-12)


def test_the_poem(db: sqlite3.Connection) -> None:
    """Tokenisers that know no Chinese give every line of it 0.0."""
    lexical.put(db, enumerate(["床前明月光", "疑是地上霜", "举头望明月", "低头思故乡"]))
    assert [number for number, score in lexical.search(db, "故乡", 4) if score > 0] == [3]
    assert [number for number, _ in lexical.search(db, "明月", 4)] == [0, 2]


def test_scores_equal_the_formula_and_bm25s(db: sqlite3.Connection) -> None:
    import bm25s

    rng = random.Random(0)
    texts = [zipf(rng, rng.randrange(1, 60)) for _ in range(400)]
    lexical.put(db, enumerate(texts))
    rows = {number: terms(text) for number, text in enumerate(texts)}
    peer = bm25s.BM25(method="lucene", k1=K1, b=B)
    peer.index(list(rows.values()), show_progress=False)
    searcher = Lexical(db)
    for query in ["w0", "w3 w7 w7 w250", "w0 w1 w2 w3 w4 w299 nowhere", zipf(rng, 30)]:
        wanted = reference(rows, terms(query))
        found = searcher.search(query, 400)
        assert dict(found) == pytest.approx(wanted, rel=1e-12)
        assert min(score for _, score in found) > 0
        known = [term for term in terms(query) if term in peer.vocab_dict]
        np.testing.assert_allclose([peer.get_scores(known)[number] for number, _ in found], [score for _, score in found], rtol=2e-5)


def test_a_word_in_every_text_still_scores(db: sqlite3.Connection) -> None:
    """SQLite's bm25() would give one in a million: there a rare and a common word cannot be told from a rare one alone."""
    lexical.put(db, [(1, "the cat"), (2, "the dog"), (3, "the owl")])
    assert all(score > 0.01 for _, score in lexical.search(db, "the", 3))


@pytest.mark.parametrize("block", [7, 64, lexical.BLOCK])
def test_top_k_is_a_prefix_and_does_not_depend_on_blocks_or_company(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexical, "BLOCK", block)
    monkeypatch.setattr(lexical_reader, "_LONG", 3)  # so that small sets too leave rows out of the race
    monkeypatch.setattr(lexical_reader, "_FEW", 3)
    rng = random.Random(1)
    connection = sqlite3.connect(":memory:", isolation_level=None)
    lexical.create(connection)
    texts = [zipf(rng, rng.randrange(1, 12)) for _ in range(300)]
    lexical.put(connection, enumerate(texts))
    rows = {number: terms(text) for number, text in enumerate(texts)}
    searcher = Lexical(connection)
    for query in [zipf(rng, n) for n in (1, 2, 4, 8, 16)]:
        wanted = ranked(reference(rows, terms(query)), 300)
        whole = searcher.search(query, 300)
        assert dict(whole) == pytest.approx(dict(wanted), rel=1e-12)
        assert whole == sorted(whole, key=lambda pair: (-pair[1], pair[0]))
        for k in (1, 2, 5, 17):
            assert searcher.search(query, k) == whole[:k]
            assert lexical.search(connection, query, k) == whole[:k]
        allowed = np.asarray(sorted(rng.sample(range(300), 20)), dtype=np.int64)
        assert searcher.search(query, 5, allowed=allowed) == [pair for pair in whole if pair[0] in set(allowed.tolist())][:5]
    connection.close()


def test_equal_scores_come_by_name(db: sqlite3.Connection) -> None:
    lexical.put(db, [(number, "same words") for number in range(50)] + [(99, "same words words")])
    names = {number: f"{50 - number:03}" for number in range(50)} | {99: "zz"}
    asked: list[int] = []

    def ids(numbers: Any) -> dict[int, str]:
        asked.extend(numbers)
        return names

    found = Lexical(db).search("words", 4, ids=ids)
    assert [number for number, _ in found] == [99, 49, 48, 47]
    assert 99 not in asked
    assert [number for number, _ in Lexical(db).search("words", 4)] == [99, 0, 1, 2]


def test_put_drop_and_merge_equal_a_plain_model(db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was dropped or replaced counts for nothing: not as a hit, not in any statistic."""
    monkeypatch.setattr(lexical, "_MERGED", 128)
    rng = random.Random(2)
    model: dict[int, list[str]] = {}
    searcher = Lexical(db)
    for step in range(200):
        if rng.random() < 0.7 or not model:
            rows = [(rng.randrange(-50, 200), zipf(rng, rng.randrange(0, 9))) for _ in range(rng.randrange(1, 6))]
            lexical.put(db, rows)
            model.update((number, terms(text)) for number, text in rows)
        else:
            gone = rng.sample(sorted(model), min(len(model), 3))
            lexical.drop(db, [*gone, 10_000])
            for number in gone:
                del model[number]
        if step % 50 == 49:
            lexical.compact(db)
            assert db.execute("SELECT count(*) FROM lexical_dropped").fetchone() == (0,)
        if step % 5 == 0:
            assert searcher.search("w0 w1 w5", 500) == lexical.search(db, "w0 w1 w5", 500)
            assert dict(searcher.search("w0 w1 w5", 500)) == pytest.approx(reference(model, ["w0", "w1", "w5"]), rel=1e-12)
    assert lexical.numbers(db).tolist() == sorted(model)
    assert lexical.faults(db) == []
    assert db.execute("SELECT count(*) FROM lexical_blocks").fetchone()[0] < 20
    lexical.drop(db, list(model))
    assert searcher.search("w0 w1", 9) == []
    lexical.compact(db)
    assert [db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in lexical.TABLES[1:]] == [0, 0, 0]


def test_of_one_number_twice_the_last_text_counts(db: sqlite3.Connection) -> None:
    lexical.put(db, [(1, "apple"), (1, "pear")])
    assert (lexical.search(db, "apple", 3), [n for n, _ in lexical.search(db, "pear", 3)]) == ([], [1])
    lexical.put(db, [(1, "plum")])
    assert (lexical.search(db, "pear", 3), [n for n, _ in lexical.search(db, "plum", 3)]) == ([], [1])


def test_a_rolled_back_change_leaves_nothing(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    lexical.create(connection)
    lexical.put(connection, [(1, "apple")])
    searcher = Lexical(connection)
    assert len(searcher.search("apple", 9)) == 1
    connection.execute("BEGIN")
    lexical.put(connection, [(2, "apple pie")])
    lexical.drop(connection, [1])
    connection.execute("ROLLBACK")
    assert [number for number, _ in lexical.search(connection, "apple", 9)] == [1]
    assert [number for number, _ in searcher.search("apple", 9)] == [1]
    connection.close()


@pytest.mark.parametrize(
    "query", ['"', "'", "a OR b", "NEAR(x, 3)", "x*", "-x", "^x", "{a b}:c", "'; DROP TABLE lexical_blocks; --", "%_", "\x00", "???"]
)
def test_any_query_is_only_text(db: sqlite3.Connection, query: str) -> None:
    lexical.put(db, [(1, f"before {query} after"), (2, "nothing of it")])
    found = lexical.search(db, query, 5)
    assert [number for number, _ in found] == ([1] if terms(query) else [])
    assert lexical.faults(db) == []


def test_very_long_queries_are_bounded(db: sqlite3.Connection) -> None:
    lexical.put(db, [(1, "needle"), (2, "hay " * 300), (3, "straw")])
    query = " ".join(f"x{i}" for i in range(20_000)) + " needle" + " hay" * 1000
    assert [number for number, _ in lexical.search(db, query, 3)] == [2, 1]
    lexical.put(db, [(10 + i, f"t{i} common") for i in range(2 * lexical_reader.LONGEST_QUERY)])
    query = " ".join(f"t{i}" for i in range(2 * lexical_reader.LONGEST_QUERY))
    assert len(lexical.search(db, query, 5_000)) == lexical_reader.LONGEST_QUERY


def test_counts_above_255_are_kept_as_255(db: sqlite3.Connection) -> None:
    lexical.put(db, [(1, "x " * 300 + "y"), (2, "y")])
    assert dict(lexical.search(db, "x", 1))[1] == pytest.approx(math.log(2) * 255 / (255 + K1 * (1 - B + B * 301 / 151)), rel=1e-12)


def test_the_memory_of_a_reader_is_bounded(db: sqlite3.Connection) -> None:
    lexical.put(db, [(i, f"w{i} w{i + 1}") for i in range(500)])
    small, large = Lexical(db, cache=1_000), Lexical(db)
    for i in range(500):
        assert small.search(f"w{i} w{i + 1}", 3) == large.search(f"w{i} w{i + 1}", 3)
    assert len(small._kept) < 10


def test_another_version_of_the_rules_is_built_anew(db: sqlite3.Connection) -> None:
    assert lexical.exists(db)
    db.execute("UPDATE lexical_settings SET value = 0 WHERE name = 'version'")
    assert not lexical.exists(db)
    lexical.rebuild(db, [(1, "cats")], stem="none")
    assert lexical.exists(db)
    assert (lexical.search(db, "cat", 3), len(lexical.search(db, "cats", 3))) == ([], 1)
    lexical.rebuild(db, [(1, "cats")])  # keeps how it cuts
    assert lexical.search(db, "cat", 3) == []
    searcher = Lexical(db)
    assert len(searcher.search("cats", 3)) == 1
    lexical.rebuild(db, [(2, "cats"), (3, "cats")])
    assert [number for number, _ in searcher.search("cats", 3)] == [2, 3]  # a reader that was there before sees it
    plain = sqlite3.connect(":memory:")
    assert not lexical.exists(plain)
    plain.close()


DAMAGE = {
    "a flipped byte in postings": "UPDATE lexical_postings SET rows = CAST(substr(rows, 1, 4) || x'07' || substr(rows, 6) AS BLOB)",
    "postings cut short": "UPDATE lexical_postings SET rows = substr(rows, 1, length(rows) - 1)",
    "postings of another term": "UPDATE lexical_postings SET rows = (SELECT rows FROM lexical_postings WHERE term = 'cat') WHERE term = 'dog'",
    "postings that are no blob": "UPDATE lexical_postings SET rows = 'text'",
    "numbers of rows": "UPDATE lexical_blocks SET numbers = zeroblob(length(numbers))",
    "lengths of rows": "UPDATE lexical_blocks SET lengths = CAST(lengths || lengths AS BLOB)",
    "a dropped row that was never there": "INSERT INTO lexical_dropped VALUES (0, 999)",
    "settings gone": "DELETE FROM lexical_settings WHERE name = 'changes'",
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_told(db: sqlite3.Connection, name: str) -> None:
    lexical.put(db, [(1, "cat"), (2, "dog bird")])
    db.execute(DAMAGE[name])
    with pytest.raises(CollectionError, match=r"damaged \(lexical index: .*restore it from a copy"):
        lexical.search(db, "dog", 3)
    assert len(lexical.faults(db)) == 1


# as part of a collection


def test_words_and_vectors_change_in_one_commit(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", FakeEncoder()) as faq:
        faq.add([("a", "red apples"), ("b", "green apple"), ("c", "ERR-1024 house")])
        assert [hit.id for hit in faq.lexical("apple", 5)[0]] == ["a", "b"]
        assert [hit.id for hit in faq.lexical(["err-1024", "1024", "nothing"], 5)[0]] == ["c"]
        faq.add([("a", "blue pear")])
        faq.delete("c")
        assert [[hit.id for hit in row] for row in faq.lexical(["apple", "pear", "house"], 5)] == [["b"], ["a"], []]
        with Collection.open(tmp_path / "c") as other:
            assert other.lexical("apple", 5) == faq.lexical("apple", 5)
            faq.add([("d", "apple apple")])
            assert [hit.id for hit in other.lexical("apple", 5)[0]] == ["d", "b"]
        alone = tmp_path / "again"
        with Collection.create(alone, FakeEncoder()) as again:
            again.add([("b", "green apple"), ("a", "blue pear"), ("d", "apple apple")])
            assert again.lexical("apple", 5) == faq.lexical("apple", 5)  # nothing of what is gone is left in the scores
        faq.compact()
        assert again.lexical("apple", 5) == faq.lexical("apple", 5)


def test_verify_reads_the_words_too(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", FakeEncoder()) as faq:
        faq.add([("a", "red apple"), ("b", "green apple")])
        faq.delete("a")
        faq.verify()
    for change, said in (
        (
            "UPDATE lexical_postings SET rows = zeroblob(length(rows)) WHERE term = 'green'",
            "the postings of 'green' in block 0 is not what was written",
        ),
        ("DELETE FROM lexical_dropped", "the lexical index is not of the passages that are there"),
    ):
        copy = tmp_path / f"copy{len(said)}"
        shutil.copytree(tmp_path / "c", copy)
        with sqlite3.connect(copy / "collection.db") as db:
            db.execute(change)
        db.close()
        with Collection.open(copy) as opened, pytest.raises(CollectionError, match=said):
            opened.verify()


def test_filters_and_ties_in_a_collection(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", FakeEncoder()) as faq:
        faq.add([(f"{i:03}", "same text", {"even": i % 2 == 0}) for i in reversed(range(100))])
        assert [hit.id for hit in faq.lexical("text", 3)[0]] == ["000", "001", "002"]
        assert [hit.id for hit in faq.lexical("text", 3, where="even = true")[0]] == ["000", "002", "004"]
        assert [hit.id for hit in faq.lexical("text", 3, where="id = '077'")[0]] == ["077"]
        assert faq.lexical("text", 3, where="even = 'no'")[0] == []


def test_a_long_document_is_found_once_by_its_best_passage(tmp_path: Path) -> None:
    filler = "Some words that are about nothing at all. " * 30
    with Collection.create(tmp_path / "c", FakeEncoder()) as faq:
        faq.add([("long", f"{filler}The zebra zebra stands here. {filler}A zebra again. {filler}"), ("short", "no such animal")], on_long="passages")
        hits = faq.lexical("zebra", 5)[0]
        assert [hit.id for hit in hits] == ["long"]
        assert hits[0].passage is not None
        assert "zebra zebra" in hits[0].passage.text
        assert hits[0].text[hits[0].passage.start : hits[0].passage.stop] == hits[0].passage.text
