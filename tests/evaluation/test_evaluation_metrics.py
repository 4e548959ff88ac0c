from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st

from twinvec.errors import DataError, UsageError
from twinvec.evaluation.metrics import (
    SIMILARITIES,
    accuracy_at,
    average_precision,
    best_accuracy,
    best_f1,
    is_constant,
    mrr,
    ndcg,
    pearson,
    ranks,
    recall_at,
    roc_auc,
    similarities,
    spearman,
)

# Few distinct values, so that ties are the rule.
TIED = st.sampled_from([-1.0, 0.0, 0.25, 0.25000001, 1.0, 3.0, 1e6])
LABELLED = st.lists(st.tuples(st.sampled_from([0, 1]), TIED), min_size=1, max_size=40)


@given(st.lists(st.tuples(TIED, TIED), min_size=2, max_size=40))
@settings(deadline=None)
def test_correlations_equal_scipy(rows: list[tuple[float, float]]) -> None:
    x, y = np.array(rows).T
    if is_constant(x) or is_constant(y):
        assert math.isnan(pearson(x, y))
        assert math.isnan(spearman(x, y))
        return
    assert pearson(x, y) == pytest.approx(scipy.stats.pearsonr(x, y).statistic, abs=1e-9)
    assert spearman(x, y) == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-12)
    assert spearman(x, y) == pytest.approx(spearman(y, x), abs=1e-12)


def test_ties_get_their_mean_rank() -> None:
    x = [3.0, 1.0, 3.0, 2.0, 3.0]
    assert ranks(x).tolist() == [4.0, 1.0, 4.0, 2.0, 4.0] == scipy.stats.rankdata(x).tolist()


def test_large_and_offset_data_equal_scipy() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=5000)
    for shift, scale in [(0, 1), (1e6, 1), (0, 1e-200), (0, 1e150)]:
        a, b = x * scale + shift, (x + rng.normal(size=5000)) * scale
        assert pearson(a, b) == pytest.approx(scipy.stats.pearsonr(a, b).statistic, abs=1e-9)
        assert spearman(a, b) == pytest.approx(scipy.stats.spearmanr(a, b).statistic, abs=1e-12)


@pytest.mark.parametrize("metric", [pearson, spearman])
@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]),
        ([1.0, 2.0, 3.0], [0.0, 0.0, 0.0]),
        ([1.0], [2.0]),
        ([], []),
        ([1.0, math.nan, 3.0], [1.0, 2.0, 3.0]),
        ([1.0, 2.0, 3.0], [1.0, 2.0, math.nan]),
        ([1.0, 1.0 + 2e-16, 1.0], [1.0, 2.0, 3.0]),  # rounding is not information
    ],
)
def test_undefined_correlations_are_nan_without_a_warning(metric: object, x: list[float], y: list[float]) -> None:
    assert callable(metric)
    assert math.isnan(metric(x, y))


def test_infinite_scores_have_ranks_but_no_pearson() -> None:
    x = [1.0, 2.0, -math.inf, 4.0]
    assert math.isnan(pearson(x, [1, 2, 0, 3]))
    assert spearman([0.5, math.inf, 0.1], [2, 3, 1]) == pytest.approx(1, abs=1e-12)
    assert math.isnan(spearman([math.inf, math.inf], [2, 3]))


def test_perfect_correlation_never_passes_1() -> None:
    for seed in range(50):
        x = np.random.default_rng(seed).normal(size=9)
        assert -1 <= pearson(x, -3 * x) <= pearson(x, 7 * x) <= 1


def test_correlations_need_equal_lengths() -> None:
    with pytest.raises(DataError, match=r"equal length, got shapes \(2,\) and \(3,\)"):
        pearson([1, 2], [1, 2, 3])


# --- similarities


def test_similarities_equal_sklearn() -> None:
    rng = np.random.default_rng(1)
    u, v = rng.normal(size=(20, 7)), rng.normal(size=(20, 7))
    np.testing.assert_allclose(similarities(u, v, "cosine"), np.diag(sklearn.metrics.pairwise.cosine_similarity(u, v)), atol=1e-12)
    np.testing.assert_allclose(similarities(u, v, "dot"), np.diag(u @ v.T), atol=1e-12)
    np.testing.assert_allclose(similarities(u, v, "euclidean"), -np.diag(sklearn.metrics.pairwise_distances(u, v)), atol=1e-12)
    np.testing.assert_allclose(similarities(u, v, "manhattan"), -np.diag(sklearn.metrics.pairwise_distances(u, v, metric="l1")), atol=1e-12)


