"""Contrastive objectives over labelled pairs: alike pairs drawn together, unlike ones pushed apart up to a margin.

Source: Hadsell, Chopra and LeCun 2006, "Dimensionality Reduction by Learning an Invariant Mapping", eq. 4.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from twinvec.errors import TrainingError, UsageError
from twinvec.objectives.rows import check_pair
from twinvec.objectives.rows import distance as distance_between


def contrastive_loss(u: Tensor, v: Tensor, labels: Tensor, *, distance: str = "cosine", margin: float = 0.5) -> Tensor:
    """Mean of y d^2 / 2 + (1 - y) max(0, margin - d)^2 / 2, a scalar. u, v (B, D); labels y (B,), 1 for alike and 0 for not.

    Distances: see `rows.distance`; the margin is in the distance's own unit. The paper numbers the classes the other way round (1 is unlike).
    The default margin of 0.5 on cosine distances is sentence-transformers'. Labels besides 0 and 1: TrainingError (looked for on a CPU only).
    """
    d, alike = _distances(u, v, labels, distance, margin, "contrastive loss")
    return (alike * d.square() + (1 - alike) * F.relu(margin - d).square()).mean() / 2


def online_contrastive_loss(u: Tensor, v: Tensor, labels: Tensor, *, distance: str = "cosine", margin: float = 0.5) -> Tensor:
    """Sum of d^2 over the hard alike pairs and of max(0, margin - d)^2 over the hard unlike pairs of the batch, a scalar. Arguments as above.

    An alike pair is hard when it is farther apart than the nearest unlike pair; an unlike pair, when it is nearer than the farthest alike
    pair. Where the batch has one kind only, its own mean distance is the border. A batch in order has loss 0 and gradient 0.
    Source: sentence-transformers' OnlineContrastiveLoss (no paper); as there a sum, without the 1/2 and the mean of `contrastive_loss`.
    """
    d, alike = _distances(u, v, labels, distance, margin, "online contrastive loss")
    near, far = d[alike == 1], d[alike == 0]
    borders = d.detach()
    near_border = borders[alike == 0].min() if len(far) else borders.mean()
    far_border = borders[alike == 1].max() if len(near) else borders.mean()
    return near[near > near_border].square().sum() + F.relu(margin - far[far < far_border]).square().sum()


def _distances(u: Tensor, v: Tensor, labels: Tensor, distance: str, margin: float, loss: str) -> tuple[Tensor, Tensor]:
    """(B,) distances and (B,) labels in their dtype, both checked."""
    check_pair(u, v, loss)
    if not (math.isfinite(margin) and margin > 0):
        raise UsageError(f"{loss}: margin = {margin}: needs a finite number above 0; without one unlike pairs teach nothing")
    if labels.shape != u.shape[:1]:
        raise TrainingError(f"{loss}: needs one label a pair, shape ({len(u)},), got {tuple(labels.shape)}")
    if labels.device.type == "cpu":
        wrong = labels[(labels != 0) & (labels != 1)]
        if len(wrong):
            raise TrainingError(
                f"{loss}: labels must be 0 (unlike) or 1 (alike), got {wrong[0].item()}; for scores use a cosent or regression objective"
            )
    d = distance_between(u, v, distance)
    return d, labels.to(d.dtype)
