"""How documents get into a collection, and out of it. Whoever uses a `Writer` holds the writer's lock."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.errors import CollectionError, UsageError
from twinvec.index import segments as files
from twinvec.index.checks import VectorError, as_matrix, check_values, is_blank, normalised
from twinvec.index.compaction import Compactor, known_files
from twinvec.index.documents import DocumentError, as_document, batches, document_stream, to_json
from twinvec.index.models import EncoderLike
from twinvec.index.packing import write_batch
from twinvec.index.passages import Cut, Cutter, Span, asked, treatment
from twinvec.index.report import AddReport, summed
from twinvec.index.store import Store, Stored
from twinvec.progress import Progress
from twinvec.records import Document, EncodeReport, Vectors

BATCH = 4096
_ENCODE = 1024  # texts given to the encoder at once: enough to sort by length, little enough for the progress bar to move


@dataclass(frozen=True, slots=True)
class _Part:
    """One text to encode: a passage of the document `id`, or all of it (span None)."""

    id: str
    part: int
    span: Span | None
    text: str


class Writer:
    """Changes one collection, over a writable `store`.

    on_long, cut: how long texts are treated; with on_long None and no cut, as the collection remembers from the last time.
    """

    def __init__(self, folder: Path, store: Store, encoder: EncoderLike | None, on_long: str | None = None, cut: Cut | None = None) -> None:
        self.folder, self.store, self.encoder = folder, store, encoder
        with store.read():
            self.settings = store.settings()
        self._asked = asked(self.settings, on_long, cut)
        cut, self.options = treatment(self._asked)
        self._cutter = None if cut is None or encoder is None else Cutter(encoder, cut, self.settings.document_prompt)
        self.compactor = Compactor(folder, store)
        self.sweep()

    def sweep(self) -> None:
        """Remove vector files that the database does not name. Under the writer's lock nobody is between writing a file and naming it."""
        with self.store.read():
            known = known_files(self.store)
        for path in files.orphans(self.folder, known):
            path.unlink(missing_ok=True)

    def add(self, documents: Any, vectors: Any, *, batch: int, progress: bool) -> AddReport:
        """See Collection.add."""
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise UsageError(f"batch = {batch!r}: wanted a number of documents, 1 or more")
        if vectors is None and self.encoder is None:
            raise self._no_encoder()
        start, report = time.perf_counter(), AddReport()
        stream, total = document_stream(documents)
        matrix = None
        if vectors is not None:
            listed = list(stream)
            matrix, stream, total = self._given(vectors, listed), iter(listed), len(listed)
        with Progress(total, "index", show=progress, unit="documents") as bar:
            at = 0
            for block in batches(stream, batch):
                part = None if matrix is None else matrix[at : at + len(block)]
                report = self._add_batch(block, part, report, bar)
                at += len(block)
                self.compactor.merge_small()
        return replace(report, seconds=time.perf_counter() - start)

    def update(self, id: str, text: str | None, metadata: Mapping[str, Any] | None) -> None:
        """See Collection.update."""
        with self.store.read():
            known = self.store.find([id]).get(id)
        if known is None:
            raise DocumentError(f"update: no document has the id {id!r}; add it with: add([({id!r}, text)])")
        if text is not None and text != known.text and self.encoder is None:
            raise self._no_encoder()
        item = (id, known.text if text is None else text, json.loads(known.metadata) if metadata is None else metadata)
        with Progress(None, "index", show=False) as bar:
            self._add_batch([as_document(item, 1)], None, AddReport(), bar, keep=text is None)

    def _no_encoder(self) -> CollectionError:
        return CollectionError(
            f"{self.folder}: opened without a model, so texts cannot be encoded; use Collection.open(path, encoder), or give their vectors"
        )

    def _given(self, vectors: Any, documents: list[Document]) -> npt.NDArray[Any]:
        """The caller's vectors, all checked before anything is stored."""
        matrix = as_matrix(vectors, self.settings.dimensions, "vectors")
        if len(matrix) != len(documents):
            raise VectorError(f"vectors: {len(documents)} documents need {len(documents)} rows, got {len(matrix)} (shape {np.shape(vectors)})")
        for at in range(0, len(matrix), BATCH):
            check_values(matrix[at : at + BATCH], "vectors", at, [document.id for document in documents[at : at + BATCH]])
        return matrix

    def _add_batch(
        self, documents: list[Document], given: npt.NDArray[Any] | None, report: AddReport, bar: Progress, *, keep: bool = False
    ) -> AddReport:  # fmt: skip
        """One commit. keep: the passages stay as they are, whatever the setting for long texts is."""
        last = {document.id: i for i, document in enumerate(documents)}
        with self.store.read():
            known = self.store.find(last)
        texts = {name: to_json(documents[i].metadata) for name, i in last.items()}
        spans = self._spans({name: documents[i].text for name, i in last.items()} if given is None and not keep else {})
        same = {
            name
            for name, i in last.items()
            if given is None and name in known and known[name].text == documents[i].text and (keep or _as_cut(known[name], spans[name]))
        }
        unchanged = {name for name in same if known[name].metadata == texts[name]}
        fresh = [i for name, i in last.items() if name not in same]
        worth = [i for i in fresh if not is_blank(documents[i].text)]
        reports: list[EncodeReport] = []
        if given is not None:
            parts = [_Part(documents[i].id, 0, None, documents[i].text) for i in worth]
            found: npt.NDArray[Any] = given[worth]
            bar.advance(len(documents))
        else:
            parts = [part for i in worth for part in _parts(documents[i], spans[documents[i].id])]
            bar.advance(len(documents) - len(worth))
            found = self._encode(parts, reports, bar)
        stored, norms = normalised(found, self.settings.metric)
        owners = [parts[row] for row in np.flatnonzero(norms > 0)]
        changed = [documents[i] for name, i in last.items() if name not in unchanged]
        if changed:
            self._commit(changed, texts, known, [name for name in last if name not in same], owners, stored[norms > 0])
        found_by = {part.id for part in owners}
        vectorless = [documents[i].id for i in fresh if documents[i].id not in found_by]
        return summed(report, documents, known, unchanged, vectorless, reports, len(owners), bool(changed))

    def _spans(self, texts: dict[str, str]) -> dict[str, list[Span | None]]:
        """The passages that each text is to have."""
        if self._cutter is None:
            return {name: [None] for name in texts}
        return dict(zip(texts, self._cutter.spans(list(texts.values())), strict=True))

    def _encode(self, parts: Sequence[_Part], reports: list[EncodeReport], bar: Progress) -> Vectors:
        encoder: Any = self.encoder
        vectors = [np.zeros((0, self.settings.dimensions or (encoder.dimensions if encoder is not None else 1)), dtype=np.float32)]
        for at in range(0, len(parts), _ENCODE):
            block = parts[at : at + _ENCODE]
            matrix, report = encoded(encoder, block, self.settings.document_prompt, self.settings.dimensions, self.options)
            vectors.append(matrix)
            reports.append(report)
            bar.advance(sum(part.part == 0 for part in block))
        return np.concatenate(vectors)

    def _commit(
        self,
        changed: list[Document],
        metadata: dict[str, str],
        known: dict[str, Stored],
        gone: list[str],
        owners: list[_Part],
        vectors: Vectors,
    ) -> None:
        """changed: documents to write; gone: ids whose old vectors go; owners: what the rows of `vectors` (m, D) are of."""
        store, segment = self.store, None
        with store.read():
            first, number, free = (store.counter(name) for name in ("next_passage", "next_segment", "next_document"))
            ranges = store.setting("ranges")
        if len(vectors):
            segment, ranges = write_batch(self.folder, number, first + np.arange(len(vectors)), vectors, self.settings, ranges)
        numbers = {}
        for document in changed:
            if document.id in known:
                numbers[document.id] = known[document.id].number
            else:
                numbers[document.id] = free
                free += 1
        try:
            with store.write():
                store.set_counter("next_document", free)
                store.bury(piece.number for name in gone if name in known for piece in known[name].pieces)
                store.put_documents((numbers[document.id], document.id, document.text, metadata[document.id]) for document in changed)
                if segment is not None:
                    store.put_segment(segment)
                    rows = [(first + row, numbers[p.id], p.part, *(p.span or (None, None)), p.text) for row, p in enumerate(owners)]
                    store.put_passages(rows)
                    store.set_counter("next_passage", first + len(owners))
                    store.set_counter("next_segment", number + 1)
                    self._remember(vectors.shape[1], ranges, any(part.span is not None for part in owners))
        except BaseException:
            # The database decides whether the file counts: an interrupt may come after the commit.
            with suppress(Exception):
                self.sweep()
            raise

    def _remember(self, dimensions: int, ranges: Any, cut: bool) -> None:
        """What the collection learns from a batch, in its commit."""
        store, settings = self.store, self.settings
        if ranges is not None and store.setting("ranges") is None:
            store.set_setting("ranges", ranges)
        if cut and not store.counter("parts"):
            store.set_counter("parts", 1)
        long = {name: getattr(self._asked, name) for name in ("passage_tokens", "passage_overlap", "on_long")}
        settings = replace(settings, dimensions=settings.dimensions or dimensions, **long)
        if settings != self.settings:
            store.set_settings(settings)
            self.settings = settings

    def delete(self, ids: Sequence[str]) -> int:
        """See Collection.delete."""
        with self.store.read():
            found = self.store.pieces(ids)
        if found:
            with self.store.write():
                self.store.bury(number for numbers in found.values() for number in numbers)
                self.store.drop_documents(found)
        return len(found)


