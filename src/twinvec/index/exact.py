"""Exact search: blocks of a matrix product in torch, most rows ruled out by the best of each 32, float64 for the last word (ranking.py).

Where the processor multiplies bfloat16, the first pass uses a rounded copy of the rows, at twice the speed and half the memory traffic. What it
rounds away is bounded, not hoped to be small: with v' and q' the rounded vectors, |q.v - q'.v'| <= |q| |v - v'| + |q - q'| |v'|, where
|v - v'| was measured when the copy was made; the sum itself runs in float32, and the result is rounded once more, by at most 2^-8 of it. Every
row whose score lies within twice that of the k-th is a candidate, so the answer is the float64 ranking still. When that lets too many through
(vectors that all lie near each other), the query is done again in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from twinvec.errors import choose
from twinvec.index import blocks as _blocks
from twinvec.index.blocks import Block, as_block
from twinvec.index.checks import METRICS, SearchError, VectorError, as_matrix, check_k, check_values, normalised
from twinvec.index.ranking import Candidates, Ranked, Rows, Scores, by_block, float32_slack, lengths, rank
from twinvec.records import Vectors

WINDOW = 32_768  # rows checked or normalised at once
QUERIES = 256  # queries scored at once
NARROW_BYTES = 1 << 30  # bfloat16 copies up to this size are kept in memory
_TILE = 4096  # rows of one product: its scores stay in the cache while their maxima are taken
_GROUP = 32  # rows that share a maximum
_BUFFER = 1 << 25  # scores kept until the window's floor is known: 64 MB in bfloat16
_CANDIDATES = 1 << 24  # candidates kept at once, over all queries of a chunk
_FEW = 4096  # rows below which bfloat16 is not worth a copy
_TINY = 2.0**-126  # products and elements below float32's range may be taken for zero


class Blocks:
    """Rows of vectors in several blocks (n_i, D), some of them dead; rows are numbered through all blocks from 0.

    blocks: float32 tensors, or what stored.py makes of narrower ones.
    """

    def __init__(self, blocks: Sequence[torch.Tensor | Block], dead: Rows | None = None) -> None:
        self.blocks = [as_block(block) for block in blocks]
        self.starts = np.concatenate(([0], np.cumsum([len(block) for block in self.blocks]))).astype(np.int64)
        self.dead = np.zeros(0, dtype=np.int64) if dead is None else np.unique(dead)
        self._searched = False

    @property
    def rows(self) -> int:
        return int(self.starts[-1])

    @property
    def live(self) -> int:
        return self.rows - len(self.dead)

    def vectors(self, rows: Rows) -> Vectors:
        """(m,) -> (m, D), read from the blocks."""
        if len(self.blocks) == 1:
            return self.blocks[0].take(rows)
        out = np.empty((len(rows), self.blocks[0].dimensions), dtype=np.float32)
        for i, mine, inside in by_block(self.starts, rows):
            out[mine] = self.blocks[i].take(inside)
        return out

    def products(self, queries: Vectors, which: Rows, rows: Rows) -> Vectors:
        """See ranking.Finder."""
        return _blocks.products(self.blocks, self.starts, queries, which, rows)

    def candidates(self, queries: Scores, k: int, max_norm: float) -> Candidates:
        """See ranking.Finder."""
        step = max(1, min(QUERIES, _CANDIDATES // k))
        parts = [self._part(queries[at : at + step], k, max_norm) for at in range(0, len(queries), step)]
        self._searched = True
        return Candidates(np.concatenate([part.counts for part in parts]), np.concatenate([part.rows for part in parts]))

    def _part(self, queries: Scores, k: int, max_norm: float) -> Candidates:
        # autocast off: inside a training loop's bf16 region the product would be done in bf16, past the float32 error bound.
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            if not self._narrow_pays(len(queries)):
                return _Pass(self, queries, k, float32_slack(queries, max_norm), None).run()
            found = _narrow_pass(self, queries, k, max_norm).run()
            many = np.flatnonzero(found.counts > max(512, 16 * k, self.rows // 64))
            if not len(many):
                return found
            again = _Pass(self, queries[many], k, float32_slack(queries[many], max_norm), None).run()
            split = np.split(found.rows, np.cumsum(found.counts)[:-1])
            for i, rows in zip(many, np.split(again.rows, np.cumsum(again.counts)[:-1]), strict=True):
                split[i] = rows
            return Candidates(np.asarray([len(rows) for rows in split], dtype=np.int64), np.concatenate(split))

    def _narrow_pays(self, queries: int) -> bool:
        if queries == 1 or self.rows < _FEW or self.rows * self.blocks[0].dimensions * 2 > NARROW_BYTES or not _blocks.bf16_works():
            return False
        # The copy costs about as much as two queries; what is asked once, with one query, is not worth it.
        return queries >= 8 or self._searched or all(block.kept is not None for block in self.blocks)


def _narrow_pass(finder: Blocks, queries: Scores, k: int, max_norm: float) -> _Pass:
    narrow = torch.from_numpy(queries).to(torch.bfloat16)
    rounded = lengths(queries - narrow.double().numpy())
    error = max(block.narrow().error for block in finder.blocks if len(block))
    long, dimensions = lengths(queries), queries.shape[1]
    slack = long * error + rounded * (max_norm + error) + float32_slack(queries, max_norm) * (1 + 2.0**-6)
    slack += dimensions * _TINY * (1 + long + max_norm)
    return _Pass(finder, queries, k, slack, narrow)


class _Pass:
    """One pass over all rows for up to QUERIES queries: every row whose score is within twice `slack` (q,) of the k-th."""

    def __init__(self, finder: Blocks, queries: Scores, k: int, slack: Scores, narrow: torch.Tensor | None) -> None:
        self.finder, self.k, self.slack = finder, k, slack
        self.narrow = narrow is not None
        self.queries = narrow if narrow is not None else torch.from_numpy(np.ascontiguousarray(queries, dtype=np.float32))
        self.tile = _TILE if len(queries) >= 32 else 4 * _TILE
        self.window = max(self.tile, _BUFFER // len(queries))
        groups = min(finder.rows, self.window) // _GROUP
        self.group = _GROUP if 8 * k <= groups else 1  # the k-th of the groups' maxima is a good floor only when there are many more than k
        self.best = torch.empty((len(queries), 0), dtype=self.queries.dtype)
        self.floor: npt.NDArray[np.float32] = np.full(len(queries), -np.inf, dtype=np.float32)
        self.found: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []  # query, row, score

    def run(self) -> Candidates:
        waiting: list[tuple[int, torch.Tensor, torch.Tensor]] = []  # first row, scores, maxima
        scored = 0
        for i, block in enumerate(self.finder.blocks):
            for low in range(0, len(block), self.tile):
                high = min(low + self.tile, len(block))
                scores = self._scores(block, low, high, int(self.finder.starts[i]))
                waiting.append((int(self.finder.starts[i]) + low, scores, self._maxima(scores)))
                scored += scores.shape[1]
                if scored >= self.window:
                    self._collect(waiting)
                    waiting, scored = [], 0
        if waiting:
            self._collect(waiting)
        which, rows, reached = (torch.cat(list(parts)).numpy() for parts in zip(*self.found, strict=True))
        stays = reached >= self.floor[which]
        which, rows = which[stays], rows[stays]
        order = np.argsort(which, kind="stable")
        return Candidates(np.bincount(which, minlength=len(self.queries)).astype(np.int64), rows[order])

    def _scores(self, block: Block, low: int, high: int, start: int) -> torch.Tensor:
        """(q, high - low) inner products, padded with -inf to whole groups; -inf for the dead."""
        width = -(-(high - low) // self.group) * self.group
        out = torch.empty((len(self.queries), width), dtype=self.queries.dtype)
        inside = out[:, : high - low]
        if self.narrow:
            rows = block.narrow().rows[low:high]
            torch.matmul(self.queries, rows.T, out=out) if width == high - low else inside.copy_(torch.matmul(self.queries, rows.T))
        else:
            _product(self.queries, block.part(low, high), inside)
        out[:, high - low :] = -torch.inf
        dead = self.finder.dead
        dead = dead[np.searchsorted(dead, start + low) : np.searchsorted(dead, start + high)]
        if len(dead):
            out[:, torch.from_numpy(dead - start - low)] = -torch.inf
        return out

    def _maxima(self, scores: torch.Tensor) -> torch.Tensor:
        """(q, groups): group j is the columns j, j + groups, j + 2 groups, ...: maxima over whole rows of memory are four times faster so."""
        return scores if self.group == 1 else scores.view(len(scores), self.group, -1).amax(1)

    def _collect(self, waiting: list[tuple[int, torch.Tensor, torch.Tensor]]) -> None:
        """Raise the floor by the maxima of these tiles, and keep every row that reaches it."""
        maxima = torch.cat([self.best, *(maxima for *_, maxima in waiting)], 1)
        self.best = torch.topk(maxima, min(self.k, maxima.shape[1]), dim=1).values
        if self.best.shape[1] == self.k:
            self.floor = self._floor(self.best[:, -1].double().numpy())
        floor = torch.from_numpy(self.floor)[:, None]
        for start, scores, maxima in waiting:
            query, group = torch.nonzero((maxima >= floor) & (maxima > -torch.inf), as_tuple=True)
            inside = scores.view(len(scores), self.group, -1)[query, :, group].float()  # (m, group)
            hit, member = torch.nonzero((inside >= floor[query]) & (inside > -torch.inf), as_tuple=True)
            self.found.append((query[hit], start + member * maxima.shape[1] + group[hit], inside[hit, member]))

    def _floor(self, kth: Scores) -> npt.NDArray[np.float32]:
        """No row of the true top k has a score below this."""
        if self.narrow:
            kth = kth - np.abs(kth) * 2.0**-8 * 1.01 - 2 * self.slack
            kth = kth - np.abs(kth) * 2.0**-8 * 1.01
        else:
            kth = kth - 2 * self.slack
        return np.nextafter(kth.astype(np.float32), np.float32(-np.inf))


def _product(queries: torch.Tensor, block: torch.Tensor, out: torch.Tensor) -> None:
    if len(queries) == 1 and block.is_contiguous():
        # For one query the work is reading the rows, which FAISS does at twice the speed of a matrix product.
        faiss: Any = import_module("faiss")
        scores = out.numpy()
        faiss.fvec_inner_products_ny(faiss.swig_ptr(scores), faiss.swig_ptr(queries.numpy()), faiss.swig_ptr(block.numpy()), *reversed(block.shape))
    elif _full_precision():
        torch.mm(queries, block.T, out=out) if out.is_contiguous() else out.copy_(queries @ block.T)
    else:
        out.copy_(torch.from_numpy(queries.numpy() @ block.numpy().T))


def _full_precision() -> bool:
    """False after torch.set_float32_matmul_precision("medium"), which lets torch round float32 products to bf16 on some CPUs."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # torch refuses to answer when its old and its new setting disagree
        return False


