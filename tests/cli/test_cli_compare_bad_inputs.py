"""What `twinvec compare` refuses, and what it says. BAD is the table: name, arguments, exit code, a pattern of the message."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compare_inside import PAIRS, QUICK, measure_inside

BAD: list[tuple[str, tuple[str, ...], int, str]] = [
    ("no data", ("MODEL",), 2, r"nothing to measure on; give --data FILE"),
    ("data that is not there", ("MODEL", "--data", "no.csv"), 1, r"no.csv: no such file or folder"),
    ("a model that is not there", ("nowhere", "--data", "PAIRS"), 1, r"no model 'nowhere': give 'minilm', a folder that exists"),
    ("a model twice", ("MODEL", "MODEL", "--data", "PAIRS"), 2, r"is given twice; wanted each model once"),
    ("a prompt that is none", ("MODEL::qeury", "--data", "PAIRS"), 2, r"'qeury'.*did you mean 'query'"),
    ("an engine that is none", ("MODEL", "--data", "PAIRS", "--engines", "torch,fast"), 2, r"--engines = 'fast': choose one of auto, torch"),
    ("a precision that is none", ("MODEL", "--data", "PAIRS", "--precisions", "int4"), 2, r"--precisions = 'int4': choose one of float32, bf16"),
    ("dimensions of words", ("MODEL", "--data", "PAIRS", "--dimensions", "many"), 2, r"--dimensions 'many': wanted whole numbers from 1"),
    ("too many dimensions", ("MODEL", "--data", "PAIRS", "--dimensions", "9999"), 2, r"--dimensions 9999: no model has so many dimensions"),
    ("two places to keep", ("MODEL", "--data", "PAIRS", "--cache", "c", "--no-cache"), 2, r"give one of --cache and --no-cache"),
    ("two formats", ("MODEL", "--data", "PAIRS", "--csv", "--json"), 2, r"give one of --json, --markdown and --csv"),
    ("a report of another kind", ("MODEL", "--data", "PAIRS", "--html", "r.pdf"), 2, r"--html r.pdf: the name's ending chooses the format"),
    ("a picture of another kind", ("MODEL", "--data", "PAIRS", "--picture", "p.gif"), 2, r"--picture p.gif: the name's ending chooses"),
    ("a report that is there", ("MODEL", "--data", "PAIRS", "--html", "THERE"), 2, r"exists already; give another name, or --force"),
    ("a map without a report", ("MODEL", "--data", "PAIRS", "--map", "umap"), 2, r"--map umap is for the report; give --html FILE"),
    ("a figure that is none", ("MODEL", "--data", "PAIRS", "--figure", "f2"), 2, r"figure \(of .*\) = 'f2': choose one of average_precision_cosine"),
    ("a file that holds nothing to measure", ("MODEL", "--data", "TEXTS"), 1, r"nothing to measure in a file of kind 'texts'"),
    ("a level in percent", ("MODEL", "--data", "PAIRS", "--level", "95"), 2, r"--level 95: wanted a confidence between 0 and 1"),
    ("a service without a model's name", ("http://localhost:1/v1", "--data", "PAIRS"), 2, r"wanted the service's URL and the model's name there"),
    ("a service that is not there", ("http://127.0.0.1:9/v1::m", "--data", "PAIRS", "--retries", "0"), 1, r"no answer after 1 tries .*check that"),
    ("a key that is not set", ("http://127.0.0.1:9/v1::m", "--data", "PAIRS", "--api-key-env", "NO_KEY"), 2, r"--api-key-env NO_KEY: that"),
    ("vectors that are not there", ("v.parquet", "--data", "PAIRS"), 1, r"v.parquet: no such file; wanted .npy or .parquet"),
    ("vectors of other texts", ("VECTORS", "--data", "PAIRS"), 1, r"VECTORS|3 rows without texts; .* wanted one row each"),
    ("vectors with a prompt", ("VECTORS::query", "--data", "PAIRS"), 2, r"a file of vectors has no prompts; they were put in when it was made"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "code", "message"), BAD, ids=[case[0] for case in BAD])
def test_bad_use(
    name: str, arguments: tuple[str, ...], code: int, message: str, run: Any, saved_model: Path, tmp_path: Path,
    record_property: Callable[[str, object], None], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    measure_inside(monkeypatch)
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "same.csv"
    data.write_text(PAIRS, encoding="utf-8")
    (tmp_path / "there.html").write_text("x")
    (tmp_path / "texts.csv").write_text("text\na\nb\n")
    np.save(tmp_path / "v.npy", np.ones((3, 4), np.float32))
    places = {"MODEL": saved_model, "PAIRS": data, "THERE": "there.html", "TEXTS": tmp_path / "texts.csv", "VECTORS": tmp_path / "v.npy"}
    given = [re.sub("^(MODEL|PAIRS|THERE|TEXTS|VECTORS)", lambda m: str(places[m[0]]), argument) for argument in arguments]
    keep = [] if "--cache" in given or "--no-cache" in given else ["--no-cache"]
    found = run("compare", *given, *keep, *QUICK)
    lines = [line for line in found.err.strip().splitlines() if not line.startswith("Try: ")]
    assert found.code == code, found.err
    assert found.out == ""
    assert "Traceback" not in found.err
    assert re.search(message, lines[-1]), lines[-1]
    record_property("message", lines[-1])
