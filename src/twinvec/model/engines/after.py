"""What follows the backbone, in numpy: pooling, Dense heads, unit rows. The same numbers as pooling.py and heads.py, without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.errors import ModelError, choose

Array = npt.NDArray[Any]


def pool(states: Array, lengths: Array, modes: Sequence[str], skip: int = 0) -> Array:
    """states (B, L, D) float32, real tokens first; lengths (B,), each 1 or more; returns float32 (B, D * len(modes)).

    skip: first tokens of each row that are left out. A row without remaining tokens gives zeros. Formulas and sources: model/pooling.py.
    """
    skips = np.minimum(lengths, skip)
    counts = (lengths - skips).astype(np.float32)
    whole = bool((lengths == states.shape[1]).all()) and not skip
    at = np.arange(states.shape[1])
    mask = (at < lengths[:, None]) & (at >= skips[:, None])
    rows = np.arange(len(states))
    some = (counts > 0)[:, None]

    def total(weights: Array | None) -> Any:
        # A product with a row of weights is one pass over the states, and makes no masked copy of them.
        if whole and weights is None:
            return states.sum(1)
        factors = mask if weights is None else weights
        return np.matmul(factors[:, None, :].astype(np.float32), states)[:, 0]

    def one(mode: str) -> Any:
        if mode == "cls":
            return states[rows, np.minimum(skips, states.shape[1] - 1)] * some
        if mode == "last_token":
            return states[rows, lengths - 1] * some
        if mode == "max":
            # where=, never a product with the mask: a padded zero would beat a negative maximum.
            found = states.max(1) if whole else np.max(states, axis=1, initial=-np.inf, where=mask[:, :, None])
            return np.where(some, found, np.float32(0))
        if mode == "mean":
            return total(None) / np.maximum(counts, 1)[:, None]
        if mode == "mean_sqrt_len":
            return total(None) / np.sqrt(np.maximum(counts, 1))[:, None]
        if mode == "weighted_mean":
            weights = mask * (at + 1)
            return total(weights) / np.maximum(weights.sum(1), 1)[:, None].astype(np.float32)
        raise ModelError(f"pooling = {mode!r} is not known here; update twinvec")

    found: Array = np.concatenate([one(mode) for mode in modes], axis=1).astype(np.float32, copy=False)
    return found


def _gelu(x: Array) -> Array:
    from scipy.special import erf

    return x * 0.5 * (1 + erf(x / np.sqrt(2)))  # type: ignore[no-any-return]


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-np.clip(x, -80, 80)))  # type: ignore[no-any-return]


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "torch.nn.modules.activation.Tanh": np.tanh,
    "torch.nn.modules.activation.ReLU": lambda x: np.maximum(x, 0),
    "torch.nn.modules.activation.GELU": _gelu,
    "torch.nn.modules.activation.SiLU": lambda x: x * _sigmoid(x),
    "torch.nn.modules.activation.Sigmoid": _sigmoid,
    "torch.nn.modules.linear.Identity": lambda x: x,
}


@dataclass(frozen=True)
class Head:
    """A Dense head: weight (out, in), bias (out,) or None, and a residual that is x itself ("same"), a matrix (out, in), or None."""

    weight: Array
    bias: Array | None
    activation: str
    residual: Array | str | None = None

    def __call__(self, x: Array) -> Array:
        out = x @ self.weight.T
        out = ACTIVATIONS[self.activation](out if self.bias is None else out + self.bias)
        if self.residual is None:
            return out
        return out + (x if isinstance(self.residual, str) else x @ self.residual.T)

    @staticmethod
    def of(config: dict[str, Any], arrays: dict[str, Array]) -> Head:
        """From the head's config.json and its weights (the names that torch gives them)."""
        activation = choose("activation_function of a Dense head", str(config["activation_function"]), ACTIVATIONS, ModelError)
        residual: Array | str | None = None
        if config.get("use_residual"):
            residual = arrays.get("residual.weight", "same")
        return Head(arrays["linear.weight"], arrays.get("linear.bias"), activation, residual)


def unit_rows(x: Array) -> Array:
    """x (B, D) with rows of length 1; a zero row stays zero."""
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(length > 0, length, 1)  # type: ignore[no-any-return]
