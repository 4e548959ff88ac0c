"""Documents and texts out of any table."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import polars
import pytest

from twinvec.data.documents import read_documents, read_texts
from twinvec.errors import DataError
from twinvec.records import Document


def put(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def plain(documents: Any) -> list[tuple[str, str, dict[str, Any]]]:
    return [(d.id, d.text, d.metadata) for d in documents]


@pytest.mark.parametrize(
    ("header", "metadata"),
    [("id,text,topic", {"topic": "z"}), ("_id,Text,topic", {"topic": "z"}), ("doc_id,sentence,x", {"x": "z"}), ("编号,文本,主题", {"主题": "z"})],
)
def test_csv_by_names(tmp_path: Path, header: str, metadata: dict[str, str]) -> None:
    path = put(tmp_path, "a.csv", f'{header}\n7,"x, y",z\n8,,z\n')
    assert plain(read_documents(path)) == [("7", "x, y", metadata), ("8", "", metadata)]


def test_plain_text_gets_ids_of_file_and_row(tmp_path: Path) -> None:
    path = put(tmp_path, "notes.v2.txt", "one\n\ntwo\n")
    assert plain(read_documents(path)) == [("notes.v2:1", "one", {}), ("notes.v2:2", "", {}), ("notes.v2:3", "two", {})]


def test_files_of_one_name_keep_their_ids_apart(tmp_path: Path) -> None:
    paths = [put(tmp_path, "en/faq.txt", "a\n"), put(tmp_path, "zh/faq.txt", "b\n"), put(tmp_path, "other.txt", "c\n")]
    assert [d.id for d in read_documents(paths)] == ["en/faq:1", "zh/faq:1", "other:1"]


def test_a_title_goes_before_the_text(tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl", '{"_id": "1", "title": "T", "text": "x"}\n{"_id": "2", "title": "", "text": "y"}\n{"_id": "3", "text": "z"}\n')
    assert plain(read_documents(path)) == [("1", "T x", {"title": "T"}), ("2", "y", {"title": ""}), ("3", "z", {})]
    assert [d.text for d in read_documents(path, text="text")] == ["x", "y", "z"]
    other = put(tmp_path, "b.csv", "id,title,content\n1,T,x\n")
    assert next(read_documents(other)).text == "x"
    assert next(read_documents(other, text="title+text")).text == "T x"
    with pytest.raises(DataError, match="no column for a title and a text"):
        next(read_documents(put(tmp_path, "c.csv", "id,text\n1,x\n"), text="title+text"))


def test_chosen_columns(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", "id,text,answer,key\n1,q,a,k\n")
    assert plain(read_documents(path, text="Answer", id="key")) == [("k", "a", {"id": 1, "text": "q"})]
    questions = put(tmp_path, "b.csv", "question,answer\nq,a\n")
    assert plain(read_documents(questions)) == [("b:1", "q", {"answer": "a"})]


def test_values_that_json_cannot_hold(tmp_path: Path) -> None:
    frame = polars.DataFrame(
        {
            "id": [1.0, 2.0],
            "text": ["a", "b"],
            "day": [datetime.date(2024, 1, 2), None],
            "n": [float("nan"), 1.5],
            "tags": [["x"], []],
            "raw": [b"\x01", b""],
        }
    )
    frame.write_parquet(tmp_path / "a.parquet")
    documents = plain(read_documents(tmp_path / "a.parquet"))
    assert documents[0] == ("1", "a", {"day": "2024-01-02", "n": None, "tags": ["x"], "raw": "01"})
    assert documents[1] == ("2", "b", {"day": None, "n": 1.5, "tags": [], "raw": ""})
    json.dumps([metadata for *_, metadata in documents], allow_nan=False)


def test_a_retrieval_folder_gives_its_corpus(tmp_path: Path) -> None:
    put(tmp_path, "set/corpus.jsonl", '{"_id": "1", "title": "T", "text": "x"}\n')
    assert list(read_documents(tmp_path / "set")) == [Document("1", "T x", {"title": "T"})]
    with pytest.raises(DataError, match=r"corpus\.jsonl and qrels|is a folder; give a file"):
        list(read_documents(put(tmp_path, "empty/x.csv", "").parent))


def test_documents_stream(tmp_path: Path) -> None:
    rows = read_documents(put(tmp_path, "a.csv", "text\nx\ny,z\n"))
    assert next(rows).text == "x"
    with pytest.raises(DataError, match=r"row 2 \(line 3\): 2 fields"):
        next(rows)


def test_repeated_ids_name_both_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.csv, row 3 \(line 4\): the id '1' was given before, in row 1 \(line 2\); .*--id"):
        list(read_documents(put(tmp_path, "a.csv", "id,text\n1,x\n2,y\n1,z\n")))


def test_texts(tmp_path: Path) -> None:
    assert read_texts(put(tmp_path, "a.txt", "b\n\nb\n")) == ["b", "", "b"]
    table = put(tmp_path, "a.csv", "text,title,note\nx,T,n\ny,,m\n")
    assert read_texts(table) == ["T x", "y"]
    assert read_texts(table, "note") == ["n", "m"]
    assert read_texts(put(tmp_path, "z.txt", "é\n"), encoding="utf-8") == ["é"]
