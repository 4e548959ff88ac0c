"""Pairs with 0/1 labels: how well a threshold on similarity tells same from different."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.errors import DataError
from twinvec.evaluation.measured import Measured
from twinvec.evaluation.metrics import SIMILARITIES, Floats, average_precision, best_accuracy, best_f1, pearson, roc_auc, similarities, spearman
from twinvec.evaluation.mistakes import listed, wrong_by_rank
from twinvec.evaluation.rows import Rows
from twinvec.evaluation.values import put, trouble, two_sides
from twinvec.evaluation.weighted import detection_of, pearson_of, spearman_of, together


def score_pairs(u: npt.ArrayLike, v: npt.ArrayLike, labels: npt.ArrayLike) -> dict[str, Any]:
    """u, v (n, D) and labels (n,) of 0 and 1 -> a dict with these keys for each of cosine, dot, euclidean, manhattan, and "notes".

    average_precision_X, best_f1_X with best_f1_threshold_X, best_f1_precision_X and best_f1_recall_X, best_accuracy_X with
    best_accuracy_threshold_X, roc_auc_X; and pearson_cosine, spearman_cosine (the figure that the ATEC runs quote).
    A pair counts as positive when its similarity is >= the threshold; thresholds are chosen on these very rows, so use them on others.
    None where undefined (one class only, constant or NaN scores), and then "notes" says why. DataError: unequal counts, labels not 0/1.
    """
    a, b, y = two_sides(u, v, labels, "labels")
    wrong = np.flatnonzero((y != 0) & (y != 1))
    if wrong.size:
        raise DataError(f"row {wrong[0] + 1}: label {y[wrong[0]]:g}; pairs need labels 0 and 1 (scores with more values are scored as STS)")
    positives = int(y.sum())
    result: dict[str, Any] = {"positives": positives, "negatives": len(y) - positives}
    notes: list[str] = []
    if positives in (0, len(y)):
        notes.append(f"all {len(y)} labels are {int(y[0])}: scores that compare positives with negatives are not defined")
    for name in SIMILARITIES:
        scores = similarities(a, b, name)
        why = trouble(scores, name)
        values = _values(scores, y, name)
        # Constant scores have an average precision (the share of positives) and a best F1, but nothing was learnt from the vectors:
        # left out, so that no search for a best step or model can pick them.
        if why or positives in (0, len(y)):
            values = [(key, math.nan) for key, _ in values]
        put(result, notes, values, why)
    result["notes"] = notes
    return result


def _values(scores: Floats, labels: Floats, name: str) -> list[tuple[str, float]]:
    f1, accuracy = best_f1(labels, scores), best_accuracy(labels, scores)
    values = [
        (f"average_precision_{name}", average_precision(labels, scores)),
        (f"best_f1_{name}", f1.value),
        (f"best_f1_threshold_{name}", f1.threshold),
        (f"best_f1_precision_{name}", f1.precision),
        (f"best_f1_recall_{name}", f1.recall),
        (f"best_accuracy_{name}", accuracy.value),
        (f"best_accuracy_threshold_{name}", accuracy.threshold),
        (f"roc_auc_{name}", roc_auc(labels, scores)),
    ]
    if name == "cosine":
        values += [("pearson_cosine", pearson(scores, labels)), ("spearman_cosine", spearman(scores, labels))]
    return values


def measure_pairs(rows: Rows) -> Measured:
    """Rows of two texts with 1 (the same) or 0."""
    u, v = rows.sides
    y = rows.labels
    scores = score_pairs(u, v, y)
    found = {name: similarities(u, v, name) for name in SIMILARITIES}
    cosine = found["cosine"]
    figures = together(
        *(detection_of(y, value, f"_{name}") for name, value in found.items()),
        pearson_of(cosine, y, "pearson_cosine"),
        spearman_of(cosine, y, "spearman_cosine"),
    )

    def mistakes(count: int) -> list[dict[str, Any]]:
        return listed(rows, wrong_by_rank(y, cosine), count, lambda i: {"label": int(y[i]), "cosine": cosine[i]})

    return Measured(
        "pairs",
        "average_precision_cosine",
        scores,
        figures,
        rows.names,
        rows.texts,
        mistakes=mistakes,
        clusters=rows.clusters,
        cosines=cosine,
        same=y,
    )
