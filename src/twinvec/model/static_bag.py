"""Averaged token vectors in numpy: the arithmetic of static embedding models. No torch here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.errors import ModelError, choose
from twinvec.records import Vectors

Array = npt.NDArray[Any]
_TOKENS_AT_ONCE = 4096
"""Token vectors gathered together: 6 MB at 384 dimensions, small enough for the cache of a core."""

POOLINGS = ("mean", "max", "mean_sqrt_len")
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "torch.nn.modules.linear.Identity": lambda x: x,
    "torch.nn.modules.activation.Tanh": np.tanh,
    "torch.nn.modules.activation.ReLU": lambda x: np.maximum(x, 0),
    "torch.nn.modules.activation.Sigmoid": lambda x: 1 / (1 + np.exp(-np.clip(x, -80, 80))),
}


@dataclass(frozen=True)
class NumpyDense:
    """activation(x W' + b), x (B, in) -> (B, out): sentence-transformers' Dense without torch."""

    weight: Array
    bias: Array | None
    activation: str

    def __post_init__(self) -> None:
        choose("activation_function of a Dense head over static vectors", self.activation, ACTIVATIONS, ModelError)

    def __call__(self, x: Array) -> Array:
        out = x @ self.weight.T
        return ACTIVATIONS[self.activation](out if self.bias is None else out + self.bias)

    def config(self) -> dict[str, Any]:
        rows, columns = self.weight.shape
        return {"in_features": columns, "out_features": rows, "bias": self.bias is not None, "activation_function": self.activation}


@dataclass(frozen=True, kw_only=True)
class Bag:
    """Vectors of tokens, and how those of a text become one.

    table (R, D): float32, float16 or int8, as stored; None for a bag of words, whose vector counts each of `counted` words (D = counted).
    mapping (V,): row of the table for each token id (model2vec, vocabulary quantisation); None: the id is the row.
    weights (V,): a factor for each token id, such as idf or a/(a+p) of SIF (Arora et al. 2017). The mean divides by the number of tokens, or, with
    `divide_by_weights`, by the sum of their weights, as sentence-transformers' WordWeights does.
    common (D,): a direction of length 1 that is taken out of each vector (SIF, section 3, step 2).
    skip: id of the unknown token, which counts in the report and never in a vector; -1 for none.
    A text without any token that counts gives zeros.
    """

    table: Array | None
    counted: int = 0
    mapping: Array | None = None
    weights: Array | None = None
    divide_by_weights: bool = False
    each_once: bool = False
    common: Array | None = None
    pooling: tuple[str, ...] = ("mean",)
    heads: tuple[NumpyDense, ...] = ()
    normalize: bool = False
    skip: int = -1

    @property
    def width(self) -> int:
        """Numbers of a text's vector before any head."""
        return self.counted if self.table is None else int(self.table.shape[1]) * len(self.pooling)

    @property
    def dimensions(self) -> int:
        return int(self.heads[-1].weight.shape[0]) if self.heads else self.width

    @property
    def parameters(self) -> int:
        return sum(int(array.size) for _, array in self.arrays())

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Every array that decides a vector, by name."""
        for name in ("table", "mapping", "weights", "common"):
            array = getattr(self, name)
            if array is not None:
                yield name, array
        for i, head in enumerate(self.heads):
            yield f"heads.{i}.weight", head.weight
            if head.bias is not None:
                yield f"heads.{i}.bias", head.bias

    def hash(self) -> str:
        """SHA-256 over names, shapes and float32 bytes of all arrays, block by block."""
        state = hashlib.sha256()
        for name, array in self.arrays():
            state.update(f"{name} {array.shape}\n".encode())
            for at in range(0, len(array), 1 << 14):
                state.update(np.ascontiguousarray(array[at : at + (1 << 14)], dtype=np.float32).tobytes())
        return state.hexdigest()

    def forward(self, rows: Sequence[Sequence[int]]) -> Vectors:
        """rows: n rows of token ids; returns float32 (n, D). A row's numbers do not depend on its neighbours, bit for bit."""
        lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
        ids = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=int(lengths.sum()))
        if self.skip >= 0:
            keep = ids != self.skip
            lengths = np.bincount(np.repeat(np.arange(len(rows)), lengths)[keep], minlength=len(rows))
            ids = ids[keep]
        out = self._counts(ids, lengths) if self.table is None else self._pool(ids, lengths)
        if self.common is not None:
            out -= np.outer(out @ self.common, self.common)
        for head in self.heads:
            out = np.asarray(head(out), dtype=np.float32)
        return unit_rows(out) if self.normalize else out

    def _pool(self, ids: Array, lengths: Array) -> Vectors:
        out = np.zeros((len(lengths), self.width), dtype=np.float32)
        if not len(lengths):
            return out
        starts = np.cumsum(lengths) - lengths
        order = np.argsort(lengths, kind="stable")
        bounds = np.flatnonzero(np.diff(lengths[order], prepend=-1))
        for at, stop in zip(bounds, [*bounds[1:], len(order)], strict=True):
            length = int(lengths[order[at]])
            if not length:
                continue
            step = max(_TOKENS_AT_ONCE // length, 1)
            for first in range(at, stop, step):
                members = order[first : min(first + step, stop)]
                out[members] = self._pool_equal(ids, starts[members], length)
        return out

    def _pool_equal(self, ids: Array, starts: Array, length: int) -> Array:
        """Rows of one length; a very long row is read in pieces, so that memory stays flat."""
        total: Array | None = None
        highest: Array | None = None
        weight = np.zeros((len(starts), 1), dtype=np.float32)
        for at in range(0, length, _TOKENS_AT_ONCE):
            block = ids[starts[:, None] + np.arange(at, min(at + _TOKENS_AT_ONCE, length))]
            vectors, factors = self._gather(block)
            if factors is not None:
                weight += factors.sum(axis=1, keepdims=True)
            if "max" in self.pooling:
                top = vectors.max(axis=1)
                highest = top if highest is None else np.maximum(highest, top)
            summed = vectors.sum(axis=1)
            total = summed if total is None else total + summed
        assert total is not None
        below: Any = np.maximum(weight, 1e-9) if self.divide_by_weights and self.weights is not None else np.float32(length)
        parts = {"mean": total / below, "mean_sqrt_len": total / np.sqrt(below), "max": highest}
        joined: Array = np.concatenate([np.asarray(parts[name]) for name in self.pooling], axis=1)
        return joined

    def _gather(self, block: Array) -> tuple[Array, Array | None]:
        """Token vectors float32 (n, L, D), weighted, and their weights (n, L)."""
        assert self.table is not None
        vectors = self.table[block if self.mapping is None else self.mapping[block]].astype(np.float32, copy=False)
        if self.weights is None:
            return vectors, None
        factors = self.weights[block].astype(np.float32, copy=False)
        return vectors * factors[..., None], factors

    def _counts(self, ids: Array, lengths: Array) -> Vectors:
        out = np.zeros((len(lengths), self.counted), dtype=np.float32)
        owner = np.repeat(np.arange(len(lengths)), lengths)
        values = np.ones(len(ids), dtype=np.float32) if self.weights is None else self.weights[ids].astype(np.float32)
        if self.each_once:
            out[owner, ids] = values
        else:
            np.add.at(out, (owner, ids), values)
        return out


def unit_rows(x: Vectors) -> Vectors:
    """Rows of length 1 in float32; a row of zeros stays zeros (in half precision its length would round to 0/0)."""
    norms = np.sqrt(np.einsum("ij,ij->i", x, x, dtype=np.float64))[:, None]
    found: Vectors = (x / np.where(norms > 0, norms, 1)).astype(np.float32)
    return found
