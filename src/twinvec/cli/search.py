"""`twinvec search`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twinvec.cli import options as opt
from twinvec.cli.console import Console, aligned, one_line, room, width
from twinvec.cli.loading import check_inputs, load_encoder, texts_of
from twinvec.errors import UsageError

if TYPE_CHECKING:
    from twinvec.records import Hit


Collection = Annotated[Path, opt.argument("COLLECTION", "folder of the collection")]
Query = Annotated[str | None, opt.argument("QUERY", "what to search for")]
Queries = Annotated[
    Path | None, opt.value("--queries", metavar="FILE", help="a file of queries instead (txt, csv, jsonl, ...), or - for standard input")
]
K = Annotated[int, typer.Option("-k", "--top", min=1, metavar="N", help="hits a query")]
Model = Annotated[str | None, opt.value("--model", metavar="MODEL", help="the collection's model, where it is not in the place it was in")]
Prompt = Annotated[
    str | None, opt.value("--prompt", metavar="NAME", help='prompt for queries, "" for none; default: the one that the collection names')
]


def search(
    collection: Collection,
    query: Query = None,
    queries: Queries = None,
    k: K = 10,
    model: Model = None,
    prompt: Prompt = None,
    text: opt.TextColumn = None,
    encoding: opt.Encoding = "utf-8",
    format: opt.Format = None,
    precision: opt.Precision = "float32",
    revision: opt.Revision = None,
    device: opt.Device = None,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Search a collection with a question, or a file of them.

    Scores are cosines, best first. The query is encoded with the collection's own model and query prompt.

    \b
    Example:
      twinvec search faq "where is my parcel" -k 3
      twinvec search faq --queries questions.txt --json
    """
    out = Console(json, quiet)
    if (query is None) == (queries is None):
        raise UsageError("give a QUERY or --queries FILE" + ("" if query is None else ", not both"))
    from twinvec.index.collection import AUTO, Collection
    from twinvec.search.searcher import Searcher

    with Collection.open(collection) as opened:
        if queries is None:
            assert query is not None
            asked = [query]
        else:
            check_inputs([queries])
            asked = list(texts_of(queries, text=text, encoding=encoding, format=format))
        encoder = load_encoder(model if model is not None else opened.model, precision=precision, revision=revision, device=device)
        searcher = Searcher(encoder, opened, prompt=AUTO if prompt is None else prompt)
        found = searcher.search_with_report(asked if queries is not None else asked[0], k)
        if not opened.info()["searchable"]:
            out.note(f"{collection} holds no document that could be found; add some with: twinvec index {collection} DOCUMENTS")
    out.note_all(found.report.warnings())
    if queries is None:
        out.result({"hits": [hit.to_dict() for hit in found.hits[0]]}, hit_lines(found.hits[0]))
        return
    payload = {"queries": [{"query": text, "hits": [hit.to_dict() for hit in hits]} for text, hits in zip(found.queries, found.hits, strict=True)]}
    lines: list[str] = []
    for asked_text, hits in zip(found.queries, found.hits, strict=True):
        lines += [*([""] if lines else []), f"? {one_line(asked_text)}", *hit_lines(hits, indent="  ")]
    out.result(payload, lines)


def hit_lines(hits: Sequence[Hit], indent: str = "") -> list[str]:
    """Rank, score, id, text: one line a hit, cut to the terminal."""
    rows = [[str(rank), f"{hit.score:.4f}", one_line(hit.id, 40)] for rank, hit in enumerate(hits, start=1)]
    used = sum(max((width(row[i]) for row in rows), default=0) + 2 for i in range(3)) + len(indent)
    left = room(used)
    return aligned([[*row, one_line(hit.text, left)] for row, hit in zip(rows, hits, strict=True)], right=(0,), indent=indent)
