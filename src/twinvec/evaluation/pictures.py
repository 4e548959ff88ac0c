"""Material for pictures of one model on one data set: cosines by class, what a cosine means, a few texts with each other, a map, the cone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from twinvec.data.beir import RetrievalSet
from twinvec.data.dataset import Dataset, normalised_scores
from twinvec.errors import DataError, TwinvecError, UsageError, choose
from twinvec.evaluation.calibration import calibrate
from twinvec.evaluation.classification import unit
from twinvec.evaluation.evaluate import Outcome
from twinvec.evaluation.metrics import Floats
from twinvec.evaluation.report.charts import Cone, Histogram
from twinvec.evaluation.report.svg import Words

MAPS: Final = ("pca", "umap")
HEAT_TEXTS: Final = 8
MAP_POINTS: Final = 240
MAP_CLASSES: Final = 8
CONE_ROWS: Final = 2000
CONE_PAIRS: Final = 20_000
SPECTRUM: Final = 100
SAME: Words = ("the same", "同义")
DIFFERENT: Words = ("different", "不同义")
BETWEEN: Words = ("between", "介于两者之间")


@dataclass(frozen=True)
class Map:
    """points (n, 2), a group number and a text for each, names of the groups, links (point, point, group), and what the axes are."""

    points: Floats
    groups: list[int]
    names: list[Words]
    texts: list[str]
    links: list[tuple[int, int, int]]
    axes: tuple[Words, Words]


def pairs_of(outcome: Outcome) -> tuple[Floats, Floats] | None:
    """(cosines, same) of a data set of pairs: 1 the same, 0 different, NaN between; None where there are no such pairs.

    Scores count as the same from two thirds of their range on, as different up to one third.
    """
    data, measured = outcome.data, outcome.measured
    if measured.cosines is not None and measured.same is not None:
        return measured.cosines, measured.same
    if not isinstance(data, Dataset) or len(data.columns) < 2:
        return None
    u, v = (unit(outcome.encoded.vectors[name]) for name in list(data.columns)[:2])
    cosines = np.clip((u * v).sum(1), -1.0, 1.0)
    if data.kind == "scores":
        gold = np.asarray(normalised_scores(data), dtype=np.float64)
        return cosines, np.where(gold >= 2 / 3, 1.0, np.where(gold <= 1 / 3, 0.0, np.nan))
    if data.kind == "triplets":
        w = unit(outcome.encoded.vectors[list(data.columns)[2]])
        far = np.clip((u * w).sum(1), -1.0, 1.0)
        return np.concatenate([cosines, far]), np.concatenate([np.ones(len(cosines)), np.zeros(len(far))])
    if measured.task == "parallel":
        strangers = np.roll(v, len(v) // 2 or 1, axis=0)
        return np.concatenate([cosines, (u * strangers).sum(1)]), np.concatenate([np.ones(len(u)), np.zeros(len(u))])
    return None


def histogram_of(outcome: Outcome) -> list[Histogram]:
    """Cosines by class; of random pairs of texts where there are no classes of pairs."""
    found = pairs_of(outcome)
    if found is None:
        _, vectors = distinct_texts(outcome)
        return [Histogram(("random texts", "随机文本对"), random_cosines(vectors), 0)] if len(vectors) > 1 else []
    cosines, same = found
    parts = [(SAME, same == 1, 0), (DIFFERENT, same == 0, 1)]
    return [Histogram(name, cosines[chosen], colour) for name, chosen, colour in parts if chosen.any()]


def reliability_of(outcome: Outcome, seed: int = 0) -> dict[str, Any] | None:
    """Bins of said against true on rows that the curve had not seen, with the errors; None where there are too few pairs of two classes."""
    found = pairs_of(outcome)
    if found is None:
        return None
    cosines, same = found
    sharp = np.isfinite(same) & np.isfinite(cosines)
    try:
        made = calibrate(cosines[sharp], same[sharp], draws=1, seed=seed)
    except TwinvecError:  # too few rows, or one class
        return None
    return {"method": made.method, **made.held_out}


def distinct_texts(outcome: Outcome) -> tuple[list[str], Floats]:
    """Every distinct text that is not empty, with its unit vector (n, D)."""
    place: dict[str, Any] = {}
    for texts, vectors in _columns(outcome):
        for row, text in enumerate(texts):
            if text.strip():
                place.setdefault(text, vectors[row])
    return list(place), unit(np.stack(list(place.values()))) if place else np.zeros((0, 1))


def _columns(outcome: Outcome) -> list[tuple[Sequence[str], Any]]:
    data, vectors = outcome.data, outcome.encoded.vectors
    if isinstance(data, Dataset):
        return [(texts, vectors[name]) for name, texts in data.columns.items()]
    if isinstance(data, RetrievalSet):
        documents = [d.text for d in sorted((d for d in data.corpus if d.text.strip()), key=lambda d: d.id)]
        queries = [data.queries[name] for name in outcome.measured.names]
        return [(queries, vectors["query"]), (documents, vectors["document"])]
    return [(data.queries, vectors["query"]), ([text for found in data.candidates for text in found], vectors["document"])]


def heat_texts(outcome: Outcome) -> tuple[list[str], Floats] | None:
    """A few texts, two by two the same where the data says so, and their cosines with each other (n, n). None with fewer than three texts."""
    listed, vectors = distinct_texts(outcome)
    place = {text: i for i, text in enumerate(listed)}
    chosen: list[str] = []
    found = pairs_of(outcome)
    data = outcome.data
    if found is not None and isinstance(data, Dataset):
        first, second, *_ = data.columns.values()
        for a, b, same in zip(first, second, found[1], strict=False):
            if same == 1 and a != b and a in place and b in place and a not in chosen and b not in chosen:
                chosen += [a, b]
            if len(chosen) >= HEAT_TEXTS:
                break
    chosen += [text for text in listed if text not in chosen][: max(0, HEAT_TEXTS - len(chosen))]
    if len(chosen) < 3:
        return None
    x = vectors[[place[text] for text in chosen]]
    return chosen, np.clip(x @ x.T, -1.0, 1.0)


# --- a map


def map_of(outcome: Outcome, kind: str = "pca", seed: int = 0) -> Map | None:
    """Texts in two dimensions: classes by colour; pairs as lines, the same in one colour and different in another. None with fewer than 4 texts.

    kind: "pca" (the two directions of most variance, whose share the axes tell), or "umap" (McInnes et al. 2018), which needs the extra umap.
    """
    choose("map", kind, MAPS)
    texts, vectors, groups, names, pairs = _grouped(outcome, np.random.default_rng([seed, 0x3A9]))
    if len(texts) < 4:
        return None
    points, axes = _umap(vectors, seed) if kind == "umap" else _pca(vectors)
    if not np.isfinite(points).all():
        return None
    return Map(points, groups, names, texts, pairs, axes)


def _grouped(outcome: Outcome, rng: np.random.Generator) -> tuple[list[str], Floats, list[int], list[Words], list[tuple[int, int, int]]]:
    data, vectors = outcome.data, outcome.encoded.vectors
    if isinstance(data, Dataset) and data.kind == "labelled" and data.labels is not None:
        labels = np.asarray(data.labels, dtype=int)
        common = [int(label) for label in np.argsort(-np.bincount(labels), kind="stable")[:MAP_CLASSES]]
        rows = np.flatnonzero(np.isin(labels, common))
        rows = np.sort(rng.choice(rows, min(MAP_POINTS, len(rows)), replace=False))
        known = data.label_names or [str(label) for label in range(int(labels.max()) + 1)]
        texts = [data.columns["text"][i] for i in rows]
        return texts, unit(vectors["text"][rows]), [common.index(int(labels[i])) for i in rows], [known[label] for label in common], []
    found = pairs_of(outcome)
    if found is not None and isinstance(data, Dataset):
        first, second = list(data.columns)[:2]
        same = found[1][: len(data)]
        rows = np.sort(rng.choice(len(data), min(MAP_POINTS // 4, len(data)), replace=False))
        kinds = [0 if same[i] == 1 else 1 if same[i] == 0 else 2 for i in rows]
        texts = [text for i in rows for text in (data.columns[first][i], data.columns[second][i])]
        x = unit(np.stack([vectors[name][i] for i in rows for name in (first, second)])) if len(rows) else np.zeros((0, 1))
        names: list[Words] = [SAME, DIFFERENT, BETWEEN][: max(kinds, default=0) + 1]
        return texts, x, [kind for kind in kinds for _ in (0, 1)], names, [(2 * at, 2 * at + 1, kind) for at, kind in enumerate(kinds)]
    columns = _columns(outcome)
    named: list[Words] = [("queries", "查询"), ("documents", "文档")] if len(columns) == 2 else ["texts"]
    texts, parts, groups = [], [], []
    for number, (listed, column) in enumerate(columns[:2]):
        rows = np.sort(rng.choice(len(listed), min(MAP_POINTS // 2, len(listed)), replace=False))
        texts += [listed[i] for i in rows]
        parts.append(unit(np.asarray(column)[rows]))
        groups += [number] * len(rows)
    return texts, np.concatenate(parts), groups, named, []


def _pca(x: Floats) -> tuple[Floats, tuple[Words, Words]]:
    centred = x - x.mean(0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    points = (left * values)[:, :2]
    if points.shape[1] < 2:
        points = np.column_stack([points, np.zeros(len(points))])
    # The sign of a direction is chance; so that a report is the same each time, the largest part of each points up.
    points = points * np.sign(points[np.abs(points).argmax(0), [0, 1]] + 1e-30)
    total = float((values**2).sum()) or 1.0
    shares = [float(value) ** 2 / total for value in [*values, 0.0][:2]]
    return points, (
        (f"first direction, {shares[0]:.0%} of the variance", f"第一主成分，占方差 {shares[0]:.0%}"),
        (f"second, {shares[1]:.0%}", f"第二，{shares[1]:.0%}"),
    )


def _umap(x: Floats, seed: int) -> tuple[Floats, tuple[Words, Words]]:
    try:
        import umap
    except ImportError as err:
        raise UsageError("--map umap needs pip install 'twinvec[umap]'") from err
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        near = min(15, len(x) - 1)
        # A spectral start needs more points than directions asked for, and some.
        made = umap.UMAP(n_neighbors=near, metric="cosine", random_state=seed, init="spectral" if len(x) > 15 else "random")
        points = np.asarray(made.fit_transform(x), dtype=np.float64)
    return points, (("UMAP", "UMAP"), ("", ""))


# --- the cone


def random_cosines(x: Floats, pairs: int = CONE_PAIRS, seed: int = 0) -> Floats:
    """x (n, D), unit rows -> cosines of `pairs` random pairs of two different rows, or of all pairs where they are fewer."""
    n = len(x)
    if n * (n - 1) // 2 <= pairs:
        a, b = np.triu_indices(n, 1)
    else:
        rng = np.random.default_rng([seed, 0xC0E])
        a = rng.integers(n, size=pairs)
        b = (a + rng.integers(1, n, size=pairs)) % n
    return np.asarray(np.clip((x[a] * x[b]).sum(1), -1.0, 1.0))


def cone_of(name: str, vectors: Any, seed: int = 0) -> Cone:
    """vectors (n, D) of different texts -> cosines of random pairs, and the share of all (not centred) that the first k directions hold."""
    x = unit(np.asarray(vectors, dtype=np.float64))
    x = x[x.any(axis=1)]
    if len(x) < 2:
        raise DataError(f"{name}: {len(x)} texts with a vector; a picture of the geometry wants two or more")
    if len(x) > CONE_ROWS:
        x = x[np.sort(np.random.default_rng([seed, 0x6E0]).choice(len(x), CONE_ROWS, replace=False))]
    energy = np.linalg.svd(x, compute_uv=False) ** 2
    return Cone(name, random_cosines(x, seed=seed), np.cumsum(energy)[:SPECTRUM] / energy.sum())
