"""Which rows of a data set may be used together: the pairs that belong together, texts that are the same text, rows that repeat or leak."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from twinvec.data.beir import RetrievalSet
from twinvec.data.dataset import Dataset, normalised_scores
from twinvec.data.labels import ENTAILMENT
from twinvec.errors import DataError, UsageError
from twinvec.text import same_text_key

UNDIRECTED = ("scores", "pairs", "parallel")  # kinds in which (a, b) and (b, a) say the same


def positives(data: Dataset, *, threshold: float = 0.8) -> Dataset:
    """The rows whose two texts belong together, as pairs without labels (parallel texts stay parallel).

    pairs: label 1, or all rows when there are no labels; scores: those whose score, mapped to 0..1 by its range, reaches `threshold` (0.8 is 4 of 5
    in STS-B: "mostly equivalent", Cer et al. 2017, table 1); nli: entailment; parallel and triplets come back as they are.
    DataError: other kinds, or nothing left. UsageError: a threshold outside 0..1.
    """
    if not 0 <= threshold <= 1:
        raise UsageError(f"threshold = {threshold}: wanted a number from 0 to 1; scores are mapped to that range first")
    if data.kind in ("parallel", "triplets") or (data.kind == "pairs" and data.labels is None):
        return data
    if data.kind == "pairs":
        rows, what = [row for row, label in enumerate(data.labels or []) if label == 1], "label 1"
    elif data.kind == "nli":
        rows, what = [row for row, label in enumerate(data.labels or []) if label == ENTAILMENT], "label entailment"
    elif data.kind == "scores":
        rows, what = (
            [row for row, score in enumerate(normalised_scores(data)) if score >= threshold - 1e-6],
            f"a score of at least {threshold:g} of 1",
        )
    else:
        raise DataError(f"{data.path}: holds {data.kind}, in which no two texts belong together; wanted pairs, scores, nli, triplets or parallel")
    if not rows:
        advice = "; lower the threshold" if data.kind == "scores" else ""
        raise DataError(f"{data.path}: no positive pairs: none of {len(data)} rows has {what}{advice}")
    note = f"{len(rows)} of {len(data)} rows are used as positive pairs ({what})"
    mapping = {role: name for role, name in data.mapping.items() if role != "label"}
    kept = data.select(rows)
    return replace(kept, kind="pairs", labels=None, label_names=None, score_range=None, mapping=mapping, notes=[*data.notes, note])


def text_ids(data: Dataset) -> dict[str, npt.NDArray[np.int64]]:
    """Column -> (n,) numbers of its texts; equal numbers, in any column, mean the same text (`same_text_key`)."""
    numbers: dict[str, int] = {}
    known: dict[str, int] = {}  # texts as they stand: each is normalised once
    for texts in data.columns.values():
        for text in texts:
            if text not in known:
                known[text] = numbers.setdefault(same_text_key(text), len(numbers))
    return {name: np.fromiter((known[text] for text in texts), np.int64, len(texts)) for name, texts in data.columns.items()}


def row_keys(data: Dataset, ids: dict[str, npt.NDArray[np.int64]] | None = None) -> list[tuple[int, ...]]:
    """For each row, the numbers of its texts and of its group: what no other row of a batch should have (`LengthBucketedOrder(keys=...)`).

    Empty texts count as texts; groups have numbers of their own (below 0), so that a group never looks like a text. ids: `text_ids` of the data,
    where it is known already.
    """
    sides = [column.tolist() for column in (ids or text_ids(data)).values()]
    rows = list(zip(*sides, strict=True))
    if data.groups is None:
        return rows
    return [row if group < 0 else (*row, -1 - group) for row, group in zip(rows, data.groups, strict=True)]


def without_repeats(data: Dataset) -> Dataset:
    """The rows that repeat no earlier one: the texts are equal as they stand and so is the label; pairs without a direction count in either order.

    The same pair with two labels stays twice: that is a contradiction for `check_data` to report, not a repeat. A note says how many went.
    """
    seen: set[tuple[object, ...]] = set()
    kept = []
    for row, key in enumerate(_keys(data)):
        whole = (*key, None if data.labels is None else data.labels[row])
        if whole not in seen:
            seen.add(whole)
            kept.append(row)
    if len(kept) == len(data):
        return data
    order = " (in either order)" if data.kind in UNDIRECTED else ""
    note = f"{len(data) - len(kept)} of {len(data)} rows left out because they repeat an earlier one{order}"
    return replace(data.select(kept), notes=[*data.notes, note])


def _keys(data: Dataset) -> Iterable[tuple[str, ...]]:
    rows = zip(*data.columns.values(), strict=True)
    return (tuple(sorted(texts)) for texts in rows) if data.kind in UNDIRECTED else rows


def without_pairs_of(data: Dataset, others: Dataset | Sequence[Dataset]) -> Dataset:
    """The rows that share no pair with `others` (the evaluation files): what training may use when its test must stay unseen.

    A row goes when two of its texts (any two of a triplet) stand in one row of one of `others`, in either order, after `same_text_key`.
    Of single texts, those that stand anywhere in `others` go. One text shared with a test pair is no leak: that half of the pair says nothing
    about the other. A note for each file says how many rows it cost; DataError when nothing is left.
    """
    listed = [others] if isinstance(others, Dataset) else list(others)
    alone = len(data.columns) == 1
    left = list(range(len(data)))
    notes = []
    rows = _normalised_rows(data)
    for other in listed:
        found = _normalised_rows(other)
        texts = {text for row in found for text in row} if alone else set()
        pairs = {pair for row in found for pair in _pairs(row)}
        kept = [i for i in left if not (rows[i][0] in texts if alone else any(pair in pairs for pair in _pairs(rows[i])))]
        if len(kept) < len(left):
            what = "their text" if alone else "their pair (in either order)"
            notes.append(f"{len(left) - len(kept)} of {len(data)} rows left out because {other.path} has {what}")
        left = kept
    if len(data) and not left:
        raise DataError(f"{data.path}: every row is in {' or '.join(str(other.path) for other in listed)}, so nothing is left to train on")
    return replace(data.select(left), notes=[*data.notes, *notes]) if notes else data


def _pairs(row: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every two texts of a row, the lesser first."""
    return ((a, b) if a <= b else (b, a) for a, b in combinations(row, 2))


