"""`twinvec compare`: tables and files, what is kept and when it is measured again, settings left out."""

from __future__ import annotations

import csv as csv_module
import io
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compare_inside import PAIRS, QUICK, measure_inside


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return measure_inside(monkeypatch)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "same.csv"
    path.write_text(PAIRS, encoding="utf-8")
    return path


def whole(row: dict[str, Any]) -> None:
    assert row["fingerprint"]
    assert row["texts_per_second"] > 0
    assert row["latency_p50_ms"] > 0
    assert row["disk_bytes"] > 1000
    assert row["peak_memory"] > 10_000_000
    assert row["truncated_share"] == 0
    assert 0 <= row["unknown_rate"] <= 1
    assert row["low"] <= row["quality"] <= row["high"]


def test_a_model_in_a_process_of_its_own(saved_model: Path, data: Path, run: Any, tmp_path: Path) -> None:
    found = run("compare", saved_model, "--data", data, "--cache", tmp_path / "cache", "--json", *QUICK)
    assert found.code == 0, found.err
    whole(found.json["models"][0])
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["results"]


def test_json_of_two_models(saved_model: Path, other_model: Path, data: Path, run: Any, inside: list[str], tmp_path: Path) -> None:
    found = run("compare", f"{saved_model}::query", other_model, "--data", data, "--no-cache", "--json", *QUICK)
    assert found.code == 0, found.err
    result = found.json
    first, second = result["models"]
    assert (first["model"], second["model"]) == ("tiny::query", "other")
    assert first["path"] == str(saved_model)
    assert first["prompts"] == {"sentence1": "query: ", "sentence2": "query: "}
    for row in result["models"]:
        whole(row)
    assert {"first", "second", "value", "low", "high", "p", "p_holm", "test"} <= set(result["differences"][0])
    assert result["recommendation"]["choice"] in (1, 2)
    assert result["left_out"] == []
    assert result["cache"] is None


def test_evaluate_says_the_same(saved_model: Path, data: Path, run: Any, inside: list[str], tmp_path: Path) -> None:
    row = run("compare", saved_model, "--prompt", "query", "--data", data, "--no-cache", "--json", *QUICK).json["models"][0]
    plain = run("evaluate", saved_model, data, "--prompt", "query", "--bootstrap", "50", "--json").json["results"][0]
    assert row["quality"] == pytest.approx(plain["average_precision_cosine"], abs=1e-9)
    assert [row["low"], row["high"]] == pytest.approx(plain["intervals"]["average_precision_cosine"], abs=1e-9)


def test_what_is_kept_and_when_it_is_measured_again(saved_model: Path, data: Path, run: Any, inside: list[str], tmp_path: Path) -> None:
    from twinvec.model.encoder import Encoder

    model = Path(shutil.copytree(saved_model, tmp_path / "model"))
    cache = tmp_path / "cache"

    def go(*more: object) -> str:
        found = run("compare", model, "--data", data, "--cache", cache, "--json", *QUICK, *more)
        assert found.code == 0, found.err
        return inside.pop().split(": ")[1]

    assert go() == "measured"
    assert go() == "kept"
    assert go("--prompt", "query") == "measured"
    assert go("--max-tokens", "8") == "measured"
    assert go("--limit", "10") == "measured"
    data.write_text(PAIRS.replace("looked 3", "looked far"), encoding="utf-8")
    assert go() == "measured"
    data.write_text(PAIRS, encoding="utf-8")
    assert go() == "kept"
    encoder = Encoder.load(model)
    next(encoder.net.parameters()).data[0] += 1.0
    shutil.rmtree(model)
    encoder.save(model)
    assert go() == "measured"  # the same folder with other weights
    kept = next(path for path in (cache / "results").rglob("*.npy"))
    for path in (cache / "results").rglob("*.npy"):
        path.write_bytes(path.read_bytes()[:-2])
    assert kept.is_file()
    assert go() == "measured"  # damaged files are no results
    assert go("--bootstrap", "60") == "kept"  # what is computed from the vectors is computed each time
    assert go("--figure", "spearman_cosine") == "kept"


def test_a_copy_of_a_model_shares_results_but_not_its_record(saved_model: Path, data: Path, run: Any, inside: list[str], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(saved_model, tmp_path / "copy"))
    shared = ("--data", data, "--cache", tmp_path / "cache", "--json", *QUICK)
    run("compare", saved_model, *shared)
    (copy / "run.json").write_text(
        json.dumps({"recipe": {}, "files": {"train": {"path": "same.csv", "sha256": __import__("hashlib").sha256(data.read_bytes()).hexdigest()}}})
    )
    found = run("compare", copy, *shared)
    assert inside == ["tiny: measured", "copy: kept"]
    assert any("TRAINED on this very file" in note for note in found.json["models"][0]["notes"])


def test_tables_and_files(saved_model: Path, other_model: Path, data: Path, run: Any, inside: list[str], tmp_path: Path) -> None:
    report, picture = tmp_path / "out" / "r.html", tmp_path / "cone.svg"
    shared = (saved_model, other_model, "--data", data, "--cache", tmp_path / "cache", *QUICK, "--dimensions", "8,4")
    plain = run("compare", *shared, "--html", report, "--geometry", "--picture", picture, "--language", "zh")
    assert plain.code == 0, plain.err
    lines = plain.out.splitlines()
    assert "average_precision_cosine x 100" in lines[0]
    assert [name in plain.out for name in ("tiny, 8d", "tiny, 4d", "other, 8d", "other, 4d")] == [True] * 4
    assert lines[-1].startswith("Take ")
    assert 'class="show-zh"' in report.read_text(encoding="utf-8")
    assert picture.read_text(encoding="utf-8").startswith("<?xml")
    rows = list(csv_module.DictReader(io.StringIO(run("compare", *shared, "--csv").out)))
    assert [row["dimensions"] for row in rows] == ["8", "4", "8", "4"]
    assert 0 <= float(rows[0]["quality"]) <= 1
    assert sum(row["recommended"] == "1" for row in rows) == 1
    markdown = run("compare", *shared, "--markdown").out
    assert markdown.startswith("|")
    assert "| ---" in markdown
    assert [entry.split(": ")[1] for entry in inside] == ["measured"] * 2 + ["kept"] * 4


