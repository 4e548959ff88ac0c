"""`twinvec search`."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinvec.cli import options as opt
from twinvec.cli.console import Console, aligned, one_line, room, width
from twinvec.cli.loading import check_inputs, check_output, load_encoder
from twinvec.errors import DataError, UsageError

if TYPE_CHECKING:
    from twinvec.records import Document, Hit
    from twinvec.search.searcher import Searcher
    from twinvec.search.tuning import Tuned

MODES = ("dense", "lexical", "hybrid")
KINDS = ("auto", "exact", "flat", "ivf", "ivfpq", "hnsw")
OUTPUTS = (".jsonl", ".trec", ".run")

Collection = Annotated[str, opt.argument("COLLECTION", "folder of the collection, or its URL (postgresql://..., milvus://...)")]
Query = Annotated[str | None, opt.argument("QUERY", "what to search for")]
Queries = Annotated[
    Path | None, opt.value("--queries", metavar="FILE", help="a file of queries instead (txt, csv, jsonl, ...), or - for standard input")
]
K = Annotated[int, typer.Option("-k", "--top", min=1, metavar="N", help="hits a query")]
Mode = Annotated[str, opt.choice("--mode", choices=MODES, help="by meaning, by words (BM25), or by both")]
Where = Annotated[str | None, opt.value("--where", metavar="FILTER", help="only documents that match, for example \"lang = 'zh' and year >= 2020\"")]
Recall = Annotated[
    float | None, opt.value("--recall", metavar="SHARE", min=0.0, max=1.0, help="share of true neighbours an approximate index is to find, as 0.95")
]
Kind = Annotated[str | None, opt.choice("--kind", choices=KINDS, help="kind of dense search; default: the collection's", show_default=False)]
Rerank = Annotated[str | None, opt.value("--rerank", metavar="MODEL", help="a cross-encoder or encoder that scores the best hits again")]
RerankDepth = Annotated[int, typer.Option("--rerank-depth", min=1, metavar="N", help="how many hits are scored again")]
Explain = Annotated[bool, typer.Option("--explain", help="show what each score is made of")]
Output = Annotated[
    Path | None,
    opt.value(
        "--output", "-o", metavar="FILE", help="write the hits to a file: .jsonl, or .trec (a run file of query id, Q0, id, rank, score, name)"
    ),
]
Tune = Annotated[
    Path | None,
    opt.value(
        "--tune",
        metavar="QRELS",
        help="choose how hybrid search fuses, by a retrieval folder or a qrels .tsv (then with --queries); stored for later",
    ),
]
Model = Annotated[str | None, opt.value("--model", metavar="MODEL", help="the collection's model, where it is not in the place it was in")]
Prompt = Annotated[
    str | None, opt.value("--prompt", metavar="NAME", help='prompt for queries, "" for none; default: the one that the collection names')
]


def search(
    collection: Collection,
    query: Query = None,
    queries: Queries = None,
    k: K = 10,
    mode: Mode = "dense",
    where: Where = None,
    recall: Recall = None,
    kind: Kind = None,
    rerank: Rerank = None,
    rerank_depth: RerankDepth = 50,
    explain: Explain = False,
    output: Output = None,
    force: opt.Force = False,
    tune: Tune = None,
    split: opt.Split = "test",
    model: Model = None,
    prompt: Prompt = None,
    text: opt.TextColumn = None,
    id: opt.IdColumn = None,
    encoding: opt.Encoding = "utf-8",
    format: opt.Format = None,
    engine: opt.Engine = "auto",
    precision: opt.Precision = None,
    revision: opt.Revision = None,
    device: opt.Device = None,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Search a collection with a question, or a file of them.

    Scores are cosines, best first; with --mode lexical they are BM25, with hybrid the sum of reciprocal ranks (or what --tune chose).
    The query is encoded with the collection's own model and query prompt.

    \b
    Example:
      twinvec search faq "where is my parcel" -k 3
      twinvec search faq "ERR-1024" --mode hybrid --where "lang = 'en'"
      twinvec search faq --queries questions.txt --json
      twinvec search faq --tune labelled/
    """
    out = Console(json, quiet)
    _check_usage(query, queries, tune, where)
    if output is not None:
        check_output(output, OUTPUTS, force)
    check_inputs([path for path in (queries, tune) if path is not None])
    from twinvec.index.models import AUTO
    from twinvec.index.remote import open_collection
    from twinvec.search.searcher import Searcher

    with open_collection(collection) as opened:
        options = {"engine": engine, "precision": precision, "revision": revision, "device": device}
        reads = {"text": text, "id": id, "encoding": encoding, "format": format}
        asked = [] if tune is not None else _asked(query, queries, reads)
        encoder = None
        if mode != "lexical" or tune is not None:
            encoder = load_encoder(model if model is not None else opened.model, **options)
        elif model is not None:
            out.note("--model is not needed with --mode lexical, which reads words only")
        searcher = Searcher(encoder, opened, prompt=AUTO if prompt is None else prompt)
        if tune is not None:
            out.result(*_tuned(out, searcher, tune, queries, split, where, reads))
            return
        found = searcher.search_with_report(
            [document.text for document in asked], k, mode=mode, where=where, recall=recall, kind=kind, rerank=rerank, rerank_depth=rerank_depth,
            explain=explain,
        )  # fmt: skip
        if not opened.info().get("searchable", len(opened)):
            out.note(f"{collection} holds no document that could be found; add some with: twinvec index {collection} DOCUMENTS")
    out.note_all(found.notes)
    if (why := _why_none(found.hits, mode, where)) is not None:
        out.note(why)
    if output is not None:
        write_hits(output, asked, found.hits, mode)
        payload = {"output": str(output), "queries": len(asked), "hits": sum(map(len, found.hits))}
        out.result(payload, [f"{output}: {payload['hits']} hits of {len(asked)} queries"])
    elif queries is None:
        out.result({"hits": [hit.to_dict() for hit in found.hits[0]]}, hit_lines(found.hits[0]))
    else:
        lines: list[str] = []
        for document, hits in zip(asked, found.hits, strict=True):
            lines += [*([""] if lines else []), f"? {one_line(document.text)}", *hit_lines(hits, indent="  ")]
        entries = [_entry(document, hits) for document, hits in zip(asked, found.hits, strict=True)]
        out.result({"queries": entries}, lines)


