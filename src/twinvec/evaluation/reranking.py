"""Reranking lists: a query, texts that answer it and texts that do not. Are the answers put first?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from twinvec.data.dataset import Dataset
from twinvec.data.tables import format_of, stream_rows
from twinvec.errors import DataError
from twinvec.evaluation.measured import Measured, of_means
from twinvec.evaluation.metrics import Floats, average_precision_at, mrr, ndcg, similarities
from twinvec.evaluation.values import trouble
from twinvec.files import sha256_file
from twinvec.records import Vectors

QUERY: Final = ("query", "question", "anchor", "查询", "问题")
POSITIVE: Final = ("positive", "positives", "pos", "正例")
NEGATIVE: Final = ("negative", "negatives", "neg", "负例")


@dataclass(frozen=True)
class RerankingSet:
    """Query i has the texts candidates[i], and relevant[i] says which of them answer it. numbers: the rows in the file, from 1."""

    queries: list[str]
    candidates: list[list[str]]
    relevant: list[list[bool]]
    numbers: list[int]
    path: Path = Path("(memory)")
    sha256: str = ""
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.queries)

    def describe(self) -> list[str]:
        texts = sum(map(len, self.candidates))
        lines = [f"{self.path}: {len(self)} queries with {texts} texts to rank, {sum(map(sum, self.relevant))} of them answers"]
        return [*lines, *(f"  note: {note}" for note in self.notes)]


def has_lists(path: Path, format: str | None = None, encoding: str = "utf-8") -> bool:
    """Whether the first row of a file has a positive and a negative, in lists or not."""
    if not path.is_file():
        return False
    _, row = next(iter(stream_rows(path, format=format, encoding=encoding)), (None, {}))
    return all(_cell(row, names) is not None for names in (POSITIVE, NEGATIVE))


def is_reranking_file(path: Path, format: str | None = None, encoding: str = "utf-8") -> bool:
    """Whether a JSON or Parquet file holds lists of positives and negatives that are no plain triplets: several positives, or varying numbers."""
    if not path.is_file() or path.suffix.lower() in (".csv", ".tsv", ".txt", ".tab") or format in ("csv", "tsv", "tsv-quoted", "txt"):
        return False
    if format_of(path, format) not in ("jsonl", "json", "parquet"):
        return False
    shapes: set[tuple[int, int]] = set()
    for _, row in stream_rows(path, format=format, encoding=encoding):
        positive, negative = _cell(row, POSITIVE), _cell(row, NEGATIVE)
        if _cell(row, QUERY) is None or not isinstance(positive, list) or not isinstance(negative, list):
            return False
        shapes.add((len(positive), len(negative)))
        if len(shapes) > 1 or len(positive) > 1:
            return True
    return False


def read_reranking(path: Path, format: str | None = None, encoding: str = "utf-8") -> RerankingSet:
    """A file of query, positive and negative (a text or a list each). Queries without an answer or another text are left out, with a note."""
    queries, candidates, relevant, numbers = [], [], [], []
    idle = 0
    for number, (line, row) in enumerate(stream_rows(path, format=format, encoding=encoding), start=1):
        at = f"{path}, row {number}" + (f" (line {line})" if line else "")
        query = _cell(row, QUERY)
        if not isinstance(query, str):
            raise DataError(f"{at}: query is {query!r:.60}; wanted a text under one of {', '.join(QUERY)}")
        positive, negative = _texts(at, row, POSITIVE), _texts(at, row, NEGATIVE)
        if not positive or not negative:
            idle += 1
            continue
        queries.append(query)
        candidates.append([*positive, *negative])
        relevant.append([True] * len(positive) + [False] * len(negative))
        numbers.append(number)
    notes = [f"{idle} queries have no answer, or nothing else than answers, and are left out: every order of them is right"] if idle else []
    if not queries:
        raise DataError(f"{path}: no query with both an answer and another text, so there is nothing to rank")
    return RerankingSet(queries, candidates, relevant, numbers, path, sha256_file(path), notes)


def reranking_of(data: Dataset) -> RerankingSet:
    """Pairs with labels as lists: rows with the same first text are one query's."""
    if data.kind != "pairs" or data.labels is None:
        raise DataError(f"{data.path}: holds {data.kind}; reranking wants query, positive and negative, or pairs of query and text with 0 or 1")
    first, second = list(data.columns.values())[:2]
    grouped: dict[str, list[int]] = {}
    for row, query in enumerate(first):
        grouped.setdefault(query, []).append(row)
    kept = {query: rows for query, rows in grouped.items() if len({data.labels[row] for row in rows}) == 2}
    if not kept:
        raise DataError(f"{data.path}: no first text has rows of both labels, so there is nothing to rank")
    idle = len(grouped) - len(kept)
    notes = (
        [f"{idle} of {len(grouped)} queries have no answer, or nothing else than answers, and are left out: every order of them is right"]
        if idle
        else []
    )
    return RerankingSet(
        list(kept), [[second[row] for row in rows] for rows in kept.values()], [[data.labels[row] == 1 for row in rows] for rows in kept.values()],
        [data.numbers[rows[0]] for rows in kept.values()], data.path, data.sha256, [*data.notes, *notes],
    )  # fmt: skip


