"""Columns of numbers in CSV files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from twinvec.data.documents import read_documents
from twinvec.data.numbers import SAMPLE, as_number
from twinvec.errors import DataError


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("0", 0), ("-7", -7), ("2019", 2019), ("19.90", 19.9), ("0.5", 0.5), ("1e3", 1000.0), ("123456789012345", 123456789012345),
        ("007", None), ("02134", None), ("1234567890123456", None), ("1,000", None), ("1.", None), (".5", None), ("nan", None), ("inf", None),
        ("１２", None), ("+1", None), (" 1", None), ("", None), ("1_000", None),
    ],
)  # fmt: skip
def test_what_is_a_number(cell: str, number: Any) -> None:
    found = as_number(cell)
    assert found == number
    assert type(found) is type(number)


def read(path: Path, text: str, **options: Any) -> list[dict[str, Any]]:
    path.write_text(text, encoding="utf-8")
    return [document.metadata for document in read_documents(path, **options)]


def test_a_column_of_numbers_becomes_numbers(tmp_path: Path) -> None:
    table = "id,text,year,price,zip,code,empty\na,one,2019,19.90,02134,7,\nb,two,,5,94103,A7,\n"
    first, second = read(tmp_path / "t.csv", table)
    assert first == {"year": 2019, "price": 19.9, "zip": "02134", "code": "7", "empty": ""}
    assert second == {"year": None, "price": 5, "zip": "94103", "code": "A7", "empty": ""}


def test_text_stays_text_where_that_is_asked(tmp_path: Path) -> None:
    assert read(tmp_path / "t.tsv", "id\ttext\tyear\na\tone\t2019\n", numbers=False) == [{"year": "2019"}]


def test_ids_and_texts_stay_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,text,n\n1,2019,3\n2,2020,4\n", encoding="utf-8")
    found = list(read_documents(path))
    assert [(document.id, document.text, document.metadata) for document in found] == [("1", "2019", {"n": 3}), ("2", "2020", {"n": 4})]


def test_json_is_taken_at_its_word(tmp_path: Path) -> None:
    assert read(tmp_path / "t.jsonl", '{"id": "a", "text": "one", "year": "2019"}\n') == [{"year": "2019"}]


def test_another_text_below_the_sample_stays_text(tmp_path: Path) -> None:
    rows = "".join(f"{i},t{i},{i}\n" for i in range(SAMPLE))
    assert read(tmp_path / "t.csv", f"id,text,n\n{rows}x,last,unknown\n")[-1] == {"n": "unknown"}


def test_rows_before_a_bad_one_still_come_out(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,text,n\na,one,1\nb,two,2\nc,three,3,4,5\n", encoding="utf-8")
    found: list[dict[str, Any]] = []
    with pytest.raises(DataError, match="line 4"):
        found.extend(document.metadata for document in read_documents(path))
    assert found == [{"n": 1}, {"n": 2}]
