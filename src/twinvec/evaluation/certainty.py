"""How sure a figure is: bootstrap intervals, and differences between models on the same rows with a correction for many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from twinvec.errors import DataError, UsageError, choose
from twinvec.evaluation.measured import Measured
from twinvec.evaluation.metrics import Floats
from twinvec.evaluation.weighted import Figures, one

DRAWS: Final = 1000
METHODS: Final = ("percentile", "bca")
_CELLS: Final = 1 << 21  # weights held at once: 16 MB of float64, and a few arrays of that size while a figure is computed
_JACKKNIFE: Final = 400  # parts left out in turn for BCa: single units up to that many, groups of units beyond
_LEAST: Final = 0.9  # share of draws that must have a value; with fewer the interval would be of the lucky ones


@dataclass(frozen=True)
class Interval:
    """A figure, and the bounds between which it lies with the confidence `level` (0.95)."""

    value: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


def draw_weights(units: int, draws: int, seed: int = 0, clusters: npt.ArrayLike | None = None) -> Iterator[Floats]:
    """Blocks (b, units) of how often each unit comes in a resample; `draws` rows in all, the same for the same arguments.

    clusters (units,): units with one number are drawn together (a cluster bootstrap), such as all rows of one query.
    """
    if units < 1:
        raise DataError("bootstrap: no rows, so there is nothing to draw from")
    if draws < 1:
        raise UsageError(f"bootstrap = {draws}: wanted the number of draws, 1 or more")
    member = None
    size = units
    if clusters is not None:
        _, member = np.unique(np.asarray(clusters), return_inverse=True)
        if len(member) != units:
            raise DataError(f"bootstrap: {len(member)} cluster numbers for {units} units; wanted one each")
        size = int(member.max()) + 1
    rng = np.random.default_rng([seed, 0xB007])
    step = max(1, _CELLS // units)
    for at in range(0, draws, step):
        count = min(step, draws - at)
        picked = rng.integers(size, size=(count, size)) + np.arange(count)[:, None] * size
        weights = np.bincount(picked.ravel(), minlength=count * size).reshape(count, size).astype(np.float64)
        yield weights if member is None else weights[:, member.reshape(-1)]


def drawn(figures: Figures, units: int, draws: int = DRAWS, seed: int = 0, clusters: npt.ArrayLike | None = None) -> dict[str, Floats]:
    """Every figure in every draw: name -> (draws,)."""
    blocks = [figures(weights) for weights in draw_weights(units, draws, seed, clusters)]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def intervals(
    figures: Figures, units: int, *, draws: int = DRAWS, level: float = 0.95, seed: int = 0, method: str = "percentile",
    clusters: npt.ArrayLike | None = None,
) -> dict[str, Interval]:  # fmt: skip
    """Bootstrap intervals of all figures over the same draws; a figure that is undefined, here or in a tenth of the draws, has none.

    method: "percentile" (Efron 1979) or "bca", which corrects bias and skew (Efron 1987; DiCiccio and Efron 1996, eq. 2.3) and wants a jackknife.
    UsageError: a level outside 0..1, an unknown method.
    """
    choose("method", method, METHODS)
    if not 0 < level < 1:
        raise UsageError(f"level = {level}: wanted a confidence between 0 and 1, such as 0.95")
    values = one(figures, units)
    samples = drawn(figures, units, draws, seed, clusters)
    left_out = _jackknife(figures, units, clusters) if method == "bca" else {}
    found = {}
    for name, value in values.items():
        sample = samples[name][np.isfinite(samples[name])]
        if not np.isfinite(value) or len(sample) < _LEAST * draws or units < 2:
            continue
        ends = ((1 - level) / 2, (1 + level) / 2)
        if method == "bca":
            ends = _bca(ends, value, sample, left_out[name])
        low, high = np.quantile(sample, ends)
        found[name] = Interval(value, float(low), float(high))
    return found


def _jackknife(figures: Figures, units: int, clusters: npt.ArrayLike | None) -> dict[str, Floats]:
    if clusters is not None:
        _, part = np.unique(np.asarray(clusters), return_inverse=True)
        part = part.reshape(-1)
    else:
        part = np.arange(units)
    count = int(part.max()) + 1
    if count > _JACKKNIFE:
        part = np.random.default_rng(0).permutation(count)[part] % _JACKKNIFE
        count = _JACKKNIFE
    step = max(1, _CELLS // units)
    blocks = [figures((part[None, :] != np.arange(at, min(at + step, count))[:, None]).astype(np.float64)) for at in range(0, count, step)]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def _bca(ends: tuple[float, float], value: float, sample: Floats, left_out: Floats) -> tuple[float, float]:
    from scipy.special import ndtr, ndtri

    below = (np.sum(sample < value) + np.sum(sample == value) / 2) / len(sample)
    bias = float(ndtri(np.clip(below, 1 / (len(sample) + 1), len(sample) / (len(sample) + 1))))
    far = left_out[np.isfinite(left_out)]
    away = far.mean() - far if len(far) else np.zeros(1)
    spread = float((away**2).sum()) ** 1.5
    skew = float((away**3).sum()) / (6 * spread) if spread > 0 else 0.0
    moved = [bias + float(ndtri(end)) for end in ends]
    low, high = (float(ndtr(bias + z / max(1 - skew * z, 1e-6))) for z in moved)
    return low, high


# --- two models on the same rows


@dataclass(frozen=True)
class Difference:
    """first - second of one figure, with its interval, the two-sided p of "no difference", and that p after Holm's correction.

    test: "paired bootstrap", or "permutation" (of signs, for figures that are means over rows).
    """

    first: str
    second: str
    figure: str
    value: float
    low: float
    high: float
    p: float
    p_holm: float
    test: str

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def holm(p: Sequence[float]) -> list[float]:
    """p values so adjusted that all claims with a value of at most a hold together with an error of at most a (Holm 1979)."""
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    steps = np.maximum.accumulate(values[order] * (len(values) - np.arange(len(values)))) if len(values) else values
    out = np.empty(len(values))
    out[order] = np.minimum(steps, 1.0)
    return [float(x) for x in out]


def permutation_p(first: npt.ArrayLike, second: npt.ArrayLike, *, draws: int = 10_000, seed: int = 0) -> float:
    """Two-sided p of a paired permutation test of means: the signs of the differences (n,) are drawn anew; (1 + as extreme) / (1 + draws)."""
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape or not len(a):
        raise DataError(f"permutation test: needs two lists of equal length, one value a row, got shapes {a.shape} and {b.shape}")
    away = a - b
    away = away[away != 0]
    if not len(away):
        return 1.0
    rng = np.random.default_rng([seed, 0x9E4])
    wanted = abs(away.sum()) * (1 - 1e-12)
    extreme = 0
    step = max(1, _CELLS // len(away))
    for at in range(0, draws, step):
        signs = rng.integers(0, 2, size=(min(step, draws - at), len(away))).astype(np.float64) * 2 - 1
        extreme += int((np.abs(signs @ away) >= wanted).sum())
    return (1 + extreme) / (1 + draws)


def bootstrap_p(differences: Floats) -> float:
    """Two-sided p from bootstrap draws of a difference: twice the smaller share beyond 0, no less than 2 / (draws + 1)."""
    found = differences[np.isfinite(differences)]
    if not len(found):
        return 1.0
    smaller = min(int((found <= 0).sum()), int((found >= 0).sum()))
    return min(1.0, 2 * (1 + smaller) / (1 + len(found)))


def compare_models(
    models: Mapping[str, Measured], figure: str | None = None, *, reference: str | None = None, draws: int = DRAWS, level: float = 0.95, seed: int = 0
) -> list[Difference]:
    """Differences of one figure between models measured on the same units, with p values and Holm's correction over all of them.

    figure: the headline of the task when None. reference: the model with which each other is compared; None compares every two.
    The draws are the same for all models (a paired bootstrap), so what is common to them cancels. DataError: other units, undefined figures.
    """
    names = list(models)
    if len(names) < 2:
        raise UsageError(f"{len(names)} models: wanted two or more to compare")
    first = models[names[0]]
    wanted = figure or first.headline
    for name, measured in models.items():
        if measured.task != first.task or measured.units != first.units or measured.names != first.names:
            raise DataError(f"{name} and {names[0]} were not measured on the same rows; give every model the same file and options")
    if reference is not None:
        choose("reference", reference, names)
    couples = [(name, reference) for name in names if name != reference] if reference is not None else list(combinations(names, 2))
    for name, measured in models.items():
        choose(f"figure of {name}", wanted, measured.figures.names)
    samples = {name: drawn(m.figures.only(wanted), m.units, draws, seed, m.clusters) for name, m in models.items()}
    values = {name: one(m.figures.only(wanted), m.units) for name, m in models.items()}
    rows = []
    for a, b in couples:
        if not np.isfinite([values[a][wanted], values[b][wanted]]).all():
            raise DataError(f"{wanted} is not defined for both {a} and {b} (constant scores, or one row): there is nothing to compare")
        away = samples[a][wanted] - samples[b][wanted]
        low, high = np.quantile(away[np.isfinite(away)], ((1 - level) / 2, (1 + level) / 2))
        means_a, means_b = models[a].values.get(wanted), models[b].values.get(wanted)
        if means_a is not None and means_b is not None and first.clusters is None:
            test, p = "permutation", permutation_p(means_a, means_b, seed=seed)
        else:
            test, p = "paired bootstrap", bootstrap_p(away)
        rows.append((a, b, values[a][wanted] - values[b][wanted], float(low), float(high), p, test))
    adjusted = holm([row[5] for row in rows])
    return [Difference(a, b, wanted, v, low, high, p, q, test) for (a, b, v, low, high, p, test), q in zip(rows, adjusted, strict=True)]
