"""Clustering: do groups that k-means finds among the vectors match the classes that people gave?"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from twinvec.errors import DataError
from twinvec.evaluation.classification import unit
from twinvec.evaluation.measured import Measured
from twinvec.evaluation.metrics import Floats
from twinvec.evaluation.mistakes import listed
from twinvec.evaluation.rows import Rows
from twinvec.evaluation.weighted import Figures, Ints

STARTS: Final = 4
STEPS: Final = 100
AGREEMENT: Final = ("v_measure", "homogeneity", "completeness", "adjusted_rand_index")


def k_means(x: npt.ArrayLike, k: int, *, seed: int = 0, starts: int = STARTS, steps: int = STEPS) -> Ints:
    """x (n, D) -> (n,) cluster numbers from 0 to k - 1: the best of `starts` runs of Lloyd's from k-means++ (Arthur and Vassilvitskii 2007).

    An empty cluster takes the row that is farthest from its centre. The same seed gives the same clusters.
    """
    a = np.asarray(x, dtype=np.float64)
    if a.ndim != 2 or not 1 <= k <= len(a):
        raise DataError(f"k-means: {k} clusters of vectors of shape {a.shape}; wanted between 1 and as many as there are rows")
    rng = np.random.default_rng([seed, 0xC1])
    best: tuple[float, Ints] | None = None
    for _ in range(starts):
        centres = _plus_plus(a, k, rng)
        chosen: Ints = np.full(len(a), -1, dtype=np.int64)
        for _ in range(steps):
            away = _distances(a, centres)
            now = np.asarray(away.argmin(1), dtype=np.int64)
            if (now == chosen).all():
                break
            chosen = now
            counts = np.bincount(chosen, minlength=k)
            sums = np.zeros_like(centres)
            np.add.at(sums, chosen, a)
            centres = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centres)
            for empty in np.flatnonzero(counts == 0):
                far = int(away[np.arange(len(a)), chosen].argmax())
                centres[empty], away[far] = a[far], 0.0
        inertia = float(_distances(a, centres)[np.arange(len(a)), chosen].sum())
        if best is None or inertia < best[0] - 1e-12:
            best = inertia, chosen
    assert best is not None
    return best[1]


def _plus_plus(a: Floats, k: int, rng: np.random.Generator) -> Floats:
    centres = [a[int(rng.integers(len(a)))]]
    away = ((a - centres[0]) ** 2).sum(1)
    while len(centres) < k:
        total = float(away.sum())
        row = int(rng.choice(len(a), p=away / total)) if total > 0 else int(rng.integers(len(a)))
        centres.append(a[row])
        away = np.minimum(away, ((a - a[row]) ** 2).sum(1))
    return np.stack(centres)


def _distances(a: Floats, centres: Floats) -> Floats:
    return np.asarray(np.maximum((a * a).sum(1)[:, None] - 2 * a @ centres.T + (centres * centres).sum(1), 0.0))


def agreement_of(labels: npt.ArrayLike, clusters: npt.ArrayLike) -> Figures:
    """v_measure, homogeneity, completeness (Rosenberg and Hirschberg 2007) and adjusted_rand_index (Hubert and Arabie 1985), as sklearn."""
    _, y = np.unique(np.asarray(labels), return_inverse=True)
    _, c = np.unique(np.asarray(clusters), return_inverse=True)
    y, c = y.reshape(-1), c.reshape(-1)
    if y.shape != c.shape or not len(y):
        raise DataError(f"clustering: {len(y)} classes for {len(c)} cluster numbers; wanted one each a row, one or more rows")
    width = int(c.max()) + 1
    code, size = y * width + c, (int(y.max()) + 1) * width

    def figures(weights: Floats) -> dict[str, Floats]:
        found = [_agreement(np.bincount(code, weights=row, minlength=size).reshape(-1, width).astype(np.float64)) for row in weights]
        return {name: np.asarray([values[name] for values in found]) for name in AGREEMENT}

    return Figures.of(AGREEMENT, figures)


def _agreement(table: Floats) -> dict[str, float]:
    """table (classes, clusters): how many rows of each class lie in each cluster."""
    n = float(table.sum())
    classes, clusters = table.sum(1), table.sum(0)
    h_class, h_cluster = _entropy(classes, n), _entropy(clusters, n)
    joint = _entropy(table.ravel(), n)
    shared = max(h_class + h_cluster - joint, 0.0)
    homogeneity = shared / h_class if h_class > 1e-12 else 1.0
    completeness = shared / h_cluster if h_cluster > 1e-12 else 1.0
    both = homogeneity + completeness
    pairs = float((table * (table - 1)).sum()) / 2
    of_class, of_cluster = float((classes * (classes - 1)).sum()) / 2, float((clusters * (clusters - 1)).sum()) / 2
    every = n * (n - 1) / 2
    chance = of_class * of_cluster / every if every else 0.0
    most = (of_class + of_cluster) / 2
    return {
        "v_measure": 2 * homogeneity * completeness / both if both > 0 else 0.0,
        "homogeneity": homogeneity,
        "completeness": completeness,
        "adjusted_rand_index": (pairs - chance) / (most - chance) if most != chance else 1.0,
    }


def _entropy(counts: Floats, n: float) -> float:
    shares = counts[counts > 0] / n
    return float(-(shares * np.log(shares)).sum())


def measure_clustering(rows: Rows) -> Measured:
    """Rows of one text with a class: k-means of the unit vectors, as many clusters as classes, by `seed` of the settings."""
    labels = np.asarray(rows.data.labels if rows.data.labels is not None else [], dtype=np.int64)
    names = rows.data.label_names or []
    k = len(set(labels.tolist()))
    if k < 2:
        raise DataError(f"{rows.data.path}: {k} classes; clustering wants two or more")
    x = np.asarray(rows.vectors[next(iter(rows.data.columns))], dtype=np.float64)
    if not np.isfinite(x).all():
        raise DataError(f"{rows.data.path}: the model gives NaN or infinity for some texts; it is broken")
    x = unit(x)
    clusters = k_means(x, k, seed=int(rows.settings.get("seed", 0)))
    figures = agreement_of(labels, clusters)
    scores: dict[str, Any] = {name: float(value[0]) for name, value in figures(np.ones((1, len(labels)))).items()}
    notes = ["every text has the same vector: clusters are arbitrary"] if len(np.unique(x, axis=0)) == 1 else []
    scores |= {"clusters": k, "notes": notes}
    # The class that most rows of a cluster have is what the cluster stands for.
    table = np.zeros((len(names), k))
    np.add.at(table, (labels, clusters), 1)
    stands = table.argmax(0)
    centres = np.stack([x[clusters == c].mean(0) if (clusters == c).any() else np.zeros(x.shape[1]) for c in range(k)])

    def mistakes(count: int) -> list[dict[str, Any]]:
        near = (x * unit(centres)[clusters]).sum(1)
        wrong = np.where(stands[clusters] != labels, np.clip(near, 0, None) + 1e-9, 0.0)
        return listed(rows, wrong, count, lambda i: {"label": names[labels[i]], "cluster_of": names[int(stands[clusters[i]])]})

    return Measured("clustering", "v_measure", scores, figures, rows.names, rows.texts, mistakes=mistakes)
