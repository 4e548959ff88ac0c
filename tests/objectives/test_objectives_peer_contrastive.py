"""The contrastive, ranking, batch and distillation objectives against sentence-transformers' own, values and gradients, on the same tensors."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from twinvec.objectives.batch_triplets import batch_triplet_loss
from twinvec.objectives.contrastive import contrastive_loss, online_contrastive_loss
from twinvec.objectives.distillation import margin_mse_loss, score_distillation, vector_distillation_loss
from twinvec.objectives.infonce import infonce_loss, infonce_parts
from twinvec.objectives.matryoshka import matryoshka_parts
from twinvec.objectives.parts import total
from twinvec.objectives.ranking import angle_loss, angle_total, cosent_loss

losses = pytest.importorskip("sentence_transformers.losses", reason="sentence-transformers (dev extra) is not installed")
util = pytest.importorskip("sentence_transformers.util")
torch.set_num_threads(1)
ROWS = 12


class Stub(nn.Module):
    """Passes ready vectors through where the peer expects a model."""

    device = torch.device("cpu")

    def forward(self, vectors: dict[str, Tensor]) -> dict[str, Tensor]:
        return vectors

    def get_embedding_dimension(self) -> int:
        return 16

    def __getitem__(self, number: int) -> nn.Module:
        return self


def vectors(count: int, seed: int = 0, n: int = 0) -> list[Tensor]:
    """`count` columns (12, 16) near each other row by row, so that cosines spread; with n, hard negatives (12, n, 16) last."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(ROWS, 16, generator=generator)
    made = [base + torch.randn(ROWS, 16, generator=generator) for _ in range(count)]
    return [x.requires_grad_() for x in made + [base[:, None] + torch.randn(ROWS, n, 16, generator=generator)] * (n > 0)]


def columns(tensors: list[Tensor]) -> list[dict[str, Tensor]]:
    """As the peer wants them: a column for each hard negative."""
    flat = [column for x in tensors for column in ([x] if x.ndim == 2 else x.unbind(1))]
    return [{"sentence_embedding": x} for x in flat]


def same(ours: Tensor, theirs: Tensor, inputs: list[Tensor], atol: float = 2e-6) -> None:
    assert ours.item() == pytest.approx(theirs.item(), abs=atol, rel=1e-5)
    for a, b in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs), strict=True):
        torch.testing.assert_close(a, b, atol=atol, rtol=1e-4)


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize(("similarity", "temperature"), [("cosine", 0.05), ("dot", 1.0)])
@pytest.mark.parametrize("direction", ["one_sided", "symmetric"])
def test_infonce(n: int, similarity: Any, temperature: float, direction: Any) -> None:
    function = util.cos_sim if similarity == "cosine" else util.dot_score
    both: dict[str, Any] = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
    peer = losses.MultipleNegativesRankingLoss(Stub(), 1 / temperature, function, **(both if direction == "symmetric" else {}))
    x = vectors(2, n=n)
    ours = infonce_loss(*x, temperature=temperature, similarity=similarity, direction=direction, block_rows=5)
    same(ours, peer(columns(x), torch.zeros(0)), x)


