"""Padding-free forward passes for the common encoder families.

A batch of sentences of mixed length spends half its work on padding. Here the rows lie end to end: every linear layer sees the real
tokens only, and attention runs over groups of equal length. (Nested tensors on a CPU were measured 70 times slower than this loop.)
The functions read the parameters of the transformers modules themselves, so they serve training too, gradients included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twinvec.model.attention import Bias, Packed, add, attend, once_a_length, rotate, window_mask
from twinvec.model.batch import PackedBatch
from twinvec.model.decoder import decoder
from twinvec.model.linear import FastLinear, plain_lora


class PostNormLayer:
    """One layer of the BERT kind: attention, add and norm, feed-forward, add and norm."""

    def __init__(
        self, query: nn.Linear, key: nn.Linear, value: nn.Linear, out: nn.Linear, attention_norm: nn.LayerNorm,
        up: nn.Linear, down: nn.Linear, output_norm: nn.LayerNorm,
    ) -> None:  # fmt: skip
        self.qkv, self.out, self.up, self.down = FastLinear([query, key, value]), FastLinear([out]), FastLinear([up]), FastLinear([down])
        self.attention_norm, self.output_norm = attention_norm, output_norm


class PostNormPacked(Packed):
    """BERT, RoBERTa, XLM-R, DistilBERT and MPNet: `__call__(batch) -> (T, D)`."""

    def __init__(
        self,
        model: nn.Module,
        embed: Callable[[PackedBatch], Tensor],
        layers: list[PostNormLayer],
        heads: int,
        activation: Callable[[Tensor], Tensor],
        hidden_dropout: float,
        attention_dropout: float,
        attention_output_dropout: float,
        bias: Bias | None = None,
    ) -> None:
        super().__init__(model)
        self.embed, self.layers, self.heads, self.activation = embed, layers, heads, activation
        self.hidden_dropout, self.attention_dropout = hidden_dropout, attention_dropout
        self.attention_output_dropout, self.bias = attention_output_dropout, bias
        self.exact_gelu = type(activation).__name__ in ("GELUActivation", "GELU") and getattr(activation, "approximate", "none") == "none"

    def __call__(self, batch: PackedBatch) -> Tensor:
        bias = once_a_length(self.bias)
        x = F.dropout(self.embed(batch), self.hidden_dropout, self.model.training)
        for layer in self.layers:
            x = self.run(self._layer, x, layer, batch, bias)
        return x

    def _layer(self, x: Tensor, layer: PostNormLayer, batch: PackedBatch, bias: Bias | None) -> Tensor:
        training = self.model.training
        q, k, v = layer.qkv(x).chunk(3, dim=-1)
        context = attend(q, k, v, batch, self.heads, self.attention_dropout if training else 0.0, bias)
        context = F.dropout(layer.out(context), self.attention_output_dropout, training)
        x = layer.attention_norm(add(context, x))
        inner = layer.down(layer.up.gelu(x) if self.exact_gelu else self.activation(layer.up(x)))
        return layer.output_norm(add(F.dropout(inner, self.hidden_dropout, training), x))  # type: ignore[no-any-return]


def _positions_after_padding(batch: PackedBatch, pad: int) -> Tensor:
    """RoBERTa's numbering: pad + 1, pad + 2, ... over tokens that are not the padding token itself."""
    if not bool((batch.ids == pad).any()):
        return batch.positions + (pad + 1)
    out = torch.full_like(batch.positions, pad)  # the idle tokens behind the last group keep this
    for group in batch.groups:
        real = batch.ids[group.start : group.stop].view(group.rows, group.length).ne(pad).long()
        out[group.start : group.stop] = (real.cumsum(1) * real + pad).flatten()
    return out


def _bert(model: Any) -> PostNormPacked:
    config, emb = model.config, model.embeddings
    layers = [
        PostNormLayer(
            layer.attention.self.query, layer.attention.self.key, layer.attention.self.value, layer.attention.output.dense,
            layer.attention.output.LayerNorm, layer.intermediate.dense, layer.output.dense, layer.output.LayerNorm,
        )
        for layer in model.encoder.layer
    ]  # fmt: skip
    after_padding = config.model_type != "bert"

    def embed(batch: PackedBatch) -> Tensor:
        positions = _positions_after_padding(batch, emb.padding_idx) if after_padding else batch.positions
        return emb.LayerNorm(emb.word_embeddings(batch.ids) + emb.token_type_embeddings.weight[0] + emb.position_embeddings(positions))  # type: ignore[no-any-return]

    act = model.encoder.layer[0].intermediate.intermediate_act_fn
    p = config.hidden_dropout_prob
    return PostNormPacked(model, embed, layers, config.num_attention_heads, act, p, config.attention_probs_dropout_prob, p)


