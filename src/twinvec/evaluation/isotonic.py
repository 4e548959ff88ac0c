"""Two curves from scores to probabilities: isotonic (pool adjacent violators) and Platt's sigmoid (Newton's method)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from twinvec.evaluation.metrics import Floats


def pool_adjacent_violators(x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Floats, Floats]:
    """x, y (n,) -> the points (xs, ys) of the rising step function nearest to y in squares, its flat parts by their two ends (Ayer et al. 1955).

    Equal x are one point with the mean of their y. Between points the curve is straight, beyond them flat, as sklearn's IsotonicRegression
    (y_min = 0, y_max = 1, out_of_bounds "clip") has it.
    """
    xs, group, counts = np.unique(np.asarray(x, dtype=np.float64), return_inverse=True, return_counts=True)
    sums = np.bincount(group.reshape(-1), weights=np.asarray(y, dtype=np.float64))
    blocks: list[list[float]] = []  # mean, weight, points in it
    for total, count in zip(sums, counts, strict=True):
        blocks.append([float(total / count), float(count), 1])
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            mean, weight, size = blocks.pop()
            before = blocks[-1]
            before[0] = (before[0] * before[1] + mean * weight) / (before[1] + weight)
            before[1] += weight
            before[2] += size
    ends = np.cumsum([int(size) for _, _, size in blocks])
    starts = np.concatenate([[0], ends[:-1]])
    points = np.unique(np.concatenate([starts, ends - 1]))
    values = np.repeat([mean for mean, _, _ in blocks], [int(size) for _, _, size in blocks])
    return xs[points], np.clip(values[points], 0.0, 1.0)


def sigmoid(z: Floats) -> Floats:
    """1 / (1 + exp(-z)) without overflow; NaN stays NaN."""
    small = np.exp(-np.abs(z))
    return np.asarray(np.where(z >= 0, 1 / (1 + small), small / (1 + small)))


def platt(x: npt.ArrayLike, y: npt.ArrayLike, steps: int = 100) -> tuple[float, float]:
    """x (n,), y (n,) of 0 and 1 -> (a, b) of the sigmoid 1 / (1 + exp(-(a x + b))) with the least cross-entropy.

    Targets are Platt's (1999): (P + 1) / (P + 2) and 1 / (N + 2), which keep a and b finite when a threshold separates the classes.
    Newton's method with a step that is halved until the loss falls (Lin, Lin and Weng 2007).
    """
    scores, labels = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    positives = float(labels.sum())
    negatives = len(labels) - positives
    target = np.where(labels == 1, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    centre, width = float(scores.mean()), float(scores.std()) or 1.0
    z = (scores - centre) / width  # cosines lie within a narrow range: unscaled, the two unknowns differ by orders of magnitude
    a, b = 0.0, float(np.log((positives + 1) / (negatives + 1)))

    def loss(a: float, b: float) -> float:
        f = a * z + b
        return float((np.logaddexp(0.0, f) - target * f).sum())

    now = loss(a, b)
    for _ in range(steps):
        p = sigmoid(a * z + b)
        away, curve = p - target, p * (1 - p)
        ga, gb = float((away * z).sum()), float(away.sum())
        if max(abs(ga), abs(gb)) < 1e-9 * len(z):
            break
        haa, hab, hbb = float((curve * z * z).sum()) + 1e-12, float((curve * z).sum()), float(curve.sum()) + 1e-12
        determinant = haa * hbb - hab * hab
        if determinant <= 0:
            break
        da, db = -(hbb * ga - hab * gb) / determinant, -(haa * gb - hab * ga) / determinant
        size = 1.0
        while size > 1e-10:
            then = loss(a + size * da, b + size * db)
            if then < now + 1e-4 * size * (ga * da + gb * db):
                break
            size /= 2
        else:
            break
        a, b, now = a + size * da, b + size * db, then
    return a / width, b - a * centre / width
