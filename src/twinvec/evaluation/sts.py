"""Semantic textual similarity: how well similarities of pairs follow gold scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.evaluation.measured import Measured
from twinvec.evaluation.metrics import SIMILARITIES, Floats, is_constant, pearson, ranks, similarities, spearman
from twinvec.evaluation.mistakes import listed
from twinvec.evaluation.rows import Rows
from twinvec.evaluation.values import put, trouble, two_sides
from twinvec.evaluation.weighted import pearson_of, spearman_of, together


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


def measure_sts(rows: Rows) -> Measured:
    """Rows of two texts with gold scores."""
    u, v = rows.sides
    gold = rows.labels
    scores = score_sts(u, v, gold)
    found = {name: similarities(u, v, name) for name in SIMILARITIES}
    figures = together(
        *(spearman_of(value, gold, f"spearman_{name}") for name, value in found.items()),
        *(pearson_of(value, gold, f"pearson_{name}") for name, value in found.items()),
    )

    def mistakes(count: int) -> list[dict[str, Any]]:
        # In ranks, as Spearman sees them: 0.3 says that the model puts the pair 30 places in 100 too high.
        away: Floats = (ranks(found["cosine"]) - ranks(gold)) / len(gold)
        return listed(rows, np.abs(away), count, lambda i: {"gold": gold[i], "cosine": found["cosine"][i], "too_high_by": away[i]})

    return Measured("sts", "spearman_cosine", scores, figures, rows.names, rows.texts, mistakes=mistakes, clusters=rows.clusters)
