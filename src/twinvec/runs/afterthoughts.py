"""What a run should have been told before it started, or tells when it has ended."""

from __future__ import annotations

from pathlib import Path

from twinvec.model.encoder import Encoder
from twinvec.runs.folder import read_log
from twinvec.runs.inputs import Inputs
from twinvec.training.loop import Run
from twinvec.training.recipe import Recipe
from twinvec.training.source import PRETRAINING

FLAT = 0.02  # a loss that moved less than this share of itself has not moved
MOSTLY_REPEATED = 0.5


def forethoughts(recipe: Recipe, inputs: Inputs) -> list[str]:
    """Notes on settings that do something else than what is often meant."""
    notes = []
    contrastive = [source for source, _ in inputs.sources if source.objective in ("infonce", "simcse")]
    if recipe.accumulation > 1 and contrastive:
        notes.append(
            f"accumulation = {recipe.accumulation} gives no more negatives: each row is compared within its batch of {recipe.batch_size}. "
            f"For more negatives set batch_size = {recipe.batch_size * recipe.accumulation}, accumulation = 1: gradient_cache bounds the memory"
        )
    if contrastive and recipe.batch_size < 8:
        notes.append(f"batch_size = {recipe.batch_size}: {contrastive[0].objective} learns from the other rows of a batch; 64 and more is usual")
    return notes


def remarks(recipe: Recipe, encoder: Encoder, inputs: Inputs) -> list[str]:
    """What may be worth knowing and is no fault: texts that are encoded again and again."""
    if not encoder.net.drops() or recipe.dropout == 0:
        return []
    said = []
    for source, data in inputs.sources:
        texts = [text for column in data.columns.values() for text in column]
        repeated = 1 - len(set(texts)) / max(1, len(texts))
        if repeated > MOSTLY_REPEATED and source.objective not in (*PRETRAINING, "simcse"):
            said.append(
                f"{source.data}: {repeated:.0%} of its texts are repeats; with dropout each is encoded every time, since each has a mask of its own. "
                "dropout = 0 encodes equal texts of a batch once"
            )
    return said


def afterthoughts(run: Run, folder: Path) -> list[str]:
    """Notes on what came out: worse than before, undefined, or nothing learned."""
    recipe, state, metric = run.recipe, run.state, run.metric
    notes = []
    sign = -1 if metric == "loss" else 1
    if state.best_metric is not None and state.baseline_metric is not None and sign * state.best_metric < sign * state.baseline_metric:
        notes.append(
            f"the best step ({metric} {state.best_metric:.4f}) is below the model before training ({state.baseline_metric:.4f}): keep the old model"
        )
    if state.best_metric is None and (recipe.dev or recipe.dev_share):
        notes.append(f"{metric} was never defined on dev (constant scores?), so the last weights were kept instead of the best")
    return [*notes, *_loss_notes(run, folder)]


def _loss_notes(run: Run, folder: Path) -> list[str]:
    """The loss stays where it was, or at what chance gives."""
    recipe = run.recipe
    losses = [entry["loss"] for entry in read_log(folder) if entry["event"] == "loss"]
    if len(losses) < 5 or len(run.tasks) > 1:
        return []
    third = max(1, len(losses) // 3)
    start, end = sum(losses[:third]) / third, sum(losses[-third:]) / third
    chance = run.tasks[0].chance(recipe.batch_size)
    if chance is not None and end > chance * (1 - FLAT):
        return [
            f"the loss stays at {end:.3f}, and chance is ln(candidates) = {chance:.3f}: the model tells nothing apart. "
            "Are the columns those that belong together? Try a higher lr, a lower temperature, or normalize = false with similarity = 'cosine'"
        ]
    if end > start * (1 - FLAT) and abs(end) > 1e-3:
        advice = "the classifier learns little; try a higher lr, more epochs, or head_lr" if run.tasks[0].objective == "classification" else (
            "try a higher lr or more epochs, and look whether the labels fit the texts"
        )  # fmt: skip
        return [f"the loss hardly fell ({start:.3f} to {end:.3f}): {advice}"]
    return []
