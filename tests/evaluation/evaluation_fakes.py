"""An encoder without a model: words are random directions, a text is the sum of its words."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from twinvec.records import EncodeReport, Encoding


class FakeEncoder:
    """Deterministic vectors (8 numbers); remembers every text it was given, with its prompt. shared: a direction that all texts have."""

    def __init__(self, prompts: dict[str, str] | None = None, default: str | None = None, source: Path | None = None, shared: float = 0.0) -> None:
        self.prompts = prompts or {}
        self.default_prompt, self.source, self.shared = default, source, shared
        self.calls: list[tuple[str | None, list[str]]] = []
        self.options: list[dict[str, Any]] = []

    def vector(self, text: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        total = np.zeros(8) + self.shared
        for word in text.split():
            seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big")
            total += np.random.default_rng(seed).normal(size=8)
        return total.astype(np.float32)

    def count_tokens(self, texts: list[str]) -> list[int]:
        return [len(text.split()) + 2 for text in texts]

    def encode_with_report(self, texts: Any, *, prompt: str | None = None, **options: Any) -> Encoding:
        self.calls.append((prompt, list(texts)))
        self.options.append(options)
        name = prompt if prompt is not None else self.default_prompt
        lead = self.prompts[name] if name else ""
        vectors = np.stack([self.vector(lead + text) if text.strip() else np.zeros(8, np.float32) for text in texts])
        report = EncodeReport(
            rows=len(texts), dimensions=8, tokens=sum(len(t.split()) for t in texts), truncated=0, truncated_tokens=0, split=0,
            longest=max(len(t.split()) for t in texts), empty=[i for i, t in enumerate(texts) if not t.strip()], unknown_rate=0.0, prompt=lead,
            engine="fake", precision="float32", threads=1, seconds=0.5,
        )  # fmt: skip
        return Encoding(vectors, report)
