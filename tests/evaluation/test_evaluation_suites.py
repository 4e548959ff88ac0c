"""Suites: both layouts, sizes, missing parts, the three aggregations against SentEval's arithmetic, and one call to the encoder."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from evaluation_fakes import FakeEncoder

from twinvec.errors import DataError, UsageError
from twinvec.evaluation.suite import aggregated, compare_suite, measure_suite
from twinvec.evaluation.suites import STS_EN, STS_ZH, read_suite

SIZES = {"STS12": 3108, "STS13": 1500, "STS14": 3750, "STS15": 3000, "STS16": 1186, "STS-B": 1379, "SICK-R": 4927}


def rows(count: int, seed: int) -> list[tuple[str, str, float]]:
    rng = np.random.default_rng(seed)
    words = [f"w{i}" for i in range(40)]
    pick = lambda: " ".join(rng.choice(words, 4))  # noqa: E731
    return [(pick(), pick(), float(rng.integers(0, 51)) / 10) for _ in range(count)]


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """STS12 (small), STS16 with a subset too few, and STS-B, as one CSV a set."""
    folder = tmp_path / "sts" / "en"
    folder.mkdir(parents=True)
    for name, subsets in (("sts12.test", ("MSRpar", "MSRvid")), ("sts16.test", ("headlines",)), ("stsb.test", ("images",))):
        lines = ["sentence1,sentence2,score,subset"]
        lines += [f"{a},{b},{s},{subset}" for i, subset in enumerate(subsets) for a, b, s in rows(12, i)]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    with gzip.open(folder / "stsb.dev.csv.gz", "wt") as stream:
        stream.write("sentence1,sentence2,score\n" + "".join(f"{a},{b},{s}\n" for a, b, s in rows(9, 5)))
    return tmp_path


@pytest.fixture
def senteval(tmp_path: Path) -> Path:
    """SentEval's layout with the traps in it: lines without a gold score, quotes, an SMT file, licence columns."""
    year = tmp_path / "STS" / "STS15-en-test"
    year.mkdir(parents=True)
    pairs = rows(6, 1)
    (year / "STS.input.belief.txt").write_text("".join(f'"{a}\t{b}\n' for a, b, _ in pairs))
    (year / "STS.gs.belief.txt").write_text("".join(f"{s}\n" if i != 2 else "\n" for i, (_, _, s) in enumerate(pairs)))
    other = tmp_path / "STS" / "STS13-en-test"
    other.mkdir()
    for name in ("FNWN", "SMT"):
        (other / f"STS.input.{name}.txt").write_text("".join(f"{a}\t{b}\n" for a, b, _ in pairs))
        (other / f"STS.gs.{name}.txt").write_text("".join(f"{s}\n" for _, _, s in pairs))
    bench = tmp_path / "STS" / "STSBenchmark"
    bench.mkdir()
    lines = [f"main-news\tMSRpar\t2012test\t{i:04}\t{s}\t{a}\t{b}" + ("\tlicence\ttext" if i == 1 else "") for i, (a, b, s) in enumerate(pairs)]
    (bench / "sts-test.csv").write_text("\n".join(lines) + "\n")
    sick = tmp_path / "SICK"
    sick.mkdir()
    head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    (sick / "SICK_test_annotated.txt").write_text(head + "".join(f"{i}\t{a}\t{b}\t{s}\tNEUTRAL\n" for i, (a, b, s) in enumerate(pairs)))
    return tmp_path


def test_the_published_sizes_are_held() -> None:
    assert {spec.name: spec.rows["test"] for spec in STS_EN} == SIZES
    for spec in STS_EN:
        assert not spec.subsets or sum(spec.subsets.values()) == spec.rows["test"]
    assert [spec.name for spec in STS_ZH] == ["STS-B-mt", "STS-B-cnsd", "ATEC", "BQ", "LCQMC", "PAWS-X", "AFQMC-dev"]


def test_what_is_missing_or_of_another_size_is_said_aloud(flat: Path) -> None:
    sets, notes = read_suite("sts-en", flat)
    assert [(data.name, len(data.gold)) for data in sets] == [("STS12", 24), ("STS16", 12), ("STS-B", 12)]
    text = "\n".join(notes)
    for name in ("STS13", "STS14", "STS15", "SICK-R"):
        assert f"{name} is missing" in text
    assert "STS12: 24 rows where the published test set has 3108" in text
    assert "STS12: subset SMTeuroparl is missing (459 rows)" in text
    assert "STS12: subset MSRpar has 12 rows where 750 are published" in text
    assert "STS16: subset plagiarism is missing (230 rows)" in text


def test_dev_takes_the_sets_that_have_one(flat: Path) -> None:
    sets, notes = read_suite("sts-en", flat / "sts" / "en", "dev")
    assert [(data.name, len(data.gold), data.expected) for data in sets] == [("STS-B", 9, 1500)]
    assert "STS12 has no dev split and is left out" in notes


def test_sentevals_layout(senteval: Path) -> None:
    sets, notes = read_suite("sts-en", senteval)
    found = {data.name: data for data in sets}
    assert list(found) == ["STS13", "STS15", "STS-B", "SICK-R"]
    assert len(found["STS15"].gold) == 5, "a line without a gold score is no row"
    assert all(text.startswith('"') for text in found["STS15"].first), "quotes are text: the files are not quoted"
    assert set(found["STS13"].subsets) == {"FNWN"}, "SMT is no part of the public STS13"
    assert set(found["STS-B"].subsets) == {"MSRpar"}
    assert [x[2] for x in rows(6, 1)] == found["SICK-R"].gold
    assert any("SICK-R: 6 rows where the published test set has 4927" in note for note in notes)


