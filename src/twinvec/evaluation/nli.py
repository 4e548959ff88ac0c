"""NLI files as a measure of vectors: are entailed sentences nearer than contradicting ones?"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from twinvec.evaluation.measured import Measured
from twinvec.evaluation.metrics import Floats, average_precision, roc_auc, similarities
from twinvec.evaluation.mistakes import listed, wrong_by_rank
from twinvec.evaluation.rows import Rows
from twinvec.evaluation.values import defined, put, trouble, two_sides
from twinvec.evaluation.weighted import Figures, detection_of, divided

CLASSES: Final = ("entailment", "neutral", "contradiction")


def score_nli(u: npt.ArrayLike, v: npt.ArrayLike, labels: npt.ArrayLike) -> dict[str, Any]:
    """u, v (n, D); labels (n,): 0 entailment, 1 neutral, 2 contradiction -> a dict.

    "rows_X" and "mean_cosine_X" for each class; "average_precision_cosine" and "roc_auc_cosine" of entailment against contradiction,
    neutral rows left out; "notes". Cosine is symmetric and entailment is not: this measures nearness of meaning, not inference.
    """
    a, b, y = two_sides(u, v, labels, "labels")
    cosine = similarities(a, b, "cosine")
    result: dict[str, Any] = {}
    notes: list[str] = []
    for number, name in enumerate(CLASSES):
        chosen = cosine[y == number]
        result[f"rows_{name}"] = len(chosen)
        result[f"mean_cosine_{name}"] = defined(float(chosen.mean())) if len(chosen) else None
    sharp = y != 1
    entailed, scores = (y[sharp] == 0).astype(np.float64), cosine[sharp]
    why = trouble(cosine, "cosine")
    values = [("average_precision_cosine", average_precision(entailed, scores)), ("roc_auc_cosine", roc_auc(entailed, scores))]
    one_class = not 0 < entailed.sum() < len(entailed)
    if one_class:
        notes.append("entailment and contradiction are not both there: average precision and ROC AUC are not defined")
    if why or one_class:
        values = [(key, math.nan) for key, _ in values]
    put(result, notes, values, why)
    result["notes"] = notes
    return result


def measure_nli(rows: Rows) -> Measured:
    """Rows of premise and hypothesis with 0 entailment, 1 neutral, 2 contradiction."""
    u, v = rows.sides
    y = rows.labels
    scores = score_nli(u, v, y)
    cosine = similarities(u, v, "cosine")
    sharp = y != 1
    entailed = (y == 0).astype(np.float64)
    detection = detection_of(entailed[sharp], cosine[sharp], "_cosine") if sharp.any() else None
    kept = ("average_precision_cosine", "roc_auc_cosine")

    def figures(weights: Floats) -> dict[str, Floats]:
        out = {}
        for number, name in enumerate(CLASSES):
            mine = (y == number).astype(np.float64)
            out[f"mean_cosine_{name}"] = divided(weights @ (mine * np.where(mine > 0, cosine, 0.0)), weights @ mine)
        found = detection(weights[:, sharp]) if detection is not None else {name: np.full(len(weights), np.nan) for name in kept}
        return out | {name: found[name] for name in kept}

    def mistakes(count: int) -> list[dict[str, Any]]:
        wrong = np.zeros(len(y))
        wrong[sharp] = wrong_by_rank(entailed[sharp], cosine[sharp])
        return listed(rows, wrong, count, lambda i: {"label": CLASSES[int(y[i])], "cosine": cosine[i]})

    same = np.where(sharp, entailed, np.nan)
    names = [*(f"mean_cosine_{name}" for name in CLASSES), *kept]
    return Measured(
        "nli",
        "average_precision_cosine",
        scores,
        Figures.of(names, figures),
        rows.names,
        rows.texts,
        mistakes=mistakes,
        clusters=rows.clusters,
        cosines=cosine,
        same=same,
    )
