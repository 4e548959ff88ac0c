"""Writing the best model: an ordinary folder, adapters merged."""

from __future__ import annotations

from pathlib import Path

from twinvec.model.encoder import Encoder
from twinvec.training.recipe import Recipe


def save_best(encoder: Encoder, folder: Path, recipe: Recipe) -> None:
    """Write folder/best, adapters merged into it; with lora_keep the adapters alone as well, in folder/adapter."""
    if recipe.lora_rank and recipe.lora_keep:
        from twinvec.model.adapters import save_adapter

        save_adapter(encoder.net, folder / "adapter")
    encoder.save(folder / "best")
