"""`twinvec similarity`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinvec.cli import options as opt
from twinvec.cli.console import Console, aligned, one_line, room
from twinvec.cli.loading import check_inputs, check_output, load_encoder, prompt_note
from twinvec.errors import UsageError

if TYPE_CHECKING:
    from twinvec.data.dataset import Dataset
    from twinvec.evaluation.calibration import Calibration
    from twinvec.model.encoder import Encoder


Texts = Annotated[list[str] | None, opt.argument("TEXT1 TEXT2 [TEXT3...]", "texts to compare with each other")]
Data = Annotated[Path | None, opt.value("--data", metavar="FILE", help="score each row of a file of pairs instead")]
Output = Annotated[
    Path | None,
    opt.value(
        "--output", "-o", metavar="FILE", help="with --data: the file's columns and 'similarity' (.csv, .tsv, .jsonl, .parquet); default: print"
    ),
]
Probability = Annotated[
    bool,
    typer.Option("--probability", help="also the probability of meaning the same, by the model's calibration.json (evaluate --calibrate --save)"),
]


def similarity(
    model: opt.Model,
    texts: Texts = None,
    data: Data = None,
    output: Output = None,
    probability: Probability = False,
    prompt: opt.Prompt = None,
    columns: opt.Columns = None,
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
    force: opt.Force = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Compare texts by their cosine, or score a file of pairs.

    \b
    Example:
      twinvec similarity minilm "A man plays a guitar" "Someone makes music"
      twinvec similarity minilm --data pairs.csv -o scored.csv
    """
    out = Console(json, quiet)
    loads = {"engine": engine, "precision": precision, "pooling": pooling, "max_tokens": max_tokens, "revision": revision, "device": device}
    calls: dict[str, Any] = {"prompt": prompt, "on_long": on_long, "batch_tokens": batch_tokens}
    if data is None:
        if output is not None:
            raise UsageError("--output is for --data FILE; the cosine of texts is printed")
        if not texts or len(texts) < 2:
            raise UsageError(f"{len(texts or [])} texts: wanted two or more, or --data FILE with pairs")
        _compare(out, load_encoder(model, **loads), texts, calls, probability)
        return
    if texts:
        raise UsageError("give either texts or --data FILE, not both")
    check_inputs([data])
    if output is not None:
        check_output(output, (".csv", ".tsv", ".jsonl", ".parquet"), force)
    from twinvec.data.dataset import read_data

    reads: dict[str, Any] = {"columns": columns, "encoding": encoding, "format": format}
    pairs = read_data(data, **reads)
    _score(out, lambda: load_encoder(model, **loads), pairs, output, reads, {**calls, "progress": out.progress}, probability)


def _calibration(out: Console, encoder: Encoder, asked: bool, prompts: set[str]) -> Calibration | None:
    """The model's calibration, with a note where it was learnt under another prompt. UsageError: it was made of other weights."""
    if not asked:
        return None
    from twinvec.evaluation.calibration import Calibration

    if encoder.source is None:
        raise UsageError(f"--probability needs a model folder with a calibration.json, and {encoder.name} is in no folder")
    found = Calibration.load(encoder.source)
    if found.fingerprint and found.fingerprint != encoder.fingerprint:
        raise UsageError(
            f"--probability: {encoder.source}/calibration.json was made of another model (fingerprint {found.fingerprint[:8]}..., this one has "
            f"{encoder.fingerprint[:8]}...); make it anew with: twinvec evaluate MODEL pairs.csv --calibrate --save"
        )
    learnt = set(found.prompts.values()) or {""}
    if learnt != prompts:
        shown = " and ".join(map(repr, sorted(prompts)))
        out.note(f"the calibration was learnt with prompt {' and '.join(map(repr, sorted(learnt)))} and is used with {shown}: it may be far off")
    return found


