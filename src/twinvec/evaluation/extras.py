"""What `evaluate` adds to a result when asked: intervals, slices, the worst rows, geometry, and notes on the protocol."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from twinvec.data.beir import RetrievalSet
from twinvec.data.dataset import Dataset
from twinvec.data.tables import read_table
from twinvec.errors import UsageError, choose
from twinvec.evaluation.certainty import intervals
from twinvec.evaluation.encoding import EncodedColumns
from twinvec.evaluation.measured import Measured
from twinvec.evaluation.protocol import not_a_test, trained_on
from twinvec.evaluation.reading import Held
from twinvec.evaluation.reranking import RerankingSet
from twinvec.evaluation.slices import sliced
from twinvec.evaluation.space import space_of


@dataclass(frozen=True)
class Extras:
    """See `evaluate`. encoding, format: how the file is read a second time for the column `by`."""

    bootstrap: int = 0
    level: float = 0.95
    seed: int = 0
    slices: bool = False
    by: str | None = None
    errors: int = 0
    geometry: bool = False
    protocol: bool = False
    encoding: str = "utf-8"
    format: str | None = None


def add_extras(encoder: Any, result: dict[str, Any], measured: Measured, encoded: EncodedColumns, data: Held, extras: Extras) -> dict[str, Any]:
    """`result` with what was asked for; the notes stay last."""
    if extras.bootstrap < 0 or extras.errors < 0:
        raise UsageError(f"bootstrap = {extras.bootstrap}, errors = {extras.errors}: wanted 0 (none) or more")
    if not 0 < extras.level < 1:
        raise UsageError(f"level = {extras.level}: wanted a confidence between 0 and 1, such as 0.95")
    notes = result.pop("notes")
    if extras.bootstrap:
        found = intervals(
            measured.figures, measured.units, draws=extras.bootstrap, level=extras.level, seed=extras.seed, clusters=measured.clusters
        )  # fmt: skip
        result["intervals"] = {name: [bounds.low, bounds.high] for name, bounds in found.items()}
        result["bootstrap"] = {"draws": extras.bootstrap, "level": extras.level, "seed": extras.seed, "unit": _unit(measured)}
    if extras.slices or extras.by:
        columns = _columns(data, measured, extras)
        result["slices"] = sliced(measured, columns, draws=extras.bootstrap, level=extras.level, seed=extras.seed)
    if extras.errors:
        result["errors"] = measured.mistakes(extras.errors)
    if extras.geometry:
        result["geometry"] = _geometry(encoder, measured, encoded, data, extras.seed)
    if extras.protocol:
        notes += protocol_notes(encoder, data)
    result["notes"] = notes
    return result


def _unit(measured: Measured) -> str:
    if measured.task in ("retrieval", "reranking"):
        return "query"
    return "row" if measured.clusters is None else "group of rows"


def _columns(data: Held, measured: Measured, extras: Extras) -> dict[str, Sequence[Any]]:
    """Values of the column `by`, and of a column "subset" where the file has one."""
    if not isinstance(data, Dataset):
        if extras.by:
            raise UsageError(f"by = {extras.by!r}: only the rows of a file have columns to slice by, not {measured.task}")
        return {}
    wanted = [extras.by] if extras.by else ["subset"] if "subset" in data.unused else []
    if extras.by:
        choose("by", extras.by, [*data.unused, *data.mapping.values()])
    if not wanted or not data.path.is_file():
        return {}
    table = read_table(data.path, encoding=extras.encoding, format=extras.format)
    return {name: [table.columns[name][number - 1] for number in data.numbers] for name in wanted}


def _geometry(encoder: Any, measured: Measured, encoded: EncodedColumns, data: Held, seed: int) -> dict[str, Any]:
    """Over the distinct texts of all columns; pairs that mean the same give alignment, gold scores what whitening would change."""
    place: dict[str, tuple[str, int]] = {}
    columns = _texts(data)
    for name, texts in columns.items():
        if name in encoded.vectors and len(texts) == len(encoded.vectors[name]):
            for row, text in enumerate(texts):
                if text.strip():
                    place.setdefault(text, (name, row))
    vectors = np.stack([encoded.vectors[name][row] for name, row in place.values()]) if place else np.zeros((0, 1), np.float32)
    count = getattr(encoder, "count_tokens", None)
    lengths = count(list(place)) if callable(count) else [len(text) for text in place]
    pairs, gold = None, None
    if measured.task in ("sts", "pairs", "nli", "parallel", "triplets") and isinstance(data, Dataset):
        u, v = (encoded.vectors[name] for name in list(data.columns)[:2])
        same = np.ones(len(u), dtype=bool) if measured.same is None else measured.same == 1
        if measured.task == "sts":
            labels = np.asarray(data.labels, dtype=np.float64)
            low, high = data.score_range or (labels.min(), labels.max())
            same = labels >= low + 0.8 * (high - low)  # 4 of 5: "mostly equivalent"
            gold = (u, v, labels)
        elif measured.same is not None:
            sharp = np.isfinite(measured.same)
            gold = (u[sharp], v[sharp], measured.same[sharp])
        pairs = (u[same], v[same]) if same.any() else None
    return {**space_of(vectors, pairs, lengths, gold, seed=seed), "length_unit": "tokens" if callable(count) else "characters"}


def _texts(data: Held) -> dict[str, list[str]]:
    if isinstance(data, RetrievalSet):
        return {"document": [d.text for d in sorted((d for d in data.corpus if d.text.strip()), key=lambda d: d.id)]}
    if isinstance(data, RerankingSet):
        return {"query": data.queries, "document": [text for found in data.candidates for text in found]}
    return data.columns


def protocol_notes(encoder: Any, data: Held) -> list[str]:
    """What may make the figures mean less than they seem to."""
    sha256: list[str] = [] if isinstance(data, RetrievalSet) else [data.sha256]
    rows: Iterable[Sequence[str]]
    if isinstance(data, RetrievalSet):
        texts = {document.id: document.text for document in data.corpus}
        rows = [
            (data.queries[query], texts[document])
            for query, grades in data.qrels.items() if query in data.queries
            for document, grade in grades.items() if grade > 0 and document in texts
        ]  # fmt: skip
        name = [] if data.split == "test" else not_a_test(f"{data.split}.tsv")
    elif isinstance(data, RerankingSet):
        rows = [(query, text) for query, found in zip(data.queries, data.candidates, strict=True) for text in found]
        name = not_a_test(data.path)
    else:
        rows = list(zip(*data.columns.values(), strict=True))
        name = not_a_test(data.path)
    return [*name, *trained_on(encoder, sha256, rows)]
