"""A GGUF file small enough to make in a test: a Llama of two layers in float32, with the vocabulary and merges of a byte-level BPE."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tiny_models import WINDOW, _size, bpe, scramble

END = "<|endoftext|>"
NAMES = {
    "embed_tokens": "token_embd", "norm": "output_norm", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def tiny_llama() -> tuple[Any, Any]:
    """The tokenizer and the model that the file is made of."""
    from transformers import AutoModel, LlamaConfig

    tokenizer = bpe(None, END, END, None)
    config = LlamaConfig(**_size(num_key_value_heads=2, max_position_embeddings=WINDOW), vocab_size=len(tokenizer), rms_norm_eps=1e-5)
    model = AutoModel.from_config(config).eval()
    scramble(model)
    return tokenizer, model


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp turns pairs (2 i, 2 i + 1) where transformers turns (i, i + d / 2): rows of q and k stand in its order in the file."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, *, leave_out: str | None = None) -> Any:
    """Write the file; returns the model of transformers that it holds."""
    import gguf

    tokenizer, model = tiny_llama()
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(WINDOW)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(len(tokenizer))
    words = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    listed = sorted(words["vocab"], key=words["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(listed)
    writer.add_token_types([3 if word == END else 1 for word in listed])
    writer.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in words["merges"]])
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_pad_token_id, writer.add_unk_token_id):
        add(listed.index(END))
    for name, value in model.state_dict().items():
        stem = name.removesuffix(".weight")
        layer, _, rest = stem.removeprefix("layers.").partition(".") if stem.startswith("layers.") else ("", "", stem)
        target = f"blk.{layer}.{NAMES[rest]}.weight" if layer else f"{NAMES[rest]}.weight"
        array = value.numpy()
        if rest.endswith(("q_proj", "k_proj")):
            array = interleaved(array, config.num_attention_heads if rest.endswith("q_proj") else config.num_key_value_heads)
        if target != leave_out:
            writer.add_tensor(target, np.ascontiguousarray(array))
    # An output layer of its own, which an encoder leaves out.
    writer.add_tensor("output.weight", torch.zeros(len(tokenizer), config.hidden_size).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model
