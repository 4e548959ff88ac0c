"""An encoder whose vectors a test writes down, and pairs in memory."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.data.dataset import Dataset
from twinvec.records import EncodeReport, Encoding


class FakeEncoder:
    """Vectors by text; texts that are not listed get random ones that depend on the text alone. `seen`: (prompt, texts) of each call."""

    def __init__(self, vectors: Mapping[str, Sequence[float]] | None = None, dimensions: int = 8, scale: float = 1.0) -> None:
        self.vectors, self.scale = dict(vectors or {}), scale
        self.dimensions = len(next(iter(self.vectors.values()))) if self.vectors else dimensions
        self.seen: list[tuple[str | None, list[str]]] = []

    def vector(self, text: str) -> npt.NDArray[np.float32]:
        if text in self.vectors:
            return np.asarray(self.vectors[text], dtype=np.float32)
        rng = np.random.default_rng(zlib.crc32(text.encode()))
        return (rng.normal(size=self.dimensions) * rng.uniform(0.5, 2) * self.scale).astype(np.float32)

    def encode_with_report(self, texts: Any, *, prompt: str | None = None, progress: bool = False) -> Encoding:
        self.seen.append((prompt, list(texts)))
        found = np.stack([self.vector(text) for text in texts])
        report = EncodeReport(len(texts), self.dimensions, len(texts), 0, 0, 0, 1, [], 0.0, prompt or "", "fake", "float32", 1, 0.0)
        return Encoding(found, report)


class FakeScorer:
    """Scores by pair, 0 for others."""

    def __init__(self, scores: Mapping[tuple[str, str], float]) -> None:
        self.table = dict(scores)
        self.seen: list[tuple[str, str]] = []

    def scores(self, pairs: Any) -> npt.NDArray[np.float32]:
        self.seen += list(pairs)
        return np.asarray([self.table.get(pair, 0.0) for pair in pairs], dtype=np.float32)


def pairs(*rows: tuple[str, str], labels: list[int] | None = None, groups: list[int] | None = None) -> Dataset:
    columns = {"sentence1": [a for a, _ in rows], "sentence2": [b for _, b in rows]}
    return Dataset(kind="pairs", columns=columns, labels=labels, groups=groups)


def triplets(*rows: tuple[str, ...]) -> Dataset:
    names = ["anchor", "positive", "negative", *(f"negative_{i}" for i in range(2, len(rows[0]) - 1))]
    return Dataset(kind="triplets", columns={name: [row[i] for row in rows] for i, name in enumerate(names)})


def unit(cosine: float) -> tuple[float, float]:
    """A vector in the plane with this cosine to (1, 0)."""
    return cosine, float(np.sqrt(1 - cosine**2))
