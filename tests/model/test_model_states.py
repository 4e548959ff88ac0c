"""Token states: the backbone's own numbers, row after row, whatever way the rows travel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tiny_models import FAMILIES, TEXTS
from twinvec.model.encoder import Encoder
from twinvec.model.states import pooled, side_by_side, token_states

torch.set_num_threads(1)
Make = Callable[[str], Path]


def loaded(bare_model: Make, family: str, pooling: str = "mean") -> tuple[Encoder, list[list[int]]]:
    encoder = Encoder.load(bare_model(family), device="cpu", pooling=pooling)
    return encoder, [encoder.tokens.cut(row) for row in encoder.tokens.content(TEXTS)]


@pytest.mark.parametrize("family", FAMILIES)
def test_states_are_those_of_the_backbone_run_on_each_row_alone(bare_model: Make, family: str) -> None:
    encoder, rows = loaded(bare_model, family)
    backbone: Any = encoder.net.backbone
    rows = [row for row in rows if row]
    with torch.no_grad():
        found = token_states(encoder.net, rows)
        alone = torch.cat([backbone(input_ids=torch.tensor([row])).last_hidden_state[0] for row in rows])
    torch.testing.assert_close(found, alone, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["bert", "modernbert", "deberta-v2"])
def test_the_order_of_rows_does_not_matter_and_empty_rows_take_no_place(bare_model: Make, family: str) -> None:
    encoder, rows = loaded(bare_model, family)
    with torch.no_grad():
        forward = token_states(encoder.net, rows)
        backward = token_states(encoder.net, [[], *rows[::-1], []])
    parts = forward.split([len(row) for row in rows])
    torch.testing.assert_close(backward, torch.cat(parts[::-1]), atol=2e-5, rtol=1e-4)
    assert token_states(encoder.net, [[], []]).shape == (0, 32)
    assert token_states(encoder.net, []).shape == (0, 32)


@pytest.mark.parametrize("family", ["bert", "deberta-v2"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "last_token", "max+mean"])
def test_pooled_is_the_nets_own_vector(bare_model: Make, family: str, pooling: str) -> None:
    encoder, rows = loaded(bare_model, family, pooling)
    rows = [*rows, []]
    for normalize in (None, True):
        with torch.no_grad():
            states = token_states(encoder.net, rows)
            vectors = pooled(encoder.net, states, [len(row) for row in rows], normalize=normalize)
            expected = encoder.net(rows, normalize=normalize)
        torch.testing.assert_close(vectors, expected, atol=2e-5, rtol=1e-4)


def test_gradients_reach_the_weights_through_both_ways(bare_model: Make) -> None:
    encoder, rows = loaded(bare_model, "bert")
    found = []
    for packed in (encoder.net.packed, None):
        encoder.net.packed = packed
        encoder.net.zero_grad()
        token_states(encoder.net, rows).square().sum().backward()
        found.append({name: p.grad.clone() for name, p in encoder.net.named_parameters() if p.grad is not None})
    assert set(found[0]) >= {name for name in found[1] if "token_type" not in name}
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name], atol=1e-4, rtol=1e-3)


def test_side_by_side_pads_with_zeros() -> None:
    block, mask = side_by_side(torch.arange(1.0, 7.0).view(6, 1), [2, 0, 4])
    assert block.squeeze(-1).tolist() == [[1, 2, 0, 0], [0, 0, 0, 0], [3, 4, 5, 6]]
    assert mask.sum(1).tolist() == [2, 0, 4]
