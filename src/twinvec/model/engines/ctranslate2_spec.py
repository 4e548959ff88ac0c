"""A `Net`'s backbone as a CTranslate2 model. Imported only to export; needs torch and ctranslate2.

CTranslate2's own converter reads a transformers folder and wants a pooler; this one reads the modules that are loaded, of the families below.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from twinvec.errors import UsageError

ACTIVATIONS = {"gelu": "GELU", "gelu_new": "GELUTanh", "gelu_pytorch_tanh": "GELUTanh", "relu": "RELU", "silu": "SWISH", "swish": "SWISH"}
COMPUTE = {"float32": "float32", "int8": "int8_float32"}


def write_model(backbone: Any, folder: Path, precision: str) -> dict[str, Any]:
    """Write model.bin and its companions into `folder`; returns the settings that the runtime needs beside them."""
    family = str(backbone.config.model_type)
    build = FAMILIES.get(family)
    if build is None or getattr(backbone.config, "is_decoder", False):
        raise UsageError(
            f"ctranslate2 cannot compute this model: its family {family!r} is not one of {', '.join(FAMILIES)}; use --engine onnx, or torch as it is"
        )
    if getattr(backbone.config, "position_embedding_type", "absolute") not in ("absolute", None):
        raise UsageError("ctranslate2 cannot compute this model: its positions are relative ones; use --engine onnx, or torch as it is")
    with torch.no_grad():
        spec, settings = build(backbone)
    size = int(spec.encoder.embeddings[0].weight.shape[0])
    spec.register_vocabulary([str(i) for i in range(size)])  # rows travel as ids; ctranslate2 only wants that there is a list
    spec.config.unk_token = "0"
    spec.config.layer_norm_epsilon = settings.pop("epsilon")
    spec.validate()
    spec.optimize(quantization=COMPUTE[precision])
    spec.save(str(folder))
    return settings


def _array(tensor: Any) -> Any:
    """A copy: ctranslate2 quantises in place."""
    return np.array(tensor.detach().to("cpu", torch.float32).numpy())


def _activation(function: Any, name: str) -> Any:
    from ctranslate2.specs import common_spec

    if name not in ACTIVATIONS:
        raise UsageError(f"ctranslate2 cannot compute this model: it knows no activation {name!r}; use --engine onnx, or torch as it is")
    return getattr(common_spec.Activation, ACTIVATIONS[name])


def _linear(spec: Any, *linears: Any) -> None:
    """One product for several layers that read the same input."""
    spec.weight = np.concatenate([_array(one.weight) for one in linears])
    if linears[0].bias is not None:
        spec.bias = np.concatenate([_array(one.bias) for one in linears])


def _norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _post_norm(
    backbone: Any, layers: list[tuple[Any, ...]], *, heads: int, activation: str, words: Any, positions: Any, norm: Any, more: bool = False
) -> tuple[Any, dict[str, Any]]:
    """layers: (query, key, value, out, attention norm, up, down, output norm) each. positions: (P, D), with all that is added to every token.

    more: positions are a second table that the caller looks up (as token types), since ctranslate2 adds none beside a relative bias.
    """
    from ctranslate2.specs import common_spec, transformer_spec

    encoder = transformer_spec.TransformerEncoderSpec(
        len(layers), heads, pre_norm=False, activation=_activation(None, activation), layernorm_embedding=True,
        num_source_embeddings=2 if more else 1, embeddings_merge=common_spec.EmbeddingsMerge.ADD, relative_attention_bias=more,
    )  # fmt: skip
    encoder.scale_embeddings = False
    encoder.embeddings[0].weight = _array(words.weight)
    if more:
        encoder.embeddings[1].weight = positions
    else:
        encoder.position_encodings.encodings = positions
    _norm(encoder.layernorm_embedding, norm)
    for spec, (query, key, value, out, attention_norm, up, down, output_norm) in zip(encoder.layer, layers, strict=True):
        _linear(spec.self_attention.linear[0], query, key, value)
        _linear(spec.self_attention.linear[1], out)
        _norm(spec.self_attention.layer_norm, attention_norm)
        _linear(spec.ffn.linear_0, up)
        _linear(spec.ffn.linear_1, down)
        _norm(spec.ffn.layer_norm, output_norm)
    settings = {"epsilon": float(norm.eps), "vocabulary": int(words.weight.shape[0]), "positions": len(positions), "position_ids": more}
    return transformer_spec.TransformerEncoderModelSpec(encoder), settings


def _bert(model: Any) -> tuple[Any, dict[str, Any]]:
    config, embed = model.config, model.embeddings
    layers = [
        (
            layer.attention.self.query, layer.attention.self.key, layer.attention.self.value, layer.attention.output.dense,
            layer.attention.output.LayerNorm, layer.intermediate.dense, layer.output.dense, layer.output.LayerNorm,
        )
        for layer in model.encoder.layer
    ]  # fmt: skip
    # RoBERTa and its kin number their positions from padding_idx + 1.
    start = 0 if config.model_type == "bert" else int(embed.padding_idx) + 1
    positions = _array(embed.position_embeddings.weight)[start:] + _array(embed.token_type_embeddings.weight)[0]
    return _post_norm(
        model, layers, heads=config.num_attention_heads, activation=str(config.hidden_act), words=embed.word_embeddings, positions=positions,
        norm=embed.LayerNorm,
    )  # fmt: skip


def _distilbert(model: Any) -> tuple[Any, dict[str, Any]]:
    config, embed = model.config, model.embeddings
    layers = [
        (
            layer.attention.q_lin, layer.attention.k_lin, layer.attention.v_lin, layer.attention.out_lin,
            layer.sa_layer_norm, layer.ffn.lin1, layer.ffn.lin2, layer.output_layer_norm,
        )
        for layer in model.transformer.layer
    ]  # fmt: skip
    positions = _array(embed.position_embeddings.weight)
    return _post_norm(
        model, layers, heads=config.n_heads, activation=str(config.activation), words=embed.word_embeddings, positions=positions, norm=embed.LayerNorm
    )


def _mpnet(model: Any) -> tuple[Any, dict[str, Any]]:
    config, embed, encoder = model.config, model.embeddings, model.encoder
    layers = [
        (
            layer.attention.attn.q, layer.attention.attn.k, layer.attention.attn.v, layer.attention.attn.o,
            layer.attention.LayerNorm, layer.intermediate.dense, layer.output.dense, layer.output.LayerNorm,
        )
        for layer in encoder.layer
    ]  # fmt: skip
    positions = _array(embed.position_embeddings.weight)[int(embed.padding_idx) + 1 :]
    spec, settings = _post_norm(
        model, layers, heads=config.num_attention_heads, activation=str(config.hidden_act), words=embed.word_embeddings, positions=positions,
        norm=embed.LayerNorm, more=True,
    )  # fmt: skip
    for layer in spec.encoder.layer:
        layer.self_attention.relative_attention_bias = _array(encoder.relative_attention_bias.weight)
        layer.self_attention.relative_attention_max_distance = np.dtype("int32").type(128)  # MPNet's own, a constant in its code
    return spec, settings


FAMILIES: dict[str, Callable[[Any], tuple[Any, dict[str, Any]]]] = {
    "bert": _bert,
    "roberta": _bert,
    "xlm-roberta": _bert,
    "camembert": _bert,
    "distilbert": _distilbert,
    "mpnet": _mpnet,
}
