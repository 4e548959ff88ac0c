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

from twinvec.model.batch import Bucket, PackedBatch
from twinvec.model.linear import FastLinear

Bias = Callable[[int], Tensor]


class PostNormLayer:
    """One layer of the BERT kind: attention, add and norm, feed-forward, add and norm."""

    def __init__(
        self, query: nn.Linear, key: nn.Linear, value: nn.Linear, out: nn.Linear, attention_norm: nn.LayerNorm,
        up: nn.Linear, down: nn.Linear, output_norm: nn.LayerNorm,
    ) -> None:  # fmt: skip
        self.qkv, self.out, self.up, self.down = FastLinear([query, key, value]), FastLinear([out]), FastLinear([up]), FastLinear([down])
        self.attention_norm, self.output_norm = attention_norm, output_norm


def attend(q: Tensor, k: Tensor, v: Tensor, batch: PackedBatch, heads: int, dropout: float, bias: Callable[[int], Tensor | None] | None) -> Tensor:
    """q, k, v: (T, D), rows end to end; returns (T, D). `bias(length)` gives an additive mask (H or 1, L, L), or None.

    Scores are scaled by 1 / sqrt(D / heads) (Vaswani et al. 2017, eq. 1). Without gradients each group of equal length is one call of a kernel
    that needs no mask. With gradients groups of similar length are padded into one block first, for fewer and larger operations
    (on a quiet machine no faster than the groups: docs/decisions.md has both figures).
    """
    training = torch.is_grad_enabled() and len(batch.groups) > 1
    parts = [_attend_block(q, k, v, bucket, heads, dropout, bias) for bucket in batch.buckets] if training else []
    for group in () if training else batch.groups:
        one, two, three = (x[group.start : group.stop].view(group.rows, group.length, heads, -1).transpose(1, 2) for x in (q, k, v))
        mask = bias(group.length) if bias is not None else None
        if mask is not None:
            mask = mask.unsqueeze(0).expand(group.rows, heads, -1, -1)
        attended = F.scaled_dot_product_attention(one, two, three, attn_mask=mask, dropout_p=dropout)
        parts.append(attended.transpose(1, 2).reshape(group.rows * group.length, -1))
    idle = len(q) - (batch.groups[-1].stop if batch.groups else 0)
    if idle:
        parts.append(parts[0].new_zeros(idle, parts[0].shape[1]) if parts else q.new_zeros(idle, q.shape[1]))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_block(q: Tensor, k: Tensor, v: Tensor, bucket: Bucket, heads: int, dropout: float, bias: Callable[[int], Tensor | None] | None) -> Tensor:
    """Attention over one padded block; padding is masked as a key, and what it attends to itself is not read back."""
    size = bucket.rows * bucket.length
    one, two, three = (
        x.new_zeros(size, x.shape[1])
        .index_copy(0, bucket.slots, x[bucket.start : bucket.stop])
        .view(bucket.rows, bucket.length, heads, -1)
        .transpose(1, 2)
        for x in (q, k, v)
    )
    mask = bucket.real[:, None, None, :]
    extra = bias(bucket.length) if bias is not None else None
    if extra is not None:
        mask = extra.unsqueeze(0).masked_fill(~mask, float("-inf"))
    attended = F.scaled_dot_product_attention(one, two, three, attn_mask=mask, dropout_p=dropout)
    return attended.transpose(1, 2).reshape(size, -1)[bucket.slots]


class PostNormPacked:
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
        self.model, self.embed, self.layers, self.heads, self.activation = model, embed, layers, heads, activation
        self.hidden_dropout, self.attention_dropout = hidden_dropout, attention_dropout
        self.attention_output_dropout, self.bias = attention_output_dropout, bias
        self.exact_gelu = type(activation).__name__ in ("GELUActivation", "GELU") and getattr(activation, "approximate", "none") == "none"

    def __call__(self, batch: PackedBatch) -> Tensor:
        training = self.model.training
        bias = _once_a_length(self.bias)
        x = F.dropout(self.embed(batch), self.hidden_dropout, training)
        for layer in self.layers:
            q, k, v = layer.qkv(x).chunk(3, dim=-1)
            context = attend(q, k, v, batch, self.heads, self.attention_dropout if training else 0.0, bias)
            context = F.dropout(layer.out(context), self.attention_output_dropout, training)
            x = layer.attention_norm(_add(context, x))
            inner = layer.down(layer.up.gelu(x) if self.exact_gelu else self.activation(layer.up(x)))
            x = layer.output_norm(_add(F.dropout(inner, self.hidden_dropout, training), x))
        return x