def _check_usage(query: str | None, queries: Path | None, tune: Path | None, where: str | None) -> None:
    """What can be said before a model is loaded."""
    if where is not None:
        from twinvec.index.where import parse_where

        parse_where(where)
    if tune is None:
        if (query is None) == (queries is None):
            raise UsageError("give a QUERY or --queries FILE" + ("" if query is None else ", not both"))
    elif query is not None:
        raise UsageError("--tune takes many labelled queries, not one QUERY; give --queries FILE and --tune QRELS, or --tune FOLDER")
    elif tune.is_dir() and queries is not None:
        raise UsageError(f"{tune} is a retrieval folder with queries of its own; leave out --queries, or give its qrels file to --tune")
    elif queries is None and tune.is_file():
        raise UsageError(f"--tune {tune}: judgements name queries by id; give their texts with --queries FILE (columns id and text)")


def _why_none(hits: Sequence[Sequence[Hit]], mode: str, where: str | None) -> str | None:
    """Silence would look like a fault: what to look at when queries that had a condition to meet found nothing."""
    none = sum(not found for found in hits)
    if not none or (where is None and mode != "lexical"):
        return None
    said = "no hits" if len(hits) == 1 else f"no hits for {none:,} of {len(hits):,} queries"
    words = "holds a word of the query" if mode == "lexical" else ""
    fits = "fits --where" if where is not None else ""
    said += f": no document {' and '.join(part for part in (fits, words) if part)}"
    if where is None:
        return said
    return f"{said}. A field that a document lacks fits nothing, and a text is no number: year >= 2020 and year >= '2020' find different documents"


def _asked(query: str | None, queries: Path | None, reads: dict[str, Any]) -> list[Document]:
    """The queries with their ids; those of a file without ids are counted from 1."""
    from twinvec.cli.loading import documents_of, texts_of
    from twinvec.records import Document

    if queries is None:
        return [Document("1", query or "")]
    if reads["id"] is None and (str(queries) == "-" or not _has_ids(queries, reads)):
        texts = texts_of(queries, **{name: value for name, value in reads.items() if name != "id"})
        return [Document(str(number), text) for number, text in enumerate(texts, start=1)]
    return list(documents_of([queries], **reads))


