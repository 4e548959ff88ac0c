"""What a search refuses, and what it says. CASES is the table: name, how it is called, the error, a pattern of its message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from search_fakes import Letters

from twinvec.errors import DataError, ModelError, TwinvecError, UsageError
from twinvec.index.checks import SearchError
from twinvec.index.collection import Collection
from twinvec.search.fusion import Fusion
from twinvec.search.searcher import Searcher


@pytest.fixture
def searcher(tmp_path: Path) -> Iterator[Searcher]:
    with Collection.create(tmp_path / "faq", Letters()) as faq:
        faq.add([("a", "red apple"), ("b", "green apple")])
        yield Searcher(Letters(), faq)


def plain_folder(searcher: Searcher) -> str:
    folder = searcher.collection.path.parent / "empty"
    folder.mkdir()
    return str(folder)


Case = tuple[str, Callable[[Searcher], Any], type[TwinvecError], str]
CASES: list[Case] = [
    ("an unknown mode", lambda s: s.search("apple", mode="words"), UsageError, r"mode = 'words': choose one of dense, lexical, hybrid"),
    ("a mode misspelt", lambda s: s.search("apple", mode="hybird"), UsageError, r"did you mean 'hybrid'"),
    ("an empty query by words", lambda s: s.search(" ", mode="lexical"), SearchError, r"the query is empty: there is nothing to search for"),
    ("a query that is no text", lambda s: s.search(["a", 3], mode="hybrid"), SearchError, r"query 2 is 3 \(int\); wanted a text"),
    ("no hits asked", lambda s: s.search("apple", 0, mode="lexical"), SearchError, r"k = 0: wanted 1 hit or more"),
    ("a rerank depth of nothing", lambda s: s.search("apple", rerank=Letters(), rerank_depth=0), SearchError, r"k = 0: wanted 1 hit or more"),
    ("a filter that cannot be read", lambda s: s.search("apple", where="lang =", mode="lexical"), UsageError, r"where"),
    ("a reranker that is none", lambda s: s.search("apple", rerank=3), UsageError, r"rerank: wanted a CrossEncoder, an Encoder, or .*; got int"),
    ("a reranker's folder without a model", lambda s: s.search("apple", rerank=plain_folder(s)), ModelError, r"empty"),
    ("too few labelled queries", lambda s: s.tune({"q": "apple"}, {"q": {"a": 1}}), DataError, r"tune: 1 queries have .*; wanted 10"),
    ("labelled queries with an empty text", lambda s: s.tune({"q": ""}, {}), SearchError, r"the query is empty"),
    ("a fusion of no depth", lambda s: s.tune({}, {}, depth=0), UsageError, r"fusion depth = 0"),
    ("a fusion's weight", lambda s: Fusion(dense=2), UsageError, r"fusion dense = 2: wanted a number from 0 to 1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "call", "error", "pattern"), CASES, ids=[case[0] for case in CASES])
def test_refused(
    name: str, call: Callable[[Searcher], Any], error: type[TwinvecError], pattern: str, searcher: Searcher, record_property: Callable[..., None]
) -> None:
    with pytest.raises(error, match=pattern) as caught:
        call(searcher)
    record_property("message", str(caught.value))