def score_reranking(scores: Sequence[Floats], relevant: Sequence[Sequence[bool]], ks: Sequence[int] = (10,)) -> dict[str, Floats]:
    """scores[i] (m_i,) of query i's texts, relevant[i] which of them answer it -> each figure by query: "map", and "mrr@k", "ndcg@k" for each k.

    Texts of equal score: the answers come last, so that vectors which tell nothing apart gain nothing.
    """
    names = ["map", *(f"{metric}@{k}" for k in ks for metric in ("mrr", "ndcg"))]
    values: dict[str, list[float]] = {name: [] for name in names}
    for found, right in zip(scores, relevant, strict=True):
        order = sorted(range(len(found)), key=lambda i: (-found[i], right[i]))
        ranked = [str(i) for i in order]
        gains = {str(i): 1.0 for i, answer in enumerate(right) if answer}
        values["map"].append(average_precision_at(ranked, gains, len(ranked)))
        for k in ks:
            values[f"mrr@{k}"].append(mrr(ranked, gains, k))
            values[f"ndcg@{k}"].append(ndcg(ranked, gains, k))
    return {name: np.asarray(value, dtype=np.float64) for name, value in values.items()}


def measure_reranking(data: RerankingSet, queries: Vectors, texts: Vectors, ks: Sequence[int]) -> Measured:
    """queries (q, D); texts (sum of m_i, D), the texts of query after query."""
    counts = [len(found) for found in data.candidates]
    cosine = similarities(np.repeat(queries, counts, axis=0), texts, "cosine")
    why = trouble(cosine, "cosine")
    found = np.split(np.where(np.isfinite(cosine), cosine, -np.inf), np.cumsum(counts)[:-1])
    values = score_reranking(found, data.relevant, ks)
    result: dict[str, Any] = {name: None if why else float(value.mean()) for name, value in values.items()}
    result |= {"texts_ranked": len(cosine), "notes": [why] if why else []}

    def mistakes(count: int) -> list[dict[str, Any]]:
        worst = [int(i) for i in np.argsort(values["map"], kind="stable")[:count] if values["map"][i] < 1]
        out = []
        for i in worst:
            top = max(range(len(found[i])), key=lambda j: (found[i][j], not data.relevant[i][j]))
            answer = max((j for j, right in enumerate(data.relevant[i]) if right), key=lambda j: found[i][j])
            out.append(
                {
                    "row": data.numbers[i], "texts": {"query": data.queries[i]}, "map": float(values["map"][i]),
                    "found_text": data.candidates[i][top], "wanted_text": data.candidates[i][answer],
                }
            )  # fmt: skip
        return out

    named = [{"query": query} for query in data.queries]
    return of_means("reranking", "map", result, {} if why else values, names=list(data.numbers), texts=named, mistakes=mistakes)


def _cell(row: dict[str, Any], names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _texts(at: str, row: dict[str, Any], names: Sequence[str]) -> list[str]:
    cell = _cell(row, names)
    found = [cell] if isinstance(cell, str) else cell if isinstance(cell, list) else [] if cell is None else None
    if found is None or any(not isinstance(text, str) for text in found):
        raise DataError(f"{at}: {names[0]} is {cell!r:.60}; wanted a text or a list of texts")
    return list(found)
