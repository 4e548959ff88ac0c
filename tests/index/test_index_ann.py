"""Approximate kinds against a plain float64 ranking: recall that was promised, hits that never fall short, answers that do not waver."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from index_rows import clustered, commit, nearest, recall

from twinvec.errors import CollectionError, UsageError
from twinvec.index import ann
from twinvec.index.ann import approximate, plan
from twinvec.index.searching import KINDS, State, search

pytestmark = pytest.mark.usefixtures("one_thread")

APPROXIMATE = ["ivf", "ivfpq", "hnsw"]
ROWS, NEW, DIMENSIONS = 4000, 300, 32


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return clustered(ROWS + NEW, DIMENSIONS)


@pytest.fixture(scope="module")
def queries() -> np.ndarray:
    return clustered(200, DIMENSIONS, seed=5).astype(np.float64)


@pytest.fixture(scope="module")
def built(rows: np.ndarray) -> dict[str, ann.Built]:
    torch.set_num_threads(1)
    return {kind: ann.build(ann.ArrayRows(rows[:ROWS]), kind) for kind in APPROXIMATE}


@pytest.fixture
def state(rows: np.ndarray, built: dict[str, ann.Built], tmp_path: Path, request: pytest.FixtureRequest) -> State:
    return commit(rows[:ROWS], tmp_path, built[request.param], covered=ROWS)


def ask(state: State, queries: np.ndarray, k: int = 10, share: float | None = None, **options: object) -> np.ndarray:
    return search(state, queries, k, kind="auto", metric="cosine", recall=share, **options).rows  # type: ignore[arg-type]


every_kind = pytest.mark.parametrize("state", APPROXIMATE, indirect=True)


@every_kind
def test_recall_reaches_what_is_asked_and_is_written_down(state: State, rows: np.ndarray, queries: np.ndarray) -> None:
    wanted = nearest(queries, rows[:ROWS], 10)
    detail = json.loads(state.indexed[0].file.detail)
    assert detail["queries"] == 400  # a tenth of the rows, up to 1,000
    tuned = {entry["target"]: entry for entry in detail["tuned"] if entry["hits"] == 10}
    assert list(tuned) == list(plan.TARGETS)
    for target, entry in tuned.items():
        assert entry["parameters"] is not None
        assert entry["recall"] >= target
        assert entry["rate"] > 0
        assert recall(ask(state, queries, 10, target), wanted) >= target - 0.02  # other queries than the tuning's
    assert recall(ask(state, queries), wanted) >= 0.93  # 0.95 is the default
    assert ask(state, queries, 10, 1.0).tolist() == wanted
    assert ask(state, queries, 10, 0.999).tolist() == wanted  # above what was tuned: exact


@every_kind
def test_scores_are_those_of_exact_search(state: State, queries: np.ndarray) -> None:
    found = search(state, queries, 10, kind="auto", metric="cosine")
    exact = search(state, queries, 10, kind="exact", metric="cosine")
    true = [dict(zip(r, s, strict=True)) for r, s in zip(exact.rows.tolist(), exact.scores.tolist(), strict=True)]
    for i, (row, score) in enumerate(zip(found.rows.tolist(), found.scores.tolist(), strict=True)):
        assert score == sorted(score, reverse=True)
        assert all(s == true[i][r] for r, s in zip(row, score, strict=True) if r in true[i])
        assert max(score) <= 1.0


@every_kind
def test_batches_threads_and_order_change_nothing(state: State, queries: np.ndarray) -> None:
    whole = search(state, queries, 10, kind="auto", metric="cosine")
    for count in (1, 2, 7, 33):
        part = search(state, queries[:count], 10, kind="auto", metric="cosine")
        assert np.array_equal(part.rows, whole.rows[:count])
        assert np.array_equal(part.scores, whole.scores[:count])
    assert np.array_equal(ask(state, queries[::-1].copy())[::-1], whole.rows)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert np.array_equal(ask(state, queries), whole.rows)
    finally:
        torch.set_num_threads(before)


@every_kind
@pytest.mark.parametrize(("recall", "far"), [(0.8, 0), (0.8, ROWS + 1), (0.95, ROWS + 1)])
def test_top_k_is_a_prefix_of_top_more(state: State, queries: np.ndarray, recall: float, far: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from 10 hits to 20 and from 100 to 101, where an index looks further than before: a second page neither repeats nor loses a hit."""
    monkeypatch.setattr(approximate, "_FAR", far)
    whole = search(state, queries[:60], 700, kind="auto", metric="cosine", recall=recall)
    assert np.all(np.diff(whole.scores, axis=1) <= 0)
    for k in (1, 2, 9, 10, 11, 20, 99, 100, 101, 250):
        assert np.array_equal(ask(state, queries[:60], k, recall), whole.rows[:, :k])


