"""The order of batches of a stage: which task gives the next one, and which rows."""

from __future__ import annotations

from twinvec.data.pairs import row_keys
from twinvec.data.sampling import ClassOrder, LengthBucketedOrder, MixedOrder
from twinvec.training.recipe import Recipe
from twinvec.training.source import IN_BATCH
from twinvec.training.tasks import BATCH_TRIPLETS, Task


def make_order(recipe: Recipe, tasks: list[Task]) -> MixedOrder:
    orders = [order_of(recipe, task) for task in tasks]
    weights = [task.source.weight or 1.0 for task in tasks] if recipe.mixing == "weights" else None
    return MixedOrder(orders, recipe.mixing, temperature=recipe.mixing_temperature, weights=weights, seed=recipe.seed)


def order_of(recipe: Recipe, task: Task) -> LengthBucketedOrder | ClassOrder:
    """The order of one task's rows."""
    source = task.source
    if source.objective in BATCH_TRIPLETS:
        assert task.data.labels is not None
        return ClassOrder([int(label) for label in task.data.labels], recipe.batch_size, per_class=source.per_class, seed=recipe.seed)
    lengths = [max(map(len, texts)) for texts in zip(*task.texts, strict=True)]
    # Where rows of a batch are each other's negatives, a batch of one length would be a biased sample; and nothing is padded anyway.
    # There, too, two rows with a text in common are of no use to each other (they are masked), so they go to different batches where they can.
    apart = row_keys(task.data, task.ids) if source.objective in ("infonce", "simcse") and source.mask_same else None
    return LengthBucketedOrder(lengths, recipe.batch_size, recipe.seed, 1 if source.objective in IN_BATCH else 50, keys=apart)
