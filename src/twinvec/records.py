"""Plain records that travel between rooms. No torch here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Document:
    """One text to index. `id` is the caller's own string and stays for life; `metadata` is a JSON object."""

    id: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Passage:
    """The part of a long document that a hit was found by: `text` is document.text[start:stop], `part` its number from 0."""

    text: str
    start: int
    stop: int
    part: int

    def to_dict(self) -> dict[str, Any]:
        return {"text": self.text, "start": self.start, "stop": self.stop, "part": self.part}


@dataclass(slots=True)  # not frozen: a frozen one takes four times as long to make, and a search makes thousands
class Hit:
    """One search result; larger scores are nearer. `passage`: the best one of a document that was cut.

    `score` is the cosine (or inner product) of a dense search, else what the mode of search says. `parts`: what it is made of, where that was asked.
    """

    id: str
    score: float
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)
    passage: Passage | None = None
    parts: dict[str, float | int | None] | None = None

    def to_dict(self) -> dict[str, Any]:
        found = {"id": self.id, "score": self.score, "text": self.text, "metadata": self.metadata}
        if self.passage is not None:
            found["passage"] = self.passage.to_dict()
        if self.parts is not None:
            found["parts"] = self.parts
        return found


def unknown_note(rate: float) -> list[str]:
    """What a report says when more than a fifth of the tokens are unknown; nothing below that."""
    return [f"{rate:.0%} of the tokens are unknown to this model: it does not know this language or script"] if rate > 0.2 else []


@dataclass(frozen=True, slots=True)
class EncodeReport:
    """What happened to the texts of one encode call.

    `tokens`: tokens that went through the model, special tokens and prompt included. `truncated`: rows cut to the window;
    `truncated_tokens`: how many tokens they lost; `split`: rows encoded in pieces instead; `longest`: tokens of the longest row before cutting.
    `empty`: numbers (from 0) of the rows without any text. `unknown_rate`: share of unknown tokens among the content tokens (0-1).
    """

    rows: int
    dimensions: int
    tokens: int
    truncated: int
    truncated_tokens: int
    split: int
    longest: int
    empty: list[int]
    unknown_rate: float
    prompt: str
    engine: str
    precision: str
    threads: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The JSON form of `twinvec encode --json`; `empty` becomes a count, `empty_rows` lists the first hundred."""
        out = asdict(self)
        out["empty"] = len(self.empty)
        out["empty_rows"] = self.empty[:100]
        return out

    def warnings(self) -> list[str]:
        """Sentences worth showing to a user; empty when nothing was lost."""
        notes = []
        if self.truncated:
            notes.append(
                f"{self.truncated} of {self.rows} texts were longer than the model's window and lost {self.truncated_tokens} tokens in all "
                f"(longest text: {self.longest} tokens); see --on-long split|error"
            )
        if self.empty:
            shown = ", ".join(str(i) for i in self.empty[:5])
            notes.append(f"{len(self.empty)} of {self.rows} texts are empty (first rows, from 0: {shown})")
        return notes + unknown_note(self.unknown_rate)


@dataclass(frozen=True, slots=True)
class Encoding:
    """Vectors float32 (n, D) with their report.

    `counts`: int64 (n, 5), for each row the tokens that went through the model, the tokens before cutting, unknown tokens, content tokens, and
    pieces; what the report sums up.
    """

    vectors: Vectors
    report: EncodeReport
    counts: npt.NDArray[np.int64] | None = None
