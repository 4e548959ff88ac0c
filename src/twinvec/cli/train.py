"""`twinvec train`: every flag is a key of `Recipe`, and the flags are made from it when the command is used."""

from __future__ import annotations

import inspect
import types
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from typer.core import TyperCommand

from twinvec.cli import options as opt
from twinvec.cli.console import Console, aligned, pairs
from twinvec.errors import UsageError

HELP = """Train a model from pairs, labels, triplets or bare texts.

    Settings come from a recipe (a TOML file), from flags, or both; a flag or --set goes before the recipe. Every flag is a recipe key of the
    same name; several data sets ([[source]]) and stages ([[stage]]) are written in a recipe. The run's folder holds run.json, log.jsonl,
    checkpoints/, report.html and best/, a model folder that works alone. Several processes: torchrun --nproc-per-node 2 -m twinvec train ...

    \b
    Example:
      twinvec train --model minilm --data train.csv --objective regression --output runs/a --dev dev.csv
      twinvec train --model minilm --data pairs.csv --objective infonce --batch-size 256 --output runs/b --dry-run
      twinvec train recipe.toml --set lr=1e-5
    """
TABLES = ("source", "stage", "new_model")  # tables of a recipe, which no flag can hold
METRICS_SHOWN = ("spearman_cosine", "pearson_cosine", "average_precision_cosine", "accuracy_cosine", "accuracy", "ndcg@10", "accuracy@1")


class TrainCommand(TyperCommand):
    """Stands in for the real command until it is used, since the recipe (pydantic) must not be imported for `twinvec --help`."""

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        return real_command().make_context(info_name, args, parent=parent, **extra)


def train() -> None:
    raise AssertionError("TrainCommand hands over to the real command")  # pragma: no cover


train.__doc__ = HELP


@cache
def real_command() -> Any:
    """The command with one flag a recipe key."""
    from twinvec.cli.main import Command
    from twinvec.training.recipe import Recipe

    recipe = Annotated[Path | None, typer.Argument(metavar="RECIPE", help="recipe file (TOML)", show_default=False)]
    change = Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="set one recipe key; may be given several times", show_default=False)
    ]
    annotations: dict[str, Any] = {"recipe": recipe}
    annotations |= {name: flag(name, field) for name, field in Recipe.model_fields.items() if name not in TABLES}
    annotations |= {"set_": change, "json": opt.Json, "quiet": opt.Quiet}
    defaults = {"json": False, "quiet": False}

    def run(**given: Any) -> None:
        _run(**given)

    only = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, only, default=defaults.get(name), annotation=kind) for name, kind in annotations.items()]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = annotations
    run.__doc__ = HELP
    single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    single.command("train", cls=Command, context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 120})(run)
    return typer.main.get_command(single)


def flag(name: str, field: Any) -> Any:
    """The annotation of one recipe key as an option. None stands for "not given", so that a recipe's own value is kept."""
    kind, choices = _plain(field.annotation)
    words = "--" + name.replace("_", "-")
    help = field.description or ""
    required = field.is_required()
    said = "" if required or field.default in (None, [], {}, False) else f"{field.default}"
    if said:
        help += f"  [default: {said}]"
    if kind is bool:
        return Annotated[bool | None, typer.Option(f"{words}/--no-{words[2:]}", help=help, show_default=False)]
    shown = "|".join(choices) if choices else {int: "N", float: "X", str: "TEXT"}.get(kind, "TEXT")
    help_many = f"{help}; may be given several times"
    if kind is dict:
        return Annotated[list[str] | None, typer.Option(words, metavar="NAME=TEXT", help=help_many, show_default=False)]
    if kind is list:
        (item,) = get_args(field.annotation)
        shown = {int: "N", float: "X"}.get(item, "NAME" if name == "lora_targets" else "FILE")
        return Annotated[list[item] | None, typer.Option(words, metavar=shown, help=help_many, show_default=False)]  # type: ignore[valid-type]
    return Annotated[
        kind | None, typer.Option(words, metavar=shown, callback=opt.one_of(*choices) if choices else None, help=help, show_default=False)
    ]


def _plain(annotation: Any) -> tuple[Any, tuple[str, ...]]:
    """(str, int, float, bool or list; the choices) of a recipe field's type."""
    if get_origin(annotation) in (Union, types.UnionType):
        (annotation,) = [part for part in get_args(annotation) if part is not type(None)]
    if get_origin(annotation) is Literal:
        return str, tuple(map(str, get_args(annotation)))
    return get_origin(annotation) or annotation, ()


def _run(recipe: Path | None, set_: list[str] | None, json: bool, quiet: bool, **flags: Any) -> None:
    from twinvec.training.recipe import Recipe, parse_changes

    given = {key: _value(key, value) for key, value in flags.items() if value not in (None, [], ())}
    changes = parse_changes(set_ or [])
    twice = sorted(given.keys() & changes.keys())
    if twice:
        raise UsageError(f"{twice[0]} is given as a flag and with --set; give it once")
    settings = {**given, **changes}
    if recipe is None and not settings:
        raise UsageError("give a recipe file, or at least --model, --data, --objective and --output")
    chosen = Recipe.load(recipe, settings) if recipe is not None else Recipe.of(**settings)
    from twinvec.runs.train import train as train_recipe
    from twinvec.training.distributed import own_rank

    rank = own_rank()
    out = Console(json, quiet or rank > 0)  # under torchrun one process speaks for all
    result = train_recipe(chosen, progress=out.progress)
    if rank:
        return
    out.note_all(result["notes"])
    out.result({key: value for key, value in result.items() if key != "notes"}, _lines(result))


def _value(key: str, value: Any) -> Any:
    """A flag's value as the recipe has it: NAME=TEXT items become a table."""
    from twinvec.training.recipe import Recipe

    if _plain(Recipe.model_fields[key].annotation)[0] is not dict:
        return list(value) if isinstance(value, tuple) else value
    made = {}
    for item in value:
        name, equals, text = item.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--{key.replace('_', '-')} {item!r}: wanted NAME=TEXT, for example query='query: '")
        made[name.strip()] = text
    return made


def _lines(result: dict[str, Any]) -> list[str]:
    if result.get("dry_run"):
        return list(result["lines"])
    best, before, metric = result["best_metric"], result["baseline_metric"], result["metric"]
    scores = f"{metric} {best:.4f}" if best is not None else f"no {metric}"
    scores += f" (before training {before:.4f})" if before is not None else ""
    rows = [["", "before", "after"]]
    for test in result["tests"]:
        shared = [key for key in METRICS_SHOWN if isinstance(test["before"].get(key), float) and isinstance(test["after"].get(key), float)]
        rows += [[f"{test['file']} {key}", f"{test['before'][key]:.4f}", f"{test['after'][key]:.4f}"] for key in shared]
    stages = [f"  {stage['name']}: {stage['steps']} steps, {stage['metric']} {_shown(stage['best_metric'])}" for stage in result.get("stages", [])]
    return [
        *stages,
        f"{result['output']}: {result['steps']} steps in {result['seconds']} s ({result['stopped']})",
        *pairs([("best step", f"{result['best_step']}: {scores}"), ("model", result["best"]), ("report", result["report"])]),
        *(aligned(rows, right=(1, 2), indent="  ") if len(rows) > 1 else []),
    ]


def _shown(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.4f}"
