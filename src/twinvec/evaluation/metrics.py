"""Metrics over plain arrays and dicts: they know no model, no file and no benchmark. An undefined value is nan, never a lucky number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from twinvec.errors import DataError, choose

Floats = npt.NDArray[np.float64]
SIMILARITIES: Final = ("cosine", "dot", "euclidean", "manhattan")
# Below this share of their mean, differences between numbers are rounding (scipy's pearsonr warns at the same figure).
_NOISE: Final = 1e-13


def similarities(u: npt.ArrayLike, v: npt.ArrayLike, name: str) -> Floats:
    """u, v (n, D) -> (n,): similarity of row i with row i, in float64; larger is nearer.

    "cosine" is clamped to [-1, 1], and is 0 where a row is zero; "dot" is the inner product; "euclidean" and "manhattan" are negative
    distances. Rows with NaN or infinity give nan (or an infinite distance). Unknown names and unequal shapes are errors.
    """
    choose("similarity", name, SIMILARITIES)
    a, b = np.asarray(u, dtype=np.float64), np.asarray(v, dtype=np.float64)
    if a.ndim != 2 or a.shape != b.shape:
        raise DataError(f"similarities: the two sides need equal shapes (n, D), got {a.shape} and {b.shape}")
    with np.errstate(invalid="ignore"):  # infinity - infinity: the nan it gives is the answer
        if name == "euclidean":
            return np.asarray(-np.sqrt(((a - b) ** 2).sum(1)))
        if name == "manhattan":
            return np.asarray(-np.abs(a - b).sum(1))
        if name == "cosine":
            return np.asarray(np.clip(np.einsum("nd,nd->n", _unit(a), _unit(b)), -1.0, 1.0))
        return np.asarray(np.einsum("nd,nd->n", a, b))


def _unit(x: Floats) -> Floats:
    # The largest entry first: squares of very large or very small rows would leave float64.
    largest = np.abs(x).max(axis=1, keepdims=True, initial=0.0)
    x = x / np.where(largest > 0, largest, 1.0)
    norms = np.sqrt((x * x).sum(1, keepdims=True))
    return np.asarray(x / np.where(norms > 0, norms, 1.0))


def is_constant(x: npt.ArrayLike) -> bool:
    """All values equal, up to the rounding of float64 at their size. Fewer than two values count as constant."""
    values = np.asarray(x, dtype=np.float64)
    if values.size < 2:
        return True
    if not np.isfinite(values).all():
        return bool((values == values[0]).all())
    return bool(np.ptp(values) <= _NOISE * np.abs(values).max())


def pearson(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Pearson's correlation, as scipy.stats.pearsonr; nan when a side is constant, has fewer than 2 values, or holds NaN or infinity."""
    a, b = _two(x, y)
    if not (np.isfinite(a).all() and np.isfinite(b).all()) or is_constant(a) or is_constant(b):
        return math.nan
    a, b = a - a.mean(), b - b.mean()
    # Norms before the product, as scipy does: the squares of small numbers would underflow.
    a, b = a / np.abs(a).max(), b / np.abs(b).max()
    value = float(np.dot(a / np.linalg.norm(a), b / np.linalg.norm(b)))
    return max(-1.0, min(1.0, value))


