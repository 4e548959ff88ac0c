"""The regression objective of SBERT: mean squared error between a gold score and the cosine.

Source: Reimers and Gurevych 2019, section 3.
"""

from __future__ import annotations

from typing import Final, Literal

import torch.nn.functional as F
from torch import Tensor

from twinvec.errors import TrainingError, UsageError, choose
from twinvec.objectives.rows import check_pair, cosine

MAPPINGS: Final = ("range", "unit")


def regression_loss(u: Tensor, v: Tensor, scores: Tensor, low: float, high: float, mapping: Literal["range", "unit"] = "range") -> Tensor:
    """Mean squared error, a scalar. u, v (B, D); scores (B,), gold, from `low` (unlike) to `high` (same meaning).

    mapping="range": the cosine is carried to the scores' range, low + (cos + 1)/2 * (high - low); for 0-5 that is cos * 2.5 + 2.5,
    so the lowest score asks for opposite vectors. mapping="unit": the score is carried to 0-1 and compared with the bare cosine,
    so the lowest score asks for a right angle (what sentence-transformers' CosineSimilarityLoss does with scores scaled to 0-1).
    A wrong shape: TrainingError; a range that is empty, or an unknown mapping: UsageError.
    """
    choose("mapping", mapping, MAPPINGS)
    check_pair(u, v, "regression loss")
    if scores.shape != u.shape[:1]:
        raise TrainingError(f"regression loss: needs one score a pair, shape ({len(u)},), got {tuple(scores.shape)}")
    if not low < high:
        raise UsageError(f"regression loss: the score range {low},{high} is empty; the lowest score comes first, as in 0,5")
    cos = cosine(u, v)
    gold = scores.to(cos.dtype)
    if mapping == "range":
        return F.mse_loss(low + (cos + 1) / 2 * (high - low), gold)
    return F.mse_loss(cos, (gold - low) / (high - low))
