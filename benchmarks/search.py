"""Search: exact beside IndexFlatIP, the `auto` index beside hand-set FAISS indexes, and what a collection adds to the bare call.

.venv/bin/python benchmarks/search.py --rows 100000
.venv/bin/python benchmarks/search.py --rows 1000000 --build-threads 2

Rows are MiniLM vectors of English sentences from ../shared/data, as many as there are (encoded once, kept in the git-ignored runs/search-benchmark);
the rest are mixtures of two of them with noise, and the output says how many. Queries are 1,000 sentences that are not among the rows. Searches run
on one thread, in batches of 100 unless said otherwise. Hand-set indexes get the parameters that are fastest on these very queries, while `auto` knows
only rows that it held out; with --tune-queries both choose on one half of the queries and are measured on the other. Each part runs in a process of
its own.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from common import in_child, machine, versions

if TYPE_CHECKING:
    from twinvec.index.collection import Collection

HELD = 1000
TARGETS = (0.95, 0.99)


def main() -> None:
    options = arguments()
    folder = Path(options.cache)
    folder.mkdir(parents=True, exist_ok=True)
    if options.part:
        print(json.dumps(PARTS[options.part.partition(":")[0]](folder, options)))
        return
    rows = prepare(folder, options)
    print(f"{machine()}; {versions('twinvec', 'faiss-cpu', 'torch')}; one thread")
    print(
        f"{options.rows:,} rows x 384: {rows['real']:,} real sentences, {options.rows - rows['real']:,} mixtures of two with noise; {HELD} queries\n"
    )
    parts = ["exact", "auto", *(f"hand:{name}" for name in options.hand.split(";") if name), "collection"]
    for part in parts if options.only is None else options.only.split(";"):
        found = in_child(__file__, *sys.argv[1:], "--part", part)
        report(part, found)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--texts", type=int, default=100_000, help="sentences to encode, at most")
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--cache", default="runs/search-benchmark")
    parser.add_argument("--kind", help="another kind than `auto` takes")
    parser.add_argument("--hand", default="IVF{lists},PQ96x4fs,RFlat;HNSW32,Flat;HNSW32,SQ8", help="FAISS factories, ; between them")
    parser.add_argument("--build-threads", type=int, default=1)
    parser.add_argument("--tune-queries", action="store_true", help="all indexes choose on half of the queries; the other half is measured")
    parser.add_argument("--only", help="parts to run, ; between them: exact, auto, hand:FACTORY, collection, threads")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    return parser.parse_args()


# the vectors


def sentences(data: Path) -> Iterator[str]:
    for path in sorted(data.rglob("*")):
        name = path.name.removesuffix(".gz")
        english = "en" in path.parts or "-en" in name or path.parts[-2] in ("scifact", "cranfield", "npl", "cisi")
        if not english or not name.endswith((".txt", ".csv", ".jsonl")):
            continue
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8", errors="replace") as stream:
            if name.endswith(".txt"):
                yield from stream
            elif name.endswith(".csv"):
                for row in csv.reader(stream):
                    yield from row
            else:
                for line in stream:
                    entry = json.loads(line)
                    yield from f"{entry.get('title', '')}. {entry.get('text', '')}".split(". ")


def prepare(folder: Path, options: argparse.Namespace) -> dict[str, int]:
    """rows.npy, queries.npy and truth.npy in the folder, unless they are there; how many rows are real."""
    stamp = folder / "stamp.json"
    wanted = {"rows": options.rows, "texts": options.texts}
    if stamp.exists() and (found := json.loads(stamp.read_text()))["wanted"] == wanted:
        return dict(found)
    vectors = real_vectors(folder, options)
    rng = np.random.default_rng(0)
    queries, real = vectors[:HELD], vectors[HELD : HELD + options.rows]
    rows = np.lib.format.open_memmap(folder / "rows.npy", mode="w+", dtype=np.float32, shape=(options.rows, vectors.shape[1]))
    rows[: len(real)] = real
    for low in range(len(real), options.rows, 50_000):
        count = min(50_000, options.rows - low)
        share = rng.uniform(0.5, 0.95, (count, 1)).astype(np.float32)
        block = share * real[rng.integers(0, len(real), count)] + (1 - share) * real[rng.integers(0, len(real), count)]
        block += rng.standard_normal(block.shape, dtype=np.float32) * 0.01
        rows[low : low + count] = block / np.linalg.norm(block, axis=1, keepdims=True)
    rows.flush()
    np.save(folder / "queries.npy", queries)
    np.save(folder / "truth.npy", exact_hits(np.asarray(rows), queries))
    stamp.write_text(json.dumps({"wanted": wanted, "real": len(real)}))
    return {"real": len(real)}


def real_vectors(folder: Path, options: argparse.Namespace) -> np.ndarray:
    path = folder / f"real-{options.texts}.npy"
    if not path.exists():
        from twinvec.model.encoder import Encoder

        kept = dict.fromkeys(text.strip() for text in sentences(Path(options.data)) if 15 < len(text.strip()) < 200)
        texts = list(kept)
        np.random.default_rng(0).shuffle(texts)
        encoded = Encoder.load("minilm").encode(texts[: options.texts + HELD])
        encoded = encoded / np.linalg.norm(encoded, axis=1, keepdims=True)
        np.save(path, encoded[np.sort(np.unique(np.round(encoded, 5), axis=0, return_index=True)[1])])
    return np.load(path)


def exact_hits(rows: np.ndarray, queries: np.ndarray) -> np.ndarray:
    from twinvec.index.exact import exact_search

    return exact_search(queries, [rows], 10).rows


# the parts, each in its own process


def measured(run: Callable[[np.ndarray], object], queries: np.ndarray, batch: int = 100, seconds: float = 2.0) -> float:
    """Queries a second: the best of several rounds over all queries in batches."""
    run(queries[:batch])
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end or not best:
        start, done = time.perf_counter(), 0
        for low in range(0, len(queries) - batch + 1, batch):
            run(queries[low : low + batch])
            done += batch
            if time.perf_counter() - start > seconds:
                break
        best = max(best, done / (time.perf_counter() - start))
    return best


def recall_of(found: np.ndarray, truth: np.ndarray) -> float:
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found.tolist(), truth.tolist(), strict=True)]))


def loaded(folder: Path, *, mapped: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    import faiss
    import torch

    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    rows = np.load(folder / "rows.npy", mmap_mode="r" if mapped else None)
    return rows, np.load(folder / "queries.npy"), np.load(folder / "truth.npy")


def tensor_of(path: Path, shape: tuple[int, ...]) -> object:
    """A .npy file mapped by torch, as a collection maps its segments."""
    import torch

    offset = os.path.getsize(path) - 4 * shape[0] * shape[1]
    return torch.from_file(str(path), shared=False, size=os.path.getsize(path) // 4, dtype=torch.float32)[offset // 4 :].view(shape)


def exact_part(folder: Path, options: argparse.Namespace) -> dict:
    import faiss

    from twinvec.index.exact import Blocks
    from twinvec.index.ranking import rank

    rows, queries, truth = loaded(folder)
    finder = Blocks([tensor_of(folder / "rows.npy", rows.shape)])
    flat = faiss.IndexFlatIP(rows.shape[1])
    flat.add(np.ascontiguousarray(rows))

    def exact(part: np.ndarray) -> np.ndarray:
        return rank(part.astype(np.float64), finder, 10, metric="cosine", max_norm=1.000001).rows

    assert np.array_equal(exact(queries), truth)
    lines = []
    for batch in (1, 10, 100, 1000):
        ours, theirs = (measured(run, queries, batch, 4.0) for run in (exact, lambda part: flat.search(part, 10)))
        lines.append({"batch": batch, "exact": round(ours), "IndexFlatIP": round(theirs), "times": round(ours / theirs, 1)})
    return {"lines": lines}


def auto_part(folder: Path, options: argparse.Namespace) -> dict:
    from twinvec.index import ann
    from twinvec.index.exact import Blocks
    from twinvec.index.searching import Indexed, State, search
    from twinvec.index.segments import IndexFile, Segment

    rows, queries, truth = loaded(folder)
    kind = options.kind or ann.choose_kind(len(rows), rows.shape[1])
    if kind == "exact":
        kind = "ivfpq"  # below its size, to have something to compare
    path = folder / "auto.index"
    start = time.perf_counter()
    asked = None
    if options.tune_queries:  # on the first half of the queries; what is measured below is the second half
        asked, queries, truth = queries[: HELD // 2], queries[HELD // 2 :], truth[HELD // 2 :]
    detail = ann.build(ann.FileRows(folder / "rows.npy"), kind, threads=options.build_threads, queries=asked).save(path)
    seconds = time.perf_counter() - start
    segment = Segment(1, "rows.npy", "vectors", "float32", 0, len(rows), rows.shape[1], 0, "", 1.000001)
    item = Indexed(IndexFile(2, path.name, kind, 0, len(rows), detail["bytes"], detail["sha256"], json.dumps(detail)), path, 0)
    state = State(1, [segment], Blocks([tensor_of(folder / "rows.npy", rows.shape)]), [item])
    lines = []
    for target in TARGETS:

        def run(part: np.ndarray, target: float = target) -> np.ndarray:
            return search(state, part.astype(np.float64), 10, kind="auto", metric="cosine", recall=target).rows

        index, parameters = item.opened(), item.opened().parameters(10, target)
        tuned = next(entry for entry in detail["tuned"] if entry["hits"] == 10 and entry["target"] == target)
        bare = round(measured(lambda part, i=index, p=parameters: i.nearest(part, p), queries)) if parameters else None
        lines.append(
            {"asked": target, "recall": round(recall_of(run(queries), truth), 4), "rate": round(measured(run, queries)), "candidates only": bare,
             "recall at build": tuned["recall"], "parameters": parameters}
        )  # fmt: skip
    return {"index": detail["factory"], "build_seconds": round(seconds, 1), "index_mb": detail["bytes"] >> 20, "lines": lines}


def hand_part(folder: Path, options: argparse.Namespace) -> dict:
    import faiss

    from twinvec.index.ann.plan import list_count

    rows, queries, truth = loaded(folder, mapped=False)
    factory = options.part.partition(":")[2].format(lists=list_count(len(rows)))
    faiss.omp_set_num_threads(options.build_threads)
    start = time.perf_counter()
    index = faiss.index_factory(rows.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
    rng = np.random.default_rng(0)
    index.train(rows[np.sort(rng.choice(len(rows), min(len(rows), 164_000), replace=False))])
    index.add(rows)
    seconds = time.perf_counter() - start
    size = len(faiss.serialize_index(index)) >> 20
    faiss.omp_set_num_threads(1)
    widths = [10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 448, 640]
    settings = (
        [{"efSearch": width} for width in widths]
        if "HNSW" in factory
        else [{"nprobe": probes, "k_factor_rf": factor} for factor in (2, 4, 6, 8, 12, 16, 24) for probes in (*widths, 4, 6)]
    )
    tried = []
    asked, wanted = queries, truth
    if options.tune_queries:
        asked, wanted, queries, truth = queries[HELD // 2 :], truth[HELD // 2 :], queries[: HELD // 2], truth[: HELD // 2]
    space = faiss.ParameterSpace()
    for setting in settings:
        for name, value in setting.items():
            space.set_index_parameter(index, name, value)
        start = time.perf_counter()
        found = np.concatenate([index.search(queries[at : at + 100], 10)[1] for at in range(0, len(queries), 100)])
        tried.append((len(queries) / (time.perf_counter() - start), recall_of(found, truth), setting))
    lines = []
    for target in TARGETS:
        reached = sorted((entry for entry in tried if entry[1] >= target), key=lambda entry: -entry[0])[:4]
        best = None
        for _, _, setting in reached:
            for name, value in setting.items():
                space.set_index_parameter(index, name, value)
            rate = round(measured(lambda part: index.search(part, 10), queries))
            if best is None or rate > best["rate"]:
                share = recall_of(index.search(asked, 10)[1], wanted)
                best = {"asked": target, "recall": round(share, 4), "rate": rate, "parameters": setting}
        lines.append(best or {"asked": target, "recall": None, "rate": None, "parameters": None})
    return {"index": factory, "build_seconds": round(seconds, 1), "index_mb": size, "lines": lines}


def fill(collection: Collection, rows: np.ndarray) -> None:
    for low in range(0, len(rows), 50_000):
        part = rows[low : low + 50_000]
        entries = [(f"{low + i:08d}", f"sentence {low + i}") for i in range(len(part))]
        collection.add(entries, np.ascontiguousarray(part), batch=50_000)


def kind_of(options: argparse.Namespace, rows: np.ndarray) -> str:
    return options.kind or ("auto" if len(rows) >= 100_000 else "ivfpq")


def collection_part(folder: Path, options: argparse.Namespace) -> dict:
    from twinvec.index.collection import Collection

    rows, queries, truth = loaded(folder)
    place = folder / "collection"
    shutil.rmtree(place, ignore_errors=True)
    found: dict = {"lines": []}
    with Collection.create(place, "benchmark", dimensions=rows.shape[1], model="benchmark") as collection:
        start = time.perf_counter()
        fill(collection, rows)
        found["add_seconds"] = round(time.perf_counter() - start, 1)
        start = time.perf_counter()
        asked = None
        if options.tune_queries:  # as in auto_part
            asked, queries, truth = queries[: HELD // 2], queries[HELD // 2 :], truth[HELD // 2 :]
        collection.optimize(kind=kind_of(options, rows), queries=asked)
        found["optimize_seconds"] = round(time.perf_counter() - start, 1)
    start = time.perf_counter()
    with Collection.open(place, verify=False) as collection:
        first = collection.search(queries[:1], 10)
        found["open_and_first_search_seconds"] = round(time.perf_counter() - start, 3)
        assert len(first[0]) == 10
        for target in (*TARGETS, 1.0):
            whole = measured(lambda part, t=target: collection.search(part, 10, recall=t), queries)
            first_time = measured(lambda part, t=target: (collection._reader._recent.clear(), collection.search(part, 10, recall=t)), queries)
            bare, share = bare_rate(place, collection, rows, queries, target)
            hits = [[int(hit.id) for hit in row] for row in collection.search(queries, 10, recall=target)]
            found["lines"].append(
                {"asked": target, "recall": round(recall_of(np.asarray(hits), truth), 4), "rate": round(whole), "bare": round(bare),
                 "bare call": share, "overhead": f"{bare / whole - 1:.0%}", "hits not seen before": f"{bare / first_time - 1:.0%}"}
            )  # fmt: skip
    shutil.rmtree(place, ignore_errors=True)
    return found


def threads_part(folder: Path, options: argparse.Namespace) -> dict:
    """Single queries to one collection from several threads, which share as many cores."""
    from concurrent.futures import ThreadPoolExecutor

    import torch

    from twinvec.index.collection import Collection

    rows, queries, _ = loaded(folder)
    place = folder / "collection"
    shutil.rmtree(place, ignore_errors=True)
    lines = []
    with Collection.create(place, "benchmark", dimensions=rows.shape[1], model="benchmark") as collection:
        fill(collection, rows)
        collection.optimize(kind=kind_of(options, rows))
        for kind in ("auto", "exact"):
            rates = []
            for count in (1, 2):
                torch.set_num_threads(count)
                with ThreadPoolExecutor(count) as pool:
                    best = 0.0
                    for _ in range(3):
                        start = time.perf_counter()
                        list(pool.map(lambda query, kind=kind: collection.search(query, 10, kind=kind), queries[:400]))
                        best = max(best, 400 / (time.perf_counter() - start))
                rates.append(best)
            lines.append({"kind": kind, "one thread": round(rates[0]), "two threads": round(rates[1]), "times": round(rates[1] / rates[0], 2)})
    shutil.rmtree(place, ignore_errors=True)
    return {"lines": lines}


def bare_rate(place: Path, collection: object, rows: np.ndarray, queries: np.ndarray, target: float) -> tuple[float, str]:
    """The FAISS call that names the same candidates, followed by FAISS's own rescoring from the stored rows; IndexFlatIP for recall 1."""
    import faiss

    from twinvec.index import ann

    if target >= 1:
        flat = faiss.IndexFlatIP(rows.shape[1])
        flat.add(np.ascontiguousarray(rows))
        return measured(lambda part: flat.search(part, 10), queries), "IndexFlatIP"
    detail = next(entry for entry in collection.info()["indexes"])  # type: ignore[attr-defined]
    index = ann.load(next((place / "segments").glob("*.index")), detail)
    parameters = index.parameters(10, target)
    assert parameters is not None
    stored = np.ascontiguousarray(rows)

    def run(part: np.ndarray) -> object:
        found = index.nearest(part, parameters)
        found = np.ascontiguousarray(found[:, : int((found >= 0).sum(axis=1).max())])  # the nearest come first
        scores = np.empty(found.shape, dtype=np.float32)
        pointers = map(faiss.swig_ptr, (scores, np.ascontiguousarray(part), stored, found))
        faiss.fvec_inner_products_by_idx(*pointers, rows.shape[1], *found.shape)
        return np.argpartition(-scores, 9, axis=1)[:, :10]

    return measured(run, queries), "FAISS candidates and rescoring"


PARTS: dict[str, Callable[[Path, argparse.Namespace], dict]] = {
    "exact": exact_part, "auto": auto_part, "hand": hand_part, "collection": collection_part, "threads": threads_part,
}  # fmt: skip


def report(part: str, found: dict) -> None:
    lines = found.pop("lines")
    print(f"{part}: " + ", ".join(f"{name} {value}" for name, value in found.items()))
    names = list(lines[0])
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for line in lines:
        print("| " + " | ".join(str(line.get(name)) for name in names) + " |")
    print(flush=True)


if __name__ == "__main__":
    main()
