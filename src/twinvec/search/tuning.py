"""Choosing how to fuse from labelled queries: on one half, told on the other."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twinvec.errors import DataError
from twinvec.search.fusion import Fusion, Ranking, ndcg_at

LEAST = 10  # queries with a relevant document: with fewer a half says nothing


@dataclass(frozen=True, slots=True)
class Tuned:
    """The chosen fusion. `chosen_on` and `held_out`: nDCG@10 of "dense", "lexical", "rrf" (plain) and "tuned" on the half that the choice was
    made on, and on the other, which it never saw; only the second tells what to expect."""

    fusion: Fusion
    queries: tuple[int, int]
    chosen_on: dict[str, float]
    held_out: dict[str, float]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        return {
            "fusion": self.fusion.to_dict(),
            "queries": {"chosen_on": self.queries[0], "held_out": self.queries[1]},
            "ndcg@10": {"chosen_on": self.chosen_on, "held_out": self.held_out},
        }


def candidates(depth: int) -> list[Fusion]:
    """Plain reciprocal ranks first: of equal results the earlier is taken. The scale ends at either list alone."""
    steps = [i / 20 for i in range(21)]
    near = sorted(steps, key=lambda weight: (abs(weight - 0.5), weight))
    return [Fusion(method, weight, depth=depth) for method in ("rrf", "weighted") for weight in near]


def choose_fusion(dense: Mapping[str, Ranking], lexical: Mapping[str, Ranking], qrels: Mapping[str, Mapping[str, float]], depth: int) -> Tuned:
    """dense, lexical: query id -> ranked (document id, score). DataError with fewer than ten queries that have a relevant document."""
    judged = sorted(query for query in dense if any(grade > 0 for grade in qrels.get(query, {}).values()))
    notes = []
    if len(judged) < len(dense):
        notes.append(f"{len(dense) - len(judged)} of {len(dense)} queries have no relevant document and are left out")
    if len(judged) < LEAST:
        raise DataError(
            f"tune: {len(judged)} queries have a relevant document; wanted {LEAST} or more to choose weights from "
            "(are the ids of queries and judgements the same?)"
        )
    # By the hash of its id a query always falls into the same half, in whatever order and company it comes.
    judged.sort(key=lambda query: hashlib.sha256(query.encode("utf-8", "surrogatepass")).digest())
    halves = judged[::2], judged[1::2]

    def score(fusion: Fusion, queries: Sequence[str]) -> float:
        found = ([name for name, _ in fusion.fuse(dense[query], lexical[query], 10)] for query in queries)
        return math.fsum(ndcg_at(ranked, qrels[query]) for ranked, query in zip(found, queries, strict=True)) / len(queries)

    best = max(candidates(depth), key=lambda fusion: score(fusion, halves[0]))  # the first of equals
    compared = {"dense": Fusion("rrf", 1.0, depth=depth), "lexical": Fusion("rrf", 0.0, depth=depth), "rrf": Fusion(depth=depth), "tuned": best}
    figures = [{name: score(fusion, half) for name, fusion in compared.items()} for half in halves]
    return Tuned(best, (len(halves[0]), len(halves[1])), figures[0], figures[1], notes)