@every_kind
@pytest.mark.parametrize("k", [1, 10, 100, 700, ROWS, ROWS + 7])
def test_never_short_and_never_minus_one(state: State, queries: np.ndarray, k: int) -> None:
    found = ask(state, queries[:3], k, 0.8)
    assert found.shape == (3, min(k, ROWS))
    assert found.min() >= 0
    assert all(len(set(line)) == len(line) for line in found.tolist())


@every_kind
def test_a_list_that_holds_less_than_k_is_filled_up_exactly(state: State, queries: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    index = state.indexed[0].opened()
    real = index.candidates

    def fewer(*args: object) -> object:
        scores, rows = real(*args)  # type: ignore[arg-type,misc]
        rows[::2, 4:] = -1
        return scores, rows

    monkeypatch.setattr(index, "candidates", fewer)
    found = ask(state, queries[:6])
    assert found.min() >= 0
    assert found[::2].tolist() == search(state, queries[:6:2], 10, kind="exact", metric="cosine").rows.tolist()


@every_kind
@pytest.mark.parametrize("name", ["none", "one", "few", "half", "topic", "all but a topic"])
def test_filters_keep_recall_and_hits(state: State, rows: np.ndarray, queries: np.ndarray, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approximate, "_SUBSET", 50)  # so that larger filters go through the index
    near = rows[:ROWS] @ queries[0].astype(np.float32) > 0.2
    masks = {
        "none": np.zeros(ROWS, dtype=bool), "one": np.arange(ROWS) == 77, "few": np.arange(ROWS) % 400 == 0, "half": np.arange(ROWS) % 2 == 0,
        "topic": near, "all but a topic": ~near,
    }  # fmt: skip
    allowed = np.flatnonzero(masks[name])
    found = ask(state, queries, 10, 0.95, allowed=allowed)
    assert found.shape == (len(queries), min(10, len(allowed)))
    if len(allowed):
        assert np.isin(found, allowed).all()
        wanted = nearest(queries, rows[:ROWS], 10, allowed)
        assert recall(found, wanted) >= (0.93 if len(allowed) > 10 else 1.0)
        mine = wanted[:1]  # the query that the topic was cut around
        assert recall(found[:1], mine) >= 0.6
    exact = search(state, queries[:5], 10, kind="exact", metric="cosine", allowed=allowed)
    assert exact.rows.tolist() == (nearest(queries[:5], rows[:ROWS], 10, allowed) if len(allowed) else [[]] * 5)


@every_kind
def test_new_rows_are_found_and_dead_ones_are_not(
    state: State, rows: np.ndarray, queries: np.ndarray, built: dict[str, ann.Built], tmp_path: Path
) -> None:
    kind = state.indexed[0].file.kind
    rng = np.random.default_rng(0)
    dead = np.sort(rng.choice(ROWS + NEW, 900, replace=False))
    live = np.setdiff1d(np.arange(ROWS + NEW), dead)
    churned = commit(rows, tmp_path, built[kind], covered=ROWS, dead=dead, blocks=list(map(torch.from_numpy, np.split(rows, [1500, ROWS + 100]))))
    found = ask(churned, queries)
    assert not np.isin(found, dead).any()
    assert recall(found, nearest(queries, rows, 10, live)) >= 0.93
    alive = live[live >= ROWS]
    itself = ask(churned, rows[alive].astype(np.float64), 1)
    assert itself[:, 0].tolist() == alive.tolist()  # each new row is its own neighbour at once
    allowed = np.arange(0, ROWS + NEW, 2)
    some = ask(churned, queries, 10, 0.95, allowed=allowed)
    assert np.isin(some, np.intersect1d(allowed, live)).all()
    assert recall(some, nearest(queries, rows, 10, np.intersect1d(allowed, live))) >= 0.93


def test_the_same_rows_and_seed_give_the_same_file(rows: np.ndarray, tmp_path: Path) -> None:
    for kind in APPROXIMATE:
        first, again = (ann.build(ann.ArrayRows(rows[:1500]), kind, seed=3).save(tmp_path / name) for name in ("a", "b"))
        assert first["sha256"] == again["sha256"]
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
        strip = [{**entry, "rate": 0} for entry in first["tuned"]], [{**entry, "rate": 0} for entry in again["tuned"]]
        assert strip[0] == strip[1]


@every_kind
def test_a_loaded_index_answers_like_the_built_one(state: State, queries: np.ndarray, built: dict[str, ann.Built]) -> None:
    item = state.indexed[0]
    narrow = queries.astype(np.float32)
    for share in (0.8, 0.95):
        here, there = built[item.file.kind].opened().candidates(narrow, 10, share), item.opened().candidates(narrow, 10, share)
        assert here is not None
        assert there is not None
        assert np.array_equal(here[1], there[1])


def test_a_stream_of_any_blocks_gives_the_same_index(rows: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", rows[:2000])

    class Ragged:
        rows, dimensions = 2000, DIMENSIONS

        def __iter__(self) -> Iterator[np.ndarray]:
            yield from np.split(rows[:2000], [1, 500, 501, 1700])

    details = [
        ann.build(source, "ivf").save(tmp_path / "x") for source in (ann.ArrayRows(rows[:2000]), ann.FileRows(tmp_path / "rows.npy"), Ragged())
    ]
    assert len({detail["sha256"] for detail in details}) == 1


@pytest.mark.parametrize("kind", APPROXIMATE)
@pytest.mark.parametrize("count", [1, 50, 999])
def test_too_few_rows_become_flat_without_a_word(rows: np.ndarray, kind: str, count: int, tmp_path: Path) -> None:
    built = ann.build(ann.ArrayRows(rows[:count]), kind)
    assert built.detail["kind"] == "flat"
    state = commit(rows[:count], tmp_path, built, covered=count)
    assert ask(state, rows[:count].astype(np.float64), 1)[:, 0].tolist() == list(range(count))


@pytest.mark.parametrize("dimensions", [1, 2, 3, 7, 13, 31, 40])
@pytest.mark.parametrize("kind", APPROXIMATE)
def test_any_number_of_dimensions(dimensions: int, kind: str, tmp_path: Path) -> None:
    rows = clustered(1300, dimensions, unit=False)
    built = ann.build(ann.ArrayRows(rows), kind)
    state = commit(rows, tmp_path, built, covered=1300)
    found = search(state, rows[:40].astype(np.float64), 5, kind="auto", metric="dot", recall=0.9)
    assert found.rows.shape == (40, 5)
    assert found.rows.min() >= 0
    exact = search(state, rows[:40].astype(np.float64), 5, kind="exact", metric="dot")
    assert recall(found.rows, exact.rows.tolist()) >= 0.75


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_inner_products_of_long_and_short_rows(kind: str, tmp_path: Path) -> None:
    rows = clustered(3000, 24) * np.random.default_rng(3).uniform(0.5, 2, (3000, 1)).astype(np.float32)
    queries = clustered(100, 24, seed=8).astype(np.float64) * 5
    state = commit(rows, tmp_path, ann.build(ann.ArrayRows(rows), kind), covered=3000)
    found = search(state, queries, 10, kind="auto", metric="dot", recall=0.95)
    wanted = nearest(queries, rows, 10, metric="dot")
    assert recall(found.rows, wanted) >= 0.92
    assert found.scores.max() > 1


@pytest.mark.parametrize(
    ("recall_", "error"),
    [(0, UsageError), (1.01, UsageError), (-1, UsageError), ("high", UsageError), (True, UsageError), (float("nan"), UsageError)],
)
def test_recall_is_a_share(recall_: object, error: type[Exception], rows: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="wanted a share of the true hits"):
        search(commit(rows[:10], tmp_path), rows[:1].astype(np.float64), 1, kind="auto", metric="cosine", recall=recall_)  # type: ignore[arg-type]


def test_an_unknown_kind_is_named(rows: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="kind"):
        search(commit(rows[:10], tmp_path), rows[:1].astype(np.float64), 1, kind="annoy", metric="cosine")
    assert set(APPROXIMATE) < set(KINDS)


def test_a_kind_that_was_not_built_is_searched_exactly(rows: np.ndarray, queries: np.ndarray, built: dict[str, ann.Built], tmp_path: Path) -> None:
    state = commit(rows[:ROWS], tmp_path, built["ivf"], covered=ROWS)
    found = search(state, queries[:5], 10, kind="hnsw", metric="cosine", recall=0.8)
    assert found.rows.tolist() == nearest(queries[:5], rows[:ROWS], 10)


class Broken:
    """A source that is not what it says."""

    rows, dimensions = 1200, 8

    def __init__(self, *blocks: np.ndarray) -> None:
        self.given = blocks

    def __iter__(self) -> Iterator[np.ndarray]:
        yield from self.given


def test_wrong_rows_are_refused_with_their_number() -> None:
    good = clustered(1200, 8)
    bad = good.copy()
    bad[700, 3] = np.nan
    with pytest.raises(CollectionError, match="row 700 from 0 holds NaN"):
        ann.build(Broken(bad), "ivf")
    with pytest.raises(CollectionError, match=r"shape \(1200, 9\), wanted \(n, 8\)"):
        ann.build(Broken(clustered(1200, 9)), "ivf")
    with pytest.raises(CollectionError, match="said 1200 rows and gave 1100"):
        ann.build(Broken(good[:1100]), "ivfpq")
    with pytest.raises(UsageError, match="kind"):
        ann.build(Broken(good), "annoy")


@pytest.mark.parametrize("change", ["cut", "empty", "text", "other rows", "other dimensions"])
def test_a_file_that_is_not_the_index_is_refused(change: str, built: dict[str, ann.Built], tmp_path: Path) -> None:
    path = tmp_path / "a.index"
    detail = dict(built["ivfpq"].save(path))
    content = path.read_bytes()
    if change in ("cut", "empty", "text"):
        path.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "text": b"not an index at all, but a text that is long enough"}[change])
    else:
        detail.update({"other rows": {"rows": ROWS - 1}, "other dimensions": {"dimensions": 31}}[change])
    with pytest.raises(CollectionError, match=r"a\.index: .*build it again with optimize"):
        ann.load(path, detail)


