"""`OUTPUT.parts/`: the shards of a job that is not done, so that a killed run goes on where it was.

    manifest.json           what the job is: inputs, options, model; a run with others is refused
    ranges.json             the ranges of int8, once they are known
    shard-000000.arrow ...  vectors (with ids and texts for Parquet), token counts, and a digest of the rows; for a collection shard-000000.json
    lock                    held while a run works here

A shard is written beside its name, synced and renamed: it is there whole or not at all, and shards come in order. Which rows it holds depends on the
input alone. A resumed run reads the input again from the start and compares digests, so a row can neither be lost, doubled, nor changed unseen.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from twinvec.data.blocks import Block
from twinvec.errors import DataError, UsageError
from twinvec.files import atomic_file, sync_folder, write_json
from twinvec.scale.stored import Ranges

FORMAT: Final = 1
KEY: Final = b"twinvec"
Stored = npt.NDArray[Any]


@dataclass(frozen=True)
class Shard:
    """Rows of one block as they are kept. ids and texts may be empty (.npy has no place for them)."""

    vectors: Stored
    counts: npt.NDArray[np.int64]
    ids: list[str]
    texts: list[str]
    notes: dict[str, Any]  # digest, tally


def digest(block: Block) -> str:
    """Of the texts and ids of a block, with their bounds."""
    state = blake2b(digest_size=16)
    for column in (block.texts, block.ids):
        data = [text.encode("utf-8", "surrogatepass") for text in column]
        state.update(np.fromiter(map(len, data), np.int64, len(data)).tobytes())
        state.update(b"".join(data))
    return state.hexdigest()


def record_batch(vectors: Stored, ids: list[str], texts: list[str], counts: npt.NDArray[np.int64] | None = None, notes: Any = None) -> Any:
    """A pyarrow RecordBatch: id and text where there are any, vector, counts where given; `notes` as JSON in the schema."""
    import pyarrow as pa

    columns = {"id": pa.array(ids, pa.string()), "text": pa.array(texts, pa.string())} if ids or texts else {}
    columns["vector"] = _lists(vectors)
    if counts is not None:
        columns["counts"] = _lists(counts.astype(np.int32))
    batch = pa.RecordBatch.from_pydict(columns)
    return batch.replace_schema_metadata({KEY: json.dumps(notes)}) if notes is not None else batch


def _lists(rows: Stored) -> Any:
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])


def as_rows(column: Any, width: int) -> Stored:
    """The numbers (n, width) of a fixed-size list column, without a copy."""
    found: Stored = column.flatten().to_numpy(zero_copy_only=True).reshape(-1, width)
    return found


class Parts:
    """The folder of parts of one output. `open` decides whether there is anything to go on with."""

    def __init__(self, output: Path) -> None:
        self.folder = output.parent / f"{output.name}.parts"
        self.output = output
        self.committed = 0
        self._lock: Any = None
        self.made = False

    @property
    def exists(self) -> bool:
        return (self.folder / "manifest.json").is_file()

    def open(self, manifest: dict[str, Any], resume: bool) -> int:
        """How many shards are there already, after the check that they belong to this job. UsageError says what differs."""
        if self.folder.exists() and not self.folder.is_dir():
            raise UsageError(f"{self.folder} is a file; the parts of {self.output} need a folder of that name, so rename it or choose another output")
        if self.folder.is_dir():
            self._hold()
        if self.exists and resume:
            found = self._manifest()
            unlike = differences(found, manifest)
            if unlike:
                self.close()
                raise UsageError(
                    f"{self.folder} holds {self._count():,} parts of a job that is not done, and this one differs: {'; '.join(unlike)}. "
                    "Give the options it was begun with to go on, or --no-resume to begin again"
                )
            self.committed = self._count()
        elif self.folder.is_dir():
            self._clear()
        self._manifest_now = manifest
        return self.committed

    def begin(self) -> None:
        """Make the folder, before the first commit."""
        if self.made or self.committed:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._hold()
        write_json(self.folder / "manifest.json", self._manifest_now)
        self.made = True

    def _hold(self) -> None:
        """Two runs must not write one output."""
        if self._lock is not None or os.name == "nt":
            return
        import fcntl

        lock = open(self.folder / "lock", "w")  # noqa: SIM115 - held until the run ends
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise UsageError(f"{self.folder} is in use: another run is writing {self.output}; wait for it, or choose another output") from None
        self._lock = lock

    def _manifest(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as err:
            raise DataError(f"{self.folder / 'manifest.json'}: cannot be read; give --no-resume to begin again") from err
        return found

    def _count(self) -> int:
        count = 0
        while self._path(count).is_file() or self._path(count, "json").is_file():
            count += 1
        return count

    def _path(self, number: int, ending: str = "arrow") -> Path:
        return self.folder / f"shard-{number:06d}.{ending}"

    def commit(self, number: int, shard: Shard) -> None:
        """Keep shard `number`, once."""
        import pyarrow as pa

        batch = record_batch(shard.vectors, shard.ids, shard.texts, shard.counts, shard.notes)
        with atomic_file(self._path(number)) as stream, pa.ipc.new_file(stream, batch.schema) as writer:
            writer.write_batch(batch)
        self.committed = number + 1

    def commit_notes(self, number: int, notes: dict[str, Any]) -> None:
        """That shard `number` is in its collection."""
        write_json(self._path(number, "json"), notes)
        self.committed = number + 1

    def notes(self, number: int) -> dict[str, Any]:
        path = self._path(number, "json")
        if path.is_file():
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return found
        return self.read(number).notes

    def read(self, number: int) -> Shard:
        """Shard `number`; its arrays lie in the file (mapped)."""
        batch = self.batch(number)
        texts = "text" in batch.schema.names
        return Shard(
            vectors=as_rows(batch.column("vector"), batch.schema.field("vector").type.list_size),
            counts=as_rows(batch.column("counts"), batch.schema.field("counts").type.list_size).astype(np.int64),
            ids=batch.column("id").to_pylist() if texts else [],
            texts=batch.column("text").to_pylist() if texts else [],
            notes=json.loads(batch.schema.metadata[KEY]),
        )

    def batch(self, number: int) -> Any:
        import pyarrow as pa

        path = self._path(number)
        try:
            with pa.memory_map(str(path)) as source:
                return pa.ipc.open_file(source).get_batch(0)
        except (pa.ArrowException, OSError) as err:
            raise DataError(f"{path}: cannot be read ({err}); give --no-resume to begin again") from err

    def batches(self) -> Iterator[Any]:
        for number in range(self.committed):
            yield self.batch(number)

    def keep_ranges(self, ranges: Ranges) -> None:
        write_json(self.folder / "ranges.json", ranges.to_dict())

    def ranges(self, dimensions: int) -> Ranges:
        path = self.folder / "ranges.json"
        try:
            return Ranges.from_dict(json.loads(path.read_text(encoding="utf-8")), str(path), dimensions)
        except (OSError, ValueError) as err:
            raise DataError(f"{path}: cannot be read ({err}); give --no-resume to begin again") from err

    def become(self, whole: Path) -> None:
        """Put the finished file in its place; it lies in the folder of parts, so nothing is left elsewhere by a kill."""
        with open(whole, "rb") as stream:
            os.fsync(stream.fileno())
        os.replace(whole, self.output)
        sync_folder(self.output.parent)

    def _clear(self) -> None:
        for path in self.folder.iterdir():
            if path.name != "lock":
                path.unlink()

    def remove(self) -> None:
        """Take the folder away."""
        if self.folder.is_dir() and self._lock is not None:
            # The manifest first: without it the rest counts for nothing.
            (self.folder / "manifest.json").unlink(missing_ok=True)
            shutil.rmtree(self.folder, ignore_errors=True)
        self.close()

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def differences(was: dict[str, Any], now: dict[str, Any], path: str = "") -> list[str]:
    """'store was float32, is int8' for each value that differs. Times of files may: every row is compared by digest."""
    out = []
    for key in dict.fromkeys([*now, *was]):
        name = f"{path}{key}"
        old, new = was.get(key), now.get(key)
        if key == "mtime" or old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            out += differences(old, new, f"{name} ")
        elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
            out += differences({str(i + 1): value for i, value in enumerate(old)}, {str(i + 1): value for i, value in enumerate(new)}, f"{name} ")
        else:
            out.append(f"{name} was {_shown(old)}, is {_shown(new)}")
    return out


def _shown(value: Any) -> str:
    return "not given" if value is None else str(value)[:60]
