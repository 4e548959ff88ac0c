"""`twinvec search` with its modes, filters, files and tuning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twinvec.index.collection import Collection
from twinvec.model.encoder import Encoder
from twinvec.search.searcher import Searcher


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """A retrieval folder: a query for each of 24 documents."""
    folder = tmp_path / "labelled"
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": f"d{i}", "title": "", "text": f"item{i} of the long list"} for i in range(24)]
    queries = [{"_id": f"q{i}", "text": f"where is item{i}"} for i in range(24)]
    for name, rows in (("corpus", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    lines = ["query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t1" for i in range(24))]
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_every_mode_gives_the_librarys_hits(run: Any, saved_model: Path, collection: Path) -> None:
    with Collection.open(collection) as opened:
        searcher = Searcher(Encoder.load(saved_model), opened)
        for mode in ("dense", "lexical", "hybrid"):
            wanted = [hit.to_dict() for hit in searcher.search("where is 花呗", k=2, mode=mode, where="topic = 'pay'", explain=True)]
            found = run("search", collection, "where is 花呗", "-k", 2, "--mode", mode, "--where", "topic = 'pay'", "--explain", "--json")
            assert found.json["hits"] == wanted
            assert wanted
    table = run("search", collection, "花呗", "--mode", "hybrid", "--explain").out.splitlines()
    assert table[0].split()[:1] == ["1"]
    assert "dense rank" in table[1]
    assert "lexical score" in table[1]


def test_words_load_no_model(run: Any, collection: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Encoder, "load", staticmethod(lambda *args, **options: pytest.fail("a model was loaded")))
    found = run("search", collection, "refund", "--mode", "lexical", "--json").json
    assert [hit["id"] for hit in found["hits"]] == ["order-1"]
    noted = run("search", collection, "refund", "--mode", "lexical", "--model", "x", "--json").json
    assert noted["notes"] == ["--model is not needed with --mode lexical, which reads words only"]


def test_files_of_hits(run: Any, collection: Path, tmp_path: Path) -> None:
    (tmp_path / "queries.csv").write_text("id,text\nq7,refund\nq9,花呗\nq8,nothing there\n", encoding="utf-8")
    asked = ("search", collection, "--queries", tmp_path / "queries.csv", "--mode", "lexical")
    entries = run(*asked, "--json").json["queries"]
    assert [(entry["id"], entry["query"], [hit["id"] for hit in entry["hits"]]) for entry in entries] == [
        ("q7", "refund", ["order-1"]), ("q9", "花呗", ["pay-2"]), ("q8", "nothing there", []),
    ]  # fmt: skip
    made = run(*asked, "-o", tmp_path / "hits.jsonl", "--json").json
    assert (made["queries"], made["hits"]) == (3, 2)
    assert [json.loads(line) for line in (tmp_path / "hits.jsonl").read_text(encoding="utf-8").splitlines()] == entries
    run(*asked, "-o", tmp_path / "hits.trec")
    lines = [line.split() for line in (tmp_path / "hits.trec").read_text(encoding="utf-8").splitlines()]
    assert [[*line[:4], line[5]] for line in lines] == [
        ["q7", "Q0", "order-1", "1", "twinvec-lexical"],
        ["q9", "Q0", "pay-2", "1", "twinvec-lexical"],
    ]
    assert float(lines[0][4]) == entries[0]["hits"][0]["score"]
    refused = run(*asked, "-o", tmp_path / "hits.trec")
    assert (refused.code, "exists already" in refused.err) == (2, True)
    assert run(*asked, "-o", tmp_path / "hits.trec", "--force").code == 0


def test_a_file_without_ids_is_counted(run: Any, collection: Path, files: Path) -> None:
    (files / "asked.txt").write_text("refund\n花呗\n", encoding="utf-8")
    entries = run("search", collection, "--queries", files / "asked.txt", "--mode", "lexical", "--json").json["queries"]
    assert [entry["id"] for entry in entries] == ["1", "2"]


def test_tuning_by_a_folder_or_by_two_files(run: Any, saved_model: Path, labelled: Path, tmp_path: Path) -> None:
    assert run("index", tmp_path / "c", labelled, "--model", saved_model).code == 0
    found = run("search", tmp_path / "c", "--tune", labelled, "--json").json
    assert found["queries"] == {"chosen_on": 12, "held_out": 12}
    assert found["ndcg@10"]["held_out"]["lexical"] == 1.0
    with Collection.open(tmp_path / "c") as opened:
        assert Searcher(None, opened).fusion().to_dict() == found["fusion"]
    again = run("search", tmp_path / "c", "--tune", labelled / "qrels" / "test.tsv", "--queries", labelled / "queries.jsonl", "--json")
    assert again.json == found
    lines = run("search", tmp_path / "c", "--tune", labelled).out.splitlines()
    assert lines[0].startswith("stored: ")
    assert [line.split()[0] for line in lines[1:]] == ["nDCG@10", "queries", "dense", "lexical", "rrf", "tuned"]
    top = run("search", tmp_path / "c", "item7", "--mode", "hybrid", "--json").json["hits"][0]
    assert top["id"] == "d7"


def test_reranking_by_a_model_folder(run: Any, saved_model: Path, collection: Path) -> None:
    plain = run("search", collection, "the refund", "--json").json["hits"]
    again = run("search", collection, "the refund", "--rerank", saved_model, "--rerank-depth", 9, "--json").json["hits"]
    assert [hit["id"] for hit in again] == [hit["id"] for hit in plain]  # the same model scores the same way
    assert [hit["score"] for hit in again] == pytest.approx([hit["score"] for hit in plain], abs=1e-5)


def test_a_search_that_finds_nothing_says_why(run: Any, collection: Path) -> None:
    """A number never equals a text, which looks like a fault of the search when nothing is said."""
    nothing = run("search", collection, "花呗", "--mode", "lexical", "--where", "topic >= 2020", "--json")
    assert nothing.json["hits"] == []
    assert any("a text is no number" in note and "--where" in note for note in nothing.json["notes"])
    words = run("search", collection, "zzzqqq", "--mode", "lexical", "--json")
    assert words.json["notes"] == ["no hits: no document holds a word of the query"]
    assert run("search", collection, "花呗", "--json").json["notes"] == []
