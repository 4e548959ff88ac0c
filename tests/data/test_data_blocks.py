"""Files as blocks: every row once and in order, ids that differ, memory that stays flat, and row counts where they are cheap."""

from __future__ import annotations

import gzip
import io
import random
import tracemalloc
from itertools import pairwise
from pathlib import Path

import polars
import pytest

from twinvec.data.blocks import Source, count_rows, read_blocks
from twinvec.data.documents import read_documents, read_texts, stream_texts
from twinvec.data.unique import Seen
from twinvec.errors import DataError


def test_blocks_hold_every_row_once_and_end_where_they_must(tmp_path: Path) -> None:
    texts = ["a" * (i * 7 % 50) for i in range(100)]
    (tmp_path / "t.txt").write_text("".join(f"{text}\n" for text in texts))
    blocks = list(read_blocks(Source((str(tmp_path / "t.txt"),)), rows=9, characters=100))
    assert [text for block in blocks for text in block.texts] == texts
    assert [name for block in blocks for name in block.ids] == [f"t:{i + 1}" for i in range(100)]
    for block, after in pairwise(blocks):
        size = sum(map(len, block.texts))
        assert len(block) <= 9
        assert size <= 100 or len(block) == 1
        assert len(block) == 9 or size + len(after.texts[0]) > 100


@pytest.mark.parametrize("keep", ["texts", "ids", "documents"])
def test_what_is_kept(keep: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text,more\nx,one,1\n")
    (tmp_path / "b.txt").write_text("two\n")
    (block,) = read_blocks(Source((str(tmp_path / "a.csv"), str(tmp_path / "b.txt"))), rows=9, characters=100, keep=keep)
    assert block.texts == ["one", "two"]
    assert block.ids == ([] if keep == "texts" else ["x", "b:1"])
    assert [document.metadata for document in block.documents] == ([{"more": 1}, {}] if keep == "documents" else [])


def test_standard_input_stands_among_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "b.txt").write_text("four\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\ufefftwo\r\nthree".encode())))
    (block,) = read_blocks(Source((str(tmp_path / "a.txt"), "-", str(tmp_path / "b.txt"))), rows=9, characters=100)
    assert block.texts == ["one", "two", "three", "four"]
    assert block.ids == ["a:1", "stdin:1", "stdin:2", "b:1"]


def test_other_columns_of_parquet_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet as pq

    frame = polars.DataFrame({"vector": [[1.0] * 5] * 10, "text": [f"t{i}" for i in range(10)], "id": range(10)})
    frame.write_parquet(tmp_path / "x.parquet", row_group_size=3)
    asked = []
    original = pq.ParquetFile.iter_batches

    def listening(self: object, **options: object) -> object:
        asked.append(options["columns"])
        return original(self, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", listening)
    (block,) = read_blocks(Source((str(tmp_path / "x.parquet"),)), rows=99, characters=1000)
    assert asked == [["id", "text"]]
    assert block.ids == [str(i) for i in range(10)]
    assert list(stream_texts(tmp_path / "x.parquet")) == read_texts(tmp_path / "x.parquet") == block.texts


@pytest.mark.parametrize("zipped", [False, True])
def test_reading_takes_no_more_memory_for_more_rows(zipped: bool, tmp_path: Path) -> None:
    def peak(rows: int, name: str) -> int:
        path = tmp_path / name
        if name.endswith(".parquet"):
            polars.DataFrame({"text": [f"text number {i}" for i in range(rows)]}).write_parquet(path)
        else:
            content = "".join(f"text number {i}\n" for i in range(rows)).encode()
            path.write_bytes(gzip.compress(content, mtime=0) if zipped else content)
        tracemalloc.start()
        assert sum(1 for _ in stream_texts(path)) == rows
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    for name in ("t.txt.gz" if zipped else "t.txt", "t.parquet"):
        peak(1000, name)
        assert peak(40_000, name) < peak(10_000, name) + 200_000


@pytest.mark.parametrize("rows", [10, 1500, 5000])
@pytest.mark.parametrize("first", [0, 7])
def test_an_id_that_comes_again_is_named_with_both_rows(rows: int, first: int, tmp_path: Path) -> None:
    names = [f"d{i}" for i in range(rows)]
    names[-1] = names[first]
    (tmp_path / "a.csv").write_text("id,text\n" + "".join(f"{name},x\n" for name in names))
    seen = []
    with pytest.raises(
        DataError, match=rf"a\.csv, row {rows} \(line {rows + 1}\): the id 'd{first}' was given before, in row {first + 1} \(line {first + 2}\)"
    ):
        seen.extend(document.id for document in read_documents(tmp_path / "a.csv"))
    assert seen == names[:-1]


def test_rows_before_a_bad_one_come_out_first(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\nnot json\n')
    seen = []
    with pytest.raises(DataError, match="line 3"):
        seen.extend(document.text for document in read_documents(tmp_path / "a.jsonl"))
    assert seen == ["one", "two"]


def test_suspects_are_the_strings_that_were_there_before() -> None:
    drawn = random.Random(0)
    seen, known, at = Seen(), {}, 0
    for _ in range(200):
        strings = [str(drawn.randrange(3000)) for _ in range(drawn.randrange(40))]
        wanted = []
        for number, string in enumerate(strings, start=at):
            if string in known:
                wanted.append((number, string))
            known.setdefault(string, number)
        found = seen.add(strings)
        assert [(number, strings[number - at]) for number, _ in found] == wanted
        assert all(earlier < number for number, earlier in found)
        at += len(strings)


@pytest.mark.parametrize(
    ("name", "content", "count"),
    [
        ("a.txt", b"one\n\nthree", 3),
        ("a.txt", b"one\n", 1),
        ("a.csv", b'text,b\n"one\ntwo",2\n"a ""b""\n",3\n', 2),
        ("a.tsv", b'text\n"one\n', 1),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b"}\n', 2),
        ("a.txt.gz", gzip.compress(b"one\n", mtime=0), None),
        ("a.json", b'[{"text": "a"}]', None),
        ("none.txt", None, None),
    ],
)  # fmt: skip
def test_rows_are_counted_where_that_is_cheap(name: str, content: bytes | None, count: int | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert count_rows(Source((str(tmp_path / name),))) == count


def test_counts_of_several_files_add_up(tmp_path: Path) -> None:
    polars.DataFrame({"text": ["a"] * 7}).write_parquet(tmp_path / "x.parquet")
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert count_rows(Source((str(tmp_path / "x.parquet"), str(tmp_path / "a.txt")))) == 9
    assert count_rows(Source((str(tmp_path / "x.parquet"), "-"))) is None