def test_a_setting_that_fails_is_left_out(saved_model: Path, data: Path, run: Any, inside: list[str], tmp_path: Path) -> None:
    found = run(
        "compare", saved_model, "--data", data, "--cache", tmp_path / "c", "--json", *QUICK,
        "--precisions", "float32,float16", "--dimensions", "8,9999",
    )  # fmt: skip
    assert found.code == 0, found.err
    assert [row["model"] for row in found.json["models"]] == ["tiny, float32, 8d"]
    said = " ".join(found.json["left_out"])
    assert "tiny, float16: " in said
    assert "9999 dimensions asked for, the model has" in said
    assert "left out: tiny, float16" in found.err


def test_an_export_is_made_in_the_cache(saved_model: Path, data: Path, run: Any, inside: list[str], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    before = sorted(path.name for path in saved_model.iterdir())
    shared = ("--data", data, "--cache", tmp_path / "c", "--json", *QUICK, "--engines", "torch,onnx")
    found = run("compare", saved_model, *shared)
    assert found.code == 0, found.err
    torch, onnx = found.json["models"]
    assert (torch["engine"], onnx["engine"]) == ("torch", "onnx")
    assert torch["fingerprint"] == onnx["fingerprint"]
    assert onnx["quality"] == pytest.approx(torch["quality"], abs=1e-4)
    assert sorted(path.name for path in saved_model.iterdir()) == before
    run("compare", saved_model, *shared)
    assert [entry.split(": ")[1] for entry in inside] == ["measured", "measured", "kept", "kept"]


def test_vectors_beside_a_model(saved_model: Path, data: Path, run: Any, inside: list[str], tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    rows = [line.split(",")[:2] for line in PAIRS.splitlines()[1:]]
    texts.write_text("\n".join([row[0] for row in rows] + [row[1] for row in rows]) + "\n", encoding="utf-8")
    for name in ("v.parquet", "v.npy"):
        assert run("encode", saved_model, texts, "-o", tmp_path / name, "--prompt", "query").code == 0
    found = run("compare", f"{saved_model}::query", tmp_path / "v.parquet", tmp_path / "v.npy", "--data", data, "--no-cache", "--json", *QUICK)
    assert found.code == 0, found.err
    model, *files = found.json["models"]
    for row in files:
        assert row["quality"] == pytest.approx(model["quality"], abs=1e-6)
        assert row["texts_per_second"] is row["truncated_share"] is None
        assert row["engine"] == "vectors"
    assert [row["model"] for row in files] == ["v.parquet", "v.npy"]


def test_a_process_that_dies_is_a_message(saved_model: Path, data: Path, run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import subprocess

    def killed(*_: Any, **__: Any) -> Any:
        return subprocess.CompletedProcess([], -9, b"", b"Killed\n")

    monkeypatch.setattr(subprocess, "run", killed)
    found = run("compare", saved_model, "--data", data, "--no-cache", "--json", *QUICK)
    assert found.code == 1
    assert "the process that measured it ended with signal 9 (Killed)" in found.err


def test_a_static_model_has_one_way(data: Path, run: Any, inside: list[str], tmp_path: Path) -> None:
    words = tmp_path / "glove.txt"
    rng = np.random.default_rng(0)
    names = ["the", "cat", "sat", "on", "mat", "where", "is", "refund", "a", "dog", "looked"]
    words.write_text("".join(f"{word} {' '.join(f'{x:.4f}' for x in rng.normal(size=6))}\n" for word in names), encoding="utf-8")
    found = run("compare", words, "--data", data, "--no-cache", "--json", *QUICK, "--engines", "torch,onnx", "--precisions", "float32,int8")
    assert found.code == 0, found.err
    assert [(row["model"], row["engine"]) for row in found.json["models"]] == [("glove.txt", "static")]


def test_a_service_beside_a_model(saved_model: Path, data: Path, run: Any, inside: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same model behind HTTP has the same quality; it is asked each time, and its key goes into the request only."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from twinvec.model.encoder import Encoder

    encoder = Encoder.load(saved_model)
    keys: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            keys.append(self.headers["Authorization"])
            rows = [{"index": i, "embedding": row.tolist()} for i, row in enumerate(encoder.encode(asked["input"]))]
            body = json.dumps({"data": rows}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv("A_KEY", "sk-secret")
    try:
        url = f"http://127.0.0.1:{server.server_port}/v1::tiny"
        found = run("compare", saved_model, url, "--data", data, "--no-cache", "--json", "--api-key-env", "A_KEY", "--service-batch", "9", *QUICK)
    finally:
        server.shutdown()
        server.server_close()
    assert found.code == 0, found.err
    model, service = found.json["models"]
    assert service["quality"] == pytest.approx(model["quality"], abs=1e-6)
    assert service["texts_per_second"] > 0
    assert service["peak_memory"] is service["truncated_share"] is service["fingerprint"] is None
    assert set(keys) == {"Bearer sk-secret"}
    assert "sk-secret" not in found.out + found.err
