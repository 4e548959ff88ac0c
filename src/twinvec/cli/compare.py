"""`twinvec compare`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinvec.cli import options as opt
from twinvec.cli.console import Console
from twinvec.cli.evaluate import TASKS, Folds, Level, Limit, Prompts, Seed, SplitOf, Train
from twinvec.cli.loading import check_inputs, check_output, read_option_map
from twinvec.errors import UsageError, choose

if TYPE_CHECKING:
    from twinvec.cli.compare_runs import Bench
    from twinvec.evaluation.compare import Comparison

ENGINES = ("auto", "torch", "ctranslate2", "onnx")
MAPS = ("pca", "umap")

Models = Annotated[
    list[str],
    opt.argument(
        "MODEL...",
        f"{opt.MODEL_HELP}; MODEL::PROMPT for a prompt of its own; a file of vectors (.npy, .parquet); URL::NAME of a service with the OpenAI API",
    ),
]
Data = Annotated[list[Path] | None, opt.value("--data", metavar="FILE|FOLDER", help="what to measure on, as for evaluate; may be given again")]
Engines = Annotated[str | None, opt.value("--engines", metavar="LIST", help="torch,ctranslate2,onnx; exports are made in the cache; default: auto")]
Precisions = Annotated[str | None, opt.value("--precisions", metavar="LIST", help="float32,bf16,int8; default: float32")]
Dimensions = Annotated[str | None, opt.value("--dimensions", metavar="LIST", help="cut the vectors: 384,256,128; default: all they have")]
Task = Annotated[str | None, opt.choice("--task", choices=TASKS, help="what to measure, where a file allows more than one; default: by its columns")]
FigureName = Annotated[
    str | None, opt.value("--figure", metavar="NAME", help="compare by this figure, such as spearman_cosine; default: the main one")
]
Bootstrap = Annotated[int, typer.Option("--bootstrap", min=1, metavar="N", help="draws for intervals and differences")]
Seconds = Annotated[float, typer.Option("--seconds", min=0.0, metavar="S", help="how long the rate of each model is measured at least")]
Cache = Annotated[Path | None, opt.value("--cache", metavar="DIR", help="keep results there; default: twinvec/compare in the user's cache folder")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="measure everything again, and keep nothing")]
Html = Annotated[Path | None, opt.value("--html", metavar="FILE", help="write a report: one file that needs no network")]
Language = Annotated[str, opt.choice("--language", choices=("en", "zh"), help="language in which the report opens; it has a switch")]
MapKind = Annotated[str, opt.choice("--map", choices=MAPS, help="how the report draws texts in two dimensions; umap needs the extra umap")]
Errors = Annotated[int, typer.Option("--errors", min=0, metavar="N", help="worst rows of each model in the report")]
Geometry = Annotated[bool, typer.Option("--geometry", help="in the report: cosines of random texts and the spectrum, all models in one picture")]
Picture = Annotated[Path | None, opt.value("--picture", metavar="FILE", help="write that picture as .svg or .png")]
KeyName = Annotated[str | None, opt.value("--api-key-env", metavar="NAME", help="environment variable with the key of a service")]
Timeout = Annotated[float, typer.Option("--timeout", metavar="S", help="seconds a request to a service may take")]
Retries = Annotated[int, typer.Option("--retries", min=0, metavar="N", help="further tries after a passing fault of a service")]
ServiceBatch = Annotated[int, typer.Option("--service-batch", min=1, metavar="N", help="texts a request to a service")]
Markdown = Annotated[bool, typer.Option("--markdown", help="print a Markdown table")]
Csv = Annotated[bool, typer.Option("--csv", help="print CSV")]


def compare(
    models: Models,
    data: Data = None,
    engines: Engines = None,
    precisions: Precisions = None,
    dimensions: Dimensions = None,
    prompt: opt.Prompt = None,
    prompts: Prompts = None,
    task: Task = None,
    figure: FigureName = None,
    kind: opt.Kind = None,
    columns: opt.Columns = None,
    labels: opt.Labels = None,
    score_range: opt.ScoreRange = None,
    split: SplitOf = "test",
    limit: Limit = None,
    train: Train = None,
    folds: Folds = 5,
    bootstrap: Bootstrap = 1000,
    level: Level = 0.95,
    seed: Seed = 0,
    seconds: Seconds = 2.0,
    cache: Cache = None,
    no_cache: NoCache = False,
    html: Html = None,
    language: Language = "en",
    map: MapKind = "pca",
    errors: Errors = 20,
    geometry: Geometry = False,
    picture: Picture = None,
    api_key_env: KeyName = None,
    timeout: Timeout = 60.0,
    retries: Retries = 4,
    service_batch: ServiceBatch = 64,
    encoding: opt.Encoding = "utf-8",
    format: opt.Format = None,
    on_long: opt.OnLong = "truncate",
    batch_tokens: opt.BatchTokens = None,
    pooling: opt.Pooling = None,
    max_tokens: opt.MaxTokens = None,
    revision: opt.Revision = None,
    device: opt.Device = None,
    force: opt.Force = False,
    markdown: Markdown = False,
    csv: Csv = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Compare models on your data: quality, cost, which to take.

    Each model is measured in a process of its own. Results are kept, and measured again when the model, the data, an option or the machine changes.

    \b
    Example:
      twinvec compare minilm models/e5::query --data pairs.csv --html report.html
      twinvec compare models/mine --data pairs.csv --engines torch,ctranslate2 --precisions float32,int8 --dimensions 384,128
      twinvec compare minilm vectors.parquet http://localhost:8000/v1::my-model --data faq/ --json
    """
    out = Console(json, quiet)
    if json + markdown + csv > 1:
        raise UsageError("give one of --json, --markdown and --csv")
    if not data:
        raise UsageError(f"{models[0]}: nothing to measure on; give --data FILE (more than once for several files)")
    if no_cache and cache is not None:
        raise UsageError("give one of --cache and --no-cache")
    if not 0 < level < 1:
        raise UsageError(f"--level {level:g}: wanted a confidence between 0 and 1, such as 0.95")
    for option, path, endings in (("--html", html, (".html", ".htm")), ("--picture", picture, (".svg", ".png"))):
        if path is not None:
            check_output(path, endings, force, option)
    if map == "umap":
        _needs_umap(html)
    check_inputs([*data, *([train] if train else [])])
    from twinvec.cli.compare_runs import Bench, candidates_of, default_cache, settings_of

    settings = settings_of(models, prompt, _names("--engines", engines, ENGINES), _names("--precisions", precisions, opt.PRECISIONS))
    cuts = _numbers(dimensions)
    reads: dict[str, Any] = {
        "kind": kind, "columns": columns, "labels": labels, "score_range": score_range, "encoding": encoding, "format": format, "task": task,
        "split": split, "limit": limit,
    }  # fmt: skip
    sets = [_read(out, path, reads) for path in data]
    options = {
        "prompts": read_option_map("--prompts", prompts), "task": task, "limit": limit, "train": None if train is None else str(train),
        "folds": folds, "on_long": on_long, "batch_tokens": batch_tokens,
    }  # fmt: skip
    loads = {"pooling": pooling, "max_tokens": max_tokens, "revision": revision, "device": device}
    service = {"key_variable": api_key_env, "timeout": timeout, "retries": retries, "batch": service_batch}
    place = None if no_cache else cache or default_cache()
    with tempfile.TemporaryDirectory(prefix="twinvec-compare.") as work:
        bench = Bench(out, sets, data, reads, options, loads, seconds, place, Path(work), service)
        candidates = candidates_of(bench, settings, cuts)
        from twinvec.evaluation.compare import compare as compared

        found = compared(candidates, sets, figure=figure, draws=bootstrap, level=level, seed=seed, progress=False, **options)
    _say_notes(out, found.result)
    _write(out, found, bench, html, picture, {"language": language, "map": map, "errors": errors, "geometry": geometry})
    _print(out, found.result, bench, "markdown" if markdown else "csv" if csv else "plain")


