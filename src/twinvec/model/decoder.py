"""The padding-free forward of decoder language models: Llama, Mistral, Qwen2, Qwen3."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from twinvec.model.attention import Bias, Packed, add, attend, once_a_length, rotate, window_mask
from twinvec.model.batch import PackedBatch
from twinvec.model.linear import FastLinear

_STEADY_ROPES = ("default", "linear", "llama3", "yarn")  # the others turn by the longest row of a batch, so rows would depend on their neighbours


class DecoderLayer:
    """Norm, causal attention, add; norm, gated feed-forward (SwiGLU, Shazeer 2020), add. Reads the weights of the transformers layer."""

    def __init__(self, layer: Any, window: int | None) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.layer, self.attention, self.mlp, self.window = layer, attention, mlp, window
        self.qkv, self.out = FastLinear([attention.q_proj, attention.k_proj, attention.v_proj]), FastLinear([attention.o_proj])
        self.gate_up, self.down = FastLinear([mlp.gate_proj, mlp.up_proj]), FastLinear([mlp.down_proj])
        self.width = int(attention.head_dim)
        self.heads = int(attention.config.num_attention_heads)
        self.kv_heads = int(attention.config.num_key_value_heads)

    def __call__(self, x: Tensor, batch: PackedBatch, cos: Tensor, sin: Tensor, bias: Bias | None) -> Tensor:
        """x (T, D); cos, sin (T, 1, d); returns (T, D)."""
        kv = self.kv_heads * self.width
        q, k, v = torch.split(self.qkv(self.layer.input_layernorm(x)), [self.heads * self.width, kv, kv], dim=-1)
        q, k = (part.view(len(x), -1, self.width) for part in (q, k))
        if hasattr(self.attention, "q_norm"):  # Qwen3: a norm over each head
            q, k = self.attention.q_norm(q), self.attention.k_norm(k)
        q, k = rotate(q, cos, sin).flatten(1).to(v.dtype), rotate(k, cos, sin).flatten(1).to(v.dtype)
        dropout = self.attention.attention_dropout if self.attention.training else 0.0
        context = attend(q, k, v, batch, self.heads, dropout, bias, kv_heads=self.kv_heads, causal=True)
        x = add(self.out(context), x)
        gate, up = self.gate_up(self.layer.post_attention_layernorm(x)).chunk(2, dim=-1)
        return add(self.down(self.mlp.act_fn(gate) * up), x)


class DecoderPacked(Packed):
    """Embeddings, layers with rotary positions, RMS norm: `__call__(batch) -> (T, D)`."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.layers = [DecoderLayer(layer, window) for layer, window in zip(model.layers, _windows(model.config), strict=True)]

    def __call__(self, batch: PackedBatch) -> Tensor:
        model: Any = self.model
        x = model.embed_tokens(batch.ids)
        cos, sin = (part[0].unsqueeze(1) for part in model.rotary_emb(x, batch.positions.unsqueeze(0)))
        windows = {layer.window for layer in self.layers if layer.window is not None}
        biases: dict[int | None, Bias | None] = {None: None}
        for window in windows:
            biases[window] = once_a_length(_causal_window(window, x))
        for layer in self.layers:
            x = self.run(layer, x, batch, cos, sin, biases[layer.window])
        return model.norm(x)  # type: ignore[no-any-return]


def _causal_window(window: int, like: Tensor) -> Bias:
    """A token sees itself and the `window` - 1 before it (transformers' sliding_window counts the token itself)."""
    return lambda length: window_mask(length, window - 1, like, causal=True)


def _windows(config: Any) -> list[int | None]:
    """The sliding window of each layer, None where a token sees all before it."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return [window if config.model_type == "mistral" else None] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in kinds]


def decoder(model: Any) -> DecoderPacked | None:
    """None for what this forward does not know: positions that depend on the longest row, other layers, bidirectional attention."""
    rope = getattr(model.config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in _STEADY_ROPES or getattr(model.config, "is_causal", True) is False:
        return None
    return DecoderPacked(model)
