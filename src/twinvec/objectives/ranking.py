"""Ranking objectives over scored pairs: a pair of a higher label must be more alike than every pair of a lower one.

Sources: Su 2022, "CoSENT" (kexue.fm/archives/8847); Li and Li 2023, "AnglE-optimized Text Embeddings" (AnglE), section 3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from twinvec.errors import TrainingError, UsageError
from twinvec.objectives.rows import check_pair, cosine, unit_rows


def cosent_loss(u: Tensor, v: Tensor, labels: Tensor, *, scale: float = 20.0) -> Tensor:
    """log(1 + sum over pairs of rows with y_i > y_j of exp(scale * (cos_j - cos_i))), a scalar. u, v (B, D); labels (B,), scores or 0/1.

    Only the order of the labels counts, so any range will do; rows of equal labels are not compared, and a batch of one label has loss 0 and
    gradient 0. It is a sum, not a mean: it grows with the logarithm of the number of compared pairs.
    The sum over pairs is taken in O(B log B) time and O(B) memory, through sorted labels and cumulative sums.
    """
    check_pair(u, v, "CoSENT loss")
    return _ordered(cosine(u, v), labels, scale, "CoSENT loss")


def angle_loss(u: Tensor, v: Tensor, labels: Tensor, *, scale: float = 20.0) -> Tensor:
    """The same with the angle of AnglE (Li and Li 2023, angle objective) in the cosine's place. u, v (B, D), D even; labels (B,), scores or 0/1.

    The halves of a vector are the real and the imaginary parts of D/2 complex numbers: u = a + bi, v = c + di. Their similarity is
    |sum(ac + bd) + sum(bc - ad)| / (|u| |v|), the sum of both parts of u/v after its length is divided out.
    As in the authors' code and in sentence-transformers, larger is taken to mean more alike, though the paper calls it a difference.
    """
    check_pair(u, v, "AnglE loss")
    if u.shape[1] % 2:
        raise TrainingError(f"AnglE loss: halves a vector into real and imaginary parts, so needs an even number of dimensions, got {u.shape[1]}")
    (a, b), (c, d) = unit_rows(u).chunk(2, dim=1), unit_rows(v).chunk(2, dim=1)
    return _ordered((a * c + b * d + b * c - a * d).sum(1).abs(), labels, scale, "AnglE loss")


def angle_total(u: Tensor, v: Tensor, labels: Tensor, *, scale: float = 20.0, angle_scale: float = 20.0, angle_weight: float = 1.0) -> Tensor:
    """cosent_loss + angle_weight * angle_loss, a scalar: what `objective = "angle"` trains (Li and Li 2023, w1 cosine + w3 angle).

    The angle alone does not bind the cosine, by which vectors are compared afterwards. Departures: the paper's third term, the in-batch
    negatives (w2), is left to an InfoNCE objective of its own; sentence-transformers' AnglELoss is the angle term alone. Its angle scale of
    20 is the default here; code derived from the authors' has 1, a far softer term.
    """
    if not (math.isfinite(angle_weight) and angle_weight >= 0):
        raise UsageError(f"AnglE loss: angle_weight = {angle_weight}: needs a finite number of 0 or more")
    return cosent_loss(u, v, labels, scale=scale) + angle_weight * angle_loss(u, v, labels, scale=angle_scale)


def _ordered(similarity: Tensor, labels: Tensor, scale: float, loss: str) -> Tensor:
    """log(1 + sum_{y_i > y_j} exp(scale * (s_j - s_i))). similarity, labels (B,)."""
    if not (math.isfinite(scale) and scale > 0):
        raise UsageError(f"{loss}: scale = {scale}: needs a finite number above 0, such as 20 (the inverse of a temperature of 0.05)")
    if labels.shape != similarity.shape:
        raise TrainingError(f"{loss}: needs one label a pair, shape {tuple(similarity.shape)}, got {tuple(labels.shape)}")
    if labels.is_complex():
        raise TrainingError(f"{loss}: labels need an order, got {labels.dtype}")
    if labels.device.type == "cpu" and not bool(torch.isfinite(labels).all()):
        raise TrainingError(f"{loss}: {int((~torch.isfinite(labels)).sum())} labels are not finite numbers, so have no place in the order")
    labels = labels.int() if labels.dtype == torch.bool else labels
    labels, order = labels.sort(stable=True)
    scores = similarity[order] * scale
    # For each row the log of the sum of exp(-s) over all rows of a higher label; those are a suffix, as the labels are sorted.
    suffixes = torch.logcumsumexp(-scores.flip(0), 0).flip(0)
    suffixes = torch.cat([suffixes, suffixes.new_full((1,), -math.inf)])
    first_higher = torch.searchsorted(labels, labels, right=True)
    compared = first_higher < len(labels)  # nothing is above the highest label: no -inf enters the graph
    pairs = scores[compared] + suffixes[first_higher[compared]]
    return torch.logsumexp(torch.cat([scores.new_zeros(1), pairs]), 0)
