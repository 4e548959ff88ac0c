"""`evaluate`: one file or folder in, one JSON-safe dict of scores out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from twinvec.data.beir import RetrievalSet
from twinvec.data.dataset import Dataset, Kind, read_data
from twinvec.errors import DataError, UsageError, choose
from twinvec.evaluation.classification import FOLDS, measure_classification
from twinvec.evaluation.clustering import measure_clustering
from twinvec.evaluation.encoding import EncodedColumns, EncoderLike, encode_columns
from twinvec.evaluation.extras import Extras, add_extras
from twinvec.evaluation.measured import Measured
from twinvec.evaluation.metrics import similarities
from twinvec.evaluation.nearest import nearest
from twinvec.evaluation.nli import measure_nli
from twinvec.evaluation.pairs import measure_pairs
from twinvec.evaluation.parallel import measure_parallel
from twinvec.evaluation.reading import Held, read_held, task_of
from twinvec.evaluation.reranking import RerankingSet, measure_reranking, reranking_of
from twinvec.evaluation.retrieval import measure_retrieval
from twinvec.evaluation.rows import Rows
from twinvec.evaluation.sts import measure_sts
from twinvec.evaluation.triplets import measure_triplets
from twinvec.evaluation.values import defined
from twinvec.records import Vectors
from twinvec.text import same_text_key

# The names under which published models keep the two prompts of retrieval.
QUERY_PROMPTS: Final = ("query", "s2p_query", "search_query")
DOCUMENT_PROMPTS: Final = ("passage", "document", "corpus", "search_document")
CROWDED: Final = 0.6  # a mean cosine of unrelated texts above which a fixed threshold like 0.5 means nothing

MEASURES: Final[dict[str, Callable[[Rows], Measured]]] = {
    "sts": measure_sts, "pairs": measure_pairs, "nli": measure_nli, "triplets": measure_triplets, "parallel": measure_parallel,
    "classification": measure_classification, "clustering": measure_clustering,
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What `measure` found: the result as `evaluate` gives it, what it was made of, and the vectors of each column."""

    result: dict[str, Any]
    measured: Measured
    encoded: EncodedColumns
    data: Held


