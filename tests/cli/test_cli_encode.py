"""`twinvec encode` and `twinvec similarity`."""

from __future__ import annotations

import csv
import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest

from twinvec import read_vectors
from twinvec.model.encoder import Encoder
from twinvec.scale import bulk

KEYS = {"rows", "dimensions", "tokens", "truncated", "empty", "unknown_rate", "engine", "precision", "seconds"}
KEYS |= {"cache_hits", "shards", "resumed_rows", "processes", "store", "output", "bytes", "model", "fingerprint"}


def test_npy_holds_what_encode_gives_in_the_files_order(run: Any, saved_model: Path, files: Path) -> None:
    found = run("encode", saved_model, files / "lines.txt", "-o", files / "out.npy", "--prompt", "query", "--json")
    assert found.code == 0, found.err
    assert found.json.keys() >= KEYS
    assert (found.json["rows"], found.json["dimensions"], found.json["empty"]) == (4, 32, 1)
    assert (found.json["engine"], found.json["precision"], found.json["prompt"]) == ("torch", "float32", "query: ")
    vectors = np.load(files / "out.npy")
    assert vectors.dtype == np.float32
    wanted = Encoder.load(saved_model).encode(["the cat sat", "", "如何关闭支付宝", "the cat sat"], prompt="query")
    np.testing.assert_allclose(vectors, wanted, atol=1e-6)
    np.testing.assert_array_equal(vectors[0], vectors[3])
    assert [path.name for path in files.glob(".*")] == []


def test_parquet_holds_id_text_and_vector(run: Any, saved_model: Path, files: Path) -> None:
    found = run("encode", saved_model, files / "answers.csv", "-o", files / "out.parquet", "--prompt", "passage")
    assert found.code == 0, found.err
    frame = polars.read_parquet(files / "out.parquet")
    assert frame.columns == ["id", "text", "vector"]
    assert frame["id"].to_list() == ["pay-1", "pay-2", "order-1", "empty-1"]
    wanted = Encoder.load(saved_model).encode(frame["text"].to_list(), prompt="passage")
    np.testing.assert_allclose(frame["vector"].to_numpy(), wanted, atol=1e-6)


def test_standard_input_is_one_text_a_line(run: Any, saved_model: Path, tmp_path: Path) -> None:
    found = run("encode", saved_model, "-", "-o", tmp_path / "o.parquet", "-q", input="\ufeff如何\r\n\nthe cat".encode())
    assert found.code == 0, found.err
    frame = polars.read_parquet(tmp_path / "o.parquet")
    assert frame["id"].to_list() == ["stdin:1", "stdin:2", "stdin:3"]
    assert frame["text"].to_list() == ["如何", "", "the cat"]


def test_other_encodings_gzip_and_columns(run: Any, saved_model: Path, tmp_path: Path) -> None:
    with gzip.open(tmp_path / "t.csv.gz", "wb") as stream:
        stream.write("号,说法\n1,如何关闭\n2,花呗\n".encode("gb18030"))
    common = ("-o", tmp_path / "o.parquet", "--encoding", "gb18030", "--column", "说法")
    found = run("encode", saved_model, tmp_path / "t.csv.gz", *common, "--id", "号")
    assert found.code == 0, found.err
    assert polars.read_parquet(tmp_path / "o.parquet")["id"].to_list() == ["1", "2"]
    again = run("encode", saved_model, tmp_path / "t.csv.gz", *common, "--force")
    assert again.code == 0, again.err
    assert polars.read_parquet(tmp_path / "o.parquet")["id"].to_list() == ["t:1", "t:2"]


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_float16_is_stored_as_such(suffix: str, run: Any, saved_model: Path, files: Path) -> None:
    path = files / f"half{suffix}"
    assert run("encode", saved_model, files / "lines.txt", "-o", path, "--store", "float16", "-q").code == 0
    vectors = np.load(path) if suffix == ".npy" else polars.read_parquet(path)["vector"].to_numpy()
    assert vectors.shape == (4, 32)
    assert vectors.dtype == np.float16
    np.testing.assert_allclose(vectors, Encoder.load(saved_model).encode((files / "lines.txt").read_text().split("\n")[:4]), atol=1e-3)


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_blocks_give_the_same_file(suffix: str, run: Any, saved_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"the cat {i % 7} sat" if i % 5 else "" for i in range(23)]
    (tmp_path / "t.txt").write_text("".join(f"{text}\n" for text in texts))
    whole = run("encode", saved_model, tmp_path / "t.txt", "-o", tmp_path / f"whole{suffix}", "--json", "-q")
    monkeypatch.setattr("twinvec.scale.bulk.encode_files.__kwdefaults__", {**bulk.encode_files.__kwdefaults__, "shard_rows": 4})
    cut = run("encode", saved_model, tmp_path / "t.txt", "-o", tmp_path / f"cut{suffix}", "--json", "-q")
    assert whole.code == cut.code == 0
    for key in ("rows", "tokens", "empty", "empty_rows", "truncated", "longest"):
        assert cut.json[key] == whole.json[key], key
    assert cut.json["unknown_rate"] == pytest.approx(whole.json["unknown_rate"])
    assert (whole.json["shards"], cut.json["shards"]) == (1, 6)
    assert sorted(os.listdir(tmp_path)) == sorted(["t.txt", f"whole{suffix}", f"cut{suffix}"])
    if suffix == ".npy":
        np.testing.assert_allclose(np.load(tmp_path / "cut.npy"), np.load(tmp_path / "whole.npy"), atol=1e-6)
    else:
        a, b = polars.read_parquet(tmp_path / "cut.parquet"), polars.read_parquet(tmp_path / "whole.parquet")
        assert a["id"].to_list() == b["id"].to_list()
        np.testing.assert_allclose(a["vector"].to_numpy(), b["vector"].to_numpy(), atol=1e-6)


