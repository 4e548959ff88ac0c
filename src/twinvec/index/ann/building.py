"""An index from a stream of rows: three passes, a bounded sample in memory.

1. A sample to train on and the rows to hold out as queries. 2. All other rows are added, and the true neighbours of the held-out ones are found on
the way. 3. Tuned on them (tuning.py), the index gets the held-out rows too. The same rows, seed and number of threads give the same index.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from twinvec.errors import CollectionError
from twinvec.files import atomic_file
from twinvec.index.ann.approximate import Approximate, order_of, prepared, whole
from twinvec.index.ann.plan import BUCKETS, DEFAULT_RECALL, Plan, check_recall, plan
from twinvec.index.ann.rows import RowSource, checked
from twinvec.index.ann.threads import bounded
from twinvec.index.ann.tuning import tune
from twinvec.index.ranking import Rows
from twinvec.records import Vectors

_NEIGHBOURS = BUCKETS[-1]
_CONSTRUCTION = 80  # efConstruction of HNSW; FAISS's own is 40
_ROUNDS = 2  # of `_lengthened`; a third changes little
_CODED = 16_384  # rows coded at once


@dataclass(slots=True)
class Built:
    """A finished index in memory."""

    index: Any
    plan: Plan
    detail: dict[str, Any]

    def save(self, path: str | Path) -> dict[str, Any]:
        """Write it, whole and synced or not at all; the detail (ready for JSON) with its size and SHA-256. CollectionError when the disk is full."""
        faiss: Any = import_module("faiss")
        path, state, size = Path(path), hashlib.sha256(), 0
        try:
            with atomic_file(path) as stream:

                def write(content: bytes) -> None:
                    nonlocal size
                    stream.write(content)
                    state.update(content)
                    size += len(content)

                faiss.write_index(self.index, faiss.PyCallbackIOWriter(write, 1 << 20))
        except OSError as err:
            raise CollectionError(f"{path}: could not be written ({os.strerror(err.errno or 0)}); make room on the disk") from err
        self.detail.update(bytes=size, sha256=state.hexdigest())
        return self.detail

    def opened(self) -> Approximate:
        """For searching it without a file."""
        rows = self.detail["rows"]
        order = order_of(rows, self.detail["held"]) if self.plan.kind == "hnsw" else None
        return Approximate(self.index, self.plan.kind, rows, self.detail, order)


def build(
    rows: RowSource, kind: str, *, recall: float | None = None, seed: int = 0, memory: int | None = None, threads: int | None = None,
    queries: Vectors | None = None,
) -> Built:  # fmt: skip
    """An index of `kind` ("ivf", "ivfpq", "hnsw", "flat") over all rows, tuned to every recall of plan.TARGETS.

    recall: what a search asks for when it does not say. memory: bytes for training, about a quarter of it. threads: torch's number by default;
    a graph (hnsw) is built by one thread unless more are asked for, since with more no two builds are the same. Fewer than 1,000 rows give a flat
    index. queries: (q, D) float32 of the kind that will be asked, to tune on; without them rows that are held out stand for them, which promises
    the recall for queries that are like rows. CollectionError for rows of the wrong shape, NaN, or fewer than promised.
    """
    start = time.perf_counter()
    recall = check_recall(recall)
    count, dimensions = rows.rows, rows.dimensions
    chosen = plan(kind, count, dimensions, memory)
    rng = np.random.default_rng(seed)
    out = chosen.held if queries is None else 0
    held = np.sort(rng.choice(count, out, replace=False)) if out else np.zeros(0, dtype=np.int64)
    with bounded(threads or (1 if chosen.kind == "hnsw" else None)):
        sample, own = _sample(rows, chosen, held, rng)
        asked = own if queries is None or not chosen.held else np.ascontiguousarray(queries, dtype=np.float32)
        index = _trained(chosen, dimensions, sample, seed)
        del sample
        truth = _add(index, chosen, rows, held, asked)
        tuned = []
        if len(asked) and not len(held):
            tuned = tune(Approximate(prepared(index, chosen.kind), chosen.kind, count, {}), asked, truth)
        elif len(held):
            ready = Approximate(prepared(index, chosen.kind), chosen.kind, count - len(held), {}, order_of(count, held.tolist())[: count - len(held)])
            if chosen.kind != "hnsw":
                ready.order, ready.rows = None, count
            tuned = tune(ready, asked, truth)
            _grown(tuned, count / (count - len(held)), count)
            _put(index, chosen, asked, held)
    detail = {
        "kind": chosen.kind, "factory": chosen.factory, "rows": count, "dimensions": dimensions, "recall": recall, "seed": seed,
        "held": held.tolist() if chosen.kind == "hnsw" else [], "queries": len(asked),
        "tuned_on": "queries" if len(asked) and not len(held) else "held-out rows", "tuned": tuned,
        "seconds": round(time.perf_counter() - start, 2), "bytes": None, "sha256": None,
    }  # fmt: skip
    return Built(index, chosen, detail)


def _sample(rows: RowSource, chosen: Plan, held: Rows, rng: np.random.Generator) -> tuple[Vectors, Vectors]:
    """Training rows, none of them held out, and the held-out rows; both in the order of the stream."""
    if not chosen.held:
        return np.zeros((0, rows.dimensions), dtype=np.float32), np.zeros((0, rows.dimensions), dtype=np.float32)
    others = rows.rows - len(held)
    picked = np.sort(rng.choice(others, chosen.training, replace=False)) if chosen.training < others else np.arange(others)
    picked = picked + np.searchsorted(held - np.arange(len(held)), picked, side="right")  # numbers among the others -> rows
    sample = np.empty((len(picked), rows.dimensions), dtype=np.float32)
    queries = np.empty((len(held), rows.dimensions), dtype=np.float32)
    for start, block in checked(rows):
        for wanted, out in ((picked, sample), (held, queries)):
            low, high = np.searchsorted(wanted, (start, start + len(block)))
            out[low:high] = block[wanted[low:high] - start]
    return sample, queries


def _trained(chosen: Plan, dimensions: int, sample: Vectors, seed: int) -> Any:
    faiss: Any = import_module("faiss")
    if chosen.kind == "flat":
        return faiss.IndexFlatIP(dimensions)
    index = faiss.index_factory(dimensions, chosen.factory, faiss.METRIC_INNER_PRODUCT)
    if chosen.kind == "hnsw":
        index.hnsw.efConstruction = _CONSTRUCTION
        index.train(sample)
        return index
    shape = faiss.ClusteringParameters()
    shape.niter, shape.seed, shape.spherical, shape.min_points_per_centroid = 10, seed, True, 1
    shape.max_points_per_centroid = 1 << 20  # the sample is bounded already
    clusters = faiss.Clustering(dimensions, chosen.lists, shape)
    clusters.train(sample, faiss.IndexFlatIP(dimensions))
    centroids = faiss.vector_to_array(clusters.centroids).reshape(chosen.lists, dimensions)
    index.quantizer.add(whole(centroids, dimensions))
    index.quantizer_trains_alone = 2  # the lists stand: only the codes are trained
    index.cp.seed = seed
    if chosen.kind == "ivfpq":
        index.pq.cp.seed = seed
        index.pq.cp.niter = 16
    index.train(sample[:65_536] if chosen.kind == "ivfpq" else sample)
    return index


def _add(index: Any, chosen: Plan, rows: RowSource, held: Rows, queries: Vectors) -> Rows:
    """Add everything but the held-out rows; returns the rows (q, 100) nearest to each query, of those that were added."""
    best = torch.empty((len(queries), 0)), torch.empty((len(queries), 0), dtype=torch.int64)
    for start, block in checked(rows):
        numbers: Rows = np.arange(start, start + len(block), dtype=np.int64)
        if len(held):
            outside = ~np.isin(numbers, held, assume_unique=True)
            numbers, block = numbers[outside], np.ascontiguousarray(block[outside])
        if len(queries):
            best = _nearer(best, queries, block, numbers)
        _put(index, chosen, block, numbers)
    return best[1].numpy()


def _grown(tuned: list[dict[str, Any]], by: float, rows: int) -> None:
    """The lists will hold more rows than when they were tuned: as many more candidates keep the same share of what is scanned. A margin stands."""
    for entry in tuned:
        if entry["parameters"] is not None and not {"ef", "margin"} & set(entry["parameters"]):
            entry["parameters"]["candidates"] = min(rows, int(np.ceil(entry["parameters"]["candidates"] * by)))


def _put(index: Any, chosen: Plan, block: Vectors, numbers: Rows) -> None:
    if not len(block):
        return
    if chosen.kind == "ivfpq":
        for at in range(0, len(block), _CODED):
            part = slice(at, at + _CODED)
            index.add_with_ids(_lengthened(index.pq, block[part]), numbers[part])
    elif chosen.kind == "ivf":
        index.add_with_ids(block, numbers)
    else:
        index.add(block)


def _lengthened(codes: Any, block: Vectors) -> Vectors:
    """Rows (n, D) scaled so that what their codes read back as reaches as far along the row as the row itself does.

    A product code is the mean of its cell, so it is shorter than the row: by a tenth here, by a third there, and a row that is hard to code would
    rank below its place for every query. The part along the row is what scores of near queries are made of (Guo et al. 2020, section 3, weigh the
    error along it above the rest; Gao and Long 2024 divide by it). The lists do not change: they go by the largest inner product.
    """
    norms = (block * block).sum(axis=1, keepdims=True)
    scale = np.ones_like(norms)
    for _ in range(_ROUNDS):
        read = codes.decode(codes.compute_codes(np.ascontiguousarray(block * scale)))
        along = (block * read).sum(axis=1, keepdims=True) / np.where(norms > 0, norms, 1.0)
        scale = np.clip(scale / np.maximum(along, 0.05), 0.5, 4.0)
    return np.ascontiguousarray(block * scale)


def _nearer(best: tuple[torch.Tensor, torch.Tensor], queries: Vectors, block: Vectors, numbers: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.inference_mode(), torch.autocast("cpu", enabled=False):
        scores = torch.from_numpy(queries) @ torch.from_numpy(block).T
        values, columns = torch.topk(scores, min(_NEIGHBOURS, len(block)), dim=1)
        values, rows = torch.cat((best[0], values), 1), torch.cat((best[1], torch.from_numpy(numbers)[columns]), 1)
        order = torch.topk(values, min(_NEIGHBOURS, values.shape[1]), dim=1)
        return order.values, torch.gather(rows, 1, order.indices)


__all__ = ["DEFAULT_RECALL", "Built", "build"]
