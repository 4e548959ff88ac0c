"""What only PostgreSQL has: transactions, its two indexes, half precision, one writer at a time."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import psycopg
import pytest
from index_fakes import FakeEncoder
from remote_places import Place

from twinvec.errors import CollectionError, UsageError
from twinvec.index.documents import DocumentError
from twinvec.index.remote import postgres_sql

DOCUMENTS = [("a", "red apple", {"n": 1}), ("b", "green apple", {"n": 2}), ("c", "old red house", {"n": 3}), ("d", "红色苹果", {"n": 4})]


def ids_of(hits: list[Any]) -> list[str]:
    return [hit.id for hit in hits]


def numbered(place: Place, rows: np.ndarray, **options: Any) -> Any:
    collection = place.make("print", dimensions=rows.shape[1], **options)
    collection.add([(f"{i:05}", f"t{i}", {"n": i, "bucket": i % 50}) for i in range(len(rows))], rows)
    return collection


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_an_index_finds_what_it_promises_and_never_fewer_than_k(postgres_place: Place, kind: str) -> None:
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((40, 24))[rng.integers(40, size=2000)] + 0.7 * rng.standard_normal((2000, 24))).astype(np.float32)
    collection = numbered(postgres_place, rows)
    with pytest.raises(UsageError, match=rf"no such index; build it with optimize\(kind='{kind}'\)"):
        collection.search(rows[:1], 3, kind=kind)
    detail = collection.optimize(kind, recall=0.95)
    assert detail["kind"] == kind
    assert max(row["recall"] for row in detail["measured"]) >= 0.95
    assert collection.info()["search"] == kind
    queries = rows[:20] + 0.1 * rng.standard_normal((20, 24)).astype(np.float32)
    exact, found = collection.search(queries, 10, kind="exact"), collection.search(queries, 10, kind=kind, recall=0.99)
    recall = np.mean([len({*ids_of(a)} & {*ids_of(b)}) / 10 for a, b in zip(exact, found, strict=True)])
    assert recall >= 0.9
    scores = {hit.id: hit.score for hit in exact[0]}
    assert all(hit.score == pytest.approx(scores[hit.id], abs=1e-12) for hit in found[0] if hit.id in scores)
    for where, matching in (("n = 1234", 1), ("bucket = 7", 40), ("n < 25", 25), ("not bucket = 7", 1960)):
        for k in (1, 10, 30):
            assert len(collection.search(rows[5], k, where=where)[0]) == min(k, matching), (where, k)
    assert ids_of(collection.search(rows[5], 30, where="n < 25")[0]) == ids_of(collection.search(rows[5], 30, where="n < 25", kind="exact")[0])
    # A row is found by the index the moment it is there, and no more when it is gone.
    collection.add([("zz", "new")], np.eye(1, 24) * 9)
    assert collection.search(np.eye(1, 24), 1)[0][0].id == "zz"
    collection.delete("zz")
    assert collection.search(np.eye(1, 24), 1)[0][0].id != "zz"
    assert collection.optimize("exact") == {"kind": "exact"}
    assert collection.info()["search"] == "exact"


def test_halfvec_and_many_dimensions(postgres_place: Place) -> None:
    rows = np.random.default_rng(1).standard_normal((20, 2100)).astype(np.float32)
    collection = numbered(postgres_place, rows)
    detail = collection.optimize("hnsw")
    assert (detail["column"], detail["type"]) == ("vector::halfvec(2100)", "halfvec(2100)")
    assert ids_of(collection.search(rows[7], 1)[0]) == ["00007"]
    unit = rows[7].astype(np.float64)
    np.testing.assert_array_equal(collection.vector("00007"), (unit / np.sqrt((unit * unit).sum())).astype(np.float32))  # float32 is what is stored


def test_stored_as_halfvec(postgres_place: Place) -> None:
    rows = np.random.default_rng(2).standard_normal((60, 32)).astype(np.float32)
    collection = numbered(postgres_place, rows, halfvec=True)
    unit = rows[3].astype(np.float64)
    np.testing.assert_array_equal(collection.vector("00003"), (unit / np.sqrt((unit * unit).sum())).astype(np.float32).astype(np.float16))
    assert collection.optimize("hnsw")["type"] == "halfvec(32)"
    assert ids_of(collection.search(rows[3], 1)[0]) == ["00003"]
    postgres_place.open().drop()
    with pytest.raises(CollectionError, match="16001 dimensions: pgvector stores up to 16,000"):
        postgres_place.make("print", dimensions=16_001)


def test_words_score_as_in_the_local_index(postgres_place: Place, local_place: Place, encoder: FakeEncoder) -> None:
    rng = np.random.default_rng(3)
    vocabulary = ["apple", "house", "running", "苹果", "红色的", "err-1024", "v2.3", "blue", "café", "the"]
    documents = [(f"{i:03}", " ".join(rng.choice(vocabulary, size=rng.integers(1, 12)))) for i in range(200)]
    here, there = local_place.make(encoder), postgres_place.make(encoder)
    for collection in (here, there):
        collection.add(documents)
        collection.add([("007", "other words now")])
        collection.delete(["011", "012"])
    for query in ("apple", "the running house", "红色苹果", "ERR-1024 café café", "nothing"):
        mine, theirs = here.lexical(query, 15)[0], there.lexical(query, 15)[0]
        assert ids_of(theirs) == ids_of(mine), query
        np.testing.assert_allclose([hit.score for hit in theirs], [hit.score for hit in mine], rtol=1e-9)


def test_a_batch_is_all_or_nothing(postgres_place: Place, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = postgres_place.make(encoder)
    collection.add(DOCUMENTS)
    before = collection.info()
    monkeypatch.setattr(postgres_sql, "to_wire", lambda vector, half: b"\x00\x01nonsense")
    with pytest.raises(CollectionError, match="the server refused"):
        collection.add([("a", "changed"), ("x", "new")])
    monkeypatch.undo()
    assert collection.info() == before
    assert collection.get("a").text == "red apple"
    assert collection.lexical("changed", 3) == [[]]
    assert collection.verify()["documents"] == 4


def test_a_lost_connection_is_opened_again(postgres_place: Place, postgres_url: str, encoder: FakeEncoder) -> None:
    collection = postgres_place.make(encoder)
    collection.add(DOCUMENTS)
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'twinvec'")
    with pytest.raises(CollectionError, match="the connection was lost"):
        collection.ids()
    assert collection.ids() == ["a", "b", "c", "d"]


def test_two_writers_take_turns(postgres_place: Place, encoder: FakeEncoder) -> None:
    first = postgres_place.make(encoder)
    first.wait = 0.2
    second = postgres_place.open(encoder)
    second.wait = 0.2
    with first._writing():
        with pytest.raises(CollectionError, match=r"another writer has held it for 0\.2 seconds"):
            second.add(DOCUMENTS)
    second.wait = first.wait = 30
    failures: list[BaseException] = []

    def work(collection: Any, lead: str) -> None:
        try:
            for i in range(15):
                collection.add([(f"{lead}{i}", f"text {i}"), ("shared", f"{lead} {i}")])
        except BaseException as err:
            failures.append(err)

    threads = [threading.Thread(target=work, args=(collection, lead)) for collection, lead in ((first, "x"), (second, "y"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert first.count() == 31
    assert first.verify() == second.verify() == {"documents": 31, "vectors": 31, "words": first.verify()["words"]}


def test_readers_see_whole_commits(postgres_place: Place) -> None:
    """Each commit gives both documents the same vector; a search that saw half of one would find two scores."""
    collection = postgres_place.make("print", dimensions=4)
    reader = postgres_place.open()
    collection.add([("a", "x"), ("b", "x")], np.ones((2, 4)))
    stop, wrong = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            hits = reader.search(np.eye(1, 4), 2)[0]
            if hits[0].score != hits[1].score or ids_of(hits) != ["a", "b"]:
                wrong.append(hits)

    thread = threading.Thread(target=read)
    thread.start()
    rng = np.random.default_rng(4)
    for _ in range(40):
        collection.add([("a", "x"), ("b", "x")], np.repeat(rng.random((1, 4)), 2, axis=0))
    stop.set()
    thread.join()
    assert not wrong


def test_another_model_moves_in(postgres_place: Place, encoder: FakeEncoder) -> None:
    collection = postgres_place.make(encoder)
    collection.add(DOCUMENTS)
    collection.add([("long", "The cat sleeps here. " * 4)], on_long="passages", passage_tokens=10, passage_overlap=2)
    collection.optimize("hnsw")
    reader = postgres_place.open(encoder)
    new = FakeEncoder("new", 16)
    report = collection.reindex(new)
    assert report.encoded == collection.info()["passages"]
    assert (collection.fingerprint, collection.settings.dimensions, collection.info()["search"]) == (new.fingerprint, 16, "exact")
    assert collection.search(new.encode(["red apple"]), 1)[0][0].score == pytest.approx(1.0, abs=1e-6)
    collection.add([("e", "more")])
    with pytest.raises(CollectionError, match="was made with the model new"):
        reader.search(encoder.encode(["red apple"]), 1)
    with pytest.raises(CollectionError, match="was made with the model new"):
        reader.add([("f", "text")])


def test_what_postgresql_cannot_store(postgres_place: Place, encoder: FakeEncoder) -> None:
    collection = postgres_place.make(encoder)
    with pytest.raises(DocumentError, match=r"document 2 \(id 'y'\): its text holds a NUL"):
        collection.add([("x", "fine"), ("y", "a\x00b")])
    with pytest.raises(DocumentError, match="its id has 3000 bytes; PostgreSQL takes up to 2000"):
        collection.add([("中" * 1000, "text")])
    assert collection.ids() == []


def test_names_and_passwords(postgres_place: Place, postgres_url: str, encoder: FakeEncoder) -> None:
    collection = postgres_place.make(encoder)
    assert "s3cret" not in repr(collection) + str(collection.path) + str(collection.info())
    with pytest.raises(CollectionError, match="a collection is there already"):
        type(collection).create(collection.address, encoder)
    wrong = postgres_place.url.replace("s3cret%2Fpw", "other-pw")
    from twinvec.index.remote import open_collection

    with pytest.raises(CollectionError, match="cannot connect") as caught:
        open_collection(wrong)
    assert "other-pw" not in str(caught.value)
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("CREATE SCHEMA taken")
    with pytest.raises(CollectionError, match="the database has a schema of that name"):
        open_collection(f"{postgres_url}?collection=taken", encoder, create=True)
    with pytest.raises(CollectionError, match="no collection of that name"):
        open_collection(f"{postgres_url}?collection=nothing_here")
    odd = open_collection(f"{postgres_url}?collection=My%20FAQ.v2%20%E4%B8%AD", encoder, create=True)
    odd.add(DOCUMENTS)
    odd.optimize("hnsw")
    assert ids_of(odd.search(encoder.encode(["red apple"]), 1, where="n = 1")[0]) == ["a"]
    odd.drop()
    odd.close()
