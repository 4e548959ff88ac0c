"""The three losses against sentence-transformers' own, values and gradients, on the same tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from twinvec.objectives.classification import ClassificationHead, classification_loss
from twinvec.objectives.regression import regression_loss
from twinvec.objectives.triplet import triplet_loss

losses = pytest.importorskip("sentence_transformers.losses", reason="sentence-transformers (dev extra) is not installed")
torch.set_num_threads(1)


class Stub(nn.Module):
    """Passes ready vectors through where the peer expects a model."""

    device = torch.device("cpu")

    def forward(self, vectors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return vectors


def vectors(count: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(8, 16, generator=generator).requires_grad_() for _ in range(count)]


def columns(tensors: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    return [{"sentence_embedding": x} for x in tensors]


def same(ours: torch.Tensor, theirs: torch.Tensor, inputs: list[torch.Tensor], atol: float = 1e-6) -> None:
    assert ours.item() == pytest.approx(theirs.item(), abs=atol)
    for a, b in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs), strict=True):
        torch.testing.assert_close(a, b, atol=atol, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "rep", "difference", "product"),
    [("u,v", True, False, False), ("u,v,|u-v|", True, True, False), ("u,v,|u-v|,u*v", True, True, True), ("|u-v|,u*v", False, True, True)],
)
def test_classification(name: str, rep: bool, difference: bool, product: bool) -> None:
    peer = losses.SoftmaxLoss(Stub(), 16, 3, rep, difference, product)
    head = ClassificationHead(16, 3, name)
    head.linear.load_state_dict(peer.classifier.state_dict())
    u, v = vectors(2)
    labels = torch.arange(8) % 3
    same(classification_loss(head(u, v), labels), peer(columns([u, v]), labels), [u, v])


def test_regression() -> None:
    u, v = vectors(2)
    scores = torch.linspace(0, 5, 8)
    peer = losses.CosineSimilarityLoss(Stub())
    same(regression_loss(u, v, scores, 0, 5, "unit"), peer(columns([u, v]), scores / 5), [u, v])


def test_regression_in_the_papers_range() -> None:
    u, v = vectors(2)
    scores = torch.linspace(0, 5, 8)

    class Mapped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2.5 + 2.5

    peer = losses.CosineSimilarityLoss(Stub(), cos_score_transformation=Mapped())
    same(regression_loss(u, v, scores, 0, 5), peer(columns([u, v]), scores), [u, v])


@pytest.mark.parametrize("name", ["euclidean", "cosine", "manhattan"])
@pytest.mark.parametrize("margin", [1.0, 5.0])
def test_triplet(name: str, margin: float) -> None:
    metric = getattr(losses.TripletDistanceMetric, name.upper())
    peer = losses.TripletLoss(Stub(), distance_metric=metric, triplet_margin=margin)
    inputs = vectors(3, seed=4)
    # The peer adds 1e-6 to every difference before a Euclidean or Manhattan norm; ours does not.
    same(triplet_loss(*inputs, distance=name, margin=margin), peer(columns(inputs), torch.zeros(8)), inputs, atol=1e-4)
