"""Exact search: blocks of a matrix product and top-k in torch, float64 for the last word (ranking.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from twinvec.errors import choose
from twinvec.index.checks import METRICS, SearchError, VectorError, as_matrix, check_k, check_values, normalised
from twinvec.index.ranking import Ranked, Rows, rank
from twinvec.records import Vectors

WINDOW = 32_768  # rows scored at once
QUERIES = 256  # queries scored at once: with WINDOW a buffer of 32 MB, which is reused
_CANDIDATES = 1 << 24  # candidates kept at once, over all queries of a chunk


class Blocks:
    """Rows of vectors in several float32 blocks (n_i, D), some of them dead; rows are numbered through all blocks from 0."""

    def __init__(self, blocks: Sequence[torch.Tensor], dead: Rows | None = None) -> None:
        self.blocks = list(blocks)
        self.starts = np.concatenate(([0], np.cumsum([len(block) for block in self.blocks]))).astype(np.int64)
        self.dead = np.zeros(0, dtype=np.int64) if dead is None else np.unique(dead)

    @property
    def rows(self) -> int:
        return int(self.starts[-1])

    @property
    def live(self) -> int:
        return self.rows - len(self.dead)

    def vectors(self, rows: Rows) -> Vectors:
        """(m,) -> (m, D), read from the blocks."""
        out = np.empty((len(rows), self.blocks[0].shape[1]), dtype=np.float32)
        place = np.searchsorted(self.starts, rows, side="right") - 1
        for i in np.unique(place):
            mine = place == i
            out[mine] = self.blocks[i].numpy()[rows[mine] - self.starts[i]]
        return out

    def candidates(self, queries: Vectors, k: int) -> tuple[npt.NDArray[np.float32], Rows]:
        """See ranking.Finder."""
        step = max(1, min(QUERIES, _CANDIDATES // k))
        parts = [self._top(torch.from_numpy(queries[at : at + step]), k) for at in range(0, len(queries), step)]
        return np.concatenate([scores for scores, _ in parts]), np.concatenate([rows for _, rows in parts])

    def _top(self, queries: torch.Tensor, k: int) -> tuple[npt.NDArray[np.float32], Rows]:
        # autocast off: inside a training loop's bf16 region the product would be done in bf16, past the error bound of ranking.py.
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            best = torch.empty((len(queries), 0)), torch.empty((len(queries), 0), dtype=torch.int64)
            buffer = torch.empty(len(queries) * min(WINDOW, self.rows))
            for start in range(0, self.rows, WINDOW):
                stop = min(start + WINDOW, self.rows)
                scores = buffer[: len(queries) * (stop - start)].view(len(queries), stop - start)
                self._fill(scores, queries, start, stop)
                values, rows = torch.topk(scores, min(k, stop - start), dim=1)
                values, rows = torch.cat((best[0], values), 1), torch.cat((best[1], rows + start), 1)
                order = torch.topk(values, min(k, values.shape[1]), dim=1)
                best = order.values, torch.gather(rows, 1, order.indices)
            return best[0].numpy(), best[1].numpy()

    def _fill(self, scores: torch.Tensor, queries: torch.Tensor, start: int, stop: int) -> None:
        """scores (q, stop - start) = queries . rows start to stop; -inf for the dead."""
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        for i in range(first, len(self.blocks)):
            low, high = max(start, int(self.starts[i])), min(stop, int(self.starts[i + 1]))
            if low >= stop:
                break
            if low < high:
                block = self.blocks[i][low - int(self.starts[i]) : high - int(self.starts[i])]
                _product(queries, block, scores[:, low - start : high - start])
        dead = self.dead[np.searchsorted(self.dead, start) : np.searchsorted(self.dead, stop)]
        if len(dead):
            scores[:, torch.from_numpy(dead - start)] = -torch.inf


def _product(queries: torch.Tensor, block: torch.Tensor, out: torch.Tensor) -> None:
    if _full_precision():
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
