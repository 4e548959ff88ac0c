"""Which kind of index, and its sizes, for so many rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from twinvec.errors import UsageError, choose

KINDS = ("flat", "ivf", "ivfpq", "hnsw")
APPROXIMATE = ("ivf", "ivfpq", "hnsw")
TARGETS = (0.8, 0.9, 0.95, 0.98, 0.99)
BUCKETS = (10, 100)  # numbers of hits that an index is tuned for; a search for k hits uses the parameters of the next of them
DEFAULT_RECALL = 0.95
EXACT_BELOW = 100_000  # rows that exact search answers in a millisecond or two
FEWEST = 1000  # rows below which there is nothing to approximate
PER_LIST = 40  # training rows a list; FAISS warns below 39
HELD = 1000  # rows held out as queries
_LINKS = 32  # HNSW32
_TRAINING_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Plan:
    """kind: one of KINDS. factory: FAISS's description. lists, training: numbers of inverted lists and of rows to train on (0: none)."""

    kind: str
    factory: str
    lists: int
    training: int
    held: int


def choose_kind(rows: int, dimensions: int, memory: int | None = None) -> str:
    """The kind that `auto` takes: "exact" below 100,000 rows, then "ivfpq", or what fits in `memory` bytes beside the stored vectors.

    Measured in benchmarks/search.py. IVF with 4-bit codes is the smallest (D / 4 + 8 bytes a row, half of that where memory is short) and is built
    faster than HNSW.
    """
    if rows < EXACT_BELOW:
        return "exact"
    if code_size(dimensions) is None:
        kind = "ivf"  # no code of whole sub-vectors for this number of dimensions
    else:
        kind = "ivfpq"
    if memory is not None and index_bytes(kind, rows, dimensions, fine=False) > memory:
        return "exact"
    return kind


def index_bytes(kind: str, rows: int, dimensions: int, *, fine: bool = True) -> int:
    """What an index takes in memory, about, beside the vectors that the collection stores. `ivf` is mapped, and counts only what it touches.

    fine: product codes as they are where memory allows (see `code_size`).
    """
    lists = list_count(rows)
    a_row = {
        "exact": 0.0,
        "flat": 4.0 * dimensions,
        "ivf": 4.0 * dimensions + 8,
        "ivfpq": (code_size(dimensions, fine=fine) or dimensions) / 2 + 8,
        "hnsw": dimensions + 4 * (2 * _LINKS + 4),
    }[choose("kind", kind, ("exact", *KINDS))]
    return int(rows * a_row) + (4 * lists * dimensions if kind in ("ivf", "ivfpq") else 0)


def code_size(dimensions: int, *, fine: bool = True) -> int | None:
    """Sub-vectors of a product code, each with 4 bits; None when no width divides the dimensions.

    fine: sub-vectors of 2 numbers where that divides, else of 3 to 8; otherwise of 4 first. Twice the bytes (96 a row instead of 48 at 384
    dimensions) need half the candidates for the same recall, and reach recalls that short codes never do (benchmarks/RESULTS.md).
    """
    for size in (2, 3, 4, 5, 6, 7, 8) if fine else (4, 3, 5, 6, 2, 7, 8):
        if dimensions % size == 0 and dimensions // size >= 2:
            return dimensions // size
    return None


def list_count(rows: int) -> int:
    """About 3 sqrt(rows), a power of 2: 1,024 for 100,000 rows, 4,096 for a million, 8,192 for ten million."""
    return int(2 ** max(2, round(math.log2(3 * math.sqrt(max(1, rows))))))


def plan(kind: str, rows: int, dimensions: int, memory: int | None = None) -> Plan:
    """Sizes of an index. Too few rows for `kind` give "flat": no error, no warning, and exact hits. UsageError for an unknown kind."""
    choose("kind", kind, KINDS)
    if rows < FEWEST or kind == "flat":
        return Plan("flat", "Flat", 0, 0, 0)
    held = min(HELD, rows // 10)
    if kind == "hnsw":
        return Plan("hnsw", f"HNSW{_LINKS},SQ8", 0, min(rows - held, 65_536), held)
    lists = list_count(rows)
    budget = min(_TRAINING_BYTES, memory // 4 if memory is not None else _TRAINING_BYTES)
    training = min(rows - held, max(lists * PER_LIST, 16_384), max(4096, budget // (4 * dimensions)))
    lists = min(lists, max(4, 2 ** int(math.log2(training / PER_LIST))))
    codes = code_size(dimensions, fine=memory is None or index_bytes(kind, rows, dimensions) <= memory)
    if kind == "ivf" or codes is None:
        return Plan("ivf", f"IVF{lists},Flat", lists, training, held)
    return Plan("ivfpq", f"IVF{lists},PQ{codes}x4fs", lists, training, held)


def level_of(k: int) -> int:
    """The number of hits that a search for k is tuned for: the next of BUCKETS, and ten times the last, a hundred times, ... beyond."""
    level = next((hits for hits in BUCKETS if k <= hits), BUCKETS[-1])
    while level < k:
        level *= 10
    return level


def check_recall(recall: Any) -> float:
    """`recall` as a float in (0, 1], DEFAULT_RECALL for None; else UsageError."""
    if recall is None:
        return DEFAULT_RECALL
    if isinstance(recall, bool) or not isinstance(recall, (int, float)) or not 0 < recall <= 1:
        raise UsageError(f"recall = {recall!r}: wanted a share of the true hits above 0 and up to 1, for example 0.95; 1 searches exactly")
    return float(recall)
