"""Rows of hits that were read and checked before: popular documents are found again and again, and SQLite need not be asked each time.

What is kept belongs to one commit. It is bounded by bytes, so that long texts do not fill the memory; the oldest go first.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from twinvec.index.store import Found, Store

KEPT = 64 << 20  # bytes, about
_LEFT = 0.75  # of the limit: what stays when it is passed
_A_ROW = 400  # bytes of a row beside its characters: three strings, a tuple, a number, a place in the dictionary


class Recent:
    """The passages of one commit's hits by their number. Threads may share it."""

    def __init__(self, kept: int = KEPT) -> None:
        self.limit, self._bytes, self._commit = kept, 0, -1
        self._found: dict[int, Found] = {}
        self._lock = threading.Lock()

    def passages(self, store: Store, wanted: Collection[int], commit: int) -> dict[int, Found]:
        """What `store.passages` says of each, and perhaps of more; what is kept is forgotten when a later commit comes."""
        with self._lock:
            if commit > self._commit:
                self._forget(commit)
            known = self._found if commit == self._commit else {}
        missing = {number for number in wanted if number not in known}
        if not missing:
            return known
        fresh = store.passages(missing)
        found = fresh | {number: known[number] for number in wanted if number not in missing}
        with self._lock:
            if commit == self._commit:
                self._keep(fresh)
        return found

    def clear(self) -> None:
        with self._lock:
            self._forget(-1)

    def _forget(self, commit: int) -> None:
        self._found, self._bytes, self._commit = {}, 0, commit

    def _keep(self, fresh: dict[int, Found]) -> None:
        """Rows are added to the dictionary that other threads read, and never taken out of it: what goes, goes with a new one."""
        known = self._found
        for number, row in fresh.items():
            if number not in known:  # another thread may have been faster
                known[number] = row
                self._bytes += _size(row)
        if self._bytes > self.limit:
            left = dict(known)
            for number in known:
                if self._bytes <= self.limit * _LEFT:
                    break
                self._bytes -= _size(left.pop(number))
            self._found = left


def _size(row: Found) -> int:
    return _A_ROW + 4 * (len(row[0]) + len(row[1]) + len(row[2]))