def test_long_texts_are_cut_counted_split_or_refused(run: Any, saved_model: Path, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("the cat\n" + "the cat sat on the mat " * 30 + "\n")
    cut = run("encode", saved_model, tmp_path / "t.txt", "-o", tmp_path / "a.npy", "--json")
    assert cut.json["truncated"] == 1
    assert cut.json["truncated_tokens"] > 50
    assert "longer than the model's window" in cut.err
    split = run("encode", saved_model, tmp_path / "t.txt", "-o", tmp_path / "b.npy", "--on-long", "split", "--json")
    assert (split.json["truncated"], split.json["split"]) == (0, 1)
    assert not np.allclose(np.load(tmp_path / "a.npy")[1], np.load(tmp_path / "b.npy")[1])


def test_many_files_small_numbers_short_vectors(run: Any, saved_model: Path, files: Path) -> None:
    out = files / "out.parquet"
    found = run("encode", saved_model, files / "lines.txt", files / "answers.csv", "-o", out, "--store", "int8", "--dimensions", "16", "--json")
    assert found.code == 0, found.err
    assert (found.json["rows"], found.json["dimensions"], found.json["store"], found.json["cache_hits"]) == (8, 16, "int8", 2)
    assert "does not say that it was trained to be cut" in found.err
    read = read_vectors(out)
    assert read.ids == ["lines:1", "lines:2", "lines:3", "lines:4", "pay-1", "pay-2", "order-1", "empty-1"]
    wanted = Encoder.load(saved_model).encode(read.texts)[:, :16]
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(read.vectors, wanted, atol=0.01)


def test_a_collection_as_output(run: Any, saved_model: Path, files: Path) -> None:
    found = run("encode", saved_model, files / "answers.csv", "-o", f"collection:{files / 'faq'}", "--json")
    assert found.code == 0, found.err
    assert (found.json["rows"], found.json["prompt"], found.json["output"]) == (4, "passage: ", f"collection:{files / 'faq'}")
    hits = run("search", files / "faq", "where is my refund", "-k", "1", "--json")
    assert [hit["id"] for hit in hits.json["hits"]] == ["order-1"]


def test_processes_that_do_not_pay_are_said(run: Any, saved_model: Path, files: Path) -> None:
    found = run("encode", saved_model, files / "lines.txt", "-o", files / "out.npy", "--processes", "2")
    assert "the input is one shard" in found.err


def test_an_interrupt_leaves_the_old_file(run: Any, saved_model: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (files / "out.npy").write_bytes(b"old")

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Encoder, "encode_with_report", stop)
    monkeypatch.setattr("twinvec.model.folder._check_golden", lambda *_: None)
    before = sorted(os.listdir(files))
    found = run("encode", saved_model, files / "lines.txt", "-o", files / "out.npy", "--force")
    assert (found.code, found.out) == (130, "")
    assert (files / "out.npy").read_bytes() == b"old"
    assert sorted(os.listdir(files)) == before


# similarity


def test_two_texts_give_their_cosine(run: Any, saved_model: Path) -> None:
    texts = ["the cat sat", "如何关闭支付宝"]
    u, v = Encoder.load(saved_model).encode(texts, prompt="query").astype(np.float64)
    wanted = u @ v / np.linalg.norm(u) / np.linalg.norm(v)
    found = run("similarity", saved_model, *texts, "--prompt", "query", "--json")
    assert found.json["similarity"] == pytest.approx(wanted, abs=1e-6)
    assert found.err == ""
    assert run("similarity", saved_model, *texts, "--prompt", "query").out == f"{wanted:.4f}\n"


def test_more_texts_give_a_table(run: Any, saved_model: Path) -> None:
    texts = ["the cat sat", "如何关闭支付宝", "where is my refund"]
    found = run("similarity", saved_model, *texts, "--prompt", "", "--json")
    matrix = np.asarray(found.json["similarity"])
    assert matrix.shape == (3, 3)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-9)
    np.testing.assert_allclose(np.diag(matrix), 1, atol=1e-6)
    shown = run("similarity", saved_model, *texts, "--prompt", "").out.splitlines()
    assert len(shown) == 4
    assert shown[2].endswith("  如何关闭支付宝")


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_a_file_of_pairs_is_scored_with_its_other_columns(suffix: str, run: Any, saved_model: Path, files: Path) -> None:
    path = files / f"scored{suffix}"
    found = run("similarity", saved_model, "--data", files / "pairs.csv", "-o", path, "--prompt", "query", "--json")
    assert found.code == 0, found.err
    assert found.json["rows"] == 4
    if suffix == ".parquet":
        rows = polars.read_parquet(path).to_dicts()
    elif suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    else:
        with open(path, encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream, delimiter="\t" if suffix == ".tsv" else ","))
    assert list(rows[0]) == ["sentence1", "sentence2", "score", "similarity"]
    assert [row["score"] for row in rows] == ["4.8", "3.1", "1.2", "0"]
    assert rows[1]["sentence2"] == "the cat sat on the mat, and looked"
    u, v = (Encoder.load(saved_model).encode([row[name] for row in rows], prompt="query") for name in ("sentence1", "sentence2"))
    np.testing.assert_allclose([float(row["similarity"]) for row in rows], (u * v).sum(1), atol=1e-6)


def test_without_output_pairs_are_printed(run: Any, saved_model: Path, files: Path) -> None:
    shown = run("similarity", saved_model, "--data", files / "pairs.csv", "-q").out.splitlines()
    assert len(shown) == 4
    assert shown[2].split("\t")[1:] == ["如何关闭支付宝免密支付", "花呗什么时候还款"]
