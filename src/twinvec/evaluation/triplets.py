"""Triplets: how often the positive is nearer to the anchor than every negative."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.errors import DataError
from twinvec.evaluation.measured import Measured, of_means
from twinvec.evaluation.metrics import SIMILARITIES, Floats, similarities
from twinvec.evaluation.mistakes import listed
from twinvec.evaluation.rows import Rows
from twinvec.evaluation.values import defined, trouble


def score_triplets(anchor: npt.ArrayLike, positive: npt.ArrayLike, negatives: Sequence[npt.ArrayLike]) -> dict[str, Any]:
    """anchor, positive (n, D); negatives: one (n, D) block a negative column -> {"accuracy_X" and "margin_X" for each similarity, "notes"}.

    accuracy_X: share of rows whose positive is strictly nearer than every negative (a tie is a miss, so collapsed vectors score 0).
    margin_X: mean similarity of the positive less that of the nearest negative. None where scores are NaN, and then "notes" says why.
    """
    if not len(negatives):
        raise DataError("triplets: no negative; needs at least one column of them")
    rows = len(np.asarray(anchor))
    if not rows:
        raise DataError("evaluation: no rows, so there is nothing to measure")
    result: dict[str, Any] = {}
    notes: list[str] = []
    for name in SIMILARITIES:
        near = similarities(anchor, positive, name)
        far = np.max([similarities(anchor, block, name) for block in negatives], axis=0)
        broken = not (np.isfinite(near).all() and np.isfinite(far).all())
        result[f"accuracy_{name}"] = None if broken else float((near > far).mean())
        result[f"margin_{name}"] = defined(math.nan if broken else float((near - far).mean()))
        if why := trouble(np.concatenate([near, far]), name):
            notes.append(why)
    result["notes"] = notes
    return result


def measure_triplets(rows: Rows) -> Measured:
    """Rows of anchor, positive and one or more negatives."""
    anchor, positive, *negatives = (rows.vectors[name] for name in rows.data.columns)
    scores = score_triplets(anchor, positive, negatives)
    values: dict[str, Floats] = {}
    for name in SIMILARITIES:
        near = similarities(anchor, positive, name)
        margin = near - np.max([similarities(anchor, block, name) for block in negatives], axis=0)
        values[f"accuracy_{name}"] = np.where(np.isfinite(margin), (margin > 0).astype(np.float64), np.nan)
        values[f"margin_{name}"] = margin

    def mistakes(count: int) -> list[dict[str, Any]]:
        # The smallest float above 0 keeps a tie, which is a miss, in the list.
        wrong = np.where(values["margin_cosine"] > 0, 0.0, np.maximum(-values["margin_cosine"], np.finfo(float).tiny))
        return listed(rows, wrong, count, lambda i: {"margin": values["margin_cosine"][i]})

    return of_means(
        "triplets", "accuracy_cosine", scores, values, names=rows.names, texts=rows.texts, mistakes=mistakes, clusters=rows.clusters
    )  # fmt: skip
