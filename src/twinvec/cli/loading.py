"""Opening what a command line names: models, output files, documents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinvec.errors import DataError, UsageError, choose

if TYPE_CHECKING:
    from twinvec.model.encoder import Encoder
    from twinvec.records import Document


def load_encoder(name: str, **options: Any) -> Encoder:
    """The model that was asked for; options left at None are the model's own."""
    from twinvec.model.encoder import Encoder

    return Encoder.load(name, **{key: value for key, value in options.items() if value is not None})


def prompt_note(encoder: Encoder, prompt: str | None) -> list[str]:
    """A sentence when a model that was trained with prompts is used without one and nobody said so."""
    offered = [name for name, text in encoder.prompts.items() if text]
    if prompt is not None or not offered or encoder.prompt_text(None):
        return []
    return [f"this model has prompts ({', '.join(offered)}) and none was used, which may cost much of its quality; see --prompt"]


def check_output(path: Path, suffixes: tuple[str, ...], force: bool, option: str = "--output") -> None:
    """UsageError when nothing can be written there, said before the work rather than after it."""
    if path.suffix.lower() not in suffixes:
        raise UsageError(f"{option} {path}: the name's ending chooses the format; wanted one of {', '.join(suffixes)}")
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder; give the name of a file")
    if path.exists() and not force:
        raise UsageError(f"{option} {path} exists already; give another name, or --force to replace it")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise UsageError(f"{option} {path}: {folder} is a file, so there can be no file below it")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{option} {path}: the folder {folder} cannot be written to")


def check_inputs(paths: list[Path]) -> None:
    """DataError for the first path that is not there, before a model is loaded for nothing."""
    for path in paths:
        if str(path) != "-" and not path.exists():
            raise DataError(f"{path}: no such file or folder")


def documents_of(
    paths: list[Path], *, text: str | None, id: str | None, encoding: str, format: str | None, numbers: bool = True
) -> Iterator[Document]:
    """The documents of the files; "-" is standard input, one text a line with ids stdin:1, stdin:2, ..."""
    from twinvec.data.documents import read_documents
    from twinvec.data.textfile import standard_input
    from twinvec.records import Document

    files = [path for path in paths if str(path) != "-"]
    if files:
        yield from read_documents(files, text=text, id=id, encoding=encoding, format=format, numbers=numbers)
    if len(files) < len(paths):
        for number, line in enumerate(standard_input(encoding), start=1):
            yield Document(f"stdin:{number}", line)


def texts_of(path: Path, *, text: str | None, encoding: str, format: str | None) -> Iterator[str]:
    """The texts of a file, or of standard input ("-"), in order and without ids."""
    from twinvec.data.documents import read_texts
    from twinvec.data.textfile import standard_input

    if str(path) == "-":
        yield from standard_input(encoding)
        return
    yield from read_texts(path, text, encoding=encoding, format=format)


def read_option_map(option: str, value: str | None, names: tuple[str, ...] = ()) -> dict[str, str | None] | None:
    """'query=query,document=passage' as a dict; UsageError says what was wanted."""
    if value is None:
        return None
    found: dict[str, str | None] = {}
    for item in value.split(","):
        name, equals, text = item.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{option} {value!r}: wanted COLUMN=NAME,..., for example query=query,document=passage")
        if names:
            choose(option, name.strip(), names)
        found[name.strip()] = text.strip()
    return found
