"""A tiny model with prompts, sample files, and a way to run the command line inside the test."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

PAIRS = """sentence1,sentence2,score
a man is playing a guitar,a man plays the guitar,4.8
the cat sat,"the cat sat on the mat, and looked",3.1
如何关闭支付宝免密支付,花呗什么时候还款,1.2
where is my refund,the dog looked at the cat,0
"""
ANSWERS = """id,text,topic
pay-1,如何关闭支付宝免密支付,pay
pay-2,花呗什么时候还款,pay
order-1,where is my refund,order
empty-1,,none
"""


@dataclass
class Outcome:
    """What one command gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        assert self.out.count("\n") == 1, f"more than one line: {self.out!r}"
        found: dict[str, Any] = json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
        return found


@pytest.fixture(scope="session")
def run() -> Callable[..., Outcome]:
    """run("encode", model, ..., input=b"") in this process."""
    from twinvec.cli.main import app

    def go(*args: object, input: bytes | None = None) -> Outcome:
        result = CliRunner().invoke(app, [str(arg) for arg in args], input=input)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return go


@pytest.fixture(scope="session")
def saved_model(bare_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model with mean pooling and the prompts query and passage. Copy it before changing it."""
    import torch

    from twinvec.model.encoder import Encoder

    torch.set_num_threads(1)
    encoder = Encoder.load(bare_model("bert"), pooling="mean")
    encoder.prompts = {"query": "query: ", "passage": "passage: "}
    encoder.net.normalize = True
    return encoder.save(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def other_model(saved_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without prompts, so with another fingerprint."""
    from twinvec.model.encoder import Encoder

    encoder = Encoder.load(saved_model)
    encoder.prompts = {}
    return encoder.save(tmp_path_factory.mktemp("models") / "other")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with pairs.csv, answers.csv and lines.txt."""
    (tmp_path / "pairs.csv").write_text(PAIRS, encoding="utf-8")
    (tmp_path / "answers.csv").write_text(ANSWERS, encoding="utf-8")
    (tmp_path / "lines.txt").write_text("the cat sat\n\n如何关闭支付宝\nthe cat sat\n", encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="session")
def made_collection(saved_model: Path, run: Callable[..., Outcome], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collections")
    (folder / "answers.csv").write_text(ANSWERS, encoding="utf-8")
    outcome = run("index", folder / "faq", folder / "answers.csv", "--model", saved_model)
    assert outcome.code == 0, outcome.err
    return folder / "faq"


@pytest.fixture
def collection(made_collection: Path, tmp_path: Path) -> Path:
    """A collection of the answers, free to be changed."""
    return Path(shutil.copytree(made_collection, tmp_path / "faq"))
