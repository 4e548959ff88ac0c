"""TSDAE: delete most of a text, and let a decoder that sees the sentence vector only write it all again. Wang et al. 2021."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twinvec.errors import UsageError
from twinvec.model.attention import Bias, attend, once_a_length
from twinvec.model.batch import PackedBatch, chunks
from twinvec.model.encoder import Encoder
from twinvec.model.net import Net
from twinvec.model.packed import PostNormLayer, PostNormPacked
from twinvec.model.states import caller_order
from twinvec.objectives.masking import apart, choose_tokens, choose_words, end_to_end, how_many
from twinvec.objectives.reconstruction import DecoderLayer, TokenPositions, VectorAttention
from twinvec.training.pretraining.mlm import counts_of
from twinvec.training.pretraining.vocabulary import (
    activation_of,
    check_share,
    dropout_of,
    embedding_of,
    heads_of,
    intermediate_of,
    language_head,
    norm_eps,
    position_table,
    product,
    vocabulary_of,
)


@dataclass(frozen=True)
class NoisyRows:
    """A prepared batch. noisy: rows with tokens deleted, which the encoder reads; rows: whole, which the decoder writes; those in `used` count."""

    noisy: list[list[int]]
    rows: list[list[int]]
    used: list[int]

    @property
    def total(self) -> int:
        """Tokens to write in the whole batch (all but the first of each row), which the loss is divided by."""
        return sum(len(self.rows[i]) - 1 for i in self.used)


@dataclass(frozen=True)
class NoisyMicro:
    """Some rows of a batch: noisy rows, whole rows, total of the whole batch."""

    noisy: list[list[int]]
    rows: list[list[int]]
    total: int


class TSDAE:
    """The TSDAE task: mean over the batch's tokens of -log p(token | sentence vector, tokens before it).

    share: of the text tokens, those that the encoder never sees, 0.6 (the paper's best); at least one is left. The paper deletes words:
    whole_word does so here. (The example in sentence-transformers' documentation keeps 60 % instead.) The sentence vector is the model's own,
    before Normalize.

    decoder: "tied" reads with the encoder's own layers under a causal mask, with a fresh cross attention in each (the paper's best: tied
    parameters); "fresh" has `decoder_layers` layers of its own. "auto" ties where the family is of the BERT kind (padding-free, norms after the
    layers) and no number of layers is asked for, else 1 fresh layer (assumption!). `heads`: all of it that is not the encoder's.
    """

    name = "tsdae"

    def __init__(
        self, encoder: Encoder, *, share: float = 0.6, whole_word: bool = False, decoder: str = "auto", decoder_layers: int | None = None
    ) -> None:
        self.share = check_share(self.name, "share", share)
        self.vocabulary = vocabulary_of(encoder)
        self.continues = self.vocabulary.continues(self.name) if whole_word else None
        self.pad = encoder.net.packed is None
        self.tied = _tied(encoder, decoder, decoder_layers)
        language, _ = language_head(encoder)
        self.heads = nn.ModuleDict({"language": language, "decoder": _decoder(encoder, self.tied, decoder_layers)})

    def prepare(self, rows: list[list[int]], rng: np.random.Generator) -> NoisyRows:
        """Delete tokens of token rows (special tokens included, already cut). All chance comes from `rng`; runs in any thread."""
        ids, lengths = end_to_end(rows)
        allowed = ~self.vocabulary.special[ids] | (ids == self.vocabulary.unknown_id)
        counts = counts_of(allowed, lengths)
        wanted = how_many(counts, self.share, keep=1)
        if self.continues is not None:
            gone = choose_words(ids, allowed, lengths, wanted, self.continues, rng)
        else:
            gone = choose_tokens(allowed, lengths, wanted, rng)
        parts = zip(apart(ids, lengths), apart(gone.astype(np.int64), lengths), strict=True)
        noisy = [part[out == 0].tolist() for part, out in parts]
        used = [i for i, row in enumerate(rows) if counts[i] and len(row) > 1]
        return NoisyRows(noisy, [list(row) for row in rows], used)

    def micros(self, prepared: NoisyRows, budget: int) -> list[NoisyMicro]:
        """Parts of a batch whose whole rows fit `budget` tokens. Rows without text are left out; a batch of such rows gives []."""
        lengths = [len(prepared.rows[i]) for i in prepared.used]
        found = [[prepared.used[i] for i in chunk] for chunk in chunks(lengths, budget, pad=self.pad)]
        total = prepared.total
        return [NoisyMicro([prepared.noisy[i] for i in chunk], [prepared.rows[i] for i in chunk], total) for chunk in found]

    def loss(self, net: Net, micro: NoisyMicro) -> Tensor:
        """Sum of -log p over a micro-batch, divided by the batch's tokens: over the micro-batches it adds up to the mean."""
        vectors = net(micro.noisy, normalize=False)
        given = [row[:-1] for row in micro.rows]
        batch = PackedBatch.of(given, net.device)
        lengths = [len(row) for row in given]
        owner = torch.tensor(batch.order).repeat_interleave(torch.tensor([lengths[i] for i in batch.order]))
        owner = F.pad(owner, (0, len(batch.ids) - len(owner))).to(net.device)  # idle tokens read row 0, and nobody reads them
        decoder: Any = self.heads["decoder"]
        layers = _encoder_layers(net) if self.tied else decoder.layers(embedding_of(net))
        states = decoder(layers, batch, vectors, owner)[caller_order(batch, lengths).to(net.device)]
        targets = torch.tensor([token for row in micro.rows for token in row[1:]], device=net.device)
        head: Any = self.heads["language"]
        loss: Tensor = head.loss(states, embedding_of(net), targets, product) / max(micro.total, 1)
        return loss


@dataclass(frozen=True)
class Layers:
    """What a decoder reads with: the encoder's layers or its own. embed(batch) -> (T, D)."""

    embed: Any
    layers: list[PostNormLayer]
    heads: int
    activation: Any
    dropout: float
    attention_dropout: float
    bias: Bias | None = None


def _encoder_layers(net: Net) -> Layers:
    packed = net.packed
    assert isinstance(packed, PostNormPacked)
    on = 1.0 if net.training else 0.0
    return Layers(
        packed.embed, packed.layers, packed.heads, packed.activation, packed.hidden_dropout * on, packed.attention_dropout * on, packed.bias
    )


class VectorDecoder(nn.Module):
    """Causal self-attention, attention to the sentence vector, feed-forward; the first and the last are given at each call.

    Wang et al. 2021, section 3: cross attention to the sentence vector only.
    """

    def __init__(self, layers: int, vector: int, hidden: int, eps: float) -> None:
        super().__init__()
        self.crosses = nn.ModuleList(VectorAttention(vector, hidden, eps) for _ in range(layers))

    def forward(self, layers: Layers, batch: PackedBatch, vectors: Tensor, owner: Tensor) -> Tensor:
        """batch: rows to read, T tokens; vectors (B, V); owner (T,): the row whose vector a token sees; returns states (T, D) in packed order."""
        bias = once_a_length(_causal(layers.bias))
        x = F.dropout(layers.embed(batch), layers.dropout)
        for layer, cross in zip(layers.layers, self.crosses, strict=True):
            q, k, v = layer.qkv(x).chunk(3, dim=-1)
            context = attend(q, k, v, batch, layers.heads, layers.attention_dropout, bias, causal=True)
            x = layer.attention_norm(x + F.dropout(layer.out(context), layers.dropout))
            x = cross(x, vectors, owner, layers.dropout)
            x = layer.output_norm(x + F.dropout(layer.down(layers.activation(layer.up(x))), layers.dropout))
        return x


def _causal(bias: Bias | None) -> Bias | None:
    """The encoder's position bias (MPNet's) with later tokens hidden; None stays None, since the kernel knows plain causal attention."""
    if bias is None:
        return None
    given = bias

    def hidden(length: int) -> Tensor | None:
        found = given(length)
        if found is None:
            return None
        later = torch.ones(length, length, dtype=torch.bool, device=found.device).triu(1)
        return found.masked_fill(later, float("-inf"))

    return hidden


class FreshDecoder(VectorDecoder):
    """A VectorDecoder with layers and positions of its own; the token embeddings stay the encoder's."""

    def __init__(self, layers: int, encoder: Encoder) -> None:
        net, config = encoder.net, encoder.net.backbone.config
        eps, hidden = norm_eps(config), net.token_dimensions
        super().__init__(layers, net.dimensions, hidden, eps)
        self.heads, self.activation, self.dropout = heads_of(config), activation_of(config), dropout_of(config)
        self.positions = TokenPositions(hidden, embedding_of(net).shape[1], encoder.max_tokens, eps)
        width = intermediate_of(config, hidden)
        self.own = nn.ModuleList(DecoderLayer(hidden, self.heads, width, self.activation, eps, self.dropout) for _ in range(layers))
        found = position_table(net, encoder.max_tokens)
        if found is not None:
            with torch.no_grad():
                self.positions.positions.weight.copy_(found)

    def layers(self, table: Tensor) -> Layers:
        """Its own layers, reading with the encoder's embedding (V, width)."""
        own: list[Any] = list(self.own)
        made = [PostNormLayer(x.query, x.key, x.value, x.out, x.attention_norm, x.up, x.down, x.output_norm) for x in own]
        share = self.dropout if self.training else 0.0

        def embed(batch: PackedBatch) -> Tensor:
            found: Tensor = self.positions(F.embedding(batch.ids, table), batch.positions)
            return found

        return Layers(embed, made, self.heads, self.activation, share, share)


def _tied(encoder: Encoder, decoder: str, layers: int | None) -> bool:
    """Does the decoder read with the encoder's layers? UsageError when that was asked for and cannot be."""
    if decoder not in ("auto", "tied", "fresh"):
        raise UsageError(f"tsdae: decoder = {decoder!r}: choose one of auto, tied, fresh")
    if layers is not None and (not isinstance(layers, int) or isinstance(layers, bool) or layers < 1):
        raise UsageError(f"tsdae: decoder_layers = {layers!r}: wanted a whole number of layers, 1 or more")
    able = isinstance(encoder.net.packed, PostNormPacked)
    if decoder == "tied" and not able:
        kind = encoder.net.backbone.config.model_type  # type: ignore[union-attr]
        raise UsageError(f"tsdae: decoder = 'tied': the layers of a {kind} model cannot be read as a decoder's; use decoder = 'fresh'")
    if decoder == "tied" and layers is not None:
        raise UsageError(
            f"tsdae: decoder_layers = {layers}: a tied decoder has as many layers as the encoder; leave it out, or use decoder = 'fresh'"
        )
    return able and decoder != "fresh" and layers is None


def _decoder(encoder: Encoder, tied: bool, layers: int | None) -> VectorDecoder:
    net: Any = encoder.net
    if not tied:
        return FreshDecoder(layers or 1, encoder).to(net.device)
    eps = norm_eps(net.backbone.config)
    return VectorDecoder(len(net.packed.layers), net.dimensions, net.token_dimensions, eps).to(net.device)
