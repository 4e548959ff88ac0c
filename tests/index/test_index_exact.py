"""Exact search against a plain float64 ranking, and what must not change it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twinvec.index import exact
from twinvec.index.checks import SearchError, VectorError, is_blank, normalised
from twinvec.index.exact import Blocks, exact_search
from twinvec.index.flat import Flat
from twinvec.index.ranking import rank

pytestmark = pytest.mark.usefixtures("one_thread")


def unit(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    return normalised(rng.standard_normal((n, d)), "cosine")[0]


def reference(queries: np.ndarray, stored: np.ndarray, k: int, ids: list[str] | None = None, dead: set[int] | None = None) -> list[list[int]]:
    """Rows by (-cosine in float64, id)."""
    q, v = queries.astype(np.float64), stored.astype(np.float64)
    q = q / np.sqrt((q * q).sum(1))[:, None]
    scores = np.stack([np.clip((v * row).sum(1) / np.sqrt((v * v).sum(1)), -1, 1) for row in q])
    live = [row for row in range(len(v)) if not dead or row not in dead]
    return [sorted(live, key=lambda row: (-line[row], ids[row] if ids else row))[:k] for line in scores]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_equals_the_float64_ranking(data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    n, d, q = data.draw(st.integers(1, 120)), data.draw(st.integers(1, 40)), data.draw(st.integers(1, 9))
    stored = unit(rng, n, d)
    stored = stored[rng.integers(0, max(1, n // 3), n)]  # many exact ties
    ids = [f"{x:04d}" for x in rng.permutation(n)]
    k = data.draw(st.integers(1, n + 3))
    dead = set(rng.choice(n, data.draw(st.integers(0, n - 1)), replace=False).tolist())
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=4)))
    queries = unit(rng, q, d)
    found = exact_search(queries, np.split(stored, cuts), k, ids=ids, dead=dead)
    assert found.rows.tolist() == reference(queries, stored, k, ids, dead)
    assert found.rows.shape == (q, min(k, n - len(dead)))
    flat = rank(queries.astype(np.float64), Flat([torch.from_numpy(stored)], np.asarray(sorted(dead), dtype=np.int64)), k, metric="cosine",
                max_norm=1.000001, ids=lambda rows: {row: ids[row] for row in rows})  # fmt: skip
    assert flat.rows.tolist() == found.rows.tolist()
    assert np.array_equal(flat.scores, found.scores)


@pytest.fixture(scope="module")
def many() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    return unit(rng, 300, 96), unit(rng, 5000, 96)


def test_one_query_or_many_blocks_and_threads_do_not_matter(many: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    queries, stored = many
    whole = exact_search(queries, [stored], 10)
    for count in (1, 2, 7):
        part = exact_search(queries[:count], [stored], 10)
        assert np.array_equal(part.scores, whole.scores[:count])
        assert np.array_equal(part.rows, whole.rows[:count])
    monkeypatch.setattr(exact, "WINDOW", 777)
    monkeypatch.setattr(exact, "QUERIES", 13)
    cut = exact_search(queries, np.array_split(stored, 23), 10)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        other = exact_search(queries, [stored], 10)
    finally:
        torch.set_num_threads(before)
    for again in (cut, other):
        assert np.array_equal(again.scores, whole.scores)
        assert np.array_equal(again.rows, whole.rows)


@pytest.mark.parametrize("kind", ["exact", "flat"])
def test_top_k_is_a_prefix_of_top_more(many: tuple[np.ndarray, np.ndarray], kind: str) -> None:
    queries, stored = many[0][:5], np.repeat(many[1][:40], 30, axis=0)
    ids = [f"{(7 * i) % 1200:05d}" for i in range(1200)]
    finder = Blocks([torch.from_numpy(stored)]) if kind == "exact" else Flat([torch.from_numpy(stored)])

    def search(k: int) -> list[list[int]]:
        return rank(queries.astype(np.float64), finder, k, metric="cosine", max_norm=1.000001, ids=lambda r: {x: ids[x] for x in r}).rows.tolist()

    most = search(1200)
    assert most == reference(queries, stored, 1200, ids)
    for k in (1, 2, 3, 29, 31, 600):
        assert search(k) == [row[:k] for row in most]


def test_differences_below_float32_are_still_ranked() -> None:
    # 400 rows within 1e-7 of each other: a float32 product cannot order them, and its order changes with the shape of the product.
    rng = np.random.default_rng(3)
    query = unit(rng, 1, 384)
    stored = (query + rng.standard_normal((400, 384)) * 3e-6).astype(np.float32)
    stored = np.concatenate([normalised(stored, "cosine")[0], unit(rng, 4000, 384)])
    for k in (1, 5, 50):
        assert exact_search(query, [stored], k).rows.tolist() == reference(query, stored, k)


def test_thousands_of_equal_rows_go_by_id() -> None:
    rng = np.random.default_rng(5)
    one = unit(rng, 1, 16)
    stored = np.concatenate([unit(rng, 50, 16), np.repeat(one, 6000, axis=0)])
    ids = [f"{x:05d}" for x in rng.permutation(len(stored))]
    found = exact_search(one, [stored], 4, ids=ids)
    assert [ids[row] for row in found.rows[0]] == sorted(ids[50:])[:4]
    assert found.scores[0].tolist() == [1.0] * 4


def test_cosine_stays_in_its_range_and_a_row_is_its_own_neighbour(many: tuple[np.ndarray, np.ndarray]) -> None:
    stored = many[1][:500] * np.linspace(0.1, 300, 500, dtype=np.float32)[:, None]  # not normalised by the caller
    found = exact_search(stored, [stored], 500)
    assert found.rows[:, 0].tolist() == list(range(500))
    assert found.scores.max() <= 1.0
    assert found.scores.min() >= -1.0
    np.testing.assert_allclose(found.scores[:, 0], 1.0, atol=1e-6)


def test_dot_is_the_inner_product_as_it_is(many: tuple[np.ndarray, np.ndarray]) -> None:
    rng = np.random.default_rng(1)
    for scale in (1e-30, 1.0, 1e15):
        stored = (many[1][:300].astype(np.float64) * rng.uniform(0.5, 2, (300, 1)) * scale).astype(np.float32)
        found = exact_search(many[0][:4], [stored], 300, metric="dot")
        scores = (stored.astype(np.float64)[None] * many[0][:4].astype(np.float64)[:, None]).sum(-1)
        assert found.rows.tolist() == np.argsort(-scores, axis=1, kind="stable").tolist()
        np.testing.assert_allclose(found.scores, -np.sort(-scores, axis=1), rtol=1e-12)


def test_bf16_settings_of_torch_change_nothing(many: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    queries, stored = many
    plain = exact_search(queries, [stored], 10)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = exact_search(queries, np.array_split(stored, 3), 10)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert not exact._full_precision()
        monkeypatch.setattr(torch, "mm", None)  # on a CPU with bf16 units it would round
        medium = exact_search(queries, [stored], 10)
    finally:
        torch.set_float32_matmul_precision(before)
    for other in (inside, medium):
        assert np.array_equal(other.scores, plain.scores)
        assert np.array_equal(other.rows, plain.rows)


@pytest.mark.parametrize(
    "make",
    [np.float64, np.float16, np.asfortranarray, lambda a: np.repeat(a, 2, axis=1)[:, ::2], np.ndarray.tolist, torch.from_numpy],
    ids=["float64", "float16", "fortran", "strided", "lists", "torch"],
)
def test_any_float_array_is_welcome(many: tuple[np.ndarray, np.ndarray], make: object) -> None:
    queries, stored = many[0][:3], many[1][:200]
    found = exact_search(make(queries), [make(stored)], 5)  # type: ignore[operator]
    wanted = exact_search(queries, [stored], 5)
    np.testing.assert_allclose(found.scores, wanted.scores, atol=2e-3)
    assert exact_search(queries[0], [stored], 5).rows.tolist() == wanted.rows[:1].tolist()  # 1-D is one query


def test_a_mapped_file_is_searched_in_place(many: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", many[1])
    mapped = np.load(tmp_path / "v.npy", mmap_mode="r")
    assert np.array_equal(exact_search(many[0][:3], [mapped], 5).rows, exact_search(many[0][:3], [many[1]], 5).rows)
    assert not mapped.flags.writeable


def test_zero_rows_and_dead_rows_are_never_found(many: tuple[np.ndarray, np.ndarray]) -> None:
    stored = many[1][:10].copy()
    stored[4] = 0
    found = exact_search(many[0][:2], [stored], 50, dead=[2])
    assert found.rows.shape == (2, 8)
    assert not {2, 4} & set(found.rows.ravel().tolist())
    assert exact_search(many[0][:2], [stored], 5, dead=range(10)).rows.shape == (2, 0)
    assert exact_search(many[0][:2], [], 5).rows.shape == (2, 0)


@pytest.mark.parametrize("k", [0, -1, 2.5, True, "3", None])
def test_k_below_one_is_refused(many: tuple[np.ndarray, np.ndarray], k: object) -> None:
    with pytest.raises(SearchError, match="wanted"):
        exact_search(many[0], [many[1]], k)  # type: ignore[arg-type]
    assert issubclass(SearchError, ValueError)


def test_wrong_arrays_name_the_row(many: tuple[np.ndarray, np.ndarray]) -> None:
    bad = many[1][:5].copy()
    bad[3, 1] = np.nan
    with pytest.raises(VectorError, match="segment 0: row 3 from 0 holds NaN"):
        exact_search(many[0], [bad], 3)
    with pytest.raises(VectorError, match="wanted 96 dimensions, got 95"):
        exact_search(many[0], [many[1][:, :95]], 3)
    with pytest.raises(VectorError, match="5 rows need 5 ids, got 2"):
        exact_search(many[0], [many[1][:5]], 3, ids=["a", "b"])
    with pytest.raises(SearchError, match="row 1 from 0 is all zeros"):
        exact_search(np.array([[1.0] * 96, [0.0] * 96]), [many[1]], 3)


def test_normalising_zero_and_tiny_rows_stays_finite() -> None:
    rows, norms = normalised(np.array([[0, 0], [1e-40, 0], [3, 4]], dtype=np.float32), "cosine")
    np.testing.assert_allclose(rows, [[0, 0], [1, 0], [0.6, 0.8]], atol=1e-6)
    assert norms[0] == 0
    assert np.isfinite(normalised(np.zeros((1, 3), dtype=np.float16), "cosine")[0]).all()


@pytest.mark.parametrize(
    ("text", "blank"), [("", True), (" \t\n", True), ("\u200b\ufeff", True), ("\u3000", True), ("a", False), ("。", False), ("🙂", False)]
)
def test_blank_texts(text: str, blank: bool) -> None:
    assert is_blank(text) is blank
