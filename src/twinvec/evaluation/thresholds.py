"""A threshold on cosine for the best F1 or for a wanted precision, and how sure it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.errors import DataError, UsageError
from twinvec.evaluation.certainty import draw_weights
from twinvec.evaluation.metrics import Floats


@dataclass(frozen=True)
class Threshold:
    """Pairs with a cosine of at least `threshold` count as the same. low, high: its 95 % bootstrap interval; precision, recall, f1: on these rows.

    reached: whether the wanted precision is reached at all on these rows; share_reached: in which share of the draws it is.
    held_out_precision: the mean precision of each draw's threshold on the rows that the draw left out (None where none of them passed).
    """

    threshold: float | None
    low: float | None
    high: float | None
    precision: float | None
    recall: float | None
    f1: float | None
    goal: float | None
    reached: bool
    share_reached: float
    held_out_precision: float | None
    rows_accepted: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def threshold_for(scores: npt.ArrayLike, same: npt.ArrayLike, precision: float | None, *, draws: int = 1000, seed: int = 0) -> Threshold:
    """scores (n,), same (n,) of 0 and 1. precision: the lowest threshold from which on the precision is at least that; None: that of the best F1.

    The threshold lies halfway to the next lower score (as in `metrics.best_f1`). UsageError: a precision outside 0..1 (1 is allowed).
    """
    if precision is not None and not 0 < precision <= 1:
        raise UsageError(f"precision goal = {precision}: wanted a share above 0 and at most 1, such as 0.95")
    x, y = np.asarray(scores, dtype=np.float64), np.asarray(same, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape or not len(x) or not 0 < y.sum() < len(y):
        raise DataError("threshold: wanted one score and one label a row, and rows of both labels")
    order = np.argsort(-x, kind="stable")
    held, labels = x[order], y[order]
    ends = np.append(np.flatnonzero(held[1:] != held[:-1]), len(held) - 1)
    steps = held[ends]
    halfway = np.append((steps[:-1] + steps[1:]) / 2, steps[-1])
    at = _step(np.ones((1, len(x))), labels, ends, precision)[0]
    found: list[float] = []
    unseen: list[float] = []
    for weights in draw_weights(len(x), draws, seed):
        w = weights[:, order]
        chosen = _step(w, labels, ends, precision)
        there = chosen >= 0
        found += [float(value) for value in halfway[chosen[there]]]
        for row, step in zip(w[there], chosen[there], strict=True):
            left = row[: ends[step] + 1] == 0
            if left.any():
                unseen.append(float(labels[: ends[step] + 1][left].mean()))
    low, high = (float(value) for value in np.quantile(found, (0.025, 0.975))) if found else (None, None)
    share = len(found) / draws
    held_out = float(np.mean(unseen)) if unseen else None
    if at < 0:
        return Threshold(None, low, high, None, None, None, precision, False, share, held_out, 0)
    accepted, hits = float(ends[at] + 1), float(labels[: ends[at] + 1].sum())
    recall, f1 = hits / float(y.sum()), 2 * hits / (accepted + float(y.sum()))
    return Threshold(float(halfway[at]), low, high, hits / accepted, recall, f1, precision, True, share, held_out, int(accepted))


def _step(weights: Floats, labels: Floats, ends: npt.NDArray[np.int64], precision: float | None) -> npt.NDArray[np.int64]:
    """(b,) the step down to which each draw accepts; -1 where the precision is nowhere reached."""
    accepted, hits = np.cumsum(weights, axis=1)[:, ends], np.cumsum(weights * labels, axis=1)[:, ends]
    if precision is None:
        return np.asarray((2 * hits / np.maximum(accepted + hits[:, -1:], 1.0)).argmax(1), dtype=np.int64)
    # A draw that accepts nothing has no precision, however high: one hit at least.
    fine = (hits >= precision * accepted - 1e-9) & (hits > 0)
    last = fine.shape[1] - 1 - fine[:, ::-1].argmax(1)
    return np.asarray(np.where(fine.any(1), last, -1), dtype=np.int64)
