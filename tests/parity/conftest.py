"""One model folder of each kind, with a Normalize head, made once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny_models import CORPUS, FAMILIES, unigram
from twinvec.model.encoder import Encoder

STATIC = ("static words", "static tokens")
SUBJECTS = (*FAMILIES, *STATIC)


@pytest.fixture(scope="session")
def subject(bare_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """subject("bert"): a twinvec folder of a tiny model of that kind. Do not change it."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            place = tmp_path_factory.mktemp("subject")
            made[kind] = _static(kind, place) if kind in STATIC else _transformer(bare_model(kind), place)
        return made[kind]

    return get


def _transformer(bare: Path, place: Path) -> Path:
    encoder = Encoder.load(bare, pooling="mean")
    encoder.net.normalize = True
    encoder.prompts["query"] = "query: "
    return encoder.save(place / "model")


def _static(kind: str, place: Path) -> Path:
    random = np.random.default_rng(0)
    if kind == "static words":
        words = list(dict.fromkeys(word for text in CORPUS for word in text.lower().replace("？", " ").replace(".", " ").split()))
        words += ["支付宝", "如何", "花呗", "🙂", "query"]
        lines = [f"{word} {' '.join(f'{x:.4f}' for x in random.normal(size=24))}" for word in words]
        (place / "words.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        encoder = Encoder.load(place / "words.txt")
    else:
        from twinvec.model.static import StaticEngine, StaticTokens
        from twinvec.model.static_bag import Bag

        tokenizer: Any = unigram().backend_tokenizer
        table = random.normal(size=(tokenizer.get_vocab_size(), 24)).astype(np.float32)
        encoder = Encoder(StaticEngine(Bag(table=table, normalize=True, skip=3)), StaticTokens(tokenizer, unknown_id=3), name="tokens")
    encoder.prompts["query"] = "query: "
    return encoder.save(place / "model")


@pytest.fixture(params=SUBJECTS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of model in turn: every architecture family, and the static ones."""
    return str(request.param)


@pytest.fixture
def folder(kind: str, subject: Callable[[str], Path]) -> Path:
    return subject(kind)


@pytest.fixture
def encoder(folder: Path) -> Encoder:
    return Encoder.load(folder)
