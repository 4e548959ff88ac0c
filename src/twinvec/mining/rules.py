"""Which candidates may become negatives, as settings that are checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.errors import UsageError, choose

SAMPLES = ("top", "random")
INCOMPLETE = ("drop", "repeat")
FILTERS = ("margin", "relative_margin", "max_score", "min_score")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What makes a candidate a hard negative of a pair (anchor, positive) with the score s = score(anchor, positive).

    negatives: how many a pair. rank_from, rank_to: the window of ranks, from 1, both ends included; the nearest text of the corpus that is
    neither the anchor nor known to belong to it has rank 1. Among those a candidate with the score c is kept when

        c <= s - margin,   c <= s - (1 - relative_margin) |s|,   c <= max_score,   c >= min_score

    for each that is set. The second is "TopK-PercPos" of NV-Retriever (Moreira et al. 2024, section 4; best there at 95 %), c <= R s, for
    s >= 0; below zero R s would be *above* s, so the distance is taken from s downwards (dots and logits can be negative, cosines too).
    sample: "top" the hardest, "random" any that are kept. incomplete: a pair with fewer than `negatives` is dropped, or ("repeat") its own
    are given again until every row has as many; a pair with none is always dropped.
    """

    negatives: int = 1
    rank_from: int = 1
    rank_to: int = 100
    margin: float | None = None
    relative_margin: float | None = None
    max_score: float | None = None
    min_score: float | None = None
    sample: str = "top"
    seed: int = 0
    incomplete: str = "drop"

    def __post_init__(self) -> None:
        for name in ("negatives", "rank_from", "rank_to"):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} = {value!r}: wanted a whole number, 1 or more")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise UsageError(f"seed = {self.seed!r}: wanted a whole number, 0 or more")
        if self.rank_to - self.rank_from + 1 < self.negatives:
            raise UsageError(
                f"ranks {self.rank_from} to {self.rank_to} hold {max(0, self.rank_to - self.rank_from + 1)} candidates, fewer than the "
                f"{self.negatives} negatives wanted a pair; raise rank_to"
            )
        for name in FILTERS:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value)):
                raise UsageError(f"{name} = {value!r}: wanted a finite number")
        if self.relative_margin is not None and not 0 < self.relative_margin <= 1:
            raise UsageError(
                f"relative_margin = {self.relative_margin:g}: wanted a share of the positive's score, above 0 and at most 1; NV-Retriever's is 0.95"
            )
        if self.max_score is not None and self.min_score is not None and self.max_score < self.min_score:
            raise UsageError(f"max_score = {self.max_score:g} is below min_score = {self.min_score:g}: no candidate can pass both")
        choose("sample", self.sample, SAMPLES)
        choose("incomplete", self.incomplete, INCOMPLETE)

    def bounds(self, positive: float) -> dict[str, float]:
        """The limit of each filter that is set, for a pair whose own score is `positive`; all are upper limits but min_score."""
        found = {}
        if self.margin is not None:
            found["margin"] = positive - self.margin
        if self.relative_margin is not None:
            found["relative_margin"] = positive - (1 - self.relative_margin) * abs(positive)
        if self.max_score is not None:
            found["max_score"] = self.max_score
        if self.min_score is not None:
            found["min_score"] = self.min_score
        return found

    def keep(self, scores: Floats, positive: float, removed: dict[str, int]) -> npt.NDArray[np.int64]:
        """scores (m,) of one pair's candidates -> the places of those kept, in their order.

        `removed` counts the others under the first filter that refuses them.
        """
        alive = np.arange(len(scores))
        for name, limit in self.bounds(positive).items():
            passes = scores[alive] >= limit if name == "min_score" else scores[alive] <= limit
            removed[name] = removed.get(name, 0) + int(len(alive) - passes.sum())
            alive = alive[passes]
        return alive

    def choose(self, kept: npt.NDArray[np.int64], row: int) -> npt.NDArray[np.int64]:
        """At most `negatives` of `kept`, in their order. "random" depends on seed and row alone, so never on blocks or on other rows."""
        if self.sample == "top" or len(kept) <= self.negatives:
            return kept[: self.negatives]
        drawn = np.random.default_rng([self.seed, row]).choice(len(kept), self.negatives, replace=False)
        return kept[np.sort(drawn)]

    def to_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}
