"""Approximate indexes: FAISS's structures behind two questions, `nearest` with parameters and `candidates` with a recall.

Batches do not change hits: lists are chosen by products of whole numbers. Centroids and queries are scaled to a length of about 4,000 and rounded,
so every partial sum of their product stays below 2^24 by Cauchy and Schwarz, and float32 adds it without error in any order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from twinvec.errors import CollectionError
from twinvec.index.ann.plan import APPROXIMATE, BUCKETS, TARGETS, level_of
from twinvec.index.ann.threads import bounded
from twinvec.index.ann.tuning import Parameters, behind
from twinvec.index.ranking import Rows, Scores
from twinvec.records import Vectors

_DENSE = 0.02  # share of allowed rows below which scanning lists for them is dearer than scoring them all
_GRAPH_DENSE = 0.5  # the same for a graph, which has to walk through the others
_SUBSET = 50_000  # allowed rows that are scored all, when they are the smaller half
_NEARLY_ALL = 0.99  # share of allowed rows above which lists are as good as full
_FAR = 250_000  # rows below which more hits than an index was tuned for are found as fast by scoring all rows
_AT_ONCE = 1024  # queries a FAISS call


class Approximate:
    """An index over rows 0 to rows - 1. `order` (hnsw): the row of each of FAISS's numbers, None when they are the same."""

    def __init__(self, index: Any, kind: str, rows: int, detail: dict[str, Any], order: Rows | None = None) -> None:
        self.index, self.kind, self.rows, self.detail, self.order = index, kind, rows, detail, order
        self.dimensions = int(index.d)
        self.lists = int(index.nlist) if kind in ("ivf", "ivfpq") else 0
        self._members: npt.NDArray[np.int32] | None = None
        self._centroids: Vectors | None = None

    # what the search asks

    def parameters(self, k: int, recall: float) -> Parameters | None:
        """The parameters for k hits at this recall: the same for every k up to 10, from 11 to 100, and so on; None: search exactly."""
        target = next((target for target in TARGETS if target >= recall - 1e-9), None)
        if target is None or self.kind not in APPROXIMATE:
            return None
        level = level_of(k)
        bucket = min(level, BUCKETS[-1])
        if level > bucket and self.rows < _FAR:
            return None
        entry = next((entry for entry in self.detail["tuned"] if entry["hits"] == bucket and entry["target"] == target), None)
        if entry is None or entry["parameters"] is None:
            return None
        found: Parameters = dict(entry["parameters"])
        while bucket < level:  # further than it was tuned: ten times the hits want ten times the candidates, and lie in about three times the lists
            bucket *= 10
            found["candidates"] *= 10
            if "hits" in found:
                found["hits"] = bucket
            if "probes" in found:
                found["probes"] = min(self.lists, 3 * found["probes"])
            else:
                found["ef"] = found["candidates"]
        found["candidates"] = min(found["candidates"], self.rows)
        return found

    def candidates(self, queries: Vectors, k: int, recall: float, allowed: Rows | npt.NDArray[np.bool_] | None = None) -> tuple[Vectors, Rows] | None:
        """queries (q, D) -> scores and rows (q, m) of candidates for the k nearest, -1 where there are fewer; None: exact search is the way.

        allowed: the rows that may be found, sorted, or a mask (rows,). The scores are the index's own, of a scaled query: they order, and mean
        no more.
        """
        parameters = self.parameters(k, recall)
        if parameters is None or 4 * parameters["candidates"] > self.rows:
            return None
        if allowed is None:
            return near(self.search(queries, parameters), parameters)
        bits = as_mask(allowed, self.rows)
        count = int(bits.sum())
        share = count / self.rows
        if count <= (_SUBSET if share < 0.5 else 0) or share < (_GRAPH_DENSE if self.kind == "hnsw" else _DENSE):
            return None
        if self.kind == "hnsw" or share > _NEARLY_ALL:
            return near(self._sifted(queries, parameters, bits, share), parameters)
        found = self._filtered(queries, parameters, bits, share)
        return found if found is None else near(found, parameters)

    # how it is found

    def nearest(self, queries: Vectors, parameters: Parameters) -> Rows:
        """See tuning.Searcher."""
        return near(self.search(queries, parameters), parameters)[1]

    def search(self, queries: Vectors, parameters: Parameters, bits: npt.NDArray[np.bool_] | None = None) -> tuple[Vectors, Rows]:
        """queries (q, D) -> scores and rows (q, candidates), -1 where there are none; only rows whose bit is set."""
        narrow = whole(queries, self.dimensions) if self.lists else np.ascontiguousarray(queries, dtype=np.float32)
        scores, rows = [], []
        with bounded(pieces=len(narrow)), _selector(bits if self.order is None or bits is None else bits[self.order]) as selector:
            options = self._options(parameters, selector)
            for at in range(0, len(narrow), _AT_ONCE):
                found = self.index.search(narrow[at : at + _AT_ONCE], min(parameters["candidates"], self.rows), params=options)
                scores.append(found[0])
                rows.append(found[1])
        joined = np.concatenate(rows)
        if joined.size and int(joined.max()) >= self.rows:
            raise CollectionError(f"an index answered row {int(joined.max())} of {self.rows}: its file is damaged; build it again with optimize()")
        if self.order is not None:
            joined = np.where(joined >= 0, self.order[joined], -1)
        return np.concatenate(scores), joined

    def _options(self, parameters: Parameters, selector: Any) -> Any:
        faiss: Any = import_module("faiss")
        chosen = {} if selector is None else {"sel": selector}
        if self.kind == "hnsw":
            return faiss.SearchParametersHNSW(efSearch=parameters["ef"], **chosen)
        if self.lists:
            return faiss.SearchParametersIVF(nprobe=min(parameters["probes"], self.lists), **chosen)
        return faiss.SearchParameters(**chosen)

    def _sifted(self, queries: Vectors, parameters: Parameters, bits: npt.NDArray[np.bool_], share: float) -> tuple[Vectors, Rows]:
        """More candidates, and those that are allowed of them. A query that keeps less than half of what it should stands where the filter cut
        something out, far from what is left: it gets no candidates, which leaves it to exact search."""
        wide = dict(parameters)
        for name in ("candidates", "ef"):
            if name in wide:
                wide[name] = min(self.rows, int(wide[name] / share * 1.05) + 8)
        scores, rows = self.search(queries, wide)
        kept = (rows >= 0) & bits[rows]
        kept &= (kept.mean(axis=1) >= 0.5 * share)[:, None]
        return scores, np.where(kept, rows, -1)

    def _filtered(self, queries: Vectors, parameters: Parameters, bits: npt.NDArray[np.bool_], share: float) -> tuple[Vectors, Rows] | None:
        """As many lists for each query as hold the number of allowed rows that an unfiltered search scans: a filter that has to do with the
        vectors (a language, a topic) leaves whole lists empty, which then do not count. A query whose own lists were emptied is left to exact
        search, as in `_sifted`: what is left is far away in all directions."""
        inside, every = (np.bincount(rows, minlength=self.lists) for rows in (self.members()[bits], self.members()))
        scan = parameters["probes"] * self.rows / self.lists
        if inside.sum() <= scan:
            return None
        need = self._probes(queries, parameters["probes"], inside, np.asarray(every * (0.5 * share), dtype=np.float64), scan)
        width = min(parameters["candidates"], self.rows)
        scores: Vectors = np.full((len(queries), width), -np.inf, dtype=np.float32)
        rows: Rows = np.full((len(queries), width), -1, dtype=np.int64)
        for probes in np.unique(need[need > 0]).tolist():
            mine = np.flatnonzero(need == probes)
            scores[mine], rows[mine] = self.search(queries[mine], {**parameters, "probes": probes}, bits)
        return scores, rows

    def _probes(self, queries: Vectors, fewest: int, inside: Rows, least: Scores, scan: float) -> Rows:
        """(q,) lists to probe, the nearest first, until they hold `scan` of the rows counted in `inside` (lists,); `fewest` times a power of 2.

        0 for a query whose nearest `fewest` lists hold fewer rows than `least` (lists,) of them.
        """
        scores = torch.from_numpy(whole(queries, self.dimensions) @ self.centroids().T)
        need: Rows = np.full(len(queries), self.lists, dtype=np.int64)
        todo: Rows = np.arange(len(queries))
        fair = np.ones(len(queries), dtype=np.bool_)
        width = min(self.lists, 4 * fewest)
        while len(todo):
            nearest = torch.topk(scores[todo], width, dim=1).indices.numpy()
            held = np.cumsum(inside[nearest], axis=1)
            fair[todo] = held[:, fewest - 1] >= least[nearest[:, :fewest]].sum(axis=1)
            enough = (held[:, -1] >= scan) | (width == self.lists)
            need[todo[enough]] = (held[enough] < scan).sum(axis=1) + 1
            todo, width = todo[~enough], min(self.lists, 4 * width)
        steps = 2.0 ** np.ceil(np.log2(np.maximum(need / fewest, 1.0)))
        return np.where(fair, np.minimum(fewest * steps.astype(np.int64), self.lists), 0)

    def members(self) -> npt.NDArray[np.int32]:
        """(rows,) -> the list of each row; read from the index once."""
        if self._members is None:
            import faiss

            found: npt.NDArray[np.int32] = np.zeros(self.rows, dtype=np.int32)
            lists = self.index.invlists
            for i in range(self.lists):
                size = lists.list_size(i)
                if size:
                    ids = lists.get_ids(i)
                    found[faiss.rev_swig_ptr(ids, size)] = i
                    lists.release_ids(i, ids)
            self._members = found
        return self._members

    def centroids(self) -> Vectors:
        """(lists, D), whole numbers."""
        if self._centroids is None:
            self._centroids = self.index.quantizer.reconstruct_n(0, self.lists)
        return self._centroids


