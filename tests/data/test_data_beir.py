"""Retrieval folders in BEIR layout."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from twinvec.data.beir import is_retrieval_folder, read_retrieval

CORPUS = [{"_id": "d1", "title": "Title", "text": "one"}, {"_id": "d2", "title": "", "text": "two", "metadata": {"url": "u"}}, {"_id": 3, "text": ""}]
QUERIES = [{"_id": "q1", "text": "first"}, {"_id": "q2", "text": "second"}, {"_id": "q3", "text": "third"}]
QRELS = "query-id\tcorpus-id\tscore\nq2\td1\t1\nq1\td2\t2\nq1\t3\t0\n"


def make(folder: Path, corpus: list[Any] = CORPUS, queries: list[Any] = QUERIES, qrels: str = QRELS, zipped: bool = False) -> Path:
    def lines(rows: list[Any]) -> str:
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    for name, text in (("corpus.jsonl", lines(corpus)), ("queries.jsonl", lines(queries)), ("qrels/test.tsv", qrels)):
        path = folder / (name + ".gz" if zipped else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    return folder


def test_a_folder(tmp_path: Path) -> None:
    data = read_retrieval(make(tmp_path / "a"))
    assert [(d.id, d.text) for d in data.corpus] == [("d1", "Title one"), ("d2", "two"), ("3", "")]
    assert [d.metadata for d in data.corpus] == [{"title": "Title"}, {"url": "u"}, {}]
    assert data.queries == {"q1": "first", "q2": "second"}
    assert data.qrels == {"q1": {"d2": 2.0, "3": 0.0}, "q2": {"d1": 1.0}}
    assert data.notes == ["1 of 3 queries have no judgement and are left out"]
    assert (data.path, data.split) == (tmp_path / "a", "test")
    assert data.describe() == [
        f"{tmp_path / 'a'}: 3 documents, 2 queries, 3 judgements (test)",
        "  note: 1 of 3 queries have no judgement and are left out",
        "  q1: first -> d2 (2): two",
        "  q2: second -> d1 (1): Title one",
    ]


def test_gzipped_files_give_the_same(tmp_path: Path) -> None:
    a, b = read_retrieval(make(tmp_path / "a")), read_retrieval(make(tmp_path / "b", zipped=True))
    assert (a.corpus, a.queries, a.qrels, a.notes) == (b.corpus, b.queries, b.qrels, b.notes)
    assert is_retrieval_folder(tmp_path / "a")
    assert is_retrieval_folder(tmp_path / "b")
    assert not is_retrieval_folder(tmp_path)


def test_unknown_ids_are_counted(tmp_path: Path) -> None:
    qrels = QRELS + "q1\tgone\t1\nq9\td1\t1\nq9\td2\t1\nq2\td1\t1\n"
    data = read_retrieval(make(tmp_path, qrels=qrels))
    assert data.qrels["q1"] == {"d2": 2.0, "3": 0.0, "gone": 1.0}
    assert data.notes == [
        "1 judgements stand there twice with the same grade and count once",
        "2 judgements belong to 1 queries that are not there and are left out (first: 'q9')",
        "1 judgements name documents that the corpus lacks; they count as not found (first: 'gone')",
        "1 of 3 queries have no judgement and are left out",
    ]


def test_qrels_without_a_header(tmp_path: Path) -> None:
    assert read_retrieval(make(tmp_path, qrels="q1\td1\t1\nq2\td2\t1\n")).qrels == {"q1": {"d1": 1.0}, "q2": {"d2": 1.0}}


def test_a_split_may_have_queries_of_its_own(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nt1\td1\t1\n")
    (folder / "queries.train.jsonl").write_text('{"_id": "t1", "text": "of training"}\n')
    assert read_retrieval(folder, "train").queries == {"t1": "of training"}
    assert list(read_retrieval(folder).queries) == ["q1", "q2"]
