"""`twinvec export` and `twinvec tune` at the command line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinvec.cli import trials
from twinvec.cli.trials import Laboratory, Setting, Trial
from twinvec.cli.tune import _choose, acceptable
from twinvec.model.encoder import Encoder
from twinvec.model.engines.manifest import LEAST_COSINE
from twinvec.model.engines.profile import read_profile

pytest.importorskip("ctranslate2")


@pytest.fixture
def model(saved_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved_model, tmp_path / "model"))


def test_export_then_encode(run: Any, model: Path, files: Path) -> None:
    found = run("export", model, "--engine", "ctranslate2", "--precision", "int8", "--data", files / "pairs.csv", "--max-loss", "100", "--json")
    assert found.code == 0, found.err
    told = found.json
    assert (told["engine"], told["precision"], told["output"]) == ("ctranslate2", "int8", str(model / "engines" / "ctranslate2-int8"))
    assert told["least_cosine"] >= LEAST_COSINE["int8"]
    assert {"before", "after", "max_loss"} == set(told["quality"])
    assert told["bytes"] > 1000
    options = ["--engine", "ctranslate2", "--precision", "int8", "--json"]
    found = run("encode", model, files / "lines.txt", "-o", files / "out.npy", *options)
    assert found.code == 0, found.err
    assert (found.json["engine"], found.json["precision"], found.json["rows"]) == ("ctranslate2", "int8", 4)
    assert run("similarity", model, "the cat", "a dog", *options).json["similarity"] == pytest.approx(
        run("similarity", model, "the cat", "a dog", "--json").json["similarity"], abs=0.05
    )
    measured = run("evaluate", model, files / "pairs.csv", "--prompt", "query", *options)
    assert measured.code == 0, measured.err


def test_a_collection_is_searched_by_another_engine(run: Any, model: Path, files: Path) -> None:
    assert run("export", model, "--engine", "ctranslate2").code == 0
    assert run("index", files / "faq", files / "answers.csv", "--model", model).code == 0
    plain = run("search", files / "faq", "where is my refund", "--json")
    other = run("search", files / "faq", "where is my refund", "--engine", "ctranslate2", "--json")
    assert other.code == 0, other.err
    assert [hit["id"] for hit in other.json["hits"]] == [hit["id"] for hit in plain.json["hits"]]


def test_export_to_a_new_folder(run: Any, model: Path, tmp_path: Path) -> None:
    found = run("export", model, "--engine", "ctranslate2", "-o", tmp_path / "copy")
    assert found.code == 0, found.err
    assert "use it: --engine ctranslate2 --precision float32" in found.out
    assert not (model / "engines").exists()
    np.testing.assert_allclose(Encoder.load(tmp_path / "copy", engine="ctranslate2").encode("a cat"), Encoder.load(model).encode("a cat"), atol=1e-5)
    again = run("export", model, "--engine", "ctranslate2", "-o", tmp_path / "copy")
    assert (again.code, "exists already" in again.err) == (2, True)
    assert run("export", model, "--engine", "ctranslate2", "-o", tmp_path / "copy", "--force").code == 0


WRONG = [
    ("export without an engine", "export {m}", 2, "Missing option '--engine'"),
    ("export for torch", "export {m} --engine torch", 2, "'torch' is not one of ctranslate2, onnx"),
    ("export in bf16", "export {m} --engine onnx --precision bf16", 2, "'bf16' is not one of float32, int8"),
    ("a loss without data", "export {m} --engine ctranslate2 --max-loss 1", 2, "--max-loss is about the file of --data FILE"),
    ("data that are not there", "export {m} --engine ctranslate2 --data {d}/no.csv", 1, "no.csv: no such file"),
    ("data without labels", "export {m} --engine ctranslate2 --data {d}/lines.txt", 1, "lines.txt"),
    ("tune with an unknown engine", "tune {m} --engines tpu", 2, "--engines = 'tpu': choose one of torch, ctranslate2, onnx"),
    ("tune allowing float32", "tune {m} --allow float64", 2, "--allow = 'float64': choose one of bf16, int8"),
    ("tune's loss without data", "tune {m} --max-loss 1", 2, "--max-loss is about the file of --data FILE"),
    ("tune on texts that are not there", "tune {m} --texts {d}/no.txt", 1, "no.txt: no such file"),
    ("tune on no texts", "tune {m} --texts {d}/empty.txt", 1, "empty.txt"),
    ("tune into a folder that is there", "tune {m} -o {d}", 2, "exists already; give another name"),
    ("tune without a model", "tune {d}/nowhere", 1, "no model"),
]


@pytest.mark.parametrize(("name", "arguments", "code", "message"), WRONG, ids=[row[0] for row in WRONG])
def test_wrong(
    name: str, arguments: str, code: int, message: str, run: Any, model: Path, files: Path, record_property: Callable[[str, object], None]
) -> None:
    (files / "empty.txt").write_text("\n\n", encoding="utf-8")
    before = sorted(files.rglob("*"))
    found = run(*[word.format(m=model, d=files) for word in arguments.split()])
    assert (found.code, re.search(message, found.err) is not None) == (code, True), found.err
    record_property("message", found.err.splitlines()[-1])
    assert found.out == ""
    assert "unexpected" not in found.err
    assert sorted(files.rglob("*")) == before


def test_tune_then_auto(run: Any, model: Path, files: Path) -> None:
    """Real measurements, each in its own process, at the smallest size; int8 is chosen only because it was allowed."""
    options = ["--texts", files / "lines.txt", "--engines", "ctranslate2", "--seconds", "0", "--allow", "int8", "--json"]
    found = run("tune", model, *options)
    assert found.code == 0, found.err
    told = found.json
    tried = {(row["engine"], row["precision"]) for row in told["measured"]}
    assert tried == {("torch", "float32"), ("ctranslate2", "float32"), ("ctranslate2", "int8")}
    for row in told["measured"]:
        assert "error" not in row, row
        assert row["texts_per_second"] > 0
        assert row["peak_memory"] > 10**6
        assert 0.97 < row["least_cosine"] <= row["mean_cosine"] <= 1.000001
    chosen = told["chosen"]
    made = read_profile(model / "profile.json")
    assert (made.engine, made.precision, made.allowed) == (chosen["engine"], chosen["precision"], ["int8"])
    assert made.of_this_machine
    encoder = Encoder.load(model, engine="auto")
    assert (encoder.engine.name, encoder.precision) == (chosen["engine"], chosen["precision"])
    kept = sorted(path.name for path in (model / "engines").iterdir()) if (model / "engines").exists() else []
    assert kept == ([f"{chosen['engine']}-{chosen['precision']}"] if chosen["engine"] == "ctranslate2" else [])
    assert run("similarity", model, "a cat", "a dog").code == 0  # auto is what commands use


# ---- the choice


def trial(engine: str, precision: str, rate: float, quality: float | None = None, error: str | None = None) -> Trial:
    return Trial(Setting(engine, precision), error=error, rate=rate, threads=1, least_cosine=0.99, mean_cosine=0.99, quality=quality)


def test_precision_is_never_lowered_unasked() -> None:
    listed = [trial("torch", "float32", 10, 80.0), trial("torch", "bf16", 20, 79.9), trial("ctranslate2", "float32", 15, 80.0)]
    listed += [trial("ctranslate2", "int8", 40, 79.0), trial("onnx", "int8", 90, error="crashed")]

    def best(allowed: list[str], max_loss: float | None = None, usable: bool = True) -> str:
        return str(_choose(listed, allowed, max_loss, usable).setting)

    assert best([]) == "ctranslate2 float32"
    assert best([], usable=False) == "torch float32"  # an export could not be kept
    assert best(["bf16"]) == "torch bf16"
    assert best(["int8"]) == "ctranslate2 int8"
    assert best([], max_loss=0.2) == "torch bf16"
    assert best([], max_loss=1.0) == "ctranslate2 int8"
    assert best(["int8"], max_loss=0.5) == "torch bf16"  # a stated loss decides over the list
    assert not acceptable(trial("torch", "bf16", 20), listed[0], [], 1.0)  # nothing was measured of it


def test_a_measurement_that_hangs_or_crashes_ends_alone(saved_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"plain": str(saved_model), "exports": saved_model, "prompt": None, "data": None, "reads": {}, "seconds": 0.0}
    lab = Laboratory(tmp_path, ["a"], bound=0.2, **options)
    assert lab.measure(Setting("torch", "float32")).error == "not done after 0 s"  # the interpreter alone takes longer

    def crashes(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], -11, "", "Fatal Python error: Segmentation fault\n")

    monkeypatch.setattr(trials.subprocess, "run", crashes)
    found = lab.measure(Setting("onnx", "int8"))
    assert found.error == "the process ended with signal 11 (Fatal Python error: Segmentation fault)"
    assert found.to_dict() == {"engine": "onnx", "precision": "int8", "batch_tokens": None, "error": found.error}
    assert json.dumps(found.to_dict())
