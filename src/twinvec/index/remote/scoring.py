"""The last word on a server's answers: candidates scored again in float64 and sorted by (-score, id), as ranking.py does for local rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from twinvec.records import Vectors

MORE = 16  # candidates asked for beyond k


@dataclass(frozen=True, slots=True)
class Found:
    """Candidates of a query, best first by the server's own scores. vectors (n, D) float32 as stored; exact: nothing outside scores higher."""

    ids: Sequence[str]
    parts: Sequence[int]
    scores: npt.NDArray[np.float64]
    vectors: Vectors
    exact: bool = True

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Best:
    id: str
    part: int
    score: float


Fetch = Callable[[int], Found]


def lengths(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    out: npt.NDArray[np.float64] = np.sqrt((x * x).sum(axis=1))
    return out


def best(query: npt.NDArray[np.float64], fetch: Fetch, k: int, *, metric: str, max_norm: float, most: int | None = None) -> list[Best]:
    """The k best documents for one query (D,), each by its best passage; fewer only when fewer can be found.

    fetch(n): the n best candidates by the server's float32 scores, fewer only when there are no more. A server's score is off by at most
    e = (D + 8) 2^-24 |q| |v| (ranking.py), so more are asked for until what was not fetched cannot reach the k-th document. Answers that are
    not exact are asked for once more only to fill k. most: a server's limit on n; beyond it the answer is as good as `most` candidates make it.
    """
    if metric == "cosine":
        query = query / lengths(query[None])[0]
    slack = (len(query) + 8) * 2.0**-24 * float(lengths(query[None])[0]) * max_norm + len(query) * 2.0**-126
    take = k + max(MORE, k // 8)
    while True:
        take = take if most is None else min(take, most)
        found = fetch(take)
        ranked = _ranked(query, found, metric)
        ended = len(found) < take or take == most
        if ended or (len(ranked) >= k and (not found.exact or found.scores[-1] + 2 * slack < ranked[k - 1].score)):
            return ranked[:k]
        take *= 4


def _ranked(query: npt.NDArray[np.float64], found: Found, metric: str) -> list[Best]:
    if not len(found):
        return []
    stored = found.vectors.astype(np.float64)
    scores = (stored * query).sum(axis=1)
    if metric == "cosine":
        scores = np.clip(scores / lengths(stored), -1.0, 1.0)
    order = sorted(range(len(found)), key=lambda i: (-scores[i], found.ids[i], found.parts[i]))
    seen: dict[str, Best] = {}
    for i in order:
        if found.ids[i] not in seen:
            seen[found.ids[i]] = Best(found.ids[i], int(found.parts[i]), float(scores[i]))
    return list(seen.values())
