"""The triplet objective: an anchor nearer to its positive than to its negative, by a margin.

Source: Reimers and Gurevych 2019, section 3 (Euclidean distance, margin 1).
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from twinvec.errors import TrainingError, UsageError
from twinvec.objectives.rows import check_pair
from twinvec.objectives.rows import distance as distance_between


def triplet_loss(anchor: Tensor, positive: Tensor, negatives: Tensor, distance: str = "euclidean", margin: float = 1.0) -> Tensor:
    """Mean of max(0, d(a, p) - d(a, n) + margin) over all rows and all their negatives, a scalar.

    anchor, positive (B, D); negatives (B, D), or (B, n, D) for n negatives a row. Distances: see `rows.distance`. The margin is in the
    distance's own unit: 1.0 is much for cosine (0 to 2) and little for Manhattan. A row whose negative is far enough has gradient 0.
    """
    check_pair(anchor, positive, "triplet loss")
    if negatives.ndim == 2:
        negatives = negatives.unsqueeze(1)
    rows, dimensions = anchor.shape
    if negatives.ndim != 3 or negatives.shape[0] != rows or negatives.shape[2] != dimensions or not negatives.shape[1]:
        raise TrainingError(
            f"triplet loss: negatives need shape ({rows}, {dimensions}) or ({rows}, n, {dimensions}), n at least 1, got {tuple(negatives.shape)}"
        )
    if not (math.isfinite(margin) and margin >= 0):
        raise UsageError(f"triplet loss: margin = {margin}: needs a finite number of 0 or more")
    near = distance_between(anchor, positive, distance).unsqueeze(1)  # (B, 1)
    far = distance_between(anchor.unsqueeze(1), negatives, distance)  # (B, n)
    return F.relu(near - far + margin).mean()
