"""FastLinear is nn.Linear at every turn: values, gradients, changed weights, other precisions, and where oneDNN is missing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twinvec.model import linear
from twinvec.model.linear import FastLinear, onednn_works

torch.set_num_threads(1)


def layers(count: int, bias: bool = True, seed: int = 0) -> list[nn.Linear]:
    torch.manual_seed(seed)
    return [nn.Linear(24, 10 + 6 * i, bias=bias) for i in range(count)]


def plain(parts: list[nn.Linear], x: Tensor) -> Tensor:
    return torch.cat([F.linear(x, part.weight, part.bias) for part in parts], dim=-1)


@pytest.fixture(params=["onednn", "fallback"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of computing; the tests hold for either."""
    if request.param == "fallback":
        monkeypatch.setattr(linear, "onednn_works", lambda: False)
    elif not onednn_works():
        pytest.skip("this torch has no working oneDNN operators")
    return str(request.param)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("rows", [1, 16, 33])
def test_forward(kernel: str, count: int, bias: bool, rows: int) -> None:
    parts = layers(count, bias)
    x = torch.randn(rows, 24)
    fast = FastLinear(parts)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), plain(parts, x), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(fast.gelu(x), F.gelu(plain(parts, x)), atol=1e-5, rtol=1e-5)
        assert fast._packed == (kernel == "onednn")
    torch.testing.assert_close(fast(x), plain(parts, x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(fast.gelu(x), F.gelu(plain(parts, x)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("frozen", ["nothing", "weights", "input"])
def test_backward(kernel: str, bias: bool, frozen: str) -> None:
    parts = layers(2, bias)
    for part in parts:
        part.weight.requires_grad_(frozen != "weights")
    x = torch.randn(7, 24, requires_grad=frozen != "input")
    inputs = [t for t in (x, *(p for part in parts for p in part.parameters())) if t.requires_grad]
    goal = torch.randn(7, 26)
    found = torch.autograd.grad((FastLinear(parts)(x) * goal).sum(), inputs)
    wanted = torch.autograd.grad((plain(parts, x) * goal).sum(), inputs)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_backward_of_a_gradient_that_is_not_contiguous(kernel: str) -> None:
    part = layers(1)[0]
    x = torch.randn(7, 24, requires_grad=True)
    inputs = [x, part.weight, part.bias]
    found = torch.autograd.grad(FastLinear([part])(x).t().sum(1)[3:].sum(), inputs)
    wanted = torch.autograd.grad(plain([part], x).t().sum(1)[3:].sum(), inputs)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def step(parts: list[nn.Linear]) -> None:
    optimizer = torch.optim.AdamW([p for part in parts for p in part.parameters()], lr=0.1)
    plain(parts, torch.ones(2, 24)).square().sum().backward()
    optimizer.step()


def load(parts: list[nn.Linear], assign: bool = False) -> None:
    for part in parts:
        part.load_state_dict({name: torch.randn_like(value) for name, value in part.state_dict().items()}, assign=assign)


def in_place(parts: list[nn.Linear]) -> None:
    with torch.no_grad():
        parts[-1].bias.add_(1.0)


def in_inference_mode(parts: list[nn.Linear]) -> None:
    with torch.inference_mode():
        parts[0].weight.mul_(0.5)


def new_parameter(parts: list[nn.Linear]) -> None:
    parts[0].weight = nn.Parameter(torch.randn_like(parts[0].weight))


CHANGES: dict[str, Callable[[list[nn.Linear]], None]] = {
    "an optimiser's step": step,
    "load_state_dict": load,
    "load_state_dict, assigned": lambda parts: load(parts, assign=True),
    "in place": in_place,
    "in place, in inference mode": in_inference_mode,
    "a new parameter": new_parameter,
    "new data": lambda parts: setattr(parts[0].weight, "data", torch.randn_like(parts[0].weight)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_kept_weight_follows(kernel: str, change: str) -> None:
    parts = layers(2)
    fast, x = FastLinear(parts), torch.randn(5, 24)
    with torch.no_grad():
        before = fast(x)
        kept = fast._weight
        torch.testing.assert_close(fast(x), before, atol=0, rtol=0)
        assert fast._weight is kept  # nothing changed, nothing made again
    CHANGES[change](parts)
    with torch.no_grad():
        after = fast(x)
        torch.testing.assert_close(after, plain(parts, x), atol=1e-5, rtol=1e-5)
    assert (after - before).abs().max() > 1e-3


def test_no_other_weight_can_come_to_lie_at_the_kept_address(kernel: str) -> None:
    """The stamp is an address and a count; while it stands, the memory behind it must not be given to another tensor."""
    parts = layers(1)
    fast = FastLinear(parts)
    with torch.no_grad():
        fast(torch.randn(5, 24))
    address = parts[0].weight.data_ptr()
    parts[0].weight.data = torch.empty(0)
    others = [torch.empty(10, 24) for _ in range(200)]
    assert address not in {other.data_ptr() for other in others}


def test_to_bf16_and_back(kernel: str) -> None:
    """The same parameters, rounded: the kept weight is the old one no longer."""
    parts = layers(1)
    fast, x = FastLinear(parts), torch.randn(5, 24)
    with torch.no_grad():
        fast(x)
        for _ in range(20):
            parts[0].bfloat16().float()
            torch.testing.assert_close(fast(x), plain(parts, x), atol=1e-6, rtol=1e-6)
            parts[0].weight.data = torch.randn(10, 24)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(kernel: str, dtype: torch.dtype) -> None:
    parts = [part.to(dtype) for part in layers(2)]
    x = torch.randn(9, 24).to(dtype)
    tolerance = {torch.bfloat16: 0.03, torch.float16: 4e-3, torch.float64: 1e-12}[dtype]
    fast = FastLinear(parts)
    with torch.no_grad():
        assert fast(x).dtype == dtype
        torch.testing.assert_close(fast(x), plain(parts, x), atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(fast.gelu(x), F.gelu(plain(parts, x)), atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(fast(x), plain(parts, x), atol=tolerance, rtol=tolerance)


def test_gradcheck_in_float64_takes_the_plain_way(kernel: str) -> None:
    part = layers(1)[0].double()
    x = torch.randn(3, 24, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(FastLinear([part]), (x,))


def test_autocast(kernel: str) -> None:
    parts = layers(2)
    x = torch.randn(9, 24)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = FastLinear(parts)(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), plain(parts, x), atol=0.03, rtol=0.03)


def test_onednn_works_says_no_when_operators_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> Tensor:
        raise AttributeError("no such operator")

    def wrong(x: Tensor, packed: Tensor, bias: Tensor | None, activation: str) -> Tensor:
        return torch.zeros(len(x), len(bias) if bias is not None else 1)

    for fake in (missing, wrong):
        monkeypatch.setattr(linear, "_onednn", fake)
        onednn_works.cache_clear()
        assert onednn_works() is False
    monkeypatch.undo()
    onednn_works.cache_clear()