def test_a_row_number_that_cannot_be_is_not_believed(rows: np.ndarray, built: dict[str, ann.Built], tmp_path: Path) -> None:
    path = tmp_path / "a.index"
    detail = built["ivf"].save(path)
    index = ann.load(path, detail)
    index.rows = 10  # as if the numbers in the file were larger than they may be
    with pytest.raises(CollectionError, match="damaged; build it again"):
        index.search(rows[:5], {"probes": 8, "candidates": 10})


def test_no_half_file_stays_when_the_disk_is_full(built: dict[str, ann.Built], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    from twinvec.index.ann import building

    def full(path: Path) -> object:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(building, "atomic_file", full)
    with pytest.raises(CollectionError, match="make room on the disk"):
        built["ivf"].save(tmp_path / "a.index")
    assert list(tmp_path.iterdir()) == []


def test_threads_are_bounded_and_given_back() -> None:
    import faiss

    from twinvec.index.ann.threads import bounded

    before = faiss.omp_get_max_threads()
    with bounded(2):
        assert faiss.omp_get_max_threads() == 2
    with bounded():
        assert faiss.omp_get_max_threads() == torch.get_num_threads()
    with bounded(pieces=0):
        assert faiss.omp_get_max_threads() == 1
        with bounded():  # what is called inside needs no cores of its own
            assert faiss.omp_get_max_threads() == torch.get_num_threads()
        assert faiss.omp_get_max_threads() == 1
    assert faiss.omp_get_max_threads() == before


def test_calls_share_the_cores_that_were_granted() -> None:
    from concurrent.futures import ThreadPoolExecutor

    from twinvec.index.ann import threads

    cores, inside, most = threads._Cores(), 0, 0
    lock = threading.Lock()

    def call(wanted: int) -> None:
        nonlocal inside, most
        cores.take(wanted, 4)
        with lock:
            inside += wanted
            most = max(most, inside)
        time.sleep(0.002)
        with lock:
            inside -= wanted
        cores.give(wanted)

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(call, [1, 1, 4, 2, 1, 3] * 8))
    assert (most, cores.used) == (4, 0)
    cores.take(9, 4)  # more than there are: alone
    cores.give(9)

    # Two single queries run at the same time where two cores were granted: each waits here for the other.
    before, meeting = torch.get_num_threads(), threading.Barrier(2, timeout=20)
    try:
        torch.set_num_threads(2)

        def together(_: int) -> int:
            with threads.bounded(pieces=1):
                return meeting.wait()

        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(together, range(2))) == [0, 1]
    finally:
        torch.set_num_threads(before)


