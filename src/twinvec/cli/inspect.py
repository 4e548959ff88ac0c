"""`twinvec inspect`: says what a path is, and describes it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twinvec.cli import options as opt
from twinvec.cli.console import Console
from twinvec.cli.describe import Description, describe_collection, describe_data, describe_model, describe_retrieval, describe_run
from twinvec.errors import UsageError

Thing = Annotated[
    str, opt.argument("MODEL|COLLECTION|FILE|RUN", "a model (also 'minilm' or a hub id), a collection, a data file, a retrieval folder or a run")
]
Verify = Annotated[bool, typer.Option("--verify", help="read everything and check it: all checksums of a collection, the fingerprint of a model")]
Test = Annotated[Path | None, opt.value("--test", metavar="FILE", help="a data file that must not overlap with this one")]
Model = Annotated[str | None, opt.value("--model", metavar="MODEL", help="with a data file: count the texts longer than this model's window")]


def inspect(
    path: Thing,
    verify: Verify = False,
    test: Test = None,
    model: Model = None,
    columns: opt.Columns = None,
    kind: opt.Kind = None,
    labels: opt.Labels = None,
    score_range: opt.ScoreRange = None,
    split: opt.Split = "test",
    encoding: opt.Encoding = "utf-8",
    format: opt.Format = None,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Describe and check a model, a collection, a file or a run.

    A model: fingerprint, pooling, prompts, window, size; loading it compares its golden vectors. A collection: rows, model, segments.
    A data file: which column is which, labels, three rows, and a check for duplicates, contradictions, empty and too long texts.

    \b
    Example:
      twinvec inspect minilm
      twinvec inspect faq --verify
      twinvec inspect train.csv --test test.csv --model minilm
    """
    out = Console(json, quiet)
    reads = {"columns": columns, "kind": kind, "labels": labels, "score_range": score_range, "encoding": encoding, "format": format}
    what = kind_of(path)
    for_data = [
        name
        for name, value in (("--test", test), ("--model", model), *((f"--{key.replace('_', '-')}", reads[key]) for key in list(reads)[:4]))
        if value
    ]
    if what != "data" and for_data:
        raise UsageError(f"{for_data[0]} is for data files; {path} is a {what}")
    if what == "data":
        found = describe_data(Path(path), reads, test, model)
    elif what == "retrieval folder":
        found = describe_retrieval(Path(path), split)
    elif what == "collection":
        found = describe_collection(Path(path), verify)
    elif what == "run":
        found = describe_run(Path(path))
    else:
        found = describe_model(path, verify)
    _show(out, found)


def _show(out: Console, found: Description) -> None:
    out.note_all(found.notes)
    out.result(found.payload, found.lines)


def kind_of(name: str) -> str:
    """'collection', 'run', 'retrieval folder', 'data' or 'model', by what is there; anything else is for the model loader to judge."""
    path = Path(name)
    if path.is_dir():
        names = {child.name for child in path.iterdir()}
        if "collection.db" in names or "segments" in names:
            return "collection"
        if names & {"run.json", "log.jsonl"}:
            return "run"
        if names & {"corpus.jsonl", "corpus.jsonl.gz"}:
            return "retrieval folder"
        return "model"
    from twinvec.data.tables import SUFFIXES

    return "data" if path.is_file() or path.name.lower().removesuffix(".gz").endswith(tuple(SUFFIXES)) else "model"
