"""Partners in two columns (translations, questions and answers): does each text find its own?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.errors import DataError
from twinvec.evaluation.metrics import similarities
from twinvec.evaluation.nearest import nearest


def score_parallel(u: npt.ArrayLike, v: npt.ArrayLike, sources: Sequence[str], targets: Sequence[str]) -> dict[str, Any]:
    """u, v (n, D), vectors of `sources` and `targets`, row i with row i -> a dict.

    "accuracy_source_to_target": share of rows whose source finds, as its nearest by cosine among all distinct targets, a text that some
    row pairs with that source (so that repeated texts are no mistakes); "accuracy_target_to_source" the other way; "accuracy" their mean;
    "mean_cosine" of the partners; "notes".
    """
    a, b = np.asarray(u, dtype=np.float32), np.asarray(v, dtype=np.float32)
    if a.shape != b.shape or not len(sources) == len(targets) == len(a):
        raise DataError(f"parallel: needs as many vectors as texts on both sides, got {len(a)} and {len(b)} for {len(sources)} and {len(targets)}")
    if not len(a):
        raise DataError("evaluation: no rows, so there is nothing to measure")
    forth, back = _accuracy(a, b, sources, targets), _accuracy(b, a, targets, sources)
    mean = float(similarities(a, b, "cosine").mean())
    notes = ["one row: finding its partner among one text says nothing"] if len(set(targets)) == 1 or len(set(sources)) == 1 else []
    return {
        "accuracy": (forth + back) / 2, "accuracy_source_to_target": forth, "accuracy_target_to_source": back, "mean_cosine": mean, "notes": notes,
    }  # fmt: skip


def _accuracy(u: npt.NDArray[np.float32], v: npt.NDArray[np.float32], sources: Sequence[str], targets: Sequence[str]) -> float:
    first: dict[str, int] = {}
    for row, target in enumerate(targets):
        first.setdefault(target, row)
    distinct = list(first)
    partners: defaultdict[str, set[str]] = defaultdict(set)
    for source, target in zip(sources, targets, strict=True):
        partners[source].add(target)
    found = nearest(u, v[list(first.values())], 1)
    right = [bool(best.size) and distinct[int(best[0])] in partners[source] for source, best in zip(sources, found, strict=True)]
    return sum(right) / len(sources)
