"""Files as blocks of texts, for inputs of any size: memory is that of one block."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from twinvec.data.beir import is_retrieval_folder
from twinvec.data.documents import read_documents, stream_texts
from twinvec.data.tables import format_of
from twinvec.data.textfile import GZIP_MAGIC, standard_input
from twinvec.errors import UsageError
from twinvec.records import Document

STDIN: Final = "-"
COUNT_BYTES: Final = 1 << 30  # larger files are not read for their number of lines alone


@dataclass(frozen=True)
class Source:
    """Where texts come from: files and folders in order, "-" for standard input, and how they are read (see `read_documents`)."""

    paths: tuple[str, ...]
    text: str | None = None
    id: str | None = None
    encoding: str = "utf-8"
    format: str | None = None

    def __post_init__(self) -> None:
        if not self.paths:
            raise UsageError("texts: no file was given")
        if self.paths.count(STDIN) > 1:
            raise UsageError("- (standard input) was given twice; it can be read once only")


@dataclass
class Block:
    """Neighbouring rows: texts, and where they are asked for ids and whole documents (else empty lists)."""

    texts: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.texts)


def read_blocks(source: Source, *, rows: int, characters: int, keep: str = "ids") -> Iterator[Block]:
    """Blocks of at most `rows` texts and about `characters` characters: one text longer than that is a block of its own.

    keep: "texts" alone, "ids" with them (checked to differ), or "documents" with their metadata too. Where a block ends depends on the input only.
    """
    block, size = Block(), 0
    for name, text, document in _rows(source, keep):
        if block.texts and (len(block.texts) == rows or size + len(text) > characters):
            yield block
            block, size = Block(), 0
        block.texts.append(text)
        size += len(text)
        if name is not None:
            block.ids.append(name)
        if document is not None:
            block.documents.append(document)
    if block.texts:
        yield block


def _rows(source: Source, keep: str) -> Iterator[tuple[str | None, str, Document | None]]:
    files = [path for path in source.paths if path != STDIN]
    given: dict[str, Any] = {"text": source.text, "encoding": source.encoding, "format": source.format}
    for part in _stretches(source.paths):
        if part == [STDIN]:
            for number, line in enumerate(standard_input(source.encoding), start=1):
                name = f"stdin:{number}"
                yield None if keep == "texts" else name, line, Document(name, line) if keep == "documents" else None
        elif keep == "texts":
            for path in part:
                if Path(path).is_dir() and is_retrieval_folder(Path(path)):
                    yield from ((None, document.text, None) for document in read_documents(path, text=source.text))
                else:
                    yield from ((None, text, None) for text in stream_texts(path, source.text, encoding=source.encoding, format=source.format))
        else:
            for document in read_documents(part, id=source.id, among=files, metadata=keep == "documents", **given):
                yield document.id, document.text, document if keep == "documents" else None


def _stretches(paths: Sequence[str]) -> Iterator[list[str]]:
    """The files between standard inputs: ids must differ over all of them, so they are read by one call where nothing stands between."""
    part: list[str] = []
    for path in paths:
        if path == STDIN:
            if part:
                yield part
            yield [STDIN]
            part = []
        else:
            part.append(path)
    if part:
        yield part


def count_rows(source: Source) -> int | None:
    """How many rows will come, where that is cheap to know: Parquet says, plain files have lines. None: not known (gzip, JSON arrays, a pipe)."""
    total = 0
    for name in source.paths:
        found = None if name == STDIN else _count(Path(name), source.format)
        if found is None:
            return None
        total += found
    return total


def _count(path: Path, format: str | None) -> int | None:
    try:
        if not path.is_file():
            return None
        kind = format_of(path, format)
        with open(path, "rb") as stream:
            zipped = stream.read(2) == GZIP_MAGIC
        if kind == "parquet" and not zipped:
            import pyarrow.parquet as pq

            return int(pq.read_metadata(path).num_rows)
        if zipped or kind not in ("txt", "tsv", "csv", "jsonl") or path.stat().st_size > COUNT_BYTES:
            return None
        lines = _lines(path, quoted=kind == "csv")
        return max(lines - (kind in ("csv", "tsv")), 0)
    except Exception:  # the reader will say what is wrong with the file, better than this can
        return None


def _lines(path: Path, quoted: bool) -> int:
    """Line ends, outside quotes where `quoted`, and a last line without one."""
    count, inside, last = 0, 0, b"\n"
    with open(path, "rb") as stream:
        while part := stream.read(1 << 20):
            last = part[-1:]
            if quoted:
                pieces = part.split(b'"')
                count += sum(piece.count(b"\n") for piece in pieces[inside::2])
                inside = (inside + len(pieces) - 1) % 2
            else:
                count += part.count(b"\n")
    return count + (last != b"\n")


def head_digest(path: Path, size: int = 1 << 20) -> str:
    """SHA-256 of the first bytes of a file as it lies on the disk: enough to tell two inputs apart, whatever their length."""
    with open(path, "rb") as stream:
        return hashlib.sha256(stream.read(size)).hexdigest()
