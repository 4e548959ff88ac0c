"""Killed at any line of any kind of work, and a power cut that loses what was not synced: the collection opens at a commit, whole."""

from __future__ import annotations

import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from index_fakes import FakeEncoder
from test_index_durability import dying_after, end_of, in_child

from twinvec import files as base_files
from twinvec.errors import CollectionError
from twinvec.index.collection import Collection

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
PARTS = 9  # kills a kind of work
OTHER = FakeEncoder("other", 16)
TEXTS = {f"d{i}": f"red apple number{i} of words{i % 4}" for i in range(24)}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with Collection.create(tmp_path / "c", FakeEncoder()) as collection:
        collection.add([(name, text, {"n": i}) for i, (name, text) in enumerate(TEXTS.items())], batch=8)
        collection.add([(name, TEXTS[name] + " again") for name in ("d1", "d9")])
        collection.delete(["d2", "d3", "d4"])
    return tmp_path / "c"


State = dict[str, tuple[str, int | None]]


def state(collection: Collection) -> State:
    found = [collection.get(name) for name in collection.ids()]
    return {document.id: (document.text, document.metadata.get("n")) for document in found if document is not None}


def update(collection: Collection) -> None:
    collection.update("d5", text="wholly other", metadata={"n": -5})
    collection.update("d6", metadata={"n": -6})


def delete(collection: Collection) -> None:
    collection.delete(where="n >= 20")


def passages(collection: Collection) -> None:
    collection.add(
        [("long", "A sentence of words. " * 9), ("d7", "B sentence of words. " * 9)], on_long="passages", passage_tokens=9, passage_overlap=2
    )


def compact(collection: Collection) -> None:
    collection.compact()


def reindex(collection: Collection) -> None:
    collection.reindex(OTHER, batch=7)


def optimize(collection: Collection) -> None:
    collection.optimize("flat")
    collection.optimize("ivf", 0.9)
    collection.compact()


WORK = {"update": update, "delete": delete, "passages": passages, "compact": compact, "reindex": reindex, "optimize": optimize}


def whole(path: Path, allowed: list[State]) -> int:
    """The number of the state that the collection is in; it is checked in every way."""
    fingerprints = {encoder.fingerprint: encoder for encoder in (FakeEncoder(), OTHER)}
    with Collection.open(path, verify=True) as asked:
        encoder = fingerprints[asked.fingerprint]
    with Collection.open(path, encoder) as collection:
        now = state(collection)
        assert now in allowed
        hits = collection.search(encoder.encode([now["d1"][0]]), 99)[0]
        assert sorted(hit.id for hit in hits) == sorted(now)
        assert hits[0].id == "d1"
        assert collection.lexical("number8", 9)[0][0].id == "d8"
        collection.add([("after", "the next writer carries on")])
        assert collection.verify()["orphans"] == []
    return allowed.index(now)


def expected(place: Path, work: str, copy: Path) -> list[State]:
    """States before, between and after the commits of this work."""
    shutil.copytree(place, copy)
    with Collection.open(copy, FakeEncoder()) as collection:
        states = [state(collection)]
        if work == "update":
            collection.update("d5", text="wholly other", metadata={"n": -5})
            states.append(state(collection))
        WORK[work](collection)
        states.append(state(collection))
    shutil.rmtree(copy)
    return states


@pytest.mark.parametrize("work", list(WORK))
def test_killed_at_any_line(place: Path, work: str) -> None:
    copy = place.with_name("copy")
    allowed = expected(place, work, copy)
    chance, seen, lines, most = random.Random(5), set(), 1, 0
    # The work's length in lines, measured once; then it is cut in each part of it.
    counted = place.with_name("lines")

    def count() -> None:
        collection = Collection.open(place.with_name("copy"), FakeEncoder(), verify=False)
        total = [0]

        def trace(frame: Any, event: str, argument: Any) -> Any:
            if "/twinvec/index/" not in frame.f_code.co_filename and not frame.f_code.co_filename.endswith(("/twinvec/files.py", "/contextlib.py")):
                return None
            total[0] += event == "line"
            return trace

        sys.settrace(trace)
        WORK[work](collection)
        sys.settrace(None)
        counted.write_text(str(total[0]))

    shutil.copytree(place, copy)
    assert end_of(in_child(count)) == 0
    shutil.rmtree(copy)
    most = int(counted.read_text())
    assert most > 100
    for part in range(PARTS):
        lines = 1 + most * part // PARTS + chance.randrange(max(1, most // PARTS))
        shutil.copytree(place, copy)

        def run(lines: int = lines) -> None:
            collection = Collection.open(copy, FakeEncoder(), verify=False)
            sys.settrace(dying_after(lines))
            WORK[work](collection)
            sys.settrace(None)

        assert end_of(in_child(run)) in (0, 9)
        seen.add(whole(copy, allowed))
        shutil.rmtree(copy)
    assert 0 in seen


