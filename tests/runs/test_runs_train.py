"""A whole run on a tiny model: what it leaves behind, what it says, what it refuses."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "training"))
from training_files import nli, pairs, scores, triplets, write

import twinvec as tv
from twinvec.errors import TwinvecWarning, UsageError
from twinvec.files import sha256_file
from twinvec.runs.report import labelled_pairs

BareModel = Callable[[str], Path]
pytestmark = pytest.mark.filterwarnings("ignore::twinvec.errors.TwinvecWarning")


def recipe(model: Path, folder: Path, **settings: Any) -> tv.Recipe:
    base: dict[str, Any] = {
        "model": str(model),
        "objective": "regression",
        "output": str(folder / "run"),
        "pooling": "mean",
        "batch_size": 8,
        "lr": 1e-3,
    }
    return tv.Recipe.of(**{**base, **settings})


def test_a_run_leaves_what_it_promises(bare_model: BareModel, tmp_path: Path) -> None:
    data, dev, test = scores(tmp_path / "train.csv", 40), scores(tmp_path / "dev.csv", 17), scores(tmp_path / "test.csv", 13)
    result = tv.train(recipe(bare_model("bert"), tmp_path, data=str(data), dev=str(dev), test=[str(test)], epochs=3, log_steps=2), progress=False)
    run = tmp_path / "run"
    assert {"run.json", "log.jsonl", "checkpoints", "best", "report.html"} <= {path.name for path in run.iterdir()}
    assert {"best_step", "best_metric", "baseline_metric", "output"} <= result.keys()
    record = json.loads((run / "run.json").read_text())
    assert record["recipe"]["weight_decay"] == 0.01, "every default is spelled out"
    assert record["files"]["data"]["sha256"] == sha256_file(data)
    assert record["base_model"]["fingerprint"]
    assert record["versions"]["torch"]
    assert record["result"] == json.loads(json.dumps(result))
    best = tv.Encoder.load(run / "best")
    assert best.fingerprint == record["best_fingerprint"]
    assert tv.evaluate(best, dev, progress=False)["spearman_cosine"] == pytest.approx(result["best_metric"], abs=1e-6)
    assert result["tests"][0]["after"]["rows"] == 13
    events = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert events[0]["event"] == "baseline"
    assert events[0]["value"] == pytest.approx(result["baseline_metric"])
    assert max(e["value"] for e in events if e["event"] == "evaluation") == result["best_metric"]
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "spearman_cosine" in page
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=.https?:", page), "the page works without a network"


@pytest.mark.parametrize(
    ("objective", "make", "metric"),
    [
        ("classification", nli, "nli"),
        ("classification", pairs, "average_precision_cosine"),
        ("triplet", triplets, "accuracy_cosine"),
        ("regression", pairs, None),
    ],
)
def test_each_objective_runs_and_picks_a_metric_by_the_kind_of_dev(
    objective: str, make: Callable[..., Path], metric: str | None, bare_model: BareModel, tmp_path: Path
) -> None:
    data = make(tmp_path / "train.csv", 40)
    result = tv.train(recipe(bare_model("bert"), tmp_path, data=str(data), dev_share=0.3, objective=objective), progress=False)
    assert result["best_metric"] is not None
    if metric not in (None, "nli"):
        assert result["metric"] == metric


def test_a_run_without_dev_keeps_the_last_step(bare_model: BareModel, tmp_path: Path) -> None:
    result = tv.train(recipe(bare_model("bert"), tmp_path, data=str(pairs(tmp_path / "t.csv"))), progress=False)
    assert (result["best_step"], result["best_metric"], result["baseline_metric"]) == (result["steps"], None, None)
    assert (tmp_path / "run" / "best" / "modules.json").is_file()


def test_worse_than_before_is_said(bare_model: BareModel, tmp_path: Path) -> None:
    model = bare_model("bert")
    encoder = tv.Encoder.load(model, pooling="mean")
    texts = [f"the cat {word}" for word in ("sat", "looked at the dog", "and a woman", "on the mat", "1 2 3", "is my refund")]
    rows = [[a, b] for a in texts for b in texts if a != b]
    u, v = (encoder.encode([row[i] for row in rows]) for i in (0, 1))
    order = np.argsort(np.argsort((u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)))
    gold = write(
        tmp_path / "dev.csv", ["sentence1", "sentence2", "score"], [[*row, int(rank) % 50 / 10] for row, rank in zip(rows, order, strict=True)]
    )
    wrong = write(
        tmp_path / "train.csv", ["sentence1", "sentence2", "score"], [[*row, 5 - int(rank) % 50 / 10] for row, rank in zip(rows, order, strict=True)]
    )
    with pytest.warns(TwinvecWarning, match=r"below the model before training"):
        result = tv.train(recipe(model, tmp_path, data=str(wrong), dev=str(gold), epochs=5, lr=3e-3), progress=False)
    assert result["best_metric"] < result["baseline_metric"]
    assert any("below the model before training" in note for note in result["notes"])
    assert any("dev" in note and "train" in note for note in result["notes"]), "pairs shared by train and dev are said"


def test_an_earlier_run_is_never_lost_by_mistake(bare_model: BareModel, tmp_path: Path) -> None:
    data = str(scores(tmp_path / "t.csv"))
    model = bare_model("bert")
    first = tv.train(recipe(model, tmp_path, data=data), progress=False)
    with pytest.raises(UsageError, match=r"holds an earlier run: go on with it .*--resume.*--overwrite"):
        tv.train(recipe(model, tmp_path, data=data), progress=False)
    again = tv.train(recipe(model, tmp_path, data=data, resume=True), progress=False)
    assert again["best_step"] == first["best_step"]
    replaced = tv.train(recipe(model, tmp_path, data=data, overwrite=True, max_steps=1), progress=False)
    assert replaced["steps"] == 1
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="folder with other things in it"):
        tv.train(recipe(model, tmp_path, data=data, output=str(tmp_path / "other")), progress=False)
    assert (tmp_path / "other" / "thesis.txt").read_text() == "mine"
    with pytest.raises(UsageError, match="is a file"):
        tv.train(recipe(model, tmp_path, data=data, output=data), progress=False)


def test_a_metric_that_dev_cannot_give_is_refused_before_training(bare_model: BareModel, tmp_path: Path) -> None:
    data = str(scores(tmp_path / "t.csv"))
    with pytest.raises(UsageError, match=r"metric = 'accuracy': dev .* does not give it; it gives .*spearman_cosine"):
        tv.train(recipe(bare_model("bert"), tmp_path, data=data, dev_share=0.3, metric="accuracy"), progress=False)


def test_loss_as_metric(bare_model: BareModel, tmp_path: Path) -> None:
    result = tv.train(
        recipe(bare_model("bert"), tmp_path, data=str(scores(tmp_path / "t.csv", 40)), dev_share=0.3, metric="loss", epochs=2), progress=False
    )
    assert result["best_metric"] < result["baseline_metric"]


def test_tensorboard_gets_the_curves(bare_model: BareModel, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    data = str(scores(tmp_path / "t.csv", 40))
    tv.train(recipe(bare_model("bert"), tmp_path, data=data, dev_share=0.3, tensorboard=True, log_steps=1), progress=False)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert {"loss/loss", "loss/lr", "evaluation/spearman_cosine"} <= set(events.Tags()["scalars"])


def test_the_same_recipe_gives_the_same_folder(bare_model: BareModel, tmp_path: Path) -> None:
    data = str(scores(tmp_path / "t.csv", 40))
    found = [tv.train(recipe(bare_model("bert"), tmp_path / name, data=data, dev_share=0.3), progress=False) for name in ("a", "b")]
    one, two = ((tmp_path / name / "run" / "best" / "model.safetensors").read_bytes() for name in ("a", "b"))
    assert one == two
    assert found[0]["best_metric"] == found[1]["best_metric"]


def test_labelled_pairs_of_each_kind(tmp_path: Path) -> None:
    found = labelled_pairs(tv.read_data(triplets(tmp_path / "t.csv", 3)))
    assert found is not None
    assert found.labels == [1, 0] * 3
    found = labelled_pairs(tv.read_data(scores(tmp_path / "s.csv", 6)))  # scores 0, 0.9, 1.8, 2.7, 3.6, 4.5 of 0-5
    assert found is not None
    assert found.labels == [0, 0, 1, 1]
    assert labelled_pairs(tv.read_data(write(tmp_path / "p.csv", ["sentence1", "sentence2"], [["a", "b"], ["c", "d"]]))) is None
