"""FAISS IndexFlatIP as a finder: the same hits as exact search, since ranking.py has the last word on both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from twinvec.index.exact import Blocks
from twinvec.index.ranking import Rows
from twinvec.records import Vectors


class Flat(Blocks):
    """Blocks that FAISS searches. FAISS keeps its own copy of the rows in memory; `grown` adds rows to it without building it anew."""

    def __init__(self, blocks: Sequence[torch.Tensor], dead: Rows | None = None, *, index: Any = None) -> None:
        import faiss

        super().__init__(blocks, dead)
        self.index = index if index is not None else faiss.IndexFlatIP(blocks[0].shape[1])
        start = self.index.ntotal
        for i, block in enumerate(self.blocks):
            if self.starts[i + 1] > start:
                self.index.add(np.ascontiguousarray(block.numpy()[max(0, start - int(self.starts[i])) :]))

    def grown(self, blocks: Sequence[torch.Tensor], dead: Rows | None) -> Flat:
        """The same rows with more behind them, in the same FAISS index. `self` is not to be used afterwards."""
        return Flat(blocks, dead, index=self.index)

    def candidates(self, queries: Vectors, k: int) -> tuple[npt.NDArray[np.float32], Rows]:
        """See ranking.Finder. k never exceeds the live rows, so FAISS has no reason to answer -1."""
        import faiss

        if not len(self.dead):
            scores, rows = self.index.search(queries, k)
        else:
            gone = faiss.IDSelectorBatch(self.dead)
            scores, rows = self.index.search(queries, k, params=faiss.SearchParameters(sel=faiss.IDSelectorNot(gone)))  # type: ignore[call-arg]
        return scores, rows
