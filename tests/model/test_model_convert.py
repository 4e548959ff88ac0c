"""GGUF files become model folders: the same vectors as the model that the file was made of."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tiny_gguf import END, write_gguf
from tiny_models import TEXTS
from twinvec.model.convert import load_gguf
from twinvec.model.encoder import Encoder

pytest.importorskip("gguf")
torch.set_num_threads(1)
WORDS = [text for text in TEXTS if text]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return path, write_gguf(path)


def test_the_vectors_are_those_of_the_model_in_the_file(made: tuple[Path, torch.nn.Module], tmp_path: Path) -> None:
    path, model = made
    encoder = load_gguf(path)
    assert (encoder.net.pooling, encoder.max_tokens, encoder.dimensions) == (("last_token",), 64, 32)
    rows = [encoder.tokens.cut(row) for row in encoder.tokens.content(WORDS)]
    with torch.no_grad():
        wanted = torch.stack([model(input_ids=torch.tensor([row])).last_hidden_state[0, -1] for row in rows])
    np.testing.assert_allclose(encoder.encode(WORDS), wanted.numpy(), atol=1e-5)
    folder = encoder.save(tmp_path / "model")
    again = Encoder.load(folder)
    assert again.fingerprint == encoder.fingerprint
    np.testing.assert_allclose(again.encode(WORDS), wanted.numpy(), atol=1e-5)
    for file in folder.rglob("*.json"):
        assert str(path.parent) not in file.read_text(encoding="utf-8"), file
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())


def test_other_libraries_open_the_folder(made: tuple[Path, torch.nn.Module], tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = load_gguf(made[0], pooling="mean")
    folder = encoder.save(tmp_path / "model")
    found = SentenceTransformer(str(folder), device="cpu").encode(WORDS)
    np.testing.assert_allclose(found, encoder.encode(WORDS), atol=1e-5)


def test_an_end_token_after_each_text(made: tuple[Path, torch.nn.Module], tmp_path: Path) -> None:
    """E5-Mistral pools the end token; an empty text then has one too."""
    encoder = load_gguf(made[0], end_token=True)
    end = encoder.tokens.tokenizer.convert_tokens_to_ids(END)
    assert encoder.tokens.suffix == [end]
    again = Encoder.load(encoder.save(tmp_path / "model"))
    assert again.tokens.suffix == [end]
    np.testing.assert_allclose(again.encode(TEXTS), encoder.encode(TEXTS), atol=1e-6)
    assert again.encode("").any()
    row = [*again.tokens.content(["the cat sat"])[0], end]
    with torch.no_grad():
        wanted = made[1](input_ids=torch.tensor([row])).last_hidden_state[0, -1]
    np.testing.assert_allclose(again.encode("the cat sat")[0], wanted.numpy(), atol=1e-5)


def test_a_folder_with_one_file_and_other_options(made: tuple[Path, torch.nn.Module]) -> None:
    encoder = load_gguf(made[0].parent, pooling="cls+mean", max_tokens=7)
    assert (encoder.net.pooling, encoder.max_tokens, encoder.dimensions) == (("cls", "mean"), 7, 64)
    assert max(len(encoder.tokens.cut(row)) for row in encoder.tokens.content(WORDS)) == 7
