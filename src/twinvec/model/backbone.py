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
from twinvec.model.resolve import first_line

PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16, "float16": torch.float16}


@contextmanager
def quiet() -> Iterator[None]:
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
        with quiet():
            config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
            # The encoder half of T5 and its kin; a folder saved from that half alone no longer calls itself encoder-decoder.
            auto = AutoModelForTextEncoding if type(config) in AutoModelForTextEncoding._model_mapping else AutoModel
            known = auto._model_mapping.get(type(config), None)
            options: dict[str, Any] = {"dtype": PRECISIONS[precision], "use_safetensors": True, "trust_remote_code": trust_remote_code}
            if known is not None and "add_pooling_layer" in inspect.signature(known.__init__).parameters:
                options["add_pooling_layer"] = False
            # Without ignore_mismatched_sizes transformers names the shapes only in a printed table; with it, the report holds them.
            model, report = auto.from_pretrained(folder, config=config, output_loading_info=True, ignore_mismatched_sizes=True, **options)
    except SafetensorError as err:
        raise ModelError(f"{folder}: the weights cannot be read ({err}); the file is damaged or cut short, fetch it again") from err
    except Exception as err:  # transformers raises whatever a config or a modelling file raises
        if "trust_remote_code" in str(err):
            raise ModelError(f"{folder}: the model wants to run code of its own; read that code, then load with trust_remote_code=True") from err
        raise ModelError(f"{folder}: transformers cannot load this model ({type(err).__name__}: {first_line(err)})") from err
    if mismatched := sorted(report["mismatched_keys"]):
        key, stored, wanted = mismatched[0]
        raise ModelError(
            f"{folder}: {len(mismatched)} weights do not fit config.json (first: {key} is {tuple(stored)} in the file, "
            f"{tuple(wanted)} by config.json); the two are of different models"
        )
    missing = sorted(key for key in report["missing_keys"] if "position_ids" not in key)
    if missing:
        raise ModelError(
            f"{folder}: {len(missing)} weights are not in the file (first: {missing[0]}); they would be random. "
            "Is this the folder of another architecture, or a head without its encoder?"
        )
    found: nn.Module = model.eval()
    return found


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a folder. ModelError when it cannot be read, or when it comes up without a vocabulary."""
    from transformers import AutoTokenizer

    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
            known = len(tokenizer)
    except Exception as err:  # the loaders of transformers raise whatever their parsers raise
        raise ModelError(
            f"{folder}: the tokenizer cannot be loaded ({type(err).__name__}: {first_line(err)}); is tokenizer.json in the folder?"
        ) from err
    if known <= len(tokenizer.all_special_tokens):
        # Without its files transformers makes up an empty tokenizer, to which every word is unknown.
        raise ModelError(f"{folder}: the tokenizer has no vocabulary; tokenizer.json (or vocab.txt and its like) is missing from the folder")
    return tokenizer


def is_decoder_only(model: nn.Module) -> bool:
    """True for language models that read from left to right (Llama, Qwen, Mistral, Gemma, GPT-2, ...)."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    config: Any = model.config
    causal = type(config) in AutoModelForCausalLM._model_mapping
    masked = type(config) in AutoModelForMaskedLM._model_mapping
    return bool(causal and not masked) or bool(getattr(config, "is_decoder", False))


def position_offset(model: nn.Module) -> int:
    """The number of a row's first position: 0, but padding_idx + 1 for RoBERTa, XLM-R, MPNet and their kin, whose position table says so."""
    padding = getattr(getattr(getattr(model, "embeddings", None), "position_embeddings", None), "padding_idx", None)
    return padding + 1 if isinstance(padding, int) else 0


def window_of(model: nn.Module, tokenizer: Any, asked: int | None) -> int:
    """The largest number of tokens a row may have, special tokens included: the least of what folder, tokenizer and position table allow."""
    config: Any = model.config
    limits = [asked] if asked else []
    if tokenizer.model_max_length and tokenizer.model_max_length < 10**6:
        limits.append(int(tokenizer.model_max_length))
    table = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if isinstance(table, int) and table > 0:
        limits.append(table - position_offset(model))
    return min(limits) if limits else 512
