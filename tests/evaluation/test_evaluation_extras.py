"""Slices, the worst rows, geometry, whitening, and the notes on ways to fool oneself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from evaluation_fakes import FakeEncoder

from twinvec.data.dataset import Dataset
from twinvec.errors import DataError, UsageError
from twinvec.evaluation.evaluate import evaluate, measure
from twinvec.evaluation.mistakes import wrong_by_rank
from twinvec.evaluation.protocol import not_a_test, trained_on
from twinvec.evaluation.slices import language_of, parts_by_length, parts_by_value, sliced
from twinvec.evaluation.space import hubness, space_of
from twinvec.evaluation.whitening import all_but_the_top, what_it_changes, whitening
from twinvec.files import sha256_file


def run(data: Any, encoder: Any = None, **options: Any) -> dict[str, Any]:
    result = evaluate(encoder or FakeEncoder(), data, progress=False, **options)
    json.dumps(result, allow_nan=False)
    return result


def scores(n: int = 40) -> Dataset:
    rng = np.random.default_rng(0)
    words = ["dog", "cat", "sky", "sea", "red", "blue", "花呗", "还款"]
    first, second = ([" ".join(rng.choice(words, rng.integers(1, 5))) for _ in range(n)] for _ in range(2))
    return Dataset(
        kind="scores", columns={"sentence1": first, "sentence2": second}, labels=[float(x) for x in rng.integers(0, 6, n)], score_range=(0, 5)
    )


# --- slices


@pytest.mark.parametrize(
    ("texts", "language"),
    [
        (["how do I pay"], "en"), (["花呗怎么还款"], "zh"), (["花呗怎么还款", "how do I repay it"], "mixed"), (["怎么用 app 支付花呗还款"], "zh"),
        (["123 !?"], "other"), ([""], "other"), ([], "other"), (["Привет, мир"], "other"), (["déjà vu"], "en"), (["ｆｕｌｌ ｗｉｄｔｈ"], "en"),
    ],
)  # fmt: skip
def test_language_by_script(texts: list[str], language: str) -> None:
    assert language_of(texts) == language


def test_parts_by_length_hold_every_row_once() -> None:
    rows = [{"a": "x" * n} for n in (1, 1, 1, 5, 6, 7, 20, 30)]
    parts = parts_by_length(rows)
    assert sorted(int(i) for part in parts.values() for i in part) == list(range(8))
    assert parts_by_length([{"a": "xx"}] * 5) == {"2 characters": pytest.approx(np.arange(5))}
    assert list(parts_by_value(["b", None, "a", "b"])) == ["b", "(none)", "a"]


def test_a_slice_is_the_score_of_its_rows() -> None:
    data = scores()
    outcome = measure(FakeEncoder(), data, progress=False)
    subset = ["x"] * 25 + ["y"] * 15
    found = {(part["slice"], part["value"]): part for part in sliced(outcome.measured, {"subset": subset}, draws=50)}
    alone = measure(FakeEncoder(), data.select(range(25)), progress=False).result
    assert found["subset", "x"]["rows"] == 25
    assert found["subset", "x"]["spearman_cosine"] == pytest.approx(alone["spearman_cosine"])
    assert found["subset", "x"]["low"] <= found["subset", "x"]["spearman_cosine"] <= found["subset", "x"]["high"]
    assert {name for name, _ in found} == {"subset", "length", "language"}
    with pytest.raises(DataError, match="3 values for 40 rows"):
        sliced(outcome.measured, {"subset": ["x"] * 3})


def test_slices_by_a_column_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("sentence1,sentence2,score,subset,topic\n" + "".join(f"a{i} b,b c{i % 3},{i % 5},s{i % 2},t{i % 3}\n" for i in range(30)))
    found = run(path, slices=True)["slices"]
    assert {part["value"] for part in found if part["slice"] == "subset"} == {"s0", "s1"}
    by = run(path, by="topic")["slices"]
    assert {part["value"] for part in by if part["slice"] == "topic"} == {"t0", "t1", "t2"}


# --- mistakes


def test_wrong_by_rank() -> None:
    labels, values = np.array([1.0, 1, 0, 0]), np.array([0.9, 0.2, 0.5, 0.1])
    assert wrong_by_rank(labels, values).tolist() == [0.0, 0.5, 0.5, 0.0]
    assert wrong_by_rank(np.ones(2), np.ones(2)).tolist() == [0, 0]


def test_the_worst_rows_come_first_with_their_file_numbers() -> None:
    data = scores()
    found = run(data, errors=40)["errors"]
    outcome = measure(FakeEncoder(), data, progress=False)
    away = [abs(error["too_high_by"]) for error in found]
    assert away == sorted(away, reverse=True)
    row = found[0]["row"] - 1
    assert list(found[0]["texts"].values()) == data.texts(row)
    cosine = outcome.measured.scores  # the largest distance of ranks, computed apart
    gold = scipy.stats.rankdata(data.labels)
    from twinvec.evaluation.metrics import similarities

    u, v = outcome.encoded.vectors.values()
    ranks = scipy.stats.rankdata(similarities(u, v, "cosine"))
    assert away[0] == pytest.approx(np.abs(ranks - gold).max() / 40)
    assert cosine is not None


def test_pairs_and_triplets_without_a_mistake_list_none() -> None:
    pairs = Dataset(kind="pairs", columns={"sentence1": ["a b", "c d"], "sentence2": ["a b", "x y"]}, labels=[1, 0])
    assert run(pairs, errors=5)["errors"] == []
    triplets = Dataset(kind="triplets", columns={"anchor": ["a b"], "positive": ["a b"], "negative": ["x y"]})
    assert run(triplets, errors=5)["errors"] == []
    tie = Dataset(kind="triplets", columns={"anchor": ["a b"], "positive": ["x y"], "negative": ["x y"]})
    assert run(tie, errors=5)["errors"][0]["margin"] == 0.0


# --- geometry


def test_hubness_is_the_skewness_of_k_occurrences() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 5))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    near = np.argsort(-(x @ x.T - 2 * np.eye(80)), axis=1)[:, :10]
    counts = np.bincount(near.ravel(), minlength=80)
    assert hubness(x)["hubness"] == pytest.approx(scipy.stats.skew(counts))
    assert hubness(x)["largest_hub"] == counts.max() / 80
    assert hubness(x[:5]) == {"hubness": None, "largest_hub": None}


def test_spectrum_and_length_effects() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(100, 6)) * np.array([10, 1, 1, 1, 1, 1]) + 0.1
    lengths = np.linalg.norm(x, axis=1).round(3).tolist()
    found = space_of(x, None, [int(v * 100) for v in lengths])
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    variances = np.linalg.eigvalsh(np.cov(unit.T))[::-1]
    assert found["variance_share"]["first 1"] == pytest.approx(variances[0] / variances.sum())
    assert found["components_90"] == int(np.searchsorted(np.cumsum(variances) / variances.sum(), 0.9) + 1)
    assert found["length_with_norm"] == pytest.approx(1.0, abs=1e-3)
    others = (unit @ unit.sum(0) - 1) / 99
    assert found["length_with_mean_cosine"] == pytest.approx(scipy.stats.spearmanr([int(v * 100) for v in lengths], others)[0])
    assert space_of(unit, None, [1, 2] * 50)["length_with_norm"] is None, "norms of a model that normalises"
    with pytest.raises(DataError, match="3 lengths for 100 vectors"):
        space_of(x, None, [1, 2, 3])


def test_whitening_and_all_but_the_top_do_what_their_papers_say() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(500, 6)) @ rng.normal(size=(6, 6)) + 5
    white = whitening(x)(x)
    np.testing.assert_allclose(white.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(np.cov(white.T, bias=True), np.eye(6), atol=1e-9)
    changed = all_but_the_top(x, 2)(x)
    np.testing.assert_allclose(changed.mean(0), 0, atol=1e-9)
    before, after = np.linalg.eigvalsh(np.cov(x.T))[::-1], np.linalg.eigvalsh(np.cov(changed.T))[::-1]
    np.testing.assert_allclose(after[:4], before[2:], rtol=1e-9)
    assert whitening(x[:4]).matrix.shape == (6, 3), "four points span three directions"
    with pytest.raises(UsageError, match="directions = 6"):
        all_but_the_top(x, 6)
    with pytest.raises(DataError, match="all vectors are equal"):
        whitening(np.ones((5, 3)))


def test_a_cone_is_seen_and_what_whitening_would_change() -> None:
    rng = np.random.default_rng(3)
    topic = rng.normal(size=(300, 8))
    u = topic + 0.5 * rng.normal(size=(300, 8)) + 20 * np.eye(8)[0]
    v = topic * rng.choice([-1.0, 1.0], size=(300, 1)) + 20 * np.eye(8)[0]
    gold = np.einsum("nd,nd->n", topic, v - 20 * np.eye(8)[0])
    found = what_it_changes(np.concatenate([u, v]), (u, v, gold))
    assert found["before"]["mean_random_cosine"] > 0.9
    assert abs(found["whitening"]["mean_random_cosine"]) < 0.1
    assert found["whitening"]["spearman_cosine"] > found["before"]["spearman_cosine"]
    assert what_it_changes(np.ones((4, 3)), None) == {}


def test_geometry_of_a_file(tmp_path: Path) -> None:
    found = run(scores(60), geometry=True)["geometry"]
    assert found["length_unit"] == "tokens"
    assert set(found["corrections"]) == {"before", "whitening", "all_but_the_top"}
    assert found["corrections"]["before"]["spearman_cosine"] == pytest.approx(run(scores(60))["spearman_cosine"])
    assert found["alignment"] is not None


# --- protocol


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("stsb.dev.csv", "dev file by its name"), ("sick-r.trial.csv", "dev file"), ("x_valid.tsv", "dev file"),
        ("stsb.train.csv.gz", "training file"),
        ("test.csv", ""), ("device.csv", ""), ("evaluation.csv", ""), ("strain.csv", ""), ("my-dev-set.jsonl", "dev file"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_test_by_its_name(name: str, said: str) -> None:
    notes = not_a_test(Path("dev") / name)
    assert (said in notes[0]) if said else notes == []


def test_training_rows_in_the_test_are_said_aloud(tmp_path: Path) -> None:
    train, test, dev = tmp_path / "train.csv", tmp_path / "test.csv", tmp_path / "chosen.csv"
    head = "sentence1,sentence2,score\n"
    train.write_text(head + "a b,c d,1\nx,y,2\ne f,g h,3\n")
    test.write_text(head + "C  D,a b,1\nm,n,2\no,p,3\n")  # the first pair is in training, turned round and in capitals
    dev.write_text(head + "q,r,1\ns,t,2\n")
    model = tmp_path / "run" / "best"
    model.mkdir(parents=True)
    files = {"data": train, "dev": dev}
    record: dict[str, Any] = {
        "recipe": {"data": str(train)}, "files": {name: {"path": str(path), "sha256": sha256_file(path)} for name, path in files.items()},
    }  # fmt: skip
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    encoder = FakeEncoder(source=model)
    said = "\n".join(run(test, encoder, protocol=True)["notes"])
    assert "1 of 3 rows are in the training data of this model" in said
    assert "TRAINED on this very file" in "\n".join(run(train, encoder, protocol=True)["notes"])
    assert "chose this model's checkpoint" in "\n".join(run(dev, encoder, protocol=True)["notes"])
    assert not any("train" in note for note in run(test, encoder)["notes"]), "only where asked for: not at every step of a training run"
    record["files"]["exclude 1"] = {"path": str(test), "sha256": sha256_file(test)}
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    assert not any("train" in note for note in run(test, encoder, protocol=True)["notes"]), "its pairs were taken out before training"
    del record["files"]["exclude 1"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    train.unlink()
    assert "not here any more" in "\n".join(run(test, encoder, protocol=True)["notes"])


def test_training_files_are_read_as_the_recipe_read_them(tmp_path: Path) -> None:
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_text("one,two,good\na b,c d,yes\n")
    test.write_text("sentence1,sentence2,label\nc d,a b,1\nx,y,0\n")
    files = {"source 1": {"path": str(train), "sha256": sha256_file(train)}}
    source = {"data": str(train), "columns": "sentence1=one,sentence2=two,label=good", "labels": "yes=1,no=0"}
    (tmp_path / "run.json").write_text(json.dumps({"recipe": {"source": [source]}, "files": files}))
    assert "1 of 2 rows are in the training data" in "\n".join(run(test, FakeEncoder(source=tmp_path), protocol=True)["notes"])
    (tmp_path / "run.json").write_text(json.dumps({"recipe": {"source": [{**source, "columns": None}]}, "files": files}))
    assert "cannot be read now" in "\n".join(run(test, FakeEncoder(source=tmp_path), protocol=True)["notes"])


def test_judged_pairs_of_a_retrieval_folder_are_looked_for_too(tmp_path: Path) -> None:
    (tmp_path / "faq/qrels").mkdir(parents=True)
    (tmp_path / "faq/corpus.jsonl").write_text('{"_id": "d", "text": "pay by card"}\n{"_id": "e", "text": "other"}\n')
    (tmp_path / "faq/queries.jsonl").write_text('{"_id": "q", "text": "how to pay"}\n{"_id": "r", "text": "else"}\n')
    (tmp_path / "faq/qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\nr\te\t1\n")
    train = tmp_path / "pairs.csv"
    train.write_text("question,answer\nhow to pay,pay by card\n")
    files = {"data": {"path": str(train), "sha256": sha256_file(train)}}
    (tmp_path / "run.json").write_text(json.dumps({"recipe": {"data": str(train)}, "files": files}))
    said = run(tmp_path / "faq", FakeEncoder(source=tmp_path), protocol=True)["notes"]
    assert any("1 of 2 rows are in the training data of this model" in note for note in said)


def test_stages_are_looked_through(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("sentence1,sentence2,score\na,b,1\nc,d,2\n")
    stage = tmp_path / "run" / "1-first"
    stage.mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text(json.dumps({"recipe": {}, "stages": ["runs/1-first"]}))
    files = {"data": {"path": str(path), "sha256": sha256_file(path)}}
    (stage / "run.json").write_text(json.dumps({"recipe": {}, "files": files}))
    found = trained_on(FakeEncoder(source=tmp_path / "run" / "best"), [sha256_file(path)], [("a", "b")])
    assert len(found) == 1
    assert "TRAINED on this very file" in found[0]


@pytest.mark.parametrize("content", ["", "[1]", '{"recipe": 1}', '{"recipe": {}, "files": 3}', '{"recipe": {}, "files": {"data": {"path": 1}}}'])
def test_damaged_records_are_no_reason_to_fail(content: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(content)
    assert trained_on(FakeEncoder(source=tmp_path), ["x"], [("a", "b")]) == []
    assert trained_on(FakeEncoder(), ["x"], [("a", "b")]) == []
