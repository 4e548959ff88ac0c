"""Approximate search with FAISS: built from a stream, tuned on held-out rows, searched by recall.

`build(source, kind).save(path)` writes an index, `load(path, detail)` opens it, `Approximate.candidates` names rows that searching.py scores again.
"""

from twinvec.index.ann.approximate import Approximate, load
from twinvec.index.ann.building import Built, build
from twinvec.index.ann.plan import DEFAULT_RECALL, KINDS, TARGETS, choose_kind, index_bytes
from twinvec.index.ann.rows import ArrayRows, FileRows, RowSource

__all__ = [
    "DEFAULT_RECALL", "KINDS", "TARGETS", "Approximate", "ArrayRows", "Built", "FileRows", "RowSource", "build", "choose_kind", "index_bytes", "load",
]  # fmt: skip
