"""Semantic textual similarity: how well similarities of pairs follow gold scores."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from twinvec.evaluation.metrics import SIMILARITIES, is_constant, pearson, similarities, spearman
from twinvec.evaluation.values import put, trouble, two_sides


def score_sts(u: npt.ArrayLike, v: npt.ArrayLike, gold: npt.ArrayLike) -> dict[str, Any]:
    """u, v (n, D) and gold (n,), in any range -> {"spearman_cosine", "pearson_cosine", ... the same for dot, euclidean, manhattan, "notes"}.

    Values are from -1 to 1, larger is better; None where undefined (constant or NaN scores, one row), and then "notes" says why.
    All pairs are correlated together ("all", not the mean over sub-sets). DataError: unequal counts, no rows, gold that is not a number.
    """
    a, b, y = two_sides(u, v, gold, "gold scores")
    result: dict[str, Any] = {}
    notes: list[str] = []
    if len(y) == 1:
        notes.append("one row: a correlation needs two or more")
    elif is_constant(y):
        notes.append(f"all {len(y)} gold scores are {y[0]:g}: no correlation is defined")
    for name in SIMILARITIES:
        scores = similarities(a, b, name)
        why = trouble(scores, name)
        values = [(f"spearman_{name}", spearman(scores, y)), (f"pearson_{name}", pearson(scores, y))]
        if why and "NaN" in why:
            values = [(key, float("nan")) for key, _ in values]
        put(result, notes, values, why)
    result["notes"] = notes
    return result
