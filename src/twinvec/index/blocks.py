"""Stored rows in memory or in a mapped file, and what the search may do with them: read a stretch, pick rows, and a bfloat16 copy."""

from __future__ import annotations

import copy
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from twinvec.index.ann.threads import bounded
from twinvec.index.ranking import Rows, by_block
from twinvec.records import Vectors

_PART = 16_384  # rows rounded at once
_PAIRS = 4096  # inner products that are worth a thread


class Narrow(NamedTuple):
    """bfloat16 rows (n, D), and how long the longest difference from the stored rows is."""

    rows: torch.Tensor
    error: float


class Block:
    """Rows (n, D) that read as float32, whatever they are stored in."""

    def __init__(self, codes: torch.Tensor, dimensions: int) -> None:
        self.codes, self.dimensions = codes, dimensions
        self.kept: Narrow | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def part(self, low: int, high: int) -> torch.Tensor:
        """Rows low to high - 1 as float32, in place where they are float32 already."""
        return self.decoded(self.codes[low:high])

    def take(self, rows: Rows) -> Vectors:
        """(m,) -> (m, D) float32, a copy."""
        taken: Vectors = self.decoded(torch.index_select(self.codes, 0, torch.from_numpy(rows))).numpy()
        return taken

    def decoded(self, codes: torch.Tensor) -> torch.Tensor:
        return codes

    def sliced(self, low: int, high: int) -> Block:
        """Rows low to high - 1, sharing the memory of this block."""
        if (low, high) == (0, len(self)):
            return self
        part = copy.copy(self)
        part.codes, part.kept = self.codes[low:high], None
        return part

    def narrow(self) -> Narrow:
        """The bfloat16 copy, made once and kept."""
        if self.kept is None:
            out = torch.empty((len(self), self.dimensions), dtype=torch.bfloat16)
            error = 0.0
            for low in range(0, len(self), _PART):
                wide = self.part(low, low + _PART)
                out[low : low + _PART] = wide
                error = max(error, float((wide - out[low : low + _PART].float()).norm(dim=1).max()))
            self.kept = Narrow(out, error * (1 + 1e-4))  # the norm itself was taken in float32
        return self.kept


_BLOCKS: Any = WeakIdKeyDictionary()  # a collection makes new `Blocks` of the same tensors at every commit: their copies are kept with them


def as_block(rows: torch.Tensor | Block) -> Block:
    """A float32 tensor (n, D) as a Block; the same tensor gives the same one."""
    if isinstance(rows, Block):
        return rows
    found = _BLOCKS.get(rows)
    if found is None:
        found = _BLOCKS[rows] = Block(rows.detach().view(rows.shape), rows.shape[1])  # its own view: the key must be free to go
    return found  # type: ignore[no-any-return]


@cache
def bf16_works() -> bool:
    """True where the processor multiplies bfloat16 by itself, and a product of it is as near as exact.py counts on."""
    try:
        fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        if not (fast and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
            return False
        generator = torch.Generator().manual_seed(0)
        a, b = (torch.rand(rows, 2048, generator=generator).bfloat16() for rows in (8, 64))  # sums near 512: adding in bfloat16 would be far off
        exact = a.double() @ b.double().T
        return bool(((torch.matmul(a, b.T).double() - exact).abs() <= exact * 2.0**-8 * (1 + 1e-3)).all())
    except (RuntimeError, AttributeError, NotImplementedError):
        return False


def products(blocks: list[Block], starts: Rows, queries: Vectors, which: Rows, rows: Rows) -> Vectors:
    """queries (q, D), which and rows (m,), rows counted through all blocks -> inner products (m,) of queries[which] and rows in float32."""
    if len(blocks) == 1:
        return _products(blocks[0], queries, which, rows)
    out = np.empty(len(rows), dtype=np.float32)
    for i, mine, inside in by_block(starts, rows):
        out[mine] = _products(blocks[i], queries, which[mine], inside)
    return out


def _products(block: Block, queries: Vectors, which: Rows, rows: Rows) -> Vectors:
    out = np.empty(len(rows), dtype=np.float32)
    if type(block) is Block and block.codes.is_contiguous():
        faiss: Any = import_module("faiss")
        which, rows = np.ascontiguousarray(which), np.ascontiguousarray(rows)
        pointers = [faiss.swig_ptr(array) for array in (queries, which, block.codes.numpy(), rows, out)]
        with bounded(pieces=len(rows) // _PAIRS):
            faiss.pairwise_indexed_inner_product(block.dimensions, len(rows), *pointers)
        return out
    for at in range(0, len(rows), _PART):
        part = slice(at, at + _PART)
        out[part] = np.einsum("md,md->m", block.take(rows[part]), queries[which[part]])
    return out