def _compare(out: Console, encoder: Encoder, texts: list[str], calls: dict[str, Any], probability: bool) -> None:
    from twinvec.evaluation.metrics import similarities

    calibration = _calibration(out, encoder, probability, {encoder.prompt_text(calls["prompt"])})
    encoding = encoder.encode_with_report(texts, **calls)
    out.note_all([*encoding.report.warnings(), *prompt_note(encoder, calls["prompt"])])
    vectors = encoding.vectors
    matrix = [[float(x) for x in similarities(vectors, vectors[[i] * len(texts)], "cosine")] for i in range(len(texts))]
    chances = None if calibration is None else [[float(x) for x in calibration.probability(row)] for row in matrix]
    if len(texts) == 2:
        payload: dict[str, Any] = {"similarity": matrix[0][1], "texts": texts}
        payload |= {} if chances is None else {"probability": chances[0][1]}
        out.result(payload, [f"{matrix[0][1]:.4f}" + ("" if chances is None else f"  probability {chances[0][1]:.3f}")])
        return
    head = ["", *(str(i + 1) for i in range(len(texts))), ""]
    left = room(6 * (len(texts) + 1) + 4)
    rows = [[str(i + 1), *(f"{x:.2f}" for x in row), one_line(texts[i], left)] for i, row in enumerate(chances or matrix)]
    more = {} if chances is None else {"probability": chances}
    out.result({"similarity": matrix, "texts": texts, **more}, aligned([head, *rows], right=range(len(texts) + 1)))


def _score(
    out: Console, load: Any, pairs: Dataset, output: Path | None, reads: dict[str, Any], calls: dict[str, Any], probability: bool
) -> None:  # fmt: skip
    from twinvec.evaluation.encoding import encode_columns
    from twinvec.evaluation.metrics import similarities

    if len(pairs.columns) != 2:
        raise UsageError(f"{pairs.path} holds {pairs.kind}: wanted two texts a row; name them with --columns sentence1=...,sentence2=...")
    if output is not None:
        out.describe(pairs.describe())
    out.note_all(pairs.notes)
    encoder = load()
    prompt = calls.pop("prompt")
    calibration = _calibration(out, encoder, probability, {encoder.prompt_text(prompt)})
    encoded = encode_columns(encoder, pairs.columns, dict.fromkeys(pairs.columns, prompt), **calls)
    out.note_all(encoded.notes)
    u, v = encoded.vectors.values()
    scores = [float(x) for x in similarities(u, v, "cosine")]
    chances = None if calibration is None else [float(x) for x in calibration.probability(scores)]
    first, second = pairs.columns.values()
    payload: dict[str, Any] = {"file": str(pairs.path), "rows": len(pairs), "output": str(output) if output else None}
    if output is None:
        more = [{} if chances is None else {"probability": chance} for chance in chances or scores]
        shown = [""] * len(scores) if chances is None else [f"{chance:.3f}\t" for chance in chances]
        rows = list(zip(first, second, scores, strict=True))
        payload["pairs"] = [{"texts": [a, b], "similarity": score, **extra} for (a, b, score), extra in zip(rows, more, strict=True)]
        lines = [f"{score:.4f}\t{chance}{one_line(a)}\t{one_line(b)}" for (a, b, score), chance in zip(rows, shown, strict=True)]
        out.result(payload, lines)
        return
    from twinvec.cli.tables import write_table
    from twinvec.data.tables import read_table

    table = read_table(
        pairs.path, encoding=reads["encoding"], format=reads["format"], header=not all(name.isdigit() for name in pairs.mapping.values())
    )
    made: dict[str, list[Any]] = {"similarity": scores, **({} if chances is None else {"probability": chances})}
    kept = {name: [cells[number - 1] for number in pairs.numbers] for name, cells in table.columns.items() if name not in made}
    write_table(output, {**kept, **made})
    mean = sum(scores) / len(scores)
    out.result({**payload, "mean": mean}, [f"{output}: {len(scores):,} pairs scored, mean {mean:.4f}, from {min(scores):.4f} to {max(scores):.4f}"])
