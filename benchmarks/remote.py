"""How fast collections on servers take in and find vectors, on servers started here for the purpose.

    python benchmarks/remote.py                              # PostgreSQL with 20,000 x 384, Milvus Lite with 3,000 x 384
    python benchmarks/remote.py --rows 5000 --milvus-rows 500 --json

The vectors are a mixture: 1 centre a 50 rows, unit rows, noise of 0.7 of a centre's length (said so, because recall depends on it); queries are
rows with noise. Recall@10 is against the exact answer of the same server, which is the float64 answer (tests/remote). Queries go one after
another over one connection; the time includes the exact scores in float64 and reading texts and metadata.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "remote"))

import remote_servers

from twinvec.index.remote import open_collection


def mixture(rows: int, dimensions: int, queries: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((max(1, rows // 50), dimensions))
    found = centres[rng.integers(len(centres), size=rows)] + 0.7 * rng.standard_normal((rows, dimensions))
    asked = found[rng.integers(rows, size=queries)] + 0.3 * rng.standard_normal((queries, dimensions))
    return tuple((x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32) for x in (found, asked))  # type: ignore[return-value]


def searched(collection: Any, queries: np.ndarray, **options: Any) -> tuple[list[set[str]], float]:
    start = time.perf_counter()
    hits = [collection.search(query, 10, **options)[0] for query in queries]
    return [{hit.id for hit in row} for row in hits], len(queries) / (time.perf_counter() - start)


def measure(collection: Any, rows: np.ndarray, queries: np.ndarray, kinds: list[str], say: Callable[[str], None]) -> dict[str, Any]:
    documents = [(f"{i:07}", f"text number {i} of {i % 97}", {"n": i, "bucket": i % 100}) for i in range(len(rows))]
    start = time.perf_counter()
    collection.add(documents, rows)
    seconds = time.perf_counter() - start
    out: dict[str, Any] = {"rows": len(rows), "dimensions": rows.shape[1], "add_seconds": round(seconds, 2), "add_rate": round(len(rows) / seconds)}
    say(f"add: {out['add_rate']:,} rows/s ({seconds:.1f} s)")
    truth, rate = searched(collection, queries, kind="exact")
    out["exact_rate"] = round(rate, 1)
    say(f"exact: {rate:.1f} queries/s")
    _, rate = searched(collection, queries[:20], where="bucket = 7")
    out["filtered_rate"] = round(rate, 1)
    start = time.perf_counter()
    collection.lexical([f"number {i}" for i in range(10)], 10)
    out["lexical_rate"] = round(10 / (time.perf_counter() - start), 1)
    say(f"filter that keeps 1 %: {out['filtered_rate']} queries/s; two words: {out['lexical_rate']} queries/s")
    for kind in kinds:
        detail = collection.optimize(kind, 0.95)
        found = {}
        for recall in (0.9, 0.95, 0.99):
            hits, rate = searched(collection, queries, recall=recall)
            reached = float(np.mean([len(a & b) / 10 for a, b in zip(hits, truth, strict=True)]))
            found[str(recall)] = {"recall": round(reached, 3), "rate": round(rate, 1)}
        out[kind] = {"build_seconds": detail["seconds"], "bytes": detail.get("bytes"), "asked": found}
        say(f"{kind}: built in {detail['seconds']} s; " + "; ".join(f"{name}: {row['recall']} at {row['rate']}/s" for name, row in found.items()))
    return out


def on(
    start: Callable[[Path], Any], place: str, rows: int, arguments: argparse.Namespace, kinds: list[str], say: Callable[[str], None]
) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="twinvec-benchmark-"))
    folder.chmod(0o755)  # PostgreSQL runs as another user when this is root
    server = None
    try:
        server, url = start(folder)
        vectors, queries = mixture(rows, arguments.dimensions, arguments.queries)
        with open_collection(url + place, "benchmark", create=True, dimensions=arguments.dimensions) as collection:
            say(f"{collection.info()['server']}, {rows:,} x {arguments.dimensions}")
            return {"server": collection.info()["server"], **measure(collection, vectors, queries, kinds, say)}
    finally:
        if server is not None:
            server.close()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--milvus-rows", type=int, default=3_000)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    def say(line: str) -> None:
        print(line, file=sys.stderr if arguments.json else sys.stdout, flush=True)

    out: dict[str, Any] = {"machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"}
    say(out["machine"])
    if arguments.rows:
        out["postgresql"] = on(remote_servers.postgres, "?collection=bench", arguments.rows, arguments, ["hnsw", "ivf"], say)
    if arguments.milvus_rows:
        out["milvus"] = on(remote_servers.milvus, "/bench", arguments.milvus_rows, arguments, ["hnsw"], say)
    if arguments.json:
        print(json.dumps(out))


if __name__ == "__main__":
    main()
