"""Fusing two lists: against the formulas written out, and the choice of weights."""

from __future__ import annotations

import random
from typing import Any

import pytest

from twinvec.errors import DataError, UsageError
from twinvec.search.fusion import Fusion, ndcg_at
from twinvec.search.tuning import LEAST, choose_fusion

DENSE = [("a", 0.9), ("b", 0.8), ("c", 0.5)]
WORDS = [("c", 12.0), ("d", 6.0)]


def lists(rng: random.Random, n: int = 40) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
    def one(k: int) -> list[tuple[str, float]]:
        return sorted(((name, rng.random()) for name in rng.sample([f"d{i:02}" for i in range(n)], k)), key=lambda pair: (-pair[1], pair[0]))

    return one(rng.randrange(0, n)), one(rng.randrange(0, n))


def test_reciprocal_ranks_are_those_of_the_paper() -> None:
    found = dict(Fusion().fuse(DENSE, WORDS, 10))
    assert found == pytest.approx({"a": 1 / 61, "b": 1 / 62, "c": 1 / 63 + 1 / 61, "d": 1 / 62}, rel=1e-15)
    assert [name for name, _ in Fusion().fuse(DENSE, WORDS, 10)] == ["c", "a", "b", "d"]  # b and d tie: by id


def test_weighted_scores() -> None:
    found = dict(Fusion("weighted", 0.6).fuse(DENSE, WORDS, 10))
    assert found == pytest.approx({"a": 0.6, "b": 0.6 * 0.75, "c": 0.4 * 1.0, "d": 0.4 * 0.5})


def test_one_side_alone_keeps_its_order() -> None:
    for method in ("rrf", "weighted"):
        assert [name for name, _ in Fusion(method).fuse(DENSE, [], 9)] == ["a", "b", "c"]
        assert [name for name, _ in Fusion(method).fuse([], WORDS, 9)] == ["c", "d"]
        assert Fusion(method).fuse([], [], 9) == []
        assert [name for name, _ in Fusion(method, 1.0).fuse(DENSE, WORDS, 3)][:2] == ["a", "b"]
        assert next(iter(Fusion(method, 0.0).fuse(DENSE, WORDS, 3)))[0] == "c"
    assert dict(Fusion("weighted").fuse([("a", 0.3)], [], 1)) == {"a": 0.5}  # a list of one is at the top of its scale


@pytest.mark.parametrize("fusion", [Fusion(depth=5), Fusion("weighted", 0.3, depth=5), Fusion("rrf", 0.9, depth=3), Fusion("weighted", 1.0, depth=1)])
def test_each_document_once_falling_scores_and_top_k_is_a_prefix(fusion: Fusion) -> None:
    rng = random.Random(3)
    for _ in range(50):
        dense, words = lists(rng)
        whole = fusion.fuse(dense, words, 1000)
        names = [name for name, _ in whole]
        assert len(names) == len(set(names)) == len({name for name, _ in dense + words})
        assert whole == sorted(whole, key=lambda pair: (-pair[1], pair[0]))
        for k in (1, 4, 7, 20):
            # A search for k fetches max(k, depth) of each list.
            take = max(k, fusion.depth)
            assert fusion.fuse(dense[:take], words[:take], k) == whole[:k]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown method": ({"method": "sum"}, "fusion method = 'sum': choose one of rrf, weighted"),
    "a weight above 1": ({"dense": 1.5}, "fusion dense = 1.5: wanted a number from 0 to 1"),
    "a weight that is no number": ({"dense": "half"}, "fusion dense = 'half': wanted a number"),
    "NaN": ({"dense": float("nan")}, "fusion dense = nan: wanted a number"),
    "a negative constant": ({"constant": -1}, "fusion constant = -1"),
    "no depth": ({"depth": 0}, "fusion depth = 0: wanted a whole number"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings(name: str) -> None:
    values, message = BAD[name]
    with pytest.raises(UsageError, match=message):
        Fusion(**values)


def test_settings_travel_as_json() -> None:
    fusion = Fusion("weighted", 0.25, depth=40)
    assert Fusion.from_dict(fusion.to_dict()) == fusion
    for wrong in ([1], {"weights": 3}, None):
        with pytest.raises(UsageError, match="is no setting of a fusion"):
            Fusion.from_dict(wrong)


def test_ndcg_equals_the_evaluation_room() -> None:
    from twinvec.evaluation.metrics import ndcg

    rng = random.Random(4)
    for _ in range(50):
        names = [f"d{i}" for i in range(20)]
        grades = {name: float(rng.choice([0, 0, 1, 2])) for name in rng.sample(names, 8)} | {"far": 1.0}
        ranked = rng.sample(names, 12)
        assert ndcg_at(ranked, grades) == pytest.approx(ndcg(ranked, grades, 10), rel=1e-12)
    assert ndcg_at(["a"], {}) == 0.0


def test_the_better_side_wins_and_halves_are_told_apart() -> None:
    rng = random.Random(5)
    names = [f"d{i}" for i in range(50)]
    dense, words, qrels = {}, {}, {}
    for i in range(60):
        target = rng.choice(names)
        noise = [(name, 1 - n / 60) for n, name in enumerate(rng.sample(names, 50))]
        dense[f"q{i}"] = noise
        words[f"q{i}"] = [(target, 9.0), *[(name, score) for name, score in noise if name != target][:20]]
        qrels[f"q{i}"] = {target: 1.0}
    tuned = choose_fusion(dense, words, qrels, 100)
    assert tuned.fusion.dense < 0.5
    assert tuned.held_out["tuned"] > 0.95 > tuned.held_out["rrf"] > tuned.held_out["dense"]
    assert tuned.queries == (30, 30)
    assert tuned.to_dict()["ndcg@10"]["held_out"]["tuned"] == tuned.held_out["tuned"]
    # Order of the queries changes nothing.
    back = dict(reversed(dense.items()))
    assert choose_fusion(back, words, qrels, 100) == tuned
    qrels["q0"] = {"d1": 0.0}
    assert choose_fusion(dense, words, qrels, 100).notes == ["1 of 60 queries have no relevant document and are left out"]


def test_too_few_labelled_queries() -> None:
    lists_of = {f"q{i}": [("a", 1.0)] for i in range(LEAST - 1)}
    with pytest.raises(DataError, match=r"tune: 9 queries have a relevant document; wanted 10 or more"):
        choose_fusion(lists_of, lists_of, {name: {"a": 1.0} for name in lists_of}, 100)
    with pytest.raises(DataError, match=r"tune: 0 queries"):
        choose_fusion(lists_of, lists_of, {"other": {"a": 1.0}}, 100)
