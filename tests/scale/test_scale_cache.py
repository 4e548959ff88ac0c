"""The cache gives the vector of the text, whatever was forgotten meanwhile, and plans the same however late the answers come."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from twinvec.scale.cache import COUNTS, Cache, Plan


def vector_of(text: str) -> np.ndarray:
    return np.asarray([float(text), -float(text)], np.float32)


def blocks(seed: int) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    return [[str(number) for number in rng.zipf(1.4, rng.integers(1, 30)) % 50] for _ in range(60)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [0, 1, 3, 20, 1000])
@pytest.mark.parametrize("late", [0, 1, 4])
def test_every_row_gets_the_vector_of_its_text(seed: int, size: int, late: int) -> None:
    cache = Cache(2, np.float32, size * (2 * 4 + 8 * COUNTS + 150))
    assert cache.size == size
    waiting: deque[tuple[list[str], Plan]] = deque()

    def settle() -> None:
        texts, plan = waiting.popleft()
        fresh = [texts[row] for row in plan.fresh]
        assert len(set(fresh)) == len(fresh)
        made = np.asarray([vector_of(text) for text in fresh], np.float32).reshape(len(fresh), 2)
        counts = np.asarray([[int(text)] * COUNTS for text in fresh], np.int64).reshape(len(fresh), COUNTS)
        found, told = cache.settle(plan, made, counts)
        np.testing.assert_array_equal(found, [vector_of(text) for text in texts])
        np.testing.assert_array_equal(told[:, 0], [int(text) for text in texts])

    plans = []
    for texts in blocks(seed):
        plan = cache.plan(texts)
        plans.append(plan.fresh.tolist())
        waiting.append((texts, plan))
        if len(waiting) > late:
            settle()
    while waiting:
        settle()
    other = Cache(2, np.float32, size * (2 * 4 + 8 * COUNTS + 150))
    assert [other.plan(texts).fresh.tolist() for texts in blocks(seed)] == plans


def test_a_large_cache_encodes_each_text_once() -> None:
    cache = Cache(2, np.float32, 1 << 20)
    asked = [texts[row] for texts in blocks(0) for row in cache.plan(texts).fresh]
    assert sorted(asked) == sorted({text for texts in blocks(0) for text in texts})
