"""Masked language modelling: hide some tokens of a text, predict them from the rest. Devlin et al. 2019 (BERT), section 3.1, task 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from twinvec.model.batch import chunks
from twinvec.model.encoder import Encoder
from twinvec.model.net import Net
from twinvec.model.states import token_states
from twinvec.objectives.masking import Flags, Ids, apart, choose_tokens, choose_words, end_to_end, hide, how_many
from twinvec.objectives.reconstruction import LanguageHead
from twinvec.training.pretraining.vocabulary import check_share, embedding_of, language_head, product, require_mask, vocabulary_of


@dataclass(frozen=True)
class MaskedRows:
    """A prepared batch. rows: with tokens hidden; at[i]: the hidden positions of row i; targets[i]: the tokens that stood there."""

    rows: list[list[int]]
    at: list[Ids]
    targets: list[Ids]

    @property
    def total(self) -> int:
        """Hidden tokens of the whole batch, which the loss is divided by."""
        return sum(len(found) for found in self.at)


@dataclass(frozen=True)
class MaskedMicro:
    """Some rows of a batch; at (n,): hidden positions counted over these rows end to end; targets (n,); total: of the whole batch."""

    rows: list[list[int]]
    at: Tensor
    targets: Tensor
    total: int


class MaskedLanguageModel:
    """The MLM task. `heads` is trained beside the encoder and thrown away; it starts from the checkpoint's own head where there is one.

    mask_share: of the tokens that are text; at least one token a row, as in BERT's create_pretraining_data.py (transformers draws each token
    alone, which leaves one short sentence in five without a target). whole_word: hide all pieces of a word or none.
    Special and unknown tokens are never hidden.
    """

    name = "mlm"

    def __init__(self, encoder: Encoder, *, mask_share: float = 0.15, whole_word: bool = False) -> None:
        self.mask_share = check_share(self.name, "mask_share", mask_share)
        self.vocabulary = vocabulary_of(encoder)
        self.mask_id = require_mask(encoder, self.vocabulary, self.name)
        self.continues = self.vocabulary.continues(self.name) if whole_word else None
        self.pad = encoder.net.packed is None
        self.heads, self.head_was_stored = language_head(encoder)

    def hidden_tokens(self, ids: Ids, lengths: Ids, rng: np.random.Generator, share: float) -> Flags:
        """(T,) True on the tokens to hide."""
        allowed = ~self.vocabulary.special[ids]
        wanted = how_many(counts_of(allowed, lengths), share, least=1)
        if self.continues is not None:
            return choose_words(ids, allowed, lengths, wanted, self.continues, rng, least=1)
        return choose_tokens(allowed, lengths, wanted, rng)

    def prepare(self, rows: list[list[int]], rng: np.random.Generator) -> MaskedRows:
        """Hide tokens of token rows (special tokens included, already cut). All chance comes from `rng`; runs in any thread."""
        ids, lengths = end_to_end(rows)
        chosen = self.hidden_tokens(ids, lengths, rng, self.mask_share)
        hidden = apart(hide(ids, chosen, self.mask_id, self.vocabulary.ordinary, rng), lengths)
        at = [np.flatnonzero(part) for part in apart(chosen.astype(np.int64), lengths)]
        targets = [part[places] for part, places in zip(apart(ids, lengths), at, strict=True)]
        return MaskedRows([part.tolist() for part in hidden], at, targets)

    def micros(self, prepared: MaskedRows, budget: int) -> list[MaskedMicro]:
        """Parts of a batch that fit `budget` tokens. Rows with nothing hidden have no loss and are left out; a batch of such rows gives []."""
        rows = [i for i, at in enumerate(prepared.at) if len(at)]
        return [masked_micro(prepared, [rows[i] for i in chunk]) for chunk in chunks([len(prepared.rows[i]) for i in rows], budget, pad=self.pad)]

    def loss(self, net: Net, micro: MaskedMicro) -> Tensor:
        """Sum of -log p(hidden token) over a micro-batch, divided by the batch's hidden tokens: over the micro-batches it adds up to the mean."""
        return masked_loss(self.heads, net, token_states(net, micro.rows), micro)


def counts_of(allowed: Flags, lengths: Ids) -> Ids:
    """(B,) allowed tokens of each row."""
    sums = np.concatenate([[0], np.cumsum(allowed, dtype=np.int64)])
    ends = np.cumsum(lengths)
    return np.asarray(sums[ends] - sums[ends - lengths], dtype=np.int64)


def masked_micro(prepared: MaskedRows, chunk: list[int]) -> MaskedMicro:
    """The rows of one chunk with their hidden positions counted end to end."""
    lengths = np.array([len(prepared.rows[i]) for i in chunk])
    starts = np.cumsum(lengths) - lengths
    at = np.concatenate([prepared.at[i] + start for i, start in zip(chunk, starts, strict=True)])
    targets = np.concatenate([prepared.targets[i] for i in chunk])
    return MaskedMicro([prepared.rows[i] for i in chunk], torch.from_numpy(at), torch.from_numpy(targets), prepared.total)


def masked_loss(head: LanguageHead, net: Net, states: Tensor, micro: MaskedMicro) -> Tensor:
    """The loss of a micro-batch from its token states; only the hidden positions meet the vocabulary."""
    device = states.device
    return head.loss(states[micro.at.to(device)], embedding_of(net), micro.targets.to(device), product) / max(micro.total, 1)
