"""Stages: each from the best of the last, resumed in the middle, never mixed up with those of another recipe."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "training"))
from training_files import labelled, nli, pairs, partners, scores, texts

import twinvec as tv
from twinvec.errors import TrainingError, UsageError

BareModel = Callable[[str], Path]
pytestmark = pytest.mark.filterwarnings("ignore::twinvec.errors.TwinvecWarning")

CHILD = """
import json, os, signal, sys
import twinvec as tv
from twinvec.training.loop import Run
step = Run._one_step
def deadly(self, *args):
    step(self, *args)
    if self.folder.name == "2-simcse" and self.state.step == 4:
        os.kill(os.getpid(), signal.SIGKILL)
Run._one_step = deadly
tv.train(tv.Recipe.of(**json.loads(sys.argv[1])), progress=False)
"""


def recipe(folder: Path, output: str, **changes: Any) -> dict[str, Any]:
    """MLM from nothing, SimCSE, NLI: three stages, dev from the second on, tested after each."""
    made = {
        "model": "new", "new_model": {"layers": 1, "hidden": 32, "heads": 2, "vocabulary": 300, "max_tokens": 32, "texts": [str(folder / "t.txt")]},
        "output": str(folder / output), "batch_size": 8, "lr": 1e-3, "log_steps": 1, "checkpoint_steps": 3, "metric": "spearman_cosine",
        "test": [str(folder / "test.csv")],
        "stage": [
            {"objective": "mlm", "data": str(folder / "t.txt")},
            {"objective": "simcse", "data": str(folder / "t.txt"), "dev": str(folder / "dev.csv"), "epochs": 2},
            {"name": "nli", "objective": "classification", "data": str(folder / "nli.csv"), "dev": str(folder / "dev.csv")},
        ],
    }  # fmt: skip
    return {**made, **changes}


def train(settings: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return tv.train(tv.Recipe.of(**{**settings, **changes}), progress=False)


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with the files and a run of all three stages in `whole`, and its result."""
    folder = tmp_path_factory.mktemp("stages")
    texts(folder / "t.csv")
    nli(folder / "nli.csv")
    scores(folder / "dev.csv", 12)
    scores(folder / "test.csv", 9)
    return folder, train(recipe(folder, "whole"))


def test_each_stage_starts_from_the_best_of_the_last(whole: tuple[Path, dict[str, Any]]) -> None:
    folder, result = whole
    names = ["1-mlm", "2-simcse", "3-nli"]
    assert sorted(path.name for path in (folder / "whole").iterdir()) == [*names, "best", "report.html", "run.json"]
    records = [record(folder / "whole" / name) for name in names]
    for one, two in pairwise(records):
        assert two["base_model"]["fingerprint"] == one["best_fingerprint"]
    assert [stage["name"] for stage in result["stages"]] == ["mlm", "simcse", "nli"]
    assert [stage["metric"] for stage in result["stages"]] == ["loss", "spearman_cosine", "spearman_cosine"], "mlm has no dev, so no metric either"
    assert record(folder / "whole")["result"] == json.loads(json.dumps(result))
    # A model folder that works alone: moved elsewhere, with nothing else beside it.
    alone = shutil.copytree(folder / "whole" / "best", folder / "alone")
    best = tv.Encoder.load(alone)
    assert best.fingerprint == records[2]["best_fingerprint"]
    assert tv.evaluate(best, folder / "dev.csv", progress=False)["spearman_cosine"] == pytest.approx(result["best_metric"], abs=1e-6)
    assert np.isfinite(best.encode(["the cat sat", ""])).all()


def test_the_result_compares_the_last_model_with_the_very_first(whole: tuple[Path, dict[str, Any]]) -> None:
    folder, result = whole
    (test,) = result["tests"]
    assert test["before"] == result["stages"][0]["tests"][0]["before"]
    assert test["after"] == result["stages"][2]["tests"][0]["after"]
    page = (folder / "whole" / "report.html").read_text(encoding="utf-8")
    for name in ("1 mlm", "2 simcse", "3 nli", "spearman_cosine"):
        assert name in page


def test_killed_in_the_second_stage_and_resumed_is_an_unbroken_run(whole: tuple[Path, dict[str, Any]]) -> None:
    folder, result = whole
    settings = recipe(folder, "broken")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", CHILD, json.dumps(settings)], env=environment, timeout=400, check=False)
    assert done.returncode == -signal.SIGKILL
    first = folder / "broken" / "1-mlm"
    before = {path: path.stat().st_mtime_ns for path in first.rglob("*") if path.is_file()}
    again = train(settings, resume=True)
    assert {path: path.stat().st_mtime_ns for path in first.rglob("*") if path.is_file()} == before, "the first stage was run again"
    assert again["best_metric"] == result["best_metric"]
    for name in ("1-mlm", "2-simcse", "3-nli"):
        one, two = (folder / run / name / "best" / "model.safetensors" for run in ("whole", "broken"))
        assert one.read_bytes() == two.read_bytes(), name
    log = [(json.loads(line)["event"], json.loads(line)["step"]) for line in (folder / "broken" / "2-simcse" / "log.jsonl").read_text().splitlines()]
    assert log == sorted(set(log), key=log.index), "no line of the killed run stands twice"
    # All finished: resuming once more trains nothing and gives the same result.
    assert train(settings, resume=True)["stages"] == again["stages"]


