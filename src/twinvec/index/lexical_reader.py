"""Reading side of the lexical index (lexical.py): BM25 scores and the k best rows, the same whatever else is asked."""

from __future__ import annotations

import sqlite3
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from twinvec.errors import CollectionError
from twinvec.index.lexical_terms import cutter
from twinvec.index.segments import REMEDY

K1: Final = 1.5  # how fast a repeated term saturates
B: Final = 0.75  # how much a long row is held back
LONGEST_QUERY = 512  # distinct terms of a query that are used: those that can add most
CACHE = 256 << 20  # bytes of postings kept
_LONG = 16_384  # adding so many postings takes longer than asking which rows they can still lift among the best

_FEW = 256  # a race of so many is not worth thinning out further

Ids = Callable[[Iterable[int]], Mapping[int, str]]
Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class Block:
    """Rows of one block. `living`: places of the rows that are not gone; `held`: K1 * (1 - B + B * length / mean length) of each row."""

    number: int
    numbers: Numbers
    lengths: npt.NDArray[np.uint32]
    alive: npt.NDArray[np.bool_]
    living: Numbers
    held: Floats = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True, slots=True)
class Posting:
    """Living rows of one block that hold a term: their places, tf / (tf + held), and the largest of these."""

    places: Numbers
    weights: Floats
    most: float


@dataclass(frozen=True, slots=True)
class _Term:
    """A term of a query: its idf times how often it is asked, what it can add at most, its postings a block."""

    weight: float
    most: float
    postings: Sequence[Posting]


