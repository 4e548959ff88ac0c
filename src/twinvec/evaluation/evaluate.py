"""`evaluate`: one file or folder in, one JSON-safe dict of scores out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from twinvec.data.beir import RetrievalSet, read_retrieval
from twinvec.data.dataset import Dataset, Kind, read_data
from twinvec.errors import DataError, UsageError, choose
from twinvec.evaluation.encoding import EncodedColumns, EncoderLike, encode_columns
from twinvec.evaluation.metrics import similarities
from twinvec.evaluation.nearest import nearest
from twinvec.evaluation.nli import score_nli
from twinvec.evaluation.pairs import score_pairs
from twinvec.evaluation.parallel import score_parallel
from twinvec.evaluation.retrieval import score_retrieval
from twinvec.evaluation.sts import score_sts
from twinvec.evaluation.triplets import score_triplets
from twinvec.evaluation.values import defined
from twinvec.records import Vectors
from twinvec.text import same_text_key

# The names under which published models keep the two prompts of retrieval.
QUERY_PROMPTS: Final = ("query", "s2p_query", "search_query")
DOCUMENT_PROMPTS: Final = ("passage", "document", "corpus", "search_document")
CROWDED: Final = 0.6  # a mean cosine of unrelated texts above which a fixed threshold like 0.5 means nothing


def evaluate(
    encoder: EncoderLike, data: str | Path | Dataset | RetrievalSet, *, prompt: str | None = None, prompts: Mapping[str, str | None] | None = None,
    kind: Kind | None = None, columns: str | None = None, labels: str | None = None, score_range: str | None = None, encoding: str = "utf-8",
    format: str | None = None, split: str = "test", limit: int | None = None, ks: Sequence[int] = (1, 3, 10), batch_tokens: int | None = None,
    on_long: str = "truncate", progress: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Measure `encoder` on a file of scores, pairs, NLI, triplets or parallel texts, or on a folder in BEIR layout.

    prompt: a name of the encoder's prompts, put before every text ("" for none at all, None for the model's default); prompts: a name for
    each column instead, such as {"query": "query", "document": "passage"}. In retrieval, when neither is given, the model's own query and
    passage prompts are used if it has them. kind, columns, labels, score_range, encoding, format: as in `data.read_data`, for paths only;
    split: which qrels of a folder; limit: only the first rows (or queries); ks: cut-offs of retrieval.

    Returns {"task": "sts" | "pairs" | "nli" | "triplets" | "parallel" | "retrieval", "file", "rows", scores..., "mean_random_cosine",
    "encode": report, "notes": [...]}: plain JSON values, an undefined score is None and the notes say why.
    Errors: DataError (a file, a row, a kind that has nothing to measure), UsageError (prompts), whatever the encoder raises.
    """
    if prompt is not None and prompts is not None:
        raise UsageError("evaluate: give either prompt (one for all texts) or prompts (one a column), not both")
    options: dict[str, Any] = {"batch_tokens": batch_tokens} if batch_tokens is not None else {}
    options |= {"on_long": on_long} if on_long != "truncate" else {}
    options |= {"progress": True} if progress else {}
    if not isinstance(data, (Dataset, RetrievalSet)):
        path = Path(data)
        if path.is_dir():
            data = read_retrieval(path, split=split)
        else:
            data = read_data(
                path, kind=kind, columns=columns, encoding=encoding, format=format, labels=labels, score_range=score_range, limit=limit
            )  # fmt: skip
    elif isinstance(data, Dataset) and limit is not None:
        data = data.select(range(min(limit, len(data))))
    if isinstance(data, RetrievalSet):
        return _retrieval(encoder, data, prompt, prompts, ks, limit, options)
    return _rows(encoder, data, prompt, prompts, options)


def _rows(
    encoder: EncoderLike, data: Dataset, prompt: str | None, prompts: Mapping[str, str | None] | None, options: dict[str, Any]
) -> dict[str, Any]:
    task = _task(data)
    texts = data.columns
    if not len(data):
        raise DataError(f"{data.path}: no rows, so there is nothing to measure")
    encoded = encode_columns(encoder, texts, _prompts(texts, prompt, prompts), **options)
    first, second, *more = texts
    u, v = encoded.vectors[first], encoded.vectors[second]
    labels = np.asarray(data.labels if data.labels is not None else [], dtype=np.float64)
    if task == "sts":
        scores = score_sts(u, v, labels)
    elif task == "pairs":
        scores = score_pairs(u, v, labels)
    elif task == "nli":
        scores = score_nli(u, v, labels)
    elif task == "triplets":
        scores = score_triplets(u, v, [encoded.vectors[name] for name in more])
    else:
        scores = score_parallel(u, v, texts[first], texts[second])
    crowd = mean_random_cosine(u, v, texts[first], texts[second])
    notes = [*data.notes, *scores.pop("notes"), *encoded.notes, *_crowded(crowd)]
    return _result(task, data.path, len(data), scores, crowd, encoded, notes)


