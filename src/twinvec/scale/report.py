"""What a job of any size says at its end: the same counts as one `encode` call, in memory that does not grow with the rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from twinvec.records import unknown_note

SHOWN: Final = 100  # numbers of empty rows that are kept
_SUMS: Final = ("rows", "tokens", "truncated", "truncated_tokens", "split", "empty", "unknown", "content", "clipped", "cache_hits")


class Tally:
    """Counts over rows that come block by block; `to_dict` of a block is kept with its shard, so that a resumed run reports all rows."""

    def __init__(self) -> None:
        self.sums = dict.fromkeys(_SUMS, 0)
        self.longest = 0
        self.empty_rows: list[int] = []

    def block(self, texts: list[str], counts: npt.NDArray[np.int64], max_tokens: int, *, known: int, clipped: int) -> dict[str, Any]:
        """Add a block of rows; counts (n, 5) as in `records.Encoding`. known: rows that were not encoded; clipped: numbers outside int8's ranges."""
        cut = (counts[:, 1] > max_tokens) & (counts[:, 4] == 1)
        empty = [row for row, text in enumerate(texts) if not text or text.isspace()]
        found = {
            "rows": len(texts),
            "tokens": int(counts[:, 0].sum()),
            "truncated": int(cut.sum()),
            "truncated_tokens": int((counts[cut, 1] - max_tokens).sum()),
            "split": int((counts[:, 4] > 1).sum()),
            "empty": len(empty),
            "unknown": int(counts[:, 2].sum()),
            "content": int(counts[:, 3].sum()),
            "clipped": clipped,
            "cache_hits": known,
            "longest": int(counts[:, 1].max(initial=0)),
            "empty_rows": empty[:SHOWN],
        }
        self.add(found)
        return found

    def add(self, found: dict[str, Any]) -> None:
        """Add what was counted of a block."""
        before = self.sums["rows"]
        for name in _SUMS:
            self.sums[name] += found[name]
        self.longest = max(self.longest, found["longest"])
        self.empty_rows = (self.empty_rows + [before + row for row in found["empty_rows"]])[:SHOWN]


@dataclass(frozen=True, slots=True)
class BulkReport:
    """What happened to the rows of a job. The first fields are those of `EncodeReport`; `empty` is a count, `empty_rows` has the first hundred.

    `cache_hits`: rows that needed no encoding, because the same text had come before. `shards`: pieces that the work was cut into; `resumed_rows`:
    rows of an earlier run that was broken off. `seconds` is the time of this run, the loading of the model left out. `clipped`: share of the
    distinct vectors' numbers that lay outside the ranges of int8.
    """

    rows: int
    dimensions: int
    tokens: int
    truncated: int
    truncated_tokens: int
    split: int
    longest: int
    empty: int
    empty_rows: list[int]
    unknown_rate: float
    prompt: str
    engine: str
    precision: str
    threads: int
    seconds: float
    cache_hits: int
    shards: int
    resumed_rows: int
    processes: int
    clipped: float
    store: str
    output: str
    bytes: int
    model: str
    fingerprint: str
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form of `twinvec encode --json`, less the notes."""
        out = asdict(self)
        del out["notes"]
        return out

    def warnings(self) -> list[str]:
        """Sentences worth showing to a user; empty when nothing was lost."""
        notes = list(self.notes)
        if self.truncated:
            notes.append(
                f"{self.truncated:,} of {self.rows:,} texts were longer than the model's window and lost {self.truncated_tokens:,} tokens in all "
                f"(longest text: {self.longest:,} tokens); see --on-long split|error"
            )
        if self.empty:
            shown = ", ".join(map(str, self.empty_rows[:5]))
            notes.append(f"{self.empty:,} of {self.rows:,} texts are empty (first rows, from 0: {shown})")
        notes += unknown_note(self.unknown_rate)
        if self.clipped > 0.01:
            notes.append(f"{self.clipped:.1%} of the numbers lay outside the int8 ranges and were clipped; give --ranges FILE with typical vectors")
        return notes
