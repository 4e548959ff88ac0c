"""Multinomial logistic regression by L-BFGS, for measuring vectors; no more than that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twinvec.errors import DataError
from twinvec.evaluation.metrics import Floats
from twinvec.evaluation.weighted import Ints


@dataclass(frozen=True)
class Logistic:
    """weights (D, C) and bias (C,) of C classes; converged: whether the steps ended before `steps` ran out."""

    weights: Floats
    bias: Floats
    converged: bool

    def logits(self, x: npt.ArrayLike) -> Floats:
        """x (n, D) -> (n, C)."""
        return np.asarray(np.asarray(x, dtype=np.float64) @ self.weights + self.bias)

    def classes(self, x: npt.ArrayLike) -> Ints:
        return np.asarray(self.logits(x).argmax(1), dtype=np.int64)


def fit_logistic(x: npt.ArrayLike, labels: npt.ArrayLike, classes: int, *, c: float = 1.0, steps: int = 200) -> Logistic:
    """x (n, D), labels (n,) from 0 to classes - 1 -> the minimum of  sum of -log p(label | row) + |W|^2 / (2 c), the bias not penalised.

    That is scikit-learn's LogisticRegression(C=c), the classifier of SentEval and MTEB. A class without rows gets weights too (it is never likely).
    DataError: shapes that do not fit, a label outside the classes, no rows, NaN.
    """
    a, y = np.asarray(x, dtype=np.float64), np.asarray(labels)
    if a.ndim != 2 or y.shape != a.shape[:1] or not len(a):
        raise DataError(f"logistic regression: needs vectors (n, D) and n labels, n of 1 or more, got {a.shape} and {y.shape}")
    y = y.astype(np.int64)
    if y.min() < 0 or y.max() >= classes:
        raise DataError(f"logistic regression: labels from {y.min()} to {y.max()}; wanted 0 to {classes - 1}")
    if not np.isfinite(a).all():
        raise DataError("logistic regression: the vectors hold NaN or infinity")
    from scipy.optimize import minimize

    n, d = a.shape
    # Two classes have two columns here and one in scikit-learn: half of c makes the same model.
    penalty = 2 / c if classes == 2 else 1 / c
    at = np.arange(n)

    def loss(flat: Floats) -> tuple[float, Floats]:
        w, b = flat[: d * classes].reshape(d, classes), flat[d * classes :]
        z = a @ w + b
        z -= z.max(1, keepdims=True)
        total = np.log(np.exp(z).sum(1))
        value = float((total - z[at, y]).sum() + (w * w).sum() * penalty / 2)
        p = np.exp(z - total[:, None])
        p[at, y] -= 1
        return value / n, np.concatenate([(a.T @ p + penalty * w).ravel(), p.sum(0)]) / n  # over n, so that the stopping rule does not depend on n

    found = minimize(loss, np.zeros(d * classes + classes), jac=True, method="L-BFGS-B", options={"maxiter": steps, "gtol": 1e-6, "ftol": 1e-12})
    return Logistic(found.x[: d * classes].reshape(d, classes), found.x[d * classes :], bool(found.success))
