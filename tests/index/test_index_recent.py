"""Rows of hits that are kept between searches: never stale, never more than the bound, the same hits as without them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from twinvec.index.collection import Collection
from twinvec.index.recent import Recent
from twinvec.index.store import Store


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    made = Collection.create(tmp_path / "c", "c", dimensions=4, model="m")
    made.add([(f"{i}", f"text {i}", {"n": i}) for i in range(20)], np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32))
    return made


def test_kept_rows_are_the_rows(collection: Collection) -> None:
    query = np.ones((3, 4), dtype=np.float32) * [[1], [-1], [1]]
    first = collection.search(query, 7)
    assert collection.search(query, 7) == first
    assert collection.search(query[:1], 20)[0][:7] == first[0]
    with Collection.open(collection.path) as fresh:
        assert fresh.search(query, 20) == collection.search(query, 20)


def test_a_change_of_text_or_metadata_shows_at_once_to_every_reader(collection: Collection) -> None:
    query = np.ones(4, dtype=np.float32)
    with Collection.open(collection.path) as reader:
        best = reader.search(query, 1)[0][0]
        vector = collection.vector(best.id)
        assert vector is not None
        collection.upsert([(best.id, "new words", {"n": -1})], vector[None])
        for opened in (reader, collection):
            hit = opened.search(query, 1)[0][0]
            assert (hit.id, hit.text, hit.metadata) == (best.id, "new words", {"n": -1})


def test_a_caller_changes_only_its_own_hit(collection: Collection) -> None:
    query = np.ones(4, dtype=np.float32)
    hit = collection.search(query, 1)[0][0]
    hit.metadata["n"] = "mine"
    assert collection.search(query, 1)[0][0].metadata["n"] != "mine"


def test_bounded_and_right_whatever_is_forgotten(collection: Collection) -> None:
    rng = np.random.default_rng(1)
    store = Store(collection.path)
    try:
        for limit in (0, 500, 2000, 1 << 20):
            recent = Recent(limit)
            for _ in range(30):
                numbers = {int(n) for n in rng.integers(0, 20, 5)}
                found = recent.passages(store, numbers, 1)
                assert {number: found[number] for number in numbers} == store.passages(numbers)
                assert recent._bytes <= limit
                assert recent._bytes == sum(400 + 4 * sum(map(len, row[:3])) for row in recent._found.values())
            recent.passages(store, {0}, 2)
            assert len(recent._found) <= 1  # another commit: what was kept is gone
    finally:
        store.close()
