"""`twinvec index` and `twinvec search`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from twinvec.index.collection import Collection
from twinvec.model.encoder import Encoder
from twinvec.search.searcher import Searcher


def test_index_counts_what_became_of_each_document(run: Any, saved_model: Path, files: Path) -> None:
    first = run("index", files / "faq", files / "answers.csv", "--model", saved_model, "--json")
    assert first.code == 0, first.err
    counts = ("documents", "added", "replaced", "unchanged", "without_vector", "total")
    assert [first.json[key] for key in counts] == [4, 4, 0, 0, 1, 4]
    assert any("no text" in note for note in first.json["notes"])
    (files / "more.jsonl").write_text(
        json.dumps({"id": "pay-1", "text": "the cat sat"}) + "\n" + json.dumps({"id": "new", "text": "花呗", "lang": "zh"}) + "\n"
    )
    again = run("index", files / "faq", files / "more.jsonl", files / "answers.csv", "--json", "--quiet")
    assert again.code == 1, "an id twice in one call is an error"
    assert "pay-1" in again.err
    again = run("index", files / "faq", files / "more.jsonl", "--json")
    assert [again.json[key] for key in counts] == [2, 1, 1, 0, 0, 5]
    shown = run("index", files / "faq", files / "more.jsonl")
    assert shown.out.startswith(f"{files / 'faq'}: 0 added, 0 replaced, 2 unchanged, 0 empty")
    assert "document 'passage', query 'query'" in shown.out


def test_settings_of_a_new_collection(run: Any, saved_model: Path, files: Path) -> None:
    options = ("--kind", "flat", "--prompt", "query", "--query-prompt", "", "--text", "topic", "--id", "text")
    (files / "answers.csv").write_text("id,text,topic\n1,a,the cat\n2,b,花呗\n", encoding="utf-8")
    found = run("index", files / "faq", files / "answers.csv", "--model", saved_model, *options)
    assert found.code == 0, found.err
    with Collection.open(files / "faq") as collection:
        assert (collection.settings.kind, collection.settings.document_prompt, collection.settings.query_prompt) == ("flat", "query", "")
        assert collection.ids() == ["a", "b"]
        document = collection.get("b")
        assert document is not None
        assert document.text == "花呗"
        assert document.metadata == {"id": 2}


def test_a_failed_first_index_leaves_nothing(run: Any, saved_model: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("twinvec.model.folder._check_golden", lambda *_: None)
    monkeypatch.setattr(Encoder, "encode_with_report", stop)
    found = run("index", files / "faq", files / "answers.csv", "--model", saved_model)
    assert found.code == 130
    assert not (files / "faq").exists()


def test_a_failed_later_index_keeps_the_collection(run: Any, collection: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    (files / "new.txt").write_text("a\nb\n")
    monkeypatch.setattr("twinvec.model.folder._check_golden", lambda *_: None)
    monkeypatch.setattr(Encoder, "encode_with_report", stop)
    assert run("index", collection, files / "new.txt").code == 130
    with Collection.open(collection, verify=True) as opened:
        assert len(opened) == 4


def test_search_gives_the_librarys_hits(run: Any, saved_model: Path, collection: Path) -> None:
    with Collection.open(collection) as opened:
        wanted = [hit.to_dict() for hit in Searcher(Encoder.load(saved_model), opened).search("the refund", k=2)]
    found = run("search", collection, "the refund", "-k", 2, "--json")
    assert found.code == 0, found.err
    assert found.json["hits"] == wanted
    assert list(found.json["hits"][0]) == ["id", "score", "text", "metadata"]
    assert found.json["hits"][0]["metadata"].keys() == {"topic"}
    lines = run("search", collection, "the refund", "-k", 2).out.splitlines()
    assert [line.split()[:3] for line in lines] == [[str(i + 1), f"{hit['score']:.4f}", hit["id"]] for i, hit in enumerate(wanted)]


def test_an_empty_text_is_never_found(run: Any, collection: Path) -> None:
    hits = run("search", collection, "花呗", "--json").json["hits"]
    assert sorted(hit["id"] for hit in hits) == ["order-1", "pay-1", "pay-2"]


def test_many_queries(run: Any, collection: Path, tmp_path: Path) -> None:
    (tmp_path / "queries.csv").write_text("question,who\n花呗什么时候还款,x\nmy refund,y\n", encoding="utf-8")
    found = run("search", collection, "--queries", tmp_path / "queries.csv", "-k", 1, "--json")
    assert found.code == 0, found.err
    assert [entry["query"] for entry in found.json["queries"]] == ["花呗什么时候还款", "my refund"]
    for entry in found.json["queries"]:
        alone = run("search", collection, entry["query"], "-k", 1, "--json").json["hits"]
        assert [hit["id"] for hit in entry["hits"]] == [hit["id"] for hit in alone]
        assert entry["hits"][0]["score"] == pytest.approx(alone[0]["score"], abs=1e-5)
    piped = run("search", collection, "--queries", "-", "-k", 1, "--json", input="花呗什么时候还款\nmy refund\n".encode())
    assert piped.json == found.json
    assert run("search", collection, "--queries", tmp_path / "queries.csv", "-k", 1).out.startswith("? 花呗什么时候还款\n  1  ")


def test_a_collection_that_moved_takes_its_model_by_option(run: Any, saved_model: Path, other_model: Path, tmp_path: Path, files: Path) -> None:
    model = Path(shutil.copytree(saved_model, tmp_path / "model"))
    assert run("index", tmp_path / "c", files / "answers.csv", "--model", model).code == 0
    model.rename(tmp_path / "elsewhere")
    lost = run("search", tmp_path / "c", "the cat")
    assert lost.code == 1
    assert str(model) in lost.err
    assert run("search", tmp_path / "c", "the cat", "--model", tmp_path / "elsewhere").code == 0
    refused = run("search", tmp_path / "c", "the cat", "--model", other_model)
    assert refused.code == 1
    assert "fingerprint" in refused.err


def test_an_empty_collection_says_so(run: Any, saved_model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    assert run("index", tmp_path / "c", tmp_path / "empty.txt", "--model", saved_model).code == 0
    found = run("search", tmp_path / "c", "the cat", "--json")
    assert found.json["hits"] == []
    assert any("holds no document" in note for note in found.json["notes"])


def test_deleting_by_filter_and_by_a_file_of_ids(run: Any, collection: Path, tmp_path: Path) -> None:
    found = run("index", collection, "--delete", "--where", "topic = 'pay'", "--json")
    assert (found.code, found.json["deleted"], found.json["total"]) == (0, 2, 2)
    (tmp_path / "ids.txt").write_text("order-1\n\nnobody\n")
    found = run("index", collection, "--delete-ids", tmp_path / "ids.txt")
    assert found.out.startswith(f"{collection}: 1 of 2 ids documents deleted")
    assert run("index", collection, "--delete-ids", "-", "--json", input=b"empty-1\n").json["total"] == 0


def test_compacting_and_inspecting(run: Any, collection: Path, tmp_path: Path) -> None:
    assert run("index", collection, "--delete", "--where", "topic = 'pay'").code == 0
    seen = run("inspect", collection)
    assert "advice: 67% dead rows (replaced or deleted): twinvec index" in seen.out
    assert "2 replaced or deleted rows in them (67%)" in seen.out
    found = run("index", collection, "--compact", "--index-field", "topic", "--json")
    assert (found.json["compacted"]["dropped"], found.json["fields"]) == (2, ["topic"])
    seen = run("inspect", collection, "--verify", "--json").json
    assert (seen["tombstones"], seen["dead_share"], seen["fields"], seen["advice"]) == (0, 0.0, ["topic"], [])
    assert seen["verified"]["vectors"] == 1
    shown = run("index", collection, "--compact")
    assert "0 dead rows dropped, 1 -> 1 segments" in shown.out


def test_passages_of_long_documents(run: Any, saved_model: Path, tmp_path: Path) -> None:
    text = "the cat sat on the mat. the dog looked at the cat. " * 5
    (tmp_path / "long.jsonl").write_text(json.dumps({"id": "long", "text": text}) + "\n" + json.dumps({"id": "short", "text": "the cat"}) + "\n")
    options = ("--on-long", "passages", "--passage-tokens", 14, "--passage-overlap", 0)
    found = run("index", tmp_path / "c", tmp_path / "long.jsonl", "--model", saved_model, *options, "--json")
    assert found.code == 0, found.err
    assert found.json["passages"] > found.json["total"] == 2
    hits = run("search", tmp_path / "c", "the dog looked", "-k", 5, "--json").json["hits"]
    assert sorted(hit["id"] for hit in hits) == ["long", "short"]
    long = next(hit for hit in hits if hit["id"] == "long")
    assert long["passage"]["text"] == long["text"][long["passage"]["start"] : long["passage"]["stop"]]
    again = run("index", tmp_path / "c", tmp_path / "long.jsonl", "--json")
    assert again.json["unchanged"] == 2
    assert "in " in run("inspect", tmp_path / "c").out.splitlines()[0]


def test_moving_to_another_model(run: Any, collection: Path, saved_model: Path, other_model: Path) -> None:
    refused = run("index", collection, "-", "--model", other_model, input=b"text\n")
    assert "--reindex --model" in refused.err
    found = run("index", collection, "--reindex", "--model", other_model, "--json")
    assert found.code == 0, found.err
    assert (found.json["reindexed"]["encoded"], found.json["model"]) == (3, str(other_model))
    hits = run("search", collection, "the refund", "-k", 1, "--json")
    assert hits.code == 0, hits.err
    assert hits.json["hits"][0]["id"] == "order-1"
    assert run("search", collection, "the refund", "--model", saved_model).code == 1


@pytest.mark.parametrize("store", ["float16", "int8", "binary"])
def test_number_types(run: Any, saved_model: Path, files: Path, store: str) -> None:
    found = run("index", files / "c", files / "answers.csv", "--model", saved_model, "--store", store)
    assert found.code == 0, found.err
    assert run("inspect", files / "c", "--json").json["store"] == store
    assert run("search", files / "c", "the refund", "-k", 1, "--json").json["hits"][0]["id"] == "order-1"
    assert run("index", files / "c", files / "answers.csv", "--store", "float16" if store != "float16" else "int8").code == 2


def test_an_index_is_built_when_it_is_asked_for(run: Any, saved_model: Path, tmp_path: Path) -> None:
    words = ["cat", "dog", "mat", "refund", "sat", "looked", "the", "where", "is", "my"]
    lines = [f"{words[i % 10]} {words[i // 10 % 10]} {words[i // 100 % 10]} {words[i * 7 % 9]}" for i in range(1200)]
    (tmp_path / "many.txt").write_text("\n".join(lines) + "\n")
    found = run("index", tmp_path / "c", tmp_path / "many.txt", "--model", saved_model, "--kind", "ivf", "--recall", "0.9", "--json")
    assert found.code == 0, found.err
    assert (found.json["optimized"]["kind"], found.json["optimized"]["rows"], found.json["kind"]) == ("ivf", 1200, "ivf")
    seen = run("inspect", tmp_path / "c").out
    assert "index ivf" in seen
    assert "1,200 rows" in seen
    found = run("index", tmp_path / "c", "--optimize", "--kind", "exact", "--memory", "1GB", "--json")
    assert (found.code, found.json["kind"]) == (0, "exact")