def _has_ids(path: Path, reads: dict[str, Any]) -> bool:
    """Whether the first row has an id of its own, rather than one that the reader makes of the file's name and the row."""
    from twinvec.data.tables import stream_rows

    row: dict[str, Any] = {}
    with suppress(DataError):  # said by the reader that comes next
        _, row = next(iter(stream_rows(path, encoding=reads["encoding"], format=reads["format"])), (0, {}))
    return any(name in row for name in ("_id", "id", "qid", "query_id", "query-id"))


def _entry(document: Document, hits: Sequence[Hit]) -> dict[str, Any]:
    return {"id": document.id, "query": document.text, "hits": [hit.to_dict() for hit in hits]}


def _tuned(
    out: Console, searcher: Searcher, tune: Path, queries: Path | None, split: str, where: str | None, reads: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:  # fmt: skip
    from twinvec.data.beir import read_qrels, read_retrieval

    if queries is None:
        labelled = read_retrieval(tune, split)
        out.note_all(labelled.notes)
        texts, qrels = labelled.queries, labelled.qrels
    else:
        qrels, notes = read_qrels(tune)
        out.note_all(notes)
        texts = {document.id: document.text for document in _asked(None, queries, reads)}
    tuned = searcher.tune(texts, qrels, where=where)
    out.note_all(tuned.notes)
    return tuned.to_dict(), tuned_lines(tuned)


def tuned_lines(tuned: Tuned) -> list[str]:
    """What was chosen, and nDCG@10 on both halves."""
    fusion = tuned.fusion
    how = "reciprocal ranks" if fusion.method == "rrf" else "weighted scores"
    rows = [["nDCG@10", "chosen on", "held out"], ["queries", str(tuned.queries[0]), str(tuned.queries[1])]]
    rows += [[name, f"{tuned.chosen_on[name]:.4f}", f"{tuned.held_out[name]:.4f}"] for name in tuned.held_out]
    return [f"stored: {how}, weight {fusion.dense:g} dense and {1 - fusion.dense:g} lexical", *aligned(rows, right=(1, 2))]


def write_hits(path: Path, asked: Sequence[Document], hits: Sequence[Sequence[Hit]], name: str) -> None:
    """One JSON object a query, or a TREC run file. DataError: an id with white space, which a run file cannot hold."""
    from twinvec.files import write_text

    lines = []
    for document, found in zip(asked, hits, strict=True):
        if path.suffix.lower() == ".jsonl":
            lines.append(jsonlib.dumps(_entry(document, found), ensure_ascii=False, allow_nan=False))
            continue
        for rank, hit in enumerate(found, start=1):
            for identity in (document.id, hit.id):
                if len(identity.split()) != 1:
                    raise DataError(f"{path}: the id {identity!r} has white space in it, which a run file cannot hold; write .jsonl instead")
            lines.append(f"{document.id} Q0 {hit.id} {rank} {hit.score!r} twinvec-{name}")
    write_text(path, "".join(f"{line}\n" for line in lines))


def hit_lines(hits: Sequence[Hit], indent: str = "") -> list[str]:
    """Rank, score, id, text: one line a hit, cut to the terminal; below it what the score is made of, where that was asked."""
    rows = [[str(rank), f"{hit.score:.4f}", one_line(hit.id, 40)] for rank, hit in enumerate(hits, start=1)]
    used = sum(max((width(row[i]) for row in rows), default=0) + 2 for i in range(3)) + len(indent)
    left = room(used)
    texts = [one_line(hit.passage.text if hit.passage is not None else hit.text, left) for hit in hits]
    lines = aligned([[*row, text] for row, text in zip(rows, texts, strict=True)], right=(0,), indent=indent)
    out: list[str] = []
    for line, hit in zip(lines, hits, strict=True):
        out.append(line)
        if hit.parts is not None:
            said = [f"{label.replace('_', ' ')} {value:.4g}" for label, value in hit.parts.items() if value is not None]
            out.append(f"{indent}     {', '.join(said)}")
    return out
