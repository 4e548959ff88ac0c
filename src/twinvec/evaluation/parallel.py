"""Partners in two columns (translations, questions and answers): does each text find its own?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.errors import DataError
from twinvec.evaluation.measured import Measured, of_means
from twinvec.evaluation.metrics import Floats, similarities
from twinvec.evaluation.mistakes import listed
from twinvec.evaluation.nearest import nearest
from twinvec.evaluation.rows import Rows


def score_parallel(u: npt.ArrayLike, v: npt.ArrayLike, sources: Sequence[str], targets: Sequence[str]) -> dict[str, Any]:
    """u, v (n, D), vectors of `sources` and `targets`, row i with row i -> a dict.

    "accuracy_source_to_target": share of rows whose source finds, as its nearest by cosine among all distinct targets, a text that some
    row pairs with that source (so that repeated texts are no mistakes); "accuracy_target_to_source" the other way; "accuracy" their mean;
    "mean_cosine" of the partners; "notes".
    """
    return _scores(u, v, sources, targets)[0]


def measure_parallel(rows: Rows) -> Measured:
    """Rows of two texts that belong together."""
    u, v = rows.sides
    sources, targets = list(rows.data.columns.values())[:2]
    scores, forth, back, cosine = _scores(u, v, sources, targets)
    values: dict[str, Floats] = {
        "accuracy": (forth.right + back.right) / 2, "accuracy_source_to_target": forth.right, "accuracy_target_to_source": back.right,
        "mean_cosine": cosine,
    }  # fmt: skip

    def mistakes(count: int) -> list[dict[str, Any]]:
        wrong = 2 - forth.right - back.right
        return listed(rows, wrong - cosine / 10, count, lambda i: {
            "cosine": cosine[i], "found_target": None if forth.right[i] else forth.found[i], "found_source": None if back.right[i] else back.found[i],
        }) if wrong.any() else []  # fmt: skip

    return of_means("parallel", "accuracy", scores, values, names=rows.names, texts=rows.texts, mistakes=mistakes, clusters=rows.clusters)


@dataclass(frozen=True)
class _Direction:
    """right (n,): 1 where a text finds a partner of its own; found: the text that it found, None for a vector without direction."""

    right: Floats
    found: list[str | None]


def _scores(
    u: npt.ArrayLike, v: npt.ArrayLike, sources: Sequence[str], targets: Sequence[str]
) -> tuple[dict[str, Any], _Direction, _Direction, Floats]:
    a, b = np.asarray(u, dtype=np.float32), np.asarray(v, dtype=np.float32)
    if a.shape != b.shape or not len(sources) == len(targets) == len(a):
        raise DataError(f"parallel: needs as many vectors as texts on both sides, got {len(a)} and {len(b)} for {len(sources)} and {len(targets)}")
    if not len(a):
        raise DataError("evaluation: no rows, so there is nothing to measure")
    forth, back = _direction(a, b, sources, targets), _direction(b, a, targets, sources)
    cosine = similarities(a, b, "cosine")
    there, here = float(forth.right.mean()), float(back.right.mean())
    notes = ["one row: finding its partner among one text says nothing"] if len(set(targets)) == 1 or len(set(sources)) == 1 else []
    scores = {
        "accuracy": (there + here) / 2, "accuracy_source_to_target": there, "accuracy_target_to_source": here, "mean_cosine": float(cosine.mean()),
        "notes": notes,
    }  # fmt: skip
    return scores, forth, back, cosine


def _direction(u: npt.NDArray[np.float32], v: npt.NDArray[np.float32], sources: Sequence[str], targets: Sequence[str]) -> _Direction:
    first: dict[str, int] = {}
    for row, target in enumerate(targets):
        first.setdefault(target, row)
    distinct = list(first)
    partners: defaultdict[str, set[str]] = defaultdict(set)
    for source, target in zip(sources, targets, strict=True):
        partners[source].add(target)
    best = [distinct[int(rows[0])] if rows.size else None for rows in nearest(u, v[list(first.values())], 1)]
    right = [found is not None and found in partners[source] for source, found in zip(sources, best, strict=True)]
    return _Direction(np.asarray(right, dtype=np.float64), best)
