"""Linear layers at the speed of the machine.

torch hands a float32 linear layer to MKL, which on processors other than Intel's runs its AVX2 kernels: 107 GFLOP/s a core were measured here
(AMD EPYC with AVX-512), while oneDNN, which torch carries too, gives 250 with weights laid out once. The oneDNN operators are those that
torch's own compiler emits; where they are missing, or refuse, the plain layer answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@cache
def onednn_works() -> bool:
    """True when the oneDNN operators exist and give the plain layer's numbers on a small product, forward and fused with GELU."""
    try:
        if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:  # type: ignore[no-untyped-call]
            return False
        generator = torch.Generator().manual_seed(0)
        x, weight, bias = (torch.randn(*shape, generator=generator) for shape in ((5, 16), (8, 16), (8,)))
        with torch.no_grad():
            packed = _pack(weight)
            plain = F.linear(x, weight, bias)
            same = torch.allclose(_onednn(x, packed, bias, ""), plain, atol=1e-5)
            return same and torch.allclose(_onednn(x, packed, bias, "gelu"), F.gelu(plain), atol=1e-5)
    except (RuntimeError, AttributeError, NotImplementedError, TypeError):
        return False


def _pack(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)  # type: ignore[no-any-return]


def _onednn(x: Tensor, packed: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, activation or "none", [], "none" if activation else "")  # type: ignore[no-any-return]


_generation = 0


def weights_may_change() -> None:
    """Let every FastLinear make its weights again at its next use. Net.train() calls it: torch's fused optimisers write without a version count."""
    global _generation
    _generation += 1


class FastLinear:
    """One or several nn.Linear over the same input as one product; the outputs stand side by side: (T, in) -> (T, sum of out).

    The joined and reordered weight is kept, and made again whenever a parameter has changed since: by an optimiser, load_state_dict,
    or any operation in place. Only writing through `parameter.data` goes unseen, since torch does not count it.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.layers = list(layers)
        self._stamp: tuple[Any, ...] | None = None
        self._seen: list[Tensor] = []  # holds the memory behind the stamp, so that no later parameter can come to lie at the same address
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None
        self._packed = False

    def __call__(self, x: Tensor) -> Tensor:
        return self._run(x, "")

    def gelu(self, x: Tensor) -> Tensor:
        """gelu(W x + b), the erf kind, in one pass where the machine can."""
        return self._run(x, "gelu")

    def _run(self, x: Tensor, activation: str) -> Tensor:
        if torch.is_autocast_enabled(x.device.type):
            return self._plain(x, activation)
        if torch.is_grad_enabled():
            return self._with_gradient(x, activation)
        self._refresh(x)
        assert self._weight is not None
        if self._packed:
            return _onednn(x, self._weight, self._bias, activation)
        out = F.linear(x, self._weight, self._bias)
        return F.gelu(out) if activation else out

    def _plain(self, x: Tensor, activation: str) -> Tensor:
        outs = [layer(x) for layer in self.layers]
        out = outs[0] if len(outs) == 1 else torch.cat(outs, dim=-1)
        return F.gelu(out) if activation else out

    def _with_gradient(self, x: Tensor, activation: str) -> Tensor:
        first = self.layers[0].weight
        if first.dtype != torch.float32 or first.device.type != "cpu" or x.dtype != torch.float32 or not onednn_works():
            return self._plain(x, activation)
        outs = [_TrainedLinear.apply(x, layer.weight, layer.bias) for layer in self.layers]  # type: ignore[no-untyped-call]
        out: Tensor = outs[0] if len(outs) == 1 else torch.cat(outs, dim=-1)
        return F.gelu(out) if activation else out

    def _refresh(self, x: Tensor) -> None:
        parameters = [p for layer in self.layers for p in (layer.weight, layer.bias) if p is not None]
        stamp = (_generation, *((p.data_ptr(), p._version, p.dtype, p.device) for p in parameters))
        if stamp == self._stamp:
            return
        with torch.no_grad():
            weight = torch.cat([layer.weight for layer in self.layers]) if len(self.layers) > 1 else self.layers[0].weight.detach()
            has_bias = self.layers[0].bias is not None
            self._bias = torch.cat([layer.bias for layer in self.layers]).detach() if has_bias else None
            self._packed = weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16) and onednn_works()
            self._weight = _pack(weight) if self._packed else weight
        self._stamp, self._seen = stamp, [p.detach() for p in parameters]


class _TrainedLinear(torch.autograd.Function):
    """W x + b with its three products in oneDNN: dx = g W, dW = g' x, db = sum of g."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _onednn(x, weight, bias, "")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad = grads[0].contiguous()
        needs = ctx.needs_input_grad
        # _linear_pointwise(a, b) = a b', so a transposed operand gives each product.
        grad_x = _onednn(grad, weight.t().contiguous(), None, "") if needs[0] else None
        grad_weight = _onednn(grad.t().contiguous(), x.t().contiguous(), None, "") if needs[1] else None
        return grad_x, grad_weight, grad.sum(0) if ctx.has_bias and needs[2] else None
