"""Backbones and tokenizers of transformers, loaded so that nothing is left to chance."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from twinvec.errors import ModelError

PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16, "float16": torch.float16}


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers prints bars and load reports; twinvec says itself what matters."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def check_weights(folder: Path) -> None:
    """ModelError when the folder has no safetensors weights, or something else under that name."""
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        if any(folder.glob("*.bin")):
            raise ModelError(f"{folder}: only pickled weights (*.bin), which can run code when opened; convert the model to model.safetensors first")
        raise ModelError(f"{folder}: no weights (model.safetensors) in the folder")
    for path in found:
        with open(path, "rb") as stream:
            start = stream.read(64)
        if start.startswith(b"version https://git-lfs"):
            raise ModelError(f"{path} is a Git LFS pointer, not the weights; run 'git lfs pull' in its repository")
        if start.lstrip()[:1] == b"<":
            raise ModelError(f"{path} holds a web page, not weights (it begins {start.lstrip()[:15].decode('latin-1')!r}); download it again")


def load_backbone(folder: Path, precision: str, *, trust_remote_code: bool = False) -> nn.Module:
    """The encoder of a transformers folder in eval mode, without an unused pooler, every weight found in the file.

    Weights stored in half precision come up in float32 unless `precision` asks otherwise: on a CPU, half precision is ten times slower.
    """
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding

    check_weights(folder)
    try:
        with _quiet():
            config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
            auto = AutoModelForTextEncoding if getattr(config, "is_encoder_decoder", False) else AutoModel
            known = auto._model_mapping.get(type(config), None)
            options: dict[str, Any] = {"dtype": PRECISIONS[precision], "use_safetensors": True, "trust_remote_code": trust_remote_code}
            if known is not None and "add_pooling_layer" in inspect.signature(known.__init__).parameters:
                options["add_pooling_layer"] = False
            model, report = auto.from_pretrained(folder, config=config, output_loading_info=True, **options)
    except SafetensorError as err:
        raise ModelError(f"{folder}: the weights cannot be read ({err}); the file is damaged or cut short, fetch it again") from err
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as err:
        first = (str(err).strip().splitlines() or [""])[0][:300]
        raise ModelError(f"{folder}: transformers cannot load this model ({type(err).__name__}: {first})") from err
    missing = sorted(key for key in report["missing_keys"] if "position_ids" not in key)
    if missing:
        raise ModelError(
            f"{folder}: {len(missing)} weights are not in the file (first: {missing[0]}); they would be random. "
            "Is this the folder of another architecture, or a head without its encoder?"
        )
    found: nn.Module = model.eval()
    return found


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> Any:
    from transformers import AutoTokenizer

    try:
        with _quiet():
            return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as err:  # the loaders of transformers raise whatever their parsers raise
        first = (str(err).strip().splitlines() or [""])[0][:300]
        raise ModelError(f"{folder}: the tokenizer cannot be loaded ({type(err).__name__}: {first}); is tokenizer.json in the folder?") from err


def is_decoder_only(model: nn.Module) -> bool:
    """True for language models that read from left to right (Llama, Qwen, Mistral, Gemma, GPT-2, ...)."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    config: Any = model.config
    causal = type(config) in AutoModelForCausalLM._model_mapping
    masked = type(config) in AutoModelForMaskedLM._model_mapping
    return bool(causal and not masked) or bool(getattr(config, "is_decoder", False))


def window_of(model: nn.Module, tokenizer: Any, asked: int | None) -> int:
    """The largest number of tokens a row may have, special tokens included: the least of what folder, tokenizer and position table allow."""
    config: Any = model.config
    limits = [asked] if asked else []
    if tokenizer.model_max_length and tokenizer.model_max_length < 10**6:
        limits.append(int(tokenizer.model_max_length))
    table = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if isinstance(table, int) and table > 0:
        # RoBERTa, XLM-R and MPNet number positions from padding_idx + 1.
        embeddings = getattr(model, "embeddings", None)
        offset = getattr(embeddings, "padding_idx", None) if config.model_type != "bert" else None
        limits.append(table - (offset + 1 if isinstance(offset, int) else 0))
    return min(limits) if limits else 512
