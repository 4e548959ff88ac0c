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


class Reader:
    """Holds a connection, the mapped files of the last commit that was seen, and the rows of the last filters. Shared by threads, not by forks."""

    def __init__(self, path: Path, verify: bool | None) -> None:
        self.path, self.lock = path, threading.RLock()
        self.fingerprint: str | None = None  # the model that the caller expects; another one is refused as soon as it is seen
        self.store: Store | None = None
        self.state: State | None = None
        self.layout = Layout([])
        self._hash, self._version = verify, -1
        self._maps: dict[str, Mapped] = {}
        self._filters: dict[str, Rows] = {}
        self._words: Lexical | None = None
        self._recent = Recent()

    @contextmanager
    def snapshot(self) -> Iterator[tuple[Store, State]]:
        """A connection inside one commit, and the vectors of that commit."""
        with self.lock:
            store, before = self._connection(), -1
            while True:
                with store.read():
                    commit = store.counter("commit")
                    try:
                        state = self._state(store, commit)
                    except MissingFileError:
                        # A compaction may have replaced the file since this snapshot began; then a later commit does not name it.
                        if commit == before:
                            raise
                        before = commit
                        continue
                    yield store, state
                    return

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
            if self.store is not None and self.store.pid == os.getpid():
                self.store.close()
            self.store = self.state = None
            self.layout, self._maps, self._filters, self._words = Layout([]), {}, {}, None
            self._recent.clear()

    def _connection(self) -> Store:
        if self.store is not None and self.store.pid != os.getpid():
            self.store = None  # a SQLite connection must not be used on both sides of a fork
        if self.store is None:
            self.store = Store(self.path)
        return self.store

    # one commit

    def _state(self, store: Store, commit: int) -> State:
        old = self.state
        if old is not None and old.commit == commit:
            return old
        if self.fingerprint is not None and store.settings().fingerprint != self.fingerprint:
            raise CollectionError(f"{self.path}: was moved to the model {store.settings().model} since it was opened; open it again with that model")
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
        state = State(commit, segments, Blocks(blocks, dead), indexed, parts=parts)
        if grown and old is not None and old.flat is not None:
            state.flat = old.flat.grown(blocks, dead)
        self.state, self.layout, self._version, self._filters = state, layout, version, {}
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
        """The lexical index, with what was read of it before."""
        if self._words is None or self._words.db is not store.db:
            self._words = Lexical(store.db)
        return self._words

    def allowed(self, store: Store, where: str | None) -> Rows | None:
        """Passage numbers that a filter allows, ascending; None without a filter."""
        if where is None:
            return None
        if where not in self._filters:
            found = store.matching(*to_sqlite(parse_where(where)))
            while len(self._filters) >= _FILTERS:
                del self._filters[next(iter(self._filters))]
            self._filters[where] = found
        return self._filters[where]


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
