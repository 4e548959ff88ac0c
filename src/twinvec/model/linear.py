"""Linear layers at the speed of the machine.

torch hands a float32 linear layer to MKL, which on processors other than Intel's runs its AVX2 kernels: 107 GFLOP/s a core were measured here
(AMD EPYC with AVX-512), while oneDNN, which torch carries too, gives 250 with weights laid out once. The oneDNN operators are those that
torch's own compiler emits; where they are missing, or refuse, the plain layer answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

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


def plain_lora(module: nn.Module) -> bool:
    """True for an nn.Linear that wears one plain LoRA adapter of peft, switched on and not merged."""
    if type(module).__module__ != "peft.tuners.lora.layer" or type(module).__name__ != "Linear":
        return False  # known by name: peft takes seconds to import, and is not needed to see that nobody has
    layer: Any = module
    active = list(layer.active_adapters)
    return (
        type(layer.base_layer) is nn.Linear
        and len(active) == 1
        and active[0] in layer.lora_A
        and not (layer.merged or layer.disable_adapters or layer.fan_in_fan_out or layer.lora_variant or layer.lora_bias.get(active[0]))
    )


class LoraParts(NamedTuple):
    """A (r, in), B (out, r), alpha / r, and the dropout before A."""

    down: Tensor
    up: Tensor
    scale: float
    dropout: nn.Module


def lora_parts(layer: Any) -> LoraParts:
    """What a plain LoRA layer adds."""
    name = layer.active_adapters[0]
    return LoraParts(layer.lora_A[name].weight, layer.lora_B[name].weight, float(layer.scaling[name]), layer.lora_dropout[name])


def lora_delta(layer: Any) -> Tensor:
    """scale * B A, (out, in): what the adapter adds to the weight."""
    part = lora_parts(layer)
    return (part.up @ part.down) * part.scale


class FastLinear:
    """One or several nn.Linear over the same input as one product; the outputs stand side by side: (T, in) -> (T, sum of out).

    A layer may wear a plain LoRA adapter: without gradients it is part of the kept weight and costs nothing.
    The joined and reordered weight is kept, and made again whenever a parameter has changed since: by an optimiser, load_state_dict,
    or any operation in place. Only writing through `parameter.data` goes unseen, since torch does not count it.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self.layers: list[Any] = list(layers)
        self.bases: list[nn.Linear] = [layer.base_layer if plain_lora(layer) else layer for layer in self.layers]
        self.adapted = any(base is not layer for base, layer in zip(self.bases, self.layers, strict=True))
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
        if self.adapted and not torch.is_autocast_enabled(x.device.type) and any(p.dtype != x.dtype for p in self._parameters()):
            outs = [layer(x) for layer in self.layers]  # adapters in another precision than their base: peft's forward casts
        else:
            outs = self._outs(x, F.linear)
        out = outs[0] if len(outs) == 1 else torch.cat(outs, dim=-1)
        return F.gelu(out) if activation else out

    def _with_gradient(self, x: Tensor, activation: str) -> Tensor:
        first = self.bases[0].weight
        if first.dtype != torch.float32 or first.device.type != "cpu" or x.dtype != torch.float32 or not onednn_works():
            return self._plain(x, activation)
        outs = self._outs(x, _TrainedLinear.apply)
        out: Tensor = outs[0] if len(outs) == 1 else torch.cat(outs, dim=-1)
        return F.gelu(out) if activation else out

    def _outs(self, x: Tensor, linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]) -> list[Tensor]:
        """W x + b of each layer, plus scale * B A dropout(x) where it wears an adapter.

        Departure from peft: adapters that read the same input (query, key and value; gate and up) share one dropout mask and one product with
        their A side by side, where peft draws a mask for each: masks are dear on a CPU, and kept for the backward pass.
        """
        outs = [linear(x, base.weight, base.bias) for base in self.bases]
        worn = {i: lora_parts(layer) for i, (base, layer) in enumerate(zip(self.bases, self.layers, strict=True)) if base is not layer}
        if not worn:
            return outs
        dropout = next(iter(worn.values())).dropout
        downs = [part.down for part in worn.values()]
        inner = linear(dropout(x), torch.cat(downs) if len(downs) > 1 else downs[0], None)
        for (i, part), low in zip(worn.items(), torch.split(inner, [len(down) for down in downs], dim=-1), strict=True):
            outs[i] = torch.add(outs[i], linear(low, part.up, None), alpha=part.scale)
        return outs

    def _parameters(self) -> list[Tensor]:
        found = [p for base in self.bases for p in (base.weight, base.bias) if p is not None]
        for base, layer in zip(self.bases, self.layers, strict=True):
            if base is not layer:
                part = lora_parts(layer)
                found += [part.down, part.up]
        return found

    def _refresh(self, x: Tensor) -> None:
        parameters = self._parameters()
        stamp = (_generation, *((p.data_ptr(), p._version, p.dtype, p.device) for p in parameters))
        if stamp == self._stamp:
            return
        with torch.no_grad():
            weights = [_summed(base, layer) for base, layer in zip(self.bases, self.layers, strict=True)]
            weight = torch.cat(weights) if len(weights) > 1 else weights[0].detach()
            has_bias = self.bases[0].bias is not None
            self._bias = torch.cat([base.bias for base in self.bases]).detach() if has_bias else None
            self._packed = weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16) and onednn_works()
            self._weight = _pack(weight) if self._packed else weight
        self._stamp, self._seen = stamp, [p.detach() for p in parameters]

    def __getstate__(self) -> dict[str, Any]:
        # A copy makes its own weights: the kept ones lie in oneDNN's order, which torch cannot copy.
        return {**self.__dict__, "_stamp": None, "_seen": [], "_weight": None, "_bias": None}


def _summed(base: nn.Linear, layer: Any) -> Tensor:
    """The weight with its adapter, if it wears one."""
    return base.weight if base is layer else base.weight + lora_delta(layer).to(base.weight.dtype)


class _TrainedLinear(torch.autograd.Function):
    """W x + b with its three products in oneDNN: dx = g W, dW = g' x, db = sum of g."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # `_onednn` reads rows as they lie in memory; a part of a wider product does not lie so.
        x = x.contiguous()
        # A frozen weight needs no input for its gradient: not keeping it is most of what freezing saves.
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
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
