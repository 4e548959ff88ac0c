"""What mining gives back: rows to train on, and the account of how they came about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.data.dataset import Dataset
from twinvec.mining.rules import Rules

Floats = npt.NDArray[np.float64]
QUANTILES = {"min": 0.0, "p5": 0.05, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95, "max": 1.0}


@dataclass(frozen=True)
class Mined:
    """Rows with N hard negatives each, in the order of the pairs.

    data: a data set of triplets: anchor, positive, negative, negative_2, ... positive_scores (n,), negative_scores (n, N): by the encoder, or
    by the reranker where there was one. ranks (n, N): places in the encoder's list of the anchor, from 1.

    counts: "rows" of the file; of those "label_0", "blank" (no text, or one without a direction), "too_few" (some negatives, but fewer than
    N, and dropped) and "none" (no negative at all) are not here, "filled" ones repeat some of theirs; "anchors" distinct, "corpus" texts.
    removed: candidates refused, "known" ones (counted once an anchor) and by the first rule that refused them (once a row).
    background: the mean score of anchors with texts of the corpus, which is what unrelated texts score (0.8 and more in a narrow cone of
    vectors, near 0 in a wide one); always by the encoder.
    """

    data: Dataset
    positive_scores: Floats
    negative_scores: Floats
    ranks: npt.NDArray[np.int64]
    counts: dict[str, int]
    removed: dict[str, int]
    rules: Rules
    background: float = 0.0
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return self.data.rows

    def quantiles(self) -> dict[str, dict[str, float]]:
        """Mean and quantiles of the positives' scores, of the negatives' and of the differences."""
        difference = self.positive_scores[:, None] - self.negative_scores
        return {name: _spread(x) for name, x in (("positive", self.positive_scores), ("negative", self.negative_scores), ("difference", difference))}

    def above(self) -> int:
        """Negatives that score as high as their positive or higher: the likeliest to be positives that nobody labelled."""
        return int((self.negative_scores >= self.positive_scores[:, None]).sum())

    def sample(self, rows: int = 3) -> list[dict[str, Any]]:
        """Some rows, spread evenly over the file, with their scores and ranks."""
        return [self._shown(row) for row in sorted({(2 * i + 1) * len(self) // (2 * rows) for i in range(rows)})]

    def _shown(self, row: int) -> dict[str, Any]:
        anchor, positive, *negatives = self.data.texts(row)
        scored = zip(negatives, self.negative_scores[row].tolist(), self.ranks[row].tolist(), strict=True)
        return {
            "anchor": anchor,
            "positive": positive,
            "positive_score": float(self.positive_scores[row]),
            "negatives": [{"text": text, "score": score, "rank": rank} for text, score, rank in scored],
        }

    def columns(self, scores: bool = False) -> dict[str, list[Any]]:
        """The columns to write, with the groups where the pairs had any.

        With `scores` also positive_score, negative_score, negative_score_2, ... and, for one negative a row, their difference as "margin".
        """
        found: dict[str, list[Any]] = dict(self.data.columns)
        if self.data.groups is not None:
            found["group"] = [group if group >= 0 else None for group in self.data.groups]
        if scores:
            found["positive_score"] = self.positive_scores.tolist()
            for i in range(self.rules.negatives):
                found["negative_score" if i == 0 else f"negative_score_{i + 1}"] = self.negative_scores[:, i].tolist()
            if self.rules.negatives == 1:
                found["margin"] = (self.positive_scores - self.negative_scores[:, 0]).tolist()
        return found

    def to_dict(self) -> dict[str, Any]:
        """Everything but the rows, as JSON."""
        return {
            "rows": len(self), "negatives": self.rules.negatives, "counts": self.counts, "removed": self.removed,
            "scores": self.quantiles(), "above_positive": self.above(), "background": self.background,
            "sample": self.sample(), "rules": self.rules.to_dict(),
        }  # fmt: skip


def _spread(values: Floats) -> dict[str, float]:
    points = np.quantile(values, list(QUANTILES.values()))
    return {"mean": float(values.mean()), **{name: float(x) for name, x in zip(QUANTILES, points, strict=True)}}
