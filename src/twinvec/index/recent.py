"""Rows of hits that were read and checked before: popular documents are found again and again, and SQLite need not be asked each time.

What is kept belongs to one commit. It is bounded by bytes, so that long texts do not fill the memory; the oldest go first.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from twinvec.index.store import Found, Store

KEPT = 64 << 20  # bytes, about
_A_ROW = 400  # bytes of a row beside its characters: three strings, a tuple, a number, a place in the dictionary


class Recent:
    """The passages of one commit's hits by their number. Threads may share it."""

    def __init__(self, kept: int = KEPT) -> None:
        self.limit, self._bytes, self._commit = kept, 0, -1
        self._found: dict[int, Found] = {}
        self._lock = threading.Lock()

    def passages(self, store: Store, wanted: Collection[int], commit: int) -> dict[int, Found]:
        """What `store.passages` says of each; what is kept is forgotten when a later commit comes."""
        with self._lock:
            if commit > self._commit:
                self._forget(commit)
            known = self._found if commit == self._commit else {}
            found = {number: known[number] for number in wanted if number in known}
        missing = [number for number in wanted if number not in found]
        if not missing:
            return found
        fresh = store.passages(missing)
        with self._lock:
            if commit == self._commit:
                self._keep(fresh)
        return found | fresh

    def clear(self) -> None:
        with self._lock:
            self._forget(-1)

    def _forget(self, commit: int) -> None:
        self._found, self._bytes, self._commit = {}, 0, commit

    def _keep(self, fresh: dict[int, Found]) -> None:
        known = self._found
        fresh = {number: row for number, row in fresh.items() if number not in known}  # another thread may have been faster
        known.update(fresh)
        self._bytes += sum(_size(row) for row in fresh.values())
        while self._bytes > self.limit:
            oldest = next(iter(known))
            self._bytes -= _size(known.pop(oldest))


def _size(row: Found) -> int:
    return _A_ROW + 4 * (len(row[0]) + len(row[1]) + len(row[2]))
