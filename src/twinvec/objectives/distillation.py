"""Distillation: a student learns a teacher's vectors, its score margins, or its ranking of a list.

Sources: Reimers and Gurevych 2020, "Making Monolingual Sentence Embeddings Multilingual" (vectors); Hofstätter et al. 2020, "Improving Efficient
Neural Ranking Models with Cross-Architecture Knowledge Distillation" (margins); Hinton et al. 2015 and Lin et al. 2020, "Distilling Dense
Representations for Ranking using Tightly-Coupled Teachers" (lists).
"""

from __future__ import annotations

import math
from typing import Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from twinvec.errors import TrainingError, UsageError, choose
from twinvec.objectives.rows import check_pair, cosine, upcast

LOSSES: Final = ("mse", "cosine")
SIMILARITIES: Final = ("dot", "cosine")


def vector_distillation_loss(student: Tensor, teacher: Tensor, *, loss: Literal["mse", "cosine"] = "mse") -> Tensor:
    """How far the student's vectors are from the teacher's, a scalar. student, teacher (B, D); no gradient reaches the teacher.

    mse: the mean of squared differences over rows and dimensions (Reimers and Gurevych 2020; a sum over dimensions would be D
    times this). cosine: the mean of 1 - cos, which leaves the student's norms free.
    For the multilingual recipe call it twice: on the source texts and on their translations, with the teacher's vectors of the source texts.
    """
    choose("loss", loss, LOSSES)
    if student.ndim == 2 and teacher.ndim == 2 and student.shape[1] != teacher.shape[1]:
        raise TrainingError(
            f"vector distillation: the student's vectors have {student.shape[1]} dimensions, the teacher's {teacher.shape[1]}; "
            "give the student a Dense layer to the teacher's size, or cut the teacher's vectors"
        )
    check_pair(student, teacher, "vector distillation")
    aim = upcast(_teachers(teacher, "vectors", "vector distillation")).to(upcast(student[:0]).dtype)
    if loss == "cosine":
        return (1 - cosine(student, aim)).mean()
    return F.mse_loss(upcast(student), aim)


def margin_mse_loss(anchor: Tensor, positive: Tensor, negatives: Tensor, margins: Tensor, *, similarity: Literal["dot", "cosine"] = "dot") -> Tensor:
    """Mean over rows and negatives of ((s(a, p) - s(a, n)) - margin)^2, a scalar (Hofstätter et al. 2020, Margin-MSE).

    anchor, positive (N, D); negatives (N, n, D), or (N, D) for one a row; margins (N, n), or (N,) for one a row: the teacher's score of the
    positive minus its score of the negative, in the teacher's own unit. A cross-encoder's margins reach to 10 and more: a dot product can
    follow them, a cosine (margins within -2 and 2) only after they were scaled down.
    """
    choose("similarity", similarity, SIMILARITIES)
    check_pair(anchor, positive, "margin MSE")
    if negatives.ndim == 2:
        negatives = negatives.unsqueeze(1)
    _check_lists(anchor, negatives, 1, "margin MSE", "negatives")
    if margins.ndim == 1:
        margins = margins.unsqueeze(1)
    if margins.shape != negatives.shape[:2]:
        raise TrainingError(f"margin MSE: needs a margin for each negative, shape {tuple(negatives.shape[:2])}, got {tuple(margins.shape)}")
    near = _similarity(anchor, positive, similarity).unsqueeze(1)
    far = _similarity(anchor.unsqueeze(1), negatives, similarity)
    return F.mse_loss(near - far, _teachers(margins, "margins", "margin MSE").to(near.dtype))


def score_distillation(
    anchor: Tensor, candidates: Tensor, scores: Tensor, *, temperature: float = 1.0, similarity: Literal["dot", "cosine"] = "dot"
) -> Tensor:
    """temperature^2 * mean over rows of KL(softmax(scores / temperature) || softmax(s(a, c) / temperature)), a scalar (Hinton et al. 2015).

    anchor (N, D); candidates (N, n, D), n at least 2, the positive among them; scores (N, n), the teacher's, in any unit. With cosines give a
    low temperature and scores of a like range: 1.0 lets a cosine tell two candidates apart by a factor of 7 at most.
    """
    choose("similarity", similarity, SIMILARITIES)
    if not (math.isfinite(temperature) and temperature > 0):
        raise UsageError(f"score distillation: temperature = {temperature}: needs a finite number above 0")
    if anchor.ndim != 2 or not len(anchor):
        raise TrainingError(f"score distillation: needs anchors (N, D) with at least one row, got {tuple(anchor.shape)}")
    _check_lists(anchor, candidates, 2, "score distillation", "candidates")
    if scores.shape != candidates.shape[:2]:
        raise TrainingError(f"score distillation: needs a score for each candidate, shape {tuple(candidates.shape[:2])}, got {tuple(scores.shape)}")
    ours = _similarity(anchor.unsqueeze(1), candidates, similarity) / temperature
    theirs = _teachers(scores, "scores", "score distillation").to(ours.dtype) / temperature
    divergence = F.kl_div(ours.log_softmax(1), theirs.log_softmax(1), reduction="batchmean", log_target=True)
    return divergence * temperature**2


def _similarity(x: Tensor, y: Tensor, name: str) -> Tensor:
    return cosine(x, y) if name == "cosine" else (upcast(x) * upcast(y)).sum(-1)


def _check_lists(anchor: Tensor, lists: Tensor, least: int, loss: str, name: str) -> None:
    rows, dimensions = anchor.shape
    if lists.ndim != 3 or len(lists) != rows or lists.shape[2] != dimensions or lists.shape[1] < least:
        raise TrainingError(f"{loss}: {name} need shape ({rows}, n, {dimensions}), n at least {least}, got {tuple(lists.shape)}")


def _teachers(values: Tensor, name: str, loss: str) -> Tensor:
    """Detached. On a CPU, a value that is no finite number: TrainingError; on an accelerator looking would stall it at every step."""
    if values.device.type == "cpu" and not bool(torch.isfinite(values).all()):
        raise TrainingError(
            f"{loss}: {int((~torch.isfinite(values)).sum())} of the teacher's {name} are not finite numbers; mend the data they came from"
        )
    return values.detach()
