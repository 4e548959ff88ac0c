"""Moving a collection to another model: new vectors are built beside the old ones, batch by batch, and take their place in one commit.

Until that commit the collection works with the old model, from it on with the new one. Passages never change, so the new vector of a passage
stays right while documents come and go in between: killed and started again, it goes on with the passages that have none yet.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from twinvec.errors import CollectionError
from twinvec.index import segments as files
from twinvec.index.checks import normalised
from twinvec.index.layout import Layout
from twinvec.index.models import AUTO, EncoderLike, identity, prompt_names
from twinvec.index.packing import write_batch
from twinvec.index.store import Settings
from twinvec.index.writing import Writer, encoded
from twinvec.progress import Progress


@dataclass(frozen=True, slots=True)
class _Text:
    id: str
    text: str


class Reindexer:
    """Over a `Writer`, whose lock is held for the whole time."""

    def __init__(self, folder: Path, writer: Writer, encoder: EncoderLike, *, document_prompt: str | None = AUTO, query_prompt: str | None = AUTO):
        self.folder, self.writer, self.store, self.encoder = folder, writer, writer.store, encoder
        fingerprint, name, place, size = identity(encoder, None, None)
        prompts = prompt_names(encoder, document_prompt, query_prompt)
        old = writer.settings
        self.target = replace(
            old, fingerprint=fingerprint, model=name, model_path=place, dimensions=size, document_prompt=prompts[0], query_prompt=prompts[1]
        )

    def run(self, *, batch: int, progress: bool) -> dict[str, Any]:
        """Encode what is not encoded yet, then switch. Counts: passages, those encoded now, those kept from an earlier run that was stopped."""
        start, store = time.perf_counter(), self.store
        if self.target == self.writer.settings:
            return {"passages": 0, "encoded": 0, "resumed": 0, "seconds": 0.0}
        resumed = self._begin()
        with store.read():
            total = store.count("passages")
        done = 0
        with Progress(total, "reindex", show=progress, unit="passages") as bar:
            bar.advance(min(resumed, total))
            while texts := self._next(batch):
                self._stage(texts)
                done += len(texts)
                bar.advance(len(texts))
        self._switch()
        return {"passages": total, "encoded": done, "resumed": resumed, "seconds": time.perf_counter() - start}

    def _begin(self) -> int:
        """Go on with what is staged for this very model; else begin anew. How many vectors are there already."""
        store, wanted = self.store, {"fingerprint": self.target.fingerprint, "prompt": self.target.document_prompt, "store": self.target.store}
        with store.read():
            found, staged = store.setting("staging"), store.segments("staged")
        if found is None or {key: found.get(key) for key in wanted} != wanted:
            with store.write():
                store.drop_entries("staged", (segment.number for segment in staged))
                store.set_setting("staging", {**wanted, "model": self.target.model, "done": -1, "ranges": None})
            self.writer.sweep()
            return 0
        return sum(segment.rows for segment in staged)

    def _next(self, batch: int) -> list[tuple[int, str]]:
        with self.store.read():
            return self.store.living(int(self.store.setting("staging")["done"]), batch)

    def _stage(self, texts: Sequence[tuple[int, str]]) -> None:
        """One commit: a segment of new vectors, and how far they reach."""
        parts = [_Text(f"passage {number}", text) for number, text in texts]
        matrix, _ = encoded(self.encoder, parts, self.target.document_prompt, self.target.dimensions, self.writer.options)
        vectors, norms = normalised(matrix, self.target.metric)
        numbers = np.asarray([number for number, _ in texts], dtype=np.int64)[norms > 0]
        store = self.store
        with store.read():
            staging, number = store.setting("staging"), store.counter("next_segment")
        segment = None
        if len(numbers):
            segment, staging["ranges"] = write_batch(
                self.folder, number, numbers, vectors[norms > 0], self.target, staging["ranges"], what="this batch of the re-index"
            )
        staging["done"] = texts[-1][0]
        try:
            with store.write():
                if segment is not None:
                    store.put_segment(segment, "staged")
                    store.set_counter("next_segment", number + 1)
                store.set_setting("staging", staging)
        except BaseException:
            with suppress(Exception):
                self.writer.sweep()
            raise

    def _switch(self) -> None:
        """One commit: the staged vectors are the vectors."""
        store = self.store
        with store.read():
            old, staged, staging, indexes = store.segments(), store.segments("staged"), store.setting("staging"), store.indexes()
            living = np.asarray([number for (number,) in store.db.execute("SELECT number FROM passages ORDER BY number")], dtype=np.int64)
        for segment in staged:
            files.check(self.folder, segment, content=False)
        layout = Layout([files.mapped(self.folder, segment) for segment in staged])
        there = np.concatenate([np.zeros(0, dtype=np.int64), *(layout.of_part(i) for i in range(len(staged)))])
        without = np.setdiff1d(living, there, assume_unique=True)  # texts to which the new model gives a zero vector
        dead = np.setdiff1d(there, living, assume_unique=True)  # deleted since they were staged
        with store.write():
            store.bury(without.tolist())
            store.unbury(0, max(store.counter("next_passage"), 0))
            at = store.counter("commit") + 1
            store.db.executemany("INSERT INTO tombstones (number, at) VALUES (?, ?)", [(int(number), at) for number in dead])
            store.drop_entries("segments", (segment.number for segment in old))
            store.drop_entries("staged", (segment.number for segment in staged))
            for segment in staged:
                store.put_segment(segment)
            self.writer.compactor.forget_indexes(indexes)
            store.set_settings(self.target)
            store.set_setting("ranges", staging["ranges"])
            store.set_setting("staging", None)
            store.set_counter("layout", store.counter("layout") + 1)
        self.writer.settings = self.target
        with suppress(Exception):
            self.writer.sweep()


def check_reindex(path: Path, settings: Settings, encoder: Any) -> None:
    """CollectionError when `encoder` is no encoder."""
    if isinstance(encoder, str) or not hasattr(encoder, "encode_with_report"):
        raise CollectionError(f"{path}: to move it from {settings.model} to another model, give that model's encoder, got {type(encoder).__name__}")
