"""Putting a text back together: the language head, its loss, and the decoders of RetroMAE and TSDAE. Tensors in, a sum of losses out.

Everything here is thrown away after pretraining; the encoder is what stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twinvec.errors import TrainingError

LOGITS_BYTES = 64 << 20
"""Logits that exist at once, in bytes of float32. Those of a whole micro-batch can be gigabytes (2,048 tokens x 250,000 words: 2 GB)."""
Product = Callable[[Tensor, Tensor, "Tensor | None"], Tensor]
"""a (n, k), b (m, k), bias (m,) or None -> a b' + bias (n, m)."""
START_DEVIATION = 0.02  # of fresh weights: BERT 2019's initializer_range


class LanguageHead(nn.Module):
    """Hidden states to word logits: E norm(act(W h + b)) + c, with E the encoder's own input embedding. BERT 2019's masked-LM head.

    dense: D -> width of the embedding; bias: (V,). E is given at each call and never owned, so it is trained and saved once, with the encoder.
    """

    def __init__(self, hidden: int, width: int, vocabulary: int, activation: Callable[[Tensor], Tensor] = F.gelu, eps: float = 1e-12) -> None:
        super().__init__()
        self.activation = activation
        self.dense, self.norm, self.bias = nn.Linear(hidden, width), nn.LayerNorm(width, eps=eps), nn.Parameter(torch.zeros(vocabulary))
        start(self)

    def forward(self, states: Tensor) -> Tensor:
        """states (n, D) -> (n, width), what meets the embedding."""
        return cast(Tensor, self.norm(self.activation(self.dense(states))))

    def logits(self, states: Tensor, embedding: Tensor) -> Tensor:
        """states (n, D), embedding (V, width) -> (n, V). For looking at; `loss` never holds them all."""
        return F.linear(self(states), embedding, self.bias)

    def loss(self, states: Tensor, embedding: Tensor, targets: Tensor, product: Product = F.linear) -> Tensor:
        """Sum over n of -log softmax(logits_i) at targets_i, a scalar in float32 or better. states (n, D), targets (n,) int64."""
        return word_loss(self(states), embedding, self.bias, targets, product)


def word_loss(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, product: Product = F.linear, block: int | None = None) -> Tensor:
    """Sum of cross entropies of softmax(hidden weight' + bias) at targets; hidden (n, D), weight (V, D), bias (V,), targets (n,) int64.

    Works through blocks of rows and keeps gradients, not logits: with V in the tens of thousands the logits are the largest tensor of the step.
    n = 0 gives 0, connected to its inputs.
    """
    if hidden.ndim != 2 or targets.shape != hidden.shape[:1] or weight.shape != (len(bias), hidden.shape[1]):
        raise TrainingError(
            f"word loss: needs hidden (n, D), targets (n,), weight (V, D) and bias (V,), "
            f"got {tuple(hidden.shape)}, {tuple(targets.shape)}, {tuple(weight.shape)} and {tuple(bias.shape)}"
        )
    if targets.device.type == "cpu" and len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < len(bias):
        raise TrainingError(f"word loss: targets run from {int(targets.min())} to {int(targets.max())}, the vocabulary has {len(bias)} entries")
    block = block or max(1, LOGITS_BYTES // (4 * len(bias)))
    return cast(Tensor, _WordLoss.apply(hidden, weight, bias, targets, block, product, torch.is_grad_enabled()))  # type: ignore[no-untyped-call]


class _WordLoss(torch.autograd.Function):
    """Gradients of a block are made while its logits exist: dlogits = softmax - onehot, dh = dlogits W, dW = dlogits' h, db = sum dlogits."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, block: int, product: Product, training: bool) -> Tensor:
        wide = torch.promote_types(weight.dtype, torch.float32)
        narrow = torch.get_autocast_dtype(hidden.device.type) if torch.is_autocast_enabled(hidden.device.type) else weight.dtype
        needs = [training and need for need in ctx.needs_input_grad[:3]]
        h, w, b = hidden.to(narrow), weight.to(narrow), bias.to(narrow)
        turned = w.t().contiguous() if needs[0] else w
        grads = [torch.zeros_like(x, dtype=wide) if need else None for x, need in zip((hidden, weight, bias), needs, strict=True)]
        total = torch.zeros((), dtype=wide, device=hidden.device)
        for at in range(0, len(h), block):
            some, aim = h[at : at + block], targets[at : at + block, None]
            logits = product(some, w, b).to(wide)
            top, right = logits.amax(1, keepdim=True), logits.gather(1, aim)
            slope = logits.sub_(top).exp_()  # in place: one pass of exponentials serves loss and gradient
            sums = slope.sum(1, keepdim=True)
            total += (sums.log() + top - right).sum()
            if not any(needs):
                continue
            slope /= sums
            slope.scatter_add_(1, aim, torch.full_like(aim, -1, dtype=wide))
            if grads[2] is not None:
                grads[2] += slope.sum(0)
            slope = slope.to(narrow)
            if grads[0] is not None:
                grads[0][at : at + block] = product(slope, turned, None)
            if grads[1] is not None:
                grads[1] += product(slope.t().contiguous(), some.t().contiguous(), None)
        ctx.save_for_backward(*(grad for grad in grads if grad is not None))
        ctx.needs, ctx.kinds = needs, (hidden.dtype, weight.dtype, bias.dtype)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        kept = iter(ctx.saved_tensors)
        grads = [(next(kept) * slopes[0]).to(kind) if need else None for need, kind in zip(ctx.needs, ctx.kinds, strict=True)]
        return (*grads, None, None, None, None)


def start(module: nn.Module) -> None:
    """Fresh weights as BERT begins: matrices normal with deviation 0.02, biases 0, norms 1."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=START_DEVIATION)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)


class TokenPositions(nn.Module):
    """Token and position embeddings for a decoder: norm(W E[ids] + P[position]), E the encoder's input embedding, W only where widths differ."""

    def __init__(self, hidden: int, width: int, positions: int, eps: float) -> None:
        super().__init__()
        self.positions, self.norm = nn.Embedding(positions, hidden), nn.LayerNorm(hidden, eps=eps)
        self.widen = nn.Linear(width, hidden, bias=False) if width != hidden else nn.Identity()
        start(self)

    def forward(self, embedded: Tensor, positions: Tensor) -> Tensor:
        """embedded (..., width) rows of E; positions (...), from 0; returns (..., D)."""
        return cast(Tensor, self.norm(self.widen(embedded) + self.positions(positions)))


class DecoderLayer(nn.Module):
    """One layer of the BERT kind with separate queries and keys: attention, add and norm, feed-forward, add and norm (Vaswani et al. 2017)."""

    def __init__(self, hidden: int, heads: int, intermediate: int, activation: Callable[[Tensor], Tensor], eps: float, dropout: float) -> None:
        super().__init__()
        self.heads, self.activation, self.dropout = heads, activation, dropout
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, intermediate), nn.Linear(intermediate, hidden)
        self.attention_norm, self.output_norm = nn.LayerNorm(hidden, eps=eps), nn.LayerNorm(hidden, eps=eps)
        start(self)

    def forward(self, queries: Tensor, keys: Tensor, seen: Tensor) -> Tensor:
        """queries (B, L, D), keys (B, K, D), seen (B, L, K) True where a query may look, at least once a query; returns (B, L, D)."""
        q, k, v = (
            x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (self.query(queries), self.key(keys), self.value(keys))
        )  # (B, H, L or K, d)
        share = self.dropout if self.training else 0.0
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=seen.unsqueeze(1), dropout_p=share)
        x = self.attention_norm(queries + F.dropout(self.out(found.transpose(1, 2).flatten(2)), share))
        inner = self.down(self.activation(self.up(x)))
        return cast(Tensor, self.output_norm(x + F.dropout(inner, share)))