def test_cosine_is_clamped_scale_free_and_0_for_zero_rows() -> None:
    rng = np.random.default_rng(2)
    u = rng.normal(size=(500, 384)).astype(np.float32)
    assert similarities(u, u, "cosine").max() <= 1
    assert similarities(u, -u, "cosine").min() >= -1
    for scale in (1e-300, 1e-30, 1e30, 1e300):
        np.testing.assert_allclose(similarities(u.astype(float) * scale, u, "cosine"), 1, atol=1e-12)
    zero = np.zeros((2, 3))
    assert similarities(zero, np.ones((2, 3)), "cosine").tolist() == [0, 0]
    assert similarities(zero, zero, "cosine").tolist() == [0, 0]


def test_larger_is_nearer_for_every_similarity() -> None:
    anchor = np.array([[1.0, 0.0]])
    for name in SIMILARITIES:
        assert similarities(anchor, [[0.9, 0.1]], name) > similarities(anchor, [[-0.9, 0.1]], name)


def test_float32_input_is_computed_in_float64() -> None:
    u = np.full((1, 3), 0.1, dtype=np.float32)
    assert similarities(u, u, "dot").dtype == np.float64
    assert similarities(u, u, "dot")[0] == 3 * np.float64(np.float32(0.1)) ** 2


def test_similarities_refuse_what_they_cannot_use() -> None:
    with pytest.raises(UsageError, match=r"similarity = 'cos': choose one of cosine, dot, euclidean, manhattan; did you mean 'cosine'"):
        similarities(np.ones((1, 2)), np.ones((1, 2)), "cos")
    with pytest.raises(DataError, match=r"equal shapes \(n, D\), got \(1, 2\) and \(1, 3\)"):
        similarities(np.ones((1, 2)), np.ones((1, 3)), "dot")
    assert np.isnan(similarities([[math.nan, 1.0], [1.0, 1.0]], np.ones((2, 2)), "cosine")).tolist() == [True, False]


# --- labels against scores


@given(LABELLED)
@settings(deadline=None)
def test_binary_metrics_equal_sklearn(rows: list[tuple[int, float]]) -> None:
    labels, scores = [y for y, _ in rows], [s for _, s in rows]
    positives = sum(labels)
    if positives:
        assert average_precision(labels, scores) == pytest.approx(sklearn.metrics.average_precision_score(labels, scores), abs=1e-12)
    else:
        assert math.isnan(average_precision(labels, scores))
    if 0 < positives < len(labels):
        assert roc_auc(labels, scores) == pytest.approx(sklearn.metrics.roc_auc_score(labels, scores), abs=1e-12)
    else:
        assert math.isnan(roc_auc(labels, scores))


@given(LABELLED)
@settings(deadline=None)
def test_best_thresholds_equal_a_search_over_all(rows: list[tuple[int, float]]) -> None:
    labels, scores = np.array([y for y, _ in rows]), np.array([s for _, s in rows])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        choices = [scores >= t for t in [*np.unique(scores), np.inf]]
        f1 = max(sklearn.metrics.f1_score(labels, c, zero_division=0) for c in choices)
        accuracy = max(sklearn.metrics.accuracy_score(labels, c) for c in choices)
    found = best_accuracy(labels, scores)
    assert found.value == pytest.approx(accuracy, abs=1e-12)
    assert math.isfinite(found.threshold)
    # The threshold that is printed gives the value that is printed.
    assert sklearn.metrics.accuracy_score(labels, scores >= found.threshold) == pytest.approx(accuracy, abs=1e-12)
    found = best_f1(labels, scores)
    if not labels.any():
        assert all(math.isnan(x) for x in found)
        return
    accepted = scores >= found.threshold
    assert found.value == pytest.approx(f1, abs=1e-12)
    assert sklearn.metrics.f1_score(labels, accepted) == pytest.approx(f1, abs=1e-12)
    assert sklearn.metrics.precision_score(labels, accepted) == pytest.approx(found.precision, abs=1e-12)
    assert sklearn.metrics.recall_score(labels, accepted) == pytest.approx(found.recall, abs=1e-12)


def test_continuous_scores_equal_sklearn() -> None:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 2, 3000)
    scores = np.round(labels * 0.3 + rng.normal(size=3000), 2)
    assert average_precision(labels, scores) == pytest.approx(sklearn.metrics.average_precision_score(labels, scores), abs=1e-12)
    assert roc_auc(labels, scores) == pytest.approx(sklearn.metrics.roc_auc_score(labels, scores), abs=1e-12)
    precision, recall, _ = sklearn.metrics.precision_recall_curve(labels, scores)
    assert best_f1(labels, scores).value == pytest.approx((2 * precision * recall / (precision + recall + 1e-300)).max(), abs=1e-12)


