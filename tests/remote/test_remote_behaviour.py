"""One behaviour, three stores: every test here runs over a local folder, PostgreSQL and Milvus."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from index_fakes import FakeEncoder
from remote_places import Place
from where_strategies import documents as metadatas
from where_strategies import nodes, written

from twinvec.errors import CollectionError, UsageError
from twinvec.index.checks import SearchError, VectorError
from twinvec.index.where import matches, parse_where
from twinvec.records import Document

DOCUMENTS: list[Any] = [
    ("a", "red apple", {"lang": "en", "year": 2020, "tags": ["fruit", "red"]}),
    ("b", "green apple", {"lang": "en", "year": 2021, "tags": ["fruit"]}),
    ("c", "old red house", {"lang": "de", "year": 1999.5}),
    ("d", "红色 苹果", {"lang": "zh", "new": True}),
]
ODD_IDS = ["it's", 'quo"te', "back\\slash", "文档 一", "a/b?c#d&e=f", "😀", " spaced ", "%41", "%", "a\nb", "ID", "id", "-1", "null", "x" * 500]


def ids_of(hits: list[Any]) -> list[str]:
    return [hit.id for hit in hits]


def test_what_was_added_is_there(place: Place, encoder: FakeEncoder) -> None:
    collection = place.make(encoder)
    report = collection.add(DOCUMENTS)
    assert (report.documents, report.added, report.replaced, report.commits) == (4, 4, 0, 1)
    assert len(collection) == collection.count() == 4
    assert collection.ids() == ["a", "b", "c", "d"]
    assert collection.get("d") == Document("d", "红色 苹果", {"lang": "zh", "new": True})
    assert collection.get("zz") is None
    assert "a" in collection
    assert "zz" not in collection
    np.testing.assert_array_equal(collection.vector("a"), _stored(encoder, "red apple"))
    assert collection.vector("zz") is None


def _stored(encoder: FakeEncoder, text: str) -> np.ndarray:
    wide = encoder.encode([text]).astype(np.float64)
    return (wide / np.sqrt((wide * wide).sum())).astype(np.float32)[0]


def test_hits_carry_everything_and_come_best_first(place: Place, encoder: FakeEncoder) -> None:
    collection = place.make(encoder)
    collection.add(DOCUMENTS)
    hits = collection.search(encoder.encode(["red apple"]), 3)[0]
    assert hits[0].id == "a"
    assert hits[0].score == pytest.approx(1.0, abs=1e-6)
    assert (hits[0].text, hits[0].metadata["tags"]) == ("red apple", ["fruit", "red"])
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert len(hits) == 3


def test_scores_are_float64_products_of_the_stored_vectors(place: Place, encoder: FakeEncoder) -> None:
    collection = place.make(encoder)
    collection.add(DOCUMENTS)
    query = encoder.encode(["green house"]).astype(np.float64)[0]
    for hit in collection.search(query, 4)[0]:
        vector = collection.vector(hit.id).astype(np.float64)
        assert hit.score == pytest.approx(query @ vector / np.linalg.norm(query) / np.linalg.norm(vector), abs=1e-12)


def test_the_same_id_replaces_everywhere(place: Place, encoder: FakeEncoder) -> None:
    collection = place.make(encoder)
    collection.add(DOCUMENTS)
    report = collection.add([("a", "blue sky", {"lang": "fr"}), ("e", "new one"), ("e", "newer one")])
    assert (report.added, report.replaced, report.documents) == (1, 2, 3)
    assert collection.get("a") == Document("a", "blue sky", {"lang": "fr"})
    assert collection.get("e") == Document("e", "newer one", {})
    assert "a" not in ids_of(collection.lexical("red apple", 5)[0])
    assert ids_of(collection.lexical("sky", 5)[0]) == ["a"]
    assert collection.count("lang = 'en'") == 1
    assert collection.search(encoder.encode(["blue sky"]), 1)[0][0].id == "a"
    assert len(collection) == 5


def test_what_is_the_same_is_not_encoded_again(place: Place, encoder: FakeEncoder) -> None:
    collection = place.make(encoder)
    collection.add(DOCUMENTS)
    encoder.calls.clear()
    report = collection.add([*DOCUMENTS[:2], ("c", "old red house", {"lang": "nl"})])
    assert (report.unchanged, report.replaced, report.encoded) == (2, 1, 0)
    assert not [texts for texts, _ in encoder.calls if texts]
    assert collection.get("c").metadata == {"lang": "nl"}
    assert collection.search(encoder.encode(["old red house"]), 1)[0][0].score == pytest.approx(1.0, abs=1e-6)


def test_update_changes_text_or_metadata(place: Place, encoder: FakeEncoder) -> None:
    collection = place.make(encoder)
    collection.add(DOCUMENTS)
    before = collection.vector("b")
    collection.update("b", metadata={"lang": "it"})
    assert collection.get("b") == Document("b", "green apple", {"lang": "it"})
    np.testing.assert_array_equal(collection.vector("b"), before)
    collection.update("b", text="yellow lemon")
    assert collection.get("b") == Document("b", "yellow lemon", {"lang": "it"})
    assert collection.search(encoder.encode(["yellow lemon"]), 1, where="lang = 'it'")[0][0].id == "b"
    assert ids_of(collection.lexical("lemon", 3)[0]) == ["b"]
    with pytest.raises(CollectionError, match="no document has the id 'zz'"):
        collection.update("zz", text="x")


def test_delete_by_id_and_by_filter(place: Place, encoder: FakeEncoder) -> None:
    collection = place.make(encoder)
    collection.add(DOCUMENTS)
    assert collection.delete(["a", "zz", "a"]) == 1
    assert collection.delete(where="lang = 'zh' or year < 2000") == 2
    assert collection.ids() == ["b"]
    assert ids_of(collection.search(encoder.encode(["red apple"]), 9)[0]) == ["b"]
    assert ids_of(collection.lexical("red apple", 9)[0]) == ["b"]
    collection.add([("a", "back again")])
    assert collection.get("a").text == "back again"
    with pytest.raises(UsageError, match="ids or where"):
        collection.delete()
    with pytest.raises(CollectionError, match=r"id 3 \(int\) is no string"):
        collection.delete([3])


FILTERS = [
    ("lang = 'en'", ["a", "b"]),
    ("lang != 'en'", ["c", "d"]),
    ("lang = 'zh' and new = true", ["d"]),
    ("year >= 2020", ["a", "b"]),
    ("year < 2000", ["c"]),
    ("year in (2020, 2021.0)", ["a", "b"]),
    ("lang in ('zh', 'de')", ["c", "d"]),
    ("lang not in ('zh', 'de')", ["a", "b"]),
    ("tags contains 'red'", ["a"]),
    ("year is null", ["d"]),
    ("tags is not null and not tags contains 'red'", ["b"]),
    ("lang like 'z%'", ["d"]),
    ("id in ('a', 'd')", ["a", "d"]),
    ("id like '_' and id > 'b'", ["c", "d"]),
    ("lang = 'xx'", []),
    ("new = 1", []),
    ("year = '2020'", []),
]


def test_filters_in_search_lexical_ids_and_count(place: Place, encoder: FakeEncoder) -> None:
    collection = place.make(encoder)
    collection.add(DOCUMENTS)
    query = encoder.encode(["red apple"])
    for text, wanted in FILTERS:
        assert collection.ids(text) == wanted, text
        assert collection.count(text) == len(wanted), text
        assert sorted(ids_of(collection.search(query, 10, where=text)[0])) == wanted, text
        found = ids_of(collection.lexical("red apple house 苹", 10, where=text)[0])
        assert sorted(found) == wanted, text
    with pytest.raises(UsageError, match="where: at character 8"):
        collection.search(query, 3, where="lang = zh")


def test_a_filter_that_keeps_one_row_still_finds_it(place: Place, encoder: FakeEncoder) -> None:
    collection = place.make("print", dimensions=8)
    rows = np.random.default_rng(0).standard_normal((600, 8))
    collection.add([(f"{i:04}", f"text {i}", {"n": i}) for i in range(600)], rows)
    for n in (0, 299, 599):
        assert ids_of(collection.search(rows[0], 5, where=f"n = {n}")[0]) == [f"{n:04}"]
        assert ids_of(collection.search(rows[0], 5, where=f"not (n < {n} or n > {n})")[0]) == [f"{n:04}"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(metadatas, min_size=1, max_size=8), st.lists(nodes, min_size=1, max_size=6))
def test_filters_equal_the_reference(place: Place, found: list[dict[str, Any]], wanted: list[Any]) -> None:
    collection = place.make("print", dimensions=2)
    collection.delete(collection.ids())
    documents = [(name, name, metadata) for name, metadata in zip(("a", "b", "doc-1", "文档", "it's", "100%", "a_b", "A"), found, strict=False)]
    collection.add(documents, np.ones((len(documents), 2)))
    for node in map(written, wanted):
        assert collection.ids(node) == sorted(name for name, _, metadata in documents if matches(parse_where(node), name, metadata)), node


def test_exact_search_equals_numpy(place: Place) -> None:
    rng = np.random.default_rng(1)
    rows, queries = rng.standard_normal((500, 16)).astype(np.float32), rng.standard_normal((5, 16)).astype(np.float32)
    collection = place.make("print", dimensions=16)
    collection.add([(f"{i:03}", "") if i % 50 == 49 else (f"{i:03}", f"t{i}") for i in range(500)], rows, batch=128)
    kept = np.asarray([i for i in range(500) if i % 50 != 49])
    unit = rows[kept].astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    found = collection.search(queries, 20, kind="exact")
    for query, hits in zip(queries.astype(np.float64), found, strict=True):
        scores = unit @ (query / np.linalg.norm(query))
        order = np.argsort(-scores)[:20]
        assert ids_of(hits) == [f"{kept[i]:03}" for i in order]
        np.testing.assert_allclose([hit.score for hit in hits], scores[order], atol=1e-6)


def test_ties_go_by_id_and_top_k_is_a_prefix(place: Place) -> None:
    rows = np.zeros((60, 4))
    rows[:, 0] = 1.0
    rows[40:, 1] = np.arange(20) + 1.0
    collection = place.make("print", dimensions=4)
    names = [f"{(i * 37) % 60:02}" for i in range(60)]
    collection.add(list(zip(names, names, strict=True)), rows)
    query = np.asarray([1.0, 0.1, 0.0, 0.0])
    whole = ids_of(collection.search(query, 60)[0])
    for k in (1, 2, 17, 45, 59):
        assert ids_of(collection.search(query, k)[0]) == whole[:k]
    equal = ids_of(collection.search(np.asarray([1.0, 0, 0, 0]), 40)[0])
    assert equal == sorted(names[:40])
    assert [ids_of(hits) for hits in collection.search(np.stack([query, query]), 7)] == [whole[:7]] * 2


def test_fewer_rows_than_k(place: Place, encoder: FakeEncoder) -> None:
    collection = place.make(encoder)
    assert collection.search(encoder.encode(["red"]), 5) == [[]]
    assert collection.lexical("red", 5) == [[]]
    collection.add(DOCUMENTS)
    assert len(collection.search(encoder.encode(["red"]), 1000)[0]) == 4
    assert len(collection.search(encoder.encode(["red"]), 1000, where="lang = 'en'")[0]) == 2


def test_empty_texts_are_stored_and_never_found(place: Place, encoder: FakeEncoder) -> None:
    collection = place.make(encoder)
    report = collection.add([("a", "red apple"), ("e", ""), ("s", " \n\u200b")])
    assert (report.without_vector, report.first_without_vector) == (2, ["e", "s"])
    assert collection.ids() == ["a", "e", "s"]
    assert collection.get("s").text == " \n\u200b"
    assert collection.vector("e") is None
    assert ids_of(collection.search(encoder.encode(["red apple"]), 5)[0]) == ["a"]
    assert collection.info()["searchable"] == 1
    collection.add([("e", "green apple"), ("a", "")])
    assert ids_of(collection.search(encoder.encode(["red apple"]), 5)[0]) == ["e"]


@pytest.mark.parametrize(
    "text",
    [
        "中文文本，标点。",
        "naïve café e\u0301",
        "😀 emoji 👩‍👩‍👧",
        "tab\tnew\nline\r\n",
        "a" * 9000,
        "'; DROP TABLE documents; --",
        "\\N \\. %s {} %(x)s",
    ],
)
def test_texts_come_back_as_they_were(place: Place, encoder: FakeEncoder, text: str) -> None:
    collection = place.make(encoder)
    collection.add([Document("x", text, {text[:50]: text})])
    assert collection.get("x") == Document("x", text, {text[:50]: text})
    assert collection.search(encoder.encode([text]), 1)[0][0].text == text


def test_odd_ids(place: Place, encoder: FakeEncoder) -> None:
    collection = place.make(encoder)
    collection.add([(name, f"word{i}") for i, name in enumerate(ODD_IDS)])
    assert collection.ids() == sorted(ODD_IDS)
    for i, name in enumerate(ODD_IDS):
        assert collection.get(name).text == f"word{i}"
        assert ids_of(collection.search(encoder.encode([f"word{i}"]), 1)[0]) == [name]
        quoted = name.replace("'", "''")
        assert collection.ids(f"id = '{quoted}'") == [name]
    assert collection.delete(ODD_IDS) == len(ODD_IDS)
    assert len(collection) == 0


def test_metadata_keeps_its_types(place: Place, encoder: FakeEncoder) -> None:
    metadata = {
        "text": "x", "int": 3, "big": 2**62, "float": 1.0, "small": 1e-30, "large": 1e16, "true": True, "null": None, "list": [1, "a", None, [2.5]],
        "object": {"键": {"deep": [True]}}, "": "empty key", "order": {"z": 1, "a": 2}, "nul": "a\x00b", "half": "\ud800",
    }  # fmt: skip
    collection = place.make(encoder)
    collection.add([("x", "red", metadata)])
    found = collection.get("x").metadata
    assert found == metadata
    assert {key: type(value) for key, value in found.items()} == {key: type(value) for key, value in metadata.items()}
    assert list(found["order"]) == ["z", "a"]
    assert collection.ids('object."键".deep contains true and big = 4611686018427387904 and float = 1') == ["x"]


def test_another_model_is_refused(place: Place, encoder: FakeEncoder) -> None:
    place.make(encoder).add(DOCUMENTS)
    with pytest.raises(CollectionError, match=r"was made with the model fake .*Vectors of two models cannot be compared"):
        place.open(FakeEncoder("other"))
    with pytest.raises(CollectionError, match="was made with the model"):
        place.open("another fingerprint")
    collection = place.open(encoder)
    with pytest.raises(VectorError, match="wanted 32 dimensions, got 8"):
        collection.search(np.ones(8), 3)
    with pytest.raises(CollectionError, match="was made with the model"):
        collection.search(np.ones(32), 3, fingerprint="another")


def test_reopened_it_is_the_same(place: Place, encoder: FakeEncoder) -> None:
    collection = place.make(encoder)
    collection.add(DOCUMENTS)
    query = encoder.encode(["red house"])
    hits, settings_ = collection.search(query, 4), collection.settings
    collection.close()
    again = place.open()
    assert again.search(query, 4) == hits
    assert again.settings == settings_
    assert again.fingerprint == encoder.fingerprint
    with pytest.raises(CollectionError, match="opened without a model"):
        again.add([("x", "text")])
    assert place.make(encoder).ids() == ["a", "b", "c", "d"]  # create=True opens what is there


def test_nothing_of_a_bad_batch_is_stored(place: Place, encoder: FakeEncoder) -> None:
    collection = place.make(encoder)
    collection.add(DOCUMENTS)
    for bad in ([("x", "fine"), (7, "y")], [("x", "fine"), ("y", None)], [("x", "fine"), ("y", "z", {"n": float("nan")})]):
        with pytest.raises(CollectionError):
            collection.add(bad)
    with pytest.raises(VectorError, match="NaN"):
        collection.add([("x", "fine")], np.full((1, 32), np.nan))
    with pytest.raises(SearchError, match="k = 0"):
        collection.search(np.ones(32), 0)
    with pytest.raises(SearchError, match="all zeros"):
        collection.search(np.zeros(32), 3)
    assert collection.ids() == ["a", "b", "c", "d"]


def test_long_documents_are_found_by_their_best_passage(place: Place, encoder: FakeEncoder) -> None:
    collection = place.make(encoder)
    text = "The cat sleeps here. " * 3 + "A blue whale swims far. " * 3 + "Old houses stand still. " * 3
    collection.add([("long", text), ("short", "a cat")], on_long="passages", passage_tokens=16, passage_overlap=2)
    hits = collection.search(encoder.encode(["A blue whale swims far."]), 5)[0]
    assert sorted(ids_of(hits)) == ["long", "short"]
    assert hits[0].text == text
    assert hits[0].passage is not None
    assert "whale" in hits[0].passage.text
    assert hits[0].passage.text == text[hits[0].passage.start : hits[0].passage.stop]
    assert ids_of(collection.lexical("whale", 5)[0]) == ["long"]
    assert collection.lexical("whale", 5)[0][0].passage == hits[0].passage
    collection.add([("long", "short now")])
    assert [hit.passage for hit in collection.search(encoder.encode(["short now"]), 5)[0]] == [None, None]
    assert collection.info()["documents"] == 2
    assert collection.verify()["documents"] == 2


def test_what_was_said_of_long_texts_is_remembered(place: Place, encoder: FakeEncoder) -> None:
    collection = place.make(encoder)
    collection.add([("a", "one")])
    collection.add([("b", "two")], on_long="error")
    collection.add([("c", "three")])
    collection.update("c", "four")
    collection.add([("d", "five words that are cut in two")], on_long="passages", passage_tokens=5, passage_overlap=1)
    collection.add([("e", "six words that are cut in two")])
    collection.add([("f", "seven")], on_long="split")
    collection.add([("g", "eight")])
    assert encoder.long == ["truncate", "error", "error", "error", "truncate", "truncate", "split", "split"]
    assert [len({hit.passage for hit in row}) for row in [collection.search(encoder.encode(["words that are cut"]), 2)[0]]] == [2]
    assert collection.info()["on_long"] == "split"
    assert collection.info()["passage_tokens"] is None
    collection.add([("h", "nine")], on_long="truncate")
    assert (encoder.long[-1], collection.info()["on_long"]) == ("truncate", "truncate")


def test_inner_products_as_they_are(place: Place) -> None:
    rows = np.random.default_rng(2).standard_normal((50, 8)) * np.arange(1, 51)[:, None]
    collection = place.make("print", dimensions=8, metric="dot")
    collection.add([(f"{i:02}", f"t{i}") for i in range(50)], rows)
    query = np.random.default_rng(3).standard_normal(8)
    scores = rows.astype(np.float32).astype(np.float64) @ query
    hits = collection.search(query, 10)[0]
    assert ids_of(hits) == [f"{i:02}" for i in np.argsort(-scores)[:10]]
    np.testing.assert_allclose([hit.score for hit in hits], np.sort(scores)[::-1][:10], rtol=1e-6)


def test_a_key_of_the_caller_is_kept(place: Place, encoder: FakeEncoder) -> None:
    collection = place.make(encoder)
    assert collection.setting("fusion") is None
    collection.put_setting("fusion", {"weight": 0.4})
    assert place.open().setting("fusion") == {"weight": 0.4}
    collection.put_setting("fusion", None)
    assert collection.setting("fusion") is None


def test_compact_and_verify(place: Place, encoder: FakeEncoder) -> None:
    collection = place.make(encoder)
    collection.add(DOCUMENTS)
    collection.delete("a")
    collection.compact()
    assert collection.verify()["documents"] == 3
    assert collection.ids() == ["b", "c", "d"]
