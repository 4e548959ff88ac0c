"""Rows and passage numbers: a row is a vector's place through all segments of a commit, a passage number is its name for life."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from twinvec.index.ranking import Rows, by_block
from twinvec.index.segments import Mapped


class Layout:
    """Both ascend together, so each is found from the other by bisection."""

    def __init__(self, parts: Sequence[Mapped]) -> None:
        self.parts = list(parts)
        self.starts = np.cumsum([0, *(part.segment.rows for part in parts)]).astype(np.int64)
        self.firsts = np.asarray([part.segment.first for part in parts], dtype=np.int64)

    @property
    def rows(self) -> int:
        return int(self.starts[-1])

    def numbers(self, rows: Rows) -> Rows:
        """(m,) rows -> their passage numbers."""
        rows = np.asarray(rows, dtype=np.int64)
        out = np.empty_like(rows)
        for i, mine, inside in by_block(self.starts, rows):
            part = self.parts[i]
            out[mine] = part.segment.first + inside if part.numbers is None else part.numbers[inside]
        return out

    def places(self, numbers: Rows) -> Rows:
        """(m,) passage numbers -> their rows, -1 where there is no vector of that number."""
        numbers = np.asarray(numbers, dtype=np.int64)
        out = np.full(len(numbers), -1, dtype=np.int64)
        place = np.searchsorted(self.firsts, numbers, side="right") - 1
        for i in np.unique(place[place >= 0]):
            mine, part = np.flatnonzero(place == i), self.parts[i]
            wanted = numbers[mine]
            if part.numbers is None:
                inside = wanted - part.segment.first
                there = inside < part.segment.rows
            else:
                inside = np.searchsorted(part.numbers, wanted)
                there = (inside < part.segment.rows) & (part.numbers[np.minimum(inside, part.segment.rows - 1)] == wanted)
            out[mine[there]] = self.starts[i] + inside[there]
        return out

    def of_part(self, i: int) -> Rows:
        """The passage numbers of one segment's rows."""
        part = self.parts[i]
        return part.segment.first + np.arange(part.segment.rows, dtype=np.int64) if part.numbers is None else part.numbers