class Lexical:
    """Searches the lexical index behind `db`, inside the caller's transaction. Keeps what it has read while nothing changes.

    db: a connection for reading only; one that writes and rolls back could be seen at a state that never came to be.

    Scores are BM25 in the form of Lucene (Robertson and Zaragoza 2009; Kamphuis et al. 2020, "Lucene (accurate)"):
    sum over the query's terms of ln(1 + (N - n + 0.5) / (n + 0.5)) * tf / (tf + K1 * (1 - B + B * length / mean length)),
    in float64, over the rows that live; a term asked twice counts twice. Never negative, and 0 only for rows that are no hits.
    """

    def __init__(self, db: sqlite3.Connection, *, cache: int = CACHE) -> None:
        self.db, self.cache = db, cache
        self.blocks: list[Block] = []
        self.rows = 0
        self._changes: int | None = None
        self._kept: OrderedDict[str, tuple[list[Posting], int]] = OrderedDict()
        self._bytes = 0
        self._how: dict[str, Any] = {}

    def refresh(self) -> None:
        """See what the current transaction shows; free when nothing changed."""
        how = settings(self.db)
        if how["changes"] == self._changes:
            return
        known = {block.number: block for block in self.blocks}
        gone: dict[int, list[int]] = {}
        for block, place in self.db.execute("SELECT block, place FROM lexical_dropped"):
            gone.setdefault(block, []).append(place)
        self.blocks = []
        for (number,) in self.db.execute("SELECT block FROM lexical_blocks ORDER BY block").fetchall():
            block = known.get(number) or self._read_block(number)
            block.alive = np.ones(len(block.numbers), dtype=bool)
            places = np.asarray(gone.get(number, ()), dtype=np.int64)
            if len(places) and not 0 <= places.min() <= places.max() < len(block.numbers):
                raise damaged(self.db, f"a dropped row that block {number} does not have")
            block.alive[places] = False
            block.living = np.flatnonzero(block.alive)
            self.blocks.append(block)
        self.rows = sum(len(block.living) for block in self.blocks)
        total = sum(int(block.lengths[block.living].sum(dtype=np.int64)) for block in self.blocks)
        mean = total / self.rows if total else 1.0
        for block in self.blocks:
            block.held = (K1 * (1 - B + B * block.lengths / mean)).astype(np.float64)
        self._kept.clear()
        self._bytes, self._changes, self._how = 0, how["changes"], how

    def _read_block(self, number: int) -> Block:
        rows, numbers, lengths = self.db.execute("SELECT rows, numbers, lengths FROM lexical_blocks WHERE block = ?", (number,)).fetchone()
        what = f"block {number}"
        block = Block(number, unpack(self.db, numbers, np.int64, what), unpack(self.db, lengths, np.uint32, what), *_empty())
        if not len(block.numbers) == len(block.lengths) == rows:
            raise damaged(self.db, what)
        return block

    def search(self, query: str, k: int, *, allowed: Numbers | None = None, ids: Ids | None = None) -> list[tuple[int, float]]:
        """The k best rows as (number, score), best first; fewer when fewer hold a term of the query.

        allowed: sorted numbers of the rows that may be found (the statistics stay those of all rows). ids: names of rows, asked only for rows
        of equal scores, which then come in the order of their names; without it in the order of their numbers.
        """
        self.refresh()
        asked = Counter(cutter(self._how["cut"], self._how["stem"])(query))
        wanted = self._wanted(asked)
        best_scores: list[Floats] = []
        best_numbers: list[Numbers] = []
        floor = 0.0
        for at, block in enumerate(self.blocks):
            inside = None if allowed is None else np.flatnonzero(_isin_sorted(block.numbers, allowed))
            if inside is not None and not len(inside):
                continue
            places, scores = _block_scores(wanted, at, len(block.numbers), k, floor, inside)
            best_scores.append(scores)
            best_numbers.append(block.numbers[places])
            if sum(map(len, best_scores)) >= k:
                joined = np.concatenate(best_scores)
                floor = float(np.partition(joined, len(joined) - k)[len(joined) - k])
                keep = joined >= floor  # all that tie with the k-th stay in the race
                best_scores, best_numbers = [joined[keep]], [np.concatenate(best_numbers)[keep]]
        if not best_scores:
            return []
        return _ordered(np.concatenate(best_numbers), np.concatenate(best_scores), k, ids)

    def _wanted(self, asked: Mapping[str, int]) -> list[_Term]:
        """The terms that stand anywhere, those that can add most first; the order in which a row's score is summed."""
        found = []
        for term, times in asked.items():
            postings = self._postings(term)
            holders = sum(len(posting.places) for posting in postings)
            if holders:
                weight = times * float(np.log1p((self.rows - holders + 0.5) / (holders + 0.5)))
                most = weight * max(posting.most for posting in postings)
                found.append((-most, term, _Term(weight, most, postings)))
        return [term for _, _, term in sorted(found, key=lambda entry: entry[:2])[:LONGEST_QUERY]]

    def _postings(self, term: str) -> list[Posting]:
        """The postings of a term in every block."""
        kept = self._kept.get(term)
        if kept is not None:
            self._kept.move_to_end(term)
            return kept[0]
        blobs = dict(self.db.execute(_PROBE, (term,)))
        found = [self._posting(block, term, blobs[block.number]) if block.number in blobs else _NOTHING for block in self.blocks]
        size = 200 + sum(16 * len(posting.places) for posting in found)
        self._kept[term] = found, size
        self._bytes += size
        while self._bytes > self.cache and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1][1]
        return found

    def _posting(self, block: Block, term: str, blob: bytes) -> Posting:
        places, counts = self.decode(block.number, term, blob)
        if len(places) and int(places.max()) >= len(block.numbers):
            raise damaged(self.db, f"the postings of {term!r}")
        if len(block.living) < len(block.numbers):
            alive = block.alive[places]
            places, counts = places[alive], counts[alive]
        weights = counts / (counts + block.held[places])
        return Posting(places, weights, float(weights.max(initial=0.0)))

    def decode(self, block: int, term: str, blob: bytes) -> tuple[Numbers, Floats]:
        """Places and counts of one blob; CollectionError when it is not what was written."""
        body = blob[4:] if isinstance(blob, bytes) else b""
        if len(body) % 3 or not body or pack(body, term)[:4] != blob[:4]:
            raise damaged(self.db, f"the postings of {term!r} in block {block}")
        rows = len(body) // 3
        places = np.frombuffer(body, dtype="<u2", count=rows).astype(np.int64)
        return places, np.frombuffer(body, dtype=np.uint8, offset=2 * rows).astype(np.float64)


_NOTHING = Posting(np.zeros(0, dtype=np.int64), np.zeros(0), 0.0)
# A probe of the primary key (block, term) for each block.
_PROBE = "SELECT p.block, p.rows FROM lexical_blocks b CROSS JOIN lexical_postings p ON p.block = b.block AND p.term = ?"


