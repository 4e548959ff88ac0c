"""What rows of a collection's database say, and the checksums that they carry."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Settings:
    """What a collection was made for. `dimensions` is None until the first vectors when no model was given."""

    fingerprint: str
    model: str
    model_path: str | None
    dimensions: int | None
    kind: str
    metric: str
    document_prompt: str | None
    query_prompt: str | None
    created: str
    twinvec: str
    store: str = "float32"
    passage_tokens: int | None = None
    passage_overlap: int | None = None
    on_long: str | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A passage: `start` and `stop` are characters of its document's text; None: all of it."""

    number: int
    part: int
    start: int | None
    stop: int | None

    @property
    def span(self) -> tuple[int, int] | None:
        return None if self.start is None or self.stop is None else (self.start, self.stop)

    def of(self, text: str) -> str:
        return text if self.start is None else text[self.start : self.stop]


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored document: `metadata` as JSON text; `pieces`: its passages in order, none when it has no vector."""

    number: int
    id: str
    text: str
    metadata: str
    pieces: tuple[Piece, ...] = ()


def seal(*parts: Any) -> int:
    """CRC-32 over the parts of a row. The length of each part is part of it, so nothing can move from one column to the next."""
    return zlib.crc32("".join([f"{len(text)}:{text}" for text in map(str, parts)]).encode("utf-8", "surrogatepass"))


def document_seal(number: int, name: str, text: str, metadata: str) -> int:
    """`seal` of a document, written out: it is taken for every hit."""
    digits = str(number)
    return zlib.crc32(
        f"{len(digits)}:{digits}{len(name)}:{name}{len(text)}:{text}{len(metadata)}:{metadata}".encode("utf-8", "surrogatepass")
    )  # fmt: skip


def passage_seal(number: int, document: int, part: int, start: int | None, stop: int | None) -> int:
    """A passage that is a whole text has the seal that it had in format 1."""
    if start is not None or stop is not None:
        return seal(number, document, part, start, stop)
    one, two, three = str(number), str(document), str(part)
    return zlib.crc32(f"{len(one)}:{one}{len(two)}:{two}{len(three)}:{three}".encode())
