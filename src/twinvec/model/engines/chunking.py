"""Rows into batches for engines that pad."""

from __future__ import annotations

from collections.abc import Sequence

PADDING = 0.1
"""Share of a batch that may be padding. Measured with MiniLM: little padding and few calls beat both extremes."""


def batches(lengths: Sequence[int], budget: int, padding: float = PADDING) -> list[list[int]]:
    """Row numbers, longest first, in batches of at most `budget` tokens, padding included (a longer row travels alone).

    A batch also ends where more than `padding` of it would be idle tokens, unless it is so small that another call costs more than they do.
    With `padding` 0 all rows of a batch are of one length.
    """
    order = sorted((i for i, length in enumerate(lengths) if length), key=lambda i: -lengths[i])
    out: list[list[int]] = []
    batch: list[int] = []
    used = longest = 0
    for i in order:
        length = lengths[i]
        whole = (len(batch) + 1) * longest
        if batch and (whole > budget or (whole - used - length > padding * whole and (used > budget // 8 or not padding))):
            out.append(batch)
            batch, used = [], 0
        if not batch:
            longest = length
        batch.append(i)
        used += length
    if batch:
        out.append(batch)
    return out
