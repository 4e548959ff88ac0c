"""What one model's result on one file was made of, unit by unit: ground for intervals, slices, mistakes and comparisons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from twinvec.evaluation.metrics import Floats
from twinvec.evaluation.weighted import Figures, Ints, means


def no_mistakes(count: int) -> list[dict[str, Any]]:
    return []


@dataclass(frozen=True)
class Measured:
    """scores: the figures as `evaluate` gives them, with "notes". A unit is what chance draws: a row, or a query with its documents.

    figures: every score that chance moves, as a function of how often each unit counts (see `weighted`). values: name -> (units,) of those figures
    that are means over units. names: a row number or query id for each unit; texts: its texts, by column. headline: the figure by which
    models are compared. mistakes(k): the k worst units, worst first. clusters (units,): numbers of units that belong together.
    cosines and same: of pairs only, the cosine of each unit and whether its texts mean the same (1, 0), for calibration.
    """

    task: str
    headline: str
    scores: dict[str, Any]
    figures: Figures
    names: list[Any]
    texts: list[dict[str, str]]
    values: dict[str, Floats] = field(default_factory=dict)
    mistakes: Callable[[int], list[dict[str, Any]]] = no_mistakes
    clusters: Ints | None = None
    cosines: Floats | None = None
    same: Floats | None = None

    @property
    def units(self) -> int:
        return len(self.names)


def of_means(task: str, headline: str, scores: dict[str, Any], values: dict[str, Floats], **more: Any) -> Measured:
    """A result whose figures are all means over units."""
    return Measured(task=task, headline=headline, scores=scores, figures=means(values), values=values, **more)
