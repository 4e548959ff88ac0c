"""`twinvec encode`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from twinvec.cli import options as opt
from twinvec.cli.console import Console, bytes_text
from twinvec.cli.loading import check_inputs, check_output
from twinvec.errors import UsageError

COLLECTION = "collection:"

Texts = Annotated[
    list[Path], opt.argument("TEXTS...", "files with texts (txt, csv, tsv, jsonl, parquet, each also .gz) or BEIR folders, or - for standard input")
]
Output = Annotated[
    str,
    opt.value(
        "--output", "-o", metavar="FILE", help="where the vectors go: .npy (rows in order), .parquet (id, text, vector), or collection:FOLDER"
    ),
]  # fmt: skip
Store = Annotated[
    str, opt.choice("--store", choices=("float32", "float16", "int8", "binary"), help="numbers in the file; int8: with ranges, binary: one bit each")
]
Ranges = Annotated[
    Path | None, opt.value("--ranges", metavar="FILE", help="ranges for int8, or .npy of sample vectors; default: those of the first shard")
]
Dimensions = Annotated[int | None, opt.value("--dimensions", metavar="N", help="keep the first N, at length 1 again; for Matryoshka models")]
Text = Annotated[str | None, opt.value("--text", "--column", metavar="COLUMN", help="column with the text; default: found by its name")]
Id = Annotated[str | None, opt.value("--id", metavar="COLUMN", help="column with the ids, for .parquet; default: found by its name, else FILE:ROW")]
Resume = Annotated[bool, typer.Option("--resume/--no-resume", help="go on where a run of the same job was broken off, or begin again")]
Processes = Annotated[int | None, opt.value("--processes", metavar="N", min=1, help="processes, each with the model; default: one a device")]
Device = Annotated[
    str | None, opt.value("--device", metavar="NAME,...", help="cpu, cuda, or several: cuda:0,cuda:1; default: cuda when there is one")
]
Ray = Annotated[str | None, opt.value("--ray", metavar="ADDRESS", help="encode on a Ray cluster: local, auto, or HOST:PORT of its head")]
Cache = Annotated[int, opt.value("--cache", metavar="MB", min=0, help="memory in which equal texts are recognised; 0: within a shard only")]


def encode(
    model: opt.Model,
    texts: Texts,
    output: Output,
    prompt: opt.Prompt = None,
    on_long: opt.OnLong = "truncate",
    batch_tokens: opt.BatchTokens = None,
    engine: opt.Engine = "auto",
    precision: opt.Precision = None,
    profile: opt.Profile = None,
    store: Store = "float32",
    ranges: Ranges = None,
    dimensions: Dimensions = None,
    text: Text = None,
    id: Id = None,
    encoding: opt.Encoding = "utf-8",
    format: opt.Format = None,
    pooling: opt.Pooling = None,
    max_tokens: opt.MaxTokens = None,
    revision: opt.Revision = None,
    device: Device = None,
    processes: Processes = None,
    ray: Ray = None,
    cache: Cache = 128,
    resume: Resume = True,
    force: opt.Force = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Turn texts into vectors, any number of them.

    One row a text, in the order of the files. Says how many texts were cut, empty or unknown to the model. A file is written whole or not at all:
    until then the work lies in FILE.parts/, and the same command goes on from there if it was broken off.

    \b
    Example:
      twinvec encode minilm questions.csv -o questions.parquet
      cat lines.txt | twinvec encode minilm - -o lines.npy --on-long split
      twinvec encode minilm part-*.parquet -o all.parquet --store int8 --processes 4
    """
    from twinvec.scale.bulk import encode_files

    out = Console(json, quiet)
    if not output.startswith(COLLECTION):
        check_output(Path(output), (".npy", ".parquet"), force)
    elif force:
        raise UsageError("--force is for files; documents of a collection are replaced by their ids")
    check_inputs(texts)
    report = encode_files(
        model, texts, output, prompt=prompt, on_long=on_long, batch_tokens=batch_tokens, store=store, dimensions=dimensions, ranges=ranges,
        text=text, id=id, encoding=encoding, format=format, resume=resume, force=force, processes=processes,
        devices=[name.strip() for name in device.split(",")] if device else [], ray=ray, cache_bytes=cache << 20,
        progress=out.progress, notify=out.note,
        engine=engine, precision=precision, profile=profile, revision=revision, pooling=pooling, max_tokens=max_tokens,
    )  # fmt: skip
    out.note_all(report.warnings())
    payload = report.to_dict()
    out.result(payload, _lines(payload))


def _lines(payload: dict[str, Any]) -> list[str]:
    rows, seconds = payload["rows"] - payload["resumed_rows"], payload["seconds"]
    rate = f" ({rows / seconds:.0f} texts/s)" if seconds and rows else ""
    asked = f", prompt {payload['prompt']!r}" if payload["prompt"] else ""
    several = f", {payload['processes']} processes" if payload["processes"] > 1 else ""
    before = f"; {payload['resumed_rows']:,} rows were done before" if payload["resumed_rows"] else ""
    kept = f"{payload['store']}, {bytes_text(payload['bytes'])}"
    return [
        f"{payload['output']}: {payload['rows']:,} vectors of {payload['dimensions']} dimensions ({kept})",
        f"  {payload['tokens']:,} tokens in {seconds:.1f} s{rate}; engine {payload['engine']}, {payload['precision']}{several}{asked}; "
        f"cut {payload['truncated']}, split {payload['split']}, empty {payload['empty']}, unknown tokens {payload['unknown_rate']:.1%}, "
        f"known from before {payload['cache_hits']:,}{before}",
    ]
