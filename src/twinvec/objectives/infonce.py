"""InfoNCE: an anchor must find its positive among the positives and hard negatives of the whole batch.

Sources: van den Oord et al. 2018 (the loss); Henderson et al. 2017 (the other rows of the batch as negatives); Chen et al. 2020 (NT-Xent, all
2N vectors); Radford et al. 2021 (both directions); Gao et al. 2021 (temperature 0.05 on cosines, hard negatives); Solatorio 2024 (guide).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Final, Literal

import torch
from torch import Tensor

from twinvec.errors import TrainingError, UsageError, choose
from twinvec.objectives.blocks import Candidates, block_cross_entropy
from twinvec.objectives.parts import Part, total
from twinvec.objectives.rows import check_pair, unit_rows, upcast

SIMILARITIES: Final = ("cosine", "dot")
DIRECTIONS: Final = ("one_sided", "symmetric", "all")
Guide = tuple[Tensor, Tensor, Tensor | None]
Temperature = float | Tensor | Callable[[], Tensor]
# Similarities in a block when `block_rows` is not given: 64 MB of float32. Assumption! Small beside a model, large beside a core's cache.
BLOCK_ENTRIES: Final = 1 << 24


@dataclass(frozen=True)
class Keys:
    """Which texts are the same: one int64 a text, equal for equal texts (after normalisation), over all columns together.

    anchors, positives (N,); negatives (N, n) or None; groups (N,) or None: rows of one group (>= 0) are not each other's negatives, -1 is none.
    """

    anchors: Tensor
    positives: Tensor
    negatives: Tensor | None = None
    groups: Tensor | None = None


@dataclass(frozen=True)
class _Side:
    """One softmax: N queries over C candidates. The candidate in column i is the positive of query i.

    columns: N candidates, N more if the queries themselves stand among them (query i in column own + i), then the hard negatives if `hard`.
    guide: the same queries and columns as the guide sees them; weight: of the whole side in the loss.
    """

    queries: Tensor
    columns: tuple[Candidates, ...]
    guide: tuple[Candidates, tuple[Candidates, ...]] | None
    own: int | None
    hard: bool
    weight: float


class _Occurrences:
    """Where each number of a list stands in it."""

    def __init__(self, numbers: Tensor) -> None:
        self.sorted, self.order = numbers.sort(stable=True)

    def of(self, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """All (i, place) with numbers[place] == wanted[i], as two tensors. Time and memory go with their count, not with all comparisons."""
        low, high = torch.searchsorted(self.sorted, wanted), torch.searchsorted(self.sorted, wanted, right=True)
        counts = high - low
        which = torch.repeat_interleave(torch.arange(len(wanted), device=wanted.device), counts)
        nth = torch.arange(len(which), device=wanted.device) - (counts.cumsum(0) - counts)[which]
        return which, self.order[low[which] + nth]


class _SameTexts:
    """Finds the candidates that are no negatives because of what their texts are."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self.texts = _Occurrences(torch.cat([keys.anchors, keys.positives]))
        self.groups = None if keys.groups is None else _Occurrences(keys.groups)
        self.hard = None if keys.negatives is None else _Occurrences(keys.negatives.flatten())

    def related(self, start: int, stop: int) -> Iterator[tuple[Tensor, Tensor]]:
        """(i, j) lists: rows start + i and j share a text or a group, and are two rows."""
        rows = len(self.keys.anchors)
        pairs = [self.texts.of(texts[start:stop]) for texts in (self.keys.anchors, self.keys.positives)]
        if self.groups is not None and self.keys.groups is not None:
            here, there = self.groups.of(self.keys.groups[start:stop])
            grouped = self.keys.groups[there] >= 0
            pairs.append((here[grouped], there[grouped]))
        for here, there in pairs:
            other = there % rows
            two = other != here + start
            yield here[two], other[two]

    def known(self, start: int, stop: int) -> Iterator[tuple[Tensor, Tensor]]:
        """(i, k) lists: the k-th of all hard negatives is the anchor or the positive of row start + i."""
        if self.hard is not None:
            for texts in (self.keys.anchors, self.keys.positives):
                yield self.hard.of(texts[start:stop])


