"""From token vectors to one vector a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def _cls(tokens: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    first = mask.to(torch.int8).argmax(1)
    found = tokens[torch.arange(len(tokens), device=tokens.device), first]
    return found * mask.any(1, keepdim=True).to(tokens.dtype)


def _last_token(tokens: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    last = mask.shape[1] - 1 - mask.flip(1).to(torch.int8).argmax(1)
    found = tokens[torch.arange(len(tokens), device=tokens.device), last]
    return found * mask.any(1, keepdim=True).to(tokens.dtype)


def _mean(tokens: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    m = mask.unsqueeze(-1).to(tokens.dtype)
    return (tokens * m).sum(1) / m.sum(1).clamp(min=1)


def _mean_sqrt_len(tokens: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    m = mask.unsqueeze(-1).to(tokens.dtype)
    return (tokens * m).sum(1) / m.sum(1).clamp(min=1).sqrt()


def _weighted_mean(tokens: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    w = (weights * mask).unsqueeze(-1).to(tokens.dtype)
    return (tokens * w).sum(1) / w.sum(1).clamp(min=1)


def _max(tokens: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    # masked_fill, never a product with the mask: a padded zero would beat a negative maximum.
    filled = tokens.masked_fill(~mask.unsqueeze(-1), float("-inf")).amax(1)
    return torch.where(mask.any(1, keepdim=True), filled, torch.zeros_like(filled))


POOLINGS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "cls": _cls,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len": _mean_sqrt_len,
    "weighted_mean": _weighted_mean,
    "last_token": _last_token,
}
"""In the order in which a concatenation joins them (the order of sentence-transformers)."""


def pool(tokens: Tensor, mask: Tensor, modes: Sequence[str], skip: int = 0) -> Tensor:
    """tokens (B, L, D); mask (B, L) bool, True on real tokens; returns (B, D * len(modes)) in float32 or better.

    cls: the first real token. mean: SBERT 2019, section 3. max: over real tokens. mean_sqrt_len: sum / sqrt(count).
    weighted_mean: weight i for the i-th real token, from 1 (SGPT 2022, section 3.1). last_token: the last real one (E5-Mistral 2024).
    `skip` leaves the first real tokens of each row out (a prompt); position weights stay as they were with them.
    Padding may stand left or right. A row without (remaining) tokens gives zeros, where the paper's ratio is 0/0.
    """
    if tokens.dtype in (torch.float16, torch.bfloat16):
        tokens = tokens.float()
    number = mask.to(torch.float32).cumsum(1)  # 1 for the first real token of a row
    if skip:
        mask = mask & (number > skip)
    return torch.cat([POOLINGS[mode](tokens, mask, number) for mode in modes], dim=-1)