class EnhancedDecoder(nn.Module):
    """RetroMAE's one-layer decoder with enhanced decoding. Xiao et al. 2022, section 3.3.

    Queries H1: h + p_i for every position i, with h the sentence vector. Keys H2: h, then e_j + p_j. Position i sees h and its own sample of
    the other tokens, so every token of the text is predicted, each from another view of it.
    Departures, as in the authors' code: norms after the sums of embeddings. Of our own: the first special token is no key (h stands for it),
    nor is any other special token; a vector of another width than the tokens passes a linear layer first.
    """

    def __init__(
        self, vector: int, hidden: int, width: int, positions: int, *, heads: int, intermediate: int, activation: Callable[[Tensor], Tensor],
        eps: float, dropout: float,
    ) -> None:  # fmt: skip
        super().__init__()
        self.inward = nn.Linear(vector, hidden) if vector != hidden else nn.Identity()
        self.embed = TokenPositions(hidden, width, positions, eps)
        start(self)
        self.layer = DecoderLayer(hidden, heads, intermediate, activation, eps, dropout)
        self.dropout = dropout

    def forward(self, vectors: Tensor, embedded: Tensor, visible: Tensor) -> Tensor:
        """vectors (B, V); embedded (B, L, width), rows of the encoder's input embedding; visible (B, L, L) bool; returns states (B, L, D)."""
        rows, length = visible.shape[:2]
        if embedded.shape[:2] != (rows, length) or len(vectors) != rows or visible.shape != (rows, length, length):
            raise TrainingError(
                f"enhanced decoder: needs vectors (B, V), embedded (B, L, width) and visible (B, L, L), "
                f"got {tuple(vectors.shape)}, {tuple(embedded.shape)} and {tuple(visible.shape)}"
            )
        places = torch.arange(length, device=visible.device)
        sentence = self.inward(vectors).unsqueeze(1).to(embedded.dtype)  # (B, 1, D)
        share = self.dropout if self.training else 0.0
        queries = F.dropout(self.embed.norm(sentence + self.embed.positions(places)), share)
        keys = torch.cat([sentence, F.dropout(self.embed(embedded, places), share)], dim=1)
        seen = torch.cat([visible.new_ones(rows, length, 1), visible], dim=2)
        return cast(Tensor, self.layer(queries, keys, seen))


class VectorAttention(nn.Module):
    """TSDAE's cross attention, whose only key is the sentence vector: norm(x + W_o (W_v s + b_v) + b_o). Wang et al. 2021, section 3.

    The softmax over one key is 1 whatever query and key are, so neither has weights here; sentence-transformers carries them, without effect.
    """

    def __init__(self, vector: int, hidden: int, eps: float) -> None:
        super().__init__()
        self.value, self.out, self.norm = nn.Linear(vector, hidden), nn.Linear(hidden, hidden), nn.LayerNorm(hidden, eps=eps)
        start(self)

    def forward(self, x: Tensor, vectors: Tensor, row: Tensor, dropout: float = 0.0) -> Tensor:
        """x (T, D), vectors (B, V), row (T,) the row each token belongs to; returns (T, D)."""
        given = F.dropout(self.out(self.value(vectors))[row], dropout)
        return cast(Tensor, self.norm(x + given))
