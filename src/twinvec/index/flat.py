"""FAISS IndexFlatIP as a finder: the same hits as exact search, since ranking.py has the last word on both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from twinvec.index.blocks import Block
from twinvec.index.exact import Blocks
from twinvec.index.ranking import Candidates, Rows, Scores, certified
from twinvec.records import Vectors

_PART = 16_384  # rows read at once


class Flat(Blocks):
    """Blocks that FAISS searches. FAISS keeps its own copy of the rows in memory; `grown` adds rows to it without building it anew."""

    def __init__(self, blocks: Sequence[torch.Tensor | Block], dead: Rows | None = None, *, index: Any = None) -> None:
        import faiss

        super().__init__(blocks, dead)
        self.index = index if index is not None else faiss.IndexFlatIP(self.blocks[0].dimensions)
        for i, block in enumerate(self.blocks):
            for low in range(max(0, self.index.ntotal - int(self.starts[i])), len(block), _PART):
                self.index.add(np.ascontiguousarray(block.part(low, low + _PART).numpy()))

    def grown(self, blocks: Sequence[torch.Tensor | Block], dead: Rows | None) -> Flat:
        """The same rows with more behind them, in the same FAISS index. `self` is not to be used afterwards."""
        return Flat(blocks, dead, index=self.index)

    def candidates(self, queries: Scores, k: int, max_norm: float) -> Candidates:
        """See ranking.Finder."""
        return certified(queries, self._nearest, self.live, k, max_norm)

    def _nearest(self, queries: Vectors, k: int) -> tuple[Vectors, Rows]:
        """k never exceeds the live rows, so FAISS has no reason to answer -1."""
        import faiss

        from twinvec.index.ann.threads import bounded

        with bounded():
            if not len(self.dead):
                scores, rows = self.index.search(queries, k)
            else:
                gone = faiss.IDSelectorBatch(self.dead)
                scores, rows = self.index.search(queries, k, params=faiss.SearchParameters(sel=faiss.IDSelectorNot(gone)))  # type: ignore[call-arg]
        return scores, rows
