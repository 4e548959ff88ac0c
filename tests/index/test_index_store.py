"""The store: update, filters, number types, compaction, merging, another model, older formats."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from index_fakes import FakeEncoder

from twinvec.errors import CollectionError
from twinvec.index import compaction
from twinvec.index.collection import Collection
from twinvec.index.where import matches, parse_where
from twinvec.records import Document

WORDS = ["red", "green", "old", "new", "house", "apple", "sea", "苹果", "没网", "支付"]


def documents(count: int, start: int = 0) -> list[Document]:
    return [
        Document(f"d{i:04d}", f"{WORDS[i % 10]} {WORDS[i * 7 % 9]} number{i}", {"n": i, "lang": "zh" if i % 10 > 6 else "en", "deep": {"x": i % 3}})
        for i in range(start, start + count)
    ]


@pytest.fixture
def encoder() -> FakeEncoder:
    return FakeEncoder()


@pytest.fixture
def made(tmp_path: Path, encoder: FakeEncoder) -> Iterator[Collection]:
    with Collection.create(tmp_path / "c", encoder) as collection:
        collection.add(documents(60), batch=20)
        yield collection


def pairs(collection: Collection, vectors: Any, k: int = 10, **options: Any) -> list[list[tuple[str, float]]]:
    return [[(hit.id, hit.score) for hit in row] for row in collection.search(vectors, k, **options)]


# update, filters


def test_update_of_metadata_encodes_nothing_and_of_text_everything(made: Collection, encoder: FakeEncoder) -> None:
    encoder.calls.clear()
    made.update("d0003", metadata={"n": -1})
    assert encoder.calls == []
    assert made.get("d0003") == Document("d0003", documents(4)[3].text, {"n": -1})
    before = made.info()["tombstones"]
    made.update("d0003", text="wholly other words")
    assert encoder.calls == [(["wholly other words"], None)]
    assert made.get("d0003") == Document("d0003", "wholly other words", {"n": -1})
    assert made.info()["tombstones"] == before + 1
    assert [hit.id for hit in made.search(encoder.encode(["wholly other words"]), 1)[0]] == ["d0003"]
    assert [hit.id for hit in made.lexical("wholly", 5)[0]] == ["d0003"]
    made.update("d0003", text="", metadata={})
    assert made.lexical("wholly", 5) == [[]]
    made.verify()


FILTERS = [
    "n = 17", "lang = 'zh'", "n >= 20 and n < 40", "deep.x = 1 or id = 'd0000'", "lang in ('zh', 'fr') and not n > 30", "missing is null",
    "id like 'd000%'", "n = 12345",
]  # fmt: skip


@pytest.mark.parametrize("where", FILTERS)
def test_a_filtered_search_is_the_exact_search_of_the_subset(made: Collection, encoder: FakeEncoder, tmp_path: Path, where: str) -> None:
    node = parse_where(where)
    kept = [document for document in documents(60) if matches(node, document.id, document.metadata)]
    assert made.ids(where) == [document.id for document in kept]
    assert made.count(where) == len(kept)
    queries = encoder.encode(["red house", "苹果 sea"])
    with Collection.create(tmp_path / "subset", encoder) as subset:
        subset.add(kept)
        assert pairs(made, queries, 7, where=where) == pairs(subset, queries, 7)
    lexical = [hit.id for hit in made.lexical("red", 60, where=where)[0]]
    assert lexical == [hit.id for hit in made.lexical("red", 60)[0] if hit.id in {document.id for document in kept}]


def test_a_filter_follows_the_commits(made: Collection, encoder: FakeEncoder) -> None:
    query = encoder.encode(["red house"])
    assert len(made.search(query, 99, where="n >= 58")[0]) == 2
    made.update("d0001", metadata={"n": 99})
    assert sorted(hit.id for hit in made.search(query, 99, where="n >= 58")[0]) == ["d0001", "d0058", "d0059"]
    assert made.delete(where="n >= 59") == 2
    assert [hit.id for hit in made.search(query, 99, where="n >= 58")[0]] == ["d0058"]


def test_only_the_rows_that_a_filter_keeps_are_read(made: Collection, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    from twinvec.index.exact import Blocks

    made.search(encoder.encode(["red"]), 1)
    read: list[int] = []
    vectors = Blocks.vectors

    def counted(self: Blocks, rows: Any) -> Any:
        read.append(len(rows))
        return vectors(self, rows)

    monkeypatch.setattr(Blocks, "vectors", counted)
    assert [hit.id for hit in made.search(encoder.encode(["red"]), 10, where="n = 17")[0]] == ["d0017"]
    assert sum(read) <= 4  # the one row, once or twice; never the sixty


def test_an_indexed_field_is_used_by_filters(made: Collection) -> None:
    made.index_field("n")
    made.index_field("n")
    made.index_field("deep.x")
    assert made.info()["fields"] == ["n", "deep.x"]
    from twinvec.index.where import to_sqlite

    condition, values = to_sqlite(parse_where("n = 17"))
    with made._reader.snapshot() as (store, _):
        plan = " ".join(row[3] for row in store.db.execute(f"EXPLAIN QUERY PLAN SELECT d.number FROM documents d WHERE {condition}", values))
    assert "USING INDEX documents_field_" in plan
    assert made.ids("n = 17") == ["d0017"]


# number types


@pytest.mark.parametrize(("store", "tolerance", "share"), [("float16", 1e-3, 0.52), ("int8", 1e-2, 0.28), ("binary", 1e-3, 0.55)])
def test_number_types_keep_their_scores(tmp_path: Path, store: str, tolerance: float, share: float) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((2500, 64)).astype(np.float32)
    names = [f"{i:04d}" for i in range(len(vectors))]
    with Collection.create(tmp_path / "full", "print") as full, Collection.create(tmp_path / "c", "print", store=store) as collection:
        for at in range(0, 2500, 1250):
            for one in (full, collection):
                one.add([(name, "x") for name in names[at : at + 1250]], vectors[at : at + 1250])
        exact = dict(pairs(full, vectors[5], 2500)[0])
        found = pairs(collection, vectors[5], 2500)[0]
        assert found[0][0] == "0005"
        assert max(abs(score - exact[name]) for name, score in found) < tolerance
        assert pairs(collection, vectors[5], 10)[0] == found[:10]
        np.testing.assert_allclose(collection.vector("0007"), full.vector("0007"), atol=tolerance)
        assert collection.info()["vector_bytes"] < share * full.info()["vector_bytes"] + 2000
        collection.delete(names[100:2000])
        before = pairs(collection, vectors[:3], 20)
        collection.compact()
        assert pairs(collection, vectors[:3], 20) == before
        collection.verify()
    with Collection.open(tmp_path / "c", verify=True) as collection:
        assert pairs(collection, vectors[:3], 20) == before


def test_int8_waits_for_rows_to_learn_its_ranges_from(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with Collection.create(tmp_path / "c", "print", store="int8", dimensions=8) as collection:
        for i in range(3):
            collection.add([(f"{i}-{j}", "x") for j in range(400)], rng.standard_normal((400, 8)))
        assert {segment.dtype for segment in collection._reader.state.segments} <= {"float16"} if collection._reader.state else True
        before = pairs(collection, np.ones(8), 1200)[0]
        collection.compact()
        with collection._reader.snapshot() as (_, state):
            assert [segment.dtype for segment in state.segments] == ["int8"]
        after = dict(pairs(collection, np.ones(8), 1200)[0])
        assert max(abs(after[name] - score) for name, score in before) < 2e-2
        collection.add([("new", "x")], np.full(8, 100.0))  # far outside of any range: clipped, not wrapped
        assert pairs(collection, np.ones(8), 1)[0][0][0] == "new"


# compaction


def test_compaction_changes_nothing_but_the_files(made: Collection, encoder: FakeEncoder) -> None:
    made.add([(f"d{i:04d}", f"other words {i}") for i in range(0, 40)])
    made.delete([f"d{i:04d}" for i in range(10, 20)])
    query = encoder.encode(["red house", "other words 3"])
    before, words = pairs(made, query, 60), made.lexical("words", 60)
    info = made.info()
    assert (info["tombstones"], info["dead_share"] > 0.3) == (50, True)
    assert any("dead rows" in line and "--compact" in line for line in info["advice"])
    found = made.compact()
    assert (found["dropped"], found["segments"]) == (50, 1)
    assert pairs(made, query, 60) == before
    assert made.lexical("words", 60) == words
    info = made.info()
    assert (info["tombstones"], info["segments"], info["advice"]) == (0, 1, [])
    assert made.verify()["orphans"] == []
    numbers = [number for (number,) in sqlite3.connect(made.path / "collection.db").execute("SELECT number FROM passages")]
    made.add([("later", "words that came later")])
    assert made._reader.path  # numbers are never used twice
    newest = max(number for (number,) in sqlite3.connect(made.path / "collection.db").execute("SELECT number FROM passages"))
    assert newest > max(numbers)
    assert made.compact()["dropped"] == 0


def test_compacting_everything_away(made: Collection, encoder: FakeEncoder) -> None:
    made.delete(made.ids())
    assert made.compact()["segments"] == 0
    assert made.search(encoder.encode(["red"]), 5) == [[]]
    assert [path.name for path in (made.path / "segments").iterdir()] == []
    made.add(documents(3))
    assert len(made.search(encoder.encode(["red"]), 5)[0]) == 3
    made.verify()


def test_readers_keep_what_they_hold_and_find_the_new(made: Collection, encoder: FakeEncoder) -> None:
    query = encoder.encode(["red house"])
    with Collection.open(made.path) as reader:
        before = pairs(reader, query, 60)
        made.delete([f"d{i:04d}" for i in range(30)])
        with reader._reader.snapshot() as (store, state):  # a reader in the middle of its work
            assert len(state.blocks.dead) == 30
            made.compact()
            assert store.count("documents") == 30
            assert state.blocks.vectors(np.arange(60)).shape == (60, 32)
        assert pairs(reader, query, 60) == [[pair for pair in before[0] if pair[0] >= "d0030"]]


def test_a_snapshot_that_lost_the_race_with_a_compaction_begins_again(
    made: Collection, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    from twinvec.index import reading

    made.delete(["d0001"])
    mapped, once = reading.files.mapped, [True]

    def late(folder: Path, segment: Any) -> Any:
        if once and threading.current_thread() is threading.main_thread():
            once.clear()
            other = Collection.open(made.path, encoder)
            worker = threading.Thread(target=other.compact)
            worker.start()
            worker.join()
        return mapped(folder, segment)

    with Collection.open(made.path, verify=False) as reader:
        reader.close()
        monkeypatch.setattr(reading.files, "mapped", late)
        assert len(reader.search(encoder.encode(["red"]), 99)[0]) == 59


def test_small_segments_are_joined_as_they_come(tmp_path: Path, encoder: FakeEncoder) -> None:
    with Collection.create(tmp_path / "c", encoder) as collection:
        vectors = encoder.encode([document.text for document in documents(110)])
        for i, document in enumerate(documents(110)):
            collection.add([document], vectors[i])
            if i % 50 == 20:
                collection.delete([f"d{i - 3:04d}"])
        assert collection.info()["segments"] < compaction.FAN * 2
        assert collection.info()["tombstones"] < 4  # joining drops dead rows, too
        assert [row[0].id for row in collection.search(vectors[::10], 1)] == [f"d{i:04d}" for i in range(0, 110, 10)]
        collection.verify()


# another model


def test_another_model_takes_over_in_one_commit(made: Collection, encoder: FakeEncoder) -> None:
    other = FakeEncoder("other", 16, prompts={"query": "q: ", "passage": "p: "})
    made.delete("d0000")
    with Collection.open(made.path, encoder) as old, Collection.open(made.path) as any_model:
        assert len(old.search(encoder.encode(["red"]), 99)[0]) == 59
        found = made.reindex(other, batch=25)
        assert (found["passages"], found["encoded"], found["resumed"]) == (59, 59, 0)
        assert made.settings.fingerprint == other.fingerprint
        assert (made.settings.dimensions, made.settings.document_prompt, made.settings.query_prompt) == (16, "passage", "query")
        assert len(made.search(other.encode(["red"]), 99)[0]) == 59
        with pytest.raises(CollectionError, match="moved to the model other since it was opened"):
            old.search(encoder.encode(["red"]), 1)
        with pytest.raises(CollectionError, match=r"--reindex --model"):
            any_model.search(other.encode(["red"]), 1, fingerprint=encoder.fingerprint)
        with pytest.raises(CollectionError, match="wanted 16 dimensions, got 32"):
            any_model.search(encoder.encode(["red"]), 1)
    made.add([("new", "red house")])
    assert made.search(other.encode(["red house"], "passage"), 1)[0][0].id == "new"
    assert made.verify()["orphans"] == []
    assert made.reindex(other)["encoded"] == 0


def test_a_move_that_was_stopped_goes_on(made: Collection, encoder: FakeEncoder) -> None:
    other = FakeEncoder("other", 16)
    encode = other.encode

    def failing(texts: Any, prompt: str | None = None) -> np.ndarray:
        if len(other.calls) > 2:
            raise KeyboardInterrupt
        return encode(texts, prompt)

    other.encode = failing  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        made.reindex(other, batch=10)
    assert made.settings.fingerprint == encoder.fingerprint  # the old model still works
    assert len(made.search(encoder.encode(["red"]), 99)[0]) == 60
    assert any("unfinished (20 vectors are done)" in line and "--reindex --model other" in line for line in made.info()["advice"])
    made.add([("late", "came in between"), ("d0002", "changed in between")])
    made.delete(["d0001", "d0050"])
    made.verify()
    other.encode = encode  # type: ignore[method-assign]
    other.calls.clear()
    found = made.reindex(other, batch=10)
    assert found["resumed"] == 20
    assert sum(len(texts) for texts, _ in other.calls) == found["encoded"] == 60 - 2 + 1 - 18
    assert sorted(hit.id for hit in made.search(other.encode(["red"]), 99)[0]) == made.ids()
    for name in ("late", "d0002", "d0007"):
        text = made.get(name).text  # type: ignore[union-attr]
        assert (name, 1.0) in [(hit.id, round(hit.score, 6)) for hit in made.search(other.encode([text]), 3)[0]]
    assert made.verify()["orphans"] == []
    assert made.info()["reindexing"] is None


def test_a_move_to_a_third_model_begins_anew(made: Collection) -> None:
    other = FakeEncoder("other", 16)
    encode = other.encode
    other.encode = lambda texts, prompt=None: (_ for _ in ()).throw(KeyboardInterrupt) if len(other.calls) > 1 else encode(texts, prompt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        made.reindex(other, batch=10)
    third = FakeEncoder("third", 8)
    found = made.reindex(third)
    assert (found["resumed"], found["encoded"]) == (0, 60)
    assert made.verify()["orphans"] == []
    assert len(made.search(third.encode(["red"]), 99)[0]) == 60


# approximate indexes


def test_an_index_is_made_named_and_made_again_by_compaction(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((1500, 16)).astype(np.float32)
    names = [f"{i:04d}" for i in range(1500)]
    with Collection.create(tmp_path / "c", "print") as collection:
        collection.add([(name, "x", {"n": i}) for i, (name) in enumerate(names)], vectors)
        found = collection.optimize("ivf", 0.9)
        assert (found["kind"], found["rows"]) == ("ivf", 1500)
        info = collection.info()
        assert (info["search"], info["kind"], info["unindexed"], info["indexes"][0]["recall"]) == ("ivf", "ivf", 0, 0.9)
        assert [row[0].id for row in collection.search(vectors[:40], 1, recall=0.99)] == names[:40]
        collection.add([("new", "x")], vectors[7] * 3)
        assert [hit.id for hit in collection.search(vectors[7], 2)[0]] == ["0007", "new"]
        collection.delete(names[100:1100])
        assert [hit.id for hit in collection.search(vectors[500], 2000)[0] if "0100" <= hit.id < "1100"] == []
        assert len(collection.search(vectors[500], 500)[0]) == 500  # never fewer than k
        assert [hit.id for hit in collection.search(vectors[1200], 5, where="n = 1200 or n = 3")[0]] == ["1200", "0003"]
        collection.compact()
        info = collection.info()
        assert (info["indexes"][0]["rows"], info["unindexed"], info["tombstones"]) == (501, 0, 0) if info["indexes"] else info["passages"] == 501
        assert [hit.id for hit in collection.search(vectors[1200], 1)[0]] == ["1200"]
        assert collection.verify()["orphans"] == []
        collection.optimize("exact")
        assert (collection.info()["indexes"], collection.info()["search"]) == ([], "exact")
        assert sorted(path.suffix for path in (tmp_path / "c" / "segments").iterdir()) == [".npy", ".npy"]


def test_a_damaged_index_is_named_and_its_rows_are_searched_exactly(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((1200, 16)).astype(np.float32)
    with Collection.create(tmp_path / "c", "print") as collection:
        collection.add([(f"{i:04d}", "x") for i in range(1200)], vectors)
        collection.optimize("ivf")
    path = next((tmp_path / "c" / "segments").glob("*.index"))
    content = path.read_bytes()
    path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    with pytest.warns(UserWarning, match=r"\.index: damaged, .*--optimize\. Until then its rows are searched exactly"):
        collection = Collection.open(tmp_path / "c")
    with collection:
        assert collection.search(vectors[3], 1)[0][0].id == "0003"
        with pytest.raises(CollectionError, match=r"1 faults: .*\.index: damaged, .*make it again with: twinvec index"):
            collection.verify()
        collection.optimize("ivf")
        collection.verify()
        assert collection.info()["indexes"][0]["rows"] == 1200


# older formats

FORMAT_1 = """
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
PRAGMA application_id = 1953984118;
PRAGMA user_version = 1;
PRAGMA journal_mode = WAL;
"""


def as_format_1(path: Path) -> None:
    """What the first release wrote: the same rows in its tables."""
    file = path / "collection.db"
    old = path / "old.db"
    with sqlite3.connect(old) as db:
        db.executescript(FORMAT_1)
        db.execute("ATTACH ? AS new", (str(file),))
        for table, columns in (
            ("documents", "number, id, text, metadata, seal"), ("passages", "number, document, part, seal"), ("tombstones", "number"),
            ("segments", "*"), ("settings", "*"),
        ):  # fmt: skip
            db.execute(f"INSERT INTO main.{table} SELECT {columns} FROM new.{table}")
        db.execute("INSERT INTO main.counters SELECT * FROM new.counters WHERE name NOT IN ('layout', 'parts')")
        db.commit()
        db.execute("DETACH new")
    db.close()
    assert f"{0x74776E76}" in FORMAT_1
    for more in path.glob("collection.db*"):
        more.unlink()
    old.rename(file)


def test_a_collection_of_the_first_release_is_read_and_upgraded_by_the_first_write(made: Collection, encoder: FakeEncoder) -> None:
    made.delete("d0005")
    query = encoder.encode(["red house"])
    before, words, path = pairs(made, query, 20), made.lexical("red", 20), made.path
    made.close()
    as_format_1(path)
    with Collection.open(path, encoder, verify=True) as old:
        assert old.info()["format"] == 1
        assert pairs(old, query, 20) == before
        assert pairs(old, query, 5, where="n = 7")[0][0][0] == "d0007"
        with pytest.raises(CollectionError, match=r"made by an older twinvec, .* --compact"):
            old.lexical("red")
        with Collection.open(path, encoder) as reader:
            assert len(reader) == 59
            old.update("d0007", metadata={"n": 1})
            assert reader.info()["format"] == 2
            assert len(reader.lexical("red", 99)[0]) > 5
        assert old.lexical("red", 20)[0][0].score == words[0][0].score
        assert pairs(old, query, 20) == before
        old.verify()


def test_settings_of_the_caller_and_json(made: Collection) -> None:
    json.dumps(made.info(), allow_nan=False)
    made.put_setting("hybrid", {"a": 1})
    assert made.setting("hybrid") == {"a": 1}
    assert made.setting("nothing") is None
