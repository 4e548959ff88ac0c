"""`twinvec convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tiny_gguf import write_gguf
from twinvec.model.encoder import Encoder

pytest.importorskip("gguf")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "tiny.gguf")
    return tmp_path / "tiny.gguf"


def test_a_gguf_file(run: Any, source: Path, tmp_path: Path) -> None:
    found = run("convert", source, "-o", tmp_path / "model", "--pooling", "last_token", "--json").json
    encoder = Encoder.load(tmp_path / "model")
    assert found["fingerprint"] == encoder.fingerprint
    assert (found["pooling"], found["dimensions"], found["max_tokens"], found["end_token"]) == (["last_token"], 32, 64, False)
    assert found["parameters"] == sum(p.numel() for p in encoder.net.parameters())
    assert found["bytes"] > found["parameters"] * 4
    assert run("inspect", tmp_path / "model", "--verify", "--json").json["fingerprint_as_saved"] is True


def test_replacing(run: Any, source: Path, tmp_path: Path) -> None:
    assert "tiny" not in run("convert", source, "-o", tmp_path / "model").out
    refused = run("convert", source, "-o", tmp_path / "model")
    assert refused.code == 2
    assert "exists already; give another name, or --force" in refused.err
    shown = run("convert", source, "-o", tmp_path / "model", "--force", "--end-token", "--max-tokens", "9")
    assert (shown.code, "llama" in shown.out, "window 9" in shown.out) == (0, True, True)
    assert Encoder.load(tmp_path / "model").tokens.suffix


@pytest.mark.parametrize(
    ("source_name", "output", "code", "message"),
    [
        ("none.gguf", "out", 1, "none.gguf: no such file; give a GGUF file"),
        ("tiny.gguf", "tiny.gguf", 2, "tiny.gguf is a file; give the name of a folder"),
        ("tiny.gguf", "tiny.gguf/below", 2, "so there can be no folder below it"),
        ("tiny.gguf", ".", 2, "exists already"),
        ("tiny.gguf", "out --pooling lst", 2, "pooling = 'lst': choose one of"),
        ("tiny.gguf", ". --force", 2, "holds something that is not a model"),
    ],
)
def test_wrong_use(source_name: str, output: str, code: int, message: str, run: Any, source: Path, tmp_path: Path) -> None:
    place, *more = output.split()
    found = run("convert", tmp_path / source_name, "-o", tmp_path / place, *more)
    assert found.code == code
    assert message in found.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.gguf"]
