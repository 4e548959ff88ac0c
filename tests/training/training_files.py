"""Small training files of each kind, and a recipe over them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from twinvec.data.dataset import read_data
from twinvec.model.encoder import Encoder
from twinvec.training.loop import Evaluate, Run
from twinvec.training.recipe import Recipe

SENTENCES = [
    "a man is playing a guitar", "the cat sat on the mat", "where is my refund", "a woman is slicing an onion", "how do i close the account",
    "the dog looked at the cat", "花呗什么时候还款", "如何关闭支付宝免密支付", "没网的时候能够支付吗", "order 1024 has not arrived",
]  # fmt: skip


def write(path: Path, header: list[str], rows: list[list[Any]]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def scores(path: Path, n: int = 24) -> Path:
    rows = [[SENTENCES[i % 10], SENTENCES[(i * 3 + 1) % 10], round(i % 6 * 0.9, 1)] for i in range(n)]
    return write(path, ["sentence1", "sentence2", "score"], rows)


def pairs(path: Path, n: int = 24) -> Path:
    rows = [[SENTENCES[i % 10], SENTENCES[i % 10] + " please" if i % 2 else SENTENCES[(i + 5) % 10], i % 2] for i in range(n)]
    return write(path, ["sentence1", "sentence2", "label"], rows)


def nli(path: Path, n: int = 24) -> Path:
    names = ["entailment", "neutral", "contradiction"]
    return write(path, ["premise", "hypothesis", "label"], [[SENTENCES[i % 10], SENTENCES[(i * 7 + 2) % 10], names[i % 3]] for i in range(n)])


def triplets(path: Path, n: int = 24) -> Path:
    rows = [[SENTENCES[i % 10], SENTENCES[i % 10] + " please", SENTENCES[(i + 3) % 10], SENTENCES[(i + 6) % 10]] for i in range(n)]
    return write(path, ["anchor", "positive", "negative", "negative_2"], rows)


MAKERS = {"regression": scores, "classification": nli, "triplet": triplets}


def make_run(model: Path, folder: Path, objective: str = "regression", evaluate: Evaluate | None = None, metric: str = "m", **settings: Any) -> Run:
    """A run over a small file of the objective's kind, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    data = MAKERS[objective](folder / "train.csv")
    measured = {"dev": str(data)} if evaluate is not None or "patience" in settings else {}
    base: dict[str, Any] = {
        "model": str(model),
        "data": str(data),
        "objective": objective,
        "output": str(folder),
        "pooling": "mean",
        "batch_size": 4,
        "lr": 1e-3,
    }
    recipe = Recipe.of(**{**base, **measured, **settings})
    encoder = Encoder.load(model, pooling="mean")
    return Run(recipe, encoder, read_data(data), folder, evaluate, metric, show=False)