def encoded(
    encoder: Any, parts: Sequence[Any], prompt: str | None, dimensions: int | None, options: Mapping[str, Any]
) -> tuple[Vectors, EncodeReport]:
    """Checked vectors (n, D) of texts; `parts` have `id` and `text`."""
    encoding = encoder.encode_with_report([part.text for part in parts], prompt=prompt, **options)
    matrix = as_matrix(encoding.vectors, dimensions, f"vectors of {encoder.name}")
    if len(matrix) != len(parts):
        raise VectorError(f"vectors of {encoder.name}: {len(parts)} texts gave {len(matrix)} vectors; this encoder cannot be used")
    check_values(matrix, f"vectors of {encoder.name}", 0, [part.id for part in parts])
    return np.asarray(matrix, dtype=np.float32), encoding.report


def _as_cut(known: Stored, spans: Sequence[Span | None]) -> bool:
    """True when the stored passages are those that the text would be cut into now. A text without a vector stays without one."""
    return not known.pieces or [piece.span for piece in known.pieces] == list(spans)


def _parts(document: Document, spans: Sequence[Span | None]) -> list[_Part]:
    return [_Part(document.id, i, span, document.text if span is None else document.text[span[0] : span[1]]) for i, span in enumerate(spans)]


__all__ = ["BATCH", "AddReport", "DocumentError", "Writer"]
