"""Ids that must differ, over any number of rows: 16 bytes a row, and an exact answer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


class Seen:
    """The strings met so far, as sorted 64-bit hashes with their numbers. Equal hashes are only suspects: the caller compares the strings."""

    def __init__(self) -> None:
        self.count = 0
        self._levels: list[tuple[Numbers, Numbers]] = []  # sizes fall by half or more, so that each row is merged a logarithmic number of times

    def add(self, strings: list[str]) -> list[tuple[int, int]]:
        """Number `strings` on; (number, number of an earlier one with the same hash) of each suspect, in order."""
        numbers: Numbers = np.arange(self.count, self.count + len(strings), dtype=np.int64)
        hashes: Numbers = np.fromiter(map(hash, strings), np.int64, len(strings))  # equal within one process, which is all that is asked here
        suspects: dict[int, int] = {}
        for known, rows in self._levels:
            at = np.searchsorted(known, hashes).clip(max=len(known) - 1)
            for i in np.flatnonzero(known[at] == hashes):
                suspects[int(numbers[i])] = int(rows[at[i]])
        order = np.argsort(hashes, kind="stable")
        hashes, numbers = hashes[order], numbers[order]
        for i in np.flatnonzero(hashes[1:] == hashes[:-1]):
            suspects.setdefault(int(numbers[i + 1]), int(numbers[i]))
        self.count += len(strings)
        while self._levels and len(self._levels[-1][0]) < 2 * len(hashes):
            known, rows = self._levels.pop()
            hashes, numbers = np.concatenate([known, hashes]), np.concatenate([rows, numbers])
            order = np.argsort(hashes, kind="stable")
            hashes, numbers = hashes[order], numbers[order]
        if len(hashes):
            self._levels.append((hashes, numbers))
        return sorted(suspects.items())
