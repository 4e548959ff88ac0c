"""What a collection says of itself: counts, sizes, advice; and the check of everything."""

from __future__ import annotations

import json
from typing import Any

from twinvec.errors import CollectionError
from twinvec.index import lexical
from twinvec.index import segments as files
from twinvec.index.compaction import known_files
from twinvec.index.faults import faults as database_faults
from twinvec.index.reading import Reader, check_index
from twinvec.index.searching import State
from twinvec.index.store import Settings, Store

_MANY_DEAD, _MANY_NEW = 0.3, 0.3
_LARGE = 100_000  # rows from which an approximate index is worth a word


def describe(reader: Reader, store: Store, state: State) -> dict[str, Any]:
    """See Collection.info."""
    settings, documents = store.settings(), store.count("documents")
    rows, dead = state.blocks.rows, len(state.blocks.dead)
    indexes = [
        {"kind": item.file.kind, "rows": item.file.rows, "bytes": item.file.bytes, **_parsed(item.file.detail)} for item in state.indexed
    ]  # fmt: skip
    with_vector = documents
    if rows:
        with_vector = int(store.db.execute("SELECT count(DISTINCT document) FROM passages").fetchone()[0])
    staging = store.setting("staging")
    found = {
        "path": str(reader.path),
        "documents": documents,
        "passages": rows - dead,
        "searchable": with_vector if rows else 0,
        "without_vector": documents - (with_vector if rows else 0),
        "tombstones": dead,
        "dead_share": dead / rows if rows else 0.0,
        "segments": len(state.segments),
        "vector_bytes": sum(segment.size for segment in state.segments),
        "index_bytes": sum(item.file.bytes for item in state.indexed),
        "database_bytes": store.path.stat().st_size,
        "commit": state.commit,
        "format": store.version,
        "kind": settings.kind,
        "search": _search(settings, state),
        "indexes": indexes,
        "unindexed": rows - sum(item.file.rows for item in state.indexed),
        "fields": store.setting("fields") or [],
        "reindexing": None if staging is None else {"model": staging.get("model"), "done": sum(s.rows for s in store.segments("staged"))},
        **{name: getattr(settings, name) for name in ("metric", "dimensions", "store", "model", "model_path", "fingerprint")},
        **{name: getattr(settings, name) for name in ("document_prompt", "query_prompt", "passage_tokens", "passage_overlap", "on_long")},
        **{name: getattr(settings, name) for name in ("created", "twinvec")},
    }
    return {**found, "advice": _advice(found, store.setting("indexing"))}


def _search(settings: Settings, state: State) -> str:
    """What answers a search when nothing else is asked for."""
    if settings.kind in ("exact", "flat"):
        return settings.kind
    return state.indexed[-1].file.kind if state.indexed else "exact"


def _parsed(detail: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(detail)
    found.pop("held", None)  # the rows that the index was measured with: long, and of no use to a reader
    return found


def _advice(found: dict[str, Any], indexing: Any) -> list[str]:
    """What to do, each with its command."""
    out, run = [], f"twinvec index {found['path']}"
    if found["reindexing"] is not None:
        done, to = found["reindexing"]["done"], found["reindexing"]["model"]
        out.append(f"a move to the model {to} is unfinished ({done:,} vectors are done): {run} --reindex --model {to}")
    if found["dead_share"] >= _MANY_DEAD:
        out.append(f"{found['dead_share']:.0%} dead rows (replaced or deleted): {run} --compact")
    if indexing is not None:
        out.append(f"the {indexing['kind']} index was taken away by a compaction that did not finish: {run} --optimize --kind {indexing['kind']}")
    elif found["indexes"] and found["unindexed"] >= _MANY_NEW * max(found["passages"], 1):
        out.append(f"{found['unindexed']:,} rows came after the index and are searched exactly: {run} --optimize")
    elif not found["indexes"] and found["kind"] == "auto" and found["passages"] >= _LARGE:
        out.append(f"{found['passages']:,} rows are searched exactly; an approximate index may be faster: {run} --optimize")
    return out


def verify(reader: Reader, store: Store) -> dict[str, Any]:
    """See Collection.verify."""
    faults = database_faults(store)
    segments = [*store.segments(), *store.segments("staged")] if not faults else []
    for segment in segments:
        try:
            files.check(reader.path, segment, content=True)
        except CollectionError as err:
            faults.append(str(err))
    for index in store.indexes() if not faults else []:
        try:
            check_index(reader.path, index, content=True)
        except CollectionError as err:
            faults.append(str(err))
    if not faults and store.version > 1:
        faults += _lexical_faults(store)
    if faults:
        more = f" (and {len(faults) - 10} more)" if len(faults) > 10 else ""
        raise CollectionError(f"{reader.path}: {len(faults)} faults: " + "; ".join(faults[:10]) + more)
    segments = store.segments()
    return {
        "documents": store.count("documents"),
        "vectors": sum(segment.rows for segment in segments),
        "tombstones": store.count("tombstones"),
        "segments": len(segments),
        "indexes": len(store.indexes()),
        "bytes": sum(segment.size for segment in segments),
        "orphans": [path.name for path in files.orphans(reader.path, known_files(store))],
    }


def _lexical_faults(store: Store) -> list[str]:
    found = lexical.faults(store.db)
    if not found:
        there = lexical.numbers(store.db).tolist()
        wanted = [number for (number,) in store.db.execute("SELECT number FROM passages ORDER BY number")]
        if there != wanted:
            found = [f"{store.path}: the index of words holds {len(there)} passages, not the {len(wanted)} that have vectors"]
    return found
