"""The search over one commit of a collection: which rows are nearest, whatever the kind of search.

Rows count through all segments from 0, in the order of their passage numbers. `State` is what a reader holds of a commit; `search` answers from
it. The collection turns a filter into `allowed` rows before, and rows into documents afterwards.

An approximate index names candidates among the rows it was built over. Rows that came later are searched exactly, dead ones are passed over, and
all candidates are scored in float64 from the stored vectors. So a row is found from the commit that added it, scores are those of exact search,
and hits do not depend on how many queries are asked at once. Top k is a prefix of top K, also where they are tuned apart (levels.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from twinvec.errors import choose
from twinvec.index.ann.plan import APPROXIMATE, check_recall, level_of
from twinvec.index.ann.stored import SignBlock, Signs
from twinvec.index.exact import Blocks
from twinvec.index.flat import Flat
from twinvec.index.layout import Layout
from twinvec.index.levels import Level, below
from twinvec.index.ranking import Candidates, Names, Ranked, Rows, Scores, joined, lengths, rank, settle
from twinvec.index.segments import IndexFile, Mapped, Segment
from twinvec.records import Vectors

if TYPE_CHECKING:
    from twinvec.index.ann import Approximate

KINDS = ("auto", "exact", "flat", *APPROXIMATE)
_SIGNS = 20_000  # rows of signs below which all are scored
_GATHERED = 256 << 20  # bytes of allowed rows that are copied together for an exact search of them
Mask = npt.NDArray[np.bool_]
T = TypeVar("T")


@dataclass(slots=True)
class Indexed:
    """An approximate index over the rows `start` to `start + file.rows - 1` (dead ones included).

    `loaded` is what the search made of the file; it is carried to the next commit that names the same file.
    """

    file: IndexFile
    path: Path
    start: int
    loaded: Any = None

    @property
    def rows(self) -> int:
        return self.file.rows

    def opened(self) -> Approximate:
        """The index, mapped at its first use."""
        if self.loaded is None:
            from twinvec.index import ann

            self.loaded = ann.load(self.path, json.loads(self.file.detail))
        loaded: Approximate = self.loaded
        return loaded


@dataclass(slots=True)
class _Signed:
    """A block of signs, which is its own index."""

    start: int
    loaded: Signs

    @property
    def rows(self) -> int:
        return self.loaded.rows

    def opened(self) -> Signs:
        return self.loaded


@dataclass(slots=True)
class State:
    """What a reader holds of one commit. `blocks` are all stored rows with the dead ones marked; rows in no `indexed` are searched exactly."""

    commit: int
    segments: list[Segment]
    blocks: Blocks
    indexed: list[Indexed] = field(default_factory=list)
    flat: Flat | None = None
    parts: list[Mapped] = field(default_factory=list)  # the segments as they are stored (float32, float16, int8, signs), in their order
    layout: Layout = field(default_factory=lambda: Layout([]))
    filters: dict[str, Rows] = field(default_factory=dict)  # the passage numbers that filters allow
    kept: dict[Any, Any] = field(default_factory=dict)  # what the search works out once for this commit

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gives, made once for this commit. Other threads see it when it is whole."""
        if key not in self.kept:
            self.kept[key] = make()
        found: T = self.kept[key]
        return found

    @property
    def max_norm(self) -> float:
        """No stored row is longer."""
        return max((segment.max_norm for segment in self.segments), default=1.0)


def search(
    state: State, queries: Scores, k: int, *, kind: str, metric: str, recall: float | None = None, allowed: Rows | None = None,
    ids: Names | None = None,
) -> Ranked:  # fmt: skip
    """queries (q, D) float64, finite, not zero -> the best k rows of each by (-score, id); fewer only when fewer may be found.

    kind: one of KINDS; "auto" uses an index where there is one, and a kind that was not built is searched exactly. recall: the share of the true
    hits to be found by an index, None for what it was built with; 1 searches exactly. allowed: sorted rows (int64) that may be found, None for
    all; dead ones among them are left out. ids: names of rows, asked only for rows that tie. UsageError for another kind or recall.
    """
    choose("kind", kind, KINDS)
    share = None if recall is None else check_recall(recall)
    if allowed is not None:
        allowed = np.setdiff1d(allowed[allowed >= 0], state.blocks.dead, assume_unique=True)
    used = _usable(state, kind, metric) if share != 1 else []
    ask = _Question(state, queries, k, metric, allowed, ids)
    if used and len(queries) and state.blocks.live:
        found = _approximate(ask, used, share)
        if found is not None:
            return found
    if kind == "flat" and allowed is None and state.blocks.rows:
        return rank(queries, _flat(state), k, metric=metric, max_norm=state.max_norm, ids=ids)
    return ask.exact(slice(None), k)


