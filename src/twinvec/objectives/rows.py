"""Row-wise cosine and distances whose gradients are finite everywhere: also for zero rows and for equal rows."""

from __future__ import annotations

from typing import Final, cast

import torch
from torch import Tensor

from twinvec.errors import TrainingError, choose

DISTANCES: Final = ("euclidean", "cosine", "manhattan")
# A row shorter than this counts as having no direction. sentence-transformers and torch use the same figure for cosine;
# its square (1e-16) is far from the smallest float32 (1e-45), so the test below never underflows.
SMALLEST_NORM: Final = 1e-8


def upcast(x: Tensor) -> Tensor:
    """Half precision becomes float32: losses are means of many small terms. float32 and float64 stay as they are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def unit_rows(x: Tensor) -> Tensor:
    """x (..., D) with every row divided by its Euclidean norm; rows shorter than 1e-8 are left as they are (about zero).

    Departure from `F.normalize`, which divides such rows by 1e-12: there the gradient of a zero row is 1e12 times that of its
    neighbours, and one empty text in a batch decides the clipped step of all the others.
    """
    x = upcast(x)
    squares = (x * x).sum(-1, keepdim=True)
    # The dangerous root is never taken: `where` after the root would still send nan back through it.
    return x / torch.where(squares > SMALLEST_NORM**2, squares, torch.ones_like(squares)).sqrt()


def cosine(x: Tensor, y: Tensor) -> Tensor:
    """Cosine of the last axis: (..., D), (..., D) -> (...). A zero row has cosine 0 with everything."""
    return (unit_rows(x) * unit_rows(y)).sum(-1)


def distance(x: Tensor, y: Tensor, name: str) -> Tensor:
    """Distance along the last axis: (..., D), (..., D) -> (...), for a name of `DISTANCES`.

    "euclidean" is |x - y|_2 without the 1e-6 that `F.pairwise_distance` adds to each difference; its gradient at x = y is 0.
    "cosine" is 1 - cos, from 0 to 2. "manhattan" is the sum of absolute differences. Any other name: UsageError.
    """
    choose("distance", name, DISTANCES)
    if name == "cosine":
        return 1 - cosine(x, y)
    difference = upcast(x) - upcast(y)
    if name == "manhattan":
        return difference.abs().sum(-1)
    # vector_norm's own backward gives 0, not nan, where the norm is 0.
    return cast(Tensor, torch.linalg.vector_norm(difference, dim=-1))


def check_pair(u: Tensor, v: Tensor, loss: str) -> None:
    """TrainingError unless u and v are (B, D) of one shape with at least one row."""
    if u.ndim != 2 or u.shape != v.shape:
        raise TrainingError(f"{loss}: the two sides need equal shapes (B, D), got {tuple(u.shape)} and {tuple(v.shape)}")
    if not len(u):
        raise TrainingError(f"{loss}: a batch without rows has no loss; drop empty batches before this call")
