"""AdamW over the encoder and what is trained beside it."""

from __future__ import annotations

import torch
from torch import nn

from twinvec.training.recipe import Recipe


def make_optimizer(net: nn.Module, heads: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019); weight decay on matrices only, never on biases, norms and other vectors.

    A parameter that heads share with the net (tied embeddings) is the net's.
    """
    groups = []
    taken: set[int] = set()
    for module, peak in ((net, recipe.lr), (heads, recipe.head_lr or recipe.lr)):
        trained = [p for p in module.parameters() if p.requires_grad and id(p) not in taken]
        taken |= {id(p) for p in trained}
        for decay, chosen in ((recipe.weight_decay, [p for p in trained if p.ndim > 1]), (0.0, [p for p in trained if p.ndim <= 1])):
            if chosen:
                groups.append({"params": chosen, "weight_decay": decay, "peak_lr": peak, "lr": peak})
    return torch.optim.AdamW(groups, lr=recipe.lr, fused=True)