def _usable(state: State, kind: str, metric: str) -> Sequence[Indexed | _Signed]:
    """What may name candidates: indexes of the kind, else signs."""
    found = [item for item in state.indexed if kind in ("auto", item.file.kind)]
    if found or kind != "auto":
        return found
    return [
        _Signed(start, Signs(block, metric))
        for start, block in zip(state.blocks.starts.tolist(), state.blocks.blocks, strict=False)
        if isinstance(block, SignBlock) and len(block) >= _SIGNS
    ]


@dataclass(slots=True)
class _Question:
    """`allowed`: live rows, None for all live ones."""

    state: State
    queries: Scores
    k: int
    metric: str
    allowed: Rows | None
    ids: Names | None

    @property
    def available(self) -> int:
        """Rows that may be found."""
        return self.state.blocks.live if self.allowed is None else len(self.allowed)

    def exact(self, which: Rows | slice, k: int) -> Ranked:
        state, queries = self.state, self.queries[which]
        if self.allowed is not None:
            return _subset(state, queries, k, self.metric, self.allowed, self.ids)
        return rank(queries, state.blocks, k, metric=self.metric, max_norm=state.max_norm, ids=self.ids)


def _approximate(ask: _Question, used: Sequence[Indexed | _Signed], recall: float | None) -> Ranked | None:
    """None when exact search is the way: a recall out of reach, or so few allowed rows that all of them are scored."""
    state, available = ask.state, ask.available
    if not available:
        return None
    queries = ask.queries / lengths(ask.queries)[:, None] if ask.metric == "cosine" else ask.queries
    narrow = np.ascontiguousarray(queries, dtype=np.float32)
    masks = [_mask(ask, item) for item in used]
    rest = _Rest.of(ask, used)

    def settled(which: Rows, found: Candidates, k: int) -> Ranked:
        return settle(queries[which], found, state.blocks, k, metric=ask.metric, max_norm=state.max_norm, ids=ask.ids)

    def level(k: int) -> Level:
        enough = min(level_of(k), available)
        parts = _candidates(used, narrow, k, recall, masks)
        if parts and rest is not None and rest.live:
            parts.append(rest.candidates(queries, min(enough, rest.live), state.max_norm))
        found = None if parts is None else joined(parts) if len(parts) > 1 else parts[0]
        return Level(found, len(queries), enough, available, settled, ask.exact)

    k = min(ask.k, available)
    sizes = [*below(k), k]
    levels = [level(size) for size in sizes]
    if all(one.found is None for one in levels):
        return None
    out: Ranked | None = None
    for i, (size, one) in enumerate(zip(sizes, levels, strict=True)):
        if one.found is None and i + 1 < len(levels) and levels[i + 1].found is None:
            continue  # two that are exact are one
        out = one.first(size) if out is None else one.behind(out, size, ask.ids)
    return out


def _candidates(
    used: Sequence[Indexed | _Signed], queries: Vectors, k: int, recall: float | None, masks: Sequence[Mask | None]
) -> list[Candidates] | None:  # fmt: skip
    """What each index names for k hits; None when one of them says that exact search is the way."""
    parts = []
    for item, mask in zip(used, masks, strict=True):
        index = item.opened()
        share = recall if recall is not None else check_recall(index.detail.get("recall"))
        found = index.candidates(queries, k, share, mask)
        if found is None:
            return None
        rows = found[1]
        there = rows >= 0
        parts.append(Candidates(there.sum(axis=1), rows[there] + item.start))
    return parts


