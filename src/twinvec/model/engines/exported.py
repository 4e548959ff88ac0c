"""Models that `twinvec export` has made: the part that the engines share, from token rows to vectors. No torch here."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from twinvec.errors import ModelError
from twinvec.model.engines import Advance, Engine, Rows
from twinvec.model.engines.after import Head, pool, unit_rows
from twinvec.model.engines.chunking import PADDING, batches
from twinvec.records import Vectors

if TYPE_CHECKING:
    from twinvec.model.tokens import Tokens

Array = npt.NDArray[Any]


class Runtime(ABC):
    """A loaded backbone. `states` may be called from `threads` threads at once.

    threaded: it runs threads of its own, which a forked process does not have. budget: tokens of a batch that are fastest.
    """

    threaded = False
    budget = 1024

    @abstractmethod
    def states(self, ids: Array, lengths: Array) -> Array:
        """ids (B, L) int64, zeros behind each row; lengths (B,), each 1 or more; returns float32 (B, L, D), behind each row whatever it may be."""


class ExportedEngine(Engine):
    """Pooling, heads and normalisation in numpy over the token vectors of a `Runtime`.

    open: makes the runtime, again after a fork. parts: those of the float32 model, as the export has stored them.
    vocabulary, positions: how many tokens and places the backbone has embeddings for. mixes_lengths: False for a backbone in which padding changes
    the tokens beside it.
    """

    def __init__(
        self, name: str, precision: str, threads: int, open: Callable[[], Runtime], *, parts: dict[str, Any], heads: Sequence[Head], width: int,
        vocabulary: int, positions: int, budget: int | None = None, mixes_lengths: bool = True,
    ) -> None:  # fmt: skip
        self.name, self.precision, self.threads, self.budget = name, precision, threads, budget
        self._open, self._parts, self._heads = open, parts, tuple(heads)
        self._width, self._vocabulary, self._positions = width, vocabulary, positions
        self._padding = PADDING if mixes_lengths else 0.0
        self._lock = threading.Lock()
        self._workers: ThreadPoolExecutor | None = None
        self._runtime: Runtime | None = open()
        _ENGINES.add(self)

    @property
    def dimensions(self) -> int:
        return len(self._heads[-1].weight) if self._heads else self._width * len(self.pooling)

    @property
    def normalizes(self) -> bool:
        return bool(self._parts["normalize"])

    @property
    def pooling(self) -> tuple[str, ...]:
        return tuple(self._parts["pooling"])

    def set_pooling(self, modes: tuple[str, ...]) -> None:
        """Pool another way. ModelError where a Dense head wants vectors of another size."""
        if self._heads and self._heads[0].weight.shape[1] != self._width * len(modes):
            wanted = self._heads[0].weight.shape[1]
            raise ModelError(f"pooling = {'+'.join(modes)!r}: Dense head 0 wants vectors of {wanted}, this gives {self._width * len(modes)}")
        self._parts = {**self._parts, "pooling": list(modes)}

    def parts(self, tokens: Tokens, prompts: dict[str, str], default_prompt: str | None) -> dict[str, Any]:
        return {
            **self._parts, "dimensions": self.dimensions, "max_tokens": tokens.max_tokens, "lower_case": tokens.lower_case, "nfkc": tokens.nfkc,
            "prompts": dict(sorted(prompts.items())), "default_prompt": default_prompt,
        }  # fmt: skip

    def forward(self, rows: Rows, prompt_tokens: int, budget: int | None, advance: Advance) -> Vectors:
        lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
        flat = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=int(lengths.sum()))
        self._check_range(flat, lengths)
        pooled = np.zeros((len(rows), self._width * len(self.pooling)), dtype=np.float32)
        runtime, workers = self._ready()
        starts = np.cumsum(lengths) - lengths
        skip = 0 if self._parts["include_prompt"] else prompt_tokens
        modes = self.pooling

        def work(batch: list[int]) -> list[int]:
            members = np.asarray(batch)
            ids, sizes = _block(flat, starts[members], lengths[members])
            pooled[members] = pool(runtime.states(ids, sizes), sizes, modes, skip)
            return batch

        for batch in _in_turn(work, batches(lengths.tolist(), budget or self.budget or runtime.budget, self._padding), workers):
            advance(batch)
        advance(np.flatnonzero(lengths == 0).tolist())
        out: Array = pooled
        for head in self._heads:
            out = head(out)
        return np.asarray(unit_rows(out) if self.normalizes else out, dtype=np.float32)

    def _check_range(self, flat: Array, lengths: Array) -> None:
        # The libraries read beyond their tables, or stop the process; nothing of that kind may reach them.
        if len(flat) and (flat.max() >= self._vocabulary or flat.min() < 0):
            raise IndexError(f"token {int(flat.max())} is beyond the {self._vocabulary} that the model knows")
        if len(lengths) and lengths.max() > self._positions:
            raise IndexError(f"a row of {int(lengths.max())} tokens is beyond the {self._positions} positions that the model knows")

    def _ready(self) -> tuple[Runtime, ThreadPoolExecutor | None]:
        with self._lock:
            if self._runtime is None:
                self._runtime = self._open()
            if self._workers is None and self.threads > 1:
                self._workers = ThreadPoolExecutor(self.threads, thread_name_prefix=f"twinvec-{self.name}")
            return self._runtime, self._workers

    def after_fork(self) -> None:
        """In the new process the threads of the old one do not exist: all that counts on them is made again at the next use."""
        self._lock = threading.Lock()
        if self._workers is not None:
            _keep_for_ever(self._workers)
            self._workers = None
        if self._runtime is not None and self._runtime.threaded:
            _keep_for_ever(self._runtime)  # to take it down would wait for its threads
            self._runtime = None


def _block(flat: Array, starts: Array, lengths: Array) -> tuple[Array, Array]:
    """Rows of a flat array side by side: ids (B, L), zeros behind each row, and lengths (B,)."""
    at = np.arange(int(lengths.max()))
    inside = at < lengths[:, None]
    # A place behind the row's end reads its first token, which the mask then puts out.
    return np.where(inside, flat[starts[:, None] + np.where(inside, at, 0)], 0), lengths


def _in_turn(work: Callable[[list[int]], list[int]], listed: list[list[int]], workers: ThreadPoolExecutor | None) -> Iterator[list[int]]:
    """work(batch) for each batch, on the workers where there are any; the first error ends it, and no batch stays queued."""
    if workers is None or len(listed) < 2:
        yield from map(work, listed)
        return
    futures = [workers.submit(work, batch) for batch in listed]
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()


def _keep_for_ever(thing: Any) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


_ENGINES: weakref.WeakSet[ExportedEngine] = weakref.WeakSet()


def _after_fork() -> None:
    for engine in list(_ENGINES):
        engine.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
