from __future__ import annotations

import json
import math

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from twinvec.errors import DataError
from twinvec.evaluation.metrics import SIMILARITIES, similarities
from twinvec.evaluation.pairs import score_pairs
from twinvec.evaluation.retrieval import METRICS, score_retrieval
from twinvec.evaluation.sts import score_sts


def sides(n: int = 50, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    u = rng.normal(size=(n, 8)).astype(np.float32)
    return u, u + rng.normal(size=(n, 8)).astype(np.float32) * rng.random((n, 1), dtype=np.float32) * 3


# --- STS


def test_sts_equals_scipy_for_all_eight_keys() -> None:
    u, v = sides()
    gold = np.round(np.random.default_rng(1).random(50) * 5)
    result = score_sts(u, v, gold)
    assert set(result) == {f"{c}_{s}" for c in ("spearman", "pearson") for s in SIMILARITIES} | {"notes"}
    for name in SIMILARITIES:
        scores = similarities(u, v, name)
        assert result[f"spearman_{name}"] == pytest.approx(scipy.stats.spearmanr(scores, gold).statistic, abs=1e-12)
        assert result[f"pearson_{name}"] == pytest.approx(scipy.stats.pearsonr(scores, gold).statistic, abs=1e-12)
    assert result["notes"] == []


def test_sts_does_not_depend_on_the_range_of_gold() -> None:
    u, v = sides()
    gold = np.random.default_rng(1).random(50)
    a, b = score_sts(u, v, gold), score_sts(u, v, gold * 4 + 1)
    assert a.pop("notes") == b.pop("notes") == []
    assert a == pytest.approx(b, abs=1e-12)


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ("constant gold", "all 10 gold scores are 2"),
        ("one row", "one row"),
        ("collapsed", "cosine: all 10 scores are equal"),
        ("nan", "first at row 4"),
    ],
)
def test_sts_says_why_a_value_is_missing(change: str, note: str) -> None:
    u, v = sides(10)
    gold = np.arange(10.0)
    if change == "constant gold":
        gold[:] = 2
    elif change == "one row":
        u, v, gold = u[:1], v[:1], gold[:1]
    elif change == "collapsed":
        u[:], v[:] = u[0], u[0]
    else:
        v[3, 2] = math.nan
    result = score_sts(u, v, gold)
    assert result["spearman_cosine"] is None
    assert result["pearson_cosine"] is None
    assert any(note in line for line in result["notes"])
    json.dumps(result, allow_nan=False)


def test_sts_refuses_what_it_cannot_use() -> None:
    u, v = sides(4)
    with pytest.raises(DataError, match=r"n gold scores, got \(4, 8\), \(4, 8\) and \(3,\)"):
        score_sts(u, v, [1, 2, 3])
    with pytest.raises(DataError, match="row 2 of the gold scores is nan"):
        score_sts(u, v, [1, math.nan, 3, 4])
    with pytest.raises(DataError, match="no rows"):
        score_sts(u[:0], v[:0], [])


# --- pairs


