"""Matryoshka: the first d dimensions of a vector must serve as a vector too, for several d.

Source: Kusupati et al. 2022, "Matryoshka Representation Learning", eq. 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from twinvec.errors import TrainingError, UsageError
from twinvec.objectives.parts import Part


def matryoshka_parts(
    make: Callable[[list[Tensor]], list[Part]], vectors: list[Tensor], dimensions: Sequence[int], weights: Sequence[float] | None = None
) -> list[Part]:
    """Parts whose sum is sum_d w_d * L(vectors cut to their first d dimensions); L is the sum of what `make` returns for the cut ones.

    vectors: any tensors (..., D) of one D. dimensions: distinct, from 1 to D, in any order; weights: one a dimension, above 0 (1 each, as in the
    paper, when None). The sum is not divided by the weights' sum: as in the paper, three dimensions give three times the gradient.
    Departure from sentence-transformers: the cut vectors are not brought to norm 1 here. For a cosine that is the same; an objective on dot
    products or Euclidean distances sees the cut vectors as they are. Wrong dimensions or weights: UsageError.
    """
    check_dimensions(dimensions, weights)
    if not vectors:
        raise TrainingError("Matryoshka: needs at least one tensor of vectors, got none")
    sizes = {int(x.shape[-1]) if x.ndim else 0 for x in vectors}
    if len(sizes) > 1:
        raise TrainingError(f"Matryoshka: all vectors need one number of dimensions, got {', '.join(map(str, sorted(sizes)))}")
    width = sizes.pop()
    if max(dimensions) > width:
        raise UsageError(f"Matryoshka: dimensions = {list(dimensions)}: the vectors have {width}; leave out what is above that")

    def weighted(part: Part, weight: float) -> Part:
        return lambda: part() * weight

    parts: list[Part] = []
    for size, weight in zip(dimensions, weights or [1.0] * len(dimensions), strict=True):
        parts += [weighted(part, weight) for part in make([x[..., :size] for x in vectors])]
    return parts


def check_dimensions(dimensions: Sequence[int], weights: Sequence[float] | None = None) -> None:
    """UsageError unless dimensions are distinct whole numbers from 1, with as many finite weights above 0, if any."""
    if not dimensions or any(isinstance(d, bool) or not isinstance(d, int) or d < 1 for d in dimensions):
        raise UsageError(f"Matryoshka: dimensions = {list(dimensions)}: needs whole numbers of 1 or more, such as 384, 128, 32")
    if len(set(dimensions)) < len(dimensions):
        raise UsageError(f"Matryoshka: dimensions = {list(dimensions)}: each may stand once; give it a larger weight instead")
    if weights is None:
        return
    if len(weights) != len(dimensions):
        raise UsageError(f"Matryoshka: {len(weights)} weights for {len(dimensions)} dimensions: give one each, or none")
    if not all(math.isfinite(w) and w > 0 for w in weights):
        raise UsageError(f"Matryoshka: weights = {list(weights)}: needs finite numbers above 0; leave out a dimension that shall not count")
