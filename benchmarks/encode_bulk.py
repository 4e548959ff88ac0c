"""Encoding of any size: rate and peak memory as the input grows, latency of one text at a time, very long texts. Each row in its own process.

    .venv/bin/python benchmarks/encode_bulk.py [--model minilm] [--rows 1000,10000,100000] [--store float32] [--processes 2] [--texts FILE]
    .venv/bin/python benchmarks/encode_bulk.py --rows 1000,10000,100000,1000000        # the whole table; an hour or so on two cores

Texts are short sentences made from real ones (the packaged FAQ, or the lines of FILE): two halves of two sentences joined, so that nearly all differ.
"over the model" is the peak of the process less its memory after loading the model and encoding 64 texts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from common import in_child, machine, versions

from twinvec.data.sample import load_faq

LONG = (1_000, 100_000, 10_000_000)  # characters


def sentences(path: str | None) -> list[str]:
    if path:
        return [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    return [text for entry in load_faq("en") for text in entry.train]


def write_texts(target: Path, rows: int, path: str | None, seed: int = 0) -> None:
    """`rows` lines, each the first half of a sentence and the second half of another, and a number: about as short as questions are."""
    halves = [(text[: len(text) // 2], text[len(text) // 2 :]) for text in sentences(path)]
    rng = np.random.default_rng(seed)
    with open(target, "w", encoding="utf-8") as stream:
        for at in range(0, rows, 10_000):
            picked = rng.integers(0, len(halves), (min(10_000, rows - at), 2))
            stream.writelines(f"{halves[a][0]}{halves[b][1]} {rng.integers(100)}\n" for a, b in picked.tolist())


def memory(name: str) -> int:
    """VmRSS or VmHWM of this process, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) // 1024


def one_run(options: argparse.Namespace) -> None:
    """The part that runs in a process of its own; its last line is JSON."""
    import twinvec as tv

    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "texts.txt"
        write_texts(texts, options.part, options.texts)
        model = options.model
        if options.processes == 1 and options.ray is None:
            model = tv.Encoder.load(options.model, precision=options.precision, engine=options.engine)
            model.encode(texts.read_text(encoding="utf-8").splitlines()[:64])
        before = memory("VmRSS")
        load = {"precision": options.precision, "engine": options.engine} if isinstance(model, str) else {}
        start = time.perf_counter()
        report = tv.encode_files(
            model, texts, Path(folder) / f"out.{options.output}", store=options.store, processes=options.processes, ray=options.ray, **load
        )
        found = {"rows": report.rows, "texts_per_second": round(report.rows / (time.perf_counter() - start)), "cache_hits": report.cache_hits}
        found |= {"tokens_a_text": round(report.tokens / report.rows, 1), "file_mb": round(report.bytes / 1e6, 1), "before_mb": before}
        print(json.dumps({**found, "over_the_model_mb": memory("VmHWM") - before, "processes": report.processes}))


def one_at_a_time(options: argparse.Namespace) -> None:
    import twinvec as tv

    encoder = tv.Encoder.load(options.model, precision=options.precision, engine=options.engine)
    with tempfile.TemporaryDirectory() as folder:
        write_texts(Path(folder) / "t.txt", options.part, options.texts)
        texts = (Path(folder) / "t.txt").read_text(encoding="utf-8").splitlines()
    for text in texts[:20]:
        encoder.encode(text)
    times = []
    for text in texts:
        start = time.perf_counter()
        encoder.encode(text)
        times.append(1000 * (time.perf_counter() - start))
    p50, p99 = np.percentile(times, [50, 99])
    print(json.dumps({"texts": len(texts), "p50_ms": round(p50, 2), "p99_ms": round(p99, 2)}))


def one_long(options: argparse.Namespace) -> None:
    import twinvec as tv

    encoder = tv.Encoder.load(options.model, precision=options.precision, engine=options.engine)
    encoder.encode("warm")
    words = " ".join(sentences(options.texts))
    text = (words * (options.part // len(words) + 1))[: options.part]
    before, start = memory("VmRSS"), time.perf_counter()
    encoder.encode(text, on_long=options.on_long)
    seconds = time.perf_counter() - start
    print(json.dumps({"characters": options.part, "seconds": round(seconds, 3), "over_the_model_mb": memory("VmHWM") - before}))


PARTS = {"rows": one_run, "single": one_at_a_time, "long": one_long}


def table(title: str, rows: list[dict]) -> None:
    print(f"\n{title}\n")
    names = list(rows[0])
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for row in rows:
        print("| " + " | ".join(f"{row[name]:,}" if isinstance(row[name], int) else str(row[name]) for name in names) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--rows", default="1000,10000,100000")
    parser.add_argument("--single", type=int, default=500, help="texts of the latency row; 0: none")
    parser.add_argument("--on-long", default="truncate", choices=["truncate", "split"])
    parser.add_argument("--longest", type=int, default=LONG[-1], help="characters of the longest single text; 0: none")
    parser.add_argument("--output", default="parquet", choices=["parquet", "npy"])
    parser.add_argument("--store", default="float32")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--engine", default="torch")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--ray", default=None)
    parser.add_argument("--texts", default=None)
    parser.add_argument("--kind", choices=list(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.kind:
        PARTS[options.kind](options)
        return
    given = sys.argv[1:]
    print(
        f"{machine()}; {versions('twinvec', 'torch', 'pyarrow')}; OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')}; {' '.join(given)}"
    )

    def run(kind: str, part: int) -> dict:
        return in_child(__file__, *given, "--kind", kind, "--part", str(part))

    table("Rows to a file", [run("rows", int(count)) for count in options.rows.split(",")])
    if options.single:
        table("One text at a time", [run("single", options.single)])
    if options.longest:
        table("One very long text", [run("long", size) for size in LONG if size <= options.longest])


if __name__ == "__main__":
    main()
