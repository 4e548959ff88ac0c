"""An encoder without a model: texts that share words get near vectors, the same text always the same one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from twinvec.records import EncodeReport, Encoding


@lru_cache(maxsize=100_000)
def word_vector(word: str, dimensions: int) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little")
    return np.random.default_rng(seed).standard_normal(dimensions)


class FakeEncoder:
    """Bag of words, unit rows; an empty text gets a finite vector that is not zero, as a real encoder's is."""

    def __init__(self, name: str = "fake", dimensions: int = 32, prompts: dict[str, str] | None = None) -> None:
        self.name, self.dimensions, self.prompts = name, dimensions, prompts or {}
        self.fingerprint = hashlib.sha256(f"{name} {dimensions}".encode()).hexdigest()[:32]
        self.normalizes = True
        self.calls: list[tuple[list[str], str | None]] = []
        self.long: list[str] = []  # how long texts were to be treated, call by call

    def encode(self, texts: Sequence[str], prompt: str | None = None) -> np.ndarray:
        lead = self.prompts.get(prompt or "", "")
        out = np.stack(
            [sum((word_vector(word, self.dimensions) for word in ("[CLS]", *(lead + text).split())), np.zeros(self.dimensions)) for text in texts]
        )
        return (out / np.linalg.norm(out, axis=1, keepdims=True)).astype(np.float32)

    def encode_with_report(self, texts: Sequence[str], *, prompt: str | None = None, on_long: str = "truncate") -> Encoding:
        texts = list(texts)
        self.calls.append((texts, prompt))
        self.long.append(on_long)
        vectors = self.encode(texts, prompt) if texts else np.zeros((0, self.dimensions), dtype=np.float32)
        tokens = sum(len(text.split()) + 1 for text in texts)
        report = EncodeReport(
            rows=len(texts), dimensions=self.dimensions, tokens=tokens, truncated=0, truncated_tokens=0, split=0, longest=0, empty=[],
            unknown_rate=0.0, prompt=self.prompts.get(prompt or "", ""), engine="fake", precision="float32", threads=1, seconds=0.0,
        )  # fmt: skip
        return Encoding(vectors, report)
