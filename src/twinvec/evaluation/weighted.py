"""Figures as functions of how often each unit counts: the same code gives a score, its bootstrap draws, a slice and a jackknife."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.evaluation.metrics import Floats, is_constant

Ints = npt.NDArray[np.int64]
# weights (b, n), whole numbers of 0 or more: how often each of n units is drawn in each of b draws -> a name: (b,) values, nan where undefined.
Part = Callable[[Floats], dict[str, Floats]]


@dataclass(frozen=True)
class Figures:
    """Named figures; those computed together share a part. figures(weights) gives them all, `only` those of some names."""

    parts: tuple[tuple[tuple[str, ...], Part], ...] = ()

    @classmethod
    def of(cls, names: Iterable[str], part: Part) -> Figures:
        return cls(((tuple(names), part),))

    @property
    def names(self) -> list[str]:
        return [name for names, _ in self.parts for name in names]

    def only(self, *wanted: str) -> Figures:
        """The figures of these names, without computing parts that hold none of them."""
        kept = (([name for name in names if name in wanted], part) for names, part in self.parts)
        return Figures(tuple((tuple(names), part) for names, part in kept if names))

    def __call__(self, weights: Floats) -> dict[str, Floats]:
        found = {}
        for names, part in self.parts:
            values = part(weights)
            found.update({name: values[name] for name in names})
        return found


def means(values: Mapping[str, Floats]) -> Figures:
    """Figures that are means over units: a name -> (n,) values."""
    held = {name: np.asarray(value, dtype=np.float64) for name, value in values.items()}

    def figures(weights: Floats) -> dict[str, Floats]:
        total = weights.sum(1)
        return {name: divided(weights @ value, total) for name, value in held.items()}

    return Figures.of(held, figures)


def together(*groups: Figures) -> Figures:
    """Several groups of figures as one."""
    return Figures(tuple(part for group in groups for part in group.parts))


def divided(top: Floats, bottom: Floats) -> Floats:
    """top / bottom, nan where the bottom is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(bottom != 0, top / np.where(bottom != 0, bottom, 1.0), np.nan))


def pearson_of(x: Floats, y: Floats, name: str) -> Figures:
    """Pearson's correlation of x and y, each (n,)."""
    if _unusable(x, y):
        return _undefined(name)
    a, b = _standard(x), _standard(y)
    sums = np.stack([a, b, a * a, b * b, a * b], axis=1)

    def figures(weights: Floats) -> dict[str, Floats]:
        total = weights.sum(1)
        sa, sb, saa, sbb, sab = (weights @ sums).T
        return {name: _correlation(total, sa, sb, saa, sbb, sab)}

    return Figures.of([name], figures)


def spearman_of(x: Floats, y: Floats, name: str) -> Figures:
    """Spearman's correlation of x and y, each (n,); ties share the mean of their ranks, as they would among the rows drawn."""
    if _unusable(x, y):
        return _undefined(name)
    left, right = _Ranks.of(x), _Ranks.of(y)

    def figures(weights: Floats) -> dict[str, Floats]:
        total = weights.sum(1, keepdims=True)
        a, b = left.ranks(weights) - (total + 1) / 2, right.ranks(weights) - (total + 1) / 2  # the mean of all ranks is (total + 1) / 2
        wa = weights * a
        saa, sbb, sab = (wa * a).sum(1), (weights * b * b).sum(1), (wa * b).sum(1)
        zero = np.zeros(len(weights))
        return {name: _correlation(total[:, 0], zero, zero, saa, sbb, sab)}

    return Figures.of([name], figures)


@dataclass(frozen=True)
class _Ranks:
    order: Ints  # rows by value
    ends: Ints  # places in that order where a group of equal values ends
    group: Ints  # each row's group

    @classmethod
    def of(cls, values: Floats) -> _Ranks:
        _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
        return cls(np.argsort(values, kind="stable"), np.cumsum(counts) - 1, group.reshape(-1))

    def ranks(self, weights: Floats) -> Floats:
        """(b, n): the mean rank of each row's group when every row stands there as often as its weight says."""
        upto = np.cumsum(weights[:, self.order], axis=1)[:, self.ends]
        before = np.concatenate([np.zeros((len(weights), 1)), upto[:, :-1]], axis=1)
        return np.asarray(((before + upto + 1) / 2)[:, self.group])


