"""Retrieval: ranked documents against relevance judgements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from twinvec.errors import DataError
from twinvec.evaluation.metrics import accuracy_at, mrr, ndcg, recall_at


def score_retrieval(ranked: Mapping[str, Sequence[str]], qrels: Mapping[str, Mapping[str, float]], ks: Sequence[int] = (1, 3, 10)) -> dict[str, Any]:
    """ranked: query id -> document ids, best first; qrels: query id -> document id -> judgement.

    -> {"queries", "ndcg@k", "mrr@k", "recall@k", "accuracy@k" for every k of `ks`, "notes"}: means over the queries that have a document
    with a judgement above 0; the gain is the judgement itself (trec_eval, BEIR). A query with judgements but no ranked list counts as 0
    everywhere; one without a relevant document is left out; both are counted in "notes".
    DataError: no such query at all, a document twice in one list, k below 1.
    """
    judged = {query: gains for query, gains in qrels.items() if any(gain > 0 for gain in gains.values())}
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
    unjudged = sum(query not in qrels for query in ranked)
    if unjudged:
        notes.append(f"{unjudged} ranked queries have no judgements and are left out")
    result: dict[str, Any] = {"queries": len(judged)}
    metrics: dict[str, Callable[[Sequence[str], Mapping[str, float], int], float]]
    metrics = {"ndcg": ndcg, "mrr": mrr, "recall": recall_at, "accuracy": accuracy_at}
    for name, metric in metrics.items():
        for k in sorted(set(ks)):
            result[f"{name}@{k}"] = math.fsum(metric(ranked.get(query, ()), gains, k) for query, gains in judged.items()) / len(judged)
    result["notes"] = notes
    return result
