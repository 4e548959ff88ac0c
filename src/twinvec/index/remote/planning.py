"""What one batch of documents changes, worked out before anything is sent: the same decisions as the local writer's (writing.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.index.checks import VectorError, as_matrix, check_values, is_blank, normalised
from twinvec.index.documents import to_json
from twinvec.index.entries import Settings
from twinvec.index.passages import Cutter, Span, treatment
from twinvec.index.report import AddReport, summed
from twinvec.progress import Progress
from twinvec.records import Document, EncodeReport, Vectors

ENCODE = 1024  # texts given to the encoder at once


@dataclass(frozen=True, slots=True)
class Piece:
    """A vector to store (D,) float32: of characters `span` of its document, or of all of it (None)."""

    part: int
    span: Span | None
    vector: Vectors


@dataclass(frozen=True, slots=True)
class Entry:
    """A document to write. pieces: its new vectors, none for a text that is empty; None leaves the stored ones alone."""

    document: Document
    metadata: str
    pieces: list[Piece] | None


@dataclass(frozen=True, slots=True)
class Known:
    """What is stored under an id: `metadata` as JSON text, `spans` of its vectors in their order."""

    text: str
    metadata: str
    spans: list[Span | None]


class Planner:
    """Turns batches of documents into entries, with vectors that were given or that `encoder` makes."""

    def __init__(self, encoder: Any, settings: Settings) -> None:
        self.encoder, self.settings = encoder, settings
        cut, self.options = treatment(settings)
        self.cutter = None if cut is None or encoder is None else Cutter(encoder, cut, settings.document_prompt)

    def batch(
        self, documents: Sequence[Document], known: Mapping[str, Known], given: npt.NDArray[Any] | None, report: AddReport, bar: Progress, *,
        keep: bool = False,
    ) -> tuple[list[Entry], AddReport]:  # fmt: skip
        """The entries to write for a batch, and the report with it counted. given: (n, D), one a document. keep: stored vectors stay."""
        last = {document.id: i for i, document in enumerate(documents)}
        metadata = {name: to_json(documents[i].metadata) for name, i in last.items()}
        spans = self._spans([documents[i] for i in last.values()] if given is None and not keep else [])
        same = {
            name
            for name, i in last.items()
            if given is None
            and name in known
            and known[name].text == documents[i].text
            and (keep or known[name].spans in ([], spans.get(name, [None])))
        }
        unchanged = {name for name in same if known[name].metadata == metadata[name]}
        fresh = [i for name, i in last.items() if name not in same]
        worth = [i for i in fresh if not is_blank(documents[i].text)]
        wanted = [(i, part, span) for i in worth for part, span in enumerate(spans.get(documents[i].id, [None]))]
        reports: list[EncodeReport] = []
        found = given[worth] if given is not None else self._encode(documents, wanted, reports)
        stored, norms = normalised(found, self.settings.metric)
        pieces: dict[str, list[Piece]] = {documents[i].id: [] for i in fresh}
        for (i, part, span), row, norm in zip(wanted, stored, norms, strict=True):
            if norm > 0:
                pieces[documents[i].id].append(Piece(part, span, row))
        bar.advance(len(documents))
        entries = [Entry(documents[i], metadata[name], pieces.get(name)) for name, i in last.items() if name not in unchanged]
        vectorless = [name for name, rows in pieces.items() if not rows]
        return entries, summed(report, documents, known, unchanged, vectorless, reports, sum(map(len, pieces.values())), bool(entries))

    def _spans(self, documents: Sequence[Document]) -> dict[str, list[Span | None]]:
        if self.cutter is None:
            return {}
        return dict(zip([d.id for d in documents], self.cutter.spans([d.text for d in documents]), strict=True))

    def _encode(self, documents: Sequence[Document], wanted: Sequence[tuple[int, int, Span | None]], reports: list[EncodeReport]) -> Vectors:
        size = self.settings.dimensions or (self.encoder.dimensions if self.encoder is not None else 1)
        found = [np.zeros((0, size), dtype=np.float32)]
        for at in range(0, len(wanted), ENCODE):
            block = wanted[at : at + ENCODE]
            texts = [documents[i].text if span is None else documents[i].text[span[0] : span[1]] for i, _, span in block]
            vectors, report = encoded(self.encoder, texts, [documents[i].id for i, _, _ in block], self.settings, self.options)
            found.append(vectors)
            reports.append(report)
        return np.concatenate(found)


def encoded(encoder: Any, texts: list[str], ids: list[str], settings: Settings, options: Mapping[str, Any]) -> tuple[Vectors, EncodeReport]:
    """Checked vectors (n, D) of texts."""
    encoding = encoder.encode_with_report(texts, prompt=settings.document_prompt, **options)
    what = f"vectors of {encoder.name}"
    matrix = as_matrix(encoding.vectors, settings.dimensions, what)
    if len(matrix) != len(texts):
        raise VectorError(f"{what}: {len(texts)} texts gave {len(matrix)} vectors; this encoder cannot be used")
    check_values(matrix, what, 0, ids)
    return np.asarray(matrix, dtype=np.float32), encoding.report


def given_vectors(vectors: Any, documents: Sequence[Document], dimensions: int | None) -> npt.NDArray[Any]:
    """The caller's vectors, all checked before anything is stored."""
    matrix = as_matrix(vectors, dimensions, "vectors")
    if len(matrix) != len(documents):
        raise VectorError(f"vectors: {len(documents)} documents need {len(documents)} rows, got {len(matrix)} (shape {np.shape(vectors)})")
    check_values(matrix, "vectors", 0, [document.id for document in documents])
    return matrix
