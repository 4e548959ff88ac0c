"""Numbers as they are stored, and read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinvec import read_vectors
from twinvec.errors import DataError, EncodeError, UsageError
from twinvec.scale.bulk import encode_files
from twinvec.scale.outputs import notes_path
from twinvec.scale.read import iterate_vectors
from twinvec.scale.stored import Ranges, from_store, read_ranges, shortened, to_store


def unit(rows: int, dimensions: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(rows, dimensions)).astype(np.float32)
    found: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return found


def test_int8_is_the_nearest_of_256_steps() -> None:
    vectors = unit(500, 24)
    ranges = Ranges.of(vectors)
    stored, clipped = to_store(vectors, "int8", ranges)
    assert stored.dtype == np.int8
    assert clipped == 0
    assert (stored.min(axis=0) == -128).all()
    assert (stored.max(axis=0) == 127).all()
    back = from_store(stored, "int8", 24, ranges)
    assert (np.abs(back - vectors) <= ranges.step * 0.5001).all()
    np.testing.assert_array_equal(to_store(back, "int8", ranges)[0], stored)


def test_int8_clips_and_never_wraps() -> None:
    """sentence-transformers PR 3847: a value below the range became -42 where -128 was meant."""
    ranges = Ranges(np.float32([-1, 0, 0.5]), np.float32([1, 1, 0.5]))
    stored, clipped = to_store(np.float32([[-9, 9, 0.5], [1e30, -1e30, -3], [0, 0.5, 7]]), "int8", ranges)
    np.testing.assert_array_equal(stored[:2], [[-128, 127, -128], [127, -128, -128]])
    assert stored[2, 2] == -122  # a dimension without any width takes steps of 1; half steps go to the even number
    assert clipped == 6


def test_a_dimension_that_never_changes_comes_back_exactly() -> None:
    vectors = np.full((4, 2), 0.25, np.float32)
    ranges = Ranges.of(vectors)
    np.testing.assert_array_equal(from_store(to_store(vectors, "int8", ranges)[0], "int8", 2, ranges), vectors)


@pytest.mark.parametrize("dimensions", [1, 7, 8, 9, 64])
def test_binary_is_one_bit_a_dimension(dimensions: int) -> None:
    vectors = unit(30, dimensions)
    stored, _ = to_store(vectors, "binary")
    assert stored.shape == (30, (dimensions + 7) // 8)
    back = from_store(stored, "binary", dimensions)
    np.testing.assert_array_equal(back > 0, vectors > 0)
    np.testing.assert_allclose(np.linalg.norm(back, axis=1), 1, rtol=1e-6)
    plain = [[sum(int(row[8 * i + j] > 0) << (7 - j) for j in range(8) if 8 * i + j < dimensions) for i in range(stored.shape[1])] for row in vectors]
    np.testing.assert_array_equal(stored, plain)


def test_float16_overflow_names_the_row() -> None:
    vectors = np.ones((3, 2), np.float32)
    vectors[1, 1] = 70_000
    with pytest.raises(EncodeError, match="row 1 has numbers above 65504, which float16 cannot hold; use --store float32"):
        to_store(vectors, "float16")
    assert to_store(vectors, "float32")[0][1, 1] == 70_000


def test_zeros_stay_zeros_when_cut() -> None:
    """model2vec PR 368: the norm of a zero row must not make NaN of it."""
    vectors = np.zeros((2, 4), np.float32)
    vectors[1, 3] = 1
    np.testing.assert_array_equal(shortened(vectors, 2), np.zeros((2, 2)))


@pytest.mark.parametrize("suffix", ["npy", "parquet"])
@pytest.mark.parametrize(("store", "cosine"), [("float32", 0.999999), ("float16", 0.99999), ("int8", 0.999), ("binary", 0.5)])
def test_every_store_reads_back(suffix: str, store: str, cosine: float, encoder: Any, texts: Path, wanted: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / f"out.{suffix}"
    encode_files(encoder, texts, path, store=store, shard_rows=64)
    found = read_vectors(path)
    assert found.store == store
    assert found.vectors.dtype == np.float32
    assert found.vectors.shape == wanted.shape
    assert ((found.vectors * wanted).sum(1) / np.linalg.norm(found.vectors, axis=1)).min() > cosine
    parts = list(iterate_vectors(path, rows=50))
    np.testing.assert_array_equal(np.concatenate([part.vectors for part in parts]), found.vectors)
    assert len(parts) > 3
    assert notes_path(path).exists() == (suffix == "npy" and store in ("int8", "binary"))


@pytest.mark.parametrize("kind", ["json", "table", "parquet", "npy"])
def test_ranges_from_a_file(kind: str, encoder: Any, texts: Path, wanted: np.ndarray, tmp_path: Path) -> None:
    if kind == "json":
        path = tmp_path / "r.json"
        path.write_text(json.dumps(Ranges.of(wanted).to_dict()))
    elif kind == "npy":
        path = tmp_path / "sample.npy"
        np.save(path, wanted)
    else:
        path = tmp_path / ("first.npy" if kind == "table" else "first.parquet")
        encode_files(encoder, texts, path, store="int8")
        path = notes_path(path) if kind == "table" else path
    encode_files(encoder, texts, tmp_path / "out.npy", store="int8", ranges=path, shard_rows=10)
    ranges = read_ranges(path, 32)
    np.testing.assert_allclose(ranges.low, wanted.min(axis=0), atol=1e-6)
    np.testing.assert_allclose(read_vectors(tmp_path / "out.npy").vectors, wanted, atol=float(ranges.step.max()) * 0.51)


def test_a_table_of_another_file_is_refused(encoder: Any, texts: Path, tmp_path: Path) -> None:
    encode_files(encoder, texts, tmp_path / "a.npy", store="int8")
    encode_files(encoder, texts, tmp_path / "b.npy", store="int8", prompt="query")
    notes_path(tmp_path / "b.npy").replace(notes_path(tmp_path / "a.npy"))
    with pytest.raises(DataError, match=r"a\.store\.json belongs to another file than a\.npy"):
        read_vectors(tmp_path / "a.npy")
    with pytest.raises(DataError, match=r"b\.npy: int8 numbers need the table that was written beside them, b\.store\.json"):
        read_vectors(tmp_path / "b.npy")


def test_a_float_file_takes_the_old_table_away(encoder: Any, texts: Path, tmp_path: Path) -> None:
    encode_files(encoder, texts, tmp_path / "a.npy", store="binary")
    encode_files(encoder, texts, tmp_path / "a.npy", force=True)
    assert not notes_path(tmp_path / "a.npy").exists()


def test_int8_without_ranges_is_refused() -> None:
    with pytest.raises(UsageError, match="needs ranges"):
        to_store(unit(2, 2), "int8")
