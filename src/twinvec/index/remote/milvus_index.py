"""Nearest vectors in Milvus: its own search, thinned out by the filter, and a scan where that cannot answer."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np

from twinvec.errors import CollectionError, choose
from twinvec.index.remote import milvus_rows as layout
from twinvec.index.remote.milvus_link import LIMIT, TIMEOUT, Link
from twinvec.index.remote.scoring import Found
from twinvec.index.where import Node, matches
from twinvec.index.where_milvus import to_milvus
from twinvec.records import Vectors

KINDS = ("hnsw", "ivf")
EFFORT = {"hnsw": (16, 32, 64, 128, 256, 512, 1024), "ivf": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)}
SAMPLE = 20
_COLUMNS = ["document", "part", "metadata", "vector"]


def candidates(link: Link, index: dict[str, Any] | None, query: Vectors, where: Node | None, recall: float | None, take: int) -> Found | None:
    """The `take` best rows that match, by the server's search; None when the filter leaves too few of the rows that one search can give."""
    expression = _expression(where)
    ask = take
    while True:
        hits = link.search(query.tolist(), "vector", expression, _COLUMNS, ask, metric_type="IP", **_effort(index, recall, ask))
        rows = [dict(hit["entity"], score=float(hit["distance"])) for hit in hits]
        rows.sort(key=lambda row: -row["score"])
        passed = [row for row in rows if _passes(row, where)][:take]
        if len(passed) >= take or (len(rows) < ask and index is None):
            return _found(passed, len(query), index is None)
        if len(rows) < ask:
            return None  # an approximate search that ends early says nothing about what it did not see
        if ask == LIMIT:
            return None if where is not None else _found(passed, len(query), index is None)
        ask = min(ask * 4, LIMIT)


def scanned(link: Link, query: Vectors, where: Node | None, take: int) -> Found:
    """The `take` best rows that match, from reading all of them."""
    kept: list[dict[str, Any]] = []
    for block in link.scan(_expression(where), _COLUMNS):
        rows = [row for row in block if _passes(row, where)]
        if rows:
            scores = layout.vectors_of(rows, len(query)).astype(np.float64) @ query.astype(np.float64)
            kept += [dict(row, score=score) for row, score in zip(rows, scores.tolist(), strict=True)]
            kept = sorted(kept, key=lambda row: -row["score"])[:take]
    return _found(kept, len(query), True)


def _found(rows: list[dict[str, Any]], dimensions: int, exact: bool) -> Found:
    scores = np.asarray([row["score"] for row in rows], dtype=np.float64)
    names = [layout.id_of(row["document"]) for row in rows]
    return Found(names, [int(row["part"]) for row in rows], scores, layout.vectors_of(rows, dimensions), exact)


def _expression(where: Node | None) -> str:
    more = to_milvus(where) if where is not None else ""
    return f"{layout.FOUND} and ({more})" if more else layout.FOUND


def _passes(row: dict[str, Any], where: Node | None) -> bool:
    return where is None or matches(where, layout.id_of(row["document"]), json.loads(row["metadata"]))


def _effort(index: dict[str, Any] | None, recall: float | None, take: int) -> dict[str, Any]:
    if index is None:
        return {}
    wanted = index["recall"] if recall is None else recall
    reached = [row["effort"] for row in index["measured"] if row["recall"] >= wanted]
    effort = min(reached) if reached else max((row["effort"] for row in index["measured"]), default=EFFORT[index["kind"]][3])
    return {"params": {"ef": max(effort, take)} if index["kind"] == "hnsw" else {"nprobe": effort}}


def build(link: Link, dimensions: int, kind: str, recall: float | None) -> dict[str, Any] | None:
    """Another index in the place of the one that is there; what it reaches, as a JSON object. None for "exact"."""
    choose("kind", kind, ("exact", *KINDS))
    rows = link.count(layout.FOUND)
    if not rows and kind != "exact":
        raise CollectionError("an index needs vectors, and the collection has none yet; add documents first")
    # Milvus Lite takes 128 lists whatever is asked, so nprobe is not held below the number of lists.
    lists = max(1, min(int(4 * rows**0.5), rows // 39 or 1, 65_536))  # FAISS wants 39 rows a list to place its centres
    start = time.perf_counter()
    with link.errors() as client:
        parameters = client.prepare_index_params()
        if kind == "exact":
            parameters.add_index("vector", index_type="FLAT", metric_type="IP")
        elif kind == "hnsw":
            parameters.add_index("vector", index_type="HNSW", metric_type="IP", params={"M": 16, "efConstruction": 128})
        else:
            parameters.add_index("vector", index_type="IVF_FLAT", metric_type="IP", params={"nlist": lists})
        client.flush(link.name, timeout=TIMEOUT)
        client.release_collection(link.name, timeout=TIMEOUT)
        client.drop_index(link.name, "vector", timeout=TIMEOUT)
        client.create_index(link.name, parameters)
        client.load_collection(link.name)
    if kind == "exact":
        return None
    detail: dict[str, Any] = {"kind": kind, "rows": rows, "lists": lists if kind == "ivf" else None, "recall": 0.95 if recall is None else recall}
    detail = {**detail, "seconds": round(time.perf_counter() - start, 2), "measured": []}
    return {**detail, "measured": _measured(link, detail, dimensions)}


def _measured(link: Link, detail: dict[str, Any], dimensions: int) -> list[dict[str, Any]]:
    """Recall@10 and queries a second of each effort, with stored vectors as queries that may not find themselves, until 0.99 is reached."""
    sample = link.query(layout.FOUND, _COLUMNS, SAMPLE)
    queries = layout.vectors_of(sample, dimensions)
    tenth = _tenth(link, queries)
    rows: list[dict[str, Any]] = []
    for effort in EFFORT[detail["kind"]]:
        one = {**detail, "measured": [{"effort": effort, "recall": 1.0}]}
        start, hits = time.perf_counter(), []
        for query, floor in zip(queries, tenth, strict=True):
            found = candidates(link, one, query, None, 1.0, min(11, detail["rows"]))
            scores = found.scores[1:] if found is not None else np.zeros(0)
            hits.append(np.sum(scores >= floor - 1e-5) / max(min(10, detail["rows"] - 1), 1))
        rate = len(queries) / (time.perf_counter() - start)
        rows.append({"effort": effort, "recall": round(float(np.mean(hits)), 4), "rate": round(rate, 1)})
        if rows[-1]["recall"] >= 0.99:
            break
    return rows


def _tenth(link: Link, queries: Vectors) -> list[float]:
    """The score of the tenth neighbour of each query, itself not counted, in one pass over all rows."""
    best: Any = np.full((len(queries), 11), -np.inf)
    for block in link.scan(layout.FOUND, ["vector"]):
        scores = queries.astype(np.float64) @ layout.vectors_of(block, queries.shape[1]).astype(np.float64).T
        best = np.sort(np.concatenate((best, scores), axis=1), axis=1)[:, -11:]
    found = [row[np.isfinite(row)] for row in best]
    return [float(row[0]) if len(row) else -np.inf for row in found]
