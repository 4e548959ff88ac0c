"""Curves, thresholds and calibration errors against scikit-learn, and the calibration against rows it has not seen."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from twinvec.errors import DataError, ModelError, UsageError
from twinvec.evaluation.calibration import Calibration, brier, calibrate, expected_calibration_error, fit_curve, reliability
from twinvec.evaluation.isotonic import platt, pool_adjacent_violators, sigmoid
from twinvec.evaluation.thresholds import threshold_for


def sample(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cosines, labels, and the true probabilities from which the labels were drawn."""
    rng = np.random.default_rng(seed)
    x = np.clip(rng.beta(5, 3, size=n), 0, 1)
    p = 1 / (1 + np.exp(-(x - 0.65) * 14))
    return x, (rng.random(n) < p).astype(float), p


@pytest.mark.parametrize("case", ["random", "ties", "two values", "reversed", "separable"])
def test_isotonic_equals_sklearn(case: str) -> None:
    rng = np.random.default_rng(2)
    x = {"ties": np.round(rng.random(200), 1), "two values": rng.integers(0, 2, 200).astype(float)}.get(case, rng.random(200))
    y = {"reversed": (x < 0.5).astype(float), "separable": (x > 0.5).astype(float)}.get(case, (rng.random(200) < x).astype(float))
    xs, ys = pool_adjacent_violators(x, y)
    wanted = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(x, y)
    grid = np.linspace(-0.5, 1.5, 400)
    np.testing.assert_allclose(np.interp(grid, xs, ys), wanted.predict(grid), atol=1e-12)
    assert (np.diff(ys) >= 0).all()


@pytest.mark.parametrize("scale", [1.0, 0.01, 100.0])
def test_platt_equals_sklearn_on_platts_targets(scale: float) -> None:
    x, y, _ = sample(500, 3)
    x = x * scale
    a, b = platt(x, y)
    p, n = y.sum(), (1 - y).sum()
    high, low = (p + 1) / (p + 2), 1 / (n + 2)
    # Each row twice, once a label, weighted by its target: plain logistic regression without a penalty.
    target = np.where(y == 1, high, low)
    both = LogisticRegression(C=np.inf, tol=1e-10, max_iter=2000).fit(
        np.concatenate([x, x])[:, None] / scale, np.repeat([1, 0], len(x)), sample_weight=np.concatenate([target, 1 - target])
    )  # fmt: skip
    assert a * scale == pytest.approx(both.coef_[0, 0], rel=1e-4)
    assert b == pytest.approx(both.intercept_[0], rel=1e-4)


def test_platt_stays_finite_where_a_threshold_separates_all() -> None:
    a, b = platt([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1])
    assert np.isfinite([a, b]).all()
    assert a > 0
    a, b = platt(np.full(20, 0.5), np.arange(20) % 2)
    assert sigmoid(np.asarray([a * 0.5 + b]))[0] == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("method", ["isotonic", "platt"])
def test_a_calibration_holds_on_rows_it_has_not_seen(method: str) -> None:
    x, y, _ = sample(3000, 0)
    made = calibrate(x, y, method=method, draws=50)
    new_x, new_y, truth = sample(20_000, 1)
    said = made.probability(new_x)
    assert expected_calibration_error(said, new_y) < 0.03
    assert np.abs(said - truth).mean() < 0.03
    # What it says of itself, by folds, is what comes true elsewhere.
    assert made.held_out["brier"] == pytest.approx(brier(said, new_y), abs=0.015)
    assert made.held_out["brier"] < made.held_out["brier_of_the_share"]
    assert expected_calibration_error(new_x, new_y) > 0.1, "the cosine itself is no probability"


def test_the_method_follows_the_number_of_rows() -> None:
    x, y, _ = sample(1200, 4)
    assert calibrate(x, y, draws=5).method == "isotonic"
    assert calibrate(x[:300], y[:300], draws=5).method == "platt"


def test_expected_calibration_error_by_hand() -> None:
    said, true = [0.05, 0.15, 0.15, 0.95, 1.0], [0, 1, 0, 1, 1]
    steps = reliability(said, true)
    assert [(step["rows"], round(step["said"], 3), step["true"]) for step in steps] == [(1, 0.05, 0), (2, 0.15, 0.5), (2, 0.975, 1)]
    assert expected_calibration_error(said, true) == pytest.approx((1 * 0.05 + 2 * 0.35 + 2 * 0.025) / 5)
    assert reliability([0.0], [0])[0]["low"] == 0.0
    assert expected_calibration_error([0.0, 1.0], [0, 1]) == 0


