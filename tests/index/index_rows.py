"""Rows with neighbours, and a commit of them for the search, without a database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from twinvec.index import ann
from twinvec.index.exact import Blocks
from twinvec.index.searching import Indexed, State
from twinvec.index.segments import IndexFile, Segment


def clustered(n: int, dimensions: int, seed: int = 0, topics: int = 40, unit: bool = True) -> np.ndarray:
    """(n, D) float32 around some centres, as texts lie around topics; row by row in no order."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((topics, dimensions))
    rows = centres[rng.integers(0, topics, n)] + 0.7 * rng.standard_normal((n, dimensions))
    if unit:
        rows /= np.sqrt((rows * rows).sum(1))[:, None]
    return rows.astype(np.float32)


def nearest(queries: np.ndarray, rows: np.ndarray, k: int, keep: np.ndarray | None = None, metric: str = "cosine") -> list[list[int]]:
    """The float64 ranking of numpy, ties by row."""
    q, v = queries.astype(np.float64), rows.astype(np.float64)
    if metric == "cosine":
        q, v = (x / np.sqrt((x * x).sum(1))[:, None] for x in (q, v))
    keep = np.arange(len(rows)) if keep is None else keep
    scores = np.stack([(v[keep] * line).sum(1) for line in q])
    return [keep[np.lexsort((keep, -line))[:k]].tolist() for line in scores]


def recall(found: Any, wanted: list[list[int]]) -> float:
    return float(np.mean([len(set(map(int, line)) & set(true)) / len(true) for line, true in zip(found, wanted, strict=True)]))


def commit(rows: np.ndarray, folder: Path, built: ann.Built | None = None, *, covered: int = 0, dead: Any = (), blocks: Any = None) -> State:
    """A state over `rows`, the first `covered` of which an index covers."""
    longest = float(np.sqrt((rows.astype(np.float64) ** 2).sum(1)).max()) * (1 + 1e-6)
    segment = Segment(1, "1.npy", "vectors", "float32", 0, len(rows), rows.shape[1], 0, "", longest)
    indexed = []
    if built is not None:
        path = folder / f"{built.detail['kind']}.index"
        detail = built.save(path)
        indexed = [Indexed(IndexFile(2, path.name, detail["kind"], 0, covered, detail["bytes"], detail["sha256"], json.dumps(detail)), path, 0)]
    return State(1, [segment], Blocks(blocks or [torch.from_numpy(rows)], np.asarray(dead, dtype=np.int64)), indexed)
