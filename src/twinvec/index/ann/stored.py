"""Segments of narrower numbers as blocks that the search reads: float16, int8 between stored ranges, signs with float16 beside them.

What is ranked exactly are the vectors as they read back (packing.unpack); how far these are from what was given is the type's own affair. A block
decodes only the rows that are looked at: the first pass runs over a bfloat16 copy, the last word over a few rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.weak import WeakIdKeyDictionary

from twinvec.index.ann.approximate import as_mask
from twinvec.index.ann.plan import BUCKETS, TARGETS
from twinvec.index.ann.threads import bounded
from twinvec.index.ann.tuning import place
from twinvec.index.blocks import Block, as_block
from twinvec.index.ranking import Rows, rank
from twinvec.records import Vectors

_SMALL = 256  # blocks with fewer rows are joined in memory, so that a thousand single additions do not cost a thousand products a query
_PROBES = 200  # rows that the number of sign candidates is learned from
_WIDEST = 64  # candidates a hit at most


class NarrowBlock(Block):
    """`scales` (n,) float32: what each row is multiplied by as it is read, which brings it back to length 1; None: nothing.

    A cosine of rows that are no longer quite unit rows would not be their inner product, which the bounds of ranking.py count on.
    """

    scales: torch.Tensor | None = None

    def part(self, low: int, high: int) -> torch.Tensor:
        rows = super().part(low, high)
        return rows if self.scales is None else rows * self.scales[low:high, None]

    def take(self, rows: Rows) -> Vectors:
        taken = super().take(rows)
        return taken if self.scales is None else taken * self.scales.numpy()[rows][:, None]

    def sliced(self, low: int, high: int) -> Block:
        part = super().sliced(low, high)
        if part is not self and isinstance(part, NarrowBlock) and self.scales is not None:
            part.scales = self.scales[low:high]
        return part


class Float16Block(NarrowBlock):
    """codes (n, D) float16."""

    def decoded(self, codes: torch.Tensor) -> torch.Tensor:
        return codes.float()


class Int8Block(NarrowBlock):
    """codes (n, D) int8 and ranges (2, D) float32: -128 is the lowest value of its dimension, 127 the highest."""

    def __init__(self, codes: torch.Tensor, ranges: npt.NDArray[np.float32]) -> None:
        super().__init__(codes, codes.shape[1])
        self.low = torch.from_numpy(np.ascontiguousarray(ranges[0]))
        self.step = torch.from_numpy(np.ascontiguousarray((ranges[1] - ranges[0]) / 255))

    def decoded(self, codes: torch.Tensor) -> torch.Tensor:
        return (codes.float() + 128) * self.step + self.low


class SignBlock(Float16Block):
    """codes (n, D) float16, and `signs` (n, ceil(D / 8)) uint8: a bit for each positive number, as np.packbits packs them."""

    def __init__(self, codes: torch.Tensor, signs: torch.Tensor) -> None:
        super().__init__(codes, codes.shape[1])
        self.signs = signs
        self.learned: dict[tuple[int, float], int | None] = {}

    def sliced(self, low: int, high: int) -> Block:
        if (low, high) == (0, len(self)):
            return self
        part = SignBlock(self.codes[low:high], self.signs[low:high])
        part.scales = None if self.scales is None else self.scales[low:high]
        return part


_KEPT: Any = WeakIdKeyDictionary()


def block_of(part: Any) -> Block:
    """A mapped segment (segments.Mapped) as a block; the same segment gives the same one, with what was worked out of it."""
    if part.segment.dtype == "float32":
        return as_block(part.vectors)
    found = _KEPT.get(part.vectors)
    if found is None:
        vectors = part.vectors.view(part.vectors.shape)  # its own view: the key must be free to go
        if part.segment.dtype == "float16":
            found = Float16Block(vectors, vectors.shape[1])
        elif part.segment.dtype == "int8":
            found = Int8Block(vectors, part.ranges)
        else:
            found = SignBlock(part.full, vectors)
        found.scales = part.scales
        _KEPT[part.vectors] = found
    return found  # type: ignore[no-any-return]


def joined(blocks: Sequence[Block]) -> list[Block]:
    """The same rows in the same order, runs of small blocks read into one of float32."""
    out: list[Block] = []
    run: list[Block] = []
    for block in [*blocks, None]:
        if block is not None and len(block) < _SMALL:
            run.append(block)
            continue
        if run:
            out.append(as_block(torch.cat([small.part(0, len(small)) for small in run])) if len(run) > 1 else run[0])
            run = []
        if block is not None:
            out.append(block)
    return out


class Signs:
    """A first pass over a sign block by Hamming distance; how many candidates a recall takes is learned from its own rows when it is first asked.

    There is no structure that a row of the block could profit from, so rows as queries are fair, each without itself.
    """

    def __init__(self, block: SignBlock, metric: str) -> None:
        self.block, self.metric, self.rows, self.detail = block, metric, len(block), {"recall": None}

    def candidates(self, queries: Vectors, k: int, recall: float, allowed: Rows | npt.NDArray[np.bool_] | None = None) -> tuple[Vectors, Rows] | None:
        """See Approximate.candidates. A filter is answered exactly, unless it keeps most rows."""
        target = next((target for target in TARGETS if target >= recall - 1e-9), None)
        bucket = next((hits for hits in BUCKETS if k <= hits), None)
        if target is None or bucket is None:
            return None
        if (bucket, target) not in self.block.learned:
            self._learn(bucket)
        count = self.block.learned[bucket, target]
        bits = None if allowed is None else as_mask(allowed, self.rows)
        share = 1.0 if bits is None else float(bits.mean())
        if count is None or share < 0.5 or 4 * count > self.rows:
            return None
        scores, rows = self._nearest(queries, count if bits is None else int(count / share * 1.2) + 16)
        if bits is not None:
            rows = np.where(bits[rows], rows, -1)
        return scores, rows

    def _nearest(self, queries: Vectors, count: int) -> tuple[Vectors, Rows]:
        faiss: Any = import_module("faiss")
        signs = np.packbits(queries > 0, axis=1)
        with bounded(pieces=len(queries)):
            distances, rows = faiss.knn_hamming(signs, self.block.signs.numpy(), min(count, self.rows))
        return -distances.astype(np.float32), rows.astype(np.int64)

    def _learn(self, bucket: int) -> None:
        from twinvec.index.exact import Blocks

        chosen = np.sort(np.random.default_rng(0).choice(self.rows, min(_PROBES, self.rows), replace=False))
        queries = self.block.take(chosen)
        chosen, queries = chosen[(queries != 0).any(axis=1)], queries[(queries != 0).any(axis=1)]
        longest = float(np.sqrt((queries.astype(np.float64) ** 2).sum(axis=1)).max(initial=1.0)) * 4
        truth = rank(queries.astype(np.float64), Blocks([self.block]), bucket + 1, metric=self.metric, max_norm=longest).rows
        found = self._nearest(queries, bucket * _WIDEST + 1)[1]
        places = [place(line[line != row], near[near != row][:bucket]) for row, line, near in zip(chosen, found, truth, strict=True)]
        every = np.sort(np.concatenate(places))
        error = 0.01  # of a share near 0.95 over 200 queries
        for target in TARGETS:
            last = int(every[min(len(every) - 1, int(np.ceil(min(1.0, target + error) * len(every))) - 1)])
            self.block.learned[bucket, target] = None if last >= bucket * _WIDEST else max(2 * bucket, last + 1)
