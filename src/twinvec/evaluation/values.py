"""From metrics to JSON: an undefined value becomes null, and a note says why."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.errors import DataError
from twinvec.evaluation.metrics import Floats, is_constant


def defined(value: float) -> float | None:
    """The value as a plain float; None when it is NaN or infinite."""
    value = float(value)
    return value if math.isfinite(value) else None


def two_sides(u: npt.ArrayLike, v: npt.ArrayLike, labels: npt.ArrayLike, what: str) -> tuple[Floats, Floats, Floats]:
    """u, v (n, D) and labels (n,) in float64. No rows, or unequal counts: DataError."""
    a, b, y = np.asarray(u, dtype=np.float64), np.asarray(v, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    if a.ndim != 2 or a.shape != b.shape or y.shape != a.shape[:1]:
        raise DataError(f"evaluation: needs two blocks of vectors (n, D) and n {what}, got {a.shape}, {b.shape} and {y.shape}")
    if not len(y):
        raise DataError("evaluation: no rows, so there is nothing to measure")
    bad = np.flatnonzero(~np.isfinite(y))
    if bad.size:
        raise DataError(f"evaluation: row {bad[0] + 1} of the {what} is {y[bad[0]]}; needs a number")
    return a, b, y


def trouble(scores: Floats, name: str) -> str | None:
    """Why correlations and thresholds over `scores` cannot be trusted, or None."""
    bad = np.flatnonzero(~np.isfinite(scores))
    if bad.size:
        return f"{name}: {bad.size} of {scores.size} scores are NaN or infinite (first at row {bad[0] + 1}); the model gives broken vectors"
    if scores.size > 1 and is_constant(scores):
        return f"{name}: all {scores.size} scores are equal ({scores[0]:g}); the vectors do not tell the texts apart"
    return None


def put(result: dict[str, Any], notes: list[str], values: Iterable[tuple[str, float]], why: str | None) -> None:
    """Write `values` into `result` (None when undefined) and, once, `why` into `notes`."""
    for key, value in values:
        result[key] = defined(value)
    if why is not None and why not in notes:
        notes.append(why)
