"""One writer at a time, across processes: a lock on a file, which the system lets go when its holder dies."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from twinvec.errors import CollectionError

WAIT = 10.0


@contextmanager
def writer_lock(folder: Path, wait: float = WAIT) -> Iterator[None]:
    """Hold `folder`/lock for the block. CollectionError when another writer keeps it longer than `wait` seconds, or nothing can be written."""
    path = folder / "lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as err:
        raise CollectionError(f"{folder}: cannot be written ({os.strerror(err.errno or 0)}); it can be searched, but not changed, from here") from err
    try:
        _take(handle, folder, wait)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _take(handle: int, folder: Path, wait: float) -> None:
    end = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as err:
            if err.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise CollectionError(f"{folder / 'lock'}: this file system cannot lock files ({os.strerror(err.errno or 0)})") from err
        if time.monotonic() >= end:
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise CollectionError(
                f"{folder}: another process (pid {holder}) is writing to it, and did not finish within {wait:g} s; searching goes on, "
                "to write wait for it to end (or raise wait=)"
            )
        time.sleep(0.02)