def test_thresholds_by_search_over_all_of_them() -> None:
    x, y, _ = sample(400, 6)
    for goal in (0.7, 0.9):
        found = threshold_for(x, y, goal, draws=100)
        fine = [(cut, y[x >= cut].mean()) for cut in np.unique(x)]
        lowest = min(cut for cut, precision in fine if precision >= goal)
        assert found.threshold is not None
        assert (x >= found.threshold).sum() == (x >= lowest).sum()
        assert found.precision == pytest.approx(y[x >= lowest].mean())
        assert found.low is not None
        assert found.low <= found.threshold <= found.high
    best = threshold_for(x, y, None, draws=20)
    f1 = max(2 * y[x >= cut].sum() / ((x >= cut).sum() + y.sum()) for cut in np.unique(x))
    assert best.f1 == pytest.approx(f1)


def test_the_precision_of_left_out_rows_is_honest() -> None:
    """Chosen on 300 rows, a threshold for 0.9 reaches less on new ones; the figure of rows left out says so before."""
    said, true = [], []
    for seed in range(20):
        x, y, _ = sample(300, seed)
        found = threshold_for(x, y, 0.9, draws=60)
        new_x, new_y, _ = sample(5000, seed + 500)
        if found.threshold is not None and (new_x >= found.threshold).any():
            said.append(found.held_out_precision)
            true.append(new_y[new_x >= found.threshold].mean())
    assert np.mean(said) == pytest.approx(np.mean(true), abs=0.03)


def test_a_goal_that_is_out_of_reach() -> None:
    rng = np.random.default_rng(0)
    x = rng.random(200)
    y = (rng.random(200) < 0.2).astype(float)
    y[np.argsort(-x)[:20]] = 0  # the highest scores are all wrong
    found = threshold_for(x, y, 0.99, draws=50)
    assert (found.reached, found.threshold, found.precision) == (False, None, None)


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    x, y, _ = sample(200, 1)
    made = calibrate(
        x, y, precision_goal=0.8, draws=30, data="pairs.csv", data_sha256="ab", fingerprint="f", prompts={"sentence1": "query: "}
    )  # fmt: skip
    path = made.save(tmp_path)
    stored = json.loads(path.read_text())
    assert stored["data_sha256"] == "ab"
    assert set(stored["thresholds"]) == {"best_f1", "precision_0.8"}
    again = Calibration.load(tmp_path)
    assert again == made
    np.testing.assert_array_equal(again.probability(x), made.probability(x))
    assert np.isnan(again.probability([np.nan])[0])
    assert 0 <= again.probability([-1.0])[0] <= again.probability([1.0])[0] <= 1


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "method": "platt"}'], ids=["empty", "list", "object", "format", "part"]
)
def test_damaged_calibrations_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "calibration.json").write_text(content)
    with pytest.raises(ModelError, match=r"calibration.json: cannot be read .* make it anew with --calibrate --save"):
        Calibration.load(tmp_path)


def test_a_damaged_curve_is_refused(tmp_path: Path) -> None:
    x, y, _ = sample(50, 1)
    path = calibrate(x, y, draws=5).save(tmp_path)
    stored = json.loads(path.read_text())
    for curve in ({"a": [1.0]}, {"a": ["x"], "b": [1]}, {"xs": [1], "ys": []}):
        path.write_text(json.dumps({**stored, "curve": curve}))
        with pytest.raises(ModelError, match="cannot be read"):
            Calibration.load(tmp_path)


def test_what_cannot_be_calibrated() -> None:
    with pytest.raises(DataError, match="10 of 10 rows are the same; wanted 10 rows or more, and two or more of each label"):
        calibrate(np.linspace(0, 1, 10), np.ones(10))
    with pytest.raises(DataError, match="row 1 has label 3"):
        calibrate([0.1] * 10, [3.0] * 10)
    with pytest.raises(DataError, match="NaN"):
        calibrate([np.nan] * 10, [1.0, 0.0] * 5)
    with pytest.raises(DataError, match="got shapes"):
        calibrate([0.1] * 10, [1.0])
    with pytest.raises(UsageError, match=r"precision goal = 1\.2"):
        threshold_for([0.1, 0.2], [0, 1], 1.2)
    with pytest.raises(UsageError, match="method = 'magic'"):
        calibrate(np.linspace(0, 1, 10), [0.0, 1.0] * 5, method="magic")


def test_constant_cosines_give_the_share_of_positives() -> None:
    curve = fit_curve("isotonic", np.full(10, 0.5), np.asarray([1.0] * 3 + [0.0] * 7))
    assert curve == {"xs": [0.5], "ys": [pytest.approx(0.3)]}
