"""What a token task has to know of a model's vocabulary, and the language head that fits it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twinvec.errors import ModelError, UsageError
from twinvec.model.backbone import is_decoder_only, position_offset
from twinvec.model.encoder import Encoder
from twinvec.model.linear import _onednn, onednn_works
from twinvec.objectives.masking import Flags, Ids
from twinvec.objectives.reconstruction import LanguageHead


@dataclass(frozen=True)
class Vocabulary:
    """size: rows of the input embedding. special (size,): True for tokens that are no text. ordinary: the others, as the tokenizer knows them."""

    size: int
    special: Flags
    ordinary: Ids
    mask_id: int | None
    unknown_id: int  # -1 for none
    pieces: list[str | None]

    def continues(self, task: str) -> Flags:
        """(size,) True for tokens that go on with the word before them. UsageError when the vocabulary does not mark them.

        WordPiece marks the followers (##ing); SentencePiece and byte-level BPE mark the first (▁play, Ġplay). There a piece with a Chinese
        character counts as a word of its own, since no mark stands between Chinese words. A Chinese character of WordPiece is a word as well:
        the whole-word masks of Chinese BERT-wwm come from a word segmenter, which twinvec has not.
        """
        known = [piece or "" for piece in self.pieces]
        counts = {mark: sum(piece.startswith(mark) for piece in known) for mark in ("##", "▁", "Ġ")}
        mark = max(counts, key=lambda name: counts[name])  # vocabularies of the other kinds hold a stray "##" or two as text
        if counts[mark] * 1000 >= len(known):
            if mark == "##":
                return np.array([piece.startswith(mark) for piece in known]) & ~self.special
            follows = [not piece.startswith(mark) and not any("\u3400" <= c <= "\u9fff" for c in piece) for piece in known]
            return np.array(follows) & ~self.special
        raise UsageError(f"{task}: whole_word = true: this model's vocabulary does not mark where words begin; use whole_word = false")


def vocabulary_of(encoder: Encoder) -> Vocabulary:
    """The vocabulary of an encoder, special tokens told apart."""
    tokenizer: Any = encoder.tokens.tokenizer
    size = int(embedding_of(encoder.net).shape[0])
    special = np.zeros(size, dtype=np.bool_)
    special[[i for i in tokenizer.all_special_ids if 0 <= i < size]] = True
    pieces: list[str | None] = [None] * size
    for piece, number in tokenizer.get_vocab().items():
        if number < size:
            pieces[number] = piece
    known = np.array([piece is not None for piece in pieces])
    beyond = max(tokenizer.get_vocab().values(), default=0)
    if beyond >= size and beyond not in tokenizer.all_special_ids:
        raise ModelError(
            f"{encoder.name}: its tokenizer gives tokens up to {beyond}, the model has embeddings for {size}; they do not belong together"
        )
    mask_id = tokenizer.mask_token_id
    mask = None if mask_id is None or mask_id >= size else int(mask_id)
    unknown = -1 if tokenizer.unk_token_id is None else int(tokenizer.unk_token_id)
    return Vocabulary(size, special, np.flatnonzero(known & ~special), mask, unknown, pieces)


def require_mask(encoder: Encoder, vocabulary: Vocabulary, task: str) -> int:
    """The mask token's id. UsageError for a model that has none, or that reads from left to right."""
    if is_decoder_only(encoder.net.backbone):
        raise UsageError(f"{task}: {encoder.name} reads from left to right and cannot see what follows a masked token; use tsdae, or another model")
    if vocabulary.mask_id is None:
        raise UsageError(f"{task}: the tokenizer of {encoder.name} has no mask token; use tsdae, which needs none, or another model")
    return vocabulary.mask_id


def embedding_of(net: Any) -> Tensor:
    """The input embedding (V, width) of a net's backbone: the parameter itself, so that gradients reach it."""
    weight: Tensor = net.backbone.get_input_embeddings().weight
    return weight


def check_share(task: str, name: str, value: float, *, most: float = 1.0) -> float:
    """UsageError unless 0 < value <= most (1 itself is excluded)."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= most or value >= 1:
        raise UsageError(f"{task}: {name} = {value!r}: wanted a share of the tokens, above 0 and below 1")
    return float(value)


def product(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """a (n, k), b (m, k), bias (m,) -> a b' + bias, in oneDNN where that is faster (see model/linear.py). No gradient passes through it."""
    if a.device.type == "cpu" and a.dtype == torch.float32 and len(a) and onednn_works():
        return _onednn(a, b, bias, "")
    return F.linear(a, b, bias)


# ---- the head

_STORED = (  # where checkpoints keep their masked-LM head: dense, norm, bias over the vocabulary
    ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
    ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    ("head.dense", "head.norm", "decoder.bias"),
    ("lm_predictions.lm_head.dense", "lm_predictions.lm_head.LayerNorm", "lm_predictions.lm_head.bias"),
    ("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
)


def language_head(encoder: Encoder) -> tuple[LanguageHead, bool]:
    """A language head that fits an encoder, and whether its weights came from the model's own checkpoint (else they are fresh)."""
    config: Any = encoder.net.backbone.config
    size, width = embedding_of(encoder.net).shape
    head = LanguageHead(encoder.net.token_dimensions, width, size, activation_of(config), norm_eps(config))
    found = _stored_head(encoder.source, head) if encoder.source is not None else None
    if found is not None:
        head.load_state_dict(found)
    return head.to(encoder.net.device), found is not None


def _stored_head(folder: Path, head: LanguageHead) -> dict[str, Tensor] | None:
    """The masked-LM head in a folder's safetensors, under any of its usual names; None when there is none of this shape."""
    from safetensors import SafetensorError, safe_open

    stored: dict[str, Tensor] = {}
    names = [name for dense, norm, bias in _STORED for name in (f"{dense}.weight", f"{dense}.bias", f"{norm}.weight", f"{norm}.bias", bias)]
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("0_Transformer/*.safetensors")]):
        try:
            with safe_open(path, framework="pt") as stream:
                stored.update({name: stream.get_tensor(name).float() for name in set(names) & set(stream.keys())})
        except SafetensorError:
            return None  # the encoder came from elsewhere; what is unreadable here is no head
    wanted = head.state_dict()
    for dense, norm, bias in _STORED:
        found = {
            "dense.weight": stored.get(f"{dense}.weight"), "dense.bias": stored.get(f"{dense}.bias", torch.zeros_like(wanted["dense.bias"])),
            "norm.weight": stored.get(f"{norm}.weight"), "norm.bias": stored.get(f"{norm}.bias", torch.zeros_like(wanted["norm.bias"])),
            "bias": stored.get(bias, torch.zeros_like(wanted["bias"])),
        }  # fmt: skip
        whole = {name: tensor for name, tensor in found.items() if tensor is not None}
        if len(whole) == len(wanted) and all(whole[name].shape == tensor.shape for name, tensor in wanted.items()):
            return whole
    return None