class Disk:
    """Which files and folders were synced, as the child's log says; what was not may be lost by a power cut."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def watch(self) -> None:
        """In the child: log every sync and every rename of twinvec.files."""
        handle = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        sync, rename = os.fsync, os.replace

        def fsync(number: int) -> None:
            sync(number)
            os.write(handle, f"sync {os.fstat(number).st_ino} {os.fstat(number).st_size}\n".encode())

        def replace(old: Any, new: Any) -> None:
            rename(old, new)
            os.write(handle, f"name {os.stat(new).st_ino}\n".encode())

        base_files.os.fsync, base_files.os.replace = fsync, replace  # type: ignore[assignment]

    def cut(self, folder: Path, chance: random.Random) -> int:
        """Lose what was not synced. How many things were lost."""
        lines = [line.split() for line in self.log.read_text().splitlines()] if self.log.exists() else []
        place = folder / "segments"
        safe = {int(line[1]) for line in lines if line[0] == "sync"}
        synced = max((i for i, line in enumerate(lines) if line[0] == "sync" and int(line[1]) == place.stat().st_ino), default=-1)
        named = {int(line[1]): i for i, line in enumerate(lines) if line[0] == "name"}
        lost = 0
        for path in [*place.iterdir()]:
            number = path.stat().st_ino
            if number in named and named[number] > synced:  # the new name was not synced
                path.unlink()
                lost += 1
            elif (number in named or path.name.endswith(".tmp")) and number not in safe:
                path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size + 1)])
                lost += 1
        return lost + self._log(folder / "collection.db-wal", chance)

    @staticmethod
    def _log(path: Path, chance: random.Random) -> int:
        """SQLite syncs its log at every commit; frames behind the last commit may be lost or garbled."""
        if not path.exists() or path.stat().st_size < 32:
            return 0
        content = bytearray(path.read_bytes())
        page = int.from_bytes(content[8:12], "big")
        salts, at, end = content[16:24], 32, 32
        while at + 24 + page <= len(content) and content[at + 8 : at + 16] == salts:
            at += 24 + page
            if int.from_bytes(content[at - page - 20 : at - page - 16], "big"):
                end = at
        if end == len(content):
            return 0
        for i in range(end, len(content)):
            content[i] = chance.randrange(256)
        path.write_bytes(content[: chance.randrange(end, len(content) + 1)])
        return 1


@pytest.mark.parametrize("work", ["passages", "compact", "reindex", "optimize"])
def test_a_power_cut_loses_nothing_that_was_committed(place: Path, work: str) -> None:
    copy, chance, lost = place.with_name("copy"), random.Random(8), 0
    allowed = expected(place, work, copy)
    for round_ in range(6):
        shutil.copytree(place, copy)
        disk = Disk(place.with_name(f"log{round_}"))
        lines = chance.randrange(50, 4000)

        def run(disk: Disk = disk, lines: int = lines) -> None:
            disk.watch()
            collection = Collection.open(copy, FakeEncoder(), verify=False)
            sys.settrace(dying_after(lines))
            WORK[work](collection)
            sys.settrace(None)

        assert end_of(in_child(run)) in (0, 9)
        lost += disk.cut(copy, chance)
        whole(copy, allowed)
        shutil.rmtree(copy)
    assert lost >= 0


def test_the_power_cut_test_sees_a_missing_sync(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without syncs the same loss breaks the collection: the simulation loses what it should."""
    disk = Disk(place.with_name("log"))

    def run() -> None:
        disk.watch()
        base_files.os.fsync = lambda number: None  # type: ignore[assignment]
        Collection.open(place, FakeEncoder(), verify=False).add([("new", "text")])

    assert end_of(in_child(run)) == 0
    assert disk.cut(place, random.Random(0)) >= 1
    with pytest.raises(Exception, match=r"missing|damaged"):
        Collection.open(place)


def test_a_read_only_folder_refuses_every_kind_of_work(place: Path) -> None:
    for item in (place / "segments", place):
        os.chmod(item, 0o555)

    def refused() -> None:
        if os.getuid() == 0:
            os.setuid(65534)
        with Collection.open(place, FakeEncoder()) as collection:
            assert len(collection.search(np.ones(32), 99)[0]) == 21
            for work in WORK.values():
                with pytest.raises(Exception, match=r"cannot be written .*; it can be searched, but not changed"):
                    work(collection)

    try:
        os.chmod(place.parents[0], 0o755)
        for folder in place.parents:
            if folder.stat().st_uid == os.getuid() and str(folder).startswith("/tmp/pytest"):
                os.chmod(folder, 0o755)
        assert end_of(in_child(refused)) == 0
    finally:
        for item in (place, place / "segments"):
            os.chmod(item, 0o755)


@pytest.mark.parametrize("work", ["compact", "reindex", "passages"])
def test_a_full_disk_is_said_before_anything_is_written(place: Path, work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Collection.open(place, FakeEncoder()) as collection:
        before = state(collection)
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))
            with pytest.raises(CollectionError, match=r"\.npy: the disk has 0 MB free, .* needs 16 MB; make room"):
                WORK[work](collection)
        assert state(collection) == before
        assert collection.verify()["orphans"] == []
        WORK[work](collection)
        collection.verify()


@pytest.mark.parametrize("name", ["numbers", "scales", "ranges"])
def test_files_beside_a_segment_are_checked_too(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(0)
    with Collection.create(tmp_path / "c", "print", store="int8") as collection:
        collection.add([(f"{i:04d}", "x") for i in range(1100)], rng.standard_normal((1100, 8)))
        collection.delete([f"{i:04d}" for i in range(0, 1100, 3)])
        collection.compact()
    path = next((tmp_path / "c" / "segments").glob(f"*.{name}.npy"))
    content = path.read_bytes()
    path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    with pytest.raises(CollectionError, match=rf"\.{name}\.npy: damaged, its content is not what was written"):
        Collection.open(tmp_path / "c")
    path.unlink()
    with pytest.raises(CollectionError, match=rf"\.{name}\.npy: missing \({name} of 733 vectors\)"):
        Collection.open(tmp_path / "c")
