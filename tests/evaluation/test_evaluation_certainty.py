"""Intervals hold what they promise; differences, permutation tests and Holm's correction against independent computations."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from twinvec.errors import DataError, UsageError
from twinvec.evaluation.certainty import bootstrap_p, compare_models, draw_weights, drawn, holm, intervals, permutation_p
from twinvec.evaluation.measured import Measured, of_means
from twinvec.evaluation.weighted import means, pearson_of, spearman_of, together


@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_intervals_cover_the_truth_as_often_as_they_say(method: str) -> None:
    """300 samples of 80 rows of a known population: a 95 % interval must hold the true value in 90 to 99 % of them."""
    rng = np.random.default_rng(20)
    rho = 0.6
    truth = {"pearson": rho, "spearman": 6 / np.pi * np.arcsin(rho / 2), "mean": 0.3}  # of a bivariate normal (Pearson 1907); a share
    held = dict.fromkeys(truth, 0)
    for _ in range(300):
        x = rng.normal(size=80)
        y = rho * x + np.sqrt(1 - rho * rho) * rng.normal(size=80)
        figures = together(pearson_of(x, y, "pearson"), spearman_of(x, y, "spearman"), means({"mean": (rng.random(80) < 0.3).astype(float)}))
        found = intervals(figures, 80, draws=400, method=method, seed=int(rng.integers(1 << 30)))
        for name, value in truth.items():
            held[name] += found[name].low <= value <= found[name].high
    for name, count in held.items():
        assert 0.90 <= count / 300 <= 0.99, f"{name}: {count / 300}"


def test_clusters_are_drawn_together_and_widen_the_interval() -> None:
    """20 queries with 10 equal rows each are 20 facts, not 200: only the cluster bootstrap says so."""
    rng = np.random.default_rng(4)
    covered, naive = 0, 0
    for _ in range(200):
        per_query = (rng.random(20) < 0.5).astype(float)
        figure, clusters = means({"share": np.repeat(per_query, 10)}), np.repeat(np.arange(20), 10)
        seed = int(rng.integers(1 << 30))
        wide = intervals(figure, 200, draws=300, clusters=clusters, seed=seed)["share"]
        narrow = intervals(figure, 200, draws=300, seed=seed)["share"]
        covered += wide.low <= 0.5 <= wide.high
        naive += narrow.low <= 0.5 <= narrow.high
    assert covered / 200 >= 0.88
    assert naive / 200 < 0.7
    for weights in draw_weights(6, 5, clusters=[7, 7, 7, 2, 2, 9]):
        assert (weights[:, 0] == weights[:, 1]).all()
        assert (weights[:, 3] == weights[:, 4]).all()


def test_draws_are_seeded_and_independent_of_block_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.concatenate(list(draw_weights(50, 30, seed=1)))
    assert whole.shape == (30, 50)
    assert (whole.sum(1) == 50).all()
    assert (np.concatenate(list(draw_weights(50, 30, seed=1))) == whole).all()
    assert (np.concatenate(list(draw_weights(50, 30, seed=2))) != whole).any()
    monkeypatch.setattr("twinvec.evaluation.certainty._CELLS", 50 * 7)
    assert (np.concatenate(list(draw_weights(50, 30, seed=1))) == whole).all()


def test_percentile_interval_of_a_mean_agrees_with_scipy() -> None:
    x = np.random.default_rng(0).exponential(size=120)
    mine = intervals(means({"mean": x}), 120, draws=4000)["mean"]
    for method, name in (("percentile", "percentile"), ("BCa", "bca")):
        mine = intervals(means({"mean": x}), 120, draws=4000, method=name)["mean"]
        wanted = scipy.stats.bootstrap((x,), np.mean, n_resamples=4000, method=method, rng=np.random.default_rng(5)).confidence_interval
        assert mine.low == pytest.approx(wanted.low, abs=0.02)
        assert mine.high == pytest.approx(wanted.high, abs=0.02)


def test_no_interval_where_there_is_none() -> None:
    constant = spearman_of(np.ones(10), np.arange(10.0), "s")
    assert intervals(constant, 10, draws=50) == {}
    assert intervals(means({"m": np.ones(1)}), 1, draws=50) == {}, "one row"
    rare = spearman_of(np.arange(5.0), np.array([0.0, 0, 0, 0, 1]), "s")  # a third of the draws lack the only 1
    assert intervals(rare, 5, draws=200) == {}


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])  # Holm 1979, worked out on paper
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    p = np.random.default_rng(0).random(20)
    order = np.argsort(p)
    wanted, highest = np.empty(20), 0.0
    for step, i in enumerate(order):
        highest = max(highest, min(1.0, p[i] * (20 - step)))
        wanted[i] = highest
    assert holm(p.tolist()) == pytest.approx(wanted)


def test_permutation_test_agrees_with_scipy_and_holds_its_level() -> None:
    rng = np.random.default_rng(7)
    a = rng.random(40)
    b = a + rng.normal(scale=0.3, size=40) + 0.05
    wanted = scipy.stats.permutation_test(
        (a, b), lambda x, y, axis: (x - y).mean(axis=axis), permutation_type="samples", vectorized=True, n_resamples=20_000,
        rng=np.random.default_rng(1),
    )  # fmt: skip
    assert permutation_p(a, b, draws=20_000) == pytest.approx(wanted.pvalue, abs=0.015)
    assert permutation_p(a, a) == 1.0
    assert permutation_p(np.ones(30), np.zeros(30), draws=999) == pytest.approx(1 / 1000)
    false_alarms = sum(permutation_p(*rng.normal(size=(2, 30)), draws=199) <= 0.05 for _ in range(300))
    assert false_alarms / 300 < 0.09
    with pytest.raises(DataError, match="one value a row"):
        permutation_p([1, 2], [1])


def sts(seed: int, noise: float, n: int = 200) -> Measured:
    gold = np.random.default_rng(0).normal(size=n)
    score = gold + np.random.default_rng(seed).normal(size=n) * noise
    names = list(range(1, n + 1))
    return Measured("sts", "spearman_cosine", {}, spearman_of(score, gold, "spearman_cosine"), names, [{}] * n)


def test_models_on_the_same_rows_are_compared_by_the_same_draws() -> None:
    models = {"good": sts(1, 0.3), "same": sts(1, 0.3), "poor": sts(2, 2.0)}
    first, second, third = compare_models(models, draws=300)
    assert (first.first, first.second, first.value, first.low, first.high, first.p) == ("good", "same", 0.0, 0.0, 0.0, 1.0)
    assert second.low > 0
    assert second.p == pytest.approx(2 / 301)
    assert second.p_holm == pytest.approx(3 * second.p)
    assert third.test == "paired bootstrap"
    # Paired: the interval of the difference is what the draws of both, taken together, say.
    a, b = (drawn(models[name].figures, 200, 300, 0)["spearman_cosine"] for name in ("good", "poor"))
    assert (second.low, second.high) == pytest.approx(tuple(np.quantile(a - b, (0.025, 0.975))))
    with_reference = compare_models(models, reference="good", draws=50)
    assert [(row.first, row.second) for row in with_reference] == [("same", "good"), ("poor", "good")]


def test_means_are_compared_by_permutation() -> None:
    right = np.random.default_rng(1).random(100)
    make = lambda values: of_means("triplets", "accuracy_cosine", {}, {"accuracy_cosine": values}, names=list(range(100)), texts=[{}] * 100)  # noqa: E731
    (row,) = compare_models({"a": make(right), "b": make(right * 0.5)}, draws=100)
    assert row.test == "permutation"
    assert row.p < 0.001
    assert row.value == pytest.approx(right.mean() / 2)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(UsageError, match="1 models: wanted two or more"):
        compare_models({"a": sts(1, 0.1)})
    with pytest.raises(DataError, match="not measured on the same rows"):
        compare_models({"a": sts(1, 0.1), "b": sts(1, 0.1, n=100)})
    with pytest.raises(UsageError, match="figure of a = 'pearson'"):
        compare_models({"a": sts(1, 0.1), "b": sts(2, 0.1)}, "pearson")
    with pytest.raises(UsageError, match="level = 2"):
        intervals(means({"m": np.ones(3)}), 3, level=2)


def test_bootstrap_p_is_never_zero() -> None:
    assert bootstrap_p(np.ones(99)) == pytest.approx(0.02)
    assert bootstrap_p(np.zeros(99)) == 1.0
    assert bootstrap_p(np.full(9, np.nan)) == 1.0
