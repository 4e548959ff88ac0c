"""Two ranked lists into one: reciprocal ranks, or weighted scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from twinvec.errors import UsageError, choose

METHODS: Final = ("rrf", "weighted")
DEPTH: Final = 100  # hits of each list that are fused
CONSTANT: Final = 60  # k of Cormack, Clarke and Büttcher (SIGIR 2009), who found 60 on TREC runs

Ranking = Sequence[tuple[str, float]]  # (id, score), best first


@dataclass(frozen=True, slots=True)
class Fusion:
    """How dense and lexical hits become one list.

    method "rrf": the sum over both lists of weight / (constant + rank); with equal weights (dense = 0.5) this orders as the paper's does, and its
    scores are the paper's. "weighted": dense * d + (1 - dense) * l, where d is the dense score on a scale from 0 (the last of the `depth`
    hits) to 1 (the first), and l the lexical score over the best one (after "theoretical min-max", Bruch, Gai and Ingber 2023, section 4).
    dense: weight of the dense side, 0 to 1. A document that a list lacks gets nothing from it.
    """

    method: str = "rrf"
    dense: float = 0.5
    constant: float = CONSTANT
    depth: int = DEPTH

    def __post_init__(self) -> None:
        choose("fusion method", self.method, METHODS)
        for name, value, low, high in (("dense", self.dense, 0, 1), ("constant", self.constant, 0, 1e6)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise UsageError(f"fusion {name} = {value!r}: wanted a number from {low:g} to {high:g}")
        if isinstance(self.depth, bool) or not isinstance(self.depth, int) or self.depth < 1:
            raise UsageError(f"fusion depth = {self.depth!r}: wanted a whole number of hits, 1 or more")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: Any) -> Fusion:
        """What `to_dict` gave; UsageError for anything else."""
        if not isinstance(values, Mapping) or not values.keys() <= {"method", "dense", "constant", "depth"}:
            raise UsageError(f"fusion: {values!r:.80} is no setting of a fusion (method, dense, constant, depth)")
        return Fusion(**values)

    def fuse(self, dense: Ranking, lexical: Ranking, k: int) -> list[tuple[str, float]]:
        """The k best of both, as (id, score), best first, ties by id.

        Only the first `depth` of each list are weighed, so the top k is a prefix of the top K whatever k is. When k asks for more, the others
        follow in the order of the better of their two ranks, with lower scores.
        """
        head = self._reciprocal(dense, lexical) if self.method == "rrf" else self._weighted(dense, lexical)
        ranked = sorted(head.items(), key=_order)
        if len(ranked) < k:
            ranked += self._rest(dense, lexical, head)
        return ranked[:k]

    def _weights(self) -> tuple[float, float]:
        return self.dense, 1 - self.dense

    def _reciprocal(self, dense: Ranking, lexical: Ranking) -> dict[str, float]:
        found: dict[str, float] = {}
        for weight, ranking in zip(self._weights(), (dense, lexical), strict=True):
            for rank, (name, _) in enumerate(ranking[: self.depth], start=1):
                found[name] = found.get(name, 0.0) + 2 * weight / (self.constant + rank)
        return found

    def _weighted(self, dense: Ranking, lexical: Ranking) -> dict[str, float]:
        found: dict[str, float] = {}
        dense, lexical = dense[: self.depth], lexical[: self.depth]
        for weight, ranking, floor in zip(self._weights(), (dense, lexical), (dense[-1][1] if dense else 0.0, 0.0), strict=True):
            span = ranking[0][1] - floor if ranking else 0.0
            for name, score in ranking:
                found[name] = found.get(name, 0.0) + weight * ((score - floor) / span if span > 0 else 1.0)
        return found

    def _rest(self, dense: Ranking, lexical: Ranking, head: Mapping[str, float]) -> list[tuple[str, float]]:
        best: dict[str, int] = {}
        for ranking in (dense, lexical):
            for rank, (name, _) in enumerate(ranking[self.depth :], start=self.depth + 1):
                if name not in head:
                    best[name] = min(best.get(name, rank), rank)
        if self.method == "rrf":
            # At most what the last of the head can have, and less with every rank.
            least = 2 * min(weight for weight in self._weights() if weight > 0)
            return sorted(((name, least / (self.constant + rank)) for name, rank in best.items()), key=_order)
        return sorted(((name, self.depth / rank - 1) for name, rank in best.items()), key=_order)


def _order(pair: tuple[str, float]) -> tuple[float, str]:
    return -pair[1], pair[0]


def ndcg_at(ranked: Sequence[str], grades: Mapping[str, float], k: int = 10) -> float:
    """NDCG@k with the grade itself as gain (trec_eval, BEIR); 0 when nothing is relevant. The room of evaluation has the full account."""
    gains = [grades.get(name, 0.0) for name in ranked[:k]]
    ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)[:k]
    best = math.fsum(grade / math.log2(rank + 1) for rank, grade in enumerate(ideal, start=1))
    return math.fsum(max(gain, 0.0) / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1)) / best if best else 0.0