def test_many_callers_at_once_get_the_same_hits(rows: np.ndarray, queries: np.ndarray, built: dict[str, ann.Built], tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    state = commit(rows[:ROWS], tmp_path, built["ivfpq"], covered=ROWS)
    alone = ask(state, queries)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda i: ask(state, queries[i : i + 50]), [0, 50, 100, 150] * 3):
            assert any(np.array_equal(found, alone[i : i + 50]) for i in (0, 50, 100, 150))


@pytest.mark.parametrize(
    ("rows", "dimensions", "memory", "kind"),
    [
        (0, 384, None, "exact"), (50, 384, None, "exact"), (99_999, 384, None, "exact"), (100_000, 384, None, "ivfpq"),
        (1_000_000, 1024, None, "ivfpq"),
        (1_000_000, 97, None, "ivf"), (10_000_000, 128, 1 << 30, "ivfpq"), (10_000_000, 128, 1 << 20, "exact"),
    ],
)  # fmt: skip
def test_auto_chooses_by_size_dimension_and_memory(rows: int, dimensions: int, memory: int | None, kind: str) -> None:
    assert ann.choose_kind(rows, dimensions, memory) == kind


def test_training_is_bounded() -> None:
    for rows in (1000, 100_000, 1_000_000, 10_000_000, 1_000_000_000):
        for kind in APPROXIMATE:
            made = plan.plan(kind, rows, 384, memory=1 << 30)
            assert made.training * 384 * 4 <= 1 << 28
            assert made.held <= 1000
            assert made.lists * 39 <= max(made.training, 1) or not made.lists
