"""Parameters that reach a recall, found on rows that the index has not seen.

Queries that are rows of the index flatter it: a graph has links from them straight to their neighbours, and the lists were cut around them. So
the index is tuned while the held-out rows are still outside, with their true neighbours known from an exact pass, and they are added afterwards.
The recall of candidates is the recall of the search: all of them are scored again exactly. A target counts as reached when the measured recall is
above it by its standard error over the queries, so that other queries reach it too.

Short codes (ivfpq) order only roughly, and some queries have a hundred rows of nearly the same score where others have two: a fixed number of
candidates is too many for most and too few for the rest. So what is learned is a margin: a row stays a candidate while its score by the codes is no
further below that of the k-th than so much. For recall 0.95 that is 60 rows a query instead of 375 (benchmarks/RESULTS.md).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from twinvec.index.ann.plan import BUCKETS, TARGETS
from twinvec.index.ranking import Rows
from twinvec.records import Vectors

_WIDE = (1024, 2048)  # candidates a query at most, for up to 10 hits and for more; in large indexes a share of the rows, up to _WIDE_MOST
_WIDE_SHARE, _WIDE_MOST = 2048, 8192
_WIDEST = 4096  # widest search of a graph
_STEP = 1.4
_OPTIONS = 5
_MOST = (6, 12, 25, 50)  # candidates a hit that are tried, up to all of _WIDE
_SPARE = 16  # candidates above k where scores are nearly exact

Parameters = dict[str, int]


class Searcher(Protocol):
    """An index as it is tuned: what building.py makes and approximate.py loads."""

    kind: str
    lists: int
    dimensions: int
    rows: int

    def search(self, queries: Vectors, parameters: Parameters) -> tuple[Vectors, Rows]:
        """queries (q, D) -> scores and rows (q, parameters["candidates"]), nearest first by the index's own account, -1 where there are none."""

    def nearest(self, queries: Vectors, parameters: Parameters) -> Rows:
        """The rows of `search` that are candidates: -1 too where one lies further below than parameters["margin"], where there is one."""


def tune(index: Searcher, queries: Vectors, truth: Rows) -> list[dict[str, Any]]:
    """queries (q, D) outside the index; truth (q, >= 100) their true neighbours -> an entry for each number of hits and each target.

    Entries: hits, target, recall (measured), rate (queries a second, candidates only, as many threads as FAISS has), parameters; parameters None
    where the target is out of reach, which the search answers exactly.
    """
    entries = []
    for hits in BUCKETS:
        wanted = truth[:, : min(hits, truth.shape[1])]
        steps = _Steps(index, queries, wanted, hits)
        entries += [{"hits": hits, "target": target, **steps.reach(target)} for target in TARGETS]
    return entries


