"""What callers hand to a collection on a server, checked before anything is sent."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec import __version__
from twinvec.errors import choose
from twinvec.index.checks import METRICS, SearchError, as_matrix, check_values
from twinvec.index.entries import Settings
from twinvec.index.models import AUTO, EncoderLike, identity, prompt_names


def new_settings(
    encoder: EncoderLike | str, *, kind: str, metric: str, document_prompt: str | None = AUTO, query_prompt: str | None = AUTO,
    dimensions: int | None = None, model: str | None = None,
) -> Settings:  # fmt: skip
    """What a new collection is made for; the options are those of Collection.create."""
    choose("metric", metric, METRICS)
    fingerprint, name, place, size = identity(encoder, model, dimensions)
    prompts = prompt_names(encoder, document_prompt, query_prompt)
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Settings(fingerprint, name, place, size, kind, metric, *prompts, created, __version__)


def as_queries(vectors: Any, dimensions: int | None) -> npt.NDArray[np.float64]:
    """Queries as float64 (q, D), each finite and not zero; SearchError or VectorError with the row."""
    wide = np.ascontiguousarray(as_matrix(vectors, dimensions, "queries"), dtype=np.float64)
    check_values(wide, "queries")
    zero = np.flatnonzero(np.sqrt((wide * wide).sum(axis=1)) == 0)
    if len(zero):
        raise SearchError(f"queries: row {zero[0]} from 0 is all zeros, which is near to nothing; was its text empty?")
    return wide


def check_recall(recall: float | None) -> None:
    if recall is not None and not 0 < recall <= 1:
        raise SearchError(f"recall = {recall!r}: wanted a share between 0 and 1, such as 0.95")
