"""What changes during a run, and what must not when it is resumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from twinvec.training.recipe import Recipe


@dataclass
class State:
    """What changes during a run, besides weights and optimiser; all of it goes into each checkpoint."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # batches of this epoch already used
    best_step: int = 0
    best_metric: float | None = None
    baseline_metric: float | None = None
    without_gain: int = 0
    loss_sum: float = 0.0
    loss_count: int = 0
    stopped: str = ""
    log_lines: int = 0


NOT_IDENTITY = {
    "output",
    "resume",
    "overwrite",
    "keep_checkpoints",
    "checkpoint_steps",
    "tensorboard",
    "test",
    "device",
    "name",
    "dry_run",
    "lora_keep",
}


def identity(recipe: Recipe) -> dict[str, Any]:
    """The settings that decide what is learned; a resumed run must have the same."""
    return {key: value for key, value in recipe.model_dump(mode="json").items() if key not in NOT_IDENTITY}