def _normalised_rows(data: Dataset) -> list[tuple[str, ...]]:
    """Each row's texts by `same_text_key`, in the order of the columns."""
    known: dict[str, str] = {}
    for texts in data.columns.values():
        for text in texts:
            if text not in known:
                known[text] = same_text_key(text)
    return list(zip(*([known[text] for text in texts] for texts in data.columns.values()), strict=True))


def judged_pairs(data: RetrievalSet) -> Dataset:
    """The relevant documents of each query as pairs (sentence1: the query, sentence2: the document): training on a retrieval folder's train split.

    Rows of one query are one group, so that its other relevant documents are no negatives. Documents without a text are left out.
    """
    texts = {document.id: document.text for document in data.corpus}
    queries: list[str] = []
    found: list[str] = []
    groups: list[int] = []
    for number, (query, judged) in enumerate(data.qrels.items()):
        for document, grade in judged.items():
            text = texts.get(document, "")
            if grade > 0 and query in data.queries and text.strip():
                queries.append(data.queries[query])
                found.append(text)
                groups.append(number)
    if not found:
        raise DataError(f"{data.path}: no judged pair of a query and a document with a text; is there a train split (qrels/train.tsv)?")
    notes = [f"{len(found)} pairs of {len(data.qrels)} judged queries"]
    return Dataset(
        kind="pairs", columns={"sentence1": queries, "sentence2": found}, path=data.path, notes=notes, groups=groups,
        mapping={"sentence1": "query", "sentence2": "document"},
    )  # fmt: skip