def activation_of(config: Any) -> Callable[[Tensor], Tensor]:
    """The backbone's own activation, which its masked-LM head shares; GELU when the configuration names none."""
    from transformers.activations import ACT2FN

    names = [getattr(config, name, None) for name in ("hidden_act", "hidden_activation", "activation")]
    name = next((name for name in names if isinstance(name, str) and name in ACT2FN), "gelu")
    found: nn.Module = ACT2FN[name]
    return found


def norm_eps(config: Any) -> float:
    """The epsilon of the backbone's norms."""
    return float(next((value for name in ("layer_norm_eps", "norm_eps", "rms_norm_eps") if (value := getattr(config, name, None))), 1e-12))


def first_number(config: Any, names: tuple[str, ...], otherwise: float) -> float:
    """The first of these settings that a configuration has."""
    found = [getattr(config, name, None) for name in names]
    return next((float(value) for value in found if isinstance(value, int | float) and not isinstance(value, bool)), otherwise)


def heads_of(config: Any) -> int:
    """Attention heads of the backbone."""
    return int(first_number(config, ("num_attention_heads", "n_heads", "num_heads"), 1))


def intermediate_of(config: Any, hidden: int) -> int:
    """Width of the backbone's feed-forward layers."""
    return int(first_number(config, ("intermediate_size", "hidden_dim", "d_ff"), 4 * hidden))


def dropout_of(config: Any) -> float:
    """The backbone's dropout after each sublayer; 0.1 (BERT 2019) when its configuration names none."""
    return first_number(config, ("hidden_dropout_prob", "dropout", "dropout_rate", "mlp_dropout"), 0.1)


def position_table(net: Any, rows: int) -> Tensor | None:
    """The encoder's learned position embeddings for positions 0 to rows - 1, a start for a decoder's; None where it has none of its width."""
    weight = getattr(getattr(getattr(net.backbone, "embeddings", None), "position_embeddings", None), "weight", None)
    offset = position_offset(net.backbone)
    if not isinstance(weight, Tensor) or weight.shape[0] < offset + rows or weight.shape[1] != net.token_dimensions:
        return None
    return weight.detach()[offset : offset + rows]
