"""Measures of how vectors lie in space, against plain loops and against the values that theory gives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from twinvec.errors import DataError, TwinvecError, UsageError
from twinvec.evaluation.geometry import geometry, geometry_of
from twinvec.records import EncodeReport, Encoding


def value(found: dict[str, Any], name: str) -> float:
    assert isinstance(found[name], (int, float))
    return float(found[name])


def test_plain_loops_agree() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 7)) + 0.5
    u, v = rng.normal(size=(20, 7)), rng.normal(size=(20, 7))
    unit = [row / math.sqrt(sum(value * value for value in row)) for row in x]
    cosines = [sum(a * b for a, b in zip(first, second, strict=True)) for first, second in itertools.combinations(unit, 2)]
    kernels = [math.exp(-2 * sum((a - b) ** 2 for a, b in zip(first, second, strict=True))) for first, second in itertools.combinations(unit, 2)]
    values = np.linalg.svd(np.array(unit), compute_uv=False)
    shares = values / values.sum()
    squares = [np.sum((a / np.linalg.norm(a) - b / np.linalg.norm(b)) ** 2) for a, b in zip(u, v, strict=True)]
    expected = {
        "mean_random_cosine": sum(cosines) / len(cosines),
        "uniformity": math.log(sum(kernels) / len(kernels)),
        "alignment": sum(squares) / len(squares),
        "effective_rank": math.exp(-sum(share * math.log(share) for share in shares)),
        "top_share": values[0] ** 2 / sum(values**2),
    }
    found = geometry(x, (u, v))
    for name, wanted in expected.items():
        assert value(found, name) == pytest.approx(wanted, rel=1e-12), name
    assert (found["rows"], found["zero_rows"], found["dimensions"]) == (60, 0, 7)


def test_torch_as_in_the_paper() -> None:
    """Wang and Isola's own two functions (their figure 5), on unit rows."""
    import torch

    x = torch.nn.functional.normalize(torch.randn(200, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    y = torch.nn.functional.normalize(x + 0.1)
    found = geometry(x.numpy(), (x.numpy(), y.numpy()))
    assert value(found, "uniformity") == pytest.approx(torch.pdist(x, p=2).pow(2).mul(-2).exp().mean().log().item(), rel=1e-12)
    assert value(found, "alignment") == pytest.approx((x - y).norm(p=2, dim=1).pow(2).mean().item(), rel=1e-12)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(1).normal(size=(97, 5))
    whole = geometry(x, (x, x[::-1]))
    monkeypatch.setattr("twinvec.evaluation.geometry.BLOCK", 8)
    assert geometry(x, (x, x[::-1])) == pytest.approx(whole, rel=1e-12)


def test_known_shapes() -> None:
    axes = geometry(np.eye(10))
    assert value(axes, "mean_random_cosine") == pytest.approx(0)
    assert value(axes, "uniformity") == pytest.approx(-4)
    assert value(axes, "effective_rank") == pytest.approx(10)
    assert value(axes, "top_share") == pytest.approx(0.1)
    same = geometry(np.ones((10, 4)), (np.ones((2, 4)), 3 * np.ones((2, 4))))
    assert [value(same, name) for name in ("mean_random_cosine", "uniformity", "alignment", "effective_rank", "top_share")] == pytest.approx(
        [1, 0, 0, 1, 1], abs=1e-6
    )
    opposite = geometry([[1.0, 0.0], [-1.0, 0.0]], ([[1.0, 0.0]], [[-1.0, 0.0]]))
    assert (opposite["mean_random_cosine"], opposite["alignment"]) == (-1, 4)
    assert value(opposite, "uniformity") == pytest.approx(-8)


def test_a_cone_is_told_from_a_ball() -> None:
    rng = np.random.default_rng(0)
    ball = rng.normal(size=(500, 64))
    cone = ball + 4
    first, second = geometry(ball), geometry(cone)
    assert abs(value(first, "mean_random_cosine")) < 0.01 < 0.9 < value(second, "mean_random_cosine")
    assert value(first, "uniformity") < -3.5 < -0.5 < value(second, "uniformity")
    assert value(first, "effective_rank") > 2 * value(second, "effective_rank")


def test_length_and_rotation_do_not_count() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(50, 6))
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    whole = geometry(x, (x, x[::-1]))
    for other in (x * rng.uniform(1e-3, 1e3, (50, 1)), x @ turn, x[::-1], x * 1e-200, x * 1e200):
        assert geometry(other, (other, other[::-1])) == pytest.approx(whole, rel=1e-9)


def test_zero_rows_have_no_direction() -> None:
    x = np.random.default_rng(3).normal(size=(20, 4)).astype(np.float32)
    found = geometry(np.concatenate([x, np.zeros((3, 4), np.float32)]), (np.zeros((2, 4)), x[:2]))
    assert (found["rows"], found["zero_rows"], found["alignment"]) == (20, 3, None)
    assert {name: found[name] for name in ("uniformity", "top_share")} == {name: geometry(x)[name] for name in ("uniformity", "top_share")}


def test_many_rows_are_thinned_out_repeatably() -> None:
    x = np.random.default_rng(4).normal(size=(300, 8)) + 0.3
    assert geometry(x, rows=100) == geometry(x, rows=100)
    assert geometry(x, rows=100)["rows"] == 100
    assert geometry(x, rows=100) != geometry(x, rows=100, seed=1)
    assert value(geometry(x, rows=200), "uniformity") == pytest.approx(value(geometry(x), "uniformity"), abs=0.1)


class Letters:
    """An encoder whose vectors are the counts of a, b and c."""

    def __init__(self) -> None:
        self.prompts: dict[str, str] = {}
        self.seen: list[str] = []

    def encode_with_report(self, texts: Any, *, prompt: str | None = None) -> Encoding:
        self.seen += texts
        vectors = np.array([[text.count(letter) for letter in "abc"] for text in texts], np.float32).reshape(-1, 3)
        return Encoding(vectors, EncodeReport(len(texts), 3, 0, 0, 0, 0, 0, [], 0.0, "", "", "", 1, 0.0))


def test_of_an_encoder() -> None:
    encoder = Letters()
    found = geometry_of(encoder, ["a", "b", "c", "a"], (["a", "ab"], ["aa", "c"]))
    assert (found["rows"], found["mean_random_cosine"]) == (3, 0)
    assert value(found, "alignment") == pytest.approx(1)  # (0 + 2) / 2
    assert encoder.seen.count("b") == 1
    texts = ["a" * i + "b" for i in range(50)]
    limited = Letters()
    assert geometry_of(limited, texts, rows=10)["rows"] == 10 == len(limited.seen)


CASES: list[tuple[str, Callable[[], Any], type[TwinvecError], str]] = [
    ("one vector", lambda: geometry([[1.0, 2.0]]), DataError, r"1 of 1 vectors are not zero; wanted two or more"),
    ("vectors of zeros", lambda: geometry(np.zeros((5, 3))), DataError, r"0 of 5 vectors are not zero"),
    ("no vectors", lambda: geometry(np.zeros((0, 3))), DataError, r"0 of 0 vectors"),
    ("one row instead of rows", lambda: geometry([1.0, 2.0]), DataError, r"vectors of shape \(2,\); wanted one row a text"),
    ("NaN in a vector", lambda: geometry([[1.0, 0.0], [math.nan, 1.0]]), DataError, r"1 of 2 rows of vectors hold NaN or infinity \(first: row 2\)"),
    ("infinity in a pair", lambda: geometry(np.eye(2), (np.eye(2), [[math.inf, 0], [0, 1]])), DataError, r"rows of pairs"),
    ("pairs of two shapes", lambda: geometry(np.eye(2), (np.eye(2), np.eye(3))), DataError, r"pairs of shapes \(2, 2\) and \(3, 3\)"),
    ("texts of a pair missing", lambda: geometry_of(Letters(), ["a", "b"], (["a"], [])), DataError, r"pairs of 1 and 0 texts"),
    ("geometry of one row", lambda: geometry(np.eye(2), rows=1), UsageError, r"rows = 1: wanted 2 or more"),
]


@pytest.mark.parametrize(("name", "run", "error", "message"), CASES, ids=[case[0] for case in CASES])
def test_bad_input(
    name: str, run: Callable[[], Any], error: type[TwinvecError], message: str, record_property: Callable[[str, object], None]
) -> None:
    with pytest.raises(error, match=message) as caught:
        run()
    record_property("message", str(caught.value))
