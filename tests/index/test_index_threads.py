"""Threads that share one collection: side by side, each in one commit, nothing left behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinvec.index import collection as module
from twinvec.index.collection import Collection

ROWS, DIMENSIONS = 60, 8


def vectors_of(version: int) -> np.ndarray:
    return np.random.default_rng(version).standard_normal((ROWS, DIMENSIONS)).astype(np.float32)


@pytest.fixture
def made(tmp_path: Path) -> Collection:
    found = Collection.create(tmp_path / "c", "model", dimensions=DIMENSIONS)
    found.add([(f"{i}", "version 0", {"version": 0}) for i in range(ROWS)], vectors_of(0))
    return found


@pytest.mark.parametrize("ask", [
    lambda c: c.search(np.ones(DIMENSIONS), 3), lambda c: c.lexical("version", 3), lambda c: c.search(np.ones(DIMENSIONS), 3, where="version = 0"),
], ids=["dense", "words", "filter"])  # fmt: skip
def test_two_searches_run_at_the_same_time(made: Collection, ask: Callable[[Collection], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    alone, meeting = ask(made), threading.Barrier(2, timeout=20)

    def waits(real: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **named: Any) -> Any:
            meeting.wait()  # inside the snapshot: neither goes on before both are there
            return real(*args, **named)

        return run

    for name in ("dense", "by_words"):
        monkeypatch.setattr(module, name, waits(getattr(module, name)))
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: ask(made), range(2))) == [alone, alone]
    assert len(made._reader.idle) == 2


def test_hits_are_of_one_commit_each(made: Collection) -> None:
    """Text, metadata, vector and filter of a hit belong together, however the writer and the readers meet."""
    truth = {}
    query = np.ones(DIMENSIONS)
    for version in range(12):
        stored = vectors_of(version).astype(np.float64)
        scores = stored @ query / np.linalg.norm(stored, axis=1) / np.linalg.norm(query)
        truth[version] = {f"{i}": score for i, score in enumerate(scores.tolist())}
    stop = threading.Event()
    seen: set[int] = set()

    def look(number: int) -> int:
        count = 0
        while not stop.is_set() or not count:
            where = f"version >= {number}" if number else None
            hits = made.search(query, ROWS, where=where)[0]
            versions = {hit.metadata["version"] for hit in hits}
            assert len(versions) == 1 or (where and not hits)
            assert len(hits) in ((ROWS,) if not where else (0, ROWS))
            for hit in hits:
                version = hit.metadata["version"]
                assert hit.text == f"version {version}"
                assert hit.score == pytest.approx(truth[version][hit.id], abs=1e-6)
            assert len(made.lexical(f"{max(versions, default=0)}", ROWS)[0]) in (0, ROWS)
            seen.update(versions)
            count += 1
        return count

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(look, number) for number in (0, 0, 3, 6)]
        for version in range(1, 12):
            made.upsert([(f"{i}", f"version {version}", {"version": version}) for i in range(ROWS)], vectors_of(version))
        stop.set()
        assert all(future.result() for future in running)
    assert 11 in seen or made.search(query, 1)[0][0].metadata["version"] == 11


def test_connections_are_used_again_and_closed(made: Collection) -> None:
    limit = 8
    meeting = threading.Barrier(2 * limit, timeout=20)

    def hold(_: int) -> int:
        with made._reader.snapshot() as (store, _):
            meeting.wait()
            return int(store.counter("commit"))

    with ThreadPoolExecutor(2 * limit) as pool:
        assert set(pool.map(hold, range(2 * limit))) == {1}
    idle = list(made._reader.idle)
    assert len(idle) == limit
    for _ in range(3):
        made.search(np.ones(DIMENSIONS), 1)
    assert set(map(id, made._reader.idle)) == set(map(id, idle))
    with made._reader.snapshot() as (store, _):
        made.close()
        assert store.counter("commit") == 1  # what is in use stays open
    assert made._reader.idle == []
    for one in [*idle, store]:
        with pytest.raises(Exception, match="closed"):
            one.db.execute("SELECT 1")
    assert len(made.search(np.ones(DIMENSIONS), 2)[0]) == 2  # and the collection opens again


def test_a_connection_that_is_behind_begins_again(made: Collection, tmp_path: Path) -> None:
    reader = made._reader
    made.search(np.ones(DIMENSIONS), 1)
    with reader.snapshot() as (old, _):
        made.upsert([("0", "version 1", {"version": 1})], vectors_of(1)[:1])
        with reader.snapshot() as (_, state):
            assert state.commit == 2
        assert old.counter("commit") == 1
        assert reader._state(old, 1, again=False) is None
        assert reader.state is state
        before = reader._state(old, 1, again=True)  # a copy from before that was put back: read afresh
        assert before is not None
        assert (before.commit, len(before.blocks.dead)) == (1, 0)
    assert made.search(np.ones(DIMENSIONS), ROWS)[0] == Collection.open(made.path).search(np.ones(DIMENSIONS), ROWS)[0]


def test_a_flat_copy_grows_only_while_nobody_searches_it(made: Collection) -> None:
    query = np.ones(DIMENSIONS)
    made.search(query, 3, kind="flat")
    before = made.search(query, ROWS, kind="flat")
    with made._reader.snapshot() as (_, old):
        assert old.flat is not None
        made.add([("new", "a new text")], query)
        assert made.search(query, 1, kind="flat")[0][0].id == "new"
        assert old.flat.index.ntotal == ROWS  # a search of the older commit may be at work in it
        assert made._reader.state is not None
        assert made._reader.state.flat is not None
        alone = made._reader.state.flat.index
    made.add([("newer", "a newer text")], 2 * query)
    assert {hit.id for hit in made.search(query, 2, kind="flat")[0]} == {"new", "newer"}
    assert made._reader.state.flat.index is alone  # nobody else is there: the rows were added to it
    assert [hit.id for hit in made.search(query, ROWS + 2, kind="flat")[0][2:]] == [hit.id for hit in before[0]]


def test_what_threads_share_is_whole_when_they_see_it(tmp_path: Path) -> None:
    """A mask of what may be found without the dead rows in it yet would let another thread find them."""
    from index_rows import clustered

    rows = clustered(2000, 16)
    with Collection.create(tmp_path / "c", "model", dimensions=16) as collection:
        collection.add([(f"{i}", "text") for i in range(len(rows))], rows)
        collection.optimize(kind="ivf")
        collection.delete([f"{i}" for i in range(0, 2000, 7)])
        collection.search(rows[:1], 1)
        state = collection._reader.state
        assert state is not None
        seen: dict[Any, Any] = {}

        class Watched(dict[Any, Any]):
            def __setitem__(self, key: Any, value: Any) -> None:
                seen[key] = value.copy() if isinstance(value, np.ndarray) else value
                super().__setitem__(key, value)

        state.kept = Watched()
        collection.search(rows[:1], 1)
        masks = {key: value for key, value in seen.items() if isinstance(value, np.ndarray)}
        assert masks
        for key, mask in masks.items():
            assert np.array_equal(mask, state.kept[key])
            assert not mask[state.blocks.dead].any()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_in_the_middle_of_other_searches(made: Collection) -> None:
    from twinvec.index.ann import threads

    entered, leave = threading.Event(), threading.Event()

    def busy() -> None:
        with made._reader.snapshot(), threads.bounded():
            entered.set()
            leave.wait(20)

    other = threading.Thread(target=busy)
    other.start()
    assert entered.wait(20)
    child = os.fork()
    if child == 0:
        with threads.bounded():  # the parent's thread does not exist here, nor do its cores
            os._exit(0 if len(made.search(np.ones(DIMENSIONS), 4)[0]) == 4 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    leave.set()
    other.join()
