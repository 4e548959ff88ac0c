"""Parameters that reach a recall, found on rows that the index has not seen.

Queries that are rows of the index flatter it: a graph has links from them straight to their neighbours, and the lists were cut around them. So
the index is tuned while the held-out rows are still outside, with their true neighbours known from an exact pass, and they are added afterwards.
The recall of candidates is the recall of the search: all of them are scored again exactly. A target counts as reached when the measured recall is
above it by its standard error over the queries, so that other queries reach it too.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from twinvec.index.ann.plan import BUCKETS, TARGETS
from twinvec.index.ranking import Rows
from twinvec.records import Vectors

_WIDE = (512, 2048)  # candidates a query at most, for up to 10 hits and for more; in large indexes a share of the rows, up to _WIDE_MOST
_WIDE_SHARE, _WIDE_MOST = 2048, 8192
_WIDEST = 4096  # widest search of a graph
_STEP = 1.4
_OPTIONS = 5
_MARGIN = 16  # candidates above k where scores are nearly exact

Parameters = dict[str, int]


class Searcher(Protocol):
    """An index as it is tuned: what building.py makes and approximate.py loads."""

    kind: str
    lists: int
    dimensions: int
    rows: int

    def nearest(self, queries: Vectors, parameters: Parameters) -> Rows:
        """queries (q, D) -> candidates (q, parameters["candidates"]), nearest first by the index's own account, -1 where there are none."""


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
        self.tried: dict[int, npt.NDArray[np.int64]] = {}  # setting -> place (q, hits) of each true neighbour among the candidates
        self.lowest = max(1, min(hits, index.rows)) if index.kind == "hnsw" else 1
        self.highest = min(_WIDEST, index.rows) if index.kind == "hnsw" else index.lists

    def reach(self, target: float) -> dict[str, Any]:
        """The cheapest parameters that reach the target."""
        options = [(cost(self.index, parameters), parameters) for parameters in self._options(target)]
        for _, parameters in sorted(options, key=lambda option: option[0]):
            shares = self._shares(parameters)
            if shares.mean() >= target:  # once more as the search will ask
                return {"recall": round(float(shares.mean()), 4), "rate": self._rate(parameters), "parameters": parameters}
        return {"recall": None, "rate": None, "parameters": None}

    def _options(self, target: float) -> list[Parameters]:
        """From the lowest setting up in steps, the last one halved; past it while wider search may pay by fewer candidates."""
        out: list[Parameters] = []
        before, setting = 0, self.lowest
        while len(out) < _OPTIONS:
            need = self._need(setting, target)
            if need is not None:
                middle = round((before * setting) ** 0.5) if not out else 0
                if before < middle < setting and (less := self._need(middle, target)) is not None:
                    out.append(self._parameters(middle, less))
                out.append(self._parameters(setting, need))
                if self.index.kind != "ivfpq" or need <= 3 * self.hits:
                    break
            if setting == self.highest:
                break
            before, setting = setting, min(self.highest, max(setting + 1, round(setting * _STEP)))
        return out

    def _need(self, setting: int, target: float) -> int | None:
        if setting not in self.tried:
            self.tried[setting] = self._places(setting)
        return self._candidates(self.tried[setting], target)

    def _parameters(self, setting: int, need: int) -> Parameters:
        if self.index.kind == "hnsw":
            return {"ef": setting, "candidates": setting}
        return {"probes": setting, "candidates": need}

    def _places(self, setting: int) -> npt.NDArray[np.int64]:
        count = self.wide if self.index.kind == "ivfpq" else setting if self.index.kind == "hnsw" else self.hits + _MARGIN
        found = self.index.nearest(self.queries, self._parameters(setting, min(count, self.index.rows)))
        return np.stack([place(line, wanted) for line, wanted in zip(found, self.truth, strict=True)])

    def _candidates(self, places: npt.NDArray[np.int64], target: float) -> int | None:
        """The fewest candidates that reach the target, or None."""
        total = np.full(self.wide + 1, 0.0)
        counts = np.bincount(np.minimum(places, self.wide).ravel(), minlength=self.wide + 1)[: self.wide]
        total[1:] = np.cumsum(counts) / places.size
        reached = np.flatnonzero(total >= target)
        if not len(reached):
            return None
        shares = (places < reached[0]).mean(axis=1)
        error = float(shares.std() / np.sqrt(len(shares)))
        enough = np.flatnonzero(total >= min(target + error, 1.0))
        if not len(enough):
            return None
        need = max(int(enough[0]), self.hits)
        return need + _MARGIN if self.index.kind != "ivfpq" else -(-need // 8) * 8

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


def place(line: Rows, wanted: Rows) -> npt.NDArray[np.int64]:
    """Where each wanted row stands in the line; a large number when it is not there."""
    order = np.argsort(wanted)
    at = np.minimum(np.searchsorted(wanted[order], line), len(wanted) - 1)
    there = wanted[order][at] == line
    places: npt.NDArray[np.int64] = np.full(len(wanted), np.iinfo(np.int64).max >> 1, dtype=np.int64)
    places[order[at[there]]] = np.flatnonzero(there)
    return places


def cost(index: Searcher, parameters: Parameters) -> float:
    """Microseconds a query, about: arithmetic, not a clock, so that the same rows always get the same parameters. Fitted to one core of an EPYC."""
    if "ef" in parameters:
        return float(parameters["ef"])
    scanned = parameters["probes"] * index.rows / max(1, index.lists)
    a_row = index.dimensions * (0.6e-4 if index.kind == "ivfpq" else 1e-3)
    return scanned * a_row + 0.15 * parameters["probes"] + parameters["candidates"] * (0.15 + index.dimensions * 4e-4)