def spearman(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Spearman's rank correlation, ties averaged, as scipy.stats.spearmanr; nan when a side is constant, too short, or holds NaN.

    Departure: values that differ only by float64 rounding count as constant; scipy would rank the rounding.
    """
    a, b = _two(x, y)
    if np.isnan(a).any() or np.isnan(b).any() or is_constant(a) or is_constant(b):
        return math.nan
    return pearson(ranks(a), ranks(b))


def ranks(x: npt.ArrayLike) -> Floats:
    """Ranks from 1, ties get the mean of their ranks (scipy.stats.rankdata, whose import takes a second)."""
    _, inverse, counts = np.unique(np.asarray(x, dtype=np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse.reshape(-1)], dtype=np.float64)


def _two(x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Floats, Floats]:
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise DataError(f"a metric needs two lists of equal length, got shapes {a.shape} and {b.shape}")
    return a, b


# --- 0/1 labels against scores


class Best(NamedTuple):
    """The best value over all thresholds; a pair counts as positive when score >= threshold."""

    value: float
    threshold: float
    precision: float
    recall: float


class _Steps(NamedTuple):
    """One entry a distinct score, from the highest down: what is accepted when everything down to it is."""

    scores: Floats
    hits: Floats  # true positives
    accepted: Floats
    positives: int
    rows: int


_UNDEFINED = Best(math.nan, math.nan, math.nan, math.nan)


def _steps(labels: npt.ArrayLike, scores: npt.ArrayLike) -> _Steps | None:
    """None when there are no rows or a score is NaN. Labels other than 0 and 1: DataError with the row."""
    y, s = _two(labels, scores)
    wrong = np.flatnonzero((y != 0) & (y != 1))
    if wrong.size:
        raise DataError(f"row {wrong[0] + 1}: label {y[wrong[0]]:g}; these metrics need labels 0 and 1")
    if not y.size or np.isnan(s).any():
        return None
    order = np.argsort(-s, kind="stable")
    s, y = s[order], y[order]
    ends = np.append(np.flatnonzero(s[1:] != s[:-1]), s.size - 1)
    return _Steps(s[ends], np.cumsum(y)[ends], ends + 1.0, int(y.sum()), s.size)


def average_precision(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """Sum over distinct scores of (recall gained) * precision, as sklearn's average_precision_score.

    nan without a positive (sklearn warns and says 0), without rows, or with NaN scores.
    """
    steps = _steps(labels, scores)
    if steps is None or not steps.positives:
        return math.nan
    gained = np.diff(steps.hits, prepend=0.0) / steps.positives
    return float((gained * steps.hits / steps.accepted).sum())


def roc_auc(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """Chance that a positive outscores a negative, ties half, as sklearn's roc_auc_score; nan when a class is missing."""
    steps = _steps(labels, scores)
    if steps is None or not 0 < steps.positives < steps.rows:
        return math.nan
    hits = np.concatenate([[0.0], steps.hits])
    alarms = np.concatenate([[0.0], steps.accepted - steps.hits])
    area = (np.diff(alarms) * (hits[1:] + hits[:-1]) / 2).sum()
    return float(area / (steps.positives * (steps.rows - steps.positives)))


def best_f1(labels: npt.ArrayLike, scores: npt.ArrayLike) -> Best:
    """The highest F1 over all thresholds, and its threshold, halfway to the next lower score. Equal F1: the higher threshold.

    Halfway, because the score itself would drop its own pair when the vectors are computed again with other rounding.
    nan without a positive, without rows, or with NaN scores.
    """
    steps = _steps(labels, scores)
    if steps is None or not steps.positives:
        return _UNDEFINED
    f1 = 2 * steps.hits / (steps.accepted + steps.positives)
    at = int(np.argmax(f1))
    precision, recall = steps.hits[at] / steps.accepted[at], steps.hits[at] / steps.positives
    return Best(float(f1[at]), _below(steps.scores, at), float(precision), float(recall))


def best_accuracy(labels: npt.ArrayLike, scores: npt.ArrayLike) -> Best:
    """The highest accuracy over all thresholds (accepting nothing is one of them); threshold as for `best_f1`.

    When nothing is accepted the threshold lies a millionth above the highest score, precision is nan and recall 0.
    """
    steps = _steps(labels, scores)
    if steps is None:
        return _UNDEFINED
    negatives = steps.rows - steps.positives
    accuracy = (steps.hits + negatives - (steps.accepted - steps.hits)) / steps.rows
    at = int(np.argmax(accuracy))
    recall_of = steps.positives or math.nan
    if negatives / steps.rows > accuracy[at]:
        top = float(steps.scores[0])
        return Best(negatives / steps.rows, top + 1e-6 * max(1.0, abs(top)), math.nan, 0.0 / recall_of)
    return Best(float(accuracy[at]), _below(steps.scores, at), float(steps.hits[at] / steps.accepted[at]), float(steps.hits[at] / recall_of))


def _below(scores: Floats, at: int) -> float:
    """Halfway between score `at` and the next lower one; the score itself when no float lies between, or it is the last."""
    score = float(scores[at])
    if at + 1 == len(scores):
        return score
    middle = score / 2 + float(scores[at + 1]) / 2
    return middle if scores[at + 1] < middle <= score else score


# --- ranked lists


def _relevant(judged: Mapping[str, float]) -> dict[str, float]:
    """Only gains above 0 count, as in trec_eval."""
    return {document: gain for document, gain in judged.items() if gain > 0}


def _top(ranked: Sequence[str], k: int) -> Sequence[str]:
    if k < 1:
        raise DataError(f"k = {k}: a cut-off needs to be 1 or more")
    top = ranked[:k]
    if len(set(top)) != len(top):
        twice = next(d for i, d in enumerate(top) if d in top[:i])
        raise DataError(f"document {twice!r} stands twice in one ranked list; each may be counted once")
    return top


def ndcg(ranked: Sequence[str], judged: Mapping[str, float], k: int) -> float:
    """NDCG@k: sum of gain / log2(rank + 1), over the same sum for the best order. nan when nothing is relevant.

    The gain is the judgement itself, as in trec_eval and BEIR (not 2^gain - 1); documents without a judgement gain 0.
    """
    gains = _relevant(judged)
    top = _top(ranked, k)
    best = sum(gain / math.log2(rank + 1) for rank, gain in enumerate(sorted(gains.values(), reverse=True)[:k], start=1))
    if not best:
        return math.nan
    return sum(gains.get(document, 0.0) / math.log2(rank + 1) for rank, document in enumerate(top, start=1)) / best


def mrr(ranked: Sequence[str], judged: Mapping[str, float], k: int) -> float:
    """1 / rank of the first relevant document among the first k; 0 when there is none; nan when nothing is relevant."""
    gains = _relevant(judged)
    top = _top(ranked, k)
    if not gains:
        return math.nan
    return next((1 / rank for rank, document in enumerate(top, start=1) if document in gains), 0.0)


def recall_at(ranked: Sequence[str], judged: Mapping[str, float], k: int) -> float:
    """Share of all relevant documents found among the first k (not of min(k, relevant)); nan when nothing is relevant."""
    gains = _relevant(judged)
    top = _top(ranked, k)
    return sum(document in gains for document in top) / len(gains) if gains else math.nan


def accuracy_at(ranked: Sequence[str], judged: Mapping[str, float], k: int) -> float:
    """1 when a relevant document is among the first k, else 0; nan when nothing is relevant."""
    gains = _relevant(judged)
    top = _top(ranked, k)
    return float(any(document in gains for document in top)) if gains else math.nan


def precision_at(ranked: Sequence[str], judged: Mapping[str, float], k: int) -> float:
    """Relevant documents among the first k, over k even when fewer were found, as trec_eval's P_k; nan when nothing is relevant."""
    gains = _relevant(judged)
    top = _top(ranked, k)
    return sum(document in gains for document in top) / k if gains else math.nan


def average_precision_at(ranked: Sequence[str], judged: Mapping[str, float], k: int) -> float:
    """Sum of the precision at each relevant document among the first k, over all relevant ones (trec_eval's map_cut_k); nan without one."""
    gains = _relevant(judged)
    top = _top(ranked, k)
    found, total = 0, 0.0
    for rank, document in enumerate(top, start=1):
        if document in gains:
            found += 1
            total += found / rank
    return total / len(gains) if gains else math.nan


def unjudged_at(ranked: Sequence[str], judged: Mapping[str, float], k: int) -> float:
    """Share of the first k documents that nobody has judged: they count as not relevant, which they may be. nan for an empty list."""
    top = _top(ranked, k)
    return sum(document not in judged for document in top) / len(top) if top else math.nan