def evaluate(
    encoder: EncoderLike, data: str | Path | Held, *, prompt: str | None = None, prompts: Mapping[str, str | None] | None = None,
    task: str | None = None, kind: Kind | None = None, columns: str | None = None, labels: str | None = None, score_range: str | None = None,
    encoding: str = "utf-8", format: str | None = None, split: str = "test", limit: int | None = None, ks: Sequence[int] = (1, 3, 10),
    train: str | Path | Dataset | None = None, folds: int = FOLDS, seed: int = 0, bootstrap: int = 0, level: float = 0.95, slices: bool = False,
    by: str | None = None, errors: int = 0, geometry: bool = False, protocol: bool = False, batch_tokens: int | None = None,
    on_long: str = "truncate", progress: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Measure `encoder` on a file of scores, pairs, NLI, triplets, parallel texts, classes or reranking lists, or on a folder in BEIR layout.

    prompt: a name of the encoder's prompts, put before every text ("" for none at all, None for the model's default); prompts: a name for
    each column instead, such as {"query": "query", "document": "passage"}. In retrieval and reranking, when neither is given, the model's
    own query and passage prompts are used if it has them. task: "clustering" for texts with classes, "reranking" for pairs; None: by the file.
    kind, columns, labels, score_range, encoding, format: as in `data.read_data`, for paths only; split: which qrels of a folder; limit: only
    the first rows (or queries); ks: cut-offs of retrieval. train, folds: the rows that teach a classifier, else that many folds of the file itself.

    bootstrap: draws of an interval for every figure (0: none), at confidence `level`, by `seed`; slices, by: the headline figure by language, by
    length and by a column of the file; errors: the so many worst rows as texts; geometry: how the vectors lie; protocol: notes on what may fool,
    such as training rows in the test.

    Returns {"task", "file", "rows", scores..., "mean_random_cosine", "encode": report, "notes": [...]}, and "intervals", "slices", "errors",
    "geometry" where asked for: plain JSON values, an undefined score is None and the notes say why.
    Errors: DataError (a file, a row, a kind that has nothing to measure), UsageError (prompts, options), whatever the encoder raises.
    """
    found = measure(
        encoder, data, prompt=prompt, prompts=prompts, task=task, kind=kind, columns=columns, labels=labels, score_range=score_range,
        encoding=encoding, format=format, split=split, limit=limit, ks=ks, train=train, folds=folds, seed=seed, batch_tokens=batch_tokens,
        on_long=on_long, progress=progress,
    )  # fmt: skip
    extras = Extras(bootstrap, level, seed, slices, by, errors, geometry, protocol, encoding, format)
    return add_extras(encoder, found.result, found.measured, found.encoded, found.data, extras)


def measure(
    encoder: EncoderLike, data: str | Path | Held, *, prompt: str | None = None, prompts: Mapping[str, str | None] | None = None,
    task: str | None = None, split: str = "test", limit: int | None = None, ks: Sequence[int] = (1, 3, 10),
    train: str | Path | Dataset | None = None, folds: int = FOLDS, seed: int = 0, batch_tokens: int | None = None, on_long: str = "truncate",
    progress: bool = True, **reads: Any,
) -> Outcome:  # fmt: skip
    """As `evaluate` without its extras, but keeping what the figures were made of. reads: kind, columns, labels, score_range, encoding, format."""
    if prompt is not None and prompts is not None:
        raise UsageError("evaluate: give either prompt (one for all texts) or prompts (one a column), not both")
    options: dict[str, Any] = {"batch_tokens": batch_tokens} if batch_tokens is not None else {}
    options |= {"on_long": on_long} if on_long != "truncate" else {}
    options |= {"progress": True} if progress else {}
    if isinstance(data, (str, Path)):
        data = read_held(data, task=task, split=split, limit=limit, **reads)
    elif isinstance(data, Dataset) and limit is not None:
        data = data.select(range(min(limit, len(data))))
    if isinstance(data, Dataset) and task == "reranking":
        data = reranking_of(data)
    if isinstance(data, RetrievalSet):
        return _retrieval(encoder, data, prompt, prompts, ks, limit, options)
    if isinstance(data, RerankingSet):
        return _reranking(encoder, data, prompt, prompts, ks, limit, options)
    taught = _training_rows(train, task_of(data, task), reads)
    return _rows(encoder, data, task_of(data, task), prompt, prompts, options, {"train": taught, "folds": folds, "seed": seed})


def _training_rows(train: str | Path | Dataset | None, task: str, reads: Mapping[str, Any]) -> Dataset | None:
    if train is None:
        return None
    if task != "classification":
        raise UsageError(f"train: rows to learn from are for classification (texts with classes), not for {task}")
    data = train if isinstance(train, Dataset) else read_data(train, **reads)
    if data.kind != "labelled":
        raise DataError(f"{data.path}: holds {data.kind}; wanted texts with classes, as in the file that is measured")
    return data


def _rows(
    encoder: EncoderLike, data: Dataset, task: str, prompt: str | None, prompts: Mapping[str, str | None] | None, options: dict[str, Any],
    settings: dict[str, Any],
) -> Outcome:  # fmt: skip
    if not len(data):
        raise DataError(f"{data.path}: no rows, so there is nothing to measure")
    texts = dict(data.columns)
    chosen = _prompts(texts, prompt, prompts)
    taught: Dataset | None = settings["train"]
    if taught is not None:
        texts["training text"] = taught.columns["text"]
        chosen["training text"] = chosen["text"]
    encoded = encode_columns(encoder, texts, chosen, **options)
    if taught is not None:
        settings = {**settings, "train": (taught, encoded.vectors["training text"])}
    measured = MEASURES[task](Rows(data, encoded.vectors, settings))
    notes = [*data.notes, *measured.scores["notes"], *encoded.notes]
    crowd = None
    if len(data.columns) > 1:
        first, second = list(data.columns)[:2]
        crowd = mean_random_cosine(encoded.vectors[first], encoded.vectors[second], data.columns[first], data.columns[second])
    elif len(data) > 1:
        only = next(iter(data.columns))
        crowd = mean_random_cosine(encoded.vectors[only], encoded.vectors[only], data.columns[only], data.columns[only])
    return Outcome(_result(task, data.path, len(data), measured.scores, crowd, encoded, [*notes, *_crowded(crowd)]), measured, encoded, data)


def _prompts(columns: Mapping[str, Any], prompt: str | None, prompts: Mapping[str, str | None] | None) -> dict[str, str | None]:
    for name in prompts or {}:
        choose("prompts: column", name, columns)
    return {name: (prompts or {}).get(name, prompt) for name in columns}


def _two_prompts(
    encoder: EncoderLike, texts: Mapping[str, Any], prompt: str | None, prompts: Mapping[str, str | None] | None
) -> dict[str, str | None]:
    """Of queries and documents: what was asked for, else the model's own two prompts if it has them."""
    if prompt is not None or prompts is not None:
        return _prompts(texts, prompt, prompts)
    offered = encoder.prompts
    return {
        "query": next((name for name in QUERY_PROMPTS if name in offered), None),
        "document": next((name for name in DOCUMENT_PROMPTS if name in offered), None),
    }


