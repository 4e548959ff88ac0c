"""Reading files: no row lost, none reordered, whatever the format and its habits."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import polars
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twinvec.data.tables import read_table, stream_rows
from twinvec.data.textfile import read_lines
from twinvec.errors import DataError

ROWS = [["a plane", "飞机", "1"], ["with, comma", 'with "quotes"', "2.5"], ["two\nlines", "", "3"], [" spaces ", "é\u2028\x0b\x85x", "0"]]
NAMES = ["sentence1", "sentence2", "score"]


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return path


def csv_text(rows: list[list[str]], end: str = "\n") -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator=end).writerows(rows)
    return out.getvalue()


def rows_of(table: Any) -> list[list[Any]]:
    return [list(row) for row in zip(*table.columns.values(), strict=True)]


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz", "X.CSV", "x.data"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff", "\ufeff\ufeff"])
def test_csv(tmp_path: Path, name: str, end: str, mark: str) -> None:
    path = put(tmp_path, name, mark + csv_text([NAMES, *ROWS], end))
    table = read_table(path, format="csv" if name == "x.data" else None)
    assert list(table.columns) == NAMES
    assert rows_of(table) == ROWS
    assert table.lines == [2, 3, 4, 6]  # the third row holds a line break
    assert table.where(3) == f"{path}, row 4 (line 6)"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "gb18030", "utf-8-sig", "UTF8"])
def test_other_encodings(tmp_path: Path, encoding: str) -> None:
    path = put(tmp_path, "x.csv", csv_text([NAMES, *ROWS]).encode(encoding))
    assert rows_of(read_table(path, encoding=encoding)) == ROWS


def test_gzip_is_known_by_its_bytes(tmp_path: Path) -> None:
    path = put(tmp_path, "x.csv", gzip.compress(csv_text([NAMES, *ROWS]).encode()))
    assert rows_of(read_table(path)) == ROWS


def test_all_formats_give_the_same_rows(tmp_path: Path) -> None:
    rows = [["a plane", "飞机", "1"], ['"quoted', "x,y", "2"], ["", "z", "3"]]
    objects = [dict(zip(NAMES, row, strict=True)) for row in rows]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in objects)
    tabs = "".join("\t".join(row) + "\n" for row in [NAMES, *rows])
    polars.DataFrame(objects).write_parquet(tmp_path / "x.parquet")
    texts = {"x.csv": csv_text([NAMES, *rows]), "x.tsv": tabs, "x.tsv.gz": tabs, "x.jsonl": lines, "x.ndjson.gz": lines, "y.json": lines}
    texts["x.json"] = json.dumps(objects, indent=1)
    paths = [put(tmp_path, name, text) for name, text in texts.items()]
    paths += [tmp_path / "x.parquet", put(tmp_path, "x.parquet.gz", (tmp_path / "x.parquet").read_bytes())]
    for path in paths:
        assert rows_of(read_table(path)) == rows, path


def test_a_tsv_line_that_starts_with_a_quote_keeps_its_row(tmp_path: Path) -> None:
    """pytorch/text#612: read as quoted, such a line swallows those that follow."""
    path = put(tmp_path, "x.tsv", 'sentence1\tsentence2\tscore\n"He left\tShe stayed\t1\na\t"b" c\t2\nd\te\t3"\n')
    assert rows_of(read_table(path)) == [['"He left', "She stayed", "1"], ["a", '"b" c', "2"], ["d", "e", '3"']]


def test_bom_crlf_and_a_trailing_tab(tmp_path: Path) -> None:
    """text2vec readers: strip().split(tab) drops an empty last column, and the mark stays in the first cell."""
    plain = put(tmp_path, "a.tsv", "text\tnote\nx\t\ny\tz\n")
    odd = put(tmp_path, "b.tsv", "\ufefftext\tnote\r\nx\t\r\ny\tz\r\n")
    assert read_table(plain).columns == read_table(odd).columns == {"text": ["x", "y"], "note": ["", "z"]}


def test_raw_sts_with_extra_tabs_keeps_its_rows(tmp_path: Path) -> None:
    """STS-B raw: no header, and some rows carry source columns behind the two sentences."""
    lines = [f"main\tMSR\t2012\t{i:04}\t{i % 5}.000\tA plane {i}.\tA jet {i}." + ("\tsource\tsource2" if i % 3 == 0 else "") for i in range(50)]
    table = read_table(put(tmp_path, "sts-train.tsv", "\n".join(lines) + "\n"), header=False)
    assert len(table) == 50
    assert table.columns["6"] == [f"A plane {i}." for i in range(50)]
    assert table.columns["8"] == ["source" if i % 3 == 0 else None for i in range(50)]
    with pytest.raises(DataError, match=r"row 2 \(line 3\): 9 fields, but the header has 7 .*give positions"):
        read_table(put(tmp_path, "x.tsv", "\n".join(lines[1:]) + "\n"))


def test_every_line_of_a_text_is_kept(tmp_path: Path) -> None:
    """text2vec put the lines in a set. Only LF ends a line: other characters that Python calls line ends are part of the text."""
    content = "b\n\na\nb\n  \nx\u2028y\x0bz\x85\x1c\nlast"
    table = read_table(put(tmp_path, "x.txt", content))
    assert table.columns["text"] == content.split("\n")
    assert table.notes == ["2 of 7 lines are blank; each is kept as an empty text"]
    assert read_table(put(tmp_path, "y.txt", "a\r\nb\r\n\r\n")).columns["text"] == ["a", "b", ""]