def exact_search(
    queries: Any, segments: Sequence[Any], k: int, *, metric: str = "cosine", ids: Sequence[str] | None = None, dead: Iterable[int] = ()
) -> Ranked:
    """The best `k` rows of `segments` for every query, by (-score, id).

    queries (q, D) or (D,); segments: arrays (n_i, D), rows numbered through all of them from 0; any float type, memory-mapped float32 best.
    metric: "cosine" or "dot". ids: one name a row, for ties; without it ties go by row number. dead: rows never to return; zero rows are
    never returned either (an empty text has no direction). k above the number of live rows gives all of them.
    Raises SearchError for k < 1 or a zero query, VectorError for shapes and NaN.
    """
    k = check_k(k)
    choose("metric", metric, METRICS)
    wanted = as_queries(queries, None)
    blocks: list[torch.Tensor] = []
    norms: list[npt.NDArray[np.float64]] = [np.zeros(0)]
    for i, segment in enumerate(segments):
        rows, lengths = _stored(segment, wanted.shape[1], f"segment {i}", metric)
        blocks.append(torch.from_numpy(rows))
        norms.append(lengths)
    lengths = np.concatenate(norms)
    if ids is not None and len(ids) != len(lengths):
        raise VectorError(f"exact_search: {len(lengths)} rows need {len(lengths)} ids, got {len(ids)}")
    finder = Blocks(blocks, np.union1d(np.fromiter(dead, dtype=np.int64), np.flatnonzero(lengths == 0)))
    longest = 1.0 if metric == "cosine" else float(lengths.max(initial=0.0))

    def names(rows: Iterable[int]) -> Mapping[int, str]:
        assert ids is not None
        return {row: ids[row] for row in rows}

    return rank(wanted, finder, k, metric=metric, max_norm=longest * (1 + 1e-6), ids=names if ids is not None else None)


