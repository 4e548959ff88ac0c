"""What readers of a collection share: a snapshot of one commit with its files mapped, filters as rows, rows as documents."""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from twinvec.errors import CollectionError, TwinvecWarning
from twinvec.index import segments as files
from twinvec.index.ann.stored import block_of, joined
from twinvec.index.exact import Blocks
from twinvec.index.faults import miscounts
from twinvec.index.layout import Layout
from twinvec.index.lexical_reader import Lexical
from twinvec.index.ranking import Rows
from twinvec.index.recent import Recent
from twinvec.index.searching import Indexed, State
from twinvec.index.segments import IndexFile, Mapped, MissingFileError, Segment
from twinvec.index.store import Store, damaged
from twinvec.index.where import parse_where, to_sqlite
from twinvec.records import Hit, Passage

HASHED = 64 << 20  # collections with less than this many bytes of vectors are checked by SHA-256 whenever they are opened
INDEX_REMEDY = "make it again with: twinvec index COLLECTION --optimize"
_decode = json.JSONDecoder().raw_decode  # half the time of json.loads, which looks for white space and odd arguments first
_FILTERS = 8  # filters whose rows are kept until the next commit
_IDLE = 8  # connections that are kept for the next searches; more are opened while more threads search


class Reader:
    """Holds connections, the mapped files of the last commit that was seen, and what was read of it. Shared by threads, not by forks.

    Each snapshot has a connection of its own while it lasts, so threads search side by side; the lock is held only where something shared changes.
    """

    def __init__(self, path: Path, verify: bool | None) -> None:
        self.path, self.lock = path, threading.RLock()
        self.fingerprint: str | None = None  # the model that the caller expects; another one is refused as soon as it is seen
        self.idle: list[Store] = []
        self.state: State | None = None
        self._hash, self._version, self._closed, self._out = verify, -1, 0, 0
        self._maps: dict[str, Mapped] = {}
        self._recent = Recent()

    @contextmanager
    def snapshot(self) -> Iterator[tuple[Store, State]]:
        """A connection inside one commit, and the vectors of that commit."""
        closed, store, before = self._closed, self._lent(), -1
        try:
            while True:
                with store.read():
                    commit = store.counter("commit")
                    try:
                        state = self._state(store, commit, again=commit == before)
                    except MissingFileError:
                        # A compaction may have replaced the file since this snapshot began; then a later commit does not name it.
                        if commit == before:
                            raise
                        state = None
                    if state is None:
                        before = commit
                        continue
                    yield store, state
                    return
        finally:
            self._take_back(store, closed)

    def behind(self, store: Store, state: State) -> bool:
        """True when an index file of this commit is gone because of a later one, and the search should begin again."""
        if all(item.path.exists() for item in state.indexed):
            return False
        fresh = Store(self.path)
        try:
            with fresh.read():
                return fresh.counter("commit") > state.commit
        finally:
            fresh.close()

    def close(self) -> None:
        with self.lock:
            idle, self.idle, self._closed = self.idle, [], self._closed + 1
            self.state, self._maps = None, {}
            self._recent.clear()
        for store in idle:
            if store.pid == os.getpid():
                store.close()

    def _lent(self) -> Store:
        with self.lock:
            # A SQLite connection must not be used on both sides of a fork: those of the parent stay as they are.
            self.idle = [store for store in self.idle if store.pid == os.getpid()]
            store = self.idle.pop() if self.idle else None
        store = store or Store(self.path)
        with self.lock:
            self._out += 1
        return store

    def _take_back(self, store: Store, closed: int) -> None:
        with self.lock:
            self._out -= 1
            if closed == self._closed and store.pid == os.getpid() and len(self.idle) < _IDLE:
                self.idle.append(store)
                return
        if store.pid == os.getpid():
            store.close()

    # one commit

    def _state(self, store: Store, commit: int, again: bool) -> State | None:
        """What this commit holds. None for a commit from before the last that was seen: the snapshot should begin again, once."""
        with self.lock:
            old = self.state
            if old is not None and commit < old.commit:
                if not again:
                    return None
                old = None  # the collection itself is an older one: it was made anew, or put back from a copy
                self._recent.clear()
            if old is not None and old.commit == commit:
                return old
            if self.fingerprint is not None and store.settings().fingerprint != self.fingerprint:
                raise CollectionError(
                    f"{self.path}: was moved to the model {store.settings().model} since it was opened; open it again with that model"
                )
            self.state = self._read(store, commit, old)
            return self.state

    def _read(self, store: Store, commit: int, old: State | None) -> State:
        segments, version = store.segments(), store.counter("layout")
        if old is None and (faults := miscounts(store, segments)):
            raise damaged(store.path, faults[0].removeprefix(f"{store.path}: "))
        total = sum(segment.size for segment in segments)
        parts = [self._mapped(segment, total) for segment in segments]
        layout = Layout(parts)
        grown = old is not None and version == self._version
        dead = self._places(store, layout, old.commit if grown and old is not None else -1)
        if grown and old is not None:
            dead = np.union1d(old.blocks.dead, dead)
        blocks = joined([block_of(part) for part in parts])
        indexed = self._indexed(store, layout, total, {item.file.file: item for item in old.indexed} if old is not None else {})
        state = State(commit, segments, Blocks(blocks, dead), indexed, parts=parts, layout=layout)
        if grown and old is not None and old.flat is not None and self._out == 1:  # no other thread searches what is added to here
            state.flat = old.flat.grown(blocks, dead)
        self._version = version
        self._maps = {part.segment.file: part for part in parts}
        return state

    def _mapped(self, segment: Segment, total: int) -> Mapped:
        known = self._maps.get(segment.file)
        if known is not None and known.segment == segment:
            return known
        files.check(self.path, segment, content=self._hash is not False and total < HASHED)
        return files.mapped(self.path, segment)

    def _places(self, store: Store, layout: Layout, after: int) -> Rows:
        """Rows of the passages that were buried since commit `after`."""
        places = layout.places(store.tombstones(after))
        if len(places) and places.min() < 0:
            raise damaged(store.path, "a tombstone for a vector that is not there")
        return places

    def _indexed(self, store: Store, layout: Layout, total: int, old: dict[str, Indexed]) -> list[Indexed]:
        out = []
        for index in store.indexes():
            if index.file in old and old[index.file].file == index:
                out.append(old[index.file])
                continue
            path = self.path / files.FOLDER / index.file
            try:
                check_index(self.path, index, content=self._hash is not False and total < HASHED)
            except MissingFileError:
                raise
            except CollectionError as err:
                warnings.warn(f"{err}. Until then its rows are searched exactly", TwinvecWarning, stacklevel=2)
                continue
            out.append(Indexed(index, path, int(layout.places(np.asarray([index.first_passage]))[0])))
        return out

    # hits, filters and words

    def hits(self, store: Store, state: State, found: Sequence[Sequence[tuple[int, float]]]) -> list[list[Hit]]:
        """For each query its (passage number, score) pairs -> hits with text and metadata, read in one go."""
        stored = self._recent.passages(store, [number for row in found for number, _ in row], state.commit)
        out = []
        for row in found:
            hits = []
            for number, score in row:
                name, text, metadata, part, start, stop = stored[number]
                passage = None if start is None or stop is None else Passage(text[start:stop], start, stop, part)
                # Each hit has metadata of its own: what a caller changes in one must not show in another.
                hits.append(Hit(name, score, text, {} if metadata == "{}" else _decode(metadata)[0], passage))
            out.append(hits)
        return out

    def words(self, store: Store) -> Lexical:
        """The lexical index, with what this connection read of it before."""
        if store.words is None:
            store.words = Lexical(store.db)
        return store.words

    def allowed(self, store: Store, state: State, where: str | None) -> Rows | None:
        """Passage numbers that a filter allows, ascending; None without a filter."""
        if where is None:
            return None
        known = state.filters.get(where)
        if known is None:
            known = store.matching(*to_sqlite(parse_where(where)))
            with self.lock:
                while len(state.filters) >= _FILTERS:
                    del state.filters[next(iter(state.filters))]
                state.filters[where] = known
        return known


def check_index(folder: Path, index: IndexFile, *, content: bool) -> None:
    check_ = files.check_file
    check_(folder / files.FOLDER / index.file, index.bytes, index.sha256, f"an index of {index.rows} rows", content=content, remedy=INDEX_REMEDY)


def first_of_each(found: Iterable[tuple[int, float]], owners: dict[int, int], k: int) -> list[tuple[int, float]]:
    """The best passage of each document, best first, k at most."""
    seen: set[int] = set()
    out = []
    for number, score in found:
        owner = owners[number]
        if owner not in seen:
            seen.add(owner)
            out.append((number, score))
            if len(out) == k:
                break
    return out
