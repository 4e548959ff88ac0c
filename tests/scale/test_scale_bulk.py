"""Encoding in shards: the same numbers as one call, whole files only, and runs that go on where they were broken off."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow.parquet as pq
import pytest
from scale_fakes import TEXTS, BrokenOffError

from twinvec import read_vectors
from twinvec.errors import DataError, EncodeError, UsageError
from twinvec.index.collection import Collection
from twinvec.scale.bulk import encode_files
from twinvec.scale.parts import Parts


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("suffix", ["npy", "parquet"])
def test_shards_give_what_one_call_gives(suffix: str, encoder: Any, texts: Path, wanted: np.ndarray, tmp_path: Path) -> None:
    report = encode_files(encoder, texts, tmp_path / f"out.{suffix}", shard_rows=20)
    found = read_vectors(tmp_path / f"out.{suffix}")
    np.testing.assert_allclose(found.vectors, wanted, atol=1e-5)
    if suffix == "parquet":
        assert found.texts == TEXTS
        assert found.ids == [f"texts:{i + 1}" for i in range(len(TEXTS))]
    assert (report.rows, report.shards, report.resumed_rows) == (230, 12, 0)
    assert names(tmp_path) == [f"out.{suffix}", "texts.txt"]


def test_the_report_is_that_of_one_call(encoder: Any, tmp_path: Path) -> None:
    texts = [*TEXTS, "the cat sat on the mat " * 40, "  "]
    (tmp_path / "t.txt").write_text("".join(f"{text}\n" for text in texts))
    whole = encoder.encode_with_report(texts).report
    found = encode_files(encoder, tmp_path / "t.txt", tmp_path / "out.npy", shard_rows=7)
    for name in ("rows", "tokens", "truncated", "truncated_tokens", "split", "longest", "prompt", "engine", "precision"):
        assert getattr(found, name) == getattr(whole, name), name
    assert found.unknown_rate == pytest.approx(whole.unknown_rate)
    assert (found.empty, found.empty_rows) == (len(whole.empty), whole.empty[:100])
    assert found.cache_hits == len(texts) - len(set(texts))
    assert [note.split(" texts ")[1] for note in found.warnings()[1:]] == [note.split(" texts ")[1] for note in whole.warnings()]


def test_equal_texts_are_encoded_once(encoder: Any, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    original = type(encoder).encode_with_report

    def listening(self: Any, given: list[str], **options: Any) -> Any:
        asked.extend(given)
        return original(self, given, **options)

    monkeypatch.setattr(type(encoder), "encode_with_report", listening)
    encode_files(encoder, texts, tmp_path / "a.npy", shard_rows=20)
    assert sorted(asked) == sorted(set(TEXTS))
    asked.clear()
    report = encode_files(encoder, texts, tmp_path / "b.npy", shard_rows=20, cache_bytes=0)
    assert len(asked) == sum(len(set(TEXTS[at : at + 20])) for at in range(0, 230, 20)) == 230 - report.cache_hits
    np.testing.assert_allclose(np.load(tmp_path / "a.npy"), np.load(tmp_path / "b.npy"), atol=1e-5)


@pytest.mark.parametrize(
    ("suffix", "store", "cache_bytes"),
    [
        *((suffix, store, 3000) for suffix in ("npy", "parquet") for store in ("float32", "float16", "int8", "binary")),
        ("npy", "float32", 0),
        ("parquet", "int8", 1 << 20),
    ],
)
def test_a_broken_run_goes_on_to_the_same_file(
    suffix: str, store: str, cache_bytes: int, encoder: Any, texts: Path, tmp_path: Path, broken_after: Any
) -> None:
    options: dict[str, Any] = {"store": store, "shard_rows": 20, "cache_bytes": cache_bytes}
    encode_files(encoder, texts, tmp_path / f"whole.{suffix}", **options)
    notes: list[str] = []
    broken_after(6)
    with pytest.raises(BrokenOffError):
        encode_files(encoder, texts, tmp_path / f"out.{suffix}", notify=notes.append, **options)
    assert "5 parts" in notes[-1]
    assert not (tmp_path / f"out.{suffix}").exists()
    broken_after(3)
    with pytest.raises(BrokenOffError):
        encode_files(encoder, texts, tmp_path / f"out.{suffix}", **options)
    broken_after(0)
    report = encode_files(encoder, texts, tmp_path / f"out.{suffix}", **options)
    assert (report.rows, report.resumed_rows) == (230, 140)
    assert (tmp_path / f"out.{suffix}").read_bytes() == (tmp_path / f"whole.{suffix}").read_bytes()
    assert not (tmp_path / f"out.{suffix}.parts").exists()


def test_the_report_of_a_resumed_run_is_that_of_an_unbroken_one(encoder: Any, texts: Path, tmp_path: Path, broken_after: Any) -> None:
    whole = encode_files(encoder, texts, tmp_path / "whole.npy", shard_rows=20, store="int8").to_dict()
    broken_after(6)
    with pytest.raises(BrokenOffError):
        encode_files(encoder, texts, tmp_path / "out.npy", shard_rows=20, store="int8")
    broken_after(0)
    found = encode_files(encoder, texts, tmp_path / "out.npy", shard_rows=20, store="int8").to_dict()
    assert {key for key in whole if whole[key] != found[key]} == {"seconds", "output", "resumed_rows"}


def test_a_job_that_differs_is_refused_with_what_differs(encoder: Any, texts: Path, tmp_path: Path, broken_after: Any) -> None:
    broken_after(6)
    with pytest.raises(BrokenOffError):
        encode_files(encoder, texts, tmp_path / "out.npy", shard_rows=20)
    broken_after(0)
    kept = names(tmp_path / "out.npy.parts")
    with pytest.raises(UsageError, match=r"5 parts .* option store was float32, is float16\. Give the options .* or --no-resume"):
        encode_files(encoder, texts, tmp_path / "out.npy", shard_rows=20, store="float16")
    texts.write_text(texts.read_text() + "more\n")
    with pytest.raises(UsageError, match=r"input 1 bytes was \d+, is \d+; input 1 sha256_of_head was"):
        encode_files(encoder, texts, tmp_path / "out.npy", shard_rows=20)
    assert names(tmp_path / "out.npy.parts") == kept
    report = encode_files(encoder, texts, tmp_path / "out.npy", shard_rows=20, store="float16", resume=False)
    assert (report.rows, report.resumed_rows) == (231, 0)


def test_rows_that_changed_unseen_are_found(encoder: Any, tmp_path: Path, broken_after: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.txt").write_text("".join(f"the cat {i}\n" for i in range(100)))
    monkeypatch.setattr("twinvec.scale.run.head_digest", lambda _: "the same")
    broken_after(4)
    with pytest.raises(BrokenOffError):
        encode_files(encoder, tmp_path / "t.txt", tmp_path / "out.npy", shard_rows=20)
    broken_after(0)
    (tmp_path / "t.txt").write_text("".join(f"the {'dog' if i == 33 else 'cat'} {i}\n" for i in range(100)))
    with pytest.raises(DataError, match=r"rows 21 to 40 of the input are not those that .*out\.npy\.parts was begun with"):
        encode_files(encoder, tmp_path / "t.txt", tmp_path / "out.npy", shard_rows=20)


def test_two_runs_cannot_write_one_output(encoder: Any, texts: Path, tmp_path: Path, broken_after: Any) -> None:
    broken_after(3)
    with pytest.raises(BrokenOffError):
        encode_files(encoder, texts, tmp_path / "out.npy", shard_rows=20)
    other = Parts(tmp_path / "out.npy")
    other._hold()
    with pytest.raises(UsageError, match=r"out\.npy\.parts is in use: another run"):
        encode_files(encoder, texts, tmp_path / "out.npy", shard_rows=20)
    other.close()


def test_a_failure_before_the_first_shard_leaves_nothing(encoder: Any, texts: Path, tmp_path: Path, broken_after: Any) -> None:
    broken_after(1)
    with pytest.raises(BrokenOffError):
        encode_files(encoder, texts, tmp_path / "out.npy", shard_rows=20)
    assert names(tmp_path) == ["texts.txt"]


def test_several_files_and_formats_are_one_input(encoder: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,text\n1,"the cat\nsat"\n2,the dog\n')
    (tmp_path / "b.jsonl").write_text('{"text": "where is", "id": "x"}\n')
    polars.DataFrame({"text": ["my refund", "the cat"], "id": ["p", "q"], "other": [[1.0], [2.0]]}).write_parquet(tmp_path / "c.parquet")
    encode_files(encoder, [tmp_path / name for name in ("a.csv", "b.jsonl", "c.parquet")], tmp_path / "out.parquet", shard_rows=2)
    found = read_vectors(tmp_path / "out.parquet")
    assert found.ids == ["1", "2", "x", "p", "q"]
    assert found.texts == ["the cat\nsat", "the dog", "where is", "my refund", "the cat"]
    np.testing.assert_allclose(found.vectors, encoder.encode(found.texts), atol=1e-5)


def test_a_collection_is_filled_and_goes_on(encoder: Any, tmp_path: Path, broken_after: Any) -> None:
    lines = [json.dumps({"id": f"d{i}", "text": f"the cat {i % 9}", "topic": i}) for i in range(50)]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines))
    broken_after(3)
    with pytest.raises(BrokenOffError):
        encode_files(encoder, tmp_path / "docs.jsonl", f"collection:{tmp_path / 'faq'}", shard_rows=10)
    broken_after(0)
    report = encode_files(encoder, tmp_path / "docs.jsonl", f"collection:{tmp_path / 'faq'}", shard_rows=10)
    assert (report.rows, report.resumed_rows) == (50, 20)
    with Collection.open(tmp_path / "faq", encoder) as faq:
        assert len(faq) == 50
        assert faq.settings.document_prompt == "passage"
        document = faq.get("d37")
        assert document is not None
        assert (document.text, document.metadata) == ("the cat 1", {"topic": 37})
        np.testing.assert_allclose(faq.vector("d37"), encoder.encode("the cat 1", prompt="passage")[0], atol=1e-5)
    assert names(tmp_path) == ["docs.jsonl", "faq"]


def test_rows_are_named_by_their_place_in_the_whole_input(encoder: Any, tmp_path: Path) -> None:
    rows = [{"id": f"d{i}", "text": "the cat sat" if i != 27 else "the cat " * 100} for i in range(40)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(EncodeError, match=r"texts 21 to 30: row 27 \(id 'd27'\) has \d+ tokens, the model's window is 64"):
        encode_files(encoder, tmp_path / "t.jsonl", tmp_path / "out.parquet", shard_rows=10, on_long="error")


def test_memory_does_not_grow_with_the_rows(encoder: Any, tmp_path: Path) -> None:
    """Distinct texts, so that the cache is full early; what is measured is Python's and numpy's memory."""

    def peak(rows: int) -> int:
        path = tmp_path / f"{rows}.txt"
        path.write_text("".join(f"cat {i}\n" for i in range(rows)))
        tracemalloc.start()
        encode_files(encoder, path, tmp_path / f"{rows}.parquet", shard_rows=250, cache_bytes=100_000)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(500)
    small, large = peak(1000), peak(4000)
    assert large < small * 1.2 + 300_000


def test_one_row_group_a_shard_and_notes_in_the_schema(encoder: Any, texts: Path, tmp_path: Path) -> None:
    encode_files(encoder, texts, tmp_path / "out.parquet", shard_rows=100, prompt="query")
    file = pq.ParquetFile(tmp_path / "out.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [100, 100, 30]
    notes = read_vectors(tmp_path / "out.parquet").notes
    assert (notes["fingerprint"], notes["prompt"], notes["store"]) == (encoder.fingerprint, "query: ", "float32")


def test_dimensions_are_cut_and_at_length_1_again(encoder: Any, texts: Path, wanted: np.ndarray, tmp_path: Path) -> None:
    notes: list[str] = []
    encode_files(encoder, texts, tmp_path / "out.npy", dimensions=10, shard_rows=50, notify=notes.append)
    cut = wanted[:, :10] / np.linalg.norm(wanted[:, :10], axis=1, keepdims=True)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), cut, atol=1e-5)
    assert "does not say that it was trained to be cut" in notes[0]


def test_one_very_long_line_is_a_shard_of_its_own(encoder: Any, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("the cat\n" + "mat " * 250_000 + "\nthe dog\n")
    report = encode_files(encoder, tmp_path / "t.txt", tmp_path / "out.npy", shard_characters=1000)
    assert (report.rows, report.shards, report.truncated) == (3, 3, 1)