def near(found: tuple[Vectors, Rows], parameters: Parameters) -> tuple[Vectors, Rows]:
    """Scores and rows (q, n) as they are, with -1 for rows that lie further than the margin below the k-th; all where there is no margin."""
    if "margin" not in parameters:
        return found
    return found[0], np.where(behind(*found, parameters["hits"]) <= parameters["margin"], found[1], -1)


def as_mask(allowed: npt.NDArray[Any], rows: int) -> npt.NDArray[np.bool_]:
    """Row numbers as a mask (rows,); a mask as it is."""
    if allowed.dtype == np.bool_:
        return allowed
    mask = np.zeros(rows, dtype=np.bool_)
    mask[allowed] = True
    return mask


def whole(vectors: Vectors, dimensions: int) -> Vectors:
    """Rows (n, D) scaled to a common length and rounded to whole numbers (module docstring); rounding moves them by less than 1e-4 a number."""
    length = 4088.0 - np.sqrt(dimensions)
    wide = vectors.astype(np.float64)
    norms = np.sqrt((wide * wide).sum(axis=1))
    wide *= (length / np.where(norms > 0, norms, 1.0))[:, None]
    return np.ascontiguousarray(np.rint(wide), dtype=np.float32)


@contextlib.contextmanager
def _selector(bits: npt.NDArray[np.bool_] | None) -> Iterator[Any]:
    """FAISS's selector of the rows whose bit is set; it reads the bitmap in place, which therefore lives as long."""
    if bits is None:
        yield None
        return
    faiss: Any = import_module("faiss")
    packed = np.packbits(bits, bitorder="little")
    yield faiss.IDSelectorBitmap(packed)


