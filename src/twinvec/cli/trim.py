"""`twinvec trim`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinvec.cli import options as opt
from twinvec.cli.console import Console, bytes_text, pairs
from twinvec.cli.loading import check_inputs, load_encoder, texts_of
from twinvec.errors import DataError, UsageError

if TYPE_CHECKING:
    from twinvec.model.trim import Trimmed

CHARACTERS = ("scripts", "all", "used")

Texts = Annotated[list[Path], opt.value("--texts", metavar="FILE", help="texts in the languages in use; the option may be given several times")]
Output = Annotated[Path, opt.value("--output", "-o", metavar="FOLDER", help="where the smaller model goes")]
Keep = Annotated[
    Path | None, opt.value("--keep", metavar="FILE", help="tokens to keep whatever the texts say, one a line, as the tokenizer writes them")
]
MinCount = Annotated[
    int, typer.Option("--min-count", metavar="N", min=1, help="drop tokens used fewer times; texts that have one change, and are counted")
]
Characters = Annotated[
    str,
    opt.choice("--characters", choices=CHARACTERS, help="single characters to keep for texts to come: of the scripts in use, all, or no more"),
]
Check = Annotated[Path | None, opt.value("--check", metavar="FILE", help="held-out texts: say what share of their tokens would change")]
Vectors = Annotated[
    int, typer.Option("--verify", metavar="N", min=0, help="texts that are encoded before and after, spread evenly; 0 takes all (tokens: always all)")
]


def trim(
    model: opt.Model,
    texts: Texts,
    output: Output,
    keep: Keep = None,
    min_count: MinCount = 1,
    characters: Characters = "scripts",
    check: Check = None,
    verify: Vectors = 1000,
    text: opt.TextColumn = None,
    encoding: opt.Encoding = "utf-8",
    format: opt.Format = None,
    force: Annotated[bool, typer.Option("--force", help="replace an existing model folder")] = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Cut a model's vocabulary to what your texts use.

    A multilingual model spends most of its memory on words of languages that you may never meet. Every text is tokenised before and after, and
    texts are encoded before and after; if a token or a vector differs, nothing is written. Works for Unigram (XLM-R, E5), WordPiece and BPE.

    \b
    Example:
      twinvec trim intfloat/multilingual-e5-small --texts german.txt --texts english.csv --check more.txt -o models/e5-de-en
    """
    out = Console(json, quiet)
    check_inputs([*texts, *([check] if check is not None else []), *([keep] if keep is not None else [])])
    if any(str(path) == "-" for path in texts):
        raise UsageError("--texts -: the texts are read more than once, so they cannot come from standard input; give a file")
    if output.is_file():
        raise UsageError(f"--output {output} is a file; give the name of a folder")
    if output.is_dir() and any(output.iterdir()) and not force:
        raise UsageError(f"--output {output} exists already; give another name, or --force to replace it")
    encoder = load_encoder(model)
    from twinvec.model.trim import trim as cut

    def read(paths: list[Path]) -> Iterable[str]:
        for path in paths:
            yield from texts_of(path, text=text, encoding=encoding, format=format)

    result = cut(
        encoder, lambda: read(texts), output, keep=_lines(keep) if keep is not None else (), min_count=min_count, characters=characters,
        vectors=verify or None, check=(lambda: read([check])) if check is not None else None, force=force,
    )  # fmt: skip
    if result.changed_texts:
        out.note(f"{result.changed_texts} of {result.texts} texts have tokens used fewer than {min_count} times, and will be cut another way")
    out.result({"model": model, "output": str(output), **result.to_dict()}, _shown(output, result))


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line]
    except UnicodeDecodeError as err:
        raise DataError(f"{path}: not UTF-8 ({err.reason}); save it as UTF-8") from err


def _shown(output: Path, result: Trimmed) -> list[str]:
    def saved(before: float, after: float, text: Any) -> str:
        return f"{text(before)} -> {text(after)} ({1 - after / before:.0%} less)" if before else text(after)

    lines = [
        ("vocabulary", saved(result.vocabulary_before, result.vocabulary_after, "{:,} tokens".format)),
        ("parameters", saved(result.parameters_before, result.parameters_after, lambda n: f"{n / 1e6:.1f}M")),
        ("on disk", saved(result.bytes_before, result.bytes_after, bytes_text)),
        ("in use", f"{result.used:,} tokens in {result.texts:,} texts"),
        ("proved", f"tokens of all texts equal; {result.verified_vectors:,} vectors differ by at most {result.largest_difference:.1g}"),
    ]
    if (found := result.check) is not None:
        lines.append(
            (
                "held out",
                f"{found.changed_share:.2%} of {found.tokens:,} tokens would change, in {found.changed_texts:,} of {found.texts:,} texts; "
                f"unknown {found.unknown_before:,} -> {found.unknown_after:,}",
            )
        )
    return [str(output), *pairs(lines)]
