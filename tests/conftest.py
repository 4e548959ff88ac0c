"""Fixtures that several rooms may use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def bare_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """bare_model("bert"): a transformers folder of a tiny model of that family, made once a session. Copy it before changing it."""
    from transformers.utils import logging

    from tiny_models import make_bare

    logging.disable_progress_bar()
    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            made[family] = make_bare(family, tmp_path_factory.mktemp("bare") / family)
        return made[family]

    return get
