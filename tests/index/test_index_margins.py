"""Candidates of short codes by a margin: what the rule says, that it adapts to the query, and that it is learned for the asked recall."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from index_rows import clustered, nearest, recall

from twinvec.index import ann
from twinvec.index.ann import approximate
from twinvec.index.ann.building import _lengthened
from twinvec.index.ann.plan import code_size, index_bytes, plan
from twinvec.index.ann.tuning import behind


def _plainly(scores: np.ndarray, rows: np.ndarray, hits: int) -> np.ndarray:
    out = np.full(rows.shape, np.inf)
    for i, line in enumerate(rows):
        there = [j for j in range(len(line)) if line[j] >= 0]
        best = sorted((float(scores[i, j]) for j in there), reverse=True)
        for j in there:
            out[i, j] = max(0.0, best[hits - 1] - float(scores[i, j])) if len(best) >= hits else 0.0
    return out


@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_how_far_a_row_lies_below_the_last_hit(queries: int, width: int, hits: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = -np.sort(-rng.integers(-50, 50, (queries, width)).astype(np.float32), axis=1)
    rows = np.where(rng.random((queries, width)) < 0.2, -1, rng.integers(0, 1000, (queries, width)))
    assert behind(scores, rows, hits).tolist() == _plainly(scores, rows, hits).tolist()


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return clustered(8000, 32, topics=25)


@pytest.fixture(scope="module")
def index(rows: np.ndarray) -> ann.Approximate:
    return ann.build(ann.ArrayRows(rows), "ivfpq").opened()


def _parameters(index: ann.Approximate, k: int, target: float) -> dict[str, int]:
    found = index.parameters(k, target)
    assert found is not None
    return found


def test_a_query_keeps_as_many_candidates_as_its_scores_call_for(index: ann.Approximate) -> None:
    parameters = _parameters(index, 10, 0.95)
    assert parameters["hits"] == 10
    assert parameters["margin"] > 0
    kept = (index.nearest(clustered(200, 32, seed=5, topics=25), parameters) >= 0).sum(axis=1)
    assert kept.min() >= 10
    assert kept.mean() < parameters["candidates"]
    assert kept.max() > 1.5 * kept.min()


@pytest.mark.parametrize("target", [0.8, 0.9, 0.95, 0.99])
def test_the_recall_of_other_queries_is_that_which_was_asked(index: ann.Approximate, rows: np.ndarray, target: float) -> None:
    queries = clustered(300, 32, seed=7, topics=25)
    assert recall(index.nearest(queries, _parameters(index, 10, target)), nearest(queries, rows, 10)) >= target - 0.02


def test_more_hits_than_were_tuned_for_keep_more(index: ann.Approximate, monkeypatch: pytest.MonkeyPatch) -> None:
    assert index.parameters(101, 0.9) is None  # so few rows are scored all
    monkeypatch.setattr(approximate, "_FAR", 0)
    few, many, most = (_parameters(index, k, 0.9) for k in (10, 100, 1000))
    assert (few["hits"], many["hits"], most["hits"]) == (10, 100, 1000)
    assert few["candidates"] <= many["candidates"] < most["candidates"]


def test_codes_of_lengthened_rows_reach_as_far_as_the_rows() -> None:
    import faiss

    rows = clustered(3000, 24)
    codes = faiss.ProductQuantizer(24, 12, 4)
    codes.train(rows)

    def along(block: np.ndarray) -> np.ndarray:
        read = codes.decode(codes.compute_codes(np.ascontiguousarray(block)))
        return np.asarray((rows * read).sum(axis=1) / (rows * rows).sum(axis=1))

    before, after = along(rows), along(_lengthened(codes, rows))
    assert abs(after - 1).mean() < 0.7 * abs(before - 1).mean()
    zero = np.zeros((2, 24), dtype=np.float32)
    assert np.array_equal(_lengthened(codes, zero), zero)


def test_short_of_memory_codes_are_half_as_long() -> None:
    assert (code_size(384), code_size(384, fine=False)) == (192, 96)
    assert (code_size(7), code_size(35), code_size(9, fine=False)) == (None, 7, 3)
    need = index_bytes("ivfpq", 1_000_000, 384)
    assert plan("ivfpq", 1_000_000, 384).factory.endswith("PQ192x4fs")
    assert plan("ivfpq", 1_000_000, 384, need).factory.endswith("PQ192x4fs")
    assert plan("ivfpq", 1_000_000, 384, need - 1).factory.endswith("PQ96x4fs")
