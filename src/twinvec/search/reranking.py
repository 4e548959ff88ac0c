"""A second look at the best hits, by a cross-encoder or another encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from twinvec.errors import UsageError
from twinvec.index.checks import normalised
from twinvec.index.models import prompt_names
from twinvec.records import Hit

DEPTH = 50


class PairScorer(Protocol):
    """What twinvec.model.cross.CrossEncoder does."""

    def scores_with_report(self, pairs: Any) -> Any: ...


def load_reranker(name: str | Path, **options: Any) -> Any:
    """A CrossEncoder when the folder holds a model for sequence classification, else an Encoder. options: device, precision, revision."""
    from twinvec.model.layout import read_object
    from twinvec.model.resolve import resolve

    folder = resolve(name, options.get("revision"))
    config = folder / "config.json"
    architectures = read_object(config).get("architectures") if config.is_file() else None
    if any(str(kind).endswith("ForSequenceClassification") for kind in architectures or ()):
        from twinvec.model.cross import CrossEncoder

        return CrossEncoder.load(name, **options)
    from twinvec.model.encoder import Encoder

    return Encoder.load(name, **options)


def rerank(model: Any, queries: Sequence[str], hits: Sequence[Sequence[Hit]]) -> tuple[list[list[Hit]], list[str]]:
    """The same hits ordered by the model's own score, best first, ties by id; and what is worth telling.

    model: a CrossEncoder (pairs of texts in, scores out), or an Encoder (then the score is the cosine of its own vectors, made with its query and
    document prompts). Of a document that was cut the best passage is read, not the whole.
    """
    pairs = [(query, _text(hit)) for query, found in zip(queries, hits, strict=True) for hit in found]
    if not pairs:
        return [list(found) for found in hits], []
    if hasattr(model, "scores_with_report"):
        report = model.scores_with_report(pairs)
        scores, notes = np.asarray(report.scores, dtype=np.float64), [f"rerank: {note}" for note in report.warnings()]
    elif hasattr(model, "encode_with_report"):
        scores, notes = _cosines(model, pairs)
    else:
        raise UsageError(f"rerank: wanted a CrossEncoder, an Encoder, or the name of a model folder; got {type(model).__name__}")
    out, at = [], 0
    for found in hits:
        part = scores[at : at + len(found)].tolist()
        at += len(found)
        scored = [_scored(hit, score) for hit, score in zip(found, part, strict=True)]
        out.append(sorted(scored, key=lambda hit: (-hit.score, hit.id)))
    return out, notes


def _text(hit: Hit) -> str:
    return hit.passage.text if hit.passage is not None else hit.text


def _scored(hit: Hit, score: float) -> Hit:
    return replace(hit, score=score, parts=None if hit.parts is None else {**hit.parts, "first_score": hit.score, "rerank_score": score})


def _cosines(model: Any, pairs: Sequence[tuple[str, str]]) -> tuple[Any, list[str]]:
    document_prompt, query_prompt = prompt_names(model, "auto", "auto")
    sides = []
    notes: list[str] = []
    for texts, prompt in (([query for query, _ in pairs], query_prompt), ([text for _, text in pairs], document_prompt)):
        place = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        encoding = model.encode_with_report(list(place), prompt=prompt)
        notes += [f"rerank: {note}" for note in encoding.report.warnings()]
        units = normalised(np.asarray(encoding.vectors), "cosine")[0].astype(np.float64)
        sides.append(units[[place[text] for text in texts]])
    return np.clip((sides[0] * sides[1]).sum(axis=1), -1.0, 1.0), notes
