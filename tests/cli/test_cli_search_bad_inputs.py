"""What `twinvec search` says to wrong arguments: one line, an exit code, nothing on standard output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CASES: list[tuple[str, Callable[[Path, Path], list[Any]], int, str]] = [
    ("search: an unknown mode", lambda c, f: [c, "x", "--mode", "words"], 2, "'words' is not one of dense, lexical, hybrid"),
    ("search: no query", lambda c, f: [c], 2, "give a QUERY or --queries FILE"),
    ("search: a query and a file", lambda c, f: [c, "x", "--queries", f / "lines.txt"], 2, "give a QUERY or --queries FILE, not both"),
    ("search: a filter that cannot be read", lambda c, f: [c, "x", "--where", "topic ="], 2, "where"),
    ("search: a recall above 1", lambda c, f: [c, "x", "--recall", "1.5"], 2, "--recall"),
    ("search: an output of another format", lambda c, f: [c, "x", "-o", f / "x.parquet"], 2, "wanted one of .jsonl, .trec, .run"),
    ("search: a query file that is not there", lambda c, f: [c, "--queries", f / "no.txt"], 1, "no.txt: no such file or folder"),
    ("search: an empty query in a file", lambda c, f: [c, "--queries", f / "lines.txt", "--mode", "lexical"], 2, "query 2 of 4 is empty"),
    ("search: no collection", lambda c, f: [f / "none", "x", "--mode", "lexical"], 1, "none: not there; make a collection with: twinvec index"),
    ("search: tuning by qrels without queries", lambda c, f: [c, "--tune", f / "pairs.csv"], 2, "give their texts with --queries FILE"),
    ("search: tuning with one query", lambda c, f: [c, "x", "--tune", f / "pairs.csv"], 2, "--tune takes many labelled queries, not one QUERY"),
    (
        "search: tuning by a folder and a file of queries",
        lambda c, f: [c, "--tune", f, "--queries", f / "lines.txt"],
        2,
        "is a retrieval folder with queries of its own; leave out --queries",
    ),
    ("search: tuning by a folder that is none", lambda c, f: [c, "--tune", f], 1, "no corpus.jsonl"),
    ("search: a reranker that is no model", lambda c, f: [c, "x", "--mode", "lexical", "--rerank", f], 1, ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "code", "said"), CASES, ids=[case[0] for case in CASES])
def test_refused(
    name: str, arguments: Callable[[Path, Path], list[Any]], code: int, said: str, run: Any, collection: Path, files: Path,
    record_property: Callable[..., None],
) -> None:  # fmt: skip
    outcome = run("search", *arguments(collection, files))
    assert outcome.code == code, outcome.err
    assert said in outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.out == ""
    record_property("message", outcome.err.splitlines()[0].removeprefix("twinvec: error: "))
