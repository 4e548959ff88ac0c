"""InfoNCE against a float64 reference in plain loops: values, gradients, masks, blocks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from twinvec.objectives.infonce import Keys, infonce_loss, infonce_parts
from twinvec.objectives.matryoshka import matryoshka_parts
from twinvec.objectives.parts import total

torch.set_num_threads(1)
DIRECTIONS = ["one_sided", "symmetric", "all"]


def batch(rows: int, n: int = 0, dimensions: int = 6, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(rows, dimensions), (rows, dimensions)] + [(rows, n, dimensions)] * (n > 0)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def no_negative(keys: Keys, i: int, kind: str, j: int, k: int) -> bool:
    """Whether the text of a candidate, or its row, says that it is no negative of row i; sets of texts, one row after the other."""
    mine = {int(keys.anchors[i]), int(keys.positives[i])}
    if kind == "n":
        return keys.negatives is not None and int(keys.negatives[j, k]) in mine
    if mine & {int(keys.anchors[j]), int(keys.positives[j])}:
        return True
    return keys.groups is not None and int(keys.groups[i]) >= 0 and int(keys.groups[i]) == int(keys.groups[j])


def reference(
    tensors: list[Tensor],
    direction: str = "one_sided",
    temperature: float = 0.05,
    similarity: str = "cosine",
    keys: Keys | None = None,
    margin: float | None = None,
    guide: list[Tensor] | None = None,
) -> float:
    """The definition, candidate by candidate, in numpy float64."""
    x = {name: t.detach().double().numpy() for name, t in zip("apn", tensors, strict=False)}
    g = {name: t.detach().double().numpy() for name, t in zip("apn", guide or tensors, strict=False)}

    def cos(u: Any, v: Any) -> float:
        return float(u @ v / np.linalg.norm(u) / np.linalg.norm(v))

    def alike(u: Any, v: Any, name: str = similarity) -> float:
        return cos(u, v) if name == "cosine" else float(u @ v)

    def at(vectors: dict[str, Any], kind: str, j: int, k: int) -> Any:
        return vectors[kind][j, k] if kind == "n" else vectors[kind][j]

    rows = len(x["a"])

    def one(query: str, i: int, kinds: str) -> float:
        positive = "p" if query == "a" else "a"
        guide_name = similarity if guide is None else "cosine"
        limit = alike(g[query][i], g[positive][i], guide_name) + (margin or 0.0)
        terms = []
        for kind in kinds:
            for j in range(rows):
                for k in range(x["n"].shape[1] if kind == "n" else 1):
                    if (kind, j) != (positive, i):
                        if (kind, j) == (query, i) or (keys is not None and (kind == "n" or j != i) and no_negative(keys, i, kind, j, k)):
                            continue
                        if (margin is not None or guide) and alike(g[query][i], at(g, kind, j, k), guide_name) > limit:
                            continue
                    terms.append(alike(x[query][i], at(x, kind, j, k)) / temperature)
        own = alike(x[query][i], x[positive][i]) / temperature
        top = max(terms)
        return top + math.log(sum(math.exp(t - top) for t in terms)) - own

    hard = "n" if "n" in x else ""
    if direction == "one_sided":
        return sum(one("a", i, "p" + hard) for i in range(rows)) / rows
    other = "" if direction == "symmetric" else "x"
    both = [one("a", i, "p" + ("a" if other else "") + hard) + one("p", i, "a" + ("p" if other else "")) for i in range(rows)]
    return sum(both) / (2 * rows)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize(("similarity", "temperature"), [("cosine", 0.05), ("dot", 1.0), ("dot", 0.05)])
def test_value(direction: Any, n: int, similarity: Any, temperature: float) -> None:
    x = batch(7, n)
    ours = infonce_loss(*x, temperature=temperature, similarity=similarity, direction=direction)
    assert ours.item() == pytest.approx(reference(x, direction, temperature, similarity), rel=1e-12)
    single = infonce_loss(*(t.detach().float() for t in x), temperature=temperature, similarity=similarity, direction=direction)
    assert single.dtype == torch.float32
    assert single.item() == pytest.approx(ours.item(), rel=2e-5, abs=1e-6)


def some_keys(n: int, groups: bool) -> Keys:
    """Six rows: 0 and 1 share an anchor, 1 and 2 a positive, 3 is 0 the other way round, 4 goes on from 2's positive; 5 is alone."""
    anchors, positives = torch.tensor([1, 1, 2, 11, 12, 5]), torch.tensor([11, 12, 12, 1, 14, 15])
    negatives = torch.arange(100, 100 + 6 * n).view(6, n)
    if n:
        negatives[0, 0], negatives[5, 0], negatives[2, -1] = 11, 1, 15
    return Keys(anchors, positives, negatives if n else None, torch.tensor([-1, 7, -1, 3, 7, 3]) if groups else None)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("n", [0, 2])