def test_pairs_equal_sklearn_and_scipy() -> None:
    u, v = sides(200)
    labels = (np.random.default_rng(1).random(200) < 1 / (1 + np.exp(-4 * similarities(u, v, "cosine")))).astype(int)
    result = score_pairs(u, v, labels)
    assert result["positives"] + result["negatives"] == 200
    for name in SIMILARITIES:
        scores = similarities(u, v, name)
        assert result[f"average_precision_{name}"] == pytest.approx(sklearn.metrics.average_precision_score(labels, scores), abs=1e-12)
        assert result[f"roc_auc_{name}"] == pytest.approx(sklearn.metrics.roc_auc_score(labels, scores), abs=1e-12)
        accepted = scores >= result[f"best_f1_threshold_{name}"]
        assert result[f"best_f1_{name}"] == pytest.approx(sklearn.metrics.f1_score(labels, accepted), abs=1e-12)
        assert result[f"best_f1_precision_{name}"] == pytest.approx(sklearn.metrics.precision_score(labels, accepted), abs=1e-12)
        assert result[f"best_f1_recall_{name}"] == pytest.approx(sklearn.metrics.recall_score(labels, accepted), abs=1e-12)
        accepted = scores >= result[f"best_accuracy_threshold_{name}"]
        assert result[f"best_accuracy_{name}"] == pytest.approx(sklearn.metrics.accuracy_score(labels, accepted), abs=1e-12)
    assert result["pearson_cosine"] == pytest.approx(scipy.stats.pearsonr(similarities(u, v, "cosine"), labels).statistic, abs=1e-12)
    assert result["spearman_cosine"] == pytest.approx(scipy.stats.spearmanr(similarities(u, v, "cosine"), labels).statistic, abs=1e-12)
    assert result["notes"] == []


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ("all ones", "all 10 labels are 1"),
        ("all zeros", "all 10 labels are 0"),
        ("collapsed", "cosine: all 10 scores are equal"),
        ("nan", "first at row 1"),
    ],
)
def test_pairs_leave_out_what_could_win_by_luck(change: str, note: str) -> None:
    u, v = sides(10)
    labels = np.arange(10) % 2
    if change == "all ones":
        labels[:] = 1
    elif change == "all zeros":
        labels[:] = 0
    elif change == "collapsed":
        u[:], v[:] = u[0], u[0]
    else:
        u[0, 0] = math.inf
    result = score_pairs(u, v, labels)
    for key in ("average_precision_cosine", "best_f1_cosine", "best_accuracy_cosine", "roc_auc_cosine", "pearson_cosine"):
        assert result[key] is None, key
    assert any(note in line for line in result["notes"])
    json.dumps(result, allow_nan=False)


def test_a_pair_with_an_empty_text_is_no_accident() -> None:
    u, v = sides(10)
    u[4] = 0
    result = score_pairs(u, v, np.arange(10) % 2)
    assert result["notes"] == []
    assert result["roc_auc_cosine"] is not None


def test_pairs_refuse_other_labels() -> None:
    u, v = sides(3)
    with pytest.raises(DataError, match=r"row 3: label 0\.5; pairs need labels 0 and 1"):
        score_pairs(u, v, [0, 1, 0.5])


# --- retrieval


def test_retrieval_is_a_mean_over_the_judged_queries() -> None:
    ranked = {"q1": ["a", "b", "c"], "q2": ["c", "b", "a"], "q3": ["a"], "extra": ["a"]}
    qrels = {"q1": {"a": 1.0}, "q2": {"a": 1.0}, "q3": {"b": 0.0}, "q4": {"a": 2.0}}
    result = score_retrieval(ranked, qrels)
    assert result["queries"] == 3
    assert result["mrr@10"] == pytest.approx((1 + 1 / 3 + 0) / 3)
    assert result["ndcg@10"] == pytest.approx((1 + 1 / math.log2(4) + 0) / 3)
    assert result["recall@3"] == result["accuracy@3"] == pytest.approx(2 / 3)
    assert result["accuracy@1"] == pytest.approx(1 / 3)
    assert set(result) == {f"{m}@{k}" for m in METRICS for k in (1, 3, 10)} | {"queries", "notes"}
    assert [line.split()[0] for line in result["notes"]] == ["1", "1", "1"]


def test_retrieval_names_the_cut_off_of_every_key() -> None:
    """sentence-transformers PR#2427: one table mixed MRR@5 with MRR@10."""
    ranked = {"q": [f"d{i}" for i in range(10)]}
    result = score_retrieval(ranked, {"q": {"d7": 1.0}}, ks=(5, 10))
    assert result["mrr@5"] == 0
    assert result["mrr@10"] == pytest.approx(1 / 8)


def test_retrieval_refuses_what_it_cannot_use() -> None:
    with pytest.raises(DataError, match="no query has a relevant document"):
        score_retrieval({"q": ["a"]}, {"q": {"a": 0.0}})
    with pytest.raises(DataError, match="ks is empty"):
        score_retrieval({"q": ["a"]}, {"q": {"a": 1.0}}, ks=())
    with pytest.raises(DataError, match="'a' stands twice"):
        score_retrieval({"q": ["a", "a"]}, {"q": {"a": 1.0}})
