"""Tiny models with a masked-LM head of their own, and slow plain versions of the three token objectives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tiny_models import TEXTS, WINDOW, scramble, wordpiece
from twinvec.model.encoder import Encoder
from twinvec.training.pretraining.mlm import MaskedLanguageModel
from twinvec.training.pretraining.retromae import RetroMAE
from twinvec.training.pretraining.tsdae import TSDAE

Task = Any
TASKS: dict[str, Callable[..., Task]] = {
    "mlm": MaskedLanguageModel,
    "retromae": RetroMAE,
    "tsdae": TSDAE,
    "tsdae-fresh": lambda encoder, **more: TSDAE(encoder, decoder="fresh", decoder_layers=2, **more),
}

MASK = 4  # [MASK] in tiny_models.wordpiece()


def masked_tokenizer() -> Any:
    tokenizer = wordpiece()
    tokenizer.mask_token = "[MASK]"
    return tokenizer


def make_masked(kind: str, folder: Path) -> tuple[Path, Any]:
    """A folder of a tiny masked language model of the kind, head included, and the model itself in eval mode."""
    from transformers import AutoModelForMaskedLM, BertConfig, DistilBertConfig, MPNetConfig, RobertaConfig

    size: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = {
        "bert": lambda: BertConfig(**size, max_position_embeddings=WINDOW),
        "roberta": lambda: RobertaConfig(**size, max_position_embeddings=WINDOW + 1, type_vocab_size=1, pad_token_id=0),
        "mpnet": lambda: MPNetConfig(**size, max_position_embeddings=WINDOW + 1, pad_token_id=0),
        "distilbert": lambda: DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=WINDOW),
    }[kind]()
    tokenizer = masked_tokenizer()
    config.vocab_size = len(tokenizer)
    model = AutoModelForMaskedLM.from_config(config).eval()
    scramble(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, model


def load(folder: Path, pooling: str = "mean", texts: tuple[str, ...] = TEXTS) -> tuple[Encoder, list[list[int]]]:
    encoder = Encoder.load(folder, device="cpu", pooling=pooling)
    return encoder, [encoder.tokens.cut(row) for row in encoder.tokens.content(texts)]


def total_loss(task: Task, encoder: Encoder, rows: list[list[int]], budget: int = 10_000, seed: int = 0) -> torch.Tensor:
    prepared = task.prepare(rows, np.random.default_rng(seed))
    losses = [task.loss(encoder.net, micro) for micro in task.micros(prepared, budget)]
    return torch.stack(losses).sum()


def double(task: Task, encoder: Encoder) -> None:
    encoder.net.double()
    task.heads.double()
    encoder.net.eval()
    task.heads.eval()


def slow_head(head: Any, state: torch.Tensor, table: torch.Tensor, target: int) -> torch.Tensor:
    """-log p(target) of one state (D,)."""
    logits = F.layer_norm(
        head.activation(head.dense.weight @ state + head.dense.bias), head.norm.weight.shape, head.norm.weight, head.norm.bias, 1e-12
    )
    logits = table @ logits + head.bias
    return torch.logsumexp(logits, 0) - logits[target]


def slow_tsdae(backbone: Any, decoder: Any, row: list[int], vector: torch.Tensor) -> torch.Tensor:
    """States (L - 1, D) of the tied decoder on a BERT backbone, one position and one head at a time."""
    emb, heads = backbone.embeddings, backbone.config.num_attention_heads
    given = row[:-1]
    x = torch.stack(
        [
            emb.LayerNorm(emb.word_embeddings.weight[t] + emb.token_type_embeddings.weight[0] + emb.position_embeddings.weight[i])
            for i, t in enumerate(given)
        ]
    )
    for layer, cross in zip(backbone.encoder.layer, decoder.crosses, strict=True):
        own, d = layer.attention.self, x.shape[1] // heads
        q, k, v = own.query(x), own.key(x), own.value(x)
        rows = []
        for i in range(len(given)):
            parts = []
            for h in range(heads):
                at = slice(h * d, (h + 1) * d)
                weights = torch.softmax(k[: i + 1, at] @ q[i, at] / d**0.5, 0)
                parts.append(weights @ v[: i + 1, at])
            rows.append(torch.cat(parts))
        x = layer.attention.output.LayerNorm(x + layer.attention.output.dense(torch.stack(rows)))
        x = cross.norm(x + cross.out(cross.value(vector)))
        x = layer.output.LayerNorm(x + layer.output.dense(layer.intermediate.intermediate_act_fn(layer.intermediate.dense(x))))
    return x


def slow_retromae(decoder: Any, table: torch.Tensor, row: list[int], vector: torch.Tensor, visible: Any) -> torch.Tensor:
    """States (L, D) of the enhanced decoder, one position at a time."""
    layer, tokens = decoder.layer, decoder.embed
    keys = torch.stack([tokens.norm(table[t] + tokens.positions.weight[j]) for j, t in enumerate(row)])
    out = []
    for i in range(len(row)):
        query = tokens.norm(vector + tokens.positions.weight[i])
        seen = torch.stack([vector, *(keys[j] for j in range(len(row)) if visible[i, j])])
        q, k, v, d = layer.query(query), layer.key(seen), layer.value(seen), len(query) // layer.heads
        parts = []
        for h in range(layer.heads):
            at = slice(h * d, (h + 1) * d)
            parts.append(torch.softmax(k[:, at] @ q[at] / d**0.5, 0) @ v[:, at])
        x = layer.attention_norm(query + layer.out(torch.cat(parts)))
        out.append(layer.output_norm(x + layer.down(layer.activation(layer.up(x)))))
    return torch.stack(out)