def test_a_finished_stage_with_other_settings_is_refused(whole: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = whole
    changed = recipe(folder, "whole")
    changed["stage"][1]["lr"] = 5e-4
    with pytest.raises(TrainingError, match=r"2-simcse was finished by another recipe \(different: lr\)"):
        train(changed, resume=True)


def test_a_stage_whose_model_has_changed_is_refused(whole: tuple[Path, dict[str, Any]]) -> None:
    """The first stage's folder removed and trained anew by other settings: the later ones no longer follow from it."""
    folder, _ = whole
    shutil.copytree(folder / "whole", folder / "stale")
    for path in (folder / "stale").glob("?-*/run.json"):  # the copy's own paths, as if it had been trained there
        path.write_text(path.read_text().replace("/whole", "/stale"))
    shutil.rmtree(folder / "stale" / "1-mlm")
    changed = recipe(folder, "stale")
    changed["stage"][0]["lr"] = 5e-4
    with pytest.raises(TrainingError, match=r"2-simcse was trained from another model than .*1-mlm/best is now"):
        train(changed, resume=True)


def test_an_earlier_run_is_kept_and_overwriting_removes_all_of_it(whole: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = whole
    with pytest.raises(UsageError, match=r"holds an earlier run: go on with it"):
        train(recipe(folder, "whole"))
    shutil.copytree(folder / "whole", folder / "over")
    (folder / "over" / "mine.txt").write_text("mine")
    short = recipe(folder, "over", overwrite=True, metric="auto")
    short["stage"] = [{**short["stage"][0], "name": "words", "max_steps": 1}]
    train(short)
    assert sorted(path.name for path in (folder / "over").iterdir()) == ["1-words", "best", "mine.txt", "report.html", "run.json"]
    train({**short, "stage": [], "objective": "mlm", "data": str(folder / "t.txt"), "max_steps": 1})
    assert not (folder / "over" / "1-words").exists(), "a run without stages leaves none of an earlier one"
    (folder / "other").mkdir(exist_ok=True)
    (folder / "other" / "thesis.txt").write_text("mine")
    for more in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(UsageError, match="folder with other things in it"):
            train(recipe(folder, "other", **more))


def test_a_dry_run_of_stages_measures_each_and_writes_nothing(whole: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = whole
    settings = recipe(folder, "dry", dry_run=True, prompts={"query": "query: "})
    settings["stage"][2] |= {"prompts": {"passage": "passage: "}, "prompt": "query"}
    settings["stage"].append({**settings["stage"][2], "name": "again", "prompt": "passage"})
    result = train(settings)
    assert [stage["name"] for stage in result["stages"]] == ["mlm", "simcse", "nli", "again"]
    assert result["seconds"] > 0
    assert not (folder / "dry").exists()


@pytest.mark.parametrize("mixing", ["proportional", "even", "temperature", "weights"])
def test_sources_of_several_kinds_are_mixed_in_one_stage(mixing: str, bare_model: BareModel, tmp_path: Path) -> None:
    made = [
        ("infonce", partners(tmp_path / "a.csv", 48)),
        ("cosent", scores(tmp_path / "b.csv", 16)),
        ("batch_all_triplet", labelled(tmp_path / "c.csv", 24)),
    ]
    sources = [{"objective": objective, "data": str(path)} for objective, path in made]
    if mixing == "weights":
        sources = [{**source, "weight": weight} for source, weight in zip(sources, (1, 1, 9), strict=True)]
    settings = {
        "model": str(bare_model("bert")), "pooling": "mean", "source": sources, "mixing": mixing, "output": str(tmp_path / "run"), "batch_size": 8,
        "dev": str(made[1][1]), "log_steps": 1, "epochs": 2, "accumulation": 2,
    }  # fmt: skip
    from twinvec.training.loop import Run

    seen: list[int] = []
    plain = Run._step

    def watched(self: Run, batches: Any) -> tuple[float, float]:
        seen.extend(batch.task for batch in batches)
        return plain(self, batches)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "_step", watched)
        result = train(settings)
    counts = {"proportional": [12, 4, 8], "even": [8, 8, 8], "temperature": [10, 6, 8], "weights": [2, 2, 20]}[mixing]
    assert [seen.count(task) for task in range(3)] == counts
    assert result["steps"] == 12, "12 batches an epoch, two a step"
    assert result["metric"] == "spearman_cosine"


def test_two_nli_files_train_one_classifier(bare_model: BareModel, tmp_path: Path) -> None:
    sources = [{"data": str(nli(tmp_path / f"{i}.csv"))} for i in range(2)]
    settings = {
        "model": str(bare_model("bert")),
        "pooling": "mean",
        "objective": "classification",
        "source": sources,
        "output": str(tmp_path / "run"),
    }
    train(settings, batch_size=4, checkpoint_steps=2, max_steps=4)
    from twinvec.training.checkpoint import list_checkpoints, load_checkpoint

    tensors, _ = load_checkpoint(list_checkpoints(tmp_path / "run")[-1])
    heads = {name: value for name, value in tensors.items() if name.startswith("heads.") and name.endswith("weight")}
    first, *more = heads.values()
    assert all(np.array_equal(first, other) for other in more)
    finished = (tmp_path / "run" / "best" / "model.safetensors").read_bytes()
    train(settings, batch_size=4, checkpoint_steps=2, max_steps=4, resume=True)
    assert (tmp_path / "run" / "best" / "model.safetensors").read_bytes() == finished


def test_labelled_dev_and_loss_do_not_mix_over_several_sources(bare_model: BareModel, tmp_path: Path) -> None:
    sources = [{"objective": "cosent", "data": str(pairs(tmp_path / "a.csv"))}, {"objective": "simcse", "data": str(texts(tmp_path / "b.csv"))}]
    settings = {"model": str(bare_model("bert")), "pooling": "mean", "source": sources, "output": str(tmp_path / "run"), "dev_share": 0.3}
    with pytest.raises(UsageError, match="the losses of several sources have no common scale"):
        train(settings, metric="loss")
