"""What a collection promises: adding, replacing, deleting, finding."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from index_fakes import FakeEncoder

from twinvec.errors import CollectionError
from twinvec.index.collection import Collection
from twinvec.records import Document

DOCUMENTS = [
    Document("a", "how do I close quick pay", {"lang": "en"}),
    Document("b", "the refund has not arrived"),
    Document("c", "没网 的时候 能 支付 吗", {"lang": "zh", "标签": ["支付", 1, None], "deep": {"x": 1.5}}),
]


@pytest.fixture
def encoder() -> FakeEncoder:
    return FakeEncoder()


@pytest.fixture
def faq(tmp_path: Path, encoder: FakeEncoder) -> Iterator[Collection]:
    with Collection.create(tmp_path / "faq", encoder) as collection:
        collection.add(DOCUMENTS)
        yield collection


def found(collection: Collection, text: str, k: int = 10, **options: str) -> list[str]:
    return [hit.id for hit in collection.search(FakeEncoder().encode([text]), k, **options)[0]]


def test_text_and_metadata_come_back_with_the_hit(faq: Collection, encoder: FakeEncoder) -> None:
    hits = faq.search(encoder.encode(["能 支付 吗", "refund"]), 2)
    assert [len(row) for row in hits] == [2, 2]
    assert (hits[0][0].id, hits[0][0].text, hits[0][0].metadata) == ("c", DOCUMENTS[2].text, DOCUMENTS[2].metadata)
    assert hits[1][0].id == "b"
    assert json.loads(json.dumps(hits[0][0].to_dict())) == hits[0][0].to_dict()
    assert faq.get("c") == DOCUMENTS[2]
    assert faq.get("nobody") is None
    assert ("a" in faq, "nobody" in faq, 3 in faq) == (True, False, False)
    assert (len(faq), faq.ids(), bool(faq)) == (3, ["a", "b", "c"], True)


def test_it_opens_again_as_it_was(faq: Collection, encoder: FakeEncoder, tmp_path: Path) -> None:
    before = faq.search(encoder.encode(["refund"]), 3)
    faq.close()
    with Collection.open(str(tmp_path / "faq"), encoder) as again:
        assert again.search(encoder.encode(["refund"]), 3) == before
        assert again.verify() == {
            "documents": 3, "vectors": 3, "tombstones": 0, "segments": 1, "indexes": 0, "bytes": again.info()["vector_bytes"], "orphans": [],
        }  # fmt: skip


def test_more_hits_than_documents_gives_all_of_them(faq: Collection) -> None:
    for kind in ("exact", "flat"):
        assert sorted(found(faq, "refund", 50, kind=kind)) == ["a", "b", "c"]


def test_adding_an_id_again_replaces_it(faq: Collection) -> None:
    report = faq.add([("b", "a wholly different sentence"), Document("d", "new one")])
    assert (report.added, report.replaced, report.unchanged) == (1, 1, 0)
    assert faq.get("b") == Document("b", "a wholly different sentence")
    assert found(faq, "a wholly different sentence", 1) == ["b"]
    assert len(faq) == len(found(faq, "refund", 99)) == 4
    assert faq.info()["tombstones"] == 1


def test_deleting_removes_from_everywhere_and_shifts_nothing(faq: Collection) -> None:
    assert faq.delete(["a", "nobody"]) == 1
    assert faq.get("a") is None
    for kind in ("exact", "flat"):
        assert sorted(found(faq, "quick pay", kind=kind)) == ["b", "c"]
        for document in DOCUMENTS[1:]:
            hit = faq.search(FakeEncoder().encode([document.text]), 1, kind=kind)[0][0]
            assert (hit.id, hit.text) == (document.id, document.text)
    assert faq.delete("b") == 1  # one id, not its letters
    assert faq.delete([]) == 0
    faq.add([DOCUMENTS[0]])
    assert faq.ids() == ["a", "c"]
    assert found(faq, DOCUMENTS[0].text, 1) == ["a"]


def test_everything_deleted_is_an_empty_collection(faq: Collection) -> None:
    faq.delete(["a", "b", "c"])
    assert faq.search(np.ones(32), 5) == [[]]
    assert faq.search(np.ones((2, 32)), 5, kind="flat") == [[], []]
    assert len(faq) == 0
    assert faq.verify()["tombstones"] == 3


def test_the_same_id_twice_in_one_batch_counts_once(tmp_path: Path, encoder: FakeEncoder) -> None:
    with Collection.create(tmp_path / "c", encoder) as collection:
        report = collection.add([("x", "first"), ("y", "other"), ("x", "last")])
        assert (report.documents, report.added, report.replaced) == (3, 2, 1)
        assert collection.get("x") == Document("x", "last")
        assert len(collection) == 2
        assert collection.info()["tombstones"] == 0


def test_equal_texts_go_by_id(tmp_path: Path, encoder: FakeEncoder) -> None:
    with Collection.create(tmp_path / "c", encoder) as collection:
        for name in ["t10", "t9", "é", "T1", "t1"]:
            collection.add([(name, "the same words")])
        collection.add([("a", "quite other words"), ("t0", "the same words")])
        for kind in ("exact", "flat"):
            assert found(collection, "the same words", 6, kind=kind) == ["T1", "t0", "t1", "t10", "t9", "é"]
            assert found(collection, "the same words", 3, kind=kind) == ["T1", "t0", "t1"]


def test_an_empty_text_is_kept_reported_and_never_found(faq: Collection, encoder: FakeEncoder) -> None:
    report = faq.add([("e1", ""), ("e2", " \u3000\n"), ("e3", "\u200b"), ("f", "full")])
    assert report.without_vector == 3
    assert "3 of 4 documents have no text" in report.warnings()[0]
    assert "'e1', 'e2', 'e3'" in report.warnings()[0]
    assert faq.get("e2") == Document("e2", " \u3000\n")
    assert not {"e1", "e2", "e3"} & set(found(faq, "", 99))
    assert (faq.info()["documents"], faq.info()["searchable"], faq.info()["without_vector"]) == (7, 4, 3)
    assert faq.vector("e1") is None
    faq.add([("e1", "now it has words"), ("f", "")])
    assert found(faq, "now it has words", 1) == ["e1"]
    assert "f" not in found(faq, "full", 99)
    faq.verify()


def test_zero_vectors_are_stored_but_never_found(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", "f1", dimensions=3) as collection:
        assert collection.add([("zero", "some text"), ("one", "more text")], np.array([[0, 0, 0], [1, 2, 2]], dtype=np.float16)).without_vector == 1
        assert [hit.id for hit in collection.search([1, 0, 0], 9)[0]] == ["one"]
        assert len(collection) == 2


def test_a_known_text_is_not_encoded_again(faq: Collection, encoder: FakeEncoder) -> None:
    encoder.calls.clear()
    report = faq.add([*DOCUMENTS, ("d", "new")])
    assert (report.added, report.replaced, report.unchanged, report.encoded) == (1, 0, 3, 1)
    assert encoder.calls == [(["new"], None)]
    report = faq.add([Document("a", DOCUMENTS[0].text, {"lang": "fr"})])
    assert (report.replaced, report.encoded) == (1, 0)
    assert faq.get("a").metadata == {"lang": "fr"}  # type: ignore[union-attr]
    assert found(faq, DOCUMENTS[0].text, 1) == ["a"]
    assert faq.info()["commit"] == 3
    assert faq.add(DOCUMENTS[1:]).commits == 0


def test_a_stream_is_committed_in_batches(tmp_path: Path, encoder: FakeEncoder) -> None:
    seen: list[int] = []
    with Collection.create(tmp_path / "c", encoder) as collection, Collection.open(tmp_path / "c") as reader:

        def stream() -> Iterator[dict[str, object]]:
            for i in range(25):
                seen.append(len(reader))
                yield {"id": str(i), "text": f"word{i}", "n": i}

        report = collection.add(stream(), batch=10)
        assert (report.documents, report.commits) == (25, 3)
        assert (seen[0], seen[10], seen[24]) == (0, 10, 20)
        assert reader.get("24") == Document("24", "word24", {"n": 24})

        def broken() -> Iterator[tuple[str, str]]:
            yield from ((f"b{i}", "x y") for i in range(15))
            raise OSError("the source went away")

        with pytest.raises(OSError, match="source went away"):
            collection.add(broken(), batch=10)
        assert len(reader) == 35
        collection.verify()


def test_a_bad_document_in_a_list_stores_nothing(faq: Collection) -> None:
    with pytest.raises(CollectionError, match="document 2"):
        faq.add([("ok", "fine"), (3, "not fine")], batch=1)
    assert "ok" not in faq


@pytest.mark.parametrize("make", [np.float64, np.asfortranarray, np.ndarray.tolist, lambda a: np.repeat(a, 2, axis=1)[:, ::2]])
def test_vectors_of_any_make_are_cast(tmp_path: Path, encoder: FakeEncoder, make: object) -> None:
    texts = ["one two", "three four"]
    with Collection.create(tmp_path / "c", encoder) as collection:
        collection.add([("1", texts[0]), ("2", texts[1])], make(encoder.encode(texts) * 7.0))  # type: ignore[operator]
        assert encoder.calls == []
        assert found(collection, "three four", 1) == ["2"]
        np.testing.assert_allclose(collection.vector("1"), encoder.encode(texts[:1])[0], atol=1e-6)
        collection.add(Document("3", "five"), encoder.encode(["five"])[0].astype(np.float64))  # one document, one 1-D vector
        assert found(collection, "five", 1) == ["3"]


def test_scores_are_cosines_also_of_vectors_that_are_not_unit(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", "print") as collection:
        collection.add([("long", "x"), ("short", "y")], np.array([[300.0, 400.0], [0.0, 0.001]]))
        hits = collection.search(np.array([6.0, 8.0]), 2)[0]
        assert [(hit.id, round(hit.score, 6)) for hit in hits] == [("long", 1.0), ("short", 0.8)]
        assert hits[0].score <= 1.0
        assert collection.info()["dimensions"] == 2  # taken from the first vectors
    with Collection.create(tmp_path / "d", "print", metric="dot") as collection:
        collection.add([("long", "x"), ("short", "y")], np.array([[300.0, 400.0], [0.0, 0.001]]))
        assert [(hit.id, round(hit.score, 3)) for hit in collection.search(np.array([6.0, 8.0]), 2)[0]] == [("long", 5000.0), ("short", 0.008)]


def test_prompts_are_chosen_stored_and_used(tmp_path: Path) -> None:
    e5 = FakeEncoder("e5", prompts={"query": "query: ", "passage": "passage: "})
    with Collection.create(tmp_path / "c", e5) as collection:
        assert (collection.settings.document_prompt, collection.settings.query_prompt) == ("passage", "query")
        assert collection.add([("1", "word")]).prompt == "passage: "
        assert e5.calls == [(["word"], "passage")]
    with Collection.create(tmp_path / "d", e5, document_prompt="", query_prompt=None) as collection:
        assert (collection.settings.document_prompt, collection.settings.query_prompt) == ("", None)


def test_the_model_is_named_so_that_it_can_be_loaded_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "best").mkdir()
    monkeypatch.chdir(tmp_path)
    with Collection.create("c", FakeEncoder("best")) as collection:
        assert (collection.settings.model, collection.model) == ("best", str(tmp_path / "best"))
    with Collection.create("d", FakeEncoder("minilm")) as collection:
        assert collection.model == "minilm"
    json.dumps(collection.info(), allow_nan=False)


def test_many_single_additions(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((120, 8))
    with Collection.create(tmp_path / "c", "print") as collection:
        for i, vector in enumerate(vectors):
            collection.add([(f"{i:03d}", "text")], vector)
            if i % 40 == 7:
                assert [hit.id for hit in collection.search(vector, 1)[0]] == [f"{i:03d}"]
                assert collection.search(vector, 9, kind="flat") == collection.search(vector, 9)
        assert len(collection._reader.state.blocks.blocks) == 1  # type: ignore[union-attr]
        assert collection.info()["segments"] < 20  # small ones are joined as they come
        assert [row[0].id for row in collection.search(vectors, 1)] == collection.ids()


def test_threads_share_one_collection_while_it_grows(faq: Collection, encoder: FakeEncoder) -> None:
    query, errors = encoder.encode(["refund"]), []

    def look() -> None:
        try:
            for _ in range(30):
                hits = faq.search(query, 500)[0]
                assert len({hit.id for hit in hits}) == len(hits)
                assert len(hits) % 5 == 3  # whole commits only
        except Exception as err:
            errors.append(err)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for start in range(0, 50, 5):
        faq.add([(f"n{i}", f"text number {i}") for i in range(start, start + 5)])
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_opens_its_own_connection(faq: Collection, encoder: FakeEncoder) -> None:
    assert found(faq, "refund", 1) == ["b"]
    child = os.fork()
    if child == 0:
        os._exit(0 if faq.ids() == ["a", "b", "c"] and [store.pid for store in faq._reader.idle] == [os.getpid()] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    faq.add([("z", "more")])
    assert len(faq) == 4


def test_an_empty_folder_can_become_a_collection(tmp_path: Path, encoder: FakeEncoder) -> None:
    (tmp_path / "c").mkdir()
    with Collection.create(tmp_path / "c", encoder) as collection:
        assert len(collection) == 0
        assert sorted(path.name for path in (tmp_path / "c").iterdir() if not path.name.startswith("collection.db")) == ["lock", "segments"]
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


class AgainstADictionary(RuleBasedStateMachine):
    """Any order of changes gives what a dictionary gives, after any number of re-openings."""

    root: Path
    names = st.sampled_from([f"id{i}" for i in range(8)])
    texts = st.sampled_from(["", "red apple", "green apple", "old house", "red house", "sea"])

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, str] = {}
        self.encoder = FakeEncoder(dimensions=16)
        self.path = self.root / str(len(list(self.root.iterdir())))
        self.collection = Collection.create(self.path, self.encoder)

    @rule(batch=st.lists(st.tuples(names, texts), max_size=6), size=st.integers(1, 4))
    def add(self, batch: list[tuple[str, str]], size: int) -> None:
        self.collection.add(batch, batch=size)
        self.model.update(batch)

    @rule(batch=st.lists(names, max_size=3))
    def delete(self, batch: list[str]) -> None:
        assert self.collection.delete(batch) == len(set(batch) & self.model.keys())
        for name in batch:
            self.model.pop(name, None)

    @rule(name=names, text=st.none() | texts)
    def update(self, name: str, text: str | None) -> None:
        if name not in self.model:
            with pytest.raises(CollectionError, match="no document has the id"):
                self.collection.update(name, text)
            return
        self.collection.update(name, text, {"last": "update"})
        self.model[name] = self.model[name] if text is None else text
        assert self.collection.get(name) == Document(name, self.model[name], {"last": "update"})

    @rule()
    def delete_by_filter(self) -> None:
        gone = [name for name in self.model if name >= "id4"]
        assert self.collection.delete(where="id >= 'id4'") == len(gone)
        for name in gone:
            del self.model[name]

    @rule()
    def compact(self) -> None:
        self.collection.compact()
        assert self.collection.info()["tombstones"] == 0

    @rule(word=st.sampled_from(["red", "house", "sea"]))
    def words(self, word: str) -> None:
        found = {hit.id for hit in self.collection.lexical(word, 20)[0]}
        assert found == {name for name, text in self.model.items() if word in text.split()}

    @rule()
    def reopen(self) -> None:
        self.collection.close()
        self.collection = Collection.open(self.path, self.encoder, verify=True)

    @rule(text=texts.filter(bool), kind=st.sampled_from(["exact", "flat"]))
    @precondition(lambda self: self.model)
    def search(self, text: str, kind: str) -> None:
        query = self.encoder.encode([text])
        living = sorted(name for name, content in self.model.items() if content)
        scores = {name: float(query[0].astype(np.float64) @ self.encoder.encode([self.model[name]])[0]) for name in living}
        hits = self.collection.search(query, 20, kind=kind)[0]
        assert [hit.id for hit in hits] == sorted(living, key=lambda name: (-round(scores[name], 5), name))
        assert all(hit.text == self.model[hit.id] for hit in hits)

    @invariant()
    def same(self) -> None:
        assert self.collection.ids() == sorted(self.model)
        assert len(self.collection) == len(self.model)

    def teardown(self) -> None:
        self.collection.close()


def test_against_a_dictionary(tmp_path: Path) -> None:
    machine = type("Machine", (AgainstADictionary,), {"root": tmp_path})
    run = settings(max_examples=12, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck))
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(machine, settings=run)
