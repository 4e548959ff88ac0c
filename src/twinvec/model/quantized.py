"""The padding-free forward of the BERT kind with 8-bit products: one byte a weight and an activation, 32-bit sums, on oneDNN's VNNI kernels.

What is quantised, and how (symbols: x an input row, W a weight, c a scale, q a byte):
- Weights: symmetric, one scale an output row, -127 to 127.
- Inputs of linear layers: unsigned with zero point 128 and one scale and centre an input channel, q = round((x - m) / c) + 128. Channel scales
  cost nothing: they are folded into the weight, and the centres into the bias, W x + b = (W c)(q - 128) + (W m + b). Each channel's scale
  balances its own range against that of its weights (SmoothQuant: Xiao et al. 2023, eq. 4, alpha = 0.5).
- Between the two feed-forward layers GELU is part of the first product, whose bytes are the second one's input, with one scale for all units.
  The few units that reach far would stretch it: they travel beside, in float32 (after LLM.int8(): Dettmers et al. 2022, section 3.2).
The ranges are fixed once, by a float32 pass over calibration texts, so a row never depends on its neighbours: sums of bytes are exact, and alone
equals batched. Attention, norms, residual stream, pooling and heads stay in float32.

Departure from dynamic quantisation (one scale a row or a batch, measured anew each time): that needs passes over every activation, and with one
scale a batch a vector would change with its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from twinvec.errors import ModelError, UsageError
from twinvec.model.attention import Packed, attend, once_a_length
from twinvec.model.batch import PackedBatch
from twinvec.model.linear import FastLinear
from twinvec.model.net import Net
from twinvec.model.packed import PostNormLayer, PostNormPacked

ZERO = 128
ALPHA = 0.5
FAR_UNITS = 32  # measured on MiniLM: 0 gives a least cosine of 0.981 to float32, 32 gives 0.991, for a fiftieth of the products in float32
CALIBRATION_TOKENS = 4096
SHARES = (1.0, 0.85, 0.7, 0.55, 0.4)


@cache
def int8_works() -> bool:
    """True when the operators exist, give the right numbers, and run on byte kernels (a slow reference kernel answers where there are none)."""
    try:
        if not torch.backends.mkldnn.is_available() or not torch.cpu._is_vnni_supported():  # type: ignore[no-untyped-call]
            return False  # without VNNI the sum of two products of bytes overflows
        generator = torch.Generator().manual_seed(0)
        x, weight, bias = (torch.randn(*shape, generator=generator) for shape in ((6, 32), (16, 32), (16,)))
        layer = ByteLinear(weight, bias, Range.of(x, weight))
        return torch.allclose(layer(layer.bytes_of(x)), x @ weight.T + bias, atol=0.2)
    except (RuntimeError, AttributeError, NotImplementedError, TypeError):
        return False


@dataclass(frozen=True)
class Range:
    """Centre m and scale c of each input channel, both (in,)."""

    centre: Tensor
    scale: Tensor

    @staticmethod
    def of(x: Tensor, weight: Tensor) -> Range:
        """From calibration rows x (T, in) and the weight (out, in) that will read them."""
        low, high = x.amin(0), x.amax(0)
        centre, reach = (low + high) / 2, ((high - low) / 2).clamp(min=1e-6)
        smooth = reach.pow(ALPHA) / weight.abs().amax(0).clamp(min=1e-6).pow(1 - ALPHA)
        return Range(centre, smooth * ((reach / smooth).max() / 127))


class ByteLinear:
    """W x + b from bytes: (T, in) uint8 -> (T, out) float32; with `gelu_bytes` the bytes of gelu(W x + b)."""

    def __init__(self, weight: Tensor, bias: Tensor | None, range: Range | None, *, scale: float = 1.0, zero: int = ZERO) -> None:
        """range: folds centres and scales of the channels; without it the input has one `scale` and the zero point `zero`."""
        out, size = weight.shape
        offset = torch.zeros(out) if bias is None else bias.float()
        if range is not None:
            offset = offset + weight @ range.centre
            weight = weight * range.scale
            self.times, self.plus = 1 / range.scale, ZERO + 0.5 - range.centre / range.scale
        self.scale, self.zero = scale, zero
        self.bias = offset.contiguous()
        self.weight_scale = (weight.abs().amax(1) / 127).clamp(min=1e-12)
        rounded = (weight / self.weight_scale[:, None]).round().clamp(-127, 127).to(torch.int8)
        self.weight = torch.ops.onednn.qlinear_prepack(rounded, [2048, size])
        self.weight_zero = torch.zeros(out, dtype=torch.int32)

    def bytes_of(self, x: Tensor) -> Tensor:
        """(T, in) float32 -> uint8; what lies beyond the calibrated range is clipped, never wrapped."""
        return torch.addcmul(self.plus, x, self.times).clamp_(0, 255).to(torch.uint8)

    def __call__(self, q: Tensor) -> Tensor:
        out: Tensor = torch.ops.onednn.qlinear_pointwise(
            q, self.scale, self.zero, self.weight, self.weight_scale, self.weight_zero, self.bias, 1.0, 0, torch.float32, "none", [], ""
        )
        return out

    def plus_residual(self, q: Tensor, x: Tensor) -> Tensor:
        """W x + b + the residual stream, written over the residual."""
        out: Tensor = torch.ops.onednn.qlinear_pointwise.binary(
            q, self.scale, self.zero, self.weight, self.weight_scale, self.weight_zero, x, self.bias, 1.0, 0, torch.float32, 1.0, 0, "sum", 1.0,
            "none", [], "",
        )  # fmt: skip
        return out

    def gelu_bytes(self, q: Tensor, scale: float, zero: int) -> Tensor:
        out: Tensor = torch.ops.onednn.qlinear_pointwise(
            q, self.scale, self.zero, self.weight, self.weight_scale, self.weight_zero, self.bias, scale, zero, torch.uint8, "gelu", [], "none"
        )
        return out


def _joined(linear: FastLinear) -> tuple[Tensor, Tensor]:
    """Weight (out, in) and bias (out,) of layers over one input, in float32; zeros for a bias that is not there."""
    weight = torch.cat([base.weight for base in linear.bases]).detach().float()
    biases = [torch.zeros(base.out_features) if base.bias is None else base.bias.detach().float() for base in linear.bases]
    return weight, torch.cat(biases)


class ByteLayer:
    """One layer with its four products in bytes."""

    def __init__(self, layer: PostNormLayer, seen: _Seen) -> None:
        qkv, out, up, down = (_joined(linear) for linear in (layer.qkv, layer.out, layer.up, layer.down))
        self.qkv = ByteLinear(*qkv, Range.of(seen.x, qkv[0]))
        self.out = ByteLinear(*out, Range.of(seen.context, out[0]))
        self.up = ByteLinear(*up, Range.of(seen.middle, up[0]))
        # The few hidden units that reach far would stretch the one scale of all: they travel beside the bytes, in float32.
        self.far = seen.inner.amax(0).topk(min(FAR_UNITS, len(up[0]) // 4)).indices.sort().values
        self.far_up, self.far_bias, self.far_down = up[0][self.far], up[1][self.far], down[0][:, self.far].T.contiguous()
        near, rest = seen.inner.index_fill(1, self.far, 0.0), down[0].index_fill(1, self.far, 0.0)
        self.inner_scale, self.inner_zero = _one_scale(near, rest)
        self.down = ByteLinear(rest, down[1], None, scale=self.inner_scale, zero=self.inner_zero)
        self.attention_norm, self.output_norm = layer.attention_norm, layer.output_norm

    def feed_forward(self, x: Tensor) -> Tensor:
        """x + down(gelu(up(x)))."""
        inner = self.up.gelu_bytes(self.up.bytes_of(x), self.inner_scale, self.inner_zero)
        far = F.gelu(F.linear(x, self.far_up, self.far_bias))
        return self.down.plus_residual(inner, torch.addmm(x, far, self.far_down))


def _one_scale(x: Tensor, weight: Tensor) -> tuple[float, int]:
    """Scale and zero point for a whole input x (T, in), with the least error of W x; the far end is clipped where that helps the rest.

    The error is counted a unit at a time, each with the length of its column of W (out, in).
    """
    low, high = float(x.min()), float(x.max())
    weights = weight.square().sum(0)
    best = (float("inf"), 1.0, 0)
    for share in SHARES:
        scale = max(high * share - low, 1e-6) / 255
        zero = min(max(round(-low / scale), 0), 255)
        back = ((x / scale).round() + zero).clamp(0, 255).sub(zero) * scale
        best = min(best, (float((back - x).square().mean(0) @ weights), scale, zero))
    return best[1], best[2]


@dataclass
class _Seen:
    """Inputs of the four linear layers of one layer in the calibration pass, (T, ...) each."""

    x: Tensor
    context: Tensor
    middle: Tensor
    inner: Tensor


class QuantizedPostNorm(Packed):
    """`PostNormPacked` in bytes; for inference only."""

    def __init__(self, plain: PostNormPacked, batch: PackedBatch) -> None:
        """batch: calibration rows."""
        super().__init__(plain.model)
        self.embed, self.heads, self.bias = plain.embed, plain.heads, plain.bias
        self.layers: list[ByteLayer] = []
        bias = once_a_length(plain.bias)
        with torch.inference_mode():
            x = self.embed(batch)
            real = batch.groups[-1].stop
            for layer in plain.layers:
                q, k, v = layer.qkv(x).chunk(3, dim=-1)
                context = attend(q, k, v, batch, self.heads, 0.0, bias)
                middle = layer.attention_norm(layer.out(context) + x)
                inner = layer.up.gelu(middle)
                after = layer.output_norm(layer.down(inner) + middle)
                self.layers.append(ByteLayer(layer, _Seen(x[:real], context[:real], middle[:real], inner[:real])))
                x = after

    def __call__(self, batch: PackedBatch) -> Tensor:
        if torch.is_grad_enabled():
            raise UsageError("precision = 'int8' is for encoding only: bytes have no gradient; load the model in float32 or bf16 to train it")
        bias = once_a_length(self.bias)
        x = self.embed(batch)
        for layer in self.layers:
            q, k, v = layer.qkv(layer.qkv.bytes_of(x)).chunk(3, dim=-1)
            context = attend(q, k, v, batch, self.heads, 0.0, bias)
            x = layer.attention_norm(layer.out.plus_residual(layer.out.bytes_of(context), x))
            x = layer.output_norm(layer.feed_forward(x))
        return x


def quantize(net: Net, rows: Sequence[Sequence[int]]) -> None:
    """Turn `net` to 8-bit inference, calibrated on token rows. The weights in `net` stay as they are; a training pass is refused.

    UsageError where the machine or the architecture has no byte kernels.
    """
    plain = net.packed
    if not isinstance(plain, PostNormPacked) or not plain.exact_gelu:
        config: Any = net.backbone.config
        raise UsageError(
            f"precision = 'int8': the torch engine knows it for encoders of the BERT kind with GELU, not for {config.model_type!r}; "
            "use bf16, or export the model: twinvec export MODEL --engine onnx --precision int8"
        )
    if not int8_works():
        raise UsageError("precision = 'int8': this processor, or this build of torch, has no fast 8-bit products (VNNI); use float32 or bf16")
    step = max(1, sum(map(len, rows)) // CALIBRATION_TOKENS)
    rows = rows[::step]
    batch = PackedBatch.of(rows)
    if not batch.groups:
        raise ModelError("precision = 'int8': the calibration texts gave no tokens")
    net.packed = QuantizedPostNorm(plain, batch)
    net.calibration = rows
