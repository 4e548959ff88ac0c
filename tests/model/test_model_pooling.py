"""Pooling against its definition in float64, and against sentence-transformers' own module."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from twinvec.errors import ModelError, UsageError
from twinvec.model.heads import ACTIVATIONS, Dense, unit_rows
from twinvec.model.layout import THEIR_POOLING, parse_pooling
from twinvec.model.pooling import POOLINGS, pool

torch.set_num_threads(1)
LENGTHS = (5, 1, 9, 3)


def batch(side: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Rows of 5, 1, 9 and 3 real tokens, all of them negative, and large positive values where the padding is."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.full((4, 9, 6), 100.0)
    mask = torch.zeros(4, 9, dtype=torch.bool)
    for i, length in enumerate(LENGTHS):
        place = slice(9 - length, 9) if side == "left" else slice(0, length)
        tokens[i, place] = -torch.rand(length, 6, generator=generator) - 0.1
        mask[i, place] = True
    return tokens.to(dtype), mask


def by_hand(row: Tensor, mode: str, skip: int) -> Tensor:
    """The definition, one row of real tokens at a time."""
    weights = torch.arange(1, len(row) + 1, dtype=torch.float64)[skip:, None]
    kept = row.double()[skip:]
    if not len(kept):
        return torch.zeros(row.shape[1], dtype=torch.float64)
    return {
        "cls": kept[0],
        "max": kept.amax(0),
        "mean": kept.mean(0),
        "mean_sqrt_len": kept.sum(0) / math.sqrt(len(kept)),
        "weighted_mean": (kept * weights).sum(0) / weights.sum(),
        "last_token": kept[-1],
    }[mode]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("skip", [0, 1, 2, 20])
@pytest.mark.parametrize("mode", POOLINGS)
def test_against_the_definition(mode: str, skip: int, side: str) -> None:
    tokens, mask = batch(side)
    wanted = torch.stack([by_hand(tokens[i][mask[i]], mode, skip) for i in range(4)])
    torch.testing.assert_close(pool(tokens, mask, [mode], skip).double(), wanted, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("skip", [0, 2])
@pytest.mark.parametrize("mode", POOLINGS)
def test_against_sentence_transformers(mode: str, skip: int, side: str) -> None:
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules", reason="sentence-transformers (dev extra) is not installed")
    tokens, mask = batch(side)
    rows = [i for i, length in enumerate(LENGTHS) if length > skip]  # of rows that have nothing left, theirs takes the padding or gives NaN
    theirs = modules.Pooling(6, THEIR_POOLING[mode], include_prompt=skip == 0)
    features = {"token_embeddings": tokens[rows], "attention_mask": mask[rows].long(), "prompt_length": skip}
    torch.testing.assert_close(pool(tokens[rows], mask[rows], [mode], skip), theirs(features)["sentence_embedding"], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("modes", [*itertools.combinations(POOLINGS, 2), tuple(POOLINGS), ("last_token", "cls"), ("mean", "mean")])
def test_a_concatenation_is_its_parts_side_by_side(modes: tuple[str, ...]) -> None:
    tokens, mask = batch("right")
    parts = torch.cat([pool(tokens, mask, [mode], 1) for mode in modes], dim=1)
    torch.testing.assert_close(pool(tokens, mask, modes, 1), parts, atol=0, rtol=0)


@pytest.mark.parametrize("mode", POOLINGS)
def test_rows_without_tokens_are_zeros_with_finite_gradients(mode: str) -> None:
    tokens, mask = batch("right")
    mask[1] = False
    tokens.requires_grad_()
    found = pool(tokens, mask, [mode])
    assert not found[1].any()
    (grad,) = torch.autograd.grad(found.sum(), tokens)
    assert torch.isfinite(grad).all()
    assert not grad[~mask].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    tokens = torch.full((1, 4096, 2), 1.001, dtype=dtype)
    found = pool(tokens, torch.ones(1, 4096, dtype=torch.bool), ["mean"])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, tokens[:, 0].float(), atol=1e-5, rtol=1e-5)


def test_names() -> None:
    assert parse_pooling("mean") == ("mean",)
    assert parse_pooling("cls + mean") == ("cls", "mean")
    assert parse_pooling(["max", "cls"]) == ("max", "cls")
    with pytest.raises(UsageError, match=r"pooling = 'meen'.*did you mean 'mean'"):
        parse_pooling("cls+meen")


def test_unit_rows_of_nothing_and_of_very_little() -> None:
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0], [1e-15, 0.0]])
    torch.testing.assert_close(unit_rows(rows), torch.tensor([[0.0, 0.0], [0.6, 0.8], [1.0, 0.0]]))
    half = unit_rows(torch.tensor([[0.0, 0.0], [6e-8, 0.0]], dtype=torch.float16))
    torch.testing.assert_close(half, torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    x = torch.tensor([[0.0, 0.0], [1.0, 2.0]], requires_grad=True)
    (grad,) = torch.autograd.grad(unit_rows(x).sum(), x)
    assert torch.isfinite(grad).all()


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_dense_equals_sentence_transformers(name: str, residual: bool) -> None:
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules", reason="sentence-transformers (dev extra) is not installed")
    for out in (6, 4):
        ours = Dense.from_config({"in_features": 6, "out_features": out, "activation_function": name, "use_residual": residual})
        theirs = modules.Dense(6, out, activation_function=ACTIVATIONS[name](), use_residual=residual)
        theirs.load_state_dict(ours.state_dict())
        x = torch.randn(3, 6)
        torch.testing.assert_close(ours(x), theirs({"sentence_embedding": x})["sentence_embedding"], atol=1e-6, rtol=0)
        assert Dense.from_config(ours.config()).config() == ours.config()


def test_dense_spellings() -> None:
    assert Dense.from_config({"in_features": 2, "out_features": 2, "activation_function": "torch.nn.Tanh"}).activation_name.endswith(
        "activation.Tanh"
    )
    assert Dense.from_config({"in_features": 2, "out_features": 2, "activation_function": "torch.nn.Identity"}).activation_name.endswith("Identity")
    with pytest.raises(ModelError, match=r"os\.system"):
        Dense.from_config({"in_features": 2, "out_features": 2, "activation_function": "os.system"})