def test_infonce_in_parts_equals_the_cached_loss() -> None:
    peer = losses.CachedMultipleNegativesRankingLoss(Stub(), mini_batch_size=5)
    x = vectors(2, n=2)
    wanted = peer.calculate_loss([column["sentence_embedding"].split(5) for column in columns(x)])
    gradients = torch.autograd.grad(wanted, x)
    for part in infonce_parts(*x, block_rows=5):
        part().backward()
    assert total(infonce_parts(*x)).item() == pytest.approx(wanted.item(), abs=1e-6)
    for t, gradient in zip(x, gradients, strict=True):
        assert t.grad is not None
        torch.testing.assert_close(t.grad, gradient, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("margin", [0.0, 0.1])
def test_guided_infonce(n: int, margin: float) -> None:
    x, guide = vectors(2, n=n), vectors(2, seed=1, n=n)
    # The peer asks both models for tokenizers; its arithmetic starts where these two functions end.
    peer = losses.GISTEmbedLoss.__new__(losses.GISTEmbedLoss)
    nn.Module.__init__(peer)
    peer.model, peer.guide, peer.must_retokenize = Stub(), Stub(), False
    peer.temperature, peer.similarity_fct, peer.cross_entropy_loss = 0.05, nn.CosineSimilarity(dim=-1), nn.CrossEntropyLoss()
    peer.margin_strategy, peer.margin, peer.gather_across_devices = "absolute", margin, False
    peer.contrast_anchors = peer.contrast_positives = False

    class Both(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
            return {"sentence_embedding": features[self.name]}

    peer.model, peer.guide = Both("model"), Both("guide")
    features = [
        {"model": a["sentence_embedding"], "guide": b["sentence_embedding"].detach()} for a, b in zip(columns(x), columns(guide), strict=True)
    ]
    whole = (guide[0], guide[1], guide[2] if n else None)
    same(infonce_loss(*x, guide=whole, false_negative_margin=-margin), peer(features, torch.zeros(0)), x)


@pytest.mark.parametrize("name", ["cosine", "euclidean", "manhattan"])
@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("labels", [[0, 1] * 6, [1] * 12, [0] * 12])
def test_contrastive(name: str, online: bool, labels: list[int]) -> None:
    metric = losses.SiameseDistanceMetric
    kind = losses.OnlineContrastiveLoss if online else losses.ContrastiveLoss
    margin = 0.5 if name == "cosine" else 5.0 if name == "euclidean" else 20.0
    peer = kind(Stub(), getattr(metric, "COSINE_DISTANCE" if name == "cosine" else name.upper()), margin)
    x = vectors(2)
    ours = (online_contrastive_loss if online else contrastive_loss)(*x, torch.tensor(labels), distance=name, margin=margin)
    assert ours.item() > 0
    # The peer adds 1e-6 to every difference before a Euclidean or Manhattan norm; ours does not.
    same(ours, peer(columns(x), torch.tensor(labels)), x, atol=2e-6 if name == "cosine" else 5e-3)


@pytest.mark.parametrize("labels", [torch.arange(12) / 4, torch.tensor([0, 1] * 6), torch.tensor([3.0, 3, 1, 0, 0, 0, 2, 5, 5, 5, 5, 1])])
def test_cosent_and_angle(labels: Tensor) -> None:
    x = vectors(2)
    cosent, angle = losses.CoSENTLoss(Stub())(columns(x), labels), losses.AnglELoss(Stub())(columns(x), labels)
    same(cosent_loss(*x, labels), losses.CoSENTLoss(Stub())(columns(x), labels), x)
    same(angle_loss(*x, labels), losses.AnglELoss(Stub())(columns(x), labels), x)
    same(angle_total(*x, labels, angle_weight=0.5), cosent + 0.5 * angle, x)


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
@pytest.mark.parametrize(
    ("mining", "peer"),
    [
        ("hard", losses.BatchHardTripletLoss),
        ("semi_hard", losses.BatchSemiHardTripletLoss),
        ("all", losses.BatchAllTripletLoss),
        ("hard_soft", losses.BatchHardSoftMarginTripletLoss),
    ],
)
@pytest.mark.parametrize("margin", [0.2, 2.0])
@pytest.mark.parametrize("classes", [2, 4])
def test_batch_triplets(distance: Any, mining: Any, peer: Any, margin: float, classes: int) -> None:
    function = losses.BatchHardTripletLossDistanceFunction
    metric = function.cosine_distance if distance == "cosine" else function.euclidean_distance
    theirs = partial(peer, Stub(), distance_metric=metric)
    x = vectors(1, seed=3)
    labels = torch.arange(ROWS) % classes
    value = (theirs() if mining == "hard_soft" else theirs(margin=margin))(columns(x), labels)
    same(batch_triplet_loss(x[0], labels, mining=mining, distance=distance, margin=margin), value, x, atol=1e-5)


@pytest.mark.parametrize("weights", [None, [1.0, 0.5, 0.25]])
@pytest.mark.parametrize("name", ["infonce", "cosent"])
def test_matryoshka(weights: list[float] | None, name: str) -> None:
    x, labels = vectors(2), torch.arange(12) / 4
    inner: Any = losses.MultipleNegativesRankingLoss if name == "infonce" else losses.CoSENTLoss
    peer = losses.MatryoshkaLoss(stub := Stub(), inner(stub), [16, 8, 3], weights)

    def make(cut: list[Tensor]) -> Any:
        return infonce_parts(*cut, block_rows=5) if name == "infonce" else [lambda: cosent_loss(cut[0], cut[1], labels)]

    same(total(matryoshka_parts(make, x, [16, 8, 3], weights)), peer(columns(x), labels), x, atol=5e-6)


@pytest.mark.parametrize("loss", ["mse", "cosine"])
def test_vector_distillation(loss: Any) -> None:
    student, teacher = vectors(2)
    peer = losses.EmbedDistillLoss(Stub(), distance_metric=loss)
    same(vector_distillation_loss(student, teacher, loss=loss), peer(columns([student]), teacher), [student])


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_margins_and_lists(n: int, similarity: Any) -> None:
    x = vectors(2, n=n)
    function = util.pairwise_cos_sim if similarity == "cosine" else util.pairwise_dot_score
    margins = torch.linspace(-1, 9, ROWS * n).view(ROWS, n)
    same(margin_mse_loss(*x, margins, similarity=similarity), losses.MarginMSELoss(Stub(), function)(columns(x), margins), x, atol=1e-5)
    if n == 1:
        assert margin_mse_loss(x[0], x[1], x[2][:, 0], margins[:, 0], similarity=similarity).item() == pytest.approx(
            margin_mse_loss(*x, margins, similarity=similarity).item()
        )
    scores = torch.cat([margins, margins[:, :1] / 2], 1) / 4
    peer = losses.DistillKLDivLoss(Stub(), function, temperature=2.0)
    candidates = torch.cat([x[1][:, None], x[2]], 1)
    same(score_distillation(x[0], candidates, scores, temperature=2.0, similarity=similarity), peer(columns(x), scores), x, atol=1e-5)
