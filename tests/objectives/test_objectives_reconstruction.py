"""The language head's loss and the decoders' parts, against plain float64 torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from twinvec.errors import TrainingError
from twinvec.objectives.reconstruction import DecoderLayer, EnhancedDecoder, LanguageHead, VectorAttention, word_loss

torch.set_num_threads(1)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def inputs(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [x.requires_grad_() for x in (numbers(11, 6, dtype=dtype), numbers(17, 6, seed=1, dtype=dtype), numbers(17, seed=2, dtype=dtype))]


@pytest.mark.parametrize("block", [None, 1, 4, 11, 100])
def test_word_loss_and_its_gradients_are_those_of_cross_entropy(block: int | None) -> None:
    targets = torch.arange(11) % 17
    ours, plain = inputs(), inputs()
    loss = word_loss(*ours, targets, block=block)
    expected = F.cross_entropy(plain[0] @ plain[1].T + plain[2], targets, reduction="sum")
    (loss * 0.5).backward()
    (expected * 0.5).backward()
    torch.testing.assert_close(loss, expected)
    for x, y in zip(ours, plain, strict=True):
        torch.testing.assert_close(x.grad, y.grad)


def test_word_loss_passes_gradcheck_and_skips_what_is_frozen() -> None:
    targets = torch.tensor([0, 3, 16, 3, 1, 2, 5, 5, 5, 9, 10])
    assert torch.autograd.gradcheck(lambda *x: word_loss(*x, targets, block=3), inputs())
    hidden, weight, bias = inputs()
    word_loss(hidden, weight.detach(), bias, targets).backward()
    assert hidden.grad is not None
    assert bias.grad is not None
    assert weight.grad is None
    with torch.no_grad():
        assert not word_loss(hidden, weight, bias, targets).requires_grad


def test_word_loss_of_nothing_is_zero_and_still_has_a_gradient() -> None:
    hidden, weight, bias = inputs()
    loss = word_loss(hidden[:0], weight, bias, torch.zeros(0, dtype=torch.long))
    assert loss.item() == 0
    loss.backward()
    assert weight.grad is not None
    assert not weight.grad.any()


def test_word_loss_stays_finite_for_huge_logits() -> None:
    hidden = torch.full((2, 3), 1e4, requires_grad=True)
    weight = torch.tensor([[1.0, 1, 1], [-1, -1, -1]], requires_grad=True)
    loss = word_loss(hidden, weight, torch.zeros(2), torch.tensor([0, 1]))
    loss.backward()
    assert loss.item() == pytest.approx(6e4)
    assert torch.isfinite(hidden.grad).all()  # type: ignore[arg-type]


def test_word_loss_under_autocast_is_bf16_in_its_products_and_float32_in_its_sums() -> None:
    hidden, weight, bias = inputs(torch.float32)
    targets = torch.arange(11)
    exact = word_loss(hidden, weight, bias, targets).item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = word_loss(hidden, weight, bias, targets)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact, rel=0.02)
    assert all(x.grad is not None and x.grad.dtype == torch.float32 for x in (hidden, weight, bias))


CASES = {
    "targets of another number": ((3, 4), (5, 4), (5,), [0, 1], "needs hidden"),
    "an embedding of another width": ((2, 4), (5, 3), (5,), [0, 1], "needs hidden"),
    "a bias of another length": ((2, 4), (5, 4), (6,), [0, 1], "needs hidden"),
    "a target outside the vocabulary": ((2, 4), (5, 4), (5,), [0, 5], "targets run from 0 to 5, the vocabulary has 5"),
    "a negative target": ((2, 4), (5, 4), (5,), [-100, 1], "targets run from -100"),
}


@pytest.mark.parametrize("name", CASES)
def test_wrong_shapes_are_named(name: str) -> None:
    hidden, weight, bias, targets, message = CASES[name]
    with pytest.raises(TrainingError, match=message):
        word_loss(numbers(*hidden), numbers(*weight), numbers(*bias), torch.tensor(targets))


def test_the_head_is_the_formula_of_its_docstring() -> None:
    head = LanguageHead(6, 4, 17).double()
    with torch.no_grad():
        for i, p in enumerate(head.parameters()):
            p.copy_(numbers(*p.shape, seed=i))
    states, table, targets = numbers(5, 6), numbers(17, 4, seed=9), torch.tensor([1, 2, 3, 0, 16])
    h = F.gelu(states @ head.dense.weight.T + head.dense.bias)
    h = (h - h.mean(1, keepdim=True)) / (h.var(1, unbiased=False, keepdim=True) + 1e-12).sqrt() * head.norm.weight + head.norm.bias
    logits = h @ table.T + head.bias
    torch.testing.assert_close(head.logits(states, table), logits)
    torch.testing.assert_close(head.loss(states, table, targets), -logits.log_softmax(1)[range(5), targets].sum())


def slow_layer(layer: DecoderLayer, query: torch.Tensor, keys: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """One position: query (D,), the keys it sees (K, D)."""
    d = len(query) // layer.heads
    q, k, v = layer.query(query), layer.key(keys), layer.value(keys)
    heads = []
    for h in range(layer.heads):
        part = slice(h * d, (h + 1) * d)
        weights = torch.softmax((k[:, part] @ q[part]) / d**0.5, dim=0)
        heads.append(weights @ v[:, part])
    x = layer.attention_norm(residual + layer.out(torch.cat(heads)))
    return layer.output_norm(x + layer.down(layer.activation(layer.up(x))))


@pytest.mark.parametrize(("vector", "width"), [(8, 8), (5, 3)])
def test_the_enhanced_decoder_is_its_formula_position_by_position(vector: int, width: int) -> None:
    decoder = EnhancedDecoder(vector, 8, width, 6, heads=2, intermediate=12, activation=F.gelu, eps=1e-12, dropout=0.5).double().eval()
    vectors, embedded = numbers(3, vector), numbers(3, 6, width, seed=1)
    visible = numbers(3, 6, 6, seed=2) > 0
    visible[1, 4] = False  # a position that sees nothing but the sentence vector
    found = decoder(vectors, embedded, visible)
    tokens = decoder.embed
    for row in range(3):
        h = decoder.inward(vectors[row])
        keys = torch.stack([tokens.norm(tokens.widen(embedded[row, j]) + tokens.positions.weight[j]) for j in range(6)])
        for i in range(6):
            query = tokens.norm(h + tokens.positions.weight[i])
            seen = torch.cat([h[None], keys[visible[row, i]]])
            torch.testing.assert_close(found[row, i], slow_layer(decoder.layer, query, seen, query))


def test_the_enhanced_decoder_names_wrong_shapes() -> None:
    decoder = EnhancedDecoder(8, 8, 8, 6, heads=2, intermediate=12, activation=F.gelu, eps=1e-12, dropout=0.0)
    with pytest.raises(TrainingError, match=r"visible \(B, L, L\), got .*\(2, 4, 5\)"):
        decoder(torch.zeros(2, 8), torch.zeros(2, 4, 8), torch.ones(2, 4, 5, dtype=torch.bool))


def test_attention_to_one_vector_is_attention_whatever_the_queries_are() -> None:
    """Against torch's own multi-head attention with random query and key weights, which change nothing."""
    ours = VectorAttention(8, 8, 1e-12).double().eval()
    x, vectors, owner = numbers(5, 8), numbers(2, 8, seed=1), torch.tensor([0, 1, 1, 0, 1])
    full = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        full.in_proj_weight.copy_(torch.cat([numbers(16, 8, seed=2), ours.value.weight]))
        full.in_proj_bias.copy_(torch.cat([numbers(16, seed=3), ours.value.bias]))
        full.out_proj.weight.copy_(ours.out.weight)
        full.out_proj.bias.copy_(ours.out.bias)
    keys = vectors[owner][:, None]
    expected = ours.norm(x + full(x[:, None], keys, keys)[0][:, 0])
    torch.testing.assert_close(ours(x, vectors, owner), expected)
