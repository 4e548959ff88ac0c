"""The classification objective of SBERT: softmax(W [u; v; |u-v|]) and its cousins.

Source: Reimers and Gurevych 2019, section 3 (objective) and table 6 (the concatenations).
"""

from __future__ import annotations

from typing import Final, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twinvec.errors import TrainingError, UsageError, choose
from twinvec.objectives.rows import check_pair, upcast

CONCATENATIONS: Final[tuple[str, ...]] = ("u,v", "|u-v|", "u*v", "|u-v|,u*v", "u,v,u*v", "u,v,|u-v|", "u,v,|u-v|,u*v")
DEFAULT_CONCATENATION: Final = "u,v,|u-v|"  # the best of table 6


def features(u: Tensor, v: Tensor, concatenation: str = DEFAULT_CONCATENATION) -> Tensor:
    """u, v (B, D) -> (B, m*D), the m named parts side by side, in the order of the name. Unknown name: UsageError."""
    choose("concatenation", concatenation, CONCATENATIONS)
    check_pair(u, v, "features")
    parts = {"u": lambda: u, "v": lambda: v, "|u-v|": lambda: (u - v).abs(), "u*v": lambda: u * v}
    return torch.cat([parts[name]() for name in concatenation.split(",")], dim=-1)


class ClassificationHead(nn.Module):
    """One linear layer from the joined vectors to class logits; thrown away after training.

    `linear.weight` is (classes, m*D), Xavier-uniform; `linear.bias` starts at 0.
    Departure: torch's own start for a Linear (Kaiming, which sentence-transformers keeps) depends on the number of inputs alone.
    """

    def __init__(self, dimensions: int, classes: int, concatenation: str = DEFAULT_CONCATENATION) -> None:
        super().__init__()
        choose("concatenation", concatenation, CONCATENATIONS)
        if dimensions < 1 or classes < 2:
            raise UsageError(f"classification head: needs at least 1 dimension and 2 classes, got {dimensions} and {classes}")
        self.dimensions, self.classes, self.concatenation = dimensions, classes, concatenation
        self.linear = nn.Linear(dimensions * len(concatenation.split(",")), classes)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        """u, v (B, D) -> logits (B, classes), in the dtype of the weights (or of autocast)."""
        if u.shape[-1] != self.dimensions:
            raise TrainingError(f"classification head: made for vectors of {self.dimensions} dimensions, got {u.shape[-1]}")
        return cast(Tensor, self.linear(features(u, v, self.concatenation).to(self.linear.weight.dtype)))


def classification_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy, a scalar. logits (B, C); labels (B,), integers from 0 to C-1.

    Labels of another kind, shape or range: TrainingError. (torch would skip a label of -100 without a word.)
    The range is checked on a CPU only; on an accelerator looking would stall it, and the data room has looked before.
    """
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise TrainingError(f"classification loss: needs logits (B, C) and labels (B,), got {tuple(logits.shape)} and {tuple(labels.shape)}")
    if not len(labels):
        raise TrainingError("classification loss: a batch without rows has no loss; drop empty batches before this call")
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise TrainingError(f"classification loss: labels must be integers (class numbers from 0), got {labels.dtype}; convert with .long()")
    if labels.device.type == "cpu":
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= logits.shape[1]:
            raise TrainingError(
                f"classification loss: labels run from {low} to {high}, but there are {logits.shape[1]} classes (0 to {logits.shape[1] - 1})"
            )
    return F.cross_entropy(upcast(logits), labels.long())
