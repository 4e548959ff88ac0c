"""Whose vectors these are: the model of a collection, known to it by a fingerprint only."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from twinvec.errors import CollectionError, UsageError, nearest
from twinvec.index.store import Settings
from twinvec.records import Encoding

AUTO = "auto"
_DOCUMENT = ("document", "passage", "search_document", "corpus")
_QUERY = ("query", "search_query", "question")


class EncoderLike(Protocol):
    """What a collection needs of an encoder. It may also have `prompts` (name -> text) and `source` (its folder)."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    def encode_with_report(self, texts: Any, *, prompt: str | None = None) -> Encoding: ...


def identity(encoder: EncoderLike | str, model: str | None, dimensions: int | None) -> tuple[str, str, str | None, int | None]:
    """(fingerprint, model name, its folder, dimensions) as they are stored."""
    if isinstance(encoder, str):
        if not encoder.strip():
            raise CollectionError("the fingerprint is empty; give the encoder, or encoder.fingerprint of the model that made the vectors")
        if dimensions is not None and (isinstance(dimensions, bool) or not isinstance(dimensions, int) or dimensions < 1):
            raise CollectionError(f"dimensions = {dimensions!r}: wanted a whole number, 1 or more")
        return encoder, model or "(unnamed)", None, dimensions
    for name in ("fingerprint", "dimensions", "encode_with_report"):
        if not hasattr(encoder, name):
            raise CollectionError(f"encoder: wanted an Encoder (or a fingerprint), got {type(encoder).__name__}, which has no {name}")
    if dimensions is not None and dimensions != encoder.dimensions:
        raise CollectionError(f"dimensions = {dimensions}, but the model {encoder.name} gives {encoder.dimensions}; leave the option out")
    name = model or str(encoder.name)
    # A folder is stored whole, since a collection may be opened from another working directory; names such as "minilm" stay names.
    folder = str(Path(name).expanduser().resolve()) if Path(name).expanduser().is_dir() else None
    return encoder.fingerprint, name, folder, int(encoder.dimensions)


def prompt_names(encoder: EncoderLike | str, document: str | None, query: str | None) -> tuple[str | None, str | None]:
    """The names of the two prompts with "auto" decided. UsageError for a prompt that the model does not have."""
    prompts: dict[str, str] = dict(getattr(encoder, "prompts", None) or {})
    chosen = []
    for option, name, choices in (("document_prompt", document, _DOCUMENT), ("query_prompt", query, _QUERY)):
        if name == AUTO:
            name = next((choice for choice in choices if choice in prompts), None)
        elif name and not isinstance(encoder, str) and hasattr(encoder, "prompts") and name not in prompts:
            known = ", ".join(prompts) or "none"
            raise UsageError(f"{option} = {name!r}: this model ({encoder.name}) knows these prompts: {known}{nearest(name, prompts)}")
        chosen.append(name)
    return chosen[0], chosen[1]


def check_model(path: Path, settings: Settings, encoder: EncoderLike | str | None) -> None:
    """CollectionError when `encoder` (or a fingerprint) is not the model of the collection."""
    if encoder is None:
        return
    if not isinstance(encoder, str) and not hasattr(encoder, "fingerprint"):
        raise CollectionError(f"encoder: wanted an Encoder (or a fingerprint), got {type(encoder).__name__}, which has no fingerprint")
    fingerprint = encoder if isinstance(encoder, str) else encoder.fingerprint
    if fingerprint == settings.fingerprint:
        return
    name = "a model" if isinstance(encoder, str) else str(encoder.name)
    load = settings.model_path or settings.model
    changed = " The model in that folder was changed since." if name in (settings.model, settings.model_path) else ""
    raise CollectionError(
        f"{path} was made with the model {settings.model} (fingerprint {settings.fingerprint[:12]}), this is {name} ({fingerprint[:12]}).{changed} "
        f"Vectors of two models cannot be compared: use {load}, or move the collection to the other model: "
        f"twinvec index {path} --reindex --model {name if name != 'a model' else 'MODEL'}"
    )
