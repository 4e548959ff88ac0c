"""Triplets found in a batch of vectors with class labels.

Sources: Hermans, Beyer and Leibe 2017, "In Defense of the Triplet Loss for Person Re-Identification" (batch hard, batch all, soft margin);
Schroff, Kalenichenko and Philbin 2015, "FaceNet" (semi-hard).
"""

from __future__ import annotations

import math
from typing import Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from twinvec.errors import TrainingError, UsageError, choose
from twinvec.objectives.rows import DISTANCES, unit_rows, upcast

MININGS: Final = ("hard", "semi_hard", "all", "hard_soft")


def batch_triplet_loss(
    vectors: Tensor,
    labels: Tensor,
    *,
    mining: Literal["hard", "semi_hard", "all", "hard_soft"] = "hard",
    distance: Literal["euclidean", "cosine", "manhattan"] = "euclidean",
    margin: float = 1.0,
) -> Tensor:
    """Mean triplet loss over the triplets (a, p, n) that `mining` picks, a scalar. vectors (B, D); labels (B,), integers: equal for one class.

    hard: for each a its farthest p and its nearest n, max(0, d_ap - d_an + margin), the mean over a (Hermans, eq. 5).
    hard_soft: the same with log(1 + exp(d_ap - d_an)); the margin plays no part (Hermans, section 2).
    semi_hard: for each (a, p) the nearest n farther than p, or the farthest n where none is; the mean over (a, p) (FaceNet, section 3.2).
    all: every triplet whose loss is above 0, the mean over those (Hermans, eq. 6 and "batch all non-zero").
    Euclidean distance and margin 1 lie in the range that Hermans tried (0.1 to 1).

    Rows without a second of their class or without a row of another have no triplet and count nowhere; a batch without triplets has loss 0
    and gradient 0. Departure from sentence-transformers, which in hard and hard_soft takes 0 for the missing distance and averages over all
    rows. Time O(B^2 (D + log B)), memory a few (B, B): also for "all", through sorted distances, where listing the triplets takes up to B^3.
    """
    choose("mining", mining, MININGS)
    choose("distance", distance, DISTANCES)
    _check(vectors, labels, margin)
    d = _distances(vectors, distance)
    same = labels[:, None] == labels
    positive = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    if mining == "semi_hard":
        return _semi_hard(d, positive, same, margin)
    if mining == "all":
        return _all(d, positive, same, margin)
    usable = positive.any(1) & ~same.all(1)
    near = d.masked_fill(same, math.inf).amin(1)[usable]
    far = d.masked_fill(~positive, -math.inf).amax(1)[usable]
    losses = F.softplus(far - near) if mining == "hard_soft" else F.relu(far - near + margin)
    return losses.sum() / max(1, len(losses))


def _distances(vectors: Tensor, distance: str) -> Tensor:
    """(B, B), all against all. Neither kind of norm goes through |x|^2 + |y|^2 - 2xy, which loses near pairs to rounding."""
    with torch.autocast(vectors.device.type, enabled=False):
        if distance == "cosine":
            unit = unit_rows(vectors)
            return 1 - unit @ unit.T
        x = upcast(vectors)
        return torch.cdist(x, x, p=2.0 if distance == "euclidean" else 1.0, compute_mode="donot_use_mm_for_euclid_dist")


def _semi_hard(d: Tensor, positive: Tensor, same: Tensor, margin: float) -> Tensor:
    negatives = d.masked_fill(same, math.inf).sort(dim=1).values  # (B, B), each row's own negatives first
    count = (~same).sum(1, keepdim=True)
    # The first negative strictly farther than p; past the last there is none, and the last, the farthest, stands in.
    place = torch.searchsorted(negatives.detach(), d.detach(), right=True)
    chosen = negatives.gather(1, torch.minimum(place, (count - 1).clamp(min=0)))
    losses = F.relu((d - chosen + margin)[positive & (count > 0)])
    return losses.sum() / max(1, len(losses))


def _all(d: Tensor, positive: Tensor, same: Tensor, margin: float) -> Tensor:
    limits = d.double() + margin
    negatives = d.double().masked_fill(same, math.inf).sort(dim=1).values
    # The negatives nearer than the limit are a prefix: k of them, with sum S, lose k * limit - S. float64, as that is a small difference.
    place = torch.searchsorted(negatives.detach(), limits.detach())
    sums = F.pad(negatives.masked_fill(negatives.isinf(), 0).cumsum(1), (1, 0))
    losses = (place * limits - sums.gather(1, place))[positive]
    return (losses.sum() / place[positive].sum().clamp(min=1)).to(d.dtype)


def _check(vectors: Tensor, labels: Tensor, margin: float) -> None:
    if vectors.ndim != 2 or not vectors.is_floating_point() or labels.shape != vectors.shape[:1]:
        raise TrainingError(f"batch triplets: needs vectors (B, D) and labels (B,), got {tuple(vectors.shape)} and {tuple(labels.shape)}")
    if not len(vectors):
        raise TrainingError("batch triplets: a batch without rows has no loss; drop empty batches before this call")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TrainingError(f"batch triplets: labels must be integers (class numbers), got {labels.dtype}; convert with .long()")
    if not (math.isfinite(margin) and margin >= 0):
        raise UsageError(f"batch triplets: margin = {margin}: needs a finite number of 0 or more")
