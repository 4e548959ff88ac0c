"""Classification, clustering, reranking and retrieval against scikit-learn and pytrec_eval, on random and on adversarial inputs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytrec_eval
import sklearn.cluster
import sklearn.metrics
from evaluation_fakes import FakeEncoder
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid

from twinvec.errors import DataError, UsageError
from twinvec.evaluation.classification import folds_of, nearest_centroid, unit
from twinvec.evaluation.clustering import agreement_of, k_means
from twinvec.evaluation.evaluate import evaluate
from twinvec.evaluation.logistic import fit_logistic
from twinvec.evaluation.metrics import average_precision_at, mrr, ndcg, precision_at, recall_at, unjudged_at
from twinvec.evaluation.reranking import score_reranking
from twinvec.evaluation.weighted import one


def run(data: Any, encoder: FakeEncoder | None = None, **options: Any) -> dict[str, Any]:
    result = evaluate(encoder or FakeEncoder(), data, progress=False, **options)
    json.dumps(result, allow_nan=False)
    return result


# --- ranked lists against trec_eval


def random_run(seed: int, ties: bool = False) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    rng = np.random.default_rng(seed)
    documents = [f"d{i:02}" for i in range(40)]
    qrels, found = {}, {}
    for q in range(12):
        judged = rng.choice(documents, rng.integers(1, 15), replace=False)
        qrels[f"q{q}"] = {str(d): int(rng.integers(0, 4)) for d in judged}
        qrels[f"q{q}"][str(judged[0])] = 1
        ranked = rng.choice(documents, rng.integers(1, 30), replace=False)
        found[f"q{q}"] = {str(d): float(rng.integers(0, 3) if ties else rng.random()) for d in ranked}
    return qrels, found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("k", [1, 3, 10, 100])
def test_ranking_metrics_equal_trec_eval(seed: int, k: int) -> None:
    qrels, found = random_run(seed, ties=seed == 3)
    measures = {f"ndcg_cut.{k}", f"map_cut.{k}", f"P.{k}", f"recall.{k}", "recip_rank"}
    wanted = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(found)
    for query, scores in found.items():
        ranked = sorted(scores, key=lambda d: (scores[d], d), reverse=True)  # trec_eval breaks ties by id, from the end
        gains = {d: float(g) for d, g in qrels[query].items()}
        assert ndcg(ranked, gains, k) == pytest.approx(wanted[query][f"ndcg_cut_{k}"], abs=1e-9)
        assert average_precision_at(ranked, gains, k) == pytest.approx(wanted[query][f"map_cut_{k}"], abs=1e-9)
        assert precision_at(ranked, gains, k) == pytest.approx(wanted[query][f"P_{k}"], abs=1e-9)
        assert recall_at(ranked, gains, k) == pytest.approx(wanted[query][f"recall_{k}"], abs=1e-9)
        assert mrr(ranked, gains, 100) == pytest.approx(wanted[query]["recip_rank"], abs=1e-9)


def test_mrr_is_the_first_hit_not_the_last() -> None:
    assert mrr(["a", "x", "b"], {"a": 1.0, "b": 1.0}, 10) == 1.0  # ranks [3, 1]


def test_empty_lists_and_unjudged_documents() -> None:
    assert (precision_at([], {"a": 1.0}, 5), average_precision_at([], {"a": 1.0}, 5)) == (0.0, 0.0)
    assert math.isnan(precision_at(["a"], {"a": 0.0}, 5))
    assert unjudged_at(["a", "x", "b", "y"], {"a": 1.0, "b": 0.0}, 4) == 0.5
    assert math.isnan(unjudged_at([], {"a": 1.0}, 4))


def test_unjudged_documents_are_reported(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"_id": f"d{i}", "text": f"word{i} common"}) + "\n" for i in range(8)))
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "word1 common"}\n')
    (tmp_path / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td1\t1\n")
    result = run(tmp_path, ks=(1, 4), bootstrap=20, errors=5)
    assert result["unjudged@1"] == 0.0
    assert result["unjudged@4"] == 0.75
    assert result["precision@4"] == 0.25
    assert "intervals" in result
    assert result["intervals"] == {}, "one query has no interval"
    assert result["errors"] == []


# --- classification


@pytest.mark.parametrize("classes", [2, 5])
def test_logistic_regression_is_sklearns(classes: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 8))
    y = (x[:, :classes] + rng.normal(size=(200, classes))).argmax(1)
    for c in (0.1, 1.0, 10.0):
        mine = fit_logistic(x, y, classes, c=c)
        wanted = LogisticRegression(C=c, tol=1e-9, max_iter=5000)
        wanted.fit(x, y)
        assert mine.converged
        assert (mine.classes(x) == wanted.predict(x)).mean() > 0.99
        probabilities = np.exp(mine.logits(x) - mine.logits(x).max(1, keepdims=True))
        probabilities /= probabilities.sum(1, keepdims=True)
        np.testing.assert_allclose(probabilities, wanted.predict_proba(x), atol=2e-4)


def test_nearest_centroid_is_sklearns_on_unit_vectors() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(90, 6)), rng.integers(0, 3, 90)
    test = rng.normal(size=(40, 6))
    mine = nearest_centroid(x, y, test, 3)
    fitted = NearestCentroid().fit(unit(x), y)
    # By cosine, so sklearn's centroids on the sphere too.
    fitted.centroids_ = unit(fitted.centroids_)
    assert (mine == fitted.predict(unit(test))).all()
    assert 3 not in nearest_centroid(x, y, test, 4), "a class without rows is never chosen"


def test_folds_are_stratified_and_seeded() -> None:
    labels = np.repeat([0, 1, 2], [20, 7, 3])
    fold = folds_of(labels, 5, 0)
    assert (np.bincount(fold) == 6).all()
    assert (np.bincount(fold[labels == 0]) == 4).all()
    assert (fold == folds_of(labels, 5, 0)).all()
    assert (fold != folds_of(labels, 5, 1)).any()


CLASSES = {"money": "pay card bank fee", "parcel": "box post street door", "login": "password mail key account"}


def classes_file(path: Path, count: int, seed: int, names: list[str] | None = None) -> Path:
    rng = np.random.default_rng(seed)
    lines = ["text,label"]
    for i in range(count):
        name = (names or list(CLASSES))[i % len(names or CLASSES)]
        lines.append(f"{' '.join(rng.choice(CLASSES[name].split(), 3))} n{rng.integers(50)},{name}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_classification_by_a_training_file_and_by_folds(tmp_path: Path) -> None:
    test, train = classes_file(tmp_path / "test.csv", 60, 0), classes_file(tmp_path / "train.csv", 120, 1)
    encoder = FakeEncoder()
    result = run(test, encoder, train=train, bootstrap=100, errors=3)
    assert (result["task"], result["classes"], result["train_rows"]) == ("classification", 3, 120)
    assert result["accuracy_logistic"] > 0.8 > result["accuracy_majority"]
    # The same by scikit-learn, end to end.
    vectors, labels = {}, {}
    for name, path in (("test", test), ("train", train)):
        cells = [line.split(",") for line in path.read_text().splitlines()[1:]]
        vectors[name], labels[name] = np.stack([encoder.vector(text) for text, _ in cells]), [label for _, label in cells]
    wanted = LogisticRegression(C=1.0, max_iter=2000).fit(vectors["train"], labels["train"]).predict(vectors["test"])
    assert result["accuracy_logistic"] == pytest.approx(sklearn.metrics.accuracy_score(labels["test"], wanted), abs=0.02)
    low, high = result["intervals"]["accuracy_logistic"]
    assert low <= result["accuracy_logistic"] <= high
    assert all(error["label"] != error["found"] for error in result["errors"])
    folded = run(test)
    assert any("no training file" in note for note in folded["notes"])
    assert run(test) == folded, "seeded"


def test_classes_are_matched_by_name_not_by_number(tmp_path: Path) -> None:
    test = classes_file(tmp_path / "test.csv", 30, 0, ["login", "money"])
    train = classes_file(tmp_path / "train.csv", 60, 1, ["money", "parcel", "login"])
    assert run(test, train=train)["accuracy_nearest"] > 0.8
    unknown = classes_file(tmp_path / "few.csv", 60, 1, ["money", "parcel"])
    result = run(test, train=unknown)
    assert any("1 classes are not in the training rows (first: 'login')" in note for note in result["notes"])
    assert result["accuracy_nearest"] <= 0.5


def test_vectors_that_tell_nothing_apart_score_by_chance(tmp_path: Path) -> None:
    class Flat(FakeEncoder):
        def vector(self, text: str) -> Any:
            return np.ones(8, np.float32)

    result = run(classes_file(tmp_path / "test.csv", 60, 0), Flat())
    assert result["accuracy_nearest"] == pytest.approx(1 / 3, abs=0.05)
    clustered = run(tmp_path / "test.csv", Flat(), task="clustering")
    assert clustered["adjusted_rand_index"] == pytest.approx(0, abs=0.05)
    assert any("every text has the same vector" in note for note in clustered["notes"])


# --- clustering


@pytest.mark.parametrize("seed", range(3))
def test_agreement_equals_sklearn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    y, c = rng.integers(0, 4, 100), rng.integers(0, 6, 100)
    found = one(agreement_of(y, c), 100)
    h, k, v = sklearn.metrics.homogeneity_completeness_v_measure(y, c)
    assert (found["homogeneity"], found["completeness"], found["v_measure"]) == pytest.approx((h, k, v))
    assert found["adjusted_rand_index"] == pytest.approx(sklearn.metrics.adjusted_rand_score(y, c))


@pytest.mark.parametrize(
    ("y", "c"), [([0, 0, 1, 1], [1, 1, 0, 0]), ([0, 0, 0], [0, 0, 0]), ([0, 1, 2], [0, 0, 0]), ([0, 0, 0], [0, 1, 2]), ([0], [0]), ([0, 1], [0, 1])]
)
def test_agreement_on_the_edges_equals_sklearn(y: list[int], c: list[int]) -> None:
    found = one(agreement_of(y, c), len(y))
    assert found["v_measure"] == pytest.approx(sklearn.metrics.v_measure_score(y, c))
    assert found["adjusted_rand_index"] == pytest.approx(sklearn.metrics.adjusted_rand_score(y, c))


def test_k_means_is_as_good_as_sklearns_and_seeded() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(40, 5)) + 4 * rng.normal(size=5) for _ in range(6)])
    mine = k_means(x, 6, seed=1)
    inertia = sum(((x[mine == c] - x[mine == c].mean(0)) ** 2).sum() for c in range(6))
    wanted = sklearn.cluster.KMeans(6, n_init=10, random_state=0).fit(x).inertia_
    assert inertia == pytest.approx(wanted, rel=0.05)
    assert (mine == k_means(x, 6, seed=1)).all()
    assert set(k_means(np.zeros((5, 2)), 3)) <= {0, 1, 2}
    assert len(set(k_means(x, len(x)))) == len(x)
    with pytest.raises(DataError, match="k-means: 9 clusters"):
        k_means(np.zeros((5, 2)), 9)


def test_clustering_of_a_file(tmp_path: Path) -> None:
    result = run(classes_file(tmp_path / "x.csv", 60, 0), task="clustering", bootstrap=50, errors=2)
    assert (result["task"], result["clusters"]) == ("clustering", 3)
    assert 0 < result["v_measure"] <= 1
    assert result["intervals"]["v_measure"][0] <= result["intervals"]["v_measure"][1]


# --- reranking


def test_reranking_equals_trec_eval() -> None:
    rng = np.random.default_rng(0)
    scores = [rng.random(n) for n in (5, 9, 30)]
    relevant = [[bool(x) for x in rng.random(len(s)) < 0.4] for s in scores]
    for right in relevant:
        right[0], right[1] = True, False
    found = score_reranking(scores, relevant, (3, 10))
    qrels = {str(q): {str(i): int(x) for i, x in enumerate(right)} for q, right in enumerate(relevant)}
    ranked = {str(q): {str(i): float(x) for i, x in enumerate(s)} for q, s in enumerate(scores)}
    wanted = pytrec_eval.RelevanceEvaluator(qrels, {"map", "ndcg_cut.3,10"}).evaluate(ranked)
    for q in range(3):
        assert found["map"][q] == pytest.approx(wanted[str(q)]["map"])
        assert found["ndcg@3"][q] == pytest.approx(wanted[str(q)]["ndcg_cut_3"])
        assert found["map"][q] == pytest.approx(sklearn.metrics.average_precision_score(relevant[q], scores[q]))


def test_a_tie_counts_against_the_answer() -> None:
    assert score_reranking([np.ones(4)], [[True, False, False, False]], (1,))["map"][0] == 0.25
    assert score_reranking([np.ones(4)], [[True, False, False, False]], (1,))["mrr@1"][0] == 0.0


def test_reranking_lists_and_pairs_are_the_same_thing(tmp_path: Path) -> None:
    rows = [("a dog", ["the dog", "dog a"], ["blue sky", "a cat", "x"]), ("red sea", ["sea red"], ["dog"]), ("idle", [], ["x"]), ("all", ["y"], [])]
    lists = tmp_path / "lists.jsonl"
    lists.write_text("".join(json.dumps({"query": q, "positive": p, "negative": n}) + "\n" for q, p, n in rows))
    pairs = tmp_path / "pairs.csv"
    cells = [f"{q},{t},{y}" for q, p, n in rows for y, texts in ((1, p), (0, n)) for t in texts]
    pairs.write_text("query,passage,label\n" + "\n".join(cells) + "\n")
    first, second = run(lists, errors=5), run(pairs, task="reranking", errors=5)
    assert first["task"] == second["task"] == "reranking"
    assert first["rows"] == second["rows"] == 2
    for key in ("map", "mrr@10", "ndcg@10", "texts_ranked"):
        assert first[key] == second[key]
    assert any("2 queries have no answer, or nothing else than answers" in note for note in first["notes"])
    assert run(pairs)["task"] == "pairs", "only when asked for"


def test_plain_triplets_with_lists_stay_triplets(tmp_path: Path) -> None:
    path = tmp_path / "bge.jsonl"
    path.write_text("".join(json.dumps({"query": f"q{i}", "pos": ["p"], "neg": ["n", "m"]}) + "\n" for i in range(3)))
    assert run(path)["task"] == "triplets"
    assert run(path, task="reranking")["task"] == "reranking"


def test_reranking_uses_the_models_two_prompts(tmp_path: Path) -> None:
    path = tmp_path / "lists.jsonl"
    path.write_text('{"query": "q", "pos": ["p", "r"], "neg": ["n"]}\n')
    result = run(path, FakeEncoder({"query": "query: ", "passage": "passage: "}))
    assert result["encode"]["prompts"] == {"query": "query: ", "document": "passage: "}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"task": "clustering"}, DataError, "clustering cannot be measured in a file of kind 'scores', only sts"),
        ({"task": "magic"}, UsageError, "task = 'magic': choose one of sts"),
        ({"train": "x.csv"}, UsageError, "train: rows to learn from are for classification"),
        ({"by": "colour"}, UsageError, "by = 'colour': choose one of subset, sentence1"),
        ({"bootstrap": -1}, UsageError, "bootstrap = -1"),
        ({"level": 95}, UsageError, "level = 95: wanted a confidence between 0 and 1"),
    ],
)
def test_wrong_options(options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("sentence1,sentence2,score,subset\na b,b c,1,s\nc,d,2,t\ne f,f,3,s\n")
    with pytest.raises(error, match=message):
        run(path, **options)
