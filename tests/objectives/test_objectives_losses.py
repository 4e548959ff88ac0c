from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from twinvec.errors import TrainingError, UsageError
from twinvec.objectives.classification import CONCATENATIONS, ClassificationHead, classification_loss, features
from twinvec.objectives.regression import MAPPINGS, regression_loss
from twinvec.objectives.rows import DISTANCES, cosine, distance, unit_rows
from twinvec.objectives.triplet import triplet_loss

torch.set_num_threads(1)


def batch(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def numpy_distance(x: np.ndarray, y: np.ndarray, name: str) -> np.ndarray:
    if name == "euclidean":
        return np.sqrt(((x - y) ** 2).sum(-1))
    if name == "manhattan":
        return np.abs(x - y).sum(-1)
    return 1 - (x * y).sum(-1) / (np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1))


# --- classification


def numpy_features(u: np.ndarray, v: np.ndarray, name: str) -> np.ndarray:
    parts = {"u": u, "v": v, "|u-v|": np.abs(u - v), "u*v": u * v}
    return np.concatenate([parts[p] for p in name.split(",")], axis=1)


def test_the_papers_whole_ablation_is_there() -> None:
    assert set(CONCATENATIONS) == {"u,v", "|u-v|", "u*v", "|u-v|,u*v", "u,v,u*v", "u,v,|u-v|", "u,v,|u-v|,u*v"}


@pytest.mark.parametrize("name", CONCATENATIONS)
@pytest.mark.parametrize("classes", [2, 3])
def test_classification_equals_plain_numpy(name: str, classes: int) -> None:
    u, v = batch(7, 5, seed=1), batch(7, 5, seed=2)
    labels = torch.arange(7) % classes
    head = ClassificationHead(5, classes, name).double()
    with torch.no_grad():
        head.linear.bias.copy_(batch(classes, seed=3))
    joined = numpy_features(u.numpy(), v.numpy(), name)
    np.testing.assert_array_equal(features(u, v, name).numpy(), joined)
    logits = joined @ head.linear.weight.detach().numpy().T + head.linear.bias.detach().numpy()
    np.testing.assert_allclose(head(u, v).detach().numpy(), logits, atol=1e-12)
    logged = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    expected = -logged[np.arange(7), labels.numpy()].mean()
    assert classification_loss(head(u, v), labels).item() == pytest.approx(expected, abs=1e-12)


def test_the_head_starts_xavier_uniform_with_zero_bias() -> None:
    torch.manual_seed(0)
    head = ClassificationHead(384, 3, "u,v,|u-v|")
    bound = (6 / (3 * 384 + 3)) ** 0.5
    weight = head.linear.weight.detach()
    assert weight.shape == (3, 1152)
    assert 0.99 * bound < weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    assert not head.linear.bias.detach().any()
    torch.manual_seed(0)
    assert torch.equal(ClassificationHead(384, 3, "u,v,|u-v|").linear.weight, head.linear.weight)


@pytest.mark.parametrize("name", CONCATENATIONS)
def test_classification_gradient_is_exact(name: str) -> None:
    head = ClassificationHead(4, 3, name).double()
    u, v = batch(3, 4, seed=1).requires_grad_(), batch(3, 4, seed=2).requires_grad_()
    labels = torch.tensor([0, 2, 1])
    assert torch.autograd.gradcheck(lambda a, b: classification_loss(head(a, b), labels), (u, v))


@pytest.mark.parametrize("name", CONCATENATIONS)
def test_classification_gradient_is_finite_for_equal_and_zero_rows(name: str) -> None:
    head = ClassificationHead(4, 2, name)
    u = torch.cat([batch(2, 4, dtype=torch.float32), torch.zeros(2, 4)]).requires_grad_()
    v = u.detach().clone().requires_grad_()
    classification_loss(head(u, v), torch.tensor([0, 1, 0, 1])).backward()
    for grad in (u.grad, v.grad, head.linear.weight.grad):
        assert grad is not None
        assert torch.isfinite(grad).all()


def test_mean_over_rows_does_not_depend_on_their_order() -> None:
    logits, labels = batch(6, 3), torch.tensor([0, 1, 2, 2, 1, 0])
    order = torch.tensor([3, 5, 1, 0, 4, 2])
    assert classification_loss(logits, labels).item() == pytest.approx(classification_loss(logits[order], labels[order]).item(), abs=1e-14)


