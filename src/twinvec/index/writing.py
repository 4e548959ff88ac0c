"""How documents get into a collection, and out of it. Whoever uses a `Writer` holds the writer's lock."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.errors import CollectionError, UsageError
from twinvec.index import segments as files
from twinvec.index.checks import VectorError, as_matrix, check_values, is_blank, normalised
from twinvec.index.documents import DocumentError, batches, document_stream, to_json
from twinvec.index.models import EncoderLike
from twinvec.index.store import Store, Stored
from twinvec.progress import Progress
from twinvec.records import Document, EncodeReport, Vectors

BATCH = 4096
_ENCODE = 1024  # texts given to the encoder at once: enough to sort by length, little enough for the progress bar to move


@dataclass(frozen=True, slots=True)
class AddReport:
    """What became of the documents of one `add`: every one is counted in `added`, `replaced` or `unchanged`.

    `unchanged`: id, text and metadata were stored already. `without_vector`: texts without a character to read, or zero vectors: stored,
    reported, never found. The rest sums the encoder's reports over the texts that were encoded.
    """

    documents: int = 0
    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    without_vector: int = 0
    encoded: int = 0
    tokens: int = 0
    truncated: int = 0
    truncated_tokens: int = 0
    unknown_rate: float = 0.0
    prompt: str = ""
    commits: int = 0
    seconds: float = 0.0
    first_without_vector: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def warnings(self) -> list[str]:
        """Sentences worth showing to a user; empty when nothing was lost."""
        notes = []
        if self.without_vector:
            shown = ", ".join(map(repr, self.first_without_vector))
            notes.append(
                f"{self.without_vector} of {self.documents} documents have no text: they are stored, but no search finds them (ids: {shown})"
            )
        if self.truncated:
            notes.append(
                f"{self.truncated} of {self.encoded} texts were longer than the model's window and lost {self.truncated_tokens} tokens in all"
            )
        if self.unknown_rate > 0.2:
            notes.append(f"{self.unknown_rate:.0%} of the tokens are unknown to this model: it does not know this language or script")
        return notes


class Writer:
    """Adds to and deletes from one collection, over a writable `store`."""

    def __init__(self, folder: Path, store: Store, encoder: EncoderLike | None, on_long: str | None) -> None:
        self.folder, self.store, self.encoder = folder, store, encoder
        with store.read():
            self.settings = store.settings()
        self.options = {} if on_long is None else {"on_long": on_long}
        self._sweep()

    def _sweep(self) -> None:
        """Remove vector files that the database does not name. Under the writer's lock nobody is between writing a file and naming it."""
        with self.store.read():
            known = {segment.file for segment in self.store.segments()}
        for path in files.orphans(self.folder, known):
            path.unlink(missing_ok=True)

    def add(self, documents: Any, vectors: Any, *, batch: int, progress: bool) -> AddReport:
        """See Collection.add."""
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise UsageError(f"batch = {batch!r}: wanted a number of documents, 1 or more")
        if vectors is None and self.encoder is None:
            raise CollectionError(
                f"{self.folder}: opened without a model, so texts cannot be encoded; use Collection.open(path, encoder), or give their vectors"
            )
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
        return replace(report, seconds=time.perf_counter() - start)

    def _given(self, vectors: Any, documents: list[Document]) -> npt.NDArray[Any]:
        """The caller's vectors, all checked before anything is stored."""
        matrix = as_matrix(vectors, self.settings.dimensions, "vectors")
        if len(matrix) != len(documents):
            raise VectorError(f"vectors: {len(documents)} documents need {len(documents)} rows, got {len(matrix)} (shape {np.shape(vectors)})")
        for at in range(0, len(matrix), BATCH):
            check_values(matrix[at : at + BATCH], "vectors", at, [document.id for document in documents[at : at + BATCH]])
        return matrix

    def _add_batch(self, documents: list[Document], given: npt.NDArray[Any] | None, report: AddReport, bar: Progress) -> AddReport:
        """One commit."""
        last = {document.id: i for i, document in enumerate(documents)}
        with self.store.read():
            known = self.store.find(last)
        texts = {name: to_json(documents[i].metadata) for name, i in last.items()}
        same = {name for name in last if name in known and given is None and known[name].text == documents[last[name]].text}
        unchanged = {name for name in same if known[name].metadata == texts[name]}
        fresh = [i for name, i in last.items() if name not in same]
        worth = [i for i in fresh if not is_blank(documents[i].text)]
        reports: list[EncodeReport] = []
        if given is not None:
            found: npt.NDArray[Any] = given[worth]
            bar.advance(len(documents))
        else:
            bar.advance(len(documents) - len(worth))
            found = self._encode([documents[i] for i in worth], reports, bar)
        stored, norms = normalised(found, self.settings.metric)
        owners = [documents[worth[row]].id for row in np.flatnonzero(norms > 0)]
        changed = [documents[i] for name, i in last.items() if name not in unchanged]
        if changed:
            self._commit(changed, texts, known, [name for name in last if name not in same], owners, stored[norms > 0])
        found_by = set(owners)
        vectorless = [documents[i].id for i in fresh if documents[i].id not in found_by]
        return _summed(report, documents, known, unchanged, vectorless, reports, bool(changed))

    def _encode(self, documents: list[Document], reports: list[EncodeReport], bar: Progress) -> Vectors:
        encoder: Any = self.encoder
        parts = [np.zeros((0, encoder.dimensions), dtype=np.float32)]
        for at in range(0, len(documents), _ENCODE):
            part = documents[at : at + _ENCODE]
            encoding = encoder.encode_with_report([document.text for document in part], prompt=self.settings.document_prompt, **self.options)
            matrix = as_matrix(encoding.vectors, self.settings.dimensions, f"vectors of {encoder.name}")
            if len(matrix) != len(part):
                raise VectorError(f"vectors of {encoder.name}: {len(part)} texts gave {len(matrix)} vectors; this encoder cannot be used")
            check_values(matrix, f"vectors of {encoder.name}", at, [document.id for document in part])
            parts.append(np.asarray(matrix, dtype=np.float32))
            reports.append(encoding.report)
            bar.advance(len(part))
        return np.concatenate(parts)

    def _commit(
        self, changed: list[Document], metadata: dict[str, str], known: dict[str, Stored], revectored: list[str], owners: list[str], vectors: Vectors
    ) -> None:
        """changed: documents to write; revectored: ids whose old vector goes; owners: ids of the rows of `vectors` (m, D)."""
        store, segment = self.store, None
        with store.read():
            first, number = store.counter("next_passage"), store.counter("next_segment")
        if len(vectors):
            segment = files.write(self.folder, number, first, vectors)
        try:
            with store.write():
                free = store.counter("next_document")
                numbers = {}
                for document in changed:
                    if document.id in known:
                        numbers[document.id] = known[document.id].number
                    else:
                        numbers[document.id] = free
                        free += 1
                store.set_counter("next_document", free)
                store.put_documents((numbers[document.id], document.id, document.text, metadata[document.id]) for document in changed)
                store.bury(known[name].passage for name in revectored if name in known and known[name].passage is not None)  # type: ignore[misc]
                if segment is not None:
                    store.put_segment(segment)
                    store.put_passages((first + row, numbers[name]) for row, name in enumerate(owners))
                    store.set_counter("next_passage", first + len(owners))
                    store.set_counter("next_segment", number + 1)
                    if self.settings.dimensions is None:
                        self.settings = replace(self.settings, dimensions=vectors.shape[1])
                        store.set_settings(self.settings)
        except BaseException:
            # The database decides whether the file counts: an interrupt may come after the commit.
            with suppress(Exception):
                self._sweep()
            raise

    def delete(self, ids: list[str]) -> int:
        """See Collection.delete."""
        with self.store.read():
            found = self.store.find(ids)
        if found:
            with self.store.write():
                self.store.bury(stored.passage for stored in found.values() if stored.passage is not None)
                self.store.drop_documents(stored.number for stored in found.values())
        return len(found)