def test_a_text_full_of_tabs_is_mentioned(tmp_path: Path) -> None:
    assert "give --format tsv" in read_table(put(tmp_path, "lcqmc.txt", "a\tb\t1\nc\td\t0\n")).notes[0]


def test_blank_lines_of_tables(tmp_path: Path) -> None:
    table = read_table(put(tmp_path, "x.csv", "a,b\n\n1,2\n\n\n3,4\n\n\n"))
    assert (rows_of(table), table.lines) == ([["1", "2"], ["3", "4"]], [3, 6])
    assert table.notes == ["3 blank lines between the rows were skipped"]
    one = read_table(put(tmp_path, "y.csv", "text\nx\n\ny\n\n"))
    assert (one.columns["text"], one.lines) == (["x", "", "y"], [2, 3, 4])
    assert one.notes == ["1 blank lines at the end were skipped"]
    lines = read_table(put(tmp_path, "z.jsonl", '{"a": 1}\n\n{"a": 2}\n\n'))
    assert (lines.columns["a"], lines.lines, len(lines.notes)) == ([1, 2], [1, 3], 1)


def test_missing_keys_are_none(tmp_path: Path) -> None:
    table = read_table(put(tmp_path, "x.jsonl", '{"a": 1}\n{"b": 2}\n{"c": null, "a": 3}\n'))
    assert table.columns == {"a": [1, None, 3], "b": [None, 2, None], "c": [None, None, None]}


def test_a_long_cell_is_read(tmp_path: Path) -> None:
    text = "long, " * 100_000
    assert read_table(put(tmp_path, "x.csv", csv_text([["text"], [text]]))).columns["text"] == [text]


def test_cells_in_quotes_of_a_tsv(tmp_path: Path) -> None:
    """TaxiNLI: tab-separated with CSV quoting inside."""
    path = put(tmp_path, "x.tsv", 'a\tb\n"""By placing"", he said"\t1\n"x"\t2\n')
    table = read_table(path)
    assert table.columns["a"][0] == '"""By placing"", he said"'
    assert "give --format tsv-quoted" in table.notes[0]
    assert read_table(path, format="tsv-quoted").columns["a"] == ['"By placing", he said', "x"]


def test_nameless_header_cells_get_a_name(tmp_path: Path) -> None:
    assert list(read_table(put(tmp_path, "x.csv", ",text, label \n0,a,1\n")).columns) == ["column 1", "text", "label"]


def test_rows_stream(tmp_path: Path) -> None:
    """The first row comes without the rest being read: a wrong last line is no hindrance."""
    path = put(tmp_path, "x.jsonl", '{"a": 1}\n' * 3 + "broken\n")
    rows = stream_rows(path)
    assert next(rows) == (1, {"a": 1})
    with pytest.raises(DataError, match="line 4"):
        list(rows)


def test_wrong_bytes_far_into_a_file_are_found(tmp_path: Path) -> None:
    content = ("名字,text\n" * 5000).encode() + b"caf\xe9\n"
    with pytest.raises(
        DataError, match=rf"line 5001: byte {len(content) - 2} \(e9 0a\) is not utf-8; the text before it is UTF-8, so the file is damaged"
    ):
        list(read_lines(put(tmp_path, "x.csv", content)))
    marked = b"\xef\xbb\xbfab\xff\n"
    with pytest.raises(DataError, match=r"line 1: byte 5 \(ff 0a\)"):
        list(read_lines(put(tmp_path, "y.csv", marked)))


CELL = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\x00"), max_size=12)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(CELL, CELL), min_size=1, max_size=6), end=st.sampled_from(["\n", "\r\n"]))
def test_what_is_written_is_read(tmp_path: Path, rows: list[tuple[str, str]], end: str) -> None:
    table = [["a", "b"], *map(list, rows)]
    out = io.StringIO()
    csv.writer(out, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(table)
    assert rows_of(read_table(put(tmp_path, "x.csv", out.getvalue()))) == table[1:]
    lines = "".join(json.dumps(dict(zip("ab", row, strict=True))) + end for row in rows)
    assert rows_of(read_table(put(tmp_path, "x.jsonl", lines))) == table[1:]


LINE = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\x00\n\r\t"), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(LINE, LINE), min_size=1, max_size=6), end=st.sampled_from(["\n", "\r\n"]), last=st.booleans())
def test_tabs_and_lines_lose_nothing(tmp_path: Path, rows: list[tuple[str, str]], end: str, last: bool) -> None:
    text = end.join(["a\tb", *("\t".join(row) for row in rows)]) + (end if last else "")
    assert rows_of(read_table(put(tmp_path, "x.tsv", text))) == [list(row) for row in rows]
    firsts = ["x", *(row[0] for row in rows)]
    assert read_table(put(tmp_path, "x.txt", end.join(firsts) + (end if last else ""))).columns["text"] == firsts


def test_order_and_repeats_are_kept(tmp_path: Path) -> None:
    texts = [f"text {random.Random(1).randrange(5)} {i % 7}" for i in range(500)]
    assert read_table(put(tmp_path, "x.txt", "\n".join(texts))).columns["text"] == texts
