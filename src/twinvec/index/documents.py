"""What a caller may hand to `Collection.add`, made into checked documents."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from twinvec.errors import CollectionError
from twinvec.records import Document
from twinvec.text import without_surrogates


class DocumentError(CollectionError, ValueError):
    """A document that cannot be stored."""


def document_stream(documents: Any) -> tuple[Iterator[Document], int | None]:
    """Checked documents and their number, where it is known.

    documents: an iterable of Document, of mappings with "id" and "text" (other keys, and those of "metadata", become metadata), or of
    (id, text) or (id, text, metadata) tuples; or one Document. A list or tuple is checked whole before anything is stored.
    """
    if isinstance(documents, Document):
        documents = [documents]
    if isinstance(documents, (str, bytes, Mapping)) or not isinstance(documents, Iterable):
        raise DocumentError(f"documents: wanted documents, got one {type(documents).__name__}; give a list of Document, dicts or (id, text) pairs")
    checked = (as_document(item, row) for row, item in enumerate(documents, start=1))
    if isinstance(documents, (list, tuple)):
        return iter(list(checked)), len(documents)
    return checked, None


def batches(documents: Iterator[Document], size: int) -> Iterator[list[Document]]:
    while block := list(islice(documents, size)):
        yield block


def as_document(item: Any, row: int) -> Document:
    """One checked document; DocumentError names it by its place (from 1) and its id."""
    if isinstance(item, Document):
        found = item.id, item.text, item.metadata
    elif isinstance(item, Mapping):
        found = _from_mapping(item, row)
    elif isinstance(item, (tuple, list)) and len(item) in (2, 3):
        found = item[0], item[1], item[2] if len(item) == 3 else {}
    else:
        shape = f" of {len(item)} items" if isinstance(item, (tuple, list)) else ""
        raise DocumentError(f"document {row}: wanted a Document, a dict with id and text, or an (id, text) pair; got {type(item).__name__}{shape}")
    name, text, metadata = found
    if not isinstance(name, str):
        raise DocumentError(f"document {row}: its id is {name!r} ({type(name).__name__}); ids are strings, so give str(id)")
    if not name.strip():
        raise DocumentError(f"document {row}: its id is empty; every document needs an id of its own")
    if name != without_surrogates(name) or "\x00" in name:
        raise DocumentError(f"document {row}: its id {name!r} holds characters that are not text; use an id of ordinary characters")
    if not isinstance(text, str):
        raise DocumentError(f"document {row} (id {name!r}): its text is {text!r} ({type(text).__name__}); wanted a string")
    return Document(name, without_surrogates(text), _metadata(metadata, f"document {row} (id {name!r})"))


def _from_mapping(item: Mapping[Any, Any], row: int) -> tuple[Any, Any, Any]:
    for key in ("id", "text"):
        if key not in item:
            raise DocumentError(f"document {row}: no {key!r} among its keys {', '.join(map(repr, item)) or '(none)'}; wanted id and text")
    metadata = item.get("metadata") or {}
    more = {key: value for key, value in item.items() if key not in ("id", "text", "metadata")}
    if not more or not isinstance(metadata, Mapping):
        return item["id"], item["text"], metadata
    twice = [key for key in more if key in metadata]
    if twice:
        raise DocumentError(f"document {row}: {twice[0]!r} is both a key of the document and of its metadata; keep one")
    return item["id"], item["text"], {**metadata, **more}


def _metadata(metadata: Any, what: str) -> dict[str, Any]:
    """A plain JSON object, as it will come back."""
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise DocumentError(f"{what}: its metadata is a {type(metadata).__name__}; wanted a dict (a JSON object)")
    for key, value in metadata.items():
        if not isinstance(key, str):
            raise DocumentError(f"{what}: metadata key {key!r} is no string; JSON objects have string keys")
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as err:
            raise DocumentError(f"{what}: metadata {key!r} = {value!r:.80} is no JSON value ({err}); give text, numbers, lists or dicts") from err
    return dict(metadata)


def to_json(metadata: Mapping[str, Any]) -> str:
    """The stored form. ASCII escapes keep lone surrogates out of the database; keys keep their order."""
    return json.dumps(metadata, allow_nan=False, separators=(",", ":"))
