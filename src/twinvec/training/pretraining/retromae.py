"""RetroMAE: a weak decoder must rebuild the text from the sentence vector of its masked self. Xiao et al. 2022 (as BGE was pretrained)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from twinvec.model.batch import chunks, padded
from twinvec.model.encoder import Encoder
from twinvec.model.net import Net
from twinvec.model.states import pooled, token_states
from twinvec.objectives.masking import Flags, visible_keys
from twinvec.objectives.reconstruction import EnhancedDecoder
from twinvec.training.pretraining.mlm import MaskedLanguageModel, MaskedMicro, MaskedRows, masked_loss, masked_micro
from twinvec.training.pretraining.vocabulary import (
    activation_of,
    check_share,
    dropout_of,
    embedding_of,
    heads_of,
    intermediate_of,
    norm_eps,
    position_table,
    product,
)


@dataclass(frozen=True)
class RetroRows:
    """A prepared batch. masked: what the encoder reads; rows: what the decoder rebuilds; wanted[i] (L,): its positions with a loss;
    visible[i] (L, L): which tokens each position may look at."""

    masked: MaskedRows
    rows: list[list[int]]
    wanted: list[Flags]
    visible: list[Flags]

    @property
    def total(self) -> int:
        """Tokens to rebuild in the whole batch, which the decoder's loss is divided by."""
        return sum(int(found.sum()) for found in self.wanted)


@dataclass(frozen=True)
class RetroMicro:
    """Some rows of a batch: the encoder's part, and for the decoder ids (B, L), wanted (B, L), visible (B, L, L); total: of the whole batch."""

    masked: MaskedMicro
    ids: Tensor
    wanted: Tensor
    visible: Tensor
    total: int


class RetroMAE:
    """The RetroMAE task: mean decoder loss over all text tokens + mean encoder MLM loss over the hidden ones (the paper's sum, section 3.3).

    encoder_share: share hidden from the encoder, decoder_share: share hidden from each position of the decoder; 0.3 and 0.5 are what the authors'
    code is run with. The sentence vector is the model's own: its pooling and Dense heads, before Normalize (departure: the paper has [CLS] only).
    `heads`: the decoder, and one language head for both losses, as in the authors' code. Its attention mask costs L x L a row.
    """

    name = "retromae"

    def __init__(self, encoder: Encoder, *, encoder_share: float = 0.3, decoder_share: float = 0.5, whole_word: bool = False) -> None:
        check_share(self.name, "encoder_share", encoder_share)
        self.decoder_share = check_share(self.name, "decoder_share", decoder_share)
        self.masking = _Masking(encoder, mask_share=encoder_share, whole_word=whole_word)
        self.vocabulary, self.pad = self.masking.vocabulary, self.masking.pad
        net, config = encoder.net, encoder.net.backbone.config
        decoder = EnhancedDecoder(
            net.dimensions, net.token_dimensions, embedding_of(net).shape[1], encoder.max_tokens, heads=heads_of(config),
            intermediate=intermediate_of(config, net.token_dimensions), activation=activation_of(config), eps=norm_eps(config),
            dropout=dropout_of(config),
        )  # fmt: skip
        with torch.no_grad():
            found = position_table(net, encoder.max_tokens)
            if found is not None:
                decoder.embed.positions.weight.copy_(found)
        self.heads = nn.ModuleDict({"language": self.masking.heads, "decoder": decoder.to(net.device)})

    def prepare(self, rows: list[list[int]], rng: np.random.Generator) -> RetroRows:
        """Hide tokens of token rows for the encoder, and sample what each position of the decoder sees. All chance comes from `rng`."""
        masked = self.masking.prepare(rows, rng)
        wanted = [~self.vocabulary.special[np.asarray(row, dtype=np.int64)] for row in rows]
        visible = [visible_keys(text, 1 - self.decoder_share, rng) for text in wanted]
        return RetroRows(masked, [list(row) for row in rows], wanted, visible)

    def micros(self, prepared: RetroRows, budget: int) -> list[RetroMicro]:
        """Parts of a batch that fit `budget` tokens. Rows without text tokens are left out; a batch of such rows gives []."""
        rows = [i for i, wanted in enumerate(prepared.wanted) if wanted.any()]
        return [_micro(prepared, [rows[i] for i in chunk]) for chunk in chunks([len(prepared.rows[i]) for i in rows], budget, pad=self.pad)]

    def loss(self, net: Net, micro: RetroMicro) -> Tensor:
        """Both sums over a micro-batch, each divided by its total of the batch: over the micro-batches they add up to the two means."""
        head: Any = self.heads["language"]
        states = token_states(net, micro.masked.rows)
        vectors = pooled(net, states, [len(row) for row in micro.masked.rows], normalize=False)
        table, device = embedding_of(net), states.device
        embedded = torch.nn.functional.embedding(micro.ids.to(device), table)
        wanted = micro.wanted.to(device)
        rebuilt = self.heads["decoder"](vectors, embedded, micro.visible.to(device))[wanted]
        decoded = head.loss(rebuilt, table, micro.ids.to(device)[wanted], product) / max(micro.total, 1)
        loss: Tensor = decoded + masked_loss(head, net, states, micro.masked)
        return loss


class _Masking(MaskedLanguageModel):
    name = "retromae"


def _micro(prepared: RetroRows, chunk: list[int]) -> RetroMicro:
    rows = [prepared.rows[i] for i in chunk]
    ids, _ = padded(rows, 0)
    length = ids.shape[1]
    wanted = np.zeros((len(rows), length), dtype=np.bool_)
    visible = np.zeros((len(rows), length, length), dtype=np.bool_)
    for place, i in enumerate(chunk):
        size = len(prepared.rows[i])
        wanted[place, :size], visible[place, :size, :size] = prepared.wanted[i], prepared.visible[i]
    return RetroMicro(masked_micro(prepared.masked, chunk), ids, torch.from_numpy(wanted), torch.from_numpy(visible), prepared.total)
