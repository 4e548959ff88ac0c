"""Token vectors of whole batches, for the objectives that look at tokens: rows end to end, in the caller's order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from twinvec.model.batch import PackedBatch
from twinvec.model.heads import unit_rows
from twinvec.model.net import Net
from twinvec.model.pooling import pool


def token_states(net: Net, rows: Sequence[Sequence[int]]) -> Tensor:
    """The backbone's last hidden states (sum of lengths, D) of token rows, row after row; before pooling and heads.

    Without padding where the backbone's family allows it (`net.packed`), else padded; the numbers are the same within rounding.
    """
    if not any(len(row) for row in rows):
        return torch.zeros(0, net.token_dimensions, device=net.device, dtype=next(net.backbone.parameters()).dtype)
    if net.packed is None:
        return _padded_states(net, rows)
    batch = PackedBatch.of(rows, net.device)
    return net.packed(batch)[caller_order(batch, [len(row) for row in rows]).to(net.device)]


def caller_order(batch: PackedBatch, lengths: Sequence[int]) -> Tensor:
    """(sum of lengths,) the places of the caller's tokens in a packed batch, row after row; lengths are those of the caller's rows."""
    places: list[Tensor] = [torch.zeros(0, dtype=torch.long)] * len(lengths)
    start = 0
    for row in batch.order:
        places[row] = torch.arange(start, start + lengths[row])
        start += lengths[row]
    return torch.cat(places)


def _padded_states(net: Net, rows: Sequence[Sequence[int]]) -> Tensor:
    lengths = {len(row) for row in rows if row}
    if len(lengths) > 1 and net._padding_leaks(rows):
        parts: list[Tensor] = [torch.zeros(0)] * len(rows)
        for length in lengths:
            members = [i for i, row in enumerate(rows) if len(row) == length]
            for i, states in zip(members, net._run_padded([rows[i] for i in members], False)[0], strict=True):
                parts[i] = states
        return torch.cat([part for part, row in zip(parts, rows, strict=True) if row])
    states, mask = net._run_padded(rows, False)
    return states[mask]


def pooled(net: Net, states: Tensor, lengths: Sequence[int], *, normalize: bool | None = None) -> Tensor:
    """The sentence vectors (B, D) that `net` makes of `token_states` (sum of lengths, D): its pooling, its heads, its Normalize.

    With both, one forward pass serves an objective over tokens and one over vectors. normalize: as in `Net.forward`.
    """
    padded, mask = side_by_side(states, lengths)
    vectors = pool(padded, mask, net.pooling)
    for head in net.heads:
        vectors = head(vectors.to(next(head.parameters()).dtype))
    return unit_rows(vectors) if (net.normalize if normalize is None else normalize) else vectors


def side_by_side(states: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Rows end to end (sum of lengths, D) as a padded block (B, L, D), zeros behind each row, and its mask (B, L); L is at least 1."""
    longest = max([*lengths, 1])
    sizes = torch.tensor(lengths, dtype=torch.long, device=states.device)
    mask = torch.arange(longest, device=states.device)[None, :] < sizes[:, None]
    block = states.new_zeros(len(lengths) * longest, states.shape[1])
    slots = mask.flatten().nonzero().squeeze(1)
    return block.index_copy(0, slots, states).view(len(lengths), longest, -1), mask