def test_the_order_of_rows_never_matters() -> None:
    rng = np.random.default_rng(4)
    labels, scores = rng.integers(0, 2, 60), rng.integers(0, 5, 60).astype(float)
    order = rng.permutation(60)
    for metric in (average_precision, roc_auc, best_f1, best_accuracy):
        assert metric(labels, scores) == pytest.approx(metric(labels[order], scores[order]), abs=1e-12)


def test_thresholds_lie_between_the_classes() -> None:
    best = best_f1([1, 1, 0, 0], [0.9, 0.8, 0.4, 0.1])
    assert best == pytest.approx((1.0, 0.6, 1.0, 1.0))
    assert best_accuracy([1, 1, 0, 0], [0.9, 0.8, 0.4, 0.1]).threshold == pytest.approx(0.6)
    close = np.nextafter(0.5, 1)
    assert best_f1([1, 0], [close, 0.5]).threshold == close  # no float between: the score itself


def test_accepting_nothing_can_be_the_most_accurate() -> None:
    best = best_accuracy([0, 0, 1, 0], [0.9, 0.8, 0.7, 0.6])
    assert best.value == 0.75
    assert best.threshold > 0.9
    assert best.recall == 0
    assert best_accuracy([0, 0], [0.2, 0.1]).value == 1


@pytest.mark.parametrize("metric", [average_precision, roc_auc])
def test_undefined_binary_scores_are_nan(metric: object) -> None:
    assert callable(metric)
    assert math.isnan(metric([], []))
    assert math.isnan(metric([0], [0.5]))
    assert math.isnan(metric([0, 1], [0.5, math.nan]))


def test_undefined_best_values_are_nan() -> None:
    for metric in (best_f1, best_accuracy):
        assert math.isnan(metric([], []).value)
        assert math.isnan(metric([0, 1], [0.5, math.nan]).value)


def test_labels_other_than_0_and_1_are_named_by_row() -> None:
    with pytest.raises(DataError, match="row 3: label 2; these metrics need labels 0 and 1"):
        average_precision([0, 1, 2], [0.1, 0.2, 0.3])


# --- ranked lists


@given(st.lists(st.sampled_from([0, 0, 1, 2, 3]), min_size=2, max_size=20), st.integers(1, 25), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_ndcg_equals_sklearn(gains: list[int], k: int, random: object) -> None:
    """sentence-transformers#3450: parity with an independent NDCG."""
    documents = [f"d{i}" for i in range(len(gains))]
    ranked = documents[:]
    random.shuffle(ranked)  # type: ignore[attr-defined]
    judged = {d: float(g) for d, g in zip(documents, gains, strict=True) if g}
    if not judged:
        assert math.isnan(ndcg(ranked, judged, k))
        return
    scores = [[-float(ranked.index(d)) for d in documents]]
    assert ndcg(ranked, judged, k) == pytest.approx(sklearn.metrics.ndcg_score([gains], scores, k=k), abs=1e-12)


def test_gains_are_the_judgements_themselves() -> None:
    # trec_eval: 1/1 + 2/log2(3) over 2/1 + 1/log2(3); with 2^gain - 1 it would be 0.797.
    assert ndcg(["a", "b"], {"a": 1, "b": 2}, 10) == pytest.approx((1 + 2 / math.log2(3)) / (2 + 1 / math.log2(3)))


def test_mrr_counts_the_first_hit() -> None:
    """sentence-transformers#678: with relevant documents at ranks 3 and 1 the reciprocal rank is 1."""
    assert mrr(["a", "x", "b"], {"a": 1, "b": 1}, 10) == 1
    assert mrr(["x", "y", "b"], {"b": 1}, 10) == pytest.approx(1 / 3)
    assert mrr(["x", "y", "b"], {"b": 1}, 2) == 0


def test_recall_and_accuracy() -> None:
    judged = {"a": 1.0, "b": 2.0, "c": 0.0, "d": -1.0}  # 0 and less: judged, and not relevant
    assert recall_at(["a", "c", "d"], judged, 3) == 0.5
    assert recall_at(["a", "b"], judged, 1) == 0.5
    assert accuracy_at(["c", "b"], judged, 1) == 0
    assert accuracy_at(["c", "b"], judged, 2) == 1
    assert ndcg(["d", "c"], judged, 2) == 0
    for metric in (ndcg, mrr, recall_at, accuracy_at):
        assert math.isnan(metric(["c"], {"c": 0.0}, 1))
        assert metric([], judged, 1) == 0


@pytest.mark.parametrize("metric", [ndcg, mrr, recall_at, accuracy_at])
def test_ranked_lists_are_checked(metric: object) -> None:
    assert callable(metric)
    with pytest.raises(DataError, match="'a' stands twice"):
        metric(["a", "b", "a"], {"a": 1}, 3)
    with pytest.raises(DataError, match="k = 0"):
        metric(["a"], {"a": 1}, 0)
