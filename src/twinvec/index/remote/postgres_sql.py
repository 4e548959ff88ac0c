"""The tables of a collection in PostgreSQL, and the bytes of vectors as pgvector sends them.

A collection is a schema of its own, named as the collection:
- settings: JSON rows. "collection": what it was made for. "index": the approximate index and what its parameters were measured to reach.
- counters: commits, next numbers, and the statistics of BM25, changed in the transaction that changes the rows.
- documents: id, text and metadata as they were given, `fields` the same metadata as jsonb, which filters read.
- passages: which document and which characters of it, the vector, the words with their counts.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from twinvec.records import Vectors

FORMAT = 1
INDEXED = {"vector": 2000, "halfvec": 4000}  # dimensions that pgvector can index, section "Indexing" of its README
LARGEST = 16_000  # dimensions of a stored vector

SCHEMA = """
CREATE TABLE {schema}.settings (name text PRIMARY KEY, value text NOT NULL);
CREATE TABLE {schema}.counters (one boolean PRIMARY KEY DEFAULT true CHECK (one), commits bigint NOT NULL DEFAULT 0,
    next_document bigint NOT NULL DEFAULT 0, next_passage bigint NOT NULL DEFAULT 0, passages bigint NOT NULL DEFAULT 0,
    words bigint NOT NULL DEFAULT 0, max_norm double precision NOT NULL DEFAULT 0);
INSERT INTO {schema}.counters DEFAULT VALUES;
CREATE TABLE {schema}.documents (number bigint PRIMARY KEY, id text COLLATE "C" NOT NULL UNIQUE, text text NOT NULL, metadata text NOT NULL,
    fields jsonb NOT NULL);
CREATE INDEX documents_fields ON {schema}.documents USING gin (fields jsonb_path_ops);
CREATE TABLE {schema}.passages (number bigint PRIMARY KEY, document bigint NOT NULL REFERENCES {schema}.documents (number), part int NOT NULL,
    start int, stop int, vector {vector} NOT NULL, words text[] COLLATE "C" NOT NULL, counts int[] NOT NULL, length int NOT NULL);
CREATE INDEX passages_document ON {schema}.passages (document);
CREATE INDEX passages_words ON {schema}.passages USING gin (words);
"""
# Vectors above 2 KB would be kept out of line, a look-up more for each; PLAIN keeps them in their row, which a page of 8 KB must hold.
PLAIN = "ALTER TABLE {schema}.passages ALTER COLUMN vector SET STORAGE PLAIN"
PLAIN_BYTES = 6_000


def vector_type(dimensions: int | None, half: bool) -> str:
    return ("halfvec" if half else "vector") + (f"({dimensions})" if dimensions else "")


def to_wire(vector: Vectors, half: bool) -> bytes:
    """The binary form: dimensions (int16), 0 (int16), the numbers, all big-endian."""
    head = np.asarray([len(vector), 0], dtype=">i2").tobytes()
    return head + vector.astype(">f2" if half else ">f4").tobytes()


def from_wire(rows: list[bytes], half: bool, dimensions: int) -> Vectors:
    """(n, D) float32."""
    kind = np.dtype(">f2" if half else ">f4")
    joined = b"".join(row[4:] for row in rows)
    return np.frombuffer(joined, dtype=kind).reshape(len(rows), dimensions).astype(np.float32)


def to_text(vector: Vectors) -> str:
    """The text form; nine digits say a float32 exactly."""
    return "[" + ",".join(f"{value:.9g}" for value in vector.tolist()) + "]"


def fields_of(metadata: dict[str, Any]) -> str:
    """Metadata as jsonb can hold it: PostgreSQL has no place for NUL and half a surrogate pair, which become U+FFFD."""
    return json.dumps(_clean(metadata), ensure_ascii=True)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return "".join("\ufffd" if char == "\x00" or "\ud800" <= char <= "\udfff" else char for char in value)
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, (list, tuple)) else value
