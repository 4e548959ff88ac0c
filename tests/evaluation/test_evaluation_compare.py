"""Comparison of models: figures, differences, best trades, the sentence, and what is kept between runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compare_data import Noisy, candidate, classes, compared, pairs, retrieval, scores

from twinvec.errors import DataError
from twinvec.evaluation.advice import advise, best_trades
from twinvec.evaluation.certainty import compare_models, intervals
from twinvec.evaluation.evaluate import evaluate, measure
from twinvec.evaluation.recorded import Recorder, Replayed, data_hash, load_recording, record, save_recording


def test_one_file_as_evaluate_and_compare_models_say() -> None:
    found = compared()
    result = found.result
    json.dumps(result, allow_nan=False)
    plain = evaluate(Noisy(0.2, "good"), pairs(), progress=False, bootstrap=200)
    row = result["models"][0]
    assert row["quality"] == plain["average_precision_cosine"]
    assert [row["low"], row["high"]] == plain["intervals"]["average_precision_cosine"]
    measured = {name: measure(Noisy(noise, name), pairs(), progress=False).measured for name, noise in (("good", 0.2), ("quick", 0.5), ("poor", 9.0))}
    wanted = {frozenset((d.first, d.second)): d for d in compare_models(measured, draws=200)}
    names = {r["number"]: r["model"] for r in result["models"]}
    assert len(result["differences"]) == 3
    for away in result["differences"]:
        other = wanted[frozenset((names[away["first"]], names[away["second"]]))]
        assert away["value"] >= 0
        assert away["value"] == pytest.approx(abs(other.value))
        assert sorted((abs(away["low"]), abs(away["high"]))) == pytest.approx(sorted((abs(other.low), abs(other.high))))
        assert away["p"] <= other.p + 1e-12


def test_several_files_are_averaged() -> None:
    both = compared(candidate("a", 0.3, 2), candidate("b", 3.0, 2), data=[pairs(), scores()], draws=100)
    row = both.result["models"][0]
    assert [score["figure"] for score in row["scores"]] == ["average_precision_cosine", "spearman_cosine"]
    assert row["quality"] == pytest.approx(np.mean([score["value"] for score in row["scores"]]))
    assert row["low"] < row["quality"] < row["high"]
    assert both.result["files"][1]["figure"] == "spearman_cosine"
    widths = [score["high"] - score["low"] for score in row["scores"]]
    assert row["high"] - row["low"] < max(widths)  # a mean of independent draws is steadier than its least steady part


def test_figures_that_are_means_use_the_permutation_test() -> None:
    found = compared(candidate("a", 0.1), candidate("b", 5.0), data=[retrieval()])
    assert found.result["differences"][0]["test"] == "permutation"
    assert found.result["models"][0]["mean_random_cosine"] is None
    asked = compared(candidate("a", 0.1), candidate("b", 5.0), data=[classes()], figure="accuracy_nearest")
    assert asked.result["files"][0]["figure"] == "accuracy_nearest"


def test_many_pairs_can_still_be_sure() -> None:
    """Percentile p values end at 2 / (draws + 1): after Holm over 21 pairs none could be below 0.05."""
    found = compared(*(candidate(f"m{i}", noise) for i, noise in enumerate((0.01, 0.3, 1.0, 2.0, 4.0, 30.0, 60.0))), draws=200, data=[pairs(200)])
    by_pair = {(away["first"], away["second"]): away for away in found.result["differences"]}
    assert len(by_pair) == 21
    assert by_pair[1, 7]["p_holm"] < 0.01
    assert max(away["p_holm"] for away in by_pair.values()) > 0.05


def test_an_undefined_score_is_no_candidate() -> None:
    class Flat(Noisy):
        def vector(self, text: str) -> Any:
            return np.ones(8, np.float32)

    flat = replace(candidate("flat", 0.0), encoders=[Flat(0.0, "flat")])
    found = compared(candidate("a", 0.1), flat, data=[scores()])
    row = found.result["models"][1]
    assert row["quality"] is row["low"] is None
    assert any("do not tell the texts apart" in note for note in row["notes"])
    assert found.result["differences"] == []
    assert found.result["recommendation"]["choice"] == 1
    nothing = compared(flat, data=[scores()])
    assert nothing.result["recommendation"]["choice"] is None
    json.dumps(nothing.result, allow_nan=False)


def test_best_trades_against_the_definition() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        points = [(float(q), float(r)) for q, r in rng.integers(0, 5, size=(6, 2))]
        known: list[tuple[float | None, float | None]] = [*points, (None, 9.0), (9.0, None)]
        wanted = {i for i, (q, r) in enumerate(points) if not any((a > q and b >= r) or (a >= q and b > r) for a, b in points)}
        found = best_trades(known)
        assert set(found) == wanted
        assert [points[i][1] for i in found] == sorted((points[i][1] for i in found), reverse=True)


def row(number: int, quality: float | None, rate: float | None = None, dimensions: int = 384) -> dict[str, Any]:
    band = {"low": None, "high": None} if quality is None else {"low": quality - 0.01, "high": quality + 0.01}
    return {"number": number, "model": f"m{number}", "quality": quality, "texts_per_second": rate, "dimensions": dimensions, **band}


def away(first: int, second: int, value: float, half: float, p: float) -> dict[str, Any]:
    return {"first": first, "second": second, "value": value, "low": value - half, "high": value + half, "p_holm": p}


ADVICE: list[tuple[str, list[dict[str, Any]], list[dict[str, Any]], int | None, str]] = [
    ("one", [row(1, 0.8)], [], 1, r"m1 scores 80.0 \(79.0 to 81.0\) on 500 rows; there is no other model"),
    ("none", [row(1, None)], [], None, r"No model has a defined score"),
    (
        "better and slower", [row(1, 0.8, 10), row(2, 0.788, 40)], [away(1, 2, 0.012, 0.005, 0.0001)], 1,
        r"Take m1: it is better than m2 by 1.2 ± 0.5 \(p < 0.001 on 500 rows\); m2 is 4.0x faster, should speed count more; the doubt: it holds",
    ),
    (
        "equal and faster", [row(1, 0.8, 10), row(2, 0.798, 120)], [away(1, 2, 0.002, 0.006, 0.4)], 2,
        r"Take m2: it is 12x faster than m1, whose lead of 0.2 ± 0.6 may be chance \(p = 0.4 on 500 .*: m2 may still be worse by up to 0.8",
    ),
    (
        "few rows: faster, but nobody knows how much worse",
        [row(1, 0.8, 10), row(2, 0.7, 120)],
        [away(1, 2, 0.1, 0.15, 0.2)],
        1,
        r"Take m1 for its score, with a doubt: its lead over m2 of 10.0 ± 15.0 may be chance .*; m2 is 12x faster, should speed count more",
    ),
    (
        "the very same",
        [row(1, 0.8, 10), row(2, 0.8, 10)],
        [away(1, 2, 0.0, 0.0, 1.0)],
        1,
        r"Take m1 or m2: they score the same in every draw of the 500 rows\.$",
    ),
    (
        "equal, hardly faster", [row(1, 0.8, 100), row(2, 0.798, 110)], [away(1, 2, 0.002, 0.006, 0.4)], 1,
        r"Take m1 for its score, with a doubt: its lead over m2 of 0.2 ± 0.6 may be chance \(p = 0.4 on 500 rows\)\.$",
    ),
    (
        "the quick one is a third", [row(1, 0.8, 10), row(2, 0.75, 10), row(3, 0.7, 50)],
        [away(1, 2, 0.05, 0.01, 0.001), away(1, 3, 0.1, 0.02, 0.001), away(2, 3, 0.05, 0.02, 0.001)], 1,
        r"better than m2 by 5.0 ± 1.0 .*; m3 is 5.0x faster and loses 10.0 ± 2.0, should speed count more",
    ),
    (
        "fewer dimensions", [row(1, 0.8, 10), row(2, 0.799, 10, 64)], [away(1, 2, 0.001, 0.004, 0.7)], 1,
        r"vectors of m2 take 6.0x less room, for 0.1 ± 0.4 that may be chance",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "rows", "differences", "choice", "message"), ADVICE, ids=[case[0] for case in ADVICE])
def test_advice(name: str, rows: list[Any], differences: list[Any], choice: int | None, message: str) -> None:
    import re

    found = advise(rows, differences, [{"rows": 500}])
    assert found["choice"] == choice
    assert re.search(message, found["sentence"]), found["sentence"]
    assert found["sentence_zh"].endswith("。")
    assert found["sentence"].count(". ") == 0  # one sentence


def test_few_rows_are_a_doubt_of_their_own() -> None:
    found = advise([row(1, 0.8), row(2, 0.7)], [away(1, 2, 0.1, 0.01, 0.001)], [{"rows": 40}])
    assert found["sentence"].endswith("the doubt: with 40 rows only, a few odd ones weigh much.")


# --- what is kept


def test_a_recording_gives_the_same_figures(tmp_path: Path) -> None:
    encoder = Noisy(0.3, "a", prompts={"query": "q: ", "passage": "p: "})
    for held in (pairs(), retrieval(), classes()):
        direct = evaluate(encoder, held, progress=False, bootstrap=50)
        recording = record(encoder, [held], None, seconds=0.0, progress=False)
        save_recording(tmp_path / "kept", recording)
        kept = load_recording(tmp_path / "kept")
        assert kept is not None
        again = evaluate(Replayed(kept), held, progress=False, bootstrap=50)
        assert again == direct
        assert kept.facts["cost"]["texts_per_second"] > 0
        assert kept.facts["cost"]["latency_p50_ms"] <= kept.facts["cost"]["latency_p95_ms"]


def test_a_recording_of_other_texts_is_refused() -> None:
    recording = record(Noisy(0.3), [pairs()], None, seconds=0.0, progress=False)
    with pytest.raises(DataError, match="were not recorded under the prompt None; measure again without the cache"):
        evaluate(Replayed(recording), pairs(seed=9), progress=False)


def test_a_damaged_recording_counts_as_none(tmp_path: Path) -> None:
    recording = record(Noisy(0.3), [pairs()], None, seconds=0.0, progress=False)
    place = tmp_path / "kept"
    assert load_recording(place) is None
    save_recording(place, recording)
    path = place / "vectors-0.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert load_recording(place) is None
    path.write_bytes(whole)
    assert load_recording(place) is not None
    (place / "recording.json").write_text('{"format": 1}')
    assert load_recording(place) is None


def test_data_hash_sees_every_change() -> None:
    base = pairs()
    columns, labels = base.columns, list(base.labels or [])
    others = [
        replace(base, labels=[1 - labels[0], *labels[1:]]),
        replace(base, columns={**columns, "sentence1": ["other", *columns["sentence1"][1:]]}),
        base.select(range(59)),
        base.select([1, 0, *range(2, 60)]),
        replace(base, kind="scores"),
        retrieval(), replace(retrieval(), split="dev"), replace(retrieval(), qrels={"q0": {"d1": 1.0}}),
    ]  # fmt: skip
    assert len({data_hash(held) for held in [base, *others]}) == 1 + len(others)
    assert data_hash(pairs()) == data_hash(base)


def test_recorder_changes_nothing() -> None:
    plain, watched = Noisy(0.3), Recorder(Noisy(0.3))
    assert evaluate(watched, pairs(), progress=False) == evaluate(plain, pairs(), progress=False)
    assert watched.seconds > 0


def test_intervals_are_those_of_the_bootstrap() -> None:
    found = compared(candidate("a", 0.4), draws=300, level=0.9, seed=5)
    measured = found.outcomes[0][0].measured
    wanted = intervals(measured.figures.only(measured.headline), measured.units, draws=300, level=0.9, seed=5)[measured.headline]
    assert (found.result["models"][0]["low"], found.result["models"][0]["high"]) == (wanted.low, wanted.high)
