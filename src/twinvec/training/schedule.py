"""The learning rate over a run."""

from __future__ import annotations

import math
from collections.abc import Callable

from twinvec.errors import choose


def _linear(done: float) -> float:
    return 1.0 - done


def _cosine(done: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * done))


def _constant(done: float) -> float:
    return 1.0


SCHEDULES: dict[str, Callable[[float], float]] = {"linear": _linear, "cosine": _cosine, "constant": _constant}


def lr_factor(step: int, total: int, warmup: float, schedule: str) -> float:
    """Share of the peak learning rate at optimiser step `step` (from 0) of `total`.

    Rises linearly over the first ceil(warmup * total) steps, then falls to 0 at `total` (linear, cosine) or stays (constant).
    A function of the step alone, so that a resumed run needs no state.
    """
    choose("schedule", schedule, SCHEDULES)
    rising = math.ceil(warmup * total)
    if step < rising:
        return (step + 1) / rising
    return max(0.0, SCHEDULES[schedule]((step - rising) / max(1, total - rising)))
