"""`twinvec evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinvec.cli import options as opt
from twinvec.cli.console import Console
from twinvec.cli.loading import check_inputs, load_encoder, read_option_map
from twinvec.errors import UsageError

if TYPE_CHECKING:
    from twinvec.evaluation.evaluate import Outcome
    from twinvec.evaluation.reading import Held

SUITES = ("sts-en", "sts-zh")
TASKS = ("sts", "pairs", "nli", "triplets", "parallel", "classification", "clustering", "reranking", "retrieval")
METHODS = ("isotonic", "platt")

Model = Annotated[str, opt.argument("MODEL", f"{opt.MODEL_HELP}; with --suite also MODEL::PROMPT, and several models")]
Files = Annotated[
    list[Path] | None,
    opt.argument(
        "FILE|FOLDER...",
        "scores, pairs, NLI, triplets, parallel texts, texts with classes, reranking lists; or folders in BEIR layout; with --suite more models",
    ),
]
SuiteName = Annotated[str | None, opt.choice("--suite", choices=SUITES, help="the published table of STS sets, for any number of models")]
DataDir = Annotated[Path | None, opt.value("--data-dir", metavar="DIR", help="folder with the suite's files (sts12.test.csv, ..., or SentEval's)")]
Task = Annotated[str | None, opt.choice("--task", choices=TASKS, help="what to measure, where a file allows more than one; default: by its columns")]
Train = Annotated[Path | None, opt.value("--train", metavar="FILE", help="texts with classes that teach the classifiers; default: folds of the file")]
Folds = Annotated[int, typer.Option("--folds", min=2, metavar="N", help="parts of a classification file without --train")]
Prompts = Annotated[str | None, opt.value("--prompts", metavar="LIST", help="a prompt for each column instead: query=query,document=passage")]
Limit = Annotated[int | None, opt.value("--limit", min=1, metavar="N", help="only the first rows (or queries)")]
SplitOf = Annotated[str, typer.Option("--split", metavar="NAME", help="which qrels of a retrieval folder, or test|dev of a suite")]
Bootstrap = Annotated[int, typer.Option("--bootstrap", min=0, metavar="N", help="draws for the interval of every figure; 0 for none")]
Level = Annotated[float, typer.Option("--level", metavar="SHARE", help="confidence of the intervals")]
Seed = Annotated[int, typer.Option("--seed", min=0, metavar="N", help="of everything drawn by chance")]
Slices = Annotated[bool, typer.Option("--slices", help="the main figure by language, by length and by a column named subset")]
By = Annotated[str | None, opt.value("--by", metavar="COLUMN", help="slices by this column of the file too")]
Errors = Annotated[int, typer.Option("--errors", min=0, metavar="N", help="list the N rows that the model gets most wrong")]
Geometry = Annotated[bool, typer.Option("--geometry", help="how the vectors lie: cone, spectrum, hubs, length, and what whitening would change")]
Calibrate = Annotated[bool, typer.Option("--calibrate", help="learn from pairs what a cosine means: a probability and thresholds")]
Method = Annotated[str | None, opt.choice("--method", choices=METHODS, help="of --calibrate; default: isotonic from 1,000 rows on")]
Goal = Annotated[float | None, opt.value("--precision-goal", metavar="SHARE", help="with --calibrate: a threshold for this precision, such as 0.95")]
Save = Annotated[bool, typer.Option("--save", help="with --calibrate: write calibration.json into the model's folder, for similarity --probability")]
Markdown = Annotated[bool, typer.Option("--markdown", help="print a Markdown table")]
Csv = Annotated[bool, typer.Option("--csv", help="print CSV")]


@dataclass(frozen=True)
class _Wanted:
    """What is done with each file beyond its scores."""

    calibrate: bool
    method: str | None
    goal: float | None
    save: bool


def evaluate(
    model: Model,
    files: Files = None,
    suite: SuiteName = None,
    data_dir: DataDir = None,
    prompt: opt.Prompt = None,
    prompts: Prompts = None,
    task: Task = None,
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
    slices: Slices = False,
    by: By = None,
    errors: Errors = 0,
    geometry: Geometry = False,
    calibrate: Calibrate = False,
    method: Method = None,
    precision_goal: Goal = None,
    save: Save = False,
    encoding: opt.Encoding = "utf-8",
    format: opt.Format = None,
    on_long: opt.OnLong = "truncate",
    batch_tokens: opt.BatchTokens = None,
    engine: opt.Engine = "auto",
    precision: opt.Precision = None,
    pooling: opt.Pooling = None,
    max_tokens: opt.MaxTokens = None,
    revision: opt.Revision = None,
    device: opt.Device = None,
    markdown: Markdown = False,
    csv: Csv = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Measure models on labelled files, folders, or a public suite.

    What is measured follows from the file: correlation with scores, average precision of pairs, ranking of documents, classes, and more.
    Folders hold corpus.jsonl, queries.jsonl and qrels/test.tsv. Every figure comes with a bootstrap interval.

    \b
    Example:
      twinvec evaluate minilm stsb.test.csv --slices --errors 20
      twinvec evaluate models/e5-small pairs.csv faq/ --prompt query --json
      twinvec evaluate models/e5-small pairs.csv --prompt query --calibrate --precision-goal 0.95 --save
      twinvec evaluate minilm models/e5-small::query --suite sts-en --data-dir data/sts/en --markdown
    """
    out = Console(json, quiet)
    if json + markdown + csv > 1:
        raise UsageError("give one of --json, --markdown and --csv")
    style = "markdown" if markdown else "csv" if csv else "plain"
    loads = {"engine": engine, "precision": precision, "pooling": pooling, "max_tokens": max_tokens, "revision": revision, "device": device}
    calls: dict[str, Any] = {"on_long": on_long, "batch_tokens": batch_tokens}
    if suite is not None:
        from twinvec.cli.evaluate_suite import run_suite

        _only_for_files(suite, {
            "--task": task, "--train": train, "--by": by, "--prompts": prompts, "--columns": columns, "--kind": kind, "--limit": limit,
            "--slices": slices, "--errors": errors, "--geometry": geometry, "--calibrate": calibrate,
        })  # fmt: skip
        names = [model, *(str(path) for path in files or [])]
        run_suite(out, names, suite, data_dir, split, prompt, loads, calls, {"draws": bootstrap, "level": level, "seed": seed}, style)
        return
    if data_dir is not None:
        raise UsageError("--data-dir is for --suite; files are given by their names")
    if not files:
        raise UsageError(f"{model}: no file to measure it on; give files or folders, or --suite sts-en|sts-zh --data-dir DIR")
    wanted = _Wanted(calibrate, method, precision_goal, save)
    _check_calibration(wanted, model)
    check_inputs([*files, *([train] if train else [])])
    reads = {"kind": kind, "columns": columns, "labels": labels, "score_range": score_range, "encoding": encoding, "format": format}
    sets = [_read(out, path, {**reads, "task": task, "split": split}) for path in files]
    encoder = load_encoder(model, **loads)
    options = {
        **calls, "prompt": prompt, "prompts": read_option_map("--prompts", prompts), "task": task, "limit": limit, "train": train, "folds": folds,
        "seed": seed, "progress": out.progress,
    }  # fmt: skip
    from twinvec.evaluation.extras import Extras

    extras = Extras(bootstrap, level, seed, slices or by is not None, by, errors, geometry, True, encoding, format)
    results = [_one(out, encoder, data, options, extras, wanted, len(sets) > 1, style) for data in sets]
    if json:
        out.result({"results": results, "model": encoder.name, "fingerprint": encoder.fingerprint}, [])