def as_queries(queries: Any, dimensions: int | None) -> npt.NDArray[np.float64]:
    """Queries as float64 (q, D), each finite and not zero; SearchError or VectorError with the row."""
    wide = np.ascontiguousarray(as_matrix(queries, dimensions, "queries"), dtype=np.float64)
    check_values(wide, "queries")
    zero = np.flatnonzero(np.sqrt((wide * wide).sum(axis=1)) == 0)
    if len(zero):
        raise SearchError(f"queries: row {zero[0]} from 0 is all zeros, which is near to nothing; was its text empty?")
    return wide


def _stored(segment: Any, dimensions: int, what: str, metric: str) -> tuple[Vectors, npt.NDArray[np.float64]]:
    """A segment as float32 rows fit for `metric`, copied only where it must be, and the norms of its rows."""
    array = as_matrix(segment, dimensions, what)
    norms = np.empty(len(array), dtype=np.float64)
    for at in range(0, len(array), WINDOW):
        wide = array[at : at + WINDOW].astype(np.float64)
        check_values(wide, what, at)
        norms[at : at + WINDOW] = np.sqrt((wide * wide).sum(axis=1))
    fits = metric == "dot" or bool(np.all((np.abs(norms - 1) < 1e-6) | (norms == 0)))
    if fits and array.dtype == np.float32 and array.flags.c_contiguous:
        return np.asarray(_Unlocked(array)), norms
    out = np.empty(array.shape, dtype=np.float32)
    for at in range(0, len(array), WINDOW):
        out[at : at + WINDOW] = normalised(array[at : at + WINDOW], metric)[0]
    return out, norms


class _Unlocked:
    """The same memory without numpy's read-only mark, which torch warns about; a mapped file is read in place and nothing here writes."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.__array_interface__["data"][0], False)}