def _retrieval(
    encoder: EncoderLike, data: RetrievalSet, prompt: str | None, prompts: Mapping[str, str | None] | None, ks: Sequence[int], limit: int | None,
    options: dict[str, Any],
) -> Outcome:  # fmt: skip
    notes = list(data.notes)
    queries = {query: data.queries[query] for query in list(data.queries)[:limit] if query in data.qrels}
    # Sorted by id, so that ties in score fall by id whatever the file's order.
    documents = sorted((d for d in data.corpus if d.text.strip()), key=lambda d: d.id)
    if not queries or not documents:
        raise DataError(f"{data.path}: no judged query or no document with a text, so there is nothing to measure")
    if len(documents) < len(data.corpus):
        notes.append(f"{len(data.corpus) - len(documents)} of {len(data.corpus)} documents are empty and are never found")
    texts = {"query": list(queries.values()), "document": [d.text for d in documents]}
    encoded = encode_columns(encoder, texts, _two_prompts(encoder, texts, prompt, prompts), **options)
    ranked, own = _rank(queries, documents, encoded.vectors, data.qrels, max(ks, default=1))
    if own:
        notes.append(f"{own} queries stand in the corpus themselves (same id, same text): a query does not count as its own answer")
    judged = {query: data.qrels[query] for query in queries}
    measured = measure_retrieval(ranked, judged, queries, {d.id: d.text for d in documents}, ks)
    measured.scores["documents"] = len(documents)
    notes += [*measured.scores["notes"], *encoded.notes]
    return Outcome(_result("retrieval", data.path, len(queries), measured.scores, None, encoded, notes), measured, encoded, data)


def _reranking(
    encoder: EncoderLike, data: RerankingSet, prompt: str | None, prompts: Mapping[str, str | None] | None, ks: Sequence[int], limit: int | None,
    options: dict[str, Any],
) -> Outcome:  # fmt: skip
    if limit is not None:
        data = RerankingSet(
            data.queries[:limit], data.candidates[:limit], data.relevant[:limit], data.numbers[:limit], data.path, data.sha256, data.notes
        )  # fmt: skip
    texts = {"query": data.queries, "document": [text for found in data.candidates for text in found]}
    encoded = encode_columns(encoder, texts, _two_prompts(encoder, texts, prompt, prompts), **options)
    measured = measure_reranking(data, encoded.vectors["query"], encoded.vectors["document"], ks)
    notes = [*data.notes, *measured.scores["notes"], *encoded.notes]
    return Outcome(_result("reranking", data.path, len(data), measured.scores, None, encoded, notes), measured, encoded, data)


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
    task: str, path: Path | None, rows: int, scores: Mapping[str, Any], crowd: float | None, encoded: EncodedColumns, notes: list[str]
) -> dict[str, Any]:
    result: dict[str, Any] = {"task": task, "file": str(path), "rows": rows, **{key: value for key, value in scores.items() if key != "notes"}}
    if task not in ("retrieval", "reranking"):
        result["mean_random_cosine"] = crowd
    result["encode"] = encoded.report
    result["notes"] = notes
    return result
