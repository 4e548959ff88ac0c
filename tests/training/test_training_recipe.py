"""Recipes and schedules."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from twinvec.errors import TwinvecWarning, UsageError
from twinvec.training.recipe import Recipe, parse_changes
from twinvec.training.schedule import lr_factor

BASE: dict[str, Any] = {"model": "minilm", "data": "a.csv", "objective": "regression", "output": "runs/a"}


def test_a_recipe_file_gives_every_setting_and_changes_win(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text('model = "minilm"\ndata = "a.csv"\nobjective = "triplet"\noutput = "o"\nlr = 3e-5\ntest = ["t.csv"]\n', encoding="utf-8")
    recipe = Recipe.load(path, {"lr": 1e-5})
    assert (recipe.lr, recipe.objective, recipe.test, recipe.batch_size) == (1e-5, "triplet", ["t.csv"], 16)
    with pytest.raises(Exception, match="frozen"):
        recipe.lr = 1.0  # type: ignore[misc]


def test_every_key_has_a_description() -> None:
    assert all(field.description for field in Recipe.model_fields.values())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**BASE, "learning_rat": 1}, r"unknown key 'learning_rat'"),
        ({**BASE, "bach_size": 8}, r"unknown key 'bach_size'; did you mean 'batch_size'\?"),
        ({**BASE, "lr": 0}, r"lr = 0: input should be greater than 0"),
        ({**BASE, "lr": "fast"}, r"lr = 'fast': input should be a valid number"),
        ({**BASE, "objective": "info"}, r"objective = 'info': input should be 'classification', 'regression', 'triplet', 'infonce'"),
        ({**BASE, "warmup": 1.5}, r"warmup = 1.5"),
        ({**BASE, "batch_size": 0}, r"batch_size = 0"),
        ({**BASE, "patience": 3}, r"patience: early stopping needs dev data; set dev = FILE or dev_share"),
        ({**BASE, "metric": "loss"}, r"metric: there is no dev data"),
        ({**BASE, "dev": "d.csv", "dev_share": 0.1}, r"dev_share: there is a dev file already"),
        ({key: value for key, value in BASE.items() if key != "model"}, r"'model' is missing"),
    ],
    ids=[
        "misspelt key, far",
        "misspelt key, near",
        "lr of zero",
        "lr that is a word",
        "unknown objective",
        "warm-up above 1",
        "batch of nothing",
        "patience without dev",
        "metric without dev",
        "dev twice",
        "no model",
    ],
)
def test_wrong_settings_name_key_value_and_remedy(settings: dict[str, Any], message: str, record_property: Callable[[str, object], None]) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Recipe.of(**settings)
    record_property("message", str(caught.value))


def test_wrong_files_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no such recipe file"):
        Recipe.load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("model = \n")
    with pytest.raises(UsageError, match=r"bad.toml: not TOML: .*line 1"):
        Recipe.load(tmp_path / "bad.toml")
    (tmp_path / "bin.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8 text at byte 0"):
        Recipe.load(tmp_path / "bin.toml")
    with pytest.raises(UsageError, match="is a folder"):
        Recipe.load(tmp_path)


def test_changes_are_toml_values_or_plain_strings() -> None:
    assert parse_changes(["lr=1e-5", "epochs=2", "resume=true", "dev=a/b.csv", 'test=["x.csv"]']) == {
        "lr": 1e-5,
        "epochs": 2,
        "resume": True,
        "dev": "a/b.csv",
        "test": ["x.csv"],
    }
    with pytest.raises(UsageError, match="wanted KEY=VALUE"):
        parse_changes(["lr"])
    with pytest.raises(UsageError, match=r"no recipe key 'epoch'; did you mean 'epochs'\?"):
        parse_changes(["epoch=2"])


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_warm_up_rises_to_one_and_the_rest_falls_as_named(schedule: str) -> None:
    total, warmup = 100, 0.1
    factors = [lr_factor(step, total, warmup, schedule) for step in range(total)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert factors[10] == 1.0
    rest = factors[10:]
    assert rest == sorted(rest, reverse=True)
    assert rest[-1] == pytest.approx(
        {"linear": 1 / 90, "cosine": 0.5 * (1 + __import__("math").cos(3.14159265 * 89 / 90)), "constant": 1.0}[schedule], abs=1e-4
    )


def test_linear_schedule_is_that_of_transformers_one_step_on() -> None:
    import torch
    from transformers import get_linear_schedule_with_warmup

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = get_linear_schedule_with_warmup(optimizer, 10, 50)
    values = []
    for _ in range(50):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    # Theirs spends its first step at a rate of 0; ours does not waste it.
    assert [lr_factor(step, 50, 0.2, "linear") for step in range(9)] == pytest.approx(values[1:10])
    assert [lr_factor(step, 50, 0.2, "linear") for step in range(10, 50)] == pytest.approx(values[10:])


def test_unknown_schedule_is_named() -> None:
    with pytest.raises(UsageError, match=r"choose one of linear, cosine, constant"):
        lr_factor(0, 10, 0.1, "step")


def test_a_change_that_stages_and_sources_overrule_is_said_aloud(tmp_path: Path) -> None:
    path = tmp_path / "staged.toml"
    path.write_text(
        'model = "m"\noutput = "o"\nobjective = "infonce"\n[[stage]]\nname = "weak"\ndata = "a.csv"\nlimit = 800\n'
        '[[stage]]\nlr = 1e-4\n[[stage.source]]\ndata = "b.csv"\n[[stage.source]]\ndata = "c.csv"\nlimit = 5\n'
    )
    with pytest.warns(TwinvecWarning, match=r"limit stands in stage weak \(800\), source 2 of stage 2 \(5\), and stays what it is there"):
        made = Recipe.load(path, {"limit": 10})
    assert [source.limit for stage in made.stages() for source in stage.sources()] == [800, 10, 5]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Recipe.load(path, {"batch_size": 4})
        Recipe.load(path)
