"""Linear corrections of a vector space, as diagnostics: what would whitening, or taking out the top directions, change?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from twinvec.errors import DataError, UsageError
from twinvec.evaluation.metrics import Floats, similarities, spearman
from twinvec.evaluation.values import defined

_FLAT: Final = 1e-8  # a direction with less than this share of the largest variance is rounding, and stretching it to 1 would be noise


@dataclass(frozen=True)
class Correction:
    """x -> (x - mean) @ matrix; mean (D,), matrix (D, E)."""

    mean: Floats
    matrix: Floats

    def __call__(self, x: npt.ArrayLike) -> Floats:
        return np.asarray((np.asarray(x, dtype=np.float64) - self.mean) @ self.matrix)


def whitening(x: npt.ArrayLike) -> Correction:
    """x (n, D) -> the correction after which its rows have mean 0 and covariance 1 over their own directions (Su et al. 2021, "Whitening Sentence
    Representations", section 3.2). With fewer rows than dimensions only the directions they span are kept.
    """
    mean, values, axes = _axes(x)
    kept = values > _FLAT * values[0]
    return Correction(mean, axes[:, kept] / np.sqrt(values[kept]))


def all_but_the_top(x: npt.ArrayLike, directions: int | None = None) -> Correction:
    """x (n, D) -> the correction that takes out the mean and the top directions of variance (Mu and Viswanath 2018, algorithm 1).

    directions: how many; None takes D / 100, the paper's rule, but at least 1. UsageError: less than 0, or as many as there are dimensions.
    """
    mean, _, axes = _axes(x)
    count = max(1, round(len(mean) / 100)) if directions is None else directions
    if not 0 <= count < len(mean):
        raise UsageError(f"directions = {count}: wanted 0 or more and fewer than the {len(mean)} dimensions")
    top = axes[:, :count]
    return Correction(mean, np.eye(len(mean)) - top @ top.T)


def _axes(x: npt.ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Mean, and the variances with their directions (as columns), largest first."""
    a = np.asarray(x, dtype=np.float64)
    if a.ndim != 2 or len(a) < 2 or not np.isfinite(a).all():
        raise DataError(f"whitening: vectors of shape {a.shape}; wanted two or more rows (n, D), all finite")
    mean = a.mean(0)
    values, axes = np.linalg.eigh(np.cov(a - mean, rowvar=False, bias=True).reshape(a.shape[1], a.shape[1]))
    if values[-1] <= 1e-12 * max(float((mean * mean).sum()), 1e-300):
        raise DataError("whitening: all vectors are equal, so there is no variance to correct")
    return mean, np.maximum(values[::-1], 0.0), axes[:, ::-1]


def what_it_changes(x: npt.ArrayLike, gold: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike] | None, seed: int = 0) -> dict[str, Any]:
    """x (n, D), the vectors that the corrections are fitted on; gold: (u, v, labels), pairs of such vectors with what people said.

    -> {"before": {...}, "whitening": {...}, "all_but_the_top": {...}}, each with mean_random_cosine and, with gold, the Spearman of cosines.
    The corrections are fitted on the very texts they are measured on, without their labels: what they change is an upper bound of what they would.
    """
    a = np.asarray(x, dtype=np.float64)
    try:
        corrections: dict[str, Correction | None] = {"before": None, "whitening": whitening(a), "all_but_the_top": all_but_the_top(a)}
    except DataError:
        return {}
    rng = np.random.default_rng([seed, 0x3])
    first, second = rng.integers(len(a), size=(2, 4000))
    first, second = first[first != second], second[first != second]
    out: dict[str, Any] = {}
    for name, change in corrections.items():
        moved = a if change is None else change(a)
        found = {"mean_random_cosine": defined(float(similarities(moved[first], moved[second], "cosine").mean()))}
        if gold is not None:
            u, v = ((np.asarray(side, dtype=np.float64) if change is None else change(side)) for side in gold[:2])
            found["spearman_cosine"] = defined(spearman(similarities(u, v, "cosine"), gold[2]))
        out[name] = found
    return out