def _summed(
    report: AddReport, documents: list[Document], known: dict[str, Stored], unchanged: set[str], vectorless: list[str], reports: list[EncodeReport],
    committed: bool,
) -> AddReport:  # fmt: skip
    names = {document.id for document in documents}
    added = len(names - known.keys())
    tokens = report.tokens + sum(part.tokens for part in reports)
    unknown = report.unknown_rate * report.tokens + sum(part.unknown_rate * part.tokens for part in reports)
    return replace(
        report,
        documents=report.documents + len(documents),
        added=report.added + added,
        unchanged=report.unchanged + len(unchanged),
        replaced=report.replaced + len(documents) - added - len(unchanged),
        without_vector=report.without_vector + len(vectorless),
        encoded=report.encoded + sum(part.rows for part in reports),
        tokens=tokens,
        truncated=report.truncated + sum(part.truncated for part in reports),
        truncated_tokens=report.truncated_tokens + sum(part.truncated_tokens for part in reports),
        unknown_rate=unknown / tokens if tokens else 0.0,
        prompt=reports[0].prompt if reports else report.prompt,
        commits=report.commits + committed,
        first_without_vector=(report.first_without_vector + vectorless)[:5],
    )


__all__ = ["BATCH", "AddReport", "DocumentError", "Writer"]