def _mpnet(model: Any) -> PostNormPacked:
    config, emb, encoder = model.config, model.embeddings, model.encoder
    layers = [
        PostNormLayer(
            layer.attention.attn.q, layer.attention.attn.k, layer.attention.attn.v, layer.attention.attn.o,
            layer.attention.LayerNorm, layer.intermediate.dense, layer.output.dense, layer.output.LayerNorm,
        )
        for layer in encoder.layer
    ]  # fmt: skip

    def embed(batch: PackedBatch) -> Tensor:
        return emb.LayerNorm(emb.word_embeddings(batch.ids) + emb.position_embeddings(_positions_after_padding(batch, emb.padding_idx)))  # type: ignore[no-any-return]

    def bias(length: int) -> Tensor:
        weight = encoder.relative_attention_bias.weight
        return encoder.compute_position_bias(weight.new_empty(1, length, 1))[0]  # type: ignore[no-any-return]

    act = encoder.layer[0].intermediate.intermediate_act_fn
    p = config.hidden_dropout_prob
    return PostNormPacked(model, embed, layers, config.num_attention_heads, act, p, config.attention_probs_dropout_prob, p, bias)


def _distilbert(model: Any) -> PostNormPacked:
    config, emb = model.config, model.embeddings
    layers = [
        PostNormLayer(
            layer.attention.q_lin, layer.attention.k_lin, layer.attention.v_lin, layer.attention.out_lin,
            layer.sa_layer_norm, layer.ffn.lin1, layer.ffn.lin2, layer.output_layer_norm,
        )
        for layer in model.transformer.layer
    ]  # fmt: skip

    def embed(batch: PackedBatch) -> Tensor:
        return emb.LayerNorm(emb.word_embeddings(batch.ids) + emb.position_embeddings(batch.positions))  # type: ignore[no-any-return]

    act = model.transformer.layer[0].ffn.activation
    # DistilBERT drops nothing after the attention's output layer.
    return PostNormPacked(model, embed, layers, config.n_heads, act, config.dropout, config.attention_dropout, 0.0)


class ModernBertPacked(Packed):
    """ModernBERT: norms before the blocks, rotary positions, gated feed-forward, local attention in most layers."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.config = model.config
        found = [linear for layer in model.layers for linear in (layer.attn.Wqkv, layer.attn.Wo, layer.mlp.Wi, layer.mlp.Wo)]
        self.linears = {linear: FastLinear([linear]) for linear in found}

    def __call__(self, batch: PackedBatch) -> Tensor:
        model: Any = self.model
        x = model.embeddings.drop(model.embeddings.norm(model.embeddings.tok_embeddings(batch.ids)))
        rotary = {kind: model.rotary_emb(x, batch.positions.unsqueeze(0), kind) for kind in set(self.config.layer_types)}
        # |i - j| <= sliding_window, which here is half of `local_attention`.
        local = once_a_length(lambda length: window_mask(length, self.config.sliding_window, x))
        for layer in model.layers:
            cos, sin = (part[0].unsqueeze(1) for part in rotary[layer.attention_type])
            x = self.run(self._layer, x, layer, batch, cos, sin, local if layer.attention_type == "sliding_attention" else None)
        return model.final_norm(x)  # type: ignore[no-any-return]

    def _layer(self, x: Tensor, layer: Any, batch: PackedBatch, cos: Tensor, sin: Tensor, bias: Bias | None) -> Tensor:
        heads, linears = self.config.num_attention_heads, self.linears
        qkv = linears[layer.attn.Wqkv](layer.attn_norm(x)).view(len(x), 3, heads, -1)
        q, k = rotate(qkv[:, 0], cos, sin), rotate(qkv[:, 1], cos, sin)
        dropout = layer.attn.attention_dropout if self.model.training else 0.0
        context = attend(q.flatten(1), k.flatten(1), qkv[:, 2].flatten(1), batch, heads, dropout, bias)
        x = x + layer.attn.out_drop(linears[layer.attn.Wo](context))
        inner, gate = linears[layer.mlp.Wi](layer.mlp_norm(x)).chunk(2, dim=-1)
        found: Tensor = x + linears[layer.mlp.Wo](layer.mlp.drop(layer.mlp.act(inner) * gate))
        return found


_FAMILIES: dict[str, Callable[[Any], Packed | None]] = {
    "bert": _bert,
    "roberta": _bert,
    "xlm-roberta": _bert,
    "camembert": _bert,
    "mpnet": _mpnet,
    "distilbert": _distilbert,
    "modernbert": ModernBertPacked,
    "llama": decoder,
    "mistral": decoder,
    "qwen2": decoder,
    "qwen3": decoder,
}


def packed_forward(model: nn.Module) -> Packed | None:
    """The padding-free forward of a transformers model, or None when its family has none, or it is changed in a way unknown here."""
    config: Any = model.config
    build = _FAMILIES.get(config.model_type)
    if build is None or getattr(config, "is_decoder", False) or getattr(config, "position_embedding_type", "absolute") not in ("absolute", None):
        return None
    adapted = [name for name, module in model.named_modules() if plain_lora(module)]
    for name, module in model.named_modules():
        # Plain LoRA layers are known (FastLinear computes them); any other adapter of peft is left to its own forward.
        if type(module).__module__.startswith("peft") and not plain_lora(module) and not any(name.startswith(f"{one}.") for one in adapted):
            return None
    return build(model)
