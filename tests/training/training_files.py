"""Small training files of each kind, and a recipe over them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import torch

from twinvec.data.dataset import read_data
from twinvec.runs.train import adapt, load_base
from twinvec.training.distributed import World
from twinvec.training.fit import as_wanted
from twinvec.training.loop import Evaluate, Run
from twinvec.training.recipe import Recipe
from twinvec.training.tasks import make_task

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


def scored_triplets(path: Path, n: int = 24) -> Path:
    rows = [[SENTENCES[i % 10], SENTENCES[i % 10] + " please", SENTENCES[(i + 3) % 10], round(i % 5 * 0.2, 1)] for i in range(n)]
    return write(path, ["anchor", "positive", "negative", "margin"], rows)


def partners(path: Path, n: int = 24) -> Path:
    """Pairs without labels: all belong together, all different."""
    rows = [[f"{SENTENCES[i % 10]} number {i}", f"please {SENTENCES[i % 10]} with {i}"] for i in range(n)]
    return write(path, ["anchor", "positive"], rows)


def parallel(path: Path, n: int = 24) -> Path:
    return write(path, ["source", "target"], [[f"{SENTENCES[i % 6]} {i}", f"{SENTENCES[6 + i % 4]} {i}"] for i in range(n)])


def labelled(path: Path, n: int = 24) -> Path:
    return write(path, ["text", "label"], [[f"{SENTENCES[i % 10]} {i}", f"class{i % 4}"] for i in range(n)])


def texts(path: Path, n: int = 24) -> Path:
    path = path.with_suffix(".txt")
    path.write_text("".join(f"{SENTENCES[i % 10]} and {SENTENCES[i * 3 % 10]} {i}\n" for i in range(n)), encoding="utf-8")
    return path


MAKERS = {
    "regression": scores, "classification": nli, "triplet": triplets, "infonce": partners, "simcse": texts, "contrastive": pairs,
    "online_contrastive": pairs, "cosent": pairs, "angle": pairs, "batch_hard_triplet": labelled, "batch_hard_soft_triplet": labelled,
    "batch_semi_hard_triplet": labelled, "batch_all_triplet": labelled, "distillation": parallel, "margin_mse": scored_triplets, "mlm": texts,
    "retromae": texts, "tsdae": texts,
}  # fmt: skip


def make_run(
    model: Path, folder: Path, objective: str = "regression", evaluate: Evaluate | None = None, metric: str = "m", *, data: Path | None = None,
    world: World | None = None, **settings: Any,
) -> Run:  # fmt: skip
    """A run over a small file of the objective's kind, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    data = data or MAKERS[objective](folder / "train.csv")
    measured = {"dev": str(data)} if evaluate is not None or "patience" in settings else {}
    base: dict[str, Any] = {
        "model": str(model),
        "data": str(data),
        "objective": objective,
        "output": str(folder),
        "pooling": "mean",
        "batch_size": 8 if objective.startswith("batch_") else 4,
        "lr": 1e-3,
    }
    if objective == "distillation":
        base["teacher"] = str(model)
    recipe = Recipe.of(**{**base, **measured, **settings})
    encoder = load_base(recipe, lambda _: None)
    torch.manual_seed(recipe.seed)
    adapt(encoder, recipe)
    tasks = []
    for source in recipe.sources():
        read = as_wanted(source, read_data(source.data, kind=source.kind, columns=source.columns))
        tasks.append(make_task(source, read, encoder, folder, normalize=recipe.normalize))
    return Run(recipe, encoder, tasks, folder, evaluate, metric, world=world, show=False)
