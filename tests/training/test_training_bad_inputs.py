"""Recipes of several data sets and stages that make no sense, and environments that are no torchrun. `CASES` is the table of the documentation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from twinvec.errors import UsageError
from twinvec.training.distributed import VARIABLES, world
from twinvec.training.recipe import Recipe

BASE: dict[str, Any] = {"model": "minilm", "output": "runs/a"}
PAIRS = {"data": "a.csv", "objective": "infonce"}
NEW = {**BASE, "model": "new", "data": "t.txt", "objective": "mlm"}


class Case(NamedTuple):
    name: str
    settings: dict[str, Any]
    message: str


CASES = (
    Case("a source that is one table", {**BASE, "source": PAIRS}, r"source = \{.*\}: input should be a valid list"),
    Case("a source that is no table", {**BASE, "source": ["a.csv"]}, r"source.0 = .*: input should be a valid dictionary"),
    Case("a source without data", {**BASE, "source": [{"objective": "infonce"}]}, r"source 1: 'data' is missing \(training file"),
    Case("a source without an objective", {**BASE, "source": [PAIRS, {"data": "b.csv"}]}, r"source 2: 'objective' is missing"),
    Case("a source with a misspelt key", {**BASE, "source": [{**PAIRS, "wieght": 2}]}, r"source 1: unknown key 'wieght'; did you mean 'weight'\?"),
    Case("a source with a learning rate", {**BASE, "source": [{**PAIRS, "lr": 1e-3}]}, r"source 1: 'lr' is a setting of the whole stage"),
    Case("a source with a wrong value", {**BASE, "source": [{**PAIRS, "scale": 0}]}, r"source 1: scale = 0: input should be greater than 0"),
    Case("a weight without mixing by weights", {**BASE, "source": [{**PAIRS, "weight": 2}, PAIRS]}, r"mixing = 'proportional' looks at no weights"),
    Case("sources beside stages", {**BASE, "source": [PAIRS], "stage": [PAIRS]}, r"a recipe with stages has its sources inside them"),
    Case("a stage that is no table", {**BASE, "stage": ["mlm"]}, r"stage.0 = .*: input should be a valid dictionary"),
    Case("a stage without data", {**BASE, "stage": [PAIRS, {"objective": "cosent"}]}, r"stage 2: 'data' is missing"),
    Case("a stage with an output", {**BASE, "stage": [{**PAIRS, "output": "x"}]}, r"stage 1: output belongs to the whole run"),
    Case("a stage that resumes", {**BASE, "stage": [{**PAIRS, "resume": True}]}, r"stage 1: resume belongs to the whole run"),
    Case("a stage within a stage", {**BASE, "stage": [{**PAIRS, "stage": [PAIRS]}]}, r"stage 1: stage belongs to the whole run"),
    Case("a stage whose name is a path", {**BASE, "stage": [{**PAIRS, "name": "../x"}]}, r"name = '../x': it names a folder; wanted letters"),
    Case("a stage with a misspelt key", {**BASE, "stage": [{**PAIRS, "epocs": 2}]}, r"stage 1: unknown key 'epocs'; did you mean 'epochs'\?"),
    Case("a stage whose source is one table", {**BASE, "stage": [{"source": PAIRS}]}, r"stage 1: source = \{.*valid list"),
    Case("a stage with patience and no dev", {**BASE, "stage": [{**PAIRS, "patience": 2}]}, r"stage 1: patience: early stopping needs dev data"),
    Case("a stage with another loss", {**BASE, "stage": [{**PAIRS, "objective": "nli"}]}, r"stage 1: objective = 'nli': input should be 'class"),
    Case("a new model without sizes", NEW, r"model = 'new' wants new_model, e.g."),
    Case("a new model with an unknown size", {**NEW, "new_model": {"layer": 2}}, r"new_model: unknown key 'layer'; wanted .*did you mean 'layers'"),
    Case("a new model whose texts are one file", {**NEW, "new_model": {"texts": "t.txt"}}, r"texts = 't.txt': wanted a list of files"),
    Case("sizes of a new model for an old one", {**NEW, "model": "minilm", "new_model": {"layers": 2}}, r"new_model: the model is 'minilm'"),
    Case(
        "a prompt for an unknown column", {**BASE, **PAIRS, "column_prompts": {"postive": "q"}}, r"no column is called 'postive'; .*mean 'positive'"
    ),
    Case("prompts that are no table", {**BASE, **PAIRS, "prompts": "query: "}, r"prompts = 'query: ': input should be a valid dictionary"),
    Case("an unknown mixing", {**BASE, **PAIRS, "mixing": "random"}, r"mixing = 'random': input should be 'proportional', 'even'"),
    Case("an unknown direction", {**BASE, **PAIRS, "direction": "both"}, r"direction = 'both': input should be 'one_sided', 'symmetric' or 'all'"),
    Case("a temperature of zero", {**BASE, **PAIRS, "temperature": 0}, r"temperature = 0: input should be greater than 0"),
    Case("a negative margin", {**BASE, **PAIRS, "margin": -1}, r"margin = -1: input should be greater than or equal to 0"),
    Case("matryoshka that is no list", {**BASE, **PAIRS, "matryoshka": 64}, r"matryoshka = 64: input should be a valid list"),
    Case("one row a class", {**BASE, **PAIRS, "per_class": 1}, r"per_class = 1: input should be greater than or equal to 2"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_recipe_that_makes_no_sense_gets_its_message(case: Case, record_property: Callable[[str, object], None]) -> None:
    with pytest.raises(UsageError, match=case.message) as found:
        Recipe.of(**case.settings)
    message = str(found.value)
    record_property("message", message)
    assert "\n" not in message
    assert len(message) < 600


ENVIRONMENTS = (
    (
        "processes without a meeting place",
        {"RANK": "0", "WORLD_SIZE": "2"},
        r"MASTER_ADDR and MASTER_PORT is not; several processes are started with",
    ),
    ("a number of processes that is none", {"WORLD_SIZE": "two"}, r"WORLD_SIZE is 'two', wanted a whole number"),
    ("a rank beyond the last", {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}, r"RANK = 2, WORLD_SIZE = 2: wanted a rank"),
)


@pytest.mark.parametrize(("name", "variables", "message"), ENVIRONMENTS, ids=[name for name, _, _ in ENVIRONMENTS])
def test_torchrun_by_halves(
    name: str, variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=message) as found, world():
        pass
    record_property("message", str(found.value))


def test_each_case_has_its_name() -> None:
    names = [case.name for case in CASES] + [name for name, _, _ in ENVIRONMENTS]
    assert len(set(names)) == len(names)


def test_what_a_stage_takes_from_the_top_and_what_from_the_last_stage() -> None:
    top = {**NEW, "new_model": {"layers": 2}, "pooling": "cls", "metric": "spearman_cosine", "patience": 2, "lr": 1e-3, "prompts": {"query": "q: "}}
    del top["data"], top["objective"]
    made = Recipe.of(
        **top, stage=[{"objective": "mlm", "data": "t.txt"}, {**PAIRS, "dev": "d.csv", "name": "pairs"}, {**PAIRS, "model": "minilm"}]
    ).stages()
    assert [stage.output for stage in made] == ["runs/a/1-mlm", "runs/a/2-pairs", "runs/a/3-infonce"]
    assert [stage.model for stage in made] == ["new", "runs/a/1-mlm/best", "minilm"]
    assert [stage.pooling for stage in made] == ["cls", None, None]
    assert [(stage.metric, stage.patience) for stage in made] == [("auto", 0), ("spearman_cosine", 2), ("auto", 0)]
    assert [bool(stage.new_model) for stage in made] == [True, False, False]
    assert {stage.lr for stage in made} == {1e-3}
    assert all(stage.prompts for stage in made)


def test_the_prompts_that_dev_is_measured_with() -> None:
    def measured(*sources: dict[str, Any], **top: Any) -> str | None:
        return Recipe.of(**BASE, **PAIRS, **top, source=list(sources)).measured_as().prompt

    assert measured() is None
    assert measured(prompt="query") == "query"
    assert measured({"prompt": "own"}, prompt="query") == "own"
    assert measured({}, {"prompt": "own"}) == "own"
    assert measured({}, {"prompt": "own"}, prompt="query") == "query"