def test_half_precision_logits_are_scored_in_float32() -> None:
    logits = batch(64, 3, dtype=torch.bfloat16)
    labels = torch.arange(64) % 3
    loss = classification_loss(logits, labels)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(F.cross_entropy(logits.float(), labels).item(), abs=1e-7)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 3]), r"run from 0 to 3, but there are 3 classes"),
        (torch.tensor([0, -100]), r"run from -100 to 0"),  # torch's own ignore_index would drop it silently
        (torch.tensor([0.0, 1.0]), r"must be integers .*float32"),
        (torch.tensor([0]), r"labels \(B,\), got \(2, 3\) and \(1,\)"),
        (torch.tensor([[0], [1]]), r"got \(2, 3\) and \(2, 1\)"),
    ],
)
def test_wrong_labels_are_named(labels: torch.Tensor, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        classification_loss(batch(2, 3), labels)


def test_wrong_heads_are_named() -> None:
    with pytest.raises(UsageError, match=r"concatenation = 'u,v,u-v': choose one of .*did you mean"):
        ClassificationHead(4, 3, "u,v,u-v")
    with pytest.raises(UsageError, match="2 classes, got 4 and 1"):
        ClassificationHead(4, 1)
    with pytest.raises(TrainingError, match="4 dimensions, got 5"):
        ClassificationHead(4, 2)(batch(2, 5), batch(2, 5))
    with pytest.raises(TrainingError, match=r"equal shapes \(B, D\), got \(2, 5\) and \(3, 5\)"):
        features(batch(2, 5), batch(3, 5))
    with pytest.raises(TrainingError, match="without rows"):
        classification_loss(batch(0, 3), torch.zeros(0, dtype=torch.long))


# --- regression


@pytest.mark.parametrize(("low", "high"), [(0.0, 5.0), (0.0, 1.0), (-1.0, 1.0), (1.0, 5.0)])
@pytest.mark.parametrize("mapping", MAPPINGS)
def test_regression_equals_plain_numpy(low: float, high: float, mapping: str) -> None:
    u, v = batch(9, 6, seed=1), batch(9, 6, seed=2)
    scores = torch.linspace(low, high, 9, dtype=torch.float64)
    cos = 1 - numpy_distance(u.numpy(), v.numpy(), "cosine")
    gold = scores.numpy()
    if mapping == "range":
        expected = ((low + (cos + 1) / 2 * (high - low) - gold) ** 2).mean()
    else:
        expected = ((cos - (gold - low) / (high - low)) ** 2).mean()
    assert regression_loss(u, v, scores, low, high, mapping).item() == pytest.approx(expected, abs=1e-12)


def test_the_papers_mapping_for_0_to_5() -> None:
    u, v = batch(4, 3, seed=1), batch(4, 3, seed=2)
    scores = torch.tensor([0.0, 2.5, 3.2, 5.0], dtype=torch.float64)
    expected = F.mse_loss(F.cosine_similarity(u, v) * 2.5 + 2.5, scores)
    assert regression_loss(u, v, scores, 0, 5).item() == pytest.approx(expected.item(), abs=1e-12)


def test_the_best_vectors_have_no_loss() -> None:
    u = batch(1, 8)
    assert regression_loss(u, 3 * u, torch.tensor([5.0]), 0, 5).item() == pytest.approx(0, abs=1e-12)
    assert regression_loss(u, -u, torch.tensor([0.0]), 0, 5).item() == pytest.approx(0, abs=1e-12)
    assert regression_loss(u, u, torch.tensor([5.0]), 0, 5, "unit").item() == pytest.approx(0, abs=1e-12)
    corner = torch.tensor([[1.0, 0.0]])
    assert regression_loss(corner, corner.flip(1), torch.tensor([0.0]), 0, 5, "unit").item() == 0


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_regression_gradient_is_exact(mapping: str) -> None:
    u, v = batch(4, 5, seed=1).requires_grad_(), batch(4, 5, seed=2).requires_grad_()
    scores = torch.tensor([0.0, 1.0, 4.0, 5.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda a, b: regression_loss(a, b, scores, 0, 5, mapping), (u, v))


def test_integer_scores_give_the_same_loss() -> None:
    u, v = batch(3, 4, seed=1), batch(3, 4, seed=2)
    whole = regression_loss(u, v, torch.tensor([0, 3, 5]), 0, 5)
    assert whole.item() == regression_loss(u, v, torch.tensor([0.0, 3.0, 5.0]), 0, 5).item()
    assert whole.dtype == torch.float64


def test_regression_refuses_what_it_cannot_use() -> None:
    u = batch(3, 4)
    with pytest.raises(TrainingError, match=r"one score a pair, shape \(3,\), got \(3, 1\)"):
        regression_loss(u, u, torch.zeros(3, 1), 0, 5)
    with pytest.raises(UsageError, match="range 5,0 is empty"):
        regression_loss(u, u, torch.zeros(3), 5, 0)
    with pytest.raises(UsageError, match=r"mapping = 'rang': .*did you mean 'range'"):
        regression_loss(u, u, torch.zeros(3), 0, 5, "rang")
    with pytest.raises(TrainingError, match="without rows"):
        regression_loss(u[:0], u[:0], torch.zeros(0), 0, 5)


# --- triplet


@pytest.mark.parametrize("name", DISTANCES)
@pytest.mark.parametrize("many", [None, 1, 3])
@pytest.mark.parametrize("margin", [0.0, 0.3, 1.0, 5.0])
def test_triplet_equals_plain_numpy(name: str, many: int | None, margin: float) -> None:
    a, p = batch(6, 5, seed=1), batch(6, 5, seed=2)
    n = batch(6, 5, seed=3) if many is None else batch(6, many, 5, seed=3)
    near = numpy_distance(a.numpy(), p.numpy(), name)[:, None]
    far = numpy_distance(a.numpy()[:, None], n.numpy().reshape(6, -1, 5), name)
    expected = np.maximum(0, near - far + margin).mean()
    assert triplet_loss(a, p, n, distance=name, margin=margin).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", DISTANCES)
def test_triplet_gradient_is_exact(name: str) -> None:
    tensors = (batch(3, 4, seed=1).requires_grad_(), batch(3, 4, seed=2).requires_grad_(), batch(3, 2, 4, seed=3).requires_grad_())
    assert torch.autograd.gradcheck(lambda a, p, n: triplet_loss(a, p, n, distance=name), tensors)


def test_one_negative_in_either_shape_is_the_same() -> None:
    a, p, n = batch(4, 3, seed=1), batch(4, 3, seed=2), batch(4, 3, seed=3)
    assert triplet_loss(a, p, n).item() == triplet_loss(a, p, n.unsqueeze(1)).item()


def test_triplet_refuses_what_it_cannot_use() -> None:
    a = batch(3, 4)
    for wrong in (batch(2, 4), batch(3, 5), batch(3, 0, 4), batch(4)):
        with pytest.raises(TrainingError, match=r"negatives need shape \(3, 4\) or \(3, n, 4\)"):
            triplet_loss(a, a, wrong)
    with pytest.raises(UsageError, match=r"distance = 'euclid': .*did you mean 'euclidean'"):
        triplet_loss(a, a, a, distance="euclid")
    for margin in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="margin"):
            triplet_loss(a, a, a, margin=margin)


# --- rows: the places where a formula is 0/0

ZERO = torch.zeros(1, 4)
SOME = torch.tensor([[0.5, -1.0, 2.0, 0.25]])
EDGES = {"zero": ZERO, "some": SOME, "tiny": SOME * 1e-25, "small": SOME * 1e-7, "huge": SOME * 1e15, "opposite": -SOME}


@pytest.mark.parametrize(("first", "second"), list(itertools.product(EDGES, EDGES)))
@pytest.mark.parametrize("name", DISTANCES)
def test_values_and_gradients_are_finite_at_the_edges(first: str, second: str, name: str) -> None:
    x, y = EDGES[first].clone().requires_grad_(), EDGES[second].clone().requires_grad_()
    value = distance(x, y, name)
    assert torch.isfinite(value).all()
    value.sum().backward()
    for grad in (x.grad, y.grad):
        assert grad is not None
        assert torch.isfinite(grad).all()
        # No row may drown the others: an empty text must not bring a gradient of 1e8.
        assert grad.abs().max() <= 1e7 or "small" in (first, second)


def test_a_zero_row_has_cosine_0_and_a_modest_gradient() -> None:
    x = torch.cat([ZERO, SOME]).requires_grad_()
    value = cosine(x, torch.cat([SOME, SOME]))
    assert value.tolist() == pytest.approx([0.0, 1.0], abs=1e-6)
    value.sum().backward()
    assert x.grad is not None
    assert x.grad.abs().max() <= 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    x, y = batch(8, 384, seed=1).to(dtype), batch(8, 384, seed=2).to(dtype)
    for name in DISTANCES:
        value = distance(x, y, name)
        assert value.dtype == torch.float32
        np.testing.assert_allclose(value.numpy(), numpy_distance(x.double().numpy(), y.double().numpy(), name), rtol=1e-5)
    assert not unit_rows(torch.zeros(2, 4, dtype=dtype)).isnan().any()


@pytest.mark.parametrize("name", DISTANCES)
def test_equal_rows_are_at_distance_0(name: str) -> None:
    x = batch(5, 7)
    np.testing.assert_allclose(distance(x, x.clone(), name).numpy(), 0, atol=1e-12)