def _only_for_files(suite: str, given: dict[str, Any]) -> None:
    for option, value in given.items():
        if value:
            raise UsageError(f"{option} is for files of your own, not for --suite {suite}")


def _check_calibration(wanted: _Wanted, model: str) -> None:
    for option, value in (("--method", wanted.method), ("--precision-goal", wanted.goal), ("--save", wanted.save)):
        if value and not wanted.calibrate:
            raise UsageError(f"{option} is for --calibrate")
    if wanted.goal is not None and not 0 < wanted.goal <= 1:
        raise UsageError(f"--precision-goal {wanted.goal:g}: wanted a share above 0 and at most 1, such as 0.95")
    if wanted.save and not Path(model).is_dir():
        raise UsageError(
            f"--save writes into the model's own folder, and {model!r} is none of yours; save a copy first: "
            f"python -c \"import twinvec; twinvec.Encoder.load('{model}').save('models/copy')\""
        )


def _read(out: Console, path: Path, reads: dict[str, Any]) -> Held:
    from twinvec.evaluation.reading import read_held

    data = read_held(path, **reads)
    out.describe(data.describe())
    return data


def _one(
    out: Console, encoder: Any, data: Held, options: dict[str, Any], extras: Any, wanted: _Wanted, several: bool, style: str
) -> dict[str, Any]:  # fmt: skip
    from twinvec.cli.evaluate_tables import report, table
    from twinvec.evaluation.evaluate import measure
    from twinvec.evaluation.extras import add_extras

    found = measure(encoder, data, **options)
    result = add_extras(encoder, found.result, found.measured, found.encoded, found.data, extras)
    if wanted.calibrate:
        result["calibration"] = _calibrated(out, encoder, found, extras, wanted)
    for note in result["notes"]:
        out.note(note if not several else f"{result['file']}: {note}", keep=False)
    if not out.json:
        lines = report(result) if style == "plain" else table(result, style)
        out.result({}, [*([""] if several and style != "csv" else []), *lines])
    return result


def _calibrated(out: Console, encoder: Any, found: Outcome, extras: Any, wanted: _Wanted) -> dict[str, Any]:
    from dataclasses import asdict

    import numpy as np

    from twinvec.data.beir import RetrievalSet
    from twinvec.evaluation.calibration import calibrate

    measured, data = found.measured, found.data
    if measured.cosines is None or measured.same is None:
        raise UsageError(f"{data.path}: --calibrate learns from pairs with 0 and 1 (or NLI), and this file is measured as {measured.task}")
    assert not isinstance(data, RetrievalSet)  # has no cosines of pairs
    sharp = np.isfinite(measured.same)
    made = calibrate(
        measured.cosines[sharp], measured.same[sharp], method=wanted.method, precision_goal=wanted.goal, draws=max(extras.bootstrap, 1),
        seed=extras.seed, data=data.path.name, data_sha256=data.sha256, fingerprint=encoder.fingerprint, prompts=found.result["encode"]["prompts"],
    )  # fmt: skip
    if wanted.save:
        out.note(f"saved: {made.save(encoder.source)}", keep=False)
    return asdict(made)
