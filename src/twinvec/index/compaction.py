"""Rewriting vector files: small ones joined as they come, dead rows dropped on request. Whoever does it holds the writer's lock.

A new file is written and synced beside the old ones, then one commit names it instead of them, then the old ones are removed. Killed at any
moment, the folder holds either; what is not named goes with the next sweep. Readers of an earlier commit keep the mapped old files. A passage
keeps its number, so nothing else in the database changes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.index import lexical
from twinvec.index import segments as files
from twinvec.index.layout import Layout
from twinvec.index.packing import LEARNED, SLACK, learned, pack, raw, unpack
from twinvec.index.ranking import Rows
from twinvec.index.segments import IndexFile, Mapped, Segment
from twinvec.index.store import BUSY, Store, sqlite_errors

FAN = 8  # so many neighbours of one size are joined into one
_LEAST = 512  # segments of the smallest size have at most so many rows; each further size has FAN times more
LARGEST = 1 << 30  # bytes of a segment that others may be joined into, and of a segment that compaction writes
_BLOCK = 65_536  # rows copied at a time
_FREE = 0.2  # share of unused pages above which the database is written anew


def known_files(store: Store) -> set[str]:
    """Names of all vector and index files that the database names."""
    segments = [*store.segments(), *store.segments("staged")]
    return {name for segment in segments for name in segment.files} | {index.file for index in store.indexes()}


class Compactor:
    """Rewrites segments of the collection in `folder`."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder, self.store = folder, store

    def merge_small(self) -> None:
        """Join the last segments when FAN neighbours have one size: a row is written again once a size, not once an addition."""
        with self.store.read():
            segments = self.store.segments()
        group: list[Segment] = []
        for size in range(max((_class(segment) for segment in segments), default=-1) + 1):
            tail = _tail(segments, size)
            if sum(_class(segment) == size for segment in tail) >= FAN and sum(segment.size for segment in tail) <= LARGEST:
                group = tail
        if group:
            self.rewrite(group, drop=not self._indexed(group))

    def compact(self) -> dict[str, Any]:
        """Drop dead rows, join segments, give unused pages of the database back. One commit a group of at most LARGEST bytes."""
        start, store = time.perf_counter(), self.store
        with store.read():
            segments, dead, settings = store.segments(), store.tombstones(), store.settings()
        before = sum(segment.size for segment in segments), _size(store), len(segments)
        for group in _groups(segments):
            if len(group) > 1 or _between(dead, group) or group[0].dtype != settings.store:
                self.rewrite(group, drop=True)
        with store.write():
            lexical.compact(store.db)
        free, pages = (store.db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_count"))
        with sqlite_errors(store.path):
            if free > _FREE * pages:
                files.check_space(self.folder, store.path, _size(store), "compaction")
                store.db.execute("VACUUM")
            store.db.execute("PRAGMA busy_timeout = 0")  # a reader that is in its work keeps the log; the next compaction gets it
            store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            store.db.execute(f"PRAGMA busy_timeout = {BUSY}")
        with store.read():
            segments = store.segments()
        return {
            "dropped": len(dead),
            "segments_before": before[2],
            "segments": len(segments),
            "bytes_before": before[0] + before[1],
            "bytes": sum(segment.size for segment in segments) + _size(store),
            "seconds": time.perf_counter() - start,
        }

    def rewrite(self, group: Sequence[Segment], *, drop: bool) -> None:
        """One commit: these neighbours become one segment, without their dead rows when `drop`."""
        store, low, high = self.store, group[0].first, group[-1].last
        with store.read():
            dead, settings, ranges = store.tombstones(), store.settings(), store.setting("ranges")
            number, indexes = store.counter("next_segment"), store.indexes()
        parts = [files.mapped(self.folder, segment) for segment in group]
        layout = Layout(parts)
        numbers = np.concatenate([layout.of_part(i) for i in range(len(parts))])
        keep = np.ones(len(numbers), dtype=bool)
        if drop:
            keep[np.isin(numbers, dead[(dead >= low) & (dead <= high)], assume_unique=True)] = False
        written = None
        if keep.any():
            dtype, between = self._type(settings.store, ranges, parts, keep)
            unit = settings.metric == "cosine"
            longest = max(segment.max_norm for segment in group) * (SLACK[dtype] if any(s.dtype != dtype for s in group) else 1.0)
            written = files.write(
                self.folder, number, numbers[keep], copied(parts, keep, dtype, between, unit=unit), dtype=dtype, dimensions=group[0].dimensions,
                max_norm=longest, ranges=between, unit=unit, what="compaction",
            )  # fmt: skip
            ranges = between.tolist() if between is not None else ranges
        try:
            with store.write():
                store.drop_entries("segments", (segment.number for segment in group))
                if written is not None:
                    store.put_segment(written)
                    store.set_counter("next_segment", number + 1)
                if drop:
                    store.unbury(low, high)
                if ranges is not None and store.setting("ranges") is None:
                    store.set_setting("ranges", ranges)
                if not keep.all():
                    self.forget_indexes(indexes)
                store.set_counter("layout", store.counter("layout") + 1)
        finally:
            # Whether it was committed or not, what the database does not name may go.
            with suppress(Exception):
                self._sweep()

    def _type(
        self, wanted: str, ranges: Any, parts: Sequence[Mapped], keep: npt.NDArray[np.bool_]
    ) -> tuple[str, npt.NDArray[np.float32] | None]:  # fmt: skip
        """The number type of the new segment, and its ranges; int8 waits until there are rows enough to learn ranges from."""
        if wanted != "int8":
            return wanted, None
        if ranges is not None:
            return "int8", np.asarray(ranges, dtype=np.float32)
        if keep.sum() < LEARNED:
            return "float16", None
        low, high = (learned(np.concatenate(list(_decoded(parts, keep))))[i] for i in (0, 1))
        return "int8", np.stack((low, high))

    def forget_indexes(self, indexes: Sequence[IndexFile]) -> None:
        """Rows have moved, so indexes over them are out of date. `indexing` remembers what is to be built again (optimizing.py)."""
        if not indexes:
            return
        detail = json.loads(indexes[-1].detail)
        self.store.set_setting("indexing", {"kind": indexes[-1].kind, "recall": detail.get("recall")})
        self.store.drop_entries("indexes", (index.number for index in indexes))

    def _indexed(self, group: Sequence[Segment]) -> bool:
        """Whether an index counts on the places of these rows."""
        with self.store.read():
            segments, indexes = self.store.segments(), self.store.indexes()
        for index in indexes:
            rows = 0
            for segment in segments:
                if segment.first >= index.first_passage:
                    if rows < index.rows and segment in group:
                        return True
                    rows += segment.rows
        return False

    def _sweep(self) -> None:
        with self.store.read():
            known = known_files(self.store)
        for path in files.orphans(self.folder, known):
            path.unlink(missing_ok=True)


def copied(
    parts: Sequence[Mapped], keep: npt.NDArray[np.bool_], dtype: str, ranges: npt.NDArray[np.float32] | None, *, unit: bool
) -> Iterator[Mapping[str, npt.NDArray[Any]]]:  # fmt: skip
    """The kept rows of all parts, block by block, as they are stored where type and ranges are the same."""
    at = 0
    for part in parts:
        same = part.segment.dtype == dtype and (ranges is None or (part.ranges is not None and np.array_equal(part.ranges, ranges)))
        for start in range(0, part.segment.rows, _BLOCK):
            rows = start + np.flatnonzero(keep[at + start : at + min(start + _BLOCK, part.segment.rows)])
            if len(rows):
                yield raw(part, rows) if same else pack(unpack(part, rows), dtype, ranges, unit=unit)
        at += part.segment.rows


def _decoded(parts: Sequence[Mapped], keep: npt.NDArray[np.bool_]) -> Iterator[npt.NDArray[np.float32]]:
    at = 0
    for part in parts:
        yield unpack(part, np.flatnonzero(keep[at : at + part.segment.rows])[:_BLOCK])
        at += part.segment.rows


def _class(segment: Segment) -> int:
    """0 up to _LEAST rows, one more for each FAN times as many."""
    size, limit = 0, _LEAST
    while segment.rows > limit:
        size, limit = size + 1, limit * FAN
    return size


def _tail(segments: Sequence[Segment], size: int) -> list[Segment]:
    """The last segments, as far as they are of this size class or below."""
    at = len(segments)
    while at and _class(segments[at - 1]) <= size:
        at -= 1
    return list(segments[at:])


def _groups(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Neighbours that together stay below LARGEST."""
    out: list[list[Segment]] = []
    for segment in segments:
        if out and sum(other.size for other in out[-1]) + segment.size <= LARGEST:
            out[-1].append(segment)
        else:
            out.append([segment])
    return out


def _between(dead: Rows, group: Sequence[Segment]) -> bool:
    return bool(np.any((dead >= group[0].first) & (dead <= group[-1].last)))


def _size(store: Store) -> int:
    """Bytes of the database and of its log."""
    log = store.path.with_name(store.path.name + "-wal")
    return store.path.stat().st_size + (log.stat().st_size if log.exists() else 0)
