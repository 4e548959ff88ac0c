"""Equal texts are encoded once: a bounded memory of the vectors made so far, the same whatever runs beside it.

Which texts are remembered depends on the order of the texts alone. So a resumed run, which plays back the texts it has, and a run in several
processes, whose results come later than its questions, encode the same texts in the same company as a plain run, and give the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Stored = npt.NDArray[Any]
COUNTS = 5
_KEY_BYTES = 150  # a digest and its place in the dictionary


@dataclass(frozen=True)
class Plan:
    """What a block of n texts needs. `fresh`: rows to encode, each the first with its text. `source` (n,): for each row its place among the fresh
    ones, or -1 - slot where the cache knows it. `slots`: where the vectors of the fresh rows are kept (-1: not at all)."""

    fresh: Numbers
    source: Numbers
    slots: Numbers

    @property
    def known(self) -> int:
        """Rows that the cache answers."""
        return int((self.source < 0).sum())


class Cache:
    """A ring of stored vectors, `width` numbers of `type` each, with their token counts: the oldest goes when a new one comes.

    `limit`: bytes; with 0 nothing is remembered from one block to the next.

    `plan` is called for each block in order, and `settle` later in the same order, when the fresh vectors are there.
    """

    def __init__(self, width: int, type: Any, limit: int) -> None:
        self.size = max(limit, 0) // (np.dtype(type).itemsize * width + 8 * COUNTS + _KEY_BYTES)
        self._slot_of: dict[bytes, int] = {}
        self._key_of: list[bytes] = []
        self._next = 0
        # Memory that is never written to is never taken, so a short job does not pay for a large cache.
        self.vectors = np.zeros((self.size, width), dtype=type)
        self.counts = np.zeros((self.size, COUNTS), dtype=np.int64)

    def plan(self, texts: Sequence[str]) -> Plan:
        place: dict[str, int] = {}
        fresh: list[int] = []
        slots: list[int] = []
        source = np.empty(len(texts), dtype=np.int64)
        for row, text in enumerate(texts):
            at = place.get(text)
            if at is None:
                key = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() if self.size else b""
                slot = self._slot_of.get(key) if self.size else None
                if slot is not None:
                    at = -1 - slot
                else:
                    at = len(fresh)
                    fresh.append(row)
                    slots.append(self._keep(key))
                place[text] = at
            source[row] = at
        return Plan(np.asarray(fresh, np.int64), source, np.asarray(slots, np.int64))

    def _keep(self, key: bytes) -> int:
        if not self.size:
            return -1
        slot = self._next
        if len(self._key_of) < self.size:
            self._key_of.append(key)
        else:
            del self._slot_of[self._key_of[slot]]
            self._key_of[slot] = key
        self._slot_of[key] = slot
        self._next = (slot + 1) % self.size
        return slot

    def settle(self, plan: Plan, vectors: Stored, counts: Numbers) -> tuple[Stored, Numbers]:
        """All rows of the block, vectors (n, D) and counts (n, 5), from those of its fresh rows, which are remembered."""
        if len(plan.fresh) == len(plan.source):
            out, told = vectors, counts
        else:
            known = plan.source < 0
            slots = -1 - plan.source[known]
            out = np.empty((len(plan.source), self.vectors.shape[1]), dtype=self.vectors.dtype)
            told = np.empty((len(plan.source), COUNTS), dtype=np.int64)
            out[known], told[known] = self.vectors[slots], self.counts[slots]
            out[~known], told[~known] = vectors[plan.source[~known]], counts[plan.source[~known]]
        self.remember(plan, vectors, counts)
        return out, told

    def remember(self, plan: Plan, vectors: Stored, counts: Numbers) -> None:
        """Keep the vectors of the fresh rows. In a block with more of them than the ring holds, the later ones of a slot win."""
        if self.size:
            self.vectors[plan.slots] = vectors
            self.counts[plan.slots] = counts