@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("block", [None, 1, 4])
def test_equal_texts_and_groups_are_no_negatives(direction: Any, n: int, groups: bool, block: int | None) -> None:
    x, keys = batch(6, n, seed=3), some_keys(n, groups)
    ours = infonce_loss(*x, direction=direction, keys=keys, block_rows=block)
    assert ours.item() == pytest.approx(reference(x, direction, keys=keys), rel=1e-12)
    assert abs(ours.item() - infonce_loss(*x, direction=direction).item()) > 1e-3


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("margin", [0.0, -0.4, 0.3])
@pytest.mark.parametrize("guided", [False, True])
def test_candidates_above_the_positive_are_masked(direction: Any, similarity: Any, margin: float, guided: bool) -> None:
    x, keys = batch(6, 2, seed=5), some_keys(2, True)
    guide = batch(6, 2, 3, seed=6) if guided else None
    options: dict[str, Any] = {"direction": direction, "similarity": similarity, "false_negative_margin": margin, "guide": guide and tuple(guide)}
    assert infonce_loss(*x, **options).item() == pytest.approx(reference(x, direction, 0.05, similarity, None, margin, guide), rel=1e-12)
    ours = infonce_loss(*x, keys=keys, block_rows=4, **options)
    assert ours.item() == pytest.approx(reference(x, direction, 0.05, similarity, keys, margin, guide), rel=1e-12)


def test_a_guide_alone_means_margin_zero() -> None:
    x, guide = batch(6), batch(6, seed=1)
    whole = (guide[0], guide[1], None)
    assert infonce_loss(*x, guide=whole).item() == infonce_loss(*x, guide=whole, false_negative_margin=0.0).item()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_gradients_are_the_derivative(direction: Any, similarity: Any) -> None:
    x, keys = batch(5, 2, 3, seed=1), Keys(*(t[:5] if t is not None else None for t in vars(some_keys(2, True)).values()))
    temperature = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)

    def loss(a: Tensor, p: Tensor, n: Tensor, t: Tensor) -> Tensor:
        return infonce_loss(a, p, n, temperature=t, similarity=similarity, direction=direction, keys=keys, block_rows=2)

    assert torch.autograd.gradcheck(loss, (*x, temperature))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_blocks_of_two_thousand_rows_equal_one(direction: Any) -> None:
    x = batch(2000, 1, 24, seed=2, dtype=torch.float32)
    keys = Keys(torch.arange(2000) % 1700, torch.arange(2000) + 5000, torch.arange(2000)[:, None] + 9000)
    options: dict[str, Any] = {"direction": direction, "keys": keys, "false_negative_margin": -0.05}
    whole = infonce_loss(*x, block_rows=2000, **options)
    wanted = torch.autograd.grad(whole, x)
    loss = 0.0
    for part in infonce_parts(*x, block_rows=193, **options):
        value = part()
        value.backward()  # one after the other, as a training step does
        loss += value.item()
    assert loss == pytest.approx(whole.item(), rel=1e-6)
    for t, gradient in zip(x, wanted, strict=True):
        assert t.grad is not None
        assert float((t.grad - gradient).norm() / gradient.norm()) < 1e-5