def load(path: str | Path, detail: dict[str, Any]) -> Approximate:
    """An index that `Built.save` wrote, mapped and not loaded where FAISS can. CollectionError when the file is not what `detail` says."""
    import faiss

    path = Path(path)
    kind, rows = detail["kind"], int(detail["rows"])
    flags = faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY if kind == "ivf" else faiss.IO_FLAG_MMAP_IFC
    try:
        index = faiss.read_index(str(path), flags)
    except (RuntimeError, MemoryError) as err:
        raise CollectionError(f"{path}: cannot be read as an index ({_short(err)}); build it again with optimize()") from err
    if index.d != detail["dimensions"] or index.ntotal != rows:
        raise CollectionError(
            f"{path}: holds {index.ntotal} rows of {index.d} dimensions where {rows} of {detail['dimensions']} were written; "
            "build it again with optimize()"
        )
    return Approximate(prepared(index, kind), kind, rows, detail, order_of(rows, detail.get("held", [])) if kind == "hnsw" else None)


def prepared(index: Any, kind: str) -> Any:
    """Fixed choices that FAISS would otherwise make by batch size and threads."""
    if kind == "ivfpq":
        index.implem = 13  # several queries at once, candidates in a reservoir; 14 and 15 split one query over threads, and its ties with it
    return index


def order_of(rows: int, held: list[int]) -> Rows:
    """The row of each number in an index that got the held-out rows last."""
    last = np.asarray(held, dtype=np.int64)
    return np.concatenate((np.setdiff1d(np.arange(rows, dtype=np.int64), last, assume_unique=True), last))


def _short(err: BaseException) -> str:
    return str(err).strip().splitlines()[0].split("Error: ")[-1][:120] if str(err).strip() else type(err).__name__
