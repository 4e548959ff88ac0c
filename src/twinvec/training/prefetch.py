"""Batches made ahead in a thread: tokenising costs a training step nothing, since the tokenizer works outside Python's lock."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")
DEPTH = 4  # batches ahead


class Prefetcher(Generic[Item, Made]):
    """`next` gives `make(item)` for each item, made up to `depth` ahead. An error of `make` is raised where its item would have come."""

    def __init__(self, items: Iterator[Item], make: Callable[[Item], Made], depth: int = DEPTH) -> None:
        self._queue: queue.Queue[tuple[str, Made | BaseException | None]] = queue.Queue(maxsize=depth)
        self._stop = threading.Event()
        self._items, self._make = items, make
        self._thread = threading.Thread(target=self._work, name="twinvec-batches", daemon=True)
        self._thread.start()

    def _put(self, entry: tuple[str, Made | BaseException | None]) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(entry, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def _work(self) -> None:
        try:
            for item in self._items:
                if not self._put(("made", self._make(item))):
                    return
            self._put(("end", None))
        except BaseException as err:
            self._put(("error", err))

    def __iter__(self) -> Iterator[Made]:
        return self

    def __next__(self) -> Made:
        kind, value = self._queue.get()
        if kind == "end":
            raise StopIteration
        if kind == "error":
            assert isinstance(value, BaseException)
            raise value
        return value  # type: ignore[return-value]

    def close(self) -> None:
        """Stop the thread, and wait for it."""
        self._stop.set()
        self._thread.join()
