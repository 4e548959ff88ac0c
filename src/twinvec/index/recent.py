"""Rows of hits that were read and checked before: popular documents are found again and again, and SQLite need not be asked each time.

What is kept belongs to one commit. It is bounded by bytes, so that long texts do not fill the memory; the oldest go first.
"""

from __future__ import annotations

from collections.abc import Collection

from twinvec.index.store import Found, Store

KEPT = 64 << 20  # bytes, about
_A_ROW = 400  # bytes of a row beside its characters: three strings, a tuple, a number, a place in the dictionary


class Recent:
    """The passages of one commit's hits by their number. Used under the reader's lock."""

    def __init__(self, kept: int = KEPT) -> None:
        self.limit, self._bytes, self._commit = kept, 0, -1
        self._found: dict[int, Found] = {}

    def passages(self, store: Store, wanted: Collection[int], commit: int) -> dict[int, Found]:
        """What `store.passages` says of each, and perhaps of more; all that is kept is forgotten when the commit is another one."""
        if commit != self._commit:
            self.clear()
            self._commit = commit
        known = self._found
        missing = {number for number in wanted if number not in known}
        if not missing:
            return known
        fresh = store.passages(missing)
        out = fresh | {number: known[number] for number in wanted if number not in missing}
        self._keep(fresh)
        return out

    def clear(self) -> None:
        self._found, self._bytes = {}, 0

    def _keep(self, fresh: dict[int, Found]) -> None:
        known = self._found
        known.update(fresh)
        self._bytes += sum(_size(row) for row in fresh.values())
        while self._bytes > self.limit:
            oldest = next(iter(known))
            self._bytes -= _size(known.pop(oldest))


def _size(row: Found) -> int:
    return _A_ROW + 4 * (len(row[0]) + len(row[1]) + len(row[2]))
