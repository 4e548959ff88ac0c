"""`twinvec train` and `twinvec demo`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twinvec.cli.train import TABLES, real_command
from twinvec.training.recipe import Recipe

OWN = {"recipe", "set_", "json", "quiet", "help"}  # what is no recipe key


def flags() -> dict[str, Any]:
    return {param.name: param for param in real_command().params}


def test_every_flag_is_a_recipe_key_and_every_key_a_flag() -> None:
    assert set(flags()) - OWN == set(Recipe.model_fields) - set(TABLES)
    for name in set(Recipe.model_fields) - set(TABLES):
        assert "--" + name.replace("_", "-") in flags()[name].opts


def test_flags_say_what_the_recipe_says() -> None:
    for name, field in Recipe.model_fields.items():
        if name in TABLES:
            continue
        help = flags()[name].help
        assert help.startswith(field.description), name
        assert flags()[name].default is None, "a flag that is not given must leave the recipe's value alone"
        if isinstance(field.default, (int, float)) and not isinstance(field.default, bool) and field.default:
            assert help.endswith(f"[default: {field.default}]")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """The recipes that `train` would have run."""
    found: list[Recipe] = []

    def stand_in(recipe: Recipe, **_: Any) -> dict[str, Any]:
        found.append(recipe)
        result = dict.fromkeys(("best_step", "steps", "seconds"), 0)
        return {
            **result,
            "best_metric": None,
            "baseline_metric": None,
            "metric": "loss",
            "output": "o",
            "best": "b",
            "report": "r",
            "stopped": "",
            "tests": [],
            "notes": [],
        }

    monkeypatch.setattr("twinvec.runs.train.train", stand_in)
    return found


def test_flags_make_a_recipe(run: Any, seen: list[Recipe]) -> None:
    given = run(
        "train", "--model", "m", "--data", "d.csv", "--objective", "triplet", "--output", "o", "--lr", "1e-5", "--batch-size", "8", "--test", "a.csv",
        "--test", "b.csv", "--normalize", "--dropout", "0", "--prompt", "", "--set", "seed=7", "--set", "dev_share=0.1",
    )  # fmt: skip
    assert given.code == 0, given.err
    wanted = Recipe.of(
        model="m", data="d.csv", objective="triplet", output="o", lr=1e-5, batch_size=8, test=["a.csv", "b.csv"], normalize=True, dropout=0.0,
        prompt="", seed=7, dev_share=0.1,
    )  # fmt: skip
    assert seen == [wanted]


def test_a_recipe_file_with_changes(run: Any, seen: list[Recipe], tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('model = "m"\ndata = "d"\nobjective = "regression"\noutput = "o"\nlr = 3e-5\nnormalize = true\nepochs = 4\n')
    assert run("train", tmp_path / "r.toml", "--set", "lr=1e-5", "--no-normalize").code == 0
    assert seen == [Recipe.of(model="m", data="d", objective="regression", output="o", lr=1e-5, normalize=False, epochs=4)]


def test_a_key_given_twice_is_refused(run: Any, seen: list[Recipe]) -> None:
    found = run("train", "--lr", "1e-5", "--set", "lr=2e-5")
    assert (found.code, seen) == (2, [])
    assert found.err == "twinvec: error: lr is given as a flag and with --set; give it once\n"


def test_a_real_run_and_what_inspect_says_of_it(run: Any, saved_model: Path, files: Path) -> None:
    out = files / "run"
    pairs = files / "pairs.csv"
    arguments = ("--model", saved_model, "--data", pairs, "--dev", pairs, "--test", pairs, "--objective", "regression")
    found = run("train", *arguments, "--output", out, "--epochs", "2", "--batch-size", "2", "--prompt", "query", "--json")
    assert found.code == 0, found.err
    assert {"best_step", "best_metric", "baseline_metric", "output"} <= found.json.keys()
    assert found.json["output"] == str(out)
    assert (out / "best" / "model.safetensors").is_file()
    record = run("inspect", out, "--json").json
    assert (record["type"], record["finished"], record["leaves"]["best"]) == ("run", True, True)
    assert record["recipe"]["epochs"] == 2
    shown = run("inspect", out).out
    assert "objective  regression" in shown
    assert f"yes, {found.json['steps']} steps" in shown
    again = run("train", *arguments, "--output", out)
    assert again.code == 2, "an earlier run is not overwritten"
    evaluated = run("evaluate", out / "best", files / "pairs.csv", "--prompt", "query", "--json").json["results"][0]
    assert evaluated["spearman_cosine"] == pytest.approx(found.json["best_metric"], abs=1e-6)


def test_an_unfinished_run(run: Any, tmp_path: Path) -> None:
    record = {"recipe": {"model": "m", "data": "d.csv", "objective": "triplet", "epochs": 1.0}, "started": "now", "versions": {"torch": "2"}}
    (tmp_path / "run.json").write_text(json.dumps(record))
    assert "no, and it has no checkpoint" in run("inspect", tmp_path).out
    (tmp_path / "checkpoints" / "step-10").mkdir(parents=True)
    assert "--resume from step-10" in run("inspect", tmp_path).out
    assert run("inspect", tmp_path, "--json").json["finished"] is False
    (tmp_path / "run.json").write_text('{"recipe"')
    broken = run("inspect", tmp_path)
    assert broken.code == 1
    assert "cannot be read as the record of a run" in broken.err


def test_demo_hands_its_options_on(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def stand_in(output: Path, **options: Any) -> dict[str, Any]:
        seen.update(options, output=output)
        return {"report": "report.html", "collection": "faq", "answers": []}

    monkeypatch.setattr("twinvec.runs.demo.demo", stand_in)
    found = run("demo", "-o", tmp_path / "d", "--language", "zh", "--model", "models/e5", "--epochs", "0.5", "--json", "--quiet")
    assert found.json == {"report": "report.html", "collection": "faq", "answers": [], "notes": []}
    assert seen == {"output": tmp_path / "d", "language": "zh", "model": "models/e5", "epochs": 0.5, "progress": False}
    assert run("demo", "-q").out == 'report: report.html\nask on: twinvec search faq "..."\n'
