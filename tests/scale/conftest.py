"""A tiny saved model, a file of texts, and a computer that fails on demand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scale_fakes import TEXTS, BrokenOffError


@pytest.fixture(scope="session")
def model(bare_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved BERT of 32 dimensions with a window of 64 tokens and the prompts query and passage."""
    import torch

    from twinvec.model.encoder import Encoder

    torch.set_num_threads(1)
    encoder = Encoder.load(bare_model("bert"), pooling="mean")
    encoder.prompts = {"query": "query: ", "passage": "passage: "}
    encoder.net.normalize = True
    return encoder.save(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def encoder(model: Path) -> Any:
    from twinvec.model.encoder import Encoder

    return Encoder.load(model)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """texts.txt, 230 lines, many of them equal, some empty."""
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def wanted(encoder: Any) -> np.ndarray:
    """What the encoder gives for TEXTS in one call."""
    found: np.ndarray = encoder.encode(TEXTS)
    return found


@pytest.fixture
def broken_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """broken_after(n): the n-th commit of a shard and all later ones fail. broken_after(0) mends it."""
    from twinvec.scale.parts import Parts

    commit, commit_notes = Parts.commit, Parts.commit_notes

    def set_to(count: int) -> None:
        left = [count]

        def failing(original: Any) -> Any:
            def go(self: Any, *args: Any) -> None:
                left[0] -= 1
                if left[0] == 0:
                    raise BrokenOffError
                original(self, *args)

            return go

        monkeypatch.setattr(Parts, "commit", failing(commit) if count else commit)
        monkeypatch.setattr(Parts, "commit_notes", failing(commit_notes) if count else commit_notes)

    return set_to
