"""The rows that a model gets most wrong, as texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from twinvec.evaluation.metrics import Floats
from twinvec.evaluation.rows import Rows


def listed(rows: Rows, errors: Floats, count: int, more: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    """The `count` rows of the largest error above 0, worst first, ties in the file's order: {"row", "texts", whatever `more(i)` says}."""
    finite = np.where(np.isfinite(errors), errors, -np.inf)
    worst = [int(i) for i in np.argsort(-finite, kind="stable")[:count] if finite[i] > 0]
    return [{"row": rows.names[i], "texts": rows.texts[i], **_plain(more(i))} for i in worst]


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """numpy's numbers as Python's, and what is not finite as None: JSON knows neither."""
    out: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, np.integer):
            value = int(value)
        if isinstance(value, (float, np.floating)):
            value = float(value) if np.isfinite(value) else None
        out[name] = value
    return out


def wrong_by_rank(labels: Floats, scores: Floats) -> Floats:
    """How far each row is on the wrong side, 0 to 1: the share of the other class that it is confused with (0: no row of it).

    A positive (label 1) by the share of negatives that score as high or higher, a negative by the share of positives that score as low or lower.
    """
    out = np.zeros(len(labels))
    positives, negatives = np.sort(scores[labels == 1]), np.sort(scores[labels == 0])
    if len(positives) and len(negatives):
        out[labels == 1] = 1 - np.searchsorted(negatives, scores[labels == 1], side="left") / len(negatives)
        out[labels == 0] = np.searchsorted(positives, scores[labels == 0], side="right") / len(positives)
    return out