def _add(fresh: Tensor, x: Tensor) -> Tensor:
    """fresh + x; in place on the fresh tensor where no gradient needs it."""
    return fresh + x if torch.is_grad_enabled() else fresh.add_(x)


def _once_a_length(bias: Bias | None) -> Bias | None:
    if bias is None:
        return None
    made: dict[int, Tensor] = {}

    def lookup(length: int) -> Tensor:
        if length not in made:
            made[length] = bias(length)
        return made[length]

    return lookup


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


class ModernBertPacked:
    """ModernBERT: norms before the blocks, rotary positions, gated feed-forward, local attention in most layers."""

    def __init__(self, model: Any) -> None:
        self.model, self.config = model, model.config
        found = [linear for layer in model.layers for linear in (layer.attn.Wqkv, layer.attn.Wo, layer.mlp.Wi, layer.mlp.Wo)]
        self.linears = {linear: FastLinear([linear]) for linear in found}

    def __call__(self, batch: PackedBatch) -> Tensor:
        model, heads = self.model, self.config.num_attention_heads
        x = model.embeddings.drop(model.embeddings.norm(model.embeddings.tok_embeddings(batch.ids)))
        rotary = {kind: model.rotary_emb(x, batch.positions.unsqueeze(0), kind) for kind in set(self.config.layer_types)}
        linears = self.linears
        local = _once_a_length(lambda length: self._window(length, x))
        for layer in model.layers:
            qkv = linears[layer.attn.Wqkv](layer.attn_norm(x)).view(len(x), 3, heads, -1)
            cos, sin = (part[0].unsqueeze(1) for part in rotary[layer.attention_type])
            q, k = _rotate(qkv[:, 0], cos, sin), _rotate(qkv[:, 1], cos, sin)
            bias = local if layer.attention_type == "sliding_attention" else None
            dropout = layer.attn.attention_dropout if model.training else 0.0
            limit = self.config.sliding_window
            context = attend(
                q.flatten(1), k.flatten(1), qkv[:, 2].flatten(1), batch, heads, dropout, _beyond(bias, limit) if bias is not None else None
            )
            x = x + layer.attn.out_drop(linears[layer.attn.Wo](context))
            inner, gate = linears[layer.mlp.Wi](layer.mlp_norm(x)).chunk(2, dim=-1)
            x = x + linears[layer.mlp.Wo](layer.mlp.drop(layer.mlp.act(inner) * gate))
        return model.final_norm(x)  # type: ignore[no-any-return]

    def _window(self, length: int, like: Tensor) -> Tensor:
        """(1, L, L), 0 within the window and -inf beyond: |i - j| <= sliding_window, half of `local_attention`."""
        at = torch.arange(length, device=like.device)
        far = (at[:, None] - at[None, :]).abs() > self.config.sliding_window
        return torch.zeros(1, length, length, dtype=like.dtype, device=like.device).masked_fill(far, float("-inf"))


def _beyond(bias: Bias, limit: int) -> Callable[[int], Tensor | None]:
    """No mask at all where a row is short enough to be seen whole: the kernel without a mask is faster."""
    return lambda length: bias(length) if length - 1 > limit else None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (T, H, d), cos and sin (T, 1, d): rotary positions (Su et al. 2021, eq. 34), computed in float32."""
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


_FAMILIES: dict[str, Callable[[Any], Callable[[PackedBatch], Tensor]]] = {
    "bert": _bert,
    "roberta": _bert,
    "xlm-roberta": _bert,
    "camembert": _bert,
    "mpnet": _mpnet,
    "distilbert": _distilbert,
    "modernbert": ModernBertPacked,
}


def packed_forward(model: nn.Module) -> Callable[[PackedBatch], Tensor] | None:
    """The padding-free forward of a transformers model, or None when its family has none (or it is a decoder, or wears adapters)."""
    config: Any = model.config
    build = _FAMILIES.get(config.model_type)
    if build is None or getattr(config, "is_decoder", False) or getattr(config, "position_embedding_type", "absolute") not in ("absolute", None):
        return None
    if any(type(module).__module__.startswith("peft") for module in model.modules()):
        return None
    return build(model)
