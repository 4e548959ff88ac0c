"""Nearest vectors in PostgreSQL: exact scans, HNSW and IVFFlat, and what each reaches on this data."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from twinvec.errors import CollectionError, UsageError, choose
from twinvec.index.entries import Settings
from twinvec.index.remote import postgres_sql as tables
from twinvec.index.remote.postgres_link import Link
from twinvec.index.remote.scoring import Found
from twinvec.index.where import Node, to_postgres
from twinvec.records import Vectors

KINDS = ("hnsw", "ivf")
TARGETS = (0.8, 0.9, 0.95, 0.98, 0.99)
NAME = "passages_nearest"
EFFORT = {"hnsw": (10, 20, 40, 80, 160, 320, 640, 1000), "ivf": (1, 2, 4, 8, 16, 32, 64, 128, 256)}
DIAL = {"hnsw": "hnsw.ef_search", "ivf": "ivfflat.probes"}
SAMPLE = 50  # stored vectors that serve as queries when an index is measured
MEMORY = 1 << 30


def exact(link: Link, settings: Settings, query: Vectors, where: Node | None, take: int) -> Found:
    """The `take` best rows by a scan over all that match."""
    return _asked(link, settings, query, where, take, "vector", tables.vector_type(None, settings.store == "float16"), True)


def candidates(
    link: Link, settings: Settings, index: dict[str, Any], query: Vectors, where: Node | None, recall: float | None, take: int
) -> Found:  # fmt: skip
    """The `take` best rows that the index finds: with a filter it goes on looking until they are found (iterative scans) or it gives up."""
    with link.transaction():
        scan = "hnsw" if index["kind"] == "hnsw" else "ivfflat"
        link.run(f"SET LOCAL {scan}.iterative_scan = relaxed_order")
        effort = _effort(index, recall)
        if index["kind"] == "hnsw":
            effort = min(max(effort, take), 1000)
        else:
            link.run(f"SET LOCAL ivfflat.max_probes = {index['lists']}")
        link.run(f"SET LOCAL {DIAL[index['kind']]} = {effort}")
        if where is None:
            link.run("SET LOCAL enable_seqscan = off")
        return _asked(link, settings, query, where, take, index["column"], index["type"], False)


def _effort(index: dict[str, Any], recall: float | None) -> int:
    """The least effort that reached the recall when the index was measured; the greatest when none did."""
    wanted = index["recall"] if recall is None else recall
    reached = [row["effort"] for row in index["measured"] if row["recall"] >= wanted]
    return int(min(reached)) if reached else int(max((row["effort"] for row in index["measured"]), default=EFFORT[index["kind"]][2]))


def _asked(link: Link, settings: Settings, query: Vectors, where: Node | None, take: int, column: str, kind: str, exact: bool) -> Found:
    s, text = link.schema, tables.to_text(query)
    near = f"p.{column} <#> %s::{kind}"  # column: vector, or vector::halfvec(n) as the index has it
    if exact:
        near = f"(({near}) + 0)"  # no index is in this order, so none is used for it
    if where is None:
        inner = f"SELECT p.document, p.part, p.vector, {near} AS far FROM {s}.passages p ORDER BY far LIMIT %s"
        sql = f"SELECT d.id, n.part, n.vector, -n.far FROM ({inner}) n JOIN {s}.documents d ON d.number = n.document ORDER BY n.far"
        values = [text, take]
    else:
        condition, more = to_postgres(where)
        sql = (
            f"SELECT d.id, p.part, p.vector, -({near}) FROM {s}.passages p JOIN {s}.documents d ON d.number = p.document "
            f"WHERE {condition} ORDER BY {near} LIMIT %s"
        )
        values = [text, *more, text, take]
    rows = link.rows(sql, values, binary=True)
    vectors = tables.from_wire([row[2] for row in rows], settings.store == "float16", settings.dimensions or 1)
    scores = np.asarray([row[3] for row in rows], dtype=np.float64)
    return Found([row[0] for row in rows], [row[1] for row in rows], scores, vectors, exact)


def build(link: Link, settings: Settings, kind: str, recall: float | None, memory: int | None) -> dict[str, Any] | None:
    """A new index in the place of the old one, in one transaction; what it reaches, as a JSON object. None for kind "exact": no index."""
    choose("kind", kind, ("exact", *KINDS))
    if kind == "exact":
        with link.transaction():
            drop(link)
            link.run(f"DELETE FROM {link.schema}.settings WHERE name = 'index'")
        return None
    rows = int(link.value(f"SELECT passages FROM {link.schema}.counters"))
    if not rows or settings.dimensions is None:
        raise CollectionError("an index needs vectors, and the collection has none yet; add documents first")
    column, wire = _indexable(settings)
    lists = max(1, min(round(rows / 1000) if rows <= 1_000_000 else int(rows**0.5), 32_768))
    how = (
        f"USING hnsw ({column} {wire.split('(')[0]}_ip_ops)"
        if kind == "hnsw"
        else f"USING ivfflat ({column} {wire.split('(')[0]}_ip_ops) WITH (lists = {lists})"
    )
    start = time.perf_counter()
    with link.transaction():
        link.run(f"SET LOCAL maintenance_work_mem = '{max((memory or MEMORY) >> 10, 65_536)}kB'")
        drop(link)
        link.run(f"CREATE INDEX {NAME} ON {link.schema}.passages {how}")
    detail: dict[str, Any] = {
        "kind": kind, "column": column[1:-1] if column.startswith("(") else column, "type": wire, "rows": rows,
        "lists": lists if kind == "ivf" else None,
        "recall": 0.95 if recall is None else recall, "seconds": round(time.perf_counter() - start, 2),
        "bytes": int(link.value(f"SELECT pg_relation_size('{link.schema}.{NAME}')")), "measured": [],
    }  # fmt: skip
    link.run(f"ANALYZE {link.schema}.passages")
    detail["measured"] = _measured(link, settings, detail)
    return detail


def drop(link: Link) -> None:
    link.run(f"DROP INDEX IF EXISTS {link.schema}.{NAME}")


def _indexable(settings: Settings) -> tuple[str, str]:
    """(expression, its type) that pgvector can index: float32 up to 2,000 dimensions, float16 up to 4,000."""
    size, half = settings.dimensions or 0, settings.store == "float16"
    if half and size <= tables.INDEXED["halfvec"]:
        return "vector", f"halfvec({size})"
    if size <= tables.INDEXED["vector"]:
        return "vector", f"vector({size})"
    if size <= tables.INDEXED["halfvec"]:
        return f"(vector::halfvec({size}))", f"halfvec({size})"
    raise UsageError(f"{size} dimensions: pgvector indexes up to 4,000; search exactly, or use a model with fewer dimensions")


def efforts(steps: Sequence[int], lists: int | None) -> list[int]:
    """The efforts to try: for lists up to all of them."""
    return list(steps) if lists is None else [*(step for step in steps if step < lists), lists]


def _measured(link: Link, settings: Settings, detail: dict[str, Any]) -> list[dict[str, Any]]:
    """Recall@10 and queries a second of each effort, with stored vectors as queries that may not find themselves, until 0.99 is reached."""
    half = settings.store == "float16"
    picked = link.rows(f"SELECT vector FROM {link.schema}.passages ORDER BY md5(number::text) LIMIT {SAMPLE}", binary=True)
    queries = tables.from_wire([row[0] for row in picked], half, settings.dimensions or 1)
    k = 11  # itself and ten
    truth = [exact(link, settings, query, None, k) for query in queries]
    rows: list[dict[str, Any]] = []
    for effort in efforts(EFFORT[detail["kind"]], detail["lists"]):
        one = {**detail, "measured": [{"effort": effort, "recall": 1.0}]}
        start = time.perf_counter()
        found = [candidates(link, settings, one, query, None, 1.0, k) for query in queries]
        rate = len(queries) / (time.perf_counter() - start)
        # A row as good as the tenth is as good an answer: equal vectors have no order of their own.
        hits = [np.sum(row.scores[1:] >= real.scores[-1] - 1e-6) / max(len(real) - 1, 1) for row, real in zip(found, truth, strict=True)]
        rows.append({"effort": effort, "recall": round(float(np.mean(hits)), 4), "rate": round(rate, 1)})
        if rows[-1]["recall"] >= max(TARGETS):
            break
    return rows