def _mask(ask: _Question, item: Indexed | _Signed) -> Mask | None:
    """(rows of the index,) True where a row may be found; None when all may."""
    state, dead = ask.state, ask.state.blocks.dead
    if ask.allowed is not None:
        inside = np.zeros(item.rows, dtype=np.bool_)
        inside[_within(ask.allowed, item.start, item.start + item.rows) - item.start] = True
        return inside
    gone = _within(dead, item.start, item.start + item.rows) - item.start
    if not len(gone):
        return None
    return state.once(("mask", item.start, item.rows), lambda: _without(item.rows, gone))


def _without(rows: int, gone: Rows) -> Mask:
    mask = np.ones(rows, dtype=np.bool_)
    mask[gone] = False
    return mask


def _within(rows: Rows, start: int, stop: int) -> Rows:
    return rows[np.searchsorted(rows, start) : np.searchsorted(rows, stop)]


class _Rest(Blocks):
    """The rows that no index covers. `firsts`: the first row of each block, counted through the whole collection."""

    def __init__(self, blocks: list[Any], dead: Rows, firsts: Rows) -> None:
        super().__init__(blocks, dead)
        self.firsts = firsts

    @staticmethod
    def of(ask: _Question, used: Sequence[Indexed | _Signed]) -> _Rest | None:
        """None when everything is covered."""
        state = ask.state
        whole = state.once(("rest", tuple((item.start, item.rows) for item in used)), lambda: _Rest._made(state, used))
        if whole is None or ask.allowed is None:
            return whole
        here = np.zeros(whole.rows, dtype=np.bool_)
        for i, (first, block) in enumerate(zip(whole.firsts.tolist(), whole.blocks, strict=True)):
            here[_within(ask.allowed, first, first + len(block)) - first + whole.starts[i]] = True
        return _Rest(whole.blocks, np.flatnonzero(~here), whole.firsts)

    @staticmethod
    def _made(state: State, used: Sequence[Indexed | _Signed]) -> _Rest | None:
        edges = sorted((item.start, item.start + item.rows) for item in used)
        gaps = [(low, high) for low, high in zip([0, *(stop for _, stop in edges)], [*(start for start, _ in edges), state.blocks.rows], strict=True)]
        blocks, firsts, dead, at = [], [], [], 0
        for low, high in gaps:
            for start, block in zip(state.blocks.starts.tolist(), state.blocks.blocks, strict=False):
                first, last = max(low, start), min(high, start + len(block))
                if first < last:
                    blocks.append(block.sliced(first - start, last - start))
                    firsts.append(first)
                    dead.append(_within(state.blocks.dead, first, last) - first + at)
                    at += last - first
        if not blocks:
            return None
        return _Rest(blocks, np.concatenate(dead), np.asarray(firsts, dtype=np.int64))

    def candidates(self, queries: Scores, k: int, max_norm: float) -> Candidates:
        """Rows of the whole collection."""
        found = super().candidates(queries, k, max_norm)
        place = np.searchsorted(self.starts, found.rows, side="right") - 1
        return Candidates(found.counts, found.rows - self.starts[place] + self.firsts[place])


def _subset(state: State, queries: Scores, k: int, metric: str, allowed: Rows, ids: Names | None) -> Ranked:
    """Exact search on the allowed live rows: only they are scored, or at least only they are found."""
    import torch

    blocks = state.blocks
    if len(allowed) * 4 > blocks.rows or (len(allowed) and 4 * len(allowed) * blocks.blocks[0].dimensions > _GATHERED):
        others = np.ones(blocks.rows, dtype=np.bool_)
        others[allowed] = False
        return rank(queries, Blocks(blocks.blocks, np.flatnonzero(others)), k, metric=metric, max_norm=state.max_norm, ids=ids)
    finder = Blocks([torch.from_numpy(blocks.vectors(allowed))] if len(allowed) else [])

    def names(inside: Iterable[int]) -> Mapping[int, str]:
        assert ids is not None
        listed = list(inside)
        found = ids(allowed[listed].tolist())
        return {i: found[int(allowed[i])] for i in listed}

    ranked = rank(queries, finder, k, metric=metric, max_norm=state.max_norm, ids=names if ids is not None else None)
    return Ranked(allowed[ranked.rows] if len(allowed) else ranked.rows, ranked.scores)


def _flat(state: State) -> Flat:
    if state.flat is None:
        state.flat = Flat(state.blocks.blocks, state.blocks.dead)
    return state.flat
