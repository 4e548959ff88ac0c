"""What makes a model this model: a hash over everything that decides a vector."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from twinvec.model.net import Net
    from twinvec.model.tokens import Tokens

GOLDEN_TEXTS = (
    "A man is playing a guitar.",
    "如何关闭支付宝免密支付？",
    "Ｗhere is my refund — order №1024 还没到账 🙂",
)
GOLDEN_TOLERANCE = 1e-3  # 1 - cosine; a wrong pooling or a skipped head is far above, another machine's rounding far below


def weights_hash(net: nn.Module) -> str:
    """SHA-256 over names, shapes and float32 bytes of all parameters and persistent buffers."""
    import torch

    state = hashlib.sha256()
    for name, tensor in sorted(net.state_dict().items()):
        wide = tensor.detach().to("cpu", torch.float32).contiguous()
        state.update(f"{name} {tuple(wide.shape)}\n".encode())
        state.update(memoryview(wide.numpy()).cast("B") if wide.numel() else b"")
    return state.hexdigest()


def tokenizer_hash(tokens: Tokens) -> str:
    """SHA-256 over what the tokenizer does: its whole definition where it is a fast one, else its vocabulary."""
    backend = getattr(tokens.tokenizer, "backend_tokenizer", None)
    if backend is not None:
        text = backend.to_str()
    else:
        text = json.dumps(sorted(tokens.tokenizer.get_vocab().items()), ensure_ascii=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


ARCHITECTURE = (
    "model_type", "num_attention_heads", "num_key_value_heads", "hidden_act", "hidden_activation", "activation",
    "layer_norm_eps", "norm_eps", "rms_norm_eps", "sliding_window",
)  # fmt: skip
"""What a config says beyond the shapes of its weights. Few and old names, so that a new release of transformers changes no fingerprint."""


def architecture(config: Any) -> dict[str, Any]:
    found = {name: getattr(config, name, None) for name in ARCHITECTURE}
    return {name: value for name, value in found.items() if isinstance(value, (str, int, float))}


def parts_of(net: Net, tokens: Tokens, prompts: dict[str, str], default_prompt: str | None) -> dict[str, Any]:
    """The named parts that the fingerprint covers, so that a mismatch can say which one differs."""
    return {"weights": weights_hash(net), "tokenizer": tokenizer_hash(tokens), **described(net, tokens, prompts, default_prompt)}


def described(net: Net, tokens: Tokens, prompts: dict[str, str], default_prompt: str | None) -> dict[str, Any]:
    """The parts that are told, not hashed: cheap enough to compare at each load."""
    return {
        "architecture": architecture(net.backbone.config),
        "pooling": list(net.pooling),
        "include_prompt": net.include_prompt,
        "heads": [head.config() for head in net.heads],  # type: ignore[operator]
        "normalize": net.normalize,
        "dimensions": net.dimensions,
        "max_tokens": tokens.max_tokens,
        "lower_case": tokens.lower_case,
        "nfkc": tokens.nfkc,
        "cut_left": tokens.cut_left,
        "prompts": dict(sorted(prompts.items())),
        "default_prompt": default_prompt,
    }


def fingerprint_of(parts: dict[str, Any]) -> str:
    """32 hex digits of the SHA-256 over the canonical JSON of the parts."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()[:32]
