"""An encoder without a model, and a cross-encoder that counts common words."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from twinvec.records import EncodeReport, Encoding


class Letters:
    """Counts the letters of a text, prompt included."""

    dimensions, normalizes = 27, True

    def __init__(self, name: str = "letters", prompts: dict[str, str] | None = None) -> None:
        self.name, self.prompts = name, prompts or {}
        self.fingerprint = hashlib.sha256(name.encode()).hexdigest()[:32]

    def encode_with_report(self, texts: Sequence[str], *, prompt: str | None = None) -> Encoding:
        lead = self.prompts.get(prompt or "", "")
        vectors = np.ones((len(texts), 27), dtype=np.float32) * 0.01
        for row, text in enumerate(texts):
            for letter in (lead + text).lower():
                vectors[row, (ord(letter) - 97) if "a" <= letter <= "z" else 26] += 1
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        report = EncodeReport(len(texts), 27, 9, 0, 0, 0, 9, [], 0.0, lead, "letters", "float32", 1, 0.0)
        return Encoding(vectors, report)


@dataclass
class Scored:
    scores: Any
    notes: list[str] = field(default_factory=list)

    def warnings(self) -> list[str]:
        return self.notes


class CommonWords:
    """The share of the query's words that the text has."""

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []

    def scores_with_report(self, pairs: Any) -> Scored:
        self.pairs += pairs
        found = [len(set(a.lower().split()) & set(b.lower().split())) / len(set(a.split())) for a, b in pairs]
        return Scored(np.asarray(found, dtype=np.float32), ["1 of 4 pairs were longer"])
