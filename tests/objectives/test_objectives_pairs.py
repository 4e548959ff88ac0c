"""Contrastive, ranking, batch-triplet, distillation and Matryoshka objectives against float64 references in plain loops, and their edges."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from twinvec.objectives.batch_triplets import MININGS, batch_triplet_loss
from twinvec.objectives.contrastive import contrastive_loss, online_contrastive_loss
from twinvec.objectives.distillation import margin_mse_loss, score_distillation, vector_distillation_loss
from twinvec.objectives.matryoshka import matryoshka_parts
from twinvec.objectives.parts import total
from twinvec.objectives.ranking import angle_loss, angle_total, cosent_loss
from twinvec.objectives.rows import DISTANCES

torch.set_num_threads(1)
LABELS = [0.5, 3.0, 3.0, 0.0, 5.0, 1.2, 0.5, 4.0]


def batch(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def rows_of(x: Tensor) -> Any:
    return x.detach().double().numpy()


def gap(u: Any, v: Any, name: str) -> float:
    if name == "cosine":
        return 1 - float(u @ v / np.linalg.norm(u) / np.linalg.norm(v))
    return float(np.abs(u - v).sum() if name == "manhattan" else np.sqrt(((u - v) ** 2).sum()))


# --- ranking


def ranking_reference(similarities: list[float], labels: list[float], scale: float) -> float:
    pairs = itertools.product(range(len(labels)), repeat=2)
    return math.log(1 + math.fsum(math.exp(scale * (similarities[j] - similarities[i])) for i, j in pairs if labels[i] > labels[j]))


def complex_similarity(u: Any, v: Any) -> float:
    half = len(u) // 2
    ratio = np.array([complex(*z) for z in zip(u[:half], u[half:], strict=True)]) / np.linalg.norm(u)
    other = np.array([complex(*z) for z in zip(v[:half], v[half:], strict=True)]) / np.linalg.norm(v)
    turned = ratio * other.conj()
    return abs(float(turned.real.sum() + turned.imag.sum()))


@pytest.mark.parametrize("labels", [LABELS, [0, 1] * 4, [1] * 8])
@pytest.mark.parametrize("scale", [20.0, 1.0])
def test_ranking_value(labels: list[float], scale: float) -> None:
    u, v = batch((8, 6), (8, 6))
    cosines = [1 - gap(a, b, "cosine") for a, b in zip(rows_of(u), rows_of(v), strict=True)]
    angles = [complex_similarity(a, b) for a, b in zip(rows_of(u), rows_of(v), strict=True)]
    cosent = ranking_reference(cosines, labels, scale)
    angle = ranking_reference(angles, labels, 20.0)
    assert cosent_loss(u, v, torch.tensor(labels), scale=scale).item() == pytest.approx(cosent, rel=1e-10, abs=1e-12)
    assert angle_loss(u, v, torch.tensor(labels)).item() == pytest.approx(angle, rel=1e-10, abs=1e-12)
    ours = angle_total(u, v, torch.tensor(labels), scale=scale, angle_weight=0.3)
    assert ours.item() == pytest.approx(cosent + 0.3 * angle, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("loss", [cosent_loss, angle_loss])
def test_ranking_gradient(loss: Callable[..., Tensor]) -> None:
    u, v = batch((8, 6), (8, 6), seed=2)
    assert torch.autograd.gradcheck(lambda a, b: loss(a, b, torch.tensor(LABELS)), (u, v))


def test_only_the_order_of_labels_counts() -> None:
    u, v = batch((8, 6), (8, 6))
    first = cosent_loss(u, v, torch.tensor(LABELS)).item()
    assert cosent_loss(u, v, torch.tensor(LABELS) * 100 - 7).item() == first
    mixed = torch.tensor([3, 1, 7, 0, 2, 6, 5, 4])
    assert cosent_loss(u[mixed], v[mixed], torch.tensor(LABELS)[mixed]).item() == pytest.approx(first, rel=1e-12)
    yes = torch.tensor(LABELS) > 2
    assert cosent_loss(u, v, yes).item() == cosent_loss(u, v, yes.long()).item() == cosent_loss(u, v, yes.float()).item()


def test_ranking_of_eight_thousand_pairs_needs_no_matrix_of_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    u, v = (torch.randn(8192, 8, generator=generator).requires_grad_() for _ in range(2))
    labels = torch.randint(0, 6, (8192,), generator=generator)
    loss = cosent_loss(u, v, labels)
    gradients = torch.autograd.grad(loss, (u, v))
    cosines = torch.cosine_similarity(u.detach().double(), v.detach().double())
    by_label = [torch.logsumexp(20 * cosines[labels < y], 0) + torch.logsumexp(-20 * cosines[labels == y], 0) for y in range(1, 6)]
    assert loss.item() == pytest.approx(torch.logsumexp(torch.stack(by_label), 0).item(), abs=1e-5)
    exact = [x.detach().double().requires_grad_() for x in (u, v)]
    for ours, wanted in zip(gradients, torch.autograd.grad(cosent_loss(*exact, labels), exact), strict=True):
        assert float((ours - wanted).norm() / wanted.norm()) < 1e-4


# --- contrastive


@pytest.mark.parametrize("name", DISTANCES)
@pytest.mark.parametrize("labels", [[0, 1, 1, 0, 1, 0], [1] * 6, [0] * 6])
def test_contrastive_value(name: str, labels: list[int]) -> None:
    u, v = batch((6, 4), (6, 4))
    margin = {"cosine": 0.9, "euclidean": 3.0, "manhattan": 6.0}[name]
    gaps = [gap(a, b, name) for a, b in zip(rows_of(u), rows_of(v), strict=True)]
    wanted = sum(d**2 / 2 if y else max(0, margin - d) ** 2 / 2 for d, y in zip(gaps, labels, strict=True)) / 6
    assert contrastive_loss(u, v, torch.tensor(labels), distance=name, margin=margin).item() == pytest.approx(wanted, rel=1e-12)
    alike, unlike = [d for d, y in zip(gaps, labels, strict=True) if y], [d for d, y in zip(gaps, labels, strict=True) if not y]
    mean = sum(gaps) / 6
    hard = sum(d**2 for d in alike if d > (min(unlike) if unlike else mean))
    hard += sum(max(0, margin - d) ** 2 for d in unlike if d < (max(alike) if alike else mean))
    assert online_contrastive_loss(u, v, torch.tensor(labels), distance=name, margin=margin).item() == pytest.approx(hard, rel=1e-12)


def test_a_batch_in_order_teaches_the_online_loss_nothing() -> None:
    u = torch.eye(4, requires_grad=True)
    v = torch.eye(4)[[0, 1, 3, 2]]
    loss = online_contrastive_loss(u, v, torch.tensor([1, 1, 0, 0]))
    assert loss.item() == 0
    assert not torch.autograd.grad(loss, u)[0].any()


# --- triplets of a batch


def triplets_reference(x: Any, labels: list[int], mining: str, name: str, margin: float) -> float:
    rows = range(len(x))
    d = [[gap(x[i], x[j], name) for j in rows] for i in rows]
    values = []
    for a in rows:
        positives = [d[a][p] for p in rows if p != a and labels[p] == labels[a]]
        negatives = [d[a][n] for n in rows if labels[n] != labels[a]]
        if not positives or not negatives:
            continue
        if mining == "hard":
            values.append(max(0.0, max(positives) - min(negatives) + margin))
        elif mining == "hard_soft":
            values.append(math.log1p(math.exp(max(positives) - min(negatives))))
        elif mining == "semi_hard":
            values += [max(0.0, p - min([n for n in negatives if n > p], default=max(negatives)) + margin) for p in positives]
        else:
            values += [value for p in positives for n in negatives if (value := p - n + margin) > 0]
    return sum(values) / len(values) if values else 0.0


@pytest.mark.parametrize("mining", MININGS)
@pytest.mark.parametrize("name", DISTANCES)
@pytest.mark.parametrize("labels", [[0, 1, 2] * 3, [5, 5, 5, 5, -1, -1, 2, 3, 3], list(range(9)), [1] * 9])
@pytest.mark.parametrize("margin", [0.0, 0.3, 3.0])
def test_batch_triplets_value(mining: Any, name: Any, labels: list[int], margin: float) -> None:
    (x,) = batch((9, 4))
    loss = batch_triplet_loss(x, torch.tensor(labels), mining=mining, distance=name, margin=margin)
    assert loss.item() == pytest.approx(triplets_reference(rows_of(x), labels, mining, name, margin), rel=1e-10, abs=1e-12)
    single = batch_triplet_loss(x.float(), torch.tensor(labels), mining=mining, distance=name, margin=margin)
    assert single.item() == pytest.approx(loss.item(), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("mining", MININGS)
@pytest.mark.parametrize("name", DISTANCES)
def test_batch_triplets_gradient(mining: Any, name: Any) -> None:
    (x,) = batch((8, 3), seed=4)
    labels = torch.arange(8) % 3
    assert torch.autograd.gradcheck(lambda x: batch_triplet_loss(x, labels, mining=mining, distance=name), (x,))
    order = torch.tensor([6, 2, 7, 0, 1, 5, 4, 3])
    ours, mixed = (batch_triplet_loss(x[o], labels[o], mining=mining, distance=name).item() for o in (torch.arange(8), order))
    assert ours == pytest.approx(mixed, rel=1e-12)


def test_a_negative_as_far_as_the_positive_is_not_semi_hard() -> None:
    x = torch.tensor([[0.0], [1.0], [-1.0], [3.0]])  # from 0 to its positive at 1 as far as to -1, so 3 is taken; from 1 the next is -1
    loss = batch_triplet_loss(x, torch.tensor([0, 0, 1, 2]), mining="semi_hard", margin=2.5)
    assert loss.item() == pytest.approx((max(0, 1 - 3 + 2.5) + max(0, 1 - 2 + 2.5)) / 2)


# --- distillation and Matryoshka


def test_vector_distillation_value() -> None:
    student, teacher = batch((5, 4), (5, 4))
    s, t = rows_of(student), rows_of(teacher)
    assert vector_distillation_loss(student, teacher).item() == pytest.approx(float(((s - t) ** 2).mean()), rel=1e-12)
    cosine = sum(gap(a, b, "cosine") for a, b in zip(s, t, strict=True)) / 5
    loss = vector_distillation_loss(student, teacher, loss="cosine")
    assert loss.item() == pytest.approx(cosine, rel=1e-12)
    loss.backward()
    assert teacher.grad is None
    assert vector_distillation_loss(student.bfloat16(), teacher).dtype == torch.float32


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_margins_and_lists_value(similarity: Any) -> None:
    a, p, n, margins = batch((4, 3), (4, 3), (4, 2, 3), (4, 2))
    x, y, z, m = (rows_of(t) for t in (a, p, n, margins))

    def s(u: Any, v: Any) -> float:
        return float(u @ v) if similarity == "dot" else 1 - gap(u, v, "cosine")

    wanted = sum((s(x[i], y[i]) - s(x[i], z[i, k]) - m[i, k]) ** 2 for i in range(4) for k in range(2)) / 8
    assert margin_mse_loss(a, p, n, margins.detach(), similarity=similarity).item() == pytest.approx(float(wanted), rel=1e-12)

    def softmax(values: list[float]) -> list[float]:
        total = sum(map(math.exp, values))
        return [math.exp(value) / total for value in values]

    kl = 0.0
    for i in range(4):
        theirs, ours = softmax([v / 0.7 for v in m[i]]), softmax([s(x[i], z[i, k]) / 0.7 for k in range(2)])
        kl += sum(q * math.log(q / w) for q, w in zip(theirs, ours, strict=True)) / 4 * 0.49
    assert score_distillation(a, n, margins, temperature=0.7, similarity=similarity).item() == pytest.approx(kl, rel=1e-10)


def test_matryoshka_is_the_weighted_sum_over_cut_vectors() -> None:
    u, v = batch((8, 6), (8, 6))
    labels = torch.tensor(LABELS)
    parts = matryoshka_parts(lambda x: [lambda: cosent_loss(x[0], x[1], labels)], [u, v], [2, 6], [0.5, 2.0])
    assert len(parts) == 2
    wanted = 0.5 * cosent_loss(u[:, :2], v[:, :2], labels) + 2 * cosent_loss(u, v, labels)
    assert total(parts).item() == pytest.approx(wanted.item(), rel=1e-12)
    gradients = torch.autograd.grad(wanted, (u, v))
    for part in parts:
        part().backward()
    assert u.grad is not None
    assert v.grad is not None
    torch.testing.assert_close((u.grad, v.grad), gradients)


# --- edges of all of them

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "contrastive": lambda u, v: contrastive_loss(u, v, torch.tensor([0, 1, 1, 0])),
    "online contrastive": lambda u, v: online_contrastive_loss(u, v, torch.tensor([0, 1, 1, 0]), distance="euclidean"),
    "cosent": lambda u, v: cosent_loss(u, v, torch.tensor([0.0, 3, 1, 2])),
    "angle": lambda u, v: angle_total(u, v, torch.tensor([0.0, 3, 1, 2])),
    "hard": lambda u, v: batch_triplet_loss(torch.cat([u, v]), torch.arange(8) % 3),
    "soft": lambda u, v: batch_triplet_loss(torch.cat([u, v]), torch.arange(8) % 3, mining="hard_soft", distance="manhattan"),
    "semi-hard": lambda u, v: batch_triplet_loss(torch.cat([u, v]), torch.arange(8) % 3, mining="semi_hard", distance="cosine"),
    "all": lambda u, v: batch_triplet_loss(torch.cat([u, v]), torch.arange(8) % 3, mining="all"),
    "vectors": lambda u, v: vector_distillation_loss(u, v.detach()) + vector_distillation_loss(v, u.detach(), loss="cosine"),
    "margins": lambda u, v: margin_mse_loss(u, v, v.flip(0), torch.ones(4), similarity="cosine"),
    "lists": lambda u, v: score_distillation(u, torch.stack([v, v.flip(0)], 1), torch.ones(4, 2), similarity="cosine"),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("rows", ["zero", "equal", "opposite", "one zero row"])
def test_gradients_are_finite_for_rows_without_a_direction_and_equal_rows(name: str, rows: str) -> None:
    u, v = torch.ones(4, 6), torch.ones(4, 6)
    if rows == "zero":
        u, v = u * 0, v * 0
    elif rows == "opposite":
        v = -v
    elif rows == "one zero row":
        u[2] = 0
    u, v = u.requires_grad_(), v.requires_grad_()
    loss = LOSSES[name](u, v)
    assert math.isfinite(loss.item())
    for gradient in torch.autograd.grad(loss, (u, v), allow_unused=True):
        assert gradient is None or bool(gradient.isfinite().all())


@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_gives_float32(name: str) -> None:
    u, v = (x.detach().bfloat16().requires_grad_() for x in batch((4, 6), (4, 6)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = LOSSES[name](u, v)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(LOSSES[name](u.detach().float(), v.detach().float()).item(), rel=1e-5, abs=1e-6)
    assert all(g is None or g.dtype == torch.bfloat16 for g in torch.autograd.grad(loss, (u, v), allow_unused=True))
