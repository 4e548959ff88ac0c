"""Joins data and loss: which columns are encoded, which labels the loss gets, which layer is trained beside the encoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from twinvec.data.dataset import Dataset
from twinvec.errors import UsageError
from twinvec.objectives.classification import ClassificationHead, classification_loss
from twinvec.objectives.regression import regression_loss
from twinvec.objectives.triplet import triplet_loss
from twinvec.training.recipe import Recipe

WANTED = {
    "classification": ("nli", "pairs"),
    "regression": ("scores", "pairs"),
    "triplet": ("triplets",),
}


class TrainingObjective:
    """`loss(vectors, labels)`: vectors holds one (B, D) tensor a column of `columns`; `head` is trained too, or None."""

    def __init__(self, recipe: Recipe, data: Dataset, dimensions: int) -> None:
        check_fit(recipe, data)
        self.recipe = recipe
        self.columns = list(data.columns)
        self.head: nn.Module | None = None
        self._range = (0.0, 1.0)
        if recipe.objective == "classification":
            self.head = ClassificationHead(dimensions, 3 if data.kind == "nli" else 2, recipe.concatenation)
        elif recipe.objective == "regression" and data.score_range is not None:
            self._range = data.score_range

    def labels_of(self, data: Dataset) -> Tensor | None:
        """(n,) what the loss is told of each row: class numbers, or scores in the training data's own range; None for triplets."""
        if self.recipe.objective == "triplet":
            return None
        assert data.labels is not None
        if self.recipe.objective == "classification":
            return torch.tensor(data.labels).long()
        # As they stand: dev data may happen to reach over a part of the range only, and its scores mean the same.
        return torch.tensor(data.labels, dtype=torch.float32)

    def loss(self, vectors: Sequence[Tensor], labels: Tensor | None) -> Tensor:
        """A scalar, the mean over the rows of the batch."""
        recipe = self.recipe
        if recipe.objective == "triplet":
            negatives = torch.stack(list(vectors[2:]), dim=1)
            return triplet_loss(vectors[0], vectors[1], negatives, recipe.distance, recipe.margin)
        assert labels is not None
        if recipe.objective == "regression":
            return regression_loss(vectors[0], vectors[1], labels, *self._range, mapping=recipe.mapping)
        assert isinstance(self.head, ClassificationHead)
        return classification_loss(self.head(vectors[0], vectors[1]), labels)


def check_fit(recipe: Recipe, data: Dataset) -> None:
    """UsageError when the objective cannot learn from this kind of data; the message names those that can."""
    wanted = WANTED[recipe.objective]
    if data.kind not in wanted:
        fitting = [name for name, kinds in WANTED.items() if data.kind in kinds]
        advice = f"for this file use objective = {' or '.join(map(repr, fitting))}" if fitting else "no objective here learns from such a file"
        raise UsageError(f"objective = {recipe.objective!r} wants {' or '.join(wanted)}, but {data.path} holds {data.kind}; {advice}")
    if recipe.objective != "triplet" and data.labels is None:
        raise UsageError(
            f"objective = {recipe.objective!r} wants a label or score in each row, but {data.path} has no such column; name it with --columns"
        )
    if len(data) == 0:
        raise UsageError(f"{data.path}: no rows to train on")
    if recipe.objective == "classification" and data.labels is not None and len(set(data.labels)) < 2:
        raise UsageError(f"{data.path}: every row has the same label ({data.labels[0]}); a classifier has nothing to learn from it")
