"""How a collection lies in Milvus: one collection, a row for each passage.

- key: the document's id as `milvus_key` escapes it, "#", and the number of the passage; document: the escaped id.
- part: the passage's number; -1 for a document without a vector; -2 for the one row that holds the settings.
- start, stop: the passage's characters, -1 for the whole text.
- text: the document's text, in its first row only; metadata: JSON text as it was given, `fields` the same as Milvus's JSON, which filters read.
- words: the words that twinvec cuts, hashed, for the server's BM25; bm25 is made from them.
- vector: float32, zeros where there is none.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import numpy as np

from twinvec.errors import CollectionError
from twinvec.index.documents import DocumentError
from twinvec.index.lexical import K1, B
from twinvec.index.remote.milvus_link import Link
from twinvec.index.remote.planning import Entry
from twinvec.index.remote.postgres_sql import fields_of
from twinvec.index.where_milvus import milvus_key
from twinvec.records import Document

SETTINGS = "!settings"  # no escaped id has a "!"
LONGEST = 65_535  # bytes of a Milvus VARCHAR
LONGEST_ID = 8_000
FIRST = "part >= -1 and part <= 0"  # the first row of each document
FOUND = "part >= 0"  # rows with a vector

Cut = Callable[[str], list[str]]


def schema(link: Link, dimensions: int, lexical: bool) -> tuple[Any, Any]:
    """(schema, index parameters) of a new collection."""
    from twinvec.index.remote.milvus_link import load

    pymilvus = load()
    kinds = pymilvus.DataType
    made = pymilvus.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    made.add_field("key", kinds.VARCHAR, is_primary=True, max_length=LONGEST_ID * 3 + 32)
    made.add_field("document", kinds.VARCHAR, max_length=LONGEST_ID * 3 + 16)
    for name in ("part", "start", "stop"):
        made.add_field(name, kinds.INT64)
    made.add_field("text", kinds.VARCHAR, max_length=LONGEST)
    made.add_field("metadata", kinds.VARCHAR, max_length=LONGEST)
    made.add_field("fields", kinds.JSON)
    made.add_field("vector", kinds.FLOAT_VECTOR, dim=dimensions)
    indexes = pymilvus.MilvusClient.prepare_index_params()
    indexes.add_index("vector", index_type="FLAT", metric_type="IP")
    if lexical:
        made.add_field("words", kinds.VARCHAR, max_length=LONGEST, enable_analyzer=True, analyzer_params={"tokenizer": "standard"})
        made.add_field("bm25", kinds.SPARSE_FLOAT_VECTOR)
        function = pymilvus.Function(
            name="bm25", function_type=pymilvus.FunctionType.BM25, input_field_names=["words"], output_field_names=["bm25"]
        )  # fmt: skip
        made.add_function(function)
        indexes.add_index("bm25", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25", params={"bm25_k1": K1, "bm25_b": B})
    return made, indexes


def blank(dimensions: int, lexical: bool) -> dict[str, Any]:
    """A row of nothing, to be filled in."""
    row = {"key": "", "document": "", "part": -1, "start": -1, "stop": -1, "text": "", "metadata": "{}", "fields": {}, "vector": [0.0] * dimensions}
    return {**row, "words": ""} if lexical else row


def rows_of(entry: Entry, dimensions: int, cut: Cut | None) -> list[dict[str, Any]]:
    """The rows of a document whose vectors are new; cut: how its words are cut, None where the server has no BM25."""
    document, key = entry.document, milvus_key(entry.document.id)
    base = {**blank(dimensions, cut is not None), "document": key, "metadata": entry.metadata, "fields": json.loads(fields_of(document.metadata))}
    rows = [{**base, "key": f"{key}#0", "text": document.text}]
    for piece in entry.pieces or []:
        start, stop = piece.span or (-1, -1)
        row = {**base, "key": f"{key}#{piece.part}", "part": piece.part, "start": start, "stop": stop, "vector": piece.vector.tolist()}
        row["text"] = document.text if piece.part == 0 else ""
        if cut is not None:
            row["words"] = words(cut(document.text if piece.span is None else document.text[start:stop]), document.id)
        rows[piece.part : piece.part + 1] = [row]
    return rows


def words(found: list[str], id: str = "") -> str:
    """Words as the server's analyzer leaves them alone: 8 letters and digits each, whatever the language."""
    line = " ".join(map(_hashed, found))
    if len(line) > LONGEST:
        raise DocumentError(
            f"document {id!r}: a text of {line.count(' ') + 1:,} words, of which Milvus holds {LONGEST // 9:,}; cut it: add(..., on_long='passages')"
        )
    return line


@lru_cache(maxsize=100_000)
def _hashed(term: str) -> str:
    return base64.b32encode(hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=5).digest()).decode().lower()


def check(document: Document, row: int) -> None:
    """DocumentError for what Milvus has no room for."""
    for what, size, most in (
        ("id", len(document.id.encode()), LONGEST_ID),
        ("text", len(document.text.encode("utf-8", "surrogatepass")), LONGEST),
        ("metadata", len(json.dumps(document.metadata)), LONGEST),
    ):
        if size > most:
            raise DocumentError(f"document {row} (id {document.id[:40]!r}): its {what} has {size:,} bytes; Milvus holds up to {most:,}")


def id_of(document: str) -> str:
    return unquote(document)


def any_of(ids: Iterable[str]) -> str:
    """The rows of these documents."""
    return "document in [" + ", ".join(f'"{milvus_key(name)}"' for name in ids) + "]"


def first_two(ids: Iterable[str]) -> str:
    """The first row of these documents, and the second where there is one; keys in a list are what every Milvus finds at once."""
    return "key in [" + ", ".join(f'"{key}#{part}"' for key in map(milvus_key, ids) for part in (0, 1)) + "]"


def vectors_of(rows: list[dict[str, Any]], dimensions: int) -> Any:
    return np.asarray([row["vector"] for row in rows], dtype=np.float32).reshape(len(rows), dimensions)


def no_lexical(shown: str) -> CollectionError:
    return CollectionError(
        f"{shown}: this server made the collection without BM25 (Milvus has it from 2.5 on), so it has no lexical search; "
        "search with mode dense, or copy the collection to a newer server"
    )
