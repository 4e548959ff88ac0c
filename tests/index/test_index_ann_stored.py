"""Narrow number types and the bfloat16 first pass: the ranking of what is stored, to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from index_rows import clustered, commit, nearest, recall

from twinvec.index import blocks, exact
from twinvec.index.ann import stored
from twinvec.index.ann.stored import Float16Block, Int8Block, SignBlock, joined
from twinvec.index.blocks import Block, as_block
from twinvec.index.exact import Blocks, exact_search
from twinvec.index.ranking import rank
from twinvec.index.searching import search

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return clustered(9000, 48)


@pytest.fixture(scope="module")
def queries() -> np.ndarray:
    return clustered(60, 48, seed=4).astype(np.float64)


@pytest.fixture(params=[True, False], ids=["bfloat16", "float32"])
def narrow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both passes, on every machine: the bound holds for products of rounded numbers however they are computed."""
    if request.param and not blocks.bf16_works():
        monkeypatch.setattr(blocks, "bf16_works", lambda: True)
    elif not request.param:
        monkeypatch.setattr(blocks, "bf16_works", lambda: False)
    return bool(request.param)


def int8(rows: np.ndarray) -> Int8Block:
    low, high = rows.min(axis=0), rows.max(axis=0)
    ranges = np.stack((low, high)).astype(np.float32)
    codes = (np.clip(np.rint((rows - low) / ((high - low) / 255)), 0, 255) - 128).astype(np.int8)
    block = Int8Block(torch.from_numpy(codes), ranges)
    block.scales = 1 / block.part(0, len(rows)).double().norm(dim=1).float()  # as a cosine collection stores them
    return block


def made(kind: str, rows: np.ndarray) -> Block:
    if kind == "float32":
        return as_block(torch.from_numpy(rows))
    if kind == "float16":
        block = Float16Block(torch.from_numpy(rows.astype(np.float16)), rows.shape[1])
        block.scales = 1 / block.part(0, len(rows)).double().norm(dim=1).float()
        return block
    if kind == "int8":
        return int8(rows)
    return SignBlock(torch.from_numpy(rows.astype(np.float16)), torch.from_numpy(np.packbits(rows > 0, axis=1)))


@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "signs"])
def test_exact_search_is_the_float64_ranking_of_what_is_stored(kind: str, rows: np.ndarray, queries: np.ndarray, narrow: bool) -> None:
    parts = [made(kind, part) for part in np.split(rows, [4100, 4133])]
    read = np.concatenate([part.take(np.arange(len(part))) for part in parts])
    assert np.abs(read - rows).max() < 0.01
    dead = np.arange(0, 9000, 7)
    finder = Blocks(parts, dead)
    keep = np.setdiff1d(np.arange(9000), dead)
    for metric in ("cosine", "dot"):
        found = rank(queries, finder, 12, metric=metric, max_norm=1.01)
        assert found.rows.tolist() == nearest(queries, read, 12, keep, metric)
    assert any(part.kept is not None for part in finder.blocks) == narrow
    assert np.array_equal(finder.vectors(np.array([8999, 0, 4120])), read[[8999, 0, 4120]])
    assert torch.equal(parts[0].part(5, 9), torch.from_numpy(read[5:9]))
    assert torch.equal(parts[0].sliced(5, 9).part(1, 3), torch.from_numpy(read[6:8]))


