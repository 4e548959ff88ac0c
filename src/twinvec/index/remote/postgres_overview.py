"""What a collection in PostgreSQL holds, and whether that is as it was written."""

from __future__ import annotations

from typing import Any

from twinvec.errors import CollectionError
from twinvec.index.remote.postgres_link import Link
from twinvec.index.remote.postgres_sql import FORMAT


def info(link: Link, settings: dict[str, Any], index: dict[str, Any] | None) -> dict[str, Any]:
    """Counts, bytes, settings and versions, ready for JSON."""
    s = link.schema
    commits, passages = link.rows(f"SELECT commits, passages FROM {s}.counters")[0]
    documents, searchable = link.rows(f"SELECT (SELECT count(*) FROM {s}.documents), (SELECT count(DISTINCT document) FROM {s}.passages)")[0]
    sizes = link.rows(f"SELECT pg_table_size('{s}.passages'), pg_total_relation_size('{s}.documents'), pg_indexes_size('{s}.passages')")[0]
    extension = link.value("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
    return {
        "documents": documents, "searchable": searchable, "passages": passages, "without_vector": documents - searchable, "tombstones": 0,
        "segments": 1, "vector_bytes": sizes[0], "database_bytes": sizes[1], "index_bytes": sizes[2], "commit": commits, "format": FORMAT,
        "server": f"PostgreSQL {link.value('SHOW server_version')}, pgvector {extension}", "kind": settings["kind"],
        "search": index["kind"] if index else "exact", "index": index,
        **{name: value for name, value in settings.items() if name not in ("kind", "format")},
    }  # fmt: skip


def verify(link: Link, shown: str, dimensions: int | None) -> dict[str, Any]:
    """Counters against rows, dimensions, indexes. CollectionError lists what is wrong; else the counts. Pages have checksums of the server's own."""
    s = link.schema
    documents = int(link.value(f"SELECT count(*) FROM {s}.documents"))
    passages, length, sizes = link.rows(
        f"SELECT count(*), coalesce(sum(length), 0)::bigint, count(*) FILTER (WHERE vector_dims(vector) <> %s) FROM {s}.passages", [dimensions or 0]
    )[0]
    counted = link.rows(f"SELECT passages, words FROM {s}.counters")[0]
    invalid = link.rows("SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid AND indrelid = %s::regclass", [f"{s}.passages"])
    faults = [f"index {name} is not valid" for (name,) in invalid]
    if (passages, length) != tuple(counted):
        faults.append(f"{passages} passages with {length} words, but its counters say {counted[0]} and {counted[1]}")
    if sizes:
        faults.append(f"{sizes} vectors of other dimensions")
    if faults:
        raise CollectionError(f"{shown}: {len(faults)} faults: {'; '.join(faults)}; copy the collection up again (twinvec index LOCAL --to URL)")
    return {"documents": documents, "vectors": passages, "words": int(length)}
