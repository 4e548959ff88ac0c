"""`twinvec similarity`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from twinvec.cli import options as opt
from twinvec.cli.console import Console, aligned, one_line, room
from twinvec.cli.loading import check_inputs, check_output, load_encoder, prompt_note
from twinvec.errors import UsageError

if TYPE_CHECKING:
    from twinvec.data.dataset import Dataset
    from twinvec.model.encoder import Encoder


Texts = Annotated[list[str] | None, opt.argument("TEXT1 TEXT2 [TEXT3...]", "texts to compare with each other")]
Data = Annotated[Path | None, opt.value("--data", metavar="FILE", help="score each row of a file of pairs instead")]
Output = Annotated[
    Path | None,
    opt.value(
        "--output", "-o", metavar="FILE", help="with --data: the file's columns and 'similarity' (.csv, .tsv, .jsonl, .parquet); default: print"
    ),
]


def similarity(
    model: opt.Model,
    texts: Texts = None,
    data: Data = None,
    output: Output = None,
    prompt: opt.Prompt = None,
    columns: opt.Columns = None,
    encoding: opt.Encoding = "utf-8",
    format: opt.Format = None,
    on_long: opt.OnLong = "truncate",
    batch_tokens: opt.BatchTokens = None,
    precision: opt.Precision = "float32",
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
    loads = {"precision": precision, "pooling": pooling, "max_tokens": max_tokens, "revision": revision, "device": device}
    calls: dict[str, Any] = {"prompt": prompt, "on_long": on_long, "batch_tokens": batch_tokens}
    if data is None:
        if output is not None:
            raise UsageError("--output is for --data FILE; the cosine of texts is printed")
        if not texts or len(texts) < 2:
            raise UsageError(f"{len(texts or [])} texts: wanted two or more, or --data FILE with pairs")
        _compare(out, load_encoder(model, **loads), texts, calls)
        return
    if texts:
        raise UsageError("give either texts or --data FILE, not both")
    check_inputs([data])
    if output is not None:
        check_output(output, (".csv", ".tsv", ".jsonl", ".parquet"), force)
    from twinvec.data.dataset import read_data

    reads: dict[str, Any] = {"columns": columns, "encoding": encoding, "format": format}
    pairs = read_data(data, **reads)
    _score(out, lambda: load_encoder(model, **loads), pairs, output, reads, {**calls, "progress": out.progress})


def _compare(out: Console, encoder: Encoder, texts: list[str], calls: dict[str, Any]) -> None:
    from twinvec.evaluation.metrics import similarities

    encoding = encoder.encode_with_report(texts, **calls)
    out.note_all([*encoding.report.warnings(), *prompt_note(encoder, calls["prompt"])])
    vectors = encoding.vectors
    matrix = [[float(x) for x in similarities(vectors, vectors[[i] * len(texts)], "cosine")] for i in range(len(texts))]
    if len(texts) == 2:
        out.result({"similarity": matrix[0][1], "texts": texts}, [f"{matrix[0][1]:.4f}"])
        return
    head = ["", *(str(i + 1) for i in range(len(texts))), ""]
    left = room(6 * (len(texts) + 1) + 4)
    rows = [[str(i + 1), *(f"{x:.2f}" for x in row), one_line(texts[i], left)] for i, row in enumerate(matrix)]
    out.result({"similarity": matrix, "texts": texts}, aligned([head, *rows], right=range(len(texts) + 1)))


def _score(out: Console, load: Any, pairs: Dataset, output: Path | None, reads: dict[str, Any], calls: dict[str, Any]) -> None:
    from twinvec.evaluation.encoding import encode_columns
    from twinvec.evaluation.metrics import similarities

    if len(pairs.columns) != 2:
        raise UsageError(f"{pairs.path} holds {pairs.kind}: wanted two texts a row; name them with --columns sentence1=...,sentence2=...")
    if output is not None:
        out.describe(pairs.describe())
    out.note_all(pairs.notes)
    encoder = load()
    prompt = calls.pop("prompt")
    encoded = encode_columns(encoder, pairs.columns, dict.fromkeys(pairs.columns, prompt), **calls)
    out.note_all(encoded.notes)
    u, v = encoded.vectors.values()
    scores = [float(x) for x in similarities(u, v, "cosine")]
    first, second = pairs.columns.values()
    payload: dict[str, Any] = {"file": str(pairs.path), "rows": len(pairs), "output": str(output) if output else None}
    if output is None:
        payload["pairs"] = [{"texts": [a, b], "similarity": score} for a, b, score in zip(first, second, scores, strict=True)]
        lines = [f"{score:.4f}\t{one_line(a)}\t{one_line(b)}" for a, b, score in zip(first, second, scores, strict=True)]
        out.result(payload, lines)
        return
    from twinvec.cli.tables import write_table
    from twinvec.data.tables import read_table

    table = read_table(
        pairs.path, encoding=reads["encoding"], format=reads["format"], header=not all(name.isdigit() for name in pairs.mapping.values())
    )
    kept = {name: [cells[number - 1] for number in pairs.numbers] for name, cells in table.columns.items() if name != "similarity"}
    write_table(output, {**kept, "similarity": scores})
    mean = sum(scores) / len(scores)
    out.result({**payload, "mean": mean}, [f"{output}: {len(scores):,} pairs scored, mean {mean:.4f}, from {min(scores):.4f} to {max(scores):.4f}"])
