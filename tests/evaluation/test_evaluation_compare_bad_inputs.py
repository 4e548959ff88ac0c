"""What a comparison refuses, and what it says. CASES is the table: name, what is done, the error, a pattern of its message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compare_data import candidate, compared, pairs, retrieval
from evaluation_fakes import FakeEncoder

from twinvec.errors import DataError, UsageError
from twinvec.evaluation.compare import compare
from twinvec.evaluation.sources import EndpointEncoder, Shortened, VectorsEncoder, split_endpoint


def stored(rows: int = 1, **whose: Any) -> VectorsEncoder:
    return VectorsEncoder(np.ones((rows, 2), np.float32), name="v.npy", **whose)


def nowhere(**options: Any) -> EndpointEncoder:
    return EndpointEncoder("http://h", "m", **options)


CASES: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    ("no models", lambda: compare([], [pairs()]), UsageError, r"compare: 0 models and 1 files; wanted one or more of each"),
    ("two of one name", lambda: compared(candidate("a", 1.0), candidate("a", 2.0)), UsageError, r"compare: a is given twice; wanted each once"),
    ("no draws to compare by", lambda: compared(candidate("a", 1.0), draws=0), UsageError, r"bootstrap = 0, level = 0.95: wanted 1 draw or more"),
    ("a figure that the task has not", lambda: compared(candidate("a", 1.0), figure="ndcg"), UsageError, r"figure \(of .*\) = 'ndcg': choose one of"),
    ("a service without a model", lambda: split_endpoint("http://h/v1"), UsageError, r"wanted the service's URL and the model's name there, as in"),
    ("a service's odd port", lambda: split_endpoint("http://h:port/v1::m"), UsageError, r"wanted the service's URL"),
    ("a service of IPv6 without a model", lambda: split_endpoint("http://[::1]/v1"), UsageError, r"wanted the service's URL"),
    ("a password in the URL", lambda: split_endpoint("http://u:p@h/v1::m"), UsageError, r"a URL with a password in it: put the key into an environ"),
    ("a key that is not set", lambda: nowhere(key_variable="NO_SUCH_KEY"), UsageError, r"--api-key-env NO_SUCH_KEY: that environment variable is"),
    ("a service and a prompt", lambda: nowhere().encode_with_report(["a"], prompt="q"), UsageError, r"a service has no prompts by name"),
    ("a batch of none", lambda: nowhere(batch=0), UsageError, r"batch = 0, retries = 4, timeout = 60.0: wanted 1 or more"),
    (
        "broken vectors", lambda: VectorsEncoder(np.full((2, 2), np.nan, np.float32), name="v"), DataError,
        r"v: vectors of shape \(2, 2\) with NaN",
    ),
    ("rows that do not fit", lambda: stored(3).bind(pairs(4)), DataError, r"v.npy: 3 rows without texts; .* has 8 texts, 8 of them distinct; wanted"),
    (
        "a text without a vector", lambda: stored(texts=["a"]).encode_with_report(["a", "b"]), DataError,
        r"no vector for 'b', nor for 0 more of 2 texts; encode all texts",
    ),
    ("an id without a vector", lambda: stored(ids=["d0"]).bind(retrieval()), DataError, r"no row with the id 'd1', nor for 14 more of folder"),
    ("vectors that are not bound", lambda: stored().encode_with_report(["a"]), DataError, r"its rows carry no texts; bind it to the data first"),
    ("vectors and a prompt", lambda: stored(texts=["a"]).encode_with_report(["a"], prompt="q"), UsageError, r"holds vectors that are made already"),
    (
        "more dimensions than there are", lambda: Shortened(FakeEncoder(), 9).encode_with_report(["a"]), UsageError,
        r"dimensions = 9: this model has 8; wanted 1 to 8",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "do", "error", "message"), CASES, ids=[case[0] for case in CASES])
def test_bad_input(name: str, do: Callable[[], Any], error: type[Exception], message: str, record_property: Callable[[str, object], None]) -> None:
    with pytest.raises(error, match=message) as found:
        do()
    assert type(found.value) is error
    record_property("message", str(found.value))
