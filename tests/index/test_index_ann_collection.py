"""Approximate search in a collection: found at once, gone at once, the same after reopening, whatever numbers it stores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from index_rows import clustered, nearest, recall

from twinvec.errors import TwinvecWarning, UsageError
from twinvec.index.collection import Collection

ROWS, DIMENSIONS = 2500, 24


def filled(path: Path, rows: np.ndarray, **options: object) -> Collection:
    collection = Collection.create(path, "a fingerprint", dimensions=rows.shape[1], model="m", **options)  # type: ignore[arg-type]
    documents = [{"id": f"{i:05d}", "text": f"text {i}", "metadata": {"even": i % 2 == 0, "tenth": i % 10}} for i in range(len(rows))]
    collection.add(documents, rows, batch=900)
    return collection


def ids(collection: Collection, queries: np.ndarray, k: int = 10, **options: object) -> list[list[int]]:
    return [[int(hit.id) for hit in hits] for hits in collection.search(queries, k, **options)]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["ivf", "ivfpq", "hnsw"])
def test_churn_after_optimize(kind: str, tmp_path: Path) -> None:
    rows, queries = clustered(ROWS + 200, DIMENSIONS), clustered(60, DIMENSIONS, seed=3)
    with filled(tmp_path / "c", rows[:ROWS]) as collection:
        report = collection.optimize(kind=kind, recall=0.9)
        assert report["detail"]["kind"] == kind
        assert recall(ids(collection, queries), nearest(queries, rows[:ROWS], 10)) >= 0.87
        collection.add([(f"{i:05d}", f"text {i}") for i in range(ROWS, ROWS + 200)], rows[ROWS:])
        assert ids(collection, rows[ROWS:], 1) == [[i] for i in range(ROWS, ROWS + 200)]
        dead = np.arange(0, ROWS, 13)
        collection.delete([f"{i:05d}" for i in dead])
        live = np.setdiff1d(np.arange(ROWS + 200), dead)
        found = ids(collection, queries)
        assert not set(dead.tolist()) & {i for line in found for i in line}
        assert recall(found, nearest(queries, rows, 10, live)) >= 0.87
        assert ids(collection, queries, recall=1) == nearest(queries, rows, 10, live)
        assert ids(collection, queries, kind="exact") == nearest(queries, rows, 10, live)
        one = ids(collection, queries, 3, where="tenth = 7 and even = false")
        tenth = live[(live % 10 == 7) & (live < ROWS)]
        assert one == nearest(queries, rows, 3, tenth)  # few rows: exact over them
        half = ids(collection, queries, where="even = true")
        assert recall(half, nearest(queries, rows, 10, live[(live % 2 == 0) & (live < ROWS)])) >= 0.87
        assert all(len(line) == 10 for line in half)
    with Collection.open(tmp_path / "c") as again:
        assert ids(again, queries) == found
        assert again.info()["search"] == kind
        assert again.info()["unindexed"] == 200


@pytest.mark.parametrize("store", ["float16", "int8", "binary"])
def test_narrow_numbers_with_an_index(store: str, tmp_path: Path) -> None:
    rows, queries = clustered(ROWS, DIMENSIONS), clustered(60, DIMENSIONS, seed=3)
    with filled(tmp_path / "c", rows, store=store) as collection:
        read = np.stack([collection.vector(f"{i:05d}") for i in range(ROWS)])
        assert ids(collection, queries, recall=1) == nearest(queries, read, 10)
        collection.optimize(kind="ivfpq")
        assert ids(collection, queries, recall=1) == nearest(queries, read, 10)
        assert recall(ids(collection, queries), nearest(queries, read, 10)) >= 0.92


def test_fifty_texts_need_no_index(tmp_path: Path) -> None:
    rows = clustered(50, DIMENSIONS)
    with filled(tmp_path / "c", rows) as collection:
        for kind in ("auto", "ivf", "ivfpq", "hnsw", "flat", "exact"):
            collection.optimize(kind=kind)
            assert ids(collection, rows, 3) == nearest(rows, rows, 3)
            assert [len(line) for line in ids(collection, rows[:1], 100)] == [50]


def test_a_flipped_byte_in_an_index_costs_speed_and_not_hits(tmp_path: Path) -> None:
    rows = clustered(1500, DIMENSIONS)
    with filled(tmp_path / "c", rows) as collection:
        collection.optimize(kind="ivfpq")
    file = next((tmp_path / "c" / "segments").glob("*.index"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    with pytest.warns(TwinvecWarning, match="searched exactly"), Collection.open(tmp_path / "c") as collection:
        assert ids(collection, rows[:20]) == nearest(rows[:20], rows, 10)


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_an_index_tuned_on_given_queries_keeps_its_recall_for_them(tmp_path: Path) -> None:
    """Held-out rows say nothing of queries that lie elsewhere: here rows come in tight bunches, and queries between them."""
    generator = np.random.default_rng(5)
    centres = unit(generator.standard_normal((150, 24)))
    rows = unit(np.repeat(centres, 20, axis=0) + 0.02 * generator.standard_normal((3000, 24)))
    queries = unit(centres[generator.integers(0, 150, 400)] + centres[generator.integers(0, 150, 400)] + 0.5 * generator.standard_normal((400, 24)))
    with Collection.create(tmp_path / "c", "f" * 32, dimensions=24, model="none") as collection:
        collection.add([(f"{i:05d}", f"text {i}") for i in range(len(rows))], rows)
        exact = [{hit.id for hit in found} for found in collection.search(queries[200:], 10, kind="exact")]

        def reached() -> float:
            found = [{hit.id for hit in hits} for hits in collection.search(queries[200:], 10)]
            return float(np.mean([len(one & other) / 10 for one, other in zip(exact, found, strict=True)]))

        assert collection.optimize("ivf", 0.95)["detail"]["tuned_on"] == "held-out rows"
        unlike = reached()
        detail = collection.optimize("ivf", 0.95, queries=queries[:200])["detail"]
        assert (detail["tuned_on"], detail["queries"]) == ("queries", 200)
        assert reached() >= 0.9 > unlike
        # The queries are kept: an index that is built again is tuned on them.
        assert collection.optimize("ivf")["detail"]["tuned_on"] == "queries"
        with pytest.raises(UsageError, match="queries: 3 of them say little about a recall; give 50 or more"):
            collection.optimize("ivf", queries=queries[:3])
        with pytest.raises(UsageError, match="queries given as texts need the model"):
            collection.optimize("ivf", queries=["a text"] * 60)
