"""Additions, updates and deletions in random order against a plain dictionary: equal contents and hits, and a folder that does not grow for ever.

    python benchmarks/churn.py                                              # 100,000 additions, 50,000 updates, 50,000 deletions
    python benchmarks/churn.py --adds 1000 --updates 500 --deletes 500

After each tenth of the work, and after `compact`, ids, texts, metadata and the hits of some queries are compared with the dictionary's, where hits
are computed with numpy over all its vectors. The size of the folder is compared with that of a new collection with the same contents.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from twinvec.index.collection import Collection

DIMENSIONS = 32
Model = dict[str, tuple[str, dict[str, Any], np.ndarray]]  # id -> text, metadata, unit vector


def vector_of(text: str) -> np.ndarray:
    vector = np.random.default_rng(crc32(text.encode())).standard_normal(DIMENSIONS)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def compare(collection: Collection, model: Model, chance: random.Random) -> None:
    """AssertionError when the collection and the dictionary differ in anything."""
    assert collection.ids() == sorted(model)
    for name in chance.sample(sorted(model), min(200, len(model))):
        document = collection.get(name)
        assert document is not None
        assert (document.text, document.metadata) == model[name][:2], name
    names = sorted(model)
    matrix = np.stack([model[name][2] for name in names]).astype(np.float64) if names else np.zeros((0, DIMENSIONS))
    queries = np.random.default_rng(chance.randrange(1 << 30)).standard_normal((5, DIMENSIONS))
    for query, hits in zip(queries, collection.search(queries, 10), strict=True):
        scores = matrix @ (query / np.linalg.norm(query))
        wanted = [names[i] for i in np.argsort(-scores, kind="stable")[:10]]
        assert [hit.id for hit in hits] == wanted
        assert all(hit.text == model[hit.id][0] for hit in hits)


def run(folder: Path, adds: int, updates: int, deletes: int, batch: int = 100, seed: int = 0) -> dict[str, Any]:
    """Counts, sizes in bytes and seconds."""
    chance, model, start = random.Random(seed), Model(), time.perf_counter()
    work = ["add"] * (adds // batch) + ["update"] * (updates // batch) + ["delete"] * (deletes // batch)
    chance.shuffle(work)
    largest, slow = 0, 0.0
    with Collection.create(folder / "churn", "churn", dimensions=DIMENSIONS) as collection:
        made = 0
        for at, what in enumerate(work):
            began = time.perf_counter()
            if what == "delete":
                gone = chance.sample(sorted(model), min(batch, len(model)))
                assert collection.delete(gone) == len(gone)
                for name in gone:
                    del model[name]
            else:
                if what == "add":
                    names = [f"d{made + i}" for i in range(batch)]
                    made += batch
                else:
                    names = chance.sample(sorted(model), min(batch, len(model)))
                texts = [f"{name} text {at} of {chance.randrange(1000)}" for name in names]
                rows = [(name, text, {"at": at, "n": i}) for i, (name, text) in enumerate(zip(names, texts, strict=True))]
                if rows:
                    vectors = np.stack([vector_of(text) for text in texts])
                    collection.add(rows, vectors)
                    model.update({name: (text, metadata, vector) for (name, text, metadata), vector in zip(rows, vectors, strict=True)})
            slow = max(slow, time.perf_counter() - began)
            if at % max(1, len(work) // 10) == 0:
                compare(collection, model, chance)
                largest = max(largest, size_of(folder / "churn"))
        compare(collection, model, chance)
        before = size_of(folder / "churn")
        compacted = collection.compact()
        compare(collection, model, chance)
        collection.verify()
        documents = len(collection)
    with Collection.create(folder / "fresh", "churn", dimensions=DIMENSIONS) as fresh:
        names = sorted(model)
        fresh.add([(name, *model[name][:2]) for name in names], np.stack([model[name][2] for name in names]))
    return {
        "documents": documents, "expected": len(model), "largest_bytes": largest, "bytes_before": before, "bytes": size_of(folder / "churn"),
        "fresh_bytes": size_of(folder / "fresh"), "dropped": compacted["dropped"], "slowest_commit": round(slow, 3),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adds", type=int, default=100_000)
    parser.add_argument("--updates", type=int, default=50_000)
    parser.add_argument("--deletes", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=100, help="documents a commit")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="churn-"))
    print(json.dumps(run(folder, **vars(options))))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