@pytest.mark.parametrize("spread", [1e-1, 1e-3, 1e-5])
def test_rows_that_lie_near_each_other_are_ranked_all_the_same(spread: float, narrow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where bfloat16 cannot tell rows apart, the query is done again in float32."""
    rng = np.random.default_rng(0)
    rows = (np.ones(40) + spread * rng.standard_normal((6000, 40))).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    queries = rows[:20].astype(np.float64)
    passes: list[bool] = []
    real = exact._Pass.run
    monkeypatch.setattr(exact._Pass, "run", lambda self: (passes.append(self.narrow), real(self))[1])
    assert exact_search(queries, [rows], 5).rows.tolist() == nearest(queries, rows, 5)
    assert passes[0] is narrow
    assert narrow is False or (spread > 1e-2) or passes[-1] is False


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e15])
def test_inner_products_of_any_size(scale: float, rows: np.ndarray, queries: np.ndarray, narrow: bool) -> None:
    stored_rows = (rows[:5000].astype(np.float64) * np.random.default_rng(1).uniform(0.5, 2, (5000, 1)) * scale).astype(np.float32)
    found = exact_search(queries[:12], [stored_rows], 9, metric="dot")
    assert found.rows.tolist() == nearest(queries[:12], stored_rows, 9, metric="dot")


@pytest.mark.parametrize("k", [1, 31, 200, 3000, 9000])
def test_any_k_with_small_windows(k: int, rows: np.ndarray, queries: np.ndarray, narrow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "_TILE", 100)
    monkeypatch.setattr(exact, "_BUFFER", 9000)
    monkeypatch.setattr(exact, "QUERIES", 9)
    found = exact_search(queries[:10], np.split(rows, [33, 5001]), k)
    assert found.rows.tolist() == nearest(queries[:10], rows, k)


def test_thousands_of_equal_rows(rows: np.ndarray, narrow: bool) -> None:
    same = np.concatenate([rows[:500], np.repeat(rows[:1], 6000, axis=0)])
    assert exact_search(np.repeat(rows[:1], 9, axis=0), [same], 4).rows.tolist() == [[0, 500, 501, 502]] * 9


def test_copies_are_made_once_and_bounded(rows: np.ndarray, queries: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "bf16_works", lambda: True)
    tensor = torch.from_numpy(rows.copy())
    rank(queries[:1], Blocks([tensor]), 3, metric="cosine", max_norm=1.01)
    assert as_block(tensor).kept is None  # one query, once: a copy would cost more than it saves
    rank(queries, Blocks([tensor]), 3, metric="cosine", max_norm=1.01)
    copy = as_block(tensor).kept
    assert copy is not None
    rank(queries, Blocks([tensor], np.array([1])), 3, metric="cosine", max_norm=1.01)  # the next commit
    assert as_block(tensor).kept is copy
    other = torch.from_numpy(rows.copy())
    monkeypatch.setattr(exact, "NARROW_BYTES", 1000)
    rank(queries, Blocks([other]), 3, metric="cosine", max_norm=1.01)
    assert as_block(other).kept is None


def test_small_blocks_are_joined(rows: np.ndarray) -> None:
    parts = [made("int8", rows[:1000]), *(made("float16", rows[at : at + 1]) for at in range(1000, 1040)), made("float32", rows[1040:1400])]
    whole = joined(parts)
    assert [len(block) for block in whole] == [1000, 40, 360]
    assert np.abs(np.concatenate([block.take(np.arange(len(block))) for block in whole]) - rows[:1400]).max() < 0.01


def test_int8_reads_as_packing_unpacks_and_never_wraps(rows: np.ndarray) -> None:
    from twinvec.index.packing import learned, pack, unpack
    from twinvec.index.segments import Mapped, Segment

    ranges = learned(rows[:2000])
    wild = rows.copy()
    wild[0] *= 50
    wild[1] *= -50
    codes = pack(wild, "int8", ranges)["vectors"]
    segment = Segment(1, "a", "vectors", "int8", 0, len(rows), 48, 0, "", 2.0)
    part = Mapped(segment, torch.from_numpy(codes), None, ranges, None)
    block = stored.block_of(part)
    assert stored.block_of(part) is block
    assert np.array_equal(block.take(np.arange(len(rows))), unpack(part, slice(None)))
    assert (np.sign(block.take(np.array([0]))) == np.sign(wild[0])).mean() > 0.9  # clipped to the end it lies beyond


def test_signs_reach_the_recall_and_are_exact_at_one(rows: np.ndarray, queries: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from twinvec.index import searching

    monkeypatch.setattr(searching, "_SIGNS", 1000)
    block = made("signs", rows)
    dead = np.arange(3, 9000, 11)
    state = commit(rows, tmp_path, dead=dead, blocks=[block, torch.from_numpy(rows[:50])])
    read = np.concatenate([block.take(np.arange(9000)), rows[:50]])
    keep = np.setdiff1d(np.arange(9050), dead)
    wanted = nearest(queries, read, 10, keep)
    assert search(state, queries, 10, kind="auto", metric="cosine", recall=1).rows.tolist() == wanted
    assert not block.learned  # type: ignore[attr-defined]
    for share in (0.8, 0.95):
        found = search(state, queries, 10, kind="auto", metric="cosine", recall=share).rows
        assert block.learned[10, share] is not None  # type: ignore[attr-defined]
        assert recall(found, wanted) >= share - 0.03
        assert np.isin(found, keep).all()
        assert np.array_equal(search(state, queries[:1], 4, kind="auto", metric="cosine", recall=share).rows, found[:1, :4])
    some = np.arange(0, 9050, 90)
    few = search(state, queries, 10, kind="auto", metric="cosine", recall=0.8, allowed=some).rows
    assert few.tolist() == nearest(queries, read, 10, np.intersect1d(some, keep))
