"""Attention over rows that lie end to end, rotary positions, and what the padding-free forwards share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from twinvec.model.batch import PackedBatch

Bias = Callable[[int], "Tensor | None"]
"""length -> additive mask (H or 1, L, L) of a row so long, or None where it hides nothing."""


class Packed:
    """A padding-free forward: `__call__(batch) -> (T, D)`. With `checkpointing` a training pass keeps each layer's input only."""

    checkpointing = False

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, batch: PackedBatch) -> Tensor:
        raise NotImplementedError

    def run(self, layer: Callable[..., Tensor], x: Tensor, *more: Any) -> Tensor:
        """layer(x, *more), computed again in the backward pass when checkpointing is on; dropout falls the same both times."""
        if self.checkpointing and self.model.training and torch.is_grad_enabled():
            found: Tensor = checkpoint(layer, x, *more, use_reentrant=False)
            return found
        return layer(x, *more)


def attend(
    q: Tensor, k: Tensor, v: Tensor, batch: PackedBatch, heads: int, dropout: float, bias: Bias | None = None, *, kv_heads: int | None = None,
    causal: bool = False,
) -> Tensor:  # fmt: skip
    """q: (T, H d), k and v: (T, kv_heads d), rows end to end; returns (T, H d).

    Scores are scaled by 1 / sqrt(d) (Vaswani et al. 2017, eq. 1). Each group of equal length is one call of a kernel that needs no mask.
    kv_heads: fewer key and value heads than query heads, each serving H / kv_heads of them (Ainslie et al. 2023, grouped-query attention).
    causal: a token sees itself and those before it; a `bias` must then hide the later ones itself.
    """
    keys = kv_heads or heads
    used = batch.groups[-1].stop if batch.groups else 0
    # One split has one backward; slices would each write a gradient as large as the whole batch.
    sizes = [group.stop - group.start for group in batch.groups] + [len(q) - used]
    parts = []
    for group, one, two, three in zip(batch.groups, *(torch.split(x, sizes) for x in (q, k, v)), strict=False):
        mask = bias(group.length) if bias is not None else None
        if mask is not None:
            mask = mask.unsqueeze(0).expand(group.rows, heads, -1, -1)
        attended = F.scaled_dot_product_attention(
            one.view(group.rows, group.length, heads, -1).transpose(1, 2),
            two.view(group.rows, group.length, keys, -1).transpose(1, 2),
            three.view(group.rows, group.length, keys, -1).transpose(1, 2),
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=causal and mask is None,
            enable_gqa=keys != heads,
        )
        parts.append(attended.transpose(1, 2).reshape(group.rows * group.length, -1))
    if sizes[-1]:
        like = parts[0] if parts else q
        parts.append(like.new_zeros(sizes[-1], q.shape[1]))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def add(fresh: Tensor, x: Tensor) -> Tensor:
    """fresh + x; in place on the fresh tensor where no gradient needs it."""
    return fresh + x if torch.is_grad_enabled() or fresh.dtype != x.dtype else fresh.add_(x)


def once_a_length(bias: Bias | None) -> Bias | None:
    """The same masks, each made once for a forward pass."""
    if bias is None:
        return None
    made: dict[int, Tensor | None] = {}

    def lookup(length: int) -> Tensor | None:
        if length not in made:
            made[length] = bias(length)
        return made[length]

    return lookup


def window_mask(length: int, reach: int, like: Tensor, *, causal: bool = False) -> Tensor | None:
    """(1, L, L), 0 where |i - j| <= reach and -inf beyond; with `causal` later tokens are hidden too. None where a row is seen whole.

    No mask at all is faster than one that hides nothing (a causal row without a window needs none: the kernel knows).
    """
    if length - 1 <= reach:
        return None
    at = torch.arange(length, device=like.device)
    back = at[:, None] - at[None, :]
    hidden = (back > reach) | (back < 0) if causal else back.abs() > reach
    return torch.zeros(1, length, length, dtype=like.dtype, device=like.device).masked_fill(hidden, float("-inf"))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (T, H, d), cos and sin (T, 1, d): rotary positions (Su et al. 2021, eq. 34), computed in float32."""
    wide = x.float() if x.dtype != torch.float64 else x
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)