def infonce_parts(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor | None = None,
    *,
    temperature: Temperature = 0.05,
    similarity: Literal["cosine", "dot"] = "cosine",
    direction: Literal["one_sided", "symmetric", "all"] = "one_sided",
    keys: Keys | None = None,
    false_negative_margin: float | None = None,
    guide: Guide | None = None,
    block_rows: int | None = None,
) -> list[Part]:
    """Parts whose sum is mean_i -log( exp(s(a_i, p_i)/t) / sum_c exp(s(a_i, c)/t) ), s the cosine or the dot product.

    anchors, positives (N, D); negatives (N, n, D) or None. temperature t: a number; or a learned one, a 0-d tensor that is a leaf; or a function
    (a module) that makes such a tensor, called anew in each part, so that each can go backward alone. Candidates c by `direction`:
      one_sided: for an anchor all N positives and all N*n hard negatives, of all rows (Henderson 2017; Gao 2021, eq. 5).
      symmetric: the mean of that and of each positive over the N anchors, without hard negatives (CLIP, Radford 2021).
      all: each of the 2N vectors over the other 2N - 1, the mean over 2N (NT-Xent, Chen 2020, eq. 1); anchors see the hard negatives too.
        GTE's improved contrastive loss (Li et al. 2023) is a cousin: there one softmax a row pools the candidates of both sides.

    False negatives leave the sum; the row's own positive never does.
      keys: candidates equal to the row's anchor or positive; both texts of any row that shares a text or a group with this row. (So with the
        rows (a, b) and (b, c), c is no negative of a.) Hard negatives go only where their text is the row's anchor or positive.
      false_negative_margin m: candidates with g(i, c) > g(i, i+) + m. At m = 0 GISTEmbed (Solatorio 2024); m = -0.1 takes also those within
        0.1 below the positive, as NV-Retriever's mining does in a corpus (de Souza 2024). g is the cosine of the guide's vectors (anchors,
        positives, negatives, of a size of their own), or without one the loss's own similarity, detached. A guide without a margin: m = 0.
    A row that has no candidate left has loss 0 and gradient 0.

    block_rows: rows of queries in a part; by default about 64 MB of similarities. The loss depends on it to rounding only. A part
    holds two blocks at most (three with a guide), beside unit copies of the vectors, which all parts share. Half precision is computed as float32.
    Wrong shapes: TrainingError; wrong options: UsageError.
    """
    choose("similarity", similarity, SIMILARITIES)
    choose("direction", direction, DIRECTIONS)
    _check_vectors(anchors, positives, negatives)
    if not callable(temperature):
        _check_temperature(temperature)
    if false_negative_margin is not None and not math.isfinite(false_negative_margin):
        raise UsageError(f"InfoNCE: false_negative_margin = {false_negative_margin}: needs a finite number, such as 0 or -0.1, or None for no mask")
    if block_rows is not None and block_rows < 1:
        raise UsageError(f"InfoNCE: block_rows = {block_rows}: needs a whole number of 1 or more, or None to choose by memory")
    if guide is not None:
        _check_guide(guide, anchors, negatives)
    margin = 0.0 if guide is not None and false_negative_margin is None else false_negative_margin
    if keys is not None:
        _check_keys(keys, anchors, negatives)
    same, unit, rows = None if keys is None else _SameTexts(keys), similarity == "cosine", len(anchors)

    def make(side: _Side, start: int, stop: int) -> Part:
        return lambda: _block_loss(side, start, stop, temperature, unit, same, margin)

    parts = []
    for side in _sides(anchors, positives, negatives, guide, direction, unit):
        size = block_rows
        if size is None:
            largest = max(1, BLOCK_ENTRIES // sum(map(len, side.columns)))
            size = -(-rows // -(-rows // largest))  # as few blocks as memory allows, of one size
        parts += [make(side, start, min(start + size, rows)) for start in range(0, rows, size)]
    return parts


def infonce_loss(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor | None = None,
    *,
    temperature: Temperature = 0.05,
    similarity: Literal["cosine", "dot"] = "cosine",
    direction: Literal["one_sided", "symmetric", "all"] = "one_sided",
    keys: Keys | None = None,
    false_negative_margin: float | None = None,
    guide: Guide | None = None,
    block_rows: int | None = None,
) -> Tensor:
    """The sum of `infonce_parts`, a scalar; arguments as there."""
    parts = infonce_parts(
        anchors,
        positives,
        negatives,
        temperature=temperature,
        similarity=similarity,
        direction=direction,
        keys=keys,
        false_negative_margin=false_negative_margin,
        guide=guide,
        block_rows=block_rows,
    )
    return total(parts)


def _sides(anchors: Tensor, positives: Tensor, negatives: Tensor | None, guide: Guide | None, direction: str, unit: bool) -> list[_Side]:
    rows, everything = len(anchors), direction == "all"
    weight = (1.0 if direction == "one_sided" else 0.5) / rows
    own = rows if everything else None

    def in_order(first: Candidates, second: Candidates, hard: tuple[Candidates, ...]) -> tuple[Candidates, ...]:
        return (first, second, *hard) if everything else (first, *hard)

    a, p = Candidates(anchors, unit), Candidates(positives, unit)
    hard = () if negatives is None else (Candidates(negatives, unit),)
    guide_of_anchors = guide_of_positives = None
    if guide is not None:
        ga, gp = Candidates(guide[0], True), Candidates(guide[1], True)
        guide_hard = () if guide[2] is None else (Candidates(guide[2], True),)
        guide_of_anchors, guide_of_positives = (ga, in_order(gp, ga, guide_hard)), (gp, in_order(ga, gp, ()))
    sides = [_Side(anchors, in_order(p, a, hard), guide_of_anchors, own, bool(hard), weight)]
    if direction != "one_sided":
        sides.append(_Side(positives, in_order(a, p, ()), guide_of_positives, own, False, weight))
    return sides


def _block_loss(side: _Side, start: int, stop: int, temperature: Temperature, unit: bool, same: _SameTexts | None, margin: float | None) -> Tensor:
    """The loss of queries start..stop, already weighted."""
    t = temperature() if callable(temperature) else temperature
    _check_temperature(t)

    def mask(logits: Tensor) -> None:
        if margin is not None:
            _mask_by_guide(logits, side, start, stop, margin, t)
        if same is not None:
            _mask_by_text(logits, side, start, stop, same)
        if side.own is not None:
            here = torch.arange(stop - start, device=logits.device)
            logits[here, here + side.own + start] = -math.inf

    # bf16 autocast would round a cosine of 0.9 to 0.8984, which at temperature 0.05 changes its weight in the softmax by 3 %.
    with torch.autocast(side.queries.device.type, enabled=False):
        queries = (unit_rows if unit else upcast)(side.queries[start:stop])
        # Dividing the queries costs (rows, D); dividing the similarities would cost a second (rows, C).
        return block_cross_entropy(queries / t, side.columns, start, mask) * side.weight


def _mask_by_guide(logits: Tensor, side: _Side, start: int, stop: int, margin: float, temperature: float | Tensor) -> None:
    here, wanted = torch.arange(stop - start, device=logits.device), torch.arange(start, stop, device=logits.device)
    if side.guide is None:
        above = logits > (logits[here, wanted] + margin / temperature)[:, None]
    else:
        queries, columns = side.guide
        scores = torch.cat([queries.values[start:stop] @ column.values.T for column in columns], dim=1)
        above = scores > (scores[here, wanted] + margin)[:, None]
    above[here, wanted] = False
    logits.masked_fill_(above, -math.inf)


def _mask_by_text(logits: Tensor, side: _Side, start: int, stop: int, same: _SameTexts) -> None:
    rows = len(side.queries)
    pairs = rows if side.own is None else 2 * rows
    for here, other in same.related(start, stop):
        for column in range(0, pairs, rows):
            logits[here, other + column] = -math.inf
    if side.hard:
        for here, number in same.known(start, stop):
            logits[here, number + pairs] = -math.inf


def _check_vectors(anchors: Tensor, positives: Tensor, negatives: Tensor | None) -> None:
    check_pair(anchors, positives, "InfoNCE")
    if negatives is not None and (negatives.ndim != 3 or len(negatives) != len(anchors) or negatives.shape[2] != anchors.shape[1]):
        raise TrainingError(f"InfoNCE: negatives need shape ({len(anchors)}, n, {anchors.shape[1]}), got {tuple(negatives.shape)}")
    types = {str(x.dtype): upcast(x[:0]).dtype for x in (anchors, positives, negatives) if x is not None}
    if not all(x.is_floating_point() for x in (anchors, positives)) or len(set(types.values())) > 1:
        raise TrainingError(f"InfoNCE: needs vectors of one floating-point type, got {', '.join(types)}")


def _check_temperature(temperature: float | Tensor) -> None:
    if isinstance(temperature, Tensor):
        if temperature.ndim or not temperature.is_floating_point():
            raise UsageError(
                f"InfoNCE: a learned temperature is a floating-point tensor of shape (), got {temperature.dtype} of {tuple(temperature.shape)}"
            )
        if temperature.device.type == "cpu" and not 0 < temperature.item() < math.inf:  # looking would stall an accelerator at every step
            raise TrainingError(f"InfoNCE: the learned temperature became {temperature.item()}; learn its logarithm, or lower the learning rate")
    elif not (math.isfinite(temperature) and temperature > 0):
        raise UsageError(f"InfoNCE: temperature = {temperature}: needs a finite number above 0, such as 0.05")


def _check_guide(guide: Guide, anchors: Tensor, negatives: Tensor | None) -> None:
    a, p, n = guide
    if a.ndim != 2 or len(a) != len(anchors) or p.shape != a.shape:
        raise TrainingError(
            f"InfoNCE: the guide's anchors and positives need equal shapes ({len(anchors)}, D), got {tuple(a.shape)} and {tuple(p.shape)}"
        )
    wanted = None if negatives is None else (*negatives.shape[:2], a.shape[1])
    if (None if n is None else tuple(n.shape)) != wanted:
        raise TrainingError(f"InfoNCE: the guide's negatives need shape {wanted}, as the loss has them, got {None if n is None else tuple(n.shape)}")


def _check_keys(keys: Keys, anchors: Tensor, negatives: Tensor | None) -> None:
    rows = len(anchors)
    shapes = {"anchors": (rows,), "positives": (rows,), "negatives": None if negatives is None else tuple(negatives.shape[:2]), "groups": (rows,)}
    for field in fields(keys):
        value: Tensor | None = getattr(keys, field.name)
        if value is None and field.name in ("negatives", "groups"):
            continue
        if value is None or value.dtype != torch.int64 or tuple(value.shape) != shapes[field.name]:
            got = None if value is None else f"{value.dtype} of shape {tuple(value.shape)}"
            raise TrainingError(f"InfoNCE: keys.{field.name} needs torch.int64 of shape {shapes[field.name]}, got {got}")
