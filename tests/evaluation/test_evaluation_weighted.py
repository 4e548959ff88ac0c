"""Every figure as a function of weights: all ones give the score, whole weights give the score of the rows written out so often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.metrics

from twinvec.data.dataset import Dataset
from twinvec.evaluation.classification import macro_f1_of, measure_classification
from twinvec.evaluation.clustering import agreement_of, measure_clustering
from twinvec.evaluation.measured import Measured
from twinvec.evaluation.nli import measure_nli
from twinvec.evaluation.pairs import measure_pairs
from twinvec.evaluation.rows import Rows
from twinvec.evaluation.sts import measure_sts
from twinvec.evaluation.triplets import measure_triplets
from twinvec.evaluation.weighted import Figures, one, together

N = 60


def vectors(seed: int, n: int = N) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 6)).astype(np.float32)


def rows(kind: Any, labels: list[Any] | None, columns: int = 2, pick: np.ndarray | None = None, **more: Any) -> Rows:
    names = {1: ["text"], 2: ["sentence1", "sentence2"], 3: ["anchor", "positive", "negative"]}[columns]
    found = {name: vectors(i) for i, name in enumerate(names)}
    if columns > 1:
        found[names[1]] = found[names[0]] + vectors(9)
    chosen = np.arange(N) if pick is None else pick
    data = Dataset(
        kind=kind, columns={name: [f"{name} {i}" for i in chosen] for name in names},
        labels=None if labels is None else [labels[i] for i in chosen], **more,
    )  # fmt: skip
    return Rows(data, {name: value[chosen] for name, value in found.items()})


rng = np.random.default_rng(3)
CASES: dict[str, tuple[Callable[[Rows], Measured], Any, list[Any] | None, int]] = {
    "sts": (measure_sts, "scores", [float(x) for x in rng.integers(0, 6, N)], 2),
    "pairs": (measure_pairs, "pairs", [int(x) for x in rng.integers(0, 2, N)], 2),
    "nli": (measure_nli, "nli", [int(x) for x in rng.integers(0, 3, N)], 2),
    "triplets": (measure_triplets, "triplets", None, 3),
}


@pytest.mark.parametrize("name", CASES)
def test_all_ones_give_the_scores_and_weights_give_repeated_rows(name: str) -> None:
    measure, kind, labels, columns = CASES[name]
    found = measure(rows(kind, labels, columns))
    values = one(found.figures, found.units)
    for key, value in values.items():
        assert value == pytest.approx(found.scores[key], abs=1e-12), key
    assert found.headline in values
    # Rows counted 0, 1, 2 or 3 times are those rows written out.
    weights = np.random.default_rng(1).integers(0, 4, size=(3, N))
    drawn = found.figures(weights.astype(np.float64))
    for b, weight in enumerate(weights):
        again = measure(rows(kind, labels, columns, pick=np.repeat(np.arange(N), weight)))
        for key in values:
            if "threshold" not in key:  # halfway to the next score of all rows, drawn or not
                assert drawn[key][b] == pytest.approx(again.scores[key], abs=1e-9), (key, b)


@pytest.mark.parametrize("name", CASES)
def test_a_part_of_the_rows_is_the_score_of_those_rows(name: str) -> None:
    measure, kind, labels, columns = CASES[name]
    found = measure(rows(kind, labels, columns))
    some = np.arange(5, 45)
    alone = measure(rows(kind, labels, columns, pick=some))
    assert one(found.figures.only(found.headline), N, some) == {found.headline: pytest.approx(alone.scores[found.headline], abs=1e-12)}


def test_classification_and_clustering_figures_follow_weights() -> None:
    labels, guess = rng.integers(0, 5, N), rng.integers(0, 5, N)
    weights = rng.integers(0, 3, size=(4, N))
    f1, agree = macro_f1_of(labels, guess, 5, "f1"), agreement_of(labels, guess)
    drawn, agreed = f1(weights.astype(float)), agree(weights.astype(float))
    for b, weight in enumerate(weights):
        y, c = np.repeat(labels, weight), np.repeat(guess, weight)
        assert drawn["f1"][b] == pytest.approx(sklearn.metrics.f1_score(y, c, average="macro"))
        assert agreed["v_measure"][b] == pytest.approx(sklearn.metrics.v_measure_score(y, c))
        assert agreed["adjusted_rand_index"][b] == pytest.approx(sklearn.metrics.adjusted_rand_score(y, c))


@pytest.mark.parametrize("measure", [measure_classification, measure_clustering])
def test_measured_texts_with_classes_agree_with_their_figures(measure: Callable[[Rows], Measured]) -> None:
    found = measure(rows("labelled", [int(x) for x in np.arange(N) % 3], 1, label_names=["a", "b", "c"]))
    for key, value in one(found.figures, N).items():
        assert value == pytest.approx(found.scores[key], abs=1e-12)


def test_draws_of_one_value_only_are_undefined_not_lucky() -> None:
    found = measure_sts(rows("scores", CASES["sts"][2]))
    single = np.zeros((1, N))
    single[0, 3] = 50  # one row drawn every time: no correlation
    assert all(np.isnan(value[0]) for value in found.figures(single).values())
    found = measure_pairs(rows("pairs", CASES["pairs"][2]))
    labels = np.asarray(CASES["pairs"][2])
    assert np.isnan(found.figures(labels[None].astype(float))["roc_auc_cosine"][0]), "positives only"


def test_only_computes_what_it_is_asked_for() -> None:
    def never(weights: Any) -> dict[str, Any]:
        raise AssertionError

    figures = together(Figures.of(["a"], lambda w: {"a": w.sum(1)}), Figures.of(["b", "c"], never))
    assert figures.names == ["a", "b", "c"]
    assert figures.only("a")(np.ones((2, 3)))["a"].tolist() == [3, 3]