def test_chinese_pairs_are_found_from_the_root_of_the_data(tmp_path: Path) -> None:
    (tmp_path / "sts/zh").mkdir(parents=True)
    (tmp_path / "pairs/zh").mkdir(parents=True)
    (tmp_path / "sts/zh/stsb-mt.test.csv").write_text("sentence1,sentence2,score\n花呗还款,还花呗,4.5\n你好,再见,1\n", encoding="utf-8")
    (tmp_path / "pairs/zh/atec.test.csv").write_text("sentence1,sentence2,label\n花呗还款,还花呗,1\n你好,再见,0\n", encoding="utf-8")
    sets, notes = read_suite("sts-zh", tmp_path)
    assert [(data.name, data.gold) for data in sets] == [("STS-B-mt", [4.5, 1.0]), ("ATEC", [1.0, 0.0])]
    assert sum("is missing" in note for note in notes) == 5


def senteval_all_mean_wmean(scores: np.ndarray, gold: np.ndarray, subsets: list[str]) -> dict[str, dict[str, float]]:
    """SentEval's STSEval.run, rewritten from its description: correlations by subset, then np.average without and with their sizes."""
    out: dict[str, dict[str, float]] = {}
    for name, f in (("pearson", lambda a, b: scipy.stats.pearsonr(a, b)[0]), ("spearman", lambda a, b: scipy.stats.spearmanr(a, b)[0])):
        parts = [(f(scores[mine], gold[mine]), mine.sum()) for s in dict.fromkeys(subsets) if (mine := np.asarray(subsets) == s).any()]
        values, sizes = zip(*parts, strict=True)
        out[name] = {"all": f(scores, gold), "mean": np.average(values), "weighted_mean": np.average(values, weights=sizes)}
    return out


def test_the_three_aggregations_are_sentevals() -> None:
    rng = np.random.default_rng(0)
    subsets = ["a"] * 30 + ["b"] * 7 + ["c"] * 15
    scores, gold = rng.random(52), np.round(rng.random(52) * 5)
    found = aggregated(scores, gold, subsets)
    for measure, wanted in senteval_all_mean_wmean(scores, gold, subsets).items():
        assert found[measure] == pytest.approx(wanted, abs=1e-12)
    assert found["subsets"]["b"]["rows"] == 7
    alone = aggregated(scores, gold, [""] * 52)
    assert alone["subsets"] == {}
    assert alone["spearman"]["mean"] == alone["spearman"]["all"] == alone["spearman"]["weighted_mean"]


def test_a_mean_with_an_undefined_part_is_undefined() -> None:
    found = aggregated(np.array([0.1, 0.2, 0.3, 0.5]), np.array([1.0, 2, 3, 3]), ["a", "a", "b", "b"])
    assert found["spearman"]["all"] is not None
    assert found["spearman"]["mean"] is None, "gold of b is constant"


def test_every_distinct_text_is_encoded_once(flat: Path) -> None:
    sets, _ = read_suite("sts-en", flat)
    encoder = FakeEncoder()
    found = measure_suite(encoder, sets)
    ((_, texts),) = encoder.calls  # one call for the whole suite
    assert len(texts) == len(set(texts)) == len({text for data in sets for side in (data.first, data.second) for text in side})
    assert found["average"]["spearman"]["all"] == pytest.approx(np.mean([row["spearman"]["all"] for row in found["sets"]]))
    for row, data in zip(found["sets"], sets, strict=True):
        assert row["spearman"]["all"] == pytest.approx(scipy.stats.spearmanr(found["cosines"][row["set"]], data.gold).statistic)


def test_a_forgotten_prompt_and_constant_scores_are_said(flat: Path) -> None:
    sets, _ = read_suite("sts-en", flat)
    assert any("none was used" in note for note in measure_suite(FakeEncoder({"query": "query: "}), sets)["notes"])
    assert not any("none was used" in note for note in measure_suite(FakeEncoder({"query": "query: "}), sets, prompt="query")["notes"])

    class Flat(FakeEncoder):
        def vector(self, text: str) -> Any:
            return np.ones(8, np.float32)

    found = measure_suite(Flat(), sets)
    assert found["average"]["spearman"] == {"all": None, "mean": None, "weighted_mean": None}
    assert any("the vectors do not tell the texts apart" in note for note in found["notes"])
    bounds, differences = compare_suite(sets, {"flat": found["cosines"], "too": found["cosines"]}, draws=20)
    assert bounds["flat"] == {}
    assert differences == []


def test_models_are_compared_on_the_same_draws(flat: Path) -> None:
    sets, _ = read_suite("sts-en", flat)
    gold = {data.name: np.asarray(data.gold) for data in sets}
    noise = {name: np.random.default_rng(1).normal(size=len(value)) for name, value in gold.items()}
    poor = {name: noise[name] for name in gold}
    bounds, differences = compare_suite(sets, {"perfect": gold, "twin": gold, "poor": poor}, draws=200)
    assert bounds["perfect"]["average"] == pytest.approx([1.0, 1.0])
    rows_of = {(row["first"], row["set"]): row for row in differences}
    assert rows_of["twin", "average"]["p"] == 1.0
    assert rows_of["poor", "average"]["high"] < 0
    assert rows_of["poor", "average"]["p_holm"] == pytest.approx(2 * rows_of["poor", "average"]["p"])
    with pytest.raises(UsageError, match="bootstrap = 0"):
        compare_suite(sets, {"a": gold}, draws=0)


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(DataError, match="3 scores, 2 gold scores"):
        aggregated(np.zeros(3), np.zeros(2), ["a", "a"])
