"""Killed, shared, on a full disk: a collection opens at its last commit, whole."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from index_fakes import FakeEncoder

from twinvec.errors import CollectionError
from twinvec.index import segments as files
from twinvec.index.collection import Collection
from twinvec.index.store import Store

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
ROOT = Path(__file__).resolve().parents[2]
TEXTS = {"a": "red apple", "b": "green apple", "c": "old house", "d": "红 苹果", "e": ""}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Five documents (one without text), one replaced, one deleted; closed."""
    with Collection.create(tmp_path / "c", FakeEncoder()) as collection:
        collection.add([(name, "before" if name == "b" else text) for name, text in TEXTS.items()] + [("gone", "gone")])
        collection.add([("b", TEXTS["b"])])
        collection.delete("gone")
    return tmp_path / "c"


def state(collection: Collection) -> dict[str, str]:
    return {name: collection.get(name).text for name in collection.ids()}  # type: ignore[union-attr]


def in_child(work: Callable[[], None]) -> int:
    """Run in a forked child that ends without cleaning up; its pid."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as err:
            print(f"child: {type(err).__name__}: {err}", file=sys.stderr)
            os._exit(1)
    return child


def end_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def dying_after(lines: int) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that ends the process, as kill -9 would, at the n-th line run inside the index."""
    left = [lines]

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if "/twinvec/index/" not in name and not name.endswith(("/twinvec/files.py", "/contextlib.py")):
            return None
        if event == "line":
            left[0] -= 1
            if left[0] <= 0:
                os._exit(9)
        return trace

    return trace


def test_killed_at_any_line_of_add_and_delete(place: Path) -> None:
    new = {"a": "red apple pie", "x": "new words", "y": ""}
    states = [dict(TEXTS), {**TEXTS, **new}, {key: text for key, text in {**TEXTS, **new}.items() if key not in ("c", "y")}]

    def work(lines: int) -> Callable[[], None]:
        def run() -> None:
            collection = Collection.open(place, FakeEncoder(), verify=False)
            sys.settrace(dying_after(lines))
            collection.add(list(new.items()))
            collection.delete(["c", "y"])
            sys.settrace(None)

        return run

    copy = place.with_name("copy")
    seen, lines, finished = set(), 1, False
    while not finished:
        shutil.copytree(place, copy)
        original, place = place, copy
        finished = end_of(in_child(work(lines))) == 0
        place = original
        with Collection.open(copy, FakeEncoder(), verify=True) as collection:
            now = state(collection)
            assert now in states, f"killed at line {lines}"
            seen.add(states.index(now))
            collection.add([("after", "the next writer carries on")])
            assert collection.verify()["orphans"] == []
            hits = collection.search(FakeEncoder().encode([now["a"]]), 9)[0]
            assert {hit.id for hit in hits} == {name for name, text in {**now, "after": "x"}.items() if text}
        shutil.rmtree(copy)
        lines += 67
    assert seen == {0, 1, 2}
    assert lines > 300  # the trace did see the work


CHILD = """
import sys
sys.path[:0] = [{tests!r}]
from index_fakes import FakeEncoder
from twinvec.index.collection import Collection
collection = Collection.open(sys.argv[1], FakeEncoder())
for i in range(int(sys.argv[2]), 10_000):
    collection.add([(f"{{i}}-{{j}}", f"document {{i}} {{j}}") for j in range(7)])
    print(i, flush=True)
"""


def test_kill_9_in_the_middle_of_adding(tmp_path: Path) -> None:
    Collection.create(tmp_path / "c", FakeEncoder()).close()
    script = CHILD.format(tests=str(Path(__file__).parent))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done, chance = 0, random.Random(4)
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "c"), str(done)], stdout=subprocess.PIPE, text=True, env=environment
        ) as child:
            assert child.stdout is not None
            first = int(child.stdout.readline())
            time.sleep(chance.uniform(0.02, 0.3))
            child.kill()
            told = [first, *map(int, child.stdout.read().split())]
        assert child.returncode == -signal.SIGKILL
        with Collection.open(tmp_path / "c", verify=True) as collection:
            names = collection.ids()
            whole = {int(name.split("-")[0]) for name in names}
            assert set(told) <= whole  # what was acknowledged is there
            assert len(names) == 7 * len(whole)  # and nothing is there by halves
            assert len(collection.search(np.ones(32), 10**6)[0]) == len(names)
        assert len(whole) > done
        done = max(whole) + 1


def test_many_kills_with_a_reader_beside(place: Path) -> None:
    chance = random.Random(11)
    with Collection.open(place) as reader:
        for round_ in range(12):

            def write(round_: int = round_) -> None:
                collection = Collection.open(place, FakeEncoder(), verify=False)
                for i in range(10_000):
                    collection.add([(f"{round_}-{i}-{j}", f"words {i}") for j in range(3)])

            before = len(reader)
            child = in_child(write)
            end = time.monotonic() + chance.uniform(0.05, 0.25)
            while time.monotonic() < end:
                assert len(reader.search(np.ones(32), 10**6)[0]) % 3 == 1  # whole commits, at any time
            os.kill(child, signal.SIGKILL)
            assert end_of(child) == -signal.SIGKILL
            assert len(reader) >= before
        assert (len(reader) - 5) % 3 == 0
        assert len(reader) > 5
        reader.verify()
    with Collection.open(place, FakeEncoder()) as collection:
        collection.add([("last", "one")])
        assert collection.verify()["orphans"] == []


