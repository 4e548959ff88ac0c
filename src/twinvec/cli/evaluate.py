"""`twinvec evaluate`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from twinvec.cli import options as opt
from twinvec.cli.console import Console, aligned
from twinvec.cli.loading import check_inputs, load_encoder, read_option_map

if TYPE_CHECKING:
    from twinvec.data.beir import RetrievalSet
    from twinvec.data.dataset import Dataset

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
ASIDE = ("task", "file", "rows", "encode", "notes")


Files = Annotated[list[Path], opt.argument("FILE|FOLDER...", "pairs with scores or 0/1, NLI, triplets, parallel texts; or folders in BEIR layout")]
Prompts = Annotated[str | None, opt.value("--prompts", metavar="LIST", help="a prompt for each column instead: query=query,document=passage")]
Limit = Annotated[int | None, opt.value("--limit", min=1, metavar="N", help="only the first rows (or queries)")]


def evaluate(
    model: opt.Model,
    files: Files,
    prompt: opt.Prompt = None,
    prompts: Prompts = None,
    kind: opt.Kind = None,
    columns: opt.Columns = None,
    labels: opt.Labels = None,
    score_range: opt.ScoreRange = None,
    split: opt.Split = "test",
    limit: Limit = None,
    encoding: opt.Encoding = "utf-8",
    format: opt.Format = None,
    on_long: opt.OnLong = "truncate",
    batch_tokens: opt.BatchTokens = None,
    precision: opt.Precision = "float32",
    pooling: opt.Pooling = None,
    max_tokens: opt.MaxTokens = None,
    revision: opt.Revision = None,
    device: opt.Device = None,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Measure a model on labelled files or retrieval folders.

    What is measured follows from the file: correlation with scores, average precision of pairs, ranking of documents, and more. Folders hold
    corpus.jsonl, queries.jsonl and qrels/test.tsv.

    \b
    Example:
      twinvec evaluate minilm stsb.test.csv
      twinvec evaluate models/e5-small pairs.csv faq/ --prompt query --json
    """
    out = Console(json, quiet)
    check_inputs(files)
    named = read_option_map("--prompts", prompts)
    reads = {"kind": kind, "columns": columns, "labels": labels, "score_range": score_range, "encoding": encoding, "format": format}
    sets = [_read(out, path, reads, split) for path in files]
    from twinvec.evaluation.evaluate import evaluate as measure

    encoder = load_encoder(model, precision=precision, pooling=pooling, max_tokens=max_tokens, revision=revision, device=device)
    results = []
    for data in sets:
        found = measure(
            encoder, data, prompt=prompt, prompts=named, limit=limit, batch_tokens=batch_tokens, on_long=on_long, progress=out.progress
        )  # fmt: skip
        for note in found["notes"]:
            out.note(note if len(sets) == 1 else f"{found['file']}: {note}", keep=False)
        results.append(found)
        if not json:
            out.result({}, [*([""] if len(results) > 1 else []), *report(found)])
    if json:
        payload = {"results": results, "model": encoder.name, "fingerprint": encoder.fingerprint}
        out.result(payload, [])


def _read(out: Console, path: Path, reads: dict[str, Any], split: str) -> Dataset | RetrievalSet:
    if path.is_dir():
        from twinvec.data.beir import read_retrieval

        data: Dataset | RetrievalSet = read_retrieval(path, split=split)
    else:
        from twinvec.data.dataset import read_data

        data = read_data(path, **reads)
    out.describe(data.describe())
    return data


def report(result: dict[str, Any]) -> list[str]:
    """One result for a human: what was measured, then the scores as a table."""
    prompts = {column: text for column, text in result["encode"].get("prompts", {}).items() if text}
    same = len(set(prompts.values())) == 1 and len(prompts) == len(result["encode"]["prompts"])
    said = repr(next(iter(prompts.values()))) if same else ", ".join(f"{text!r} ({column})" for column, text in prompts.items())
    what = "queries" if result["task"] == "retrieval" else "rows"
    return [f"{result['file']}: {result['task']}, {result['rows']:,} {what}{f', prompt {said}' if prompts else ''}", *_scores(result)]


def _scores(result: dict[str, Any]) -> Iterator[str]:
    values = {key: value for key, value in result.items() if key not in ASIDE}
    at = {key: key.rpartition("@") for key in values if "@" in key}
    by = {key: key.rpartition("_") for key in values if key.rpartition("_")[2] in SIMILARITIES}
    if at:
        yield from _grid({key: (name, f"@{k}") for key, (name, _, k) in at.items()}, values)
    # A metric of several similarities is a row of a table, one of a single similarity a line.
    metrics = [metric for metric, _, _ in by.values()]
    table = {key: (metric, name) for key, (metric, _, name) in by.items() if metrics.count(metric) > 1}
    if table:
        yield from _grid(table, values)
    rest = [[key, _number(value)] for key, value in values.items() if key not in at and key not in table]
    yield from aligned(rest, right=(1,), indent="  ")


def _grid(places: dict[str, tuple[str, str]], values: dict[str, Any]) -> list[str]:
    rows = list(dict.fromkeys(row for row, _ in places.values()))
    columns = list(dict.fromkeys(column for _, column in places.values()))
    cells = {place: _number(values[key]) for key, place in places.items()}
    table = [["", *columns], *([row, *(cells.get((row, column), "") for column in columns)] for row in rows)]
    return aligned(table, right=range(1, len(columns) + 1), indent="  ")


def _number(value: Any) -> str:
    if value is None:
        return "undefined"
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
