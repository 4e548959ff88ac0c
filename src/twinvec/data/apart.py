"""Keeping rows that share a text out of one batch, by swapping rows between batches."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

NEAR = 500  # batches looked at for one row, nearest first: equal lengths stay together, and a hopeless row costs little
TRIES = 64  # rows of a batch tried as the other half of a swap
PASSES = 8


def keep_apart(batches: list[list[int]], keys: Sequence[Sequence[int]], rng: np.random.Generator) -> int:
    """Swap rows between `batches` (in place) until no two rows of a batch share a key, as far as that goes; returns how often two still do.

    keys[row]: the numbers of what must not meet (its texts, its group). The sizes of the batches stay. Each swap lowers the count, so it ends; as a
    local search it may miss a solution where nearly every row has a rival, and a key in more rows than there are batches cannot be kept apart.
    """
    return _Swapper(batches, keys, rng).run()


class _Swapper:
    """The batches, how often each key stands in each, and which batches hold a key."""

    def __init__(self, batches: list[list[int]], keys: Sequence[Sequence[int]], rng: np.random.Generator) -> None:
        self.batches, self.rng = batches, rng
        self.keys = {row: tuple(set(keys[row])) for batch in batches for row in batch}
        self.counts = [Counter(key for row in batch for key in self.keys[row]) for batch in batches]
        self.holders: dict[int, set[int]] = defaultdict(set)
        for number, count in enumerate(self.counts):
            for key in count:
                self.holders[key].add(number)

    def run(self) -> int:
        left = sum(count - 1 for counts in self.counts for count in counts.values())
        for _ in range(PASSES):
            before = left
            for number in range(len(self.batches)):
                left -= sum(self._move(number, place) for place in self._rivals(number))
            if not left or left == before:
                break
        return left

    def _rivals(self, number: int) -> list[int]:
        """Places in a batch whose row shares a key with another row there."""
        counts = self.counts[number]
        if all(count == 1 for count in counts.values()):
            return []
        return [place for place, row in enumerate(self.batches[number]) if any(counts[key] > 1 for key in self.keys[row])]

    def _move(self, number: int, place: int) -> int:
        """Swap this row with one of another batch where that gains something; returns by how much the count fell."""
        row, counts = self.batches[number][place], self.counts[number]
        rivals = [key for key in self.keys[row] if counts[key] > 1]  # an earlier swap may have settled it
        if not rivals or any(len(self.holders[key]) == len(self.batches) for key in rivals):
            return 0
        for other in self._nearest(number):
            if any(other in self.holders[key] for key in rivals):
                continue
            size = len(self.batches[other])
            start = int(self.rng.integers(size)) if size else 0
            for step in range(min(size, TRIES)):
                where = (start + step) % size
                gain = self._gain(number, row, other, self.batches[other][where])
                if gain > 0:
                    self._swap(number, place, other, where)
                    return gain
        return 0

    def _nearest(self, number: int) -> Iterator[int]:
        n = len(self.batches)
        for distance in range(1, min(n, NEAR // 2 + 1)):
            yield (number + distance) % n
            if 2 * distance % n:
                yield (number - distance) % n

    def _gain(self, number: int, row: int, other: int, candidate: int) -> int:
        """Meetings fewer after the swap. A key of both rows stays where it is."""
        mine, theirs = self.keys[row], self.keys[candidate]
        here, there = self.counts[number], self.counts[other]
        gain = 0
        for key in mine:
            if key not in theirs:
                gain += (here[key] > 1) - (there[key] > 0)
        for key in theirs:
            if key not in mine:
                gain += (there[key] > 1) - (here[key] > 0)
        return gain

    def _swap(self, number: int, place: int, other: int, where: int) -> None:
        row, candidate = self.batches[number][place], self.batches[other][where]
        self.batches[number][place], self.batches[other][where] = candidate, row
        for batch, out, into in ((number, row, candidate), (other, candidate, row)):
            counts = self.counts[batch]
            for key in self.keys[out]:
                counts[key] -= 1
                if not counts[key]:
                    del counts[key]
                    self.holders[key].discard(batch)
            for key in self.keys[into]:
                counts[key] += 1
                self.holders[key].add(batch)