def _block_scores(wanted: Sequence[_Term], at: int, rows: int, k: int, floor: float, inside: Numbers | None) -> tuple[Numbers, Floats]:
    """Places and scores of the rows of block `at` that may be among the k best; complete and exact for all that score `floor` or more.

    Terms come in falling order of what they can add. Once the terms that are left cannot lift a row that is not in the race over the k-th
    score so far, only rows in the race are scored on (MaxScore: Turtle and Flood 1995). A row's sum has the same order of terms either way.
    """
    left = np.cumsum([term.most for term in reversed(wanted)])[::-1] * (1 + 1e-9) if wanted else np.zeros(0)
    scores = np.zeros(rows)
    race = inside
    for i, term in enumerate(wanted):
        posting = term.postings[at]
        if not len(posting.places):
            continue
        if i and (len(posting.places) >= _LONG or (race is not None and len(race) > _FEW)):
            race, floor = _race(scores, race, k, floor, float(left[i]))
        if race is None or len(posting.places) < 8 * len(race):  # rows that left the race may be scored on, they are not read again
            scores[posting.places] += term.weight * posting.weights
        else:
            where = np.searchsorted(posting.places, race)
            where[where == len(posting.places)] = 0
            hit = posting.places[where] == race
            scores[race[hit]] += term.weight * posting.weights[where[hit]]
    places = np.flatnonzero(scores > 0) if race is None else race[scores[race] > 0]
    found = scores[places]
    if floor:
        places, found = places[found >= floor], found[found >= floor]
    return places, found


def _race(scores: Floats, race: Numbers | None, k: int, floor: float, left: float) -> tuple[Numbers | None, float]:
    """Places of the rows that can still be among the k best when `left` is the most that the other terms add (None: all can), and a floor
    that the k-th best score cannot be below."""
    places = np.flatnonzero(scores > 0) if race is None else race
    values = scores[places]
    if len(values) >= k:
        floor = max(floor, float(np.partition(values, len(values) - k)[len(values) - k]))
    return (race if left >= floor else places[values + left >= floor]), floor


def _ordered(numbers: Numbers, scores: Floats, k: int, ids: Ids | None) -> list[tuple[int, float]]:
    order = np.lexsort((numbers, -scores))
    scores, numbers = scores[order], numbers[order]
    last = len(scores) if len(scores) <= k else int(np.searchsorted(-scores, -scores[k - 1], side="right"))
    scores, numbers = scores[:last], numbers[:last]
    found = list(zip(numbers.tolist(), scores.tolist(), strict=True))
    same = scores[1:] == scores[:-1]
    if ids is not None and same.any():
        tied = np.concatenate(([False], same)) | np.concatenate((same, [False]))
        names = ids(numbers[tied].tolist())
        found.sort(key=lambda pair: (-pair[1], names.get(pair[0], "")))
    return found[:k]


def _isin_sorted(values: Numbers, wanted: Numbers) -> npt.NDArray[np.bool_]:
    """Whether each of `values` is among `wanted`, which ascend."""
    if not len(wanted):
        return np.zeros(len(values), dtype=bool)
    where = np.searchsorted(wanted, values)
    where[where == len(wanted)] = 0
    found: npt.NDArray[np.bool_] = wanted[where] == values
    return found


def _empty() -> tuple[npt.NDArray[np.bool_], Numbers]:
    return np.zeros(0, dtype=bool), np.zeros(0, dtype=np.int64)


# the form of what is stored


def settings(db: sqlite3.Connection) -> dict[str, Any]:
    """How this index cuts, and its counters."""
    found = dict(db.execute("SELECT name, value FROM lexical_settings"))
    if not {"cut", "stem", "version", "changes", "next_block"} <= found.keys():
        raise damaged(db, "its settings")
    return found


def pack(body: bytes, name: str = "") -> bytes:
    """A checksum, then `body`."""
    return zlib.crc32(body, zlib.crc32(name.encode())).to_bytes(4, "little") + body


def unpack(db: sqlite3.Connection, blob: Any, dtype: Any, what: str) -> npt.NDArray[Any]:
    """The numbers of a checked blob."""
    body = blob[4:] if isinstance(blob, bytes) else b""
    kind = np.dtype(dtype).newbyteorder("<")
    if not isinstance(blob, bytes) or pack(body)[:4] != blob[:4] or len(body) % kind.itemsize:
        raise damaged(db, what)
    return np.frombuffer(body, dtype=kind).astype(dtype)


def damaged(db: sqlite3.Connection, what: str) -> CollectionError:
    path = next((row[2] for row in db.execute("PRAGMA database_list") if row[1] == "main"), "")
    return CollectionError(f"{path}: damaged (lexical index: {what} is not what was written); {REMEDY}")