def _needs_umap(html: Path | None) -> None:
    import importlib.util

    if html is None:
        raise UsageError("--map umap is for the report; give --html FILE")
    if importlib.util.find_spec("umap") is None:
        raise UsageError("--map umap needs pip install 'twinvec[umap]'")


def _names(option: str, value: str | None, known: tuple[str, ...]) -> list[str]:
    names = [name.strip() for name in (value or "").split(",") if name.strip()]
    return [choose(option, name, known) for name in dict.fromkeys(names)]


def _numbers(value: str | None) -> list[int]:
    found = []
    for item in (value or "").split(","):
        if item.strip():
            if not item.strip().isdecimal() or int(item) < 1:
                raise UsageError(f"--dimensions {value!r}: wanted whole numbers from 1, such as 384,256,128")
            found.append(int(item))
    return list(dict.fromkeys(found))


def _read(out: Console, path: Path, reads: dict[str, Any]) -> Any:
    from twinvec.evaluation.reading import read_held

    held = read_held(path, **reads)
    out.describe(held.describe())
    return held


def _say_notes(out: Console, result: dict[str, Any]) -> None:
    shared: dict[str, list[str]] = {}
    for row in result["models"]:
        for note in row["notes"]:
            shared.setdefault(note, []).append(row["model"])
    for note, names in shared.items():  # what holds for all is said once
        out.note(note if len(names) == len(result["models"]) else f"{', '.join(names)}: {note}", keep=False)


def _write(out: Console, found: Comparison, bench: Bench, html: Path | None, picture: Path | None, pages: dict[str, Any]) -> None:
    if html is not None:
        from twinvec.evaluation.report.build import write_report
        from twinvec.model.machine import describe_machine

        machine = describe_machine()
        about = {"command": _command(), "machine": f"{machine['cpu']}, {machine['cpus']} CPUs"}
        write_report(html, found, about=about, left_out=bench.left_out, **pages)
        out.note(f"report: {html}", keep=False)
    if picture is not None:
        from twinvec.evaluation.report.build import geometry_picture, save_picture

        out.note(f"picture: {save_picture(picture, geometry_picture(found), pages['language'])}", keep=False)


def _command() -> str:
    import shlex

    return shlex.join(["twinvec", *sys.argv[1:]]) if len(sys.argv) > 1 and sys.argv[1] == "compare" else "twinvec compare"


def _print(out: Console, result: dict[str, Any], bench: Bench, style: str) -> None:
    from twinvec.cli.compare_tables import plain_table, report, table
    from twinvec.cli.evaluate_tables import written

    if out.json:
        out.result({**result, "left_out": bench.left_out, "cache": None if bench.cache is None else str(bench.cache)}, [])
    elif style == "csv":
        out.result({}, written(plain_table(result), style))
    elif style == "markdown":
        out.result({}, [*written(table(result), style), "", result["recommendation"]["sentence"]])
    else:
        out.result({}, report(result))
