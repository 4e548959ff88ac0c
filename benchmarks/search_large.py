"""Ten million rows of 128 dimensions in bounded memory: built from a stream, opened by mapping, scored again from disk.

.venv/bin/python benchmarks/search_large.py --rows 10000000 --build-threads 2

Rows are synthetic: a mixture of 20,000 centres in an uneven share, with noise of lower rank, unit rows. They are written to a .npy file once, in
blocks (5 GB at ten million rows); the index is built from that file read block by block. Building and searching run in processes of their own,
whose peak memory is the kernel's (VmHWM). The truth of the queries is an exact pass over the file, outside both.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from common import in_child, machine, versions

DIMENSIONS, BLOCK, QUERIES = 128, 100_000, 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--folder", default="runs/search-large")
    parser.add_argument("--kind", default="ivfpq")
    parser.add_argument("--recall", type=float, default=0.9)
    parser.add_argument("--build-threads", type=int, default=1)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    if options.part:
        print(json.dumps({"build": build, "search": search, "truth": truth}[options.part](folder, options)))
        return
    print(f"{machine()}; {versions('twinvec', 'faiss-cpu', 'torch')}; {options.rows:,} x {DIMENSIONS} synthetic mixture")
    write(folder, options.rows)
    for part in ("build", "truth", "search"):
        print(f"{part}: " + ", ".join(f"{name} {value}" for name, value in in_child(__file__, *sys.argv[1:], "--part", part).items()), flush=True)


def mixture(rows: int, seed: int) -> Iterator[np.ndarray]:
    fixed = np.random.default_rng(1)
    centres = fixed.standard_normal((20_000, DIMENSIONS), dtype=np.float32)
    spread = fixed.standard_normal((48, DIMENSIONS), dtype=np.float32) / np.sqrt(np.float32(48))
    shares = fixed.pareto(1.5, len(centres)) + 0.1
    rng = np.random.default_rng(seed)
    for low in range(0, rows, BLOCK):
        count = min(BLOCK, rows - low)
        block = centres[rng.choice(len(centres), count, p=shares / shares.sum())]
        block += 0.8 * rng.standard_normal((count, 48), dtype=np.float32) @ spread + 0.2 * rng.standard_normal((count, DIMENSIONS), dtype=np.float32)
        yield block / np.linalg.norm(block, axis=1, keepdims=True)


def write(folder: Path, rows: int) -> None:
    path = folder / "rows.npy"
    if path.exists() and np.load(path, mmap_mode="r").shape == (rows, DIMENSIONS):
        return
    start = time.perf_counter()
    partial = path.with_suffix(".npy.tmp")
    with open(partial, "wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (rows, DIMENSIONS)})
        for block in mixture(rows, 2):
            stream.write(np.ascontiguousarray(block, dtype=np.float32).data)
    partial.rename(path)
    np.save(folder / "queries.npy", next(mixture(QUERIES, 3)))
    (folder / "truth.npy").unlink(missing_ok=True)
    print(f"written in {time.perf_counter() - start:.0f} s, {path.stat().st_size >> 20} MB", flush=True)


def build(folder: Path, options: argparse.Namespace) -> dict:
    import torch

    from twinvec.index import ann

    torch.set_num_threads(options.build_threads)
    start = time.perf_counter()
    detail = ann.build(ann.FileRows(folder / "rows.npy"), options.kind, threads=options.build_threads).save(folder / "large.index")
    (folder / "large.json").write_text(json.dumps(detail))
    tuned = next(entry for entry in detail["tuned"] if entry["hits"] == 10 and entry["target"] >= options.recall)
    return {
        "factory": detail["factory"], "seconds": round(time.perf_counter() - start), "index_mb": detail["bytes"] >> 20, "tuned": tuned,
    }  # fmt: skip


def truth(folder: Path, options: argparse.Namespace) -> dict:
    from twinvec.index.exact import exact_search

    start = time.perf_counter()
    if not (folder / "truth.npy").exists():
        queries = np.load(folder / "queries.npy")
        rows = np.load(folder / "rows.npy", mmap_mode="r")
        best: list[tuple[np.ndarray, np.ndarray]] = []
        for low in range(0, len(rows), 1_000_000):
            found = exact_search(queries, [np.ascontiguousarray(rows[low : low + 1_000_000])], 10)
            best.append((found.scores, found.rows + low))
        scores, numbers = (np.concatenate(part, axis=1) for part in zip(*best, strict=True))
        np.save(folder / "truth.npy", np.take_along_axis(numbers, np.argsort(-scores, axis=1, kind="stable")[:, :10], axis=1))
    return {"seconds": round(time.perf_counter() - start)}


def search(folder: Path, options: argparse.Namespace) -> dict:
    import os

    import torch

    from twinvec.index.exact import Blocks
    from twinvec.index.searching import Indexed, State
    from twinvec.index.searching import search as run
    from twinvec.index.segments import IndexFile, Segment

    torch.set_num_threads(1)
    start = time.perf_counter()
    path, size = folder / "rows.npy", os.path.getsize(folder / "rows.npy")
    detail = json.loads((folder / "large.json").read_text())
    shape = (detail["rows"], DIMENSIONS)
    offset = size - 4 * shape[0] * shape[1]
    rows = torch.from_file(str(path), shared=False, size=size // 4, dtype=torch.float32)[offset // 4 :].view(shape)
    index = IndexFile(2, "large.index", detail["kind"], 0, shape[0], detail["bytes"], detail["sha256"], json.dumps(detail))
    segment = Segment(1, "rows.npy", "vectors", "float32", 0, *shape, size, "", 1.000001)
    state = State(1, [segment], Blocks([rows]), [Indexed(index, folder / "large.index", 0)])
    queries, wanted = np.load(folder / "queries.npy").astype(np.float64), np.load(folder / "truth.npy")
    first = run(state, queries[:1], 10, kind="auto", metric="cosine", recall=options.recall)
    opened = time.perf_counter() - start
    assert first.rows.shape == (1, 10)
    start = time.perf_counter()
    found = np.concatenate(
        [run(state, queries[at : at + 100], 10, kind="auto", metric="cosine", recall=options.recall).rows for at in range(0, len(queries), 100)]
    )
    seconds = time.perf_counter() - start
    share = float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.tolist(), wanted.tolist(), strict=True)]))
    return {
        "open_and_first_search_seconds": round(opened, 2), "recall@10": round(share, 4), "queries_a_second": round(len(queries) / seconds),
    }  # fmt: skip


if __name__ == "__main__":
    main()
