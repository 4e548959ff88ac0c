"""What a cosine means: the probability that two texts mean the same, and thresholds for a wanted precision, learnt from labelled pairs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from twinvec.errors import DataError, ModelError, UsageError, choose
from twinvec.evaluation.classification import folds_of
from twinvec.evaluation.isotonic import platt, pool_adjacent_violators, sigmoid
from twinvec.evaluation.metrics import Floats
from twinvec.evaluation.thresholds import Threshold, threshold_for
from twinvec.files import write_json

FILE: Final = "calibration.json"
METHODS: Final = ("isotonic", "platt")
ISOTONIC_ROWS: Final = 1000  # from so many rows on isotonic is the better choice (Niculescu-Mizil and Caruana 2005, section 5); below it overfits
BINS: Final = 10
_FOLDS: Final = 5


@dataclass(frozen=True)
class Calibration:
    """A curve from cosine to probability. platt: (a, b) of 1 / (1 + exp(-(a x + b))); isotonic: probabilities ys at cosines xs, straight between.

    The rest says what it was made of, so that nobody uses it for another model, prompt or language unawares.
    """

    method: str
    curve: dict[str, list[float]]
    rows: int
    positives: int
    data: str
    data_sha256: str
    fingerprint: str
    prompts: dict[str, str]
    thresholds: dict[str, dict[str, Any]] = field(default_factory=dict)
    held_out: dict[str, Any] = field(default_factory=dict)

    def probability(self, cosines: npt.ArrayLike) -> Floats:
        """(n,) cosines -> (n,) probabilities of "the same" in data such as this was learnt from; beyond its ends the curve is flat. NaN stays NaN."""
        return _apply(self.method, self.curve, np.asarray(cosines, dtype=np.float64))

    def save(self, folder: str | Path) -> Path:
        """Write calibration.json into a model folder."""
        path = Path(folder) / FILE
        write_json(path, {"format": 1, **asdict(self)})
        return path

    @classmethod
    def load(cls, folder: str | Path) -> Calibration:
        """ModelError: no calibration there, or a damaged one."""
        path = Path(folder) / FILE
        if not path.is_file():
            raise ModelError(f"{folder}: no {FILE} there; make one with: twinvec evaluate MODEL pairs.csv --calibrate --save")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found.pop("format") != 1:
                raise ValueError("another format")
            made = cls(**found)
            choose("method", made.method, METHODS)
            numbers = [float(x) for values in made.curve.values() for x in values]
            wanted = {"a": 1, "b": 1} if made.method == "platt" else {"xs": len(made.curve["xs"]), "ys": len(made.curve["xs"])}
            if {name: len(values) for name, values in made.curve.items()} != wanted or not numbers or not np.isfinite(numbers).all():
                raise ValueError("a curve that is none")
        except (OSError, ValueError, TypeError, KeyError, AttributeError, UsageError) as err:
            raise ModelError(f"{path}: cannot be read ({type(err).__name__}: {str(err)[:120]}); make it anew with --calibrate --save") from err
        return made


def fit_curve(method: str, cosines: Floats, same: Floats) -> dict[str, list[float]]:
    """The curve of one method."""
    if method == "platt":
        a, b = platt(cosines, same)
        return {"a": [a], "b": [b]}
    xs, ys = pool_adjacent_violators(cosines, same)
    return {"xs": [float(x) for x in xs], "ys": [float(y) for y in ys]}


def _apply(method: str, curve: dict[str, list[float]], cosines: Floats) -> Floats:
    if method == "platt":
        return sigmoid(curve["a"][0] * cosines + curve["b"][0])
    return np.asarray(np.interp(cosines, curve["xs"], curve["ys"]))


def calibrate(
    cosines: npt.ArrayLike, same: npt.ArrayLike, *, method: str | None = None, precision_goal: float | None = None, draws: int = 1000, seed: int = 0,
    **made_of: Any,
) -> Calibration:  # fmt: skip
    """cosines (n,), same (n,) of 0 and 1 -> a calibration with thresholds for the best F1 and, if asked for, for a precision.

    method: None takes isotonic from 1,000 rows on, else Platt. held_out: expected calibration error, Brier score and reliability bins of rows that
    each curve had not seen (5 folds), beside those of a curve that always says the share of positives. Thresholds carry bootstrap intervals.
    made_of: data, data_sha256, fingerprint, prompts. DataError: rows of one class only, NaN, fewer than 10 rows.
    """
    x, y = np.asarray(cosines, dtype=np.float64), np.asarray(same, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise DataError(f"calibration: needs a cosine and a label for each row, got shapes {x.shape} and {y.shape}")
    wrong = np.flatnonzero((y != 0) & (y != 1))
    if wrong.size:
        raise DataError(f"calibration: row {wrong[0] + 1} has label {y[wrong[0]]:g}; wanted 0 or 1")
    if not np.isfinite(x).all():
        raise DataError("calibration: some cosines are NaN or infinite; the model gives broken vectors")
    positives = int(y.sum())
    if len(y) < 10 or min(positives, len(y) - positives) < 2:
        raise DataError(f"calibration: {positives} of {len(y)} rows are the same; wanted 10 rows or more, and two or more of each label")
    chosen = choose("method", method, METHODS) if method is not None else "isotonic" if len(y) >= ISOTONIC_ROWS else "platt"
    fold = folds_of(y.astype(np.int64), min(_FOLDS, positives, len(y) - positives), seed)
    unseen, base = np.empty(len(y)), np.empty(len(y))
    for number in range(int(fold.max()) + 1):
        test = fold == number
        unseen[test] = _apply(chosen, fit_curve(chosen, x[~test], y[~test]), x[test])
        base[test] = y[~test].mean()
    thresholds = {"best_f1": threshold_for(x, y, None, draws=draws, seed=seed)}
    if precision_goal is not None:
        thresholds[f"precision_{precision_goal:g}"] = threshold_for(x, y, precision_goal, draws=draws, seed=seed)
    return Calibration(
        method=chosen,
        curve=fit_curve(chosen, x, y),
        rows=len(y),
        positives=positives,
        data=str(made_of.get("data", "")),
        data_sha256=str(made_of.get("data_sha256", "")),
        fingerprint=str(made_of.get("fingerprint", "")),
        prompts=dict(made_of.get("prompts", {})),
        thresholds={name: found.to_dict() for name, found in thresholds.items() if isinstance(found, Threshold)},
        held_out={
            "expected_calibration_error": expected_calibration_error(unseen, y), "brier": brier(unseen, y), "brier_of_the_share": brier(base, y),
            "bins": reliability(unseen, y), "folds": int(fold.max()) + 1,
        },
    )  # fmt: skip


def reliability(probabilities: npt.ArrayLike, same: npt.ArrayLike, bins: int = BINS) -> list[dict[str, float]]:
    """What was said against what came true, in `bins` equal steps of probability: [{"low", "high", "rows", "said", "true"}], empty steps left out."""
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(same, dtype=np.float64)
    if bins < 1:
        raise UsageError(f"bins = {bins}: wanted 1 or more")
    number = np.clip(np.ceil(p * bins).astype(int) - 1, 0, bins - 1)  # (low, high], so that 1.0 and 0.5 fall as in the usual definition
    out = []
    for i in range(bins):
        mine = number == i
        if mine.any():
            out.append(
                {"low": i / bins, "high": (i + 1) / bins, "rows": int(mine.sum()), "said": float(p[mine].mean()), "true": float(y[mine].mean())}
            )  # fmt: skip
    return out


def expected_calibration_error(probabilities: npt.ArrayLike, same: npt.ArrayLike, bins: int = BINS) -> float:
    """Mean distance of what was said from what came true, over the bins by their rows (Naeini et al. 2015; Guo et al. 2017, eq. 3)."""
    found = reliability(probabilities, same, bins)
    return float(sum(step["rows"] * abs(step["said"] - step["true"]) for step in found) / sum(step["rows"] for step in found))


def brier(probabilities: npt.ArrayLike, same: npt.ArrayLike) -> float:
    """Mean squared distance of the probability from 0 or 1 (Brier 1950)."""
    return float(((np.asarray(probabilities, dtype=np.float64) - np.asarray(same, dtype=np.float64)) ** 2).mean())
