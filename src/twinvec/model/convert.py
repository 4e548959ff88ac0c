"""Models of other formats as folders that twinvec, transformers and sentence-transformers open. Today: GGUF, the format of llama.cpp."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import nn

from twinvec.errors import ModelError, UsageError
from twinvec.model.backbone import is_decoder_only, quiet, window_of
from twinvec.model.encoder import Encoder
from twinvec.model.layout import parse_pooling
from twinvec.model.net import Net
from twinvec.model.resolve import first_line
from twinvec.model.tokens import Tokens

MAGIC = b"GGUF"


def load_gguf(path: str | Path, *, pooling: str | None = None, max_tokens: int | None = None, end_token: bool = False) -> Encoder:
    """The encoder in a GGUF file, its weights brought back to float32; `save` makes it an ordinary folder.

    pooling: default last_token for a language model that reads from left to right (E5-Mistral, Wang et al. 2024), else mean.
    end_token: the tokenizer sets the model's end token after each text, as E5-Mistral does, so that last_token pooling reads one and the same token.
    The language model's output layer is left out: an encoder has no use for it. ModelError when the file is none, or of an unknown kind.
    """
    modes = parse_pooling(pooling) if pooling is not None else None
    path = _find(Path(path).expanduser())
    backbone, tokenizer = _read(path)
    if end_token:
        add_end_token(tokenizer)
    window = window_of(backbone, tokenizer, None)
    if max_tokens is not None and not 0 < max_tokens <= window:
        raise UsageError(f"max_tokens = {max_tokens}: this model's window is 1 to {window} tokens")
    tokens = Tokens(tokenizer, max_tokens or window)
    net = Net(backbone, modes or (("last_token",) if is_decoder_only(backbone) else ("mean",)), [], normalize=False, pad_id=tokens.pad_id).eval()
    return Encoder(net, tokens, name=path.stem)


def _find(path: Path) -> Path:
    """The GGUF file meant: the path itself, or the only one in the folder. ModelError when it is none."""
    if path.is_dir():
        inside = sorted(found.name for found in path.glob("*.gguf"))
        if len(inside) != 1:
            there = f"it holds {', '.join(inside[:4])}" if inside else "it holds none"
            raise ModelError(f"{path} is a folder; give the GGUF file itself, or a folder with one *.gguf ({there})")
        path = path / inside[0]
    if not path.is_file():
        raise ModelError(f"{path}: no such file; give a GGUF file (*.gguf)")
    with open(path, "rb") as stream:
        start = stream.read(64)
    if start.startswith(b"version https://git-lfs"):
        raise ModelError(f"{path} is a Git LFS pointer, not the weights; run 'git lfs pull' in its repository")
    if start[:4] != MAGIC:
        raise ModelError(f"{path} is no GGUF file: it begins {start[:4]!r}, wanted {MAGIC!r}")
    if importlib.util.find_spec("gguf") is None:
        raise ModelError(f"{path}: reading GGUF needs the package gguf; pip install 'twinvec[gguf]'")
    return path


def _read(path: Path) -> tuple[nn.Module, Any]:
    from transformers import AutoModel, AutoTokenizer

    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
            read, report = AutoModel.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32, output_loading_info=True)
    except Exception as err:  # the reader of GGUF raises whatever its parsers raise
        raise ModelError(
            f"{path}: transformers cannot read this GGUF file ({type(err).__name__}: {first_line(err)}); "
            "the file is cut short, or of an architecture or quantisation that it does not know"
        ) from err
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelError(f"{path}: {len(missing)} weights are not in the file (first: {missing[0]}); they would be random")
    config = read.config
    # What came out of a quantised file calls itself quantised still, and transformers refuses to save it: a fresh model does not.
    for name in ("quantization_config", "_name_or_path"):
        if hasattr(config, name):
            delattr(config, name)
    config.architectures = None
    with quiet():
        fresh = AutoModel.from_config(config, dtype=torch.float32)
    fresh.load_state_dict(read.state_dict())
    tokenizer.init_kwargs.pop("gguf_file", None)
    tokenizer.init_kwargs.pop("name_or_path", None)
    tokenizer.name_or_path = ""
    tokenizer.model_max_length = min(int(tokenizer.model_max_length), int(config.max_position_embeddings))
    model: nn.Module = fresh.eval()
    return model, tokenizer


def add_end_token(tokenizer: Any) -> None:
    """Let a fast tokenizer set its end token after each text. ModelError when it has none."""
    from tokenizers import processors

    end, backend = tokenizer.eos_token, getattr(tokenizer, "backend_tokenizer", None)
    if not end or backend is None:
        raise ModelError("the tokenizer has no end token that could be set after each text; convert without --end-token")
    plain = backend.encode("a").ids
    if plain and plain[-1] == tokenizer.eos_token_id:
        return
    added = processors.TemplateProcessing(single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, int(tokenizer.eos_token_id))])
    own = backend.post_processor
    backend.post_processor = processors.Sequence([own, added]) if own is not None else added