def test_two_writers_take_turns(tmp_path: Path) -> None:
    Collection.create(tmp_path / "c", FakeEncoder()).close()

    def write(who: str) -> Callable[[], None]:
        def run() -> None:
            collection = Collection.open(tmp_path / "c", FakeEncoder(), wait=60)
            for i in range(12):
                collection.add([(f"{who}{i}", f"words of {who}"), ("shared", f"{who} {i}")])

        return run

    children = [in_child(write("x")), in_child(write("y"))]
    assert [end_of(child) for child in children] == [0, 0]
    with Collection.open(tmp_path / "c", verify=True) as collection:
        assert len(collection) == 25
        assert collection.get("shared").text in ("x 11", "y 11")  # type: ignore[union-attr]
        assert len(collection.search(np.ones(32), 99)[0]) == 25


def test_a_second_writer_is_told_who_writes(place: Path) -> None:
    with Collection.open(place, FakeEncoder()) as first, Collection.open(place, FakeEncoder(), wait=0.05) as second:

        def stream() -> Iterator[tuple[str, str]]:
            yield "n1", "new words"
            with pytest.raises(CollectionError, match=rf"another process \(pid {os.getpid()}\) is writing .* within 0.05 s"):
                second.add([("n2", "x")])
            with pytest.raises(CollectionError, match="is writing"):
                second.delete("a")
            assert len(second.search(np.ones(32), 3)[0]) == 3  # reading goes on

        first.add(stream())
        assert second.add([("n2", "x")]).added == 1
        assert "n2" in first


def test_orphans_of_a_killed_writer_go_with_the_next_write(place: Path) -> None:
    for name in ("00000099.npy", ".00000098.npy.abcd.tmp"):
        (place / "segments" / name).write_bytes(b"half")
    (place / "segments" / "notes.txt").write_text("not ours")
    with Collection.open(place, FakeEncoder()) as collection:
        assert collection.verify()["orphans"] == [".00000098.npy.abcd.tmp", "00000099.npy"]
        collection.add([("n", "new")])
        assert sorted(path.name for path in (place / "segments").iterdir()) == ["00000000.npy", "00000001.npy", "00000002.npy", "notes.txt"]


def test_files_are_synced_before_the_commit_that_names_them(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    sync, put = os.fsync, Store.put_segment

    def fsync(handle: int) -> None:
        events.append("sync " + Path(os.readlink(f"/proc/self/fd/{handle}")).name.split(".npy")[0].lstrip("."))
        sync(handle)

    def put_segment(self: Store, segment: files.Segment) -> None:
        events.append(f"name {segment.file}")
        put(self, segment)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Store, "put_segment", put_segment)
    with Collection.open(place, FakeEncoder()) as collection:
        collection.add([("n", "new")])
        with collection._writing() as writer:
            store = writer.store
            assert store.db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL: the log is synced at every commit
            assert store.db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert events == ["sync 00000002", "sync segments", "name 00000002.npy"]


def test_a_commit_that_fails_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Collection.open(place, FakeEncoder()) as collection:
        for error in (KeyboardInterrupt(), sqlite3.OperationalError("database or disk is full")):

            def fail(*_: Any, error: BaseException = error) -> None:
                raise error

            with monkeypatch.context() as patch:
                patch.setattr(Store, "put_passages", fail)
                with pytest.raises((KeyboardInterrupt, CollectionError), match=r"^$|collection.db: could not be written .*make room"):
                    collection.add([("a", "changed"), ("n", "new")])
            assert state(collection) == TEXTS
            assert collection.verify()["orphans"] == []


def test_disk_full_is_said_before_and_while_writing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Collection.open(place, FakeEncoder()) as collection:
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))
            with pytest.raises(CollectionError, match=r"00000002.npy: the disk has 0 MB free, this batch needs 16 MB; make room"):
                collection.add([("n", "new")])
        with monkeypatch.context() as patch:

            def full(_: int) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            patch.setattr(os, "fsync", full)
            with pytest.raises(CollectionError, match=r"00000002.npy: could not be written \(No space left on device\); nothing of this batch"):
                collection.add([("n", "new")])
        assert state(collection) == TEXTS
        assert collection.verify()["orphans"] == []
        collection.add([("n", "new")])
        assert "n" in collection


def test_a_cold_copy_is_a_whole_collection(place: Path) -> None:
    assert sorted(path.name for path in place.iterdir()) == ["collection.db", "lock", "segments"]  # no log is left behind by a closed one
    copy = place.with_name("other")
    shutil.copytree(place, copy)
    with Collection.open(copy, verify=True) as collection:
        assert state(collection) == TEXTS


def test_a_folder_without_write_rights_is_searched_and_not_changed() -> None:
    with tempfile.TemporaryDirectory() as outer:
        os.chmod(outer, 0o755)
        path = Path(outer) / "c"
        with Collection.create(path, FakeEncoder()) as collection:
            collection.add(list(TEXTS.items()))
        query = FakeEncoder().encode(["old house"])
        for item in (path / "segments", path):
            os.chmod(item, 0o555)

        def read() -> None:
            if os.getuid() == 0:
                os.setuid(65534)  # root may write anywhere
            with Collection.open(path, FakeEncoder()) as collection:
                assert collection.ids() == sorted(TEXTS)
                assert collection.get("c").text == "old house"  # type: ignore[union-attr]
                for change in (lambda: collection.add([("n", "new")]), lambda: collection.delete("a")):
                    with pytest.raises(CollectionError, match=r"cannot be written .*; it can be searched, but not changed"):
                        change()
                assert collection.search(query, 1)[0][0].id == "c"

        try:
            assert end_of(in_child(read)) == 0
        finally:
            for item in (path, path / "segments"):
                os.chmod(item, 0o755)
