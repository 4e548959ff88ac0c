"""Files that are whole or absent: written beside their place, synced, then renamed over it."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file, read in blocks."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _digest(stream)


def _digest(stream: BinaryIO) -> str:
    # Python 3.10 has no hashlib.file_digest.
    state = hashlib.sha256()
    while block := stream.read(1 << 20):
        state.update(block)
    return state.hexdigest()


def sync_folder(path: Path) -> None:
    """Make a rename inside `path` survive a power cut (a no-op where folders cannot be opened)."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def atomic_file(path: str | Path) -> Iterator[BinaryIO]:
    """A binary stream that becomes `path` when the block ends well, and leaves nothing when it does not."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes 0600; a normal file obeys the umask
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_bytes(path: str | Path, content: bytes) -> None:
    with atomic_file(path) as stream:
        stream.write(content)


def write_text(path: str | Path, content: str) -> None:
    write_bytes(path, content.encode("utf-8"))


def write_json(path: str | Path, content: Any) -> None:
    """JSON with two-space indent; NaN and infinity are refused (ValueError), so no reader ever meets them."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


@contextmanager
def atomic_folder(path: str | Path, *, replace: bool = False) -> Iterator[Path]:
    """A new folder that becomes `path` when the block ends well.

    With `replace` an existing folder is swapped out and removed; without it an existing `path` raises FileExistsError.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not replace:
        raise FileExistsError(str(path))
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))
    try:
        os.chmod(temporary, 0o777 & ~_umask())
        yield temporary
        for folder, _, names in os.walk(temporary):
            for name in names:
                with open(Path(folder) / name, "rb") as stream:
                    os.fsync(stream.fileno())
            sync_folder(Path(folder))
        if path.exists():
            _exchange(temporary, path)
            sync_folder(path.parent)
            shutil.rmtree(temporary, ignore_errors=True)  # now the old folder
        else:
            os.replace(temporary, path)
            sync_folder(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _exchange(new: Path, old: Path) -> None:
    """Swap two folders. One system call on Linux, so there is no moment without a whole folder; elsewhere two renames."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
        if hasattr(libc, "renameat2") and libc.renameat2(here, os.fsencode(new), here, os.fsencode(old), exchange) == 0:
            return
    aside = Path(tempfile.mkdtemp(dir=old.parent, prefix=f".{old.name}.", suffix=".old"))
    os.replace(old, aside / "was")
    os.replace(new, old)
    os.replace(aside / "was", new)
    aside.rmdir()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