class _Steps:
    """What each setting found. A setting is the lists to probe, or the width of a graph search; each is tried once, and only when it is needed."""

    def __init__(self, index: Searcher, queries: Vectors, truth: Rows, hits: int) -> None:
        self.index, self.queries, self.truth, self.hits = index, queries, truth, hits
        # Short codes tell less apart the more rows there are: at ten million rows 512 candidates held less than 0.9 of the nearest ten.
        self.wide = max(_WIDE[0] if hits <= BUCKETS[0] else _WIDE[1], min(_WIDE_MOST, index.rows // _WIDE_SHARE))
        self.tried: dict[int, _Counted | _Margins] = {}
        self.lowest = max(1, min(hits, index.rows)) if index.kind == "hnsw" else 1
        self.highest = min(_WIDEST, index.rows) if index.kind == "hnsw" else index.lists

    def reach(self, target: float) -> dict[str, Any]:
        """The cheapest parameters that reach the target."""
        options = [(cost(self.index, setting, need.most, need.kept), setting, need) for setting, need in self._options(target)]
        for _, setting, need in sorted(options, key=lambda option: option[0]):
            parameters = self._parameters(setting, need)
            shares = self._shares(parameters)
            if shares.mean() >= target:  # once more as the search will ask
                return {"recall": round(float(shares.mean()), 4), "rate": self._rate(parameters), "parameters": parameters}
        return {"recall": None, "rate": None, "parameters": None}

    def _options(self, target: float) -> list[tuple[int, _Need]]:
        """From the lowest setting up in steps, the last one halved; past it while wider search may pay by fewer candidates."""
        out: list[tuple[int, _Need]] = []
        before, setting, settings = 0, self.lowest, 0
        while settings < _OPTIONS:
            needs = self._try(setting).reach(target)
            if needs:
                middle = round((before * setting) ** 0.5) if not out else 0
                if before < middle < setting:
                    out += [(middle, need) for need in self._try(middle).reach(target)]
                out += [(setting, need) for need in needs]
                settings += 1
                if self.index.kind != "ivfpq" or min(need.kept for need in needs) <= 3 * self.hits:
                    break
            if setting == self.highest:
                break
            before, setting = setting, min(self.highest, max(setting + 1, round(setting * _STEP)))
        return out

    def _try(self, setting: int) -> _Counted | _Margins:
        if setting not in self.tried:
            self.tried[setting] = self._found(setting)
        return self.tried[setting]

    def _parameters(self, setting: int, need: _Need) -> Parameters:
        if self.index.kind == "hnsw":
            return {"ef": setting, "candidates": setting}
        if need.margin is not None:
            return {"probes": setting, "candidates": need.most, "margin": need.margin, "hits": self.hits}
        return {"probes": setting, "candidates": need.most}

    @property
    def _most(self) -> int:
        """Candidates of short codes before the margin; a quarter of a small index, beyond which exact search is as good."""
        return max(min(self.wide, self.index.rows // 4), min(self.hits, self.index.rows))

    def _found(self, setting: int) -> _Counted | _Margins:
        if self.index.kind == "ivfpq":
            asked = {"probes": setting, "candidates": self._most}
            return _Margins(*self.index.search(self.queries, asked), self.truth, self.hits)
        count = setting if self.index.kind == "hnsw" else min(self.hits + _SPARE, self.index.rows)
        rows = self.index.nearest(self.queries, self._parameters(setting, _Need(count, count)))
        return _Counted(rows, self.truth, self.hits, self.wide)

    def _shares(self, parameters: Parameters) -> npt.NDArray[np.float64]:
        found = self.index.nearest(self.queries, parameters)
        return np.asarray([np.isin(wanted, line).mean() for line, wanted in zip(found, self.truth, strict=True)])

    def _rate(self, parameters: Parameters) -> int:
        batch = self.queries[:100]
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            self.index.nearest(batch, parameters)
            seconds.append(time.perf_counter() - start)
        return round(len(batch) / min(seconds))


@dataclass(frozen=True, slots=True)
class _Need:
    """What reaches a target: candidates that the index is asked for, how many of them a query keeps on average, and by which margin."""

    most: int
    kept: float
    margin: int | None = None


class _Counted:
    """Candidates in a good order, of which the first so many are taken."""

    def __init__(self, found: Rows, truth: Rows, hits: int, wide: int) -> None:
        self.places = np.stack([place(line, wanted) for line, wanted in zip(found, truth, strict=True)])
        self.hits, self.wide = hits, wide

    def reach(self, target: float) -> list[_Need]:
        """The fewest candidates that reach the target; empty when none do."""
        need = _quantile(self.places, target)
        if need is None or need >= self.wide:
            return []
        count = max(int(need) + 1, self.hits) + _SPARE
        return [_Need(count, float(count))]


class _Margins:
    """Candidates by their scores (q, candidates), best first, of which those near to the k-th are taken."""

    def __init__(self, scores: Vectors, found: Rows, truth: Rows, hits: int) -> None:
        self.below, self.hits = behind(scores, found, hits), hits
        self.places = np.stack([place(line, wanted) for line, wanted in zip(found, truth, strict=True)])
        there = self.places < found.shape[1]
        self.lost = np.where(there, np.take_along_axis(self.below, np.where(there, self.places, 0), axis=1), np.inf)

    def reach(self, target: float) -> list[_Need]:
        """For each number of candidates that may be asked for: the smallest margin that reaches the target."""
        out = []
        width = self.below.shape[1]
        for most in sorted({min(width, step * self.hits) for step in _MOST} | {width}):
            need = _quantile(np.where(self.places < most, self.lost, np.inf), target)
            if need is not None:
                margin = int(np.ceil(need))
                out.append(_Need(most, float((self.below[:, :most] <= margin).sum(axis=1).mean()), margin))
        return out


def _quantile(lost: npt.NDArray[Any], target: float) -> float | None:
    """The least number that a share of `target` of lost (q, k), and a standard error more, does not exceed; None when it is beyond all bounds."""
    beyond = float(np.iinfo(np.int64).max >> 2)
    ordered = np.sort(np.minimum(lost, beyond), axis=None)

    def at(share: float) -> float:
        return float(ordered[min(len(ordered) - 1, max(0, int(np.ceil(share * len(ordered))) - 1))])

    reached = at(target)
    if reached >= beyond:
        return None
    shares = (lost <= reached).mean(axis=1)
    found = at(min(1.0, target + float(shares.std() / np.sqrt(len(shares)))))
    return None if found >= beyond else found


def behind(scores: Vectors, found: Rows, hits: int) -> Vectors:
    """scores and rows (q, n), best first -> (q, n): how far each row lies below the `hits`-th of its query, 0 at least; infinity where there is no
    row. A query with fewer rows than `hits` keeps them all: they lie below nothing."""
    there = found >= 0
    if not there.size or hits > found.shape[1]:
        return np.where(there, 0.0, np.inf).astype(np.float32)
    if there[:, :hits].all():
        last = scores[:, hits - 1]
    else:
        width = found.shape[1]
        last = np.partition(np.where(there, scores, -np.inf), width - hits, axis=1)[:, width - hits]
    last = np.where(np.isfinite(last), last, np.finfo(np.float32).min).astype(np.float32)
    below: Vectors = np.maximum(last[:, None] - scores, np.float32(0))
    below[~there] = np.inf
    return below


def place(line: Rows, wanted: Rows) -> npt.NDArray[np.int64]:
    """Where each wanted row stands in the line; a large number when it is not there."""
    order = np.argsort(wanted)
    at = np.minimum(np.searchsorted(wanted[order], line), len(wanted) - 1)
    there = wanted[order][at] == line
    places: npt.NDArray[np.int64] = np.full(len(wanted), np.iinfo(np.int64).max >> 1, dtype=np.int64)
    places[order[at[there]]] = np.flatnonzero(there)
    return places


def cost(index: Searcher, setting: int, most: int, kept: float) -> float:
    """Microseconds a query that asks for `most` candidates and scores `kept` of them, about: arithmetic, not a clock, so that the same rows always
    get the same parameters. Fitted to one core of an EPYC.
    """
    if index.kind == "hnsw":
        return float(setting)
    scanned = setting * index.rows / max(1, index.lists)
    a_row = index.dimensions * (0.37e-4 if index.kind == "ivfpq" else 1e-3)
    return scanned * a_row + 0.15 * setting + 0.06 * most + kept * (0.15 + index.dimensions * 5.5e-4)