def _task(data: Dataset) -> str:
    tasks = {"scores": "sts", "pairs": "pairs", "nli": "nli", "triplets": "triplets", "parallel": "parallel"}
    if data.kind not in tasks:
        raise DataError(
            f"{data.path}: nothing to measure in a file of kind {data.kind!r}; "
            "needs pairs with scores or 0/1, NLI, triplets, parallel texts, or a retrieval folder (see --kind and --columns)"
        )
    # Pairs without labels are partners, as translations are: each should find its own.
    return "parallel" if data.kind == "pairs" and data.labels is None else tasks[data.kind]


def _prompts(columns: Mapping[str, Any], prompt: str | None, prompts: Mapping[str, str | None] | None) -> dict[str, str | None]:
    for name in prompts or {}:
        choose("prompts: column", name, columns)
    return {name: (prompts or {}).get(name, prompt) for name in columns}


def _retrieval(
    encoder: EncoderLike, data: RetrievalSet, prompt: str | None, prompts: Mapping[str, str | None] | None, ks: Sequence[int], limit: int | None,
    options: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    notes = list(data.notes)
    queries = {query: data.queries[query] for query in list(data.queries)[:limit] if query in data.qrels}
    # Sorted by id, so that ties in score fall by id whatever the file's order.
    documents = sorted((d for d in data.corpus if d.text.strip()), key=lambda d: d.id)
    if not queries or not documents:
        raise DataError(f"{data.path}: no judged query or no document with a text, so there is nothing to measure")
    if len(documents) < len(data.corpus):
        notes.append(f"{len(data.corpus) - len(documents)} of {len(data.corpus)} documents are empty and are never found")
    texts = {"query": list(queries.values()), "document": [d.text for d in documents]}
    chosen = _prompts(texts, prompt, prompts)
    if prompt is None and prompts is None:
        offered = encoder.prompts
        chosen = {
            "query": next((name for name in QUERY_PROMPTS if name in offered), None),
            "document": next((name for name in DOCUMENT_PROMPTS if name in offered), None),
        }
    encoded = encode_columns(encoder, texts, chosen, **options)
    ranked, own = _rank(queries, documents, encoded.vectors, data.qrels, max(ks, default=1))
    if own:
        notes.append(f"{own} queries stand in the corpus themselves (same id, same text): a query does not count as its own answer")
    scores = score_retrieval(ranked, {query: data.qrels[query] for query in queries}, ks)
    scores["documents"] = len(documents)
    notes += [*scores.pop("notes"), *encoded.notes]
    return _result("retrieval", data.path, len(queries), scores, None, encoded, notes)


def _rank(
    queries: Mapping[str, str], documents: Sequence[Any], vectors: Mapping[str, Vectors], qrels: Mapping[str, Mapping[str, float]], k: int
) -> tuple[dict[str, list[str]], int]:
    """The first k document ids of each query by cosine, and how many queries had their own text taken out (as ArguAna needs)."""
    by_id = {document.id: document.text for document in documents}
    own = {
        query
        for query, text in queries.items()
        if query in by_id and query not in qrels[query] and same_text_key(by_id[query]).endswith(same_text_key(text))
    }
    ranked = {}
    found = nearest(vectors["query"], vectors["document"], k + 1)
    for query, rows in zip(queries, found, strict=True):
        ids = [documents[row].id for row in rows]
        ranked[query] = [document for document in ids if not (query in own and document == query)][:k]
    return ranked, len(own)


def mean_random_cosine(u: Vectors, v: Vectors, first: Sequence[str], second: Sequence[str]) -> float | None:
    """Mean cosine of texts that do not belong together: row i of u with the row half the file away in v. None with fewer than 2 such pairs."""
    rows, step = len(u), len(u) // 2
    strangers = [i for i in range(rows) if step and first[i] != second[(i + step) % rows]]
    if len(strangers) < 2:
        return None
    return defined(float(similarities(u[strangers], v[[(i + step) % rows for i in strangers]], "cosine").mean()))


def _crowded(crowd: float | None) -> list[str]:
    if crowd is None or crowd <= CROWDED:
        return []
    return [
        f"unrelated texts of this file have a cosine of {crowd:.2f} on average: this model's vectors crowd together, so compare ranks, "
        "or take a threshold from labelled pairs (best_f1_threshold_cosine), rather than a fixed one such as 0.5"
    ]


def _result(
    task: str, path: Path | None, rows: int, scores: dict[str, Any], crowd: float | None, encoded: EncodedColumns, notes: list[str]
) -> dict[str, Any]:
    result: dict[str, Any] = {"task": task, "file": str(path), "rows": rows, **scores}
    if task != "retrieval":
        result["mean_random_cosine"] = crowd
    result["encode"] = encoded.report
    result["notes"] = notes
    return result
