"""Retrieval: ranked documents against relevance judgements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from twinvec.errors import DataError
from twinvec.evaluation.measured import Measured, of_means
from twinvec.evaluation.metrics import (
    Floats,
    accuracy_at,
    average_precision_at,
    mrr,
    ndcg,
    precision_at,
    recall_at,
    unjudged_at,
)

METRICS: Final[dict[str, Callable[[Sequence[str], Mapping[str, float], int], float]]] = {
    "ndcg": ndcg, "mrr": mrr, "recall": recall_at, "map": average_precision_at, "precision": precision_at, "accuracy": accuracy_at,
    "unjudged": unjudged_at,
}  # fmt: skip


def score_retrieval(ranked: Mapping[str, Sequence[str]], qrels: Mapping[str, Mapping[str, float]], ks: Sequence[int] = (1, 3, 10)) -> dict[str, Any]:
    """ranked: query id -> document ids, best first; qrels: query id -> document id -> judgement.

    -> {"queries", "ndcg@k", "mrr@k", "recall@k", "map@k", "precision@k", "accuracy@k", "unjudged@k" for every k of `ks`, "notes"}: means over the
    queries that have a document with a judgement above 0; the gain is the judgement itself (trec_eval, BEIR). "unjudged@k" is the share of what was
    found that nobody has judged. A query with judgements but no ranked list counts as 0 everywhere; one without a relevant document is left out;
    both are counted in "notes".
    DataError: no such query at all, a document twice in one list, k below 1.
    """
    return _scores(ranked, qrels, ks)[0]


def measure_retrieval(
    ranked: Mapping[str, Sequence[str]],
    qrels: Mapping[str, Mapping[str, float]],
    queries: Mapping[str, str],
    documents: Mapping[str, str],
    ks: Sequence[int],
) -> Measured:
    """As `score_retrieval`; the unit is a query. queries and documents: their texts by id."""
    scores, values = _scores(ranked, qrels, ks)
    judged = [query for query in qrels if _answerable(qrels[query])]
    headline = "ndcg@10" if 10 in ks else f"ndcg@{max(ks)}"
    mine = values[headline]

    def mistakes(count: int) -> list[dict[str, Any]]:
        worst = [int(i) for i in np.argsort(mine, kind="stable")[:count] if mine[i] < 1]
        out = []
        for i in worst:
            query = judged[i]
            grades = qrels[query]
            wanted = max(grades, key=lambda document: grades[document])
            found = next(iter(ranked.get(query, ())), None)
            out.append(
                {
                    "query": query, "texts": {"query": queries.get(query, "")}, headline: float(mine[i]),
                    "found": found, "found_text": documents.get(found, "") if found is not None else None,
                    "found_is_judged": found in grades, "wanted": wanted, "wanted_text": documents.get(wanted, "(not in the corpus)"),
                }
            )  # fmt: skip
        return out

    texts = [{"query": queries.get(query, "")} for query in judged]
    # What nobody has judged is a property of the judgements more than of the model, and chance over queries moves it like the rest.
    return of_means("retrieval", headline, scores, values, names=judged, texts=texts, mistakes=mistakes)


def _answerable(gains: Mapping[str, float]) -> bool:
    return any(gain > 0 for gain in gains.values())


def _scores(
    ranked: Mapping[str, Sequence[str]], qrels: Mapping[str, Mapping[str, float]], ks: Sequence[int]
) -> tuple[dict[str, Any], dict[str, Floats]]:
    judged = {query: gains for query, gains in qrels.items() if _answerable(gains)}
    if not judged:
        raise DataError("retrieval: no query has a relevant document (a judgement above 0), so there is nothing to measure")
    if not ks:
        raise DataError("retrieval: ks is empty; give at least one cut-off, as in ks=(1, 3, 10)")
    notes = []
    if len(judged) < len(qrels):
        notes.append(f"{len(qrels) - len(judged)} of {len(qrels)} queries have no relevant document and are left out")
    missing = [query for query in judged if query not in ranked]
    if missing:
        notes.append(f"{len(missing)} of {len(judged)} queries have judgements but no ranked list (first: {missing[0]!r}); each counts as 0")
    strangers = sum(query not in qrels for query in ranked)
    if strangers:
        notes.append(f"{strangers} ranked queries have no judgements and are left out")
    result: dict[str, Any] = {"queries": len(judged)}
    values: dict[str, Floats] = {}
    for name, metric in METRICS.items():
        for k in sorted(set(ks)):
            each = [metric(ranked.get(query, ()), gains, k) for query, gains in judged.items()]
            if name == "unjudged":  # an empty list holds nothing unjudged
                each = [0.0 if math.isnan(value) else value for value in each]
            values[f"{name}@{k}"] = np.asarray(each, dtype=np.float64)
            result[f"{name}@{k}"] = math.fsum(each) / len(judged)
    result["notes"] = notes
    return result, values