def _correlation(total: Floats, sa: Floats, sb: Floats, saa: Floats, sbb: Floats, sab: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        va, vb = saa - sa * sa / total, sbb - sb * sb / total
        # A draw of one value only has a variance of rounding, not of data.
        fine = (va > 1e-12 * np.maximum(saa, 1e-300)) & (vb > 1e-12 * np.maximum(sbb, 1e-300))
        value = (sab - sa * sb / total) / np.sqrt(np.where(fine, va, 1.0) * np.where(fine, vb, 1.0))
    return np.asarray(np.where(fine & (total > 1), np.clip(value, -1.0, 1.0), np.nan))


def _standard(x: Floats) -> Floats:
    x = x - x.mean()
    return np.asarray(x / np.abs(x).max())


def _unusable(x: Floats, y: Floats) -> bool:
    return not (np.isfinite(x).all() and np.isfinite(y).all()) or is_constant(x) or is_constant(y)


def _undefined(*names: str) -> Figures:
    return Figures.of(names, lambda weights: {name: np.full(len(weights), np.nan) for name in names})


DETECTION = (
    "average_precision", "roc_auc", "best_f1", "best_f1_threshold", "best_f1_precision", "best_f1_recall", "best_accuracy", "best_accuracy_threshold",
)  # fmt: skip


def detection_of(labels: Floats, scores: Floats, suffix: str) -> Figures:
    """average_precision, roc_auc, best_f1 and best_accuracy with their thresholds, each name with `suffix`, of 0/1 labels and scores, each (n,).

    As in `metrics`, but that a threshold lies halfway to the next lower score of all rows, drawn or not.
    """
    names = [name + suffix for name in DETECTION]
    if not np.isfinite(scores).all() or is_constant(scores) or not 0 < labels.sum() < len(labels):
        return _undefined(*names)
    order = np.argsort(-scores, kind="stable")
    held, y = scores[order], labels[order]
    ends = np.append(np.flatnonzero(held[1:] != held[:-1]), len(held) - 1)
    steps = held[ends]
    halfway = np.append((steps[:-1] + steps[1:]) / 2, steps[-1])
    top = steps[0] + 1e-6 * max(1.0, abs(steps[0]))

    def figures(weights: Floats) -> dict[str, Floats]:
        w = weights[:, order]
        accepted, hits = np.cumsum(w, axis=1)[:, ends], np.cumsum(w * y, axis=1)[:, ends]
        rows, positives = accepted[:, -1], hits[:, -1]
        negatives = rows - positives
        precision = hits / np.maximum(accepted, 1.0)
        gained = np.diff(hits, axis=1, prepend=0.0)
        wrong = accepted - hits
        area = (np.diff(wrong, axis=1, prepend=0.0) * (hits + np.concatenate([np.zeros((len(w), 1)), hits[:, :-1]], axis=1))).sum(1) / 2
        f1 = 2 * hits / np.maximum(accepted + positives[:, None], 1.0)
        right = (hits + negatives[:, None] - wrong) / np.maximum(rows, 1.0)[:, None]
        best, sure = f1.argmax(1), right.argmax(1)
        at = np.arange(len(w))
        none = divided(negatives, rows)  # accepting nothing
        both = (positives > 0) & (negatives > 0)
        values = [
            divided((gained * precision).sum(1), positives),
            divided(area, positives * negatives),
            f1[at, best],
            halfway[best],
            precision[at, best],
            divided(hits[at, best], positives),
            np.maximum(right[at, sure], none),
            np.where(none > right[at, sure], top, halfway[sure]),
        ]
        return {name: np.asarray(np.where(both, value, np.nan)) for name, value in zip(names, values, strict=True)}

    return Figures.of(names, figures)


def one(figures: Figures, units: int, rows: Any = None) -> dict[str, float]:
    """The figures of all `units`, or of those numbered in `rows`, each counted once."""
    weights = np.zeros((1, units)) if rows is not None else np.ones((1, units))
    if rows is not None:
        weights[0, rows] = 1.0
    return {name: float(value[0]) for name, value in figures(weights).items()}
