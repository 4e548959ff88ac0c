"""Layers after pooling."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from twinvec.errors import ModelError, choose

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "torch.nn.modules.activation.Tanh": nn.Tanh,
    "torch.nn.modules.activation.ReLU": nn.ReLU,
    "torch.nn.modules.activation.GELU": nn.GELU,
    "torch.nn.modules.activation.SiLU": nn.SiLU,
    "torch.nn.modules.activation.Sigmoid": nn.Sigmoid,
    "torch.nn.modules.linear.Identity": nn.Identity,
}


class Dense(nn.Module):
    """activation(W x + b), x (B, in) -> (B, out); with `residual` plus x itself (through R when the sizes differ)."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, activation: str = "torch.nn.modules.activation.Tanh", residual: bool = False
    ) -> None:
        super().__init__()
        choose("activation_function of a Dense head", activation, ACTIVATIONS, ModelError)
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.activation_name, self.use_residual = activation, residual
        self.activation = ACTIVATIONS[activation]()
        if residual and in_features != out_features:
            self.residual = nn.Linear(in_features, out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.activation(self.linear(x))
        if not self.use_residual:
            return out
        return out + (self.residual(x) if hasattr(self, "residual") else x)

    def config(self) -> dict[str, Any]:
        """The config.json of sentence-transformers' Dense."""
        out: dict[str, Any] = {
            "in_features": self.linear.in_features,
            "out_features": self.linear.out_features,
            "bias": self.linear.bias is not None,
            "activation_function": self.activation_name,
        }
        if self.use_residual:
            out["use_residual"] = True
        return out

    @staticmethod
    def from_config(config: dict[str, Any]) -> Dense:
        if config.get("module_input_name", "sentence_embedding") != "sentence_embedding":
            raise ModelError(f"a Dense head over {config['module_input_name']!r} is not known here; only heads over the sentence vector are")
        # Old spelling: torch.nn.Tanh; new: torch.nn.modules.activation.Tanh.
        name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
        short = {full.rsplit(".", 1)[1]: full for full in ACTIVATIONS}
        name = short.get(name.rsplit(".", 1)[-1], name) if name.startswith("torch.nn.") else name
        sizes = [config.get(name) for name in ("in_features", "out_features")]
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            raise ModelError(f"a Dense head needs in_features and out_features, found {sizes[0]!r} and {sizes[1]!r}")
        return Dense(
            int(config["in_features"]), int(config["out_features"]), bool(config.get("bias", True)), name, bool(config.get("use_residual", False))
        )


def unit_rows(x: Tensor) -> Tensor:
    """x (B, D) with rows of length 1; a zero row stays zero. Computed in float32, so a tiny half-precision row is not 0/0."""
    wide = x if x.dtype == torch.float64 else x.float()
    length = wide.norm(dim=-1, keepdim=True)
    return wide / torch.where(length > 0, length, torch.ones_like(length))
