"""Data and encoders for the tests of `compare`: the same words, seen through more or less noise."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from evaluation_fakes import FakeEncoder

from twinvec.data.beir import RetrievalSet
from twinvec.data.dataset import Dataset
from twinvec.evaluation.compare import Candidate, Comparison, compare
from twinvec.records import Document

WORDS = ["cat", "dog", "mat", "refund", "order", "card", "pay", "bill", "rain", "sun", "book", "tree", "house", "road"]


class Noisy(FakeEncoder):
    """Each text's vector with noise of its own, the same each time."""

    def __init__(self, noise: float, name: str = "noisy", **more: Any) -> None:
        super().__init__(**more)
        self.noise, self.name, self.fingerprint = noise, name, f"{name}-{noise}"

    def vector(self, text: str) -> Any:
        seed = int.from_bytes(hashlib.sha256(f"{self.name}{text}".encode()).digest()[:4], "big")
        return (super().vector(text) + self.noise * np.random.default_rng(seed).normal(size=8)).astype(np.float32)


def pairs(rows: int = 60, seed: int = 0) -> Dataset:
    """Same: two words shared of three; different: none."""
    rng = np.random.default_rng(seed)
    first, second, labels = [], [], []
    for row in range(rows):
        a = rng.choice(WORDS, 6, replace=False)
        same = row % 2
        first.append(" ".join(a[:3]) + f" {row}")
        second.append(" ".join([*a[1:3], a[3]] if same else a[3:6]) + f" x{row}")
        labels.append(same)
    return Dataset(kind="pairs", columns={"sentence1": first, "sentence2": second}, labels=labels, sha256="s")


def scores(rows: int = 40) -> Dataset:
    found = pairs(rows, seed=3)
    return Dataset(
        kind="scores",
        columns=found.columns,
        labels=[5.0 * label + 0.01 * i % 0.5 for i, label in enumerate(found.labels or [])],
        score_range=(0.0, 6.0),
    )


def classes(rows: int = 30) -> Dataset:
    texts = [f"{WORDS[i % 3]} {WORDS[i % 3 + 3]} {i}" for i in range(rows)]
    return Dataset(kind="labelled", columns={"text": texts}, labels=[i % 3 for i in range(rows)], label_names=["<b>one</b>", "two", "三"])


def retrieval() -> RetrievalSet:
    corpus = [Document(f"d{i}", f"{WORDS[i]} {WORDS[i + 1]}") for i in range(10)]
    queries = {f"q{i}": f"{WORDS[i]} please" for i in range(6)}
    return RetrievalSet(corpus, queries, {f"q{i}": {f"d{i}": 1.0} for i in range(6)}, path=__import__("pathlib").Path("folder"))


def parallel() -> Dataset:
    found = pairs(12, seed=5)
    return Dataset(kind="parallel", columns={"source": found.columns["sentence1"], "target": found.columns["sentence2"]})


def triplets() -> Dataset:
    found = pairs(12, seed=6)
    third = [*found.columns["sentence2"][3:], *found.columns["sentence2"][:3]]
    return Dataset(kind="triplets", columns={"anchor": found.columns["sentence1"], "positive": found.columns["sentence2"], "negative": third})


def candidate(name: str, noise: float, files: int = 1, rate: float | None = None, **cost: Any) -> Candidate:
    encoder = Noisy(noise, name)
    return Candidate(name, [encoder] * files, cost={"texts_per_second": rate, **cost})


def compared(*more: Candidate, data: Any = None, **options: Any) -> Comparison:
    listed = list(more) or [
        candidate("good", 0.2, rate=100.0, peak_memory=5e8, disk_bytes=9e7, latency_p50_ms=5.0),
        candidate("quick", 0.5, rate=900.0, peak_memory=3e8, disk_bytes=2e7, latency_p50_ms=0.5),
        candidate("poor", 9.0),
    ]
    return compare(listed, data or [pairs()], draws=options.pop("draws", 200), progress=False, **options)