@pytest.mark.parametrize("made", [False, True])
def test_parts_of_matryoshka_with_a_learned_temperature_go_backward_one_by_one(made: bool) -> None:
    x = batch(9, 2)
    learned = torch.tensor(-1.0 if made else 0.1, dtype=torch.float64, requires_grad=True)

    def make(cut: list[Tensor]) -> Any:
        return infonce_parts(*cut, temperature=learned.exp if made else learned, direction="all", false_negative_margin=0.2, block_rows=4)

    wanted = torch.autograd.grad(total(matryoshka_parts(make, x, [6, 2], [1.0, 0.5])), [*x, learned])
    for part in matryoshka_parts(make, x, [6, 2], [1.0, 0.5]):
        part().backward()
    for t, gradient in zip([*x, learned], wanted, strict=True):
        assert t.grad is not None
        torch.testing.assert_close(t.grad, gradient)
    plain = infonce_loss(*x, temperature=learned.exp().item() if made else learned.item())
    assert infonce_loss(*x, temperature=learned.exp if made else learned).item() == pytest.approx(plain.item(), rel=1e-12)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_rows_without_a_candidate_have_loss_and_gradient_zero(direction: Any) -> None:
    x = batch(4)
    everything_is_one_group = Keys(torch.arange(4), torch.arange(4) + 4, None, torch.zeros(4, dtype=torch.int64))
    loss = infonce_loss(*x, direction=direction, keys=everything_is_one_group)
    assert loss.item() == 0
    for gradient in torch.autograd.grad(loss, x):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-12, rtol=0)
    alone = infonce_loss(*batch(1), direction=direction)
    assert alone.item() == 0


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_zero_and_equal_rows_have_finite_gradients(direction: Any, similarity: Any) -> None:
    x = [torch.zeros(4, 5), torch.ones(4, 5), torch.zeros(4, 1, 5)]
    x[0][1:] = 1.0
    x = [t.requires_grad_() for t in x]
    loss = infonce_loss(*x, direction=direction, similarity=similarity)
    gradients = torch.autograd.grad(loss, x)
    assert math.isfinite(loss.item())
    assert all(bool(g.isfinite().all()) and float(g.abs().max()) < 100 for g in gradients)


def test_a_positive_whose_weight_underflows_still_has_its_loss() -> None:
    a, p = torch.eye(2) * 40, torch.eye(2).flip(0) * 40  # each anchor is at a right angle to its positive, equal to the other's
    a.requires_grad_()
    loss = infonce_loss(a, p, similarity="dot", temperature=1.0)
    assert loss.item() == 1600
    torch.testing.assert_close(torch.autograd.grad(loss, a)[0], (p.flip(0) - p) / 2)


def test_half_precision_is_computed_as_float32_also_under_autocast() -> None:
    x = batch(12, 1, dtype=torch.bfloat16)
    plain = infonce_loss(*(t.detach().float() for t in x)).item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = infonce_loss(*x)
        gradients = torch.autograd.grad(loss, x)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(plain, abs=1e-6)
    assert all(g.dtype == torch.bfloat16 for g in gradients)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_order_of_rows_never_matters(direction: Any) -> None:
    x, keys, order = batch(6, 2), some_keys(2, True), torch.tensor([3, 5, 0, 2, 4, 1])
    mixed = Keys(*(t[order] if t is not None else None for t in vars(keys).values()))
    a = infonce_loss(*x, direction=direction, keys=keys)
    b = infonce_loss(*(t[order] for t in x), direction=direction, keys=mixed)
    assert a.item() == pytest.approx(b.item(), rel=1e-12)


def test_simcse_texts_that_are_their_own_positives_mask_nothing() -> None:
    x, same = batch(5), torch.arange(5)
    assert infonce_loss(*x, keys=Keys(same, same)).item() == infonce_loss(*x).item()


def test_blocks_are_chosen_by_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinvec.objectives.infonce.BLOCK_ENTRIES", 100)
    x = batch(20, 1)
    assert len(infonce_parts(*x)) == 10  # blocks of 2 by 40 candidates; 100 entries allow for 2.5 rows
    assert len(infonce_parts(*x, direction="symmetric")) == 10 + 4
    assert len(infonce_parts(*batch(200))) == 200
    assert total(infonce_parts(*x)).item() == pytest.approx(reference(x), rel=1e-12)


def test_vectors_that_need_no_gradient_get_none() -> None:
    a, p, n = batch(5, 1)
    loss = infonce_loss(a, p.detach(), n)
    loss.backward()
    assert a.grad is not None
    assert n.grad is not None
    assert p.grad is None
    assert not infonce_loss(a.detach(), p.detach()).requires_grad
