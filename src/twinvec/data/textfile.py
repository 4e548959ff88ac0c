"""Files as bytes and as lines: gzip, encodings, and the many things that are not data."""

from __future__ import annotations

import codecs
import difflib
import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, NoReturn

from twinvec.errors import DataError, UsageError

GZIP_MAGIC: Final = b"\x1f\x8b"
HEAD_BYTES: Final = 512

# First bytes of files that are often met where data was expected, and what to do about each.
NOT_TEXT: Final = (
    (b"PAR1", "a Parquet file", "name it .parquet, or give --format parquet"),
    (b"PK\x03\x04", "a zip archive or an Excel workbook", "unpack it, or save the sheet as CSV (UTF-8)"),
    (b"\xd0\xcf\x11\xe0", "an old Excel workbook", "save the sheet as CSV (UTF-8)"),
    (b"%PDF", "a PDF", "extract its text first"),
    (b"SQLite format 3\x00", "an SQLite database", "export the table as CSV"),
    (b"BZh", "a bzip2 file", "unpack it; .gz is read as it is"),
    (b"\xfd7zXZ\x00", "an xz file", "unpack it; .gz is read as it is"),
    (b"\x28\xb5\x2f\xfd", "a zstd file", "unpack it; .gz is read as it is"),
    (b"version https://git-lfs.github.com/spec/", "a Git LFS pointer, not the file itself", "fetch the file with git lfs pull"),
)
UTF16_MARKS: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def check_path(path: Path) -> None:
    """DataError when `path` is not a file with something in it."""
    if path.is_dir():
        raise DataError(f"{path} is a folder; give a file (a folder is only read as a retrieval set, with corpus.jsonl, queries.jsonl and qrels/)")
    if not path.exists():
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.iterdir()], 1) if path.parent.is_dir() else []
        advice = (
            f"did you mean {near[0]!r}?" if near else "check the name" if path.parent.is_dir() else f"there is no folder {str(path.parent)!r} either"
        )
        raise DataError(f"{path}: no such file; {advice}")


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """The content of a file, unzipped when it is gzip (by its first bytes, whatever its name).

    DataError: no file, a folder, no permission, an empty file, a broken or truncated gzip.
    """
    check_path(path)
    try:
        with open(path, "rb") as raw:
            start = raw.read(2)
            raw.seek(0)
            if not start:
                raise DataError(f"{path}: the file is empty (0 bytes)")
            if start == GZIP_MAGIC:
                with gzip.GzipFile(fileobj=raw) as unzipped:
                    yield unzipped  # type: ignore[misc]
            elif path.suffix.lower() == ".gz":
                raise DataError(f"{path}: its name ends in .gz but it is not gzip; rename it, or fetch it again")
            else:
                yield raw
    except EOFError as err:
        raise DataError(f"{path}: the gzip file ends too early (a broken download?); fetch it again") from err
    except (gzip.BadGzipFile, zlib.error) as err:
        raise DataError(f"{path}: broken gzip file ({err}); fetch it again") from err
    except OSError as err:
        raise DataError(f"{path}: cannot be read ({err.strerror or err})") from err


def read_bytes(path: Path) -> bytes:
    """All bytes, unzipped."""
    with open_bytes(path) as stream:
        return stream.read()


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """The lines of a text file, one after the other, each with its line end if it has one. Only LF ends a line (CRLF keeps its CR).

    A byte order mark is dropped, and a second one too (the ATEC files have two). DataError: not text, or not in this encoding.
    """
    codec = text_codec(encoding)
    with open_bytes(path) as stream:
        head = stream.read(HEAD_BYTES)
        stream.seek(0)
        _refuse(path, head, codec)
        reader = io.TextIOWrapper(stream, encoding=codec, errors="strict", newline="\n")
        try:
            first = True
            for line in reader:
                if first:
                    line, first = line.lstrip("\ufeff"), False
                if "\x00" in line:
                    raise DataError(f"{path}: holds NUL bytes, so it is not text in {encoding}{_nul_advice(path)}")
                yield line
        except UnicodeDecodeError:
            _explain_bytes(path, encoding)
        finally:
            reader.detach()


def standard_input(encoding: str) -> Iterator[str]:
    """The lines of standard input without their line ends; a blank line is an empty text."""
    number = 0
    try:
        codecs.lookup(encoding)
        for number, line in enumerate(sys.stdin.buffer, start=1):
            text = line.decode(encoding).removesuffix("\n").removesuffix("\r")
            yield text.removeprefix("\ufeff") if number == 1 else text
    except LookupError:
        raise UsageError(f"--encoding {encoding!r}: no such text encoding; common ones: utf-8, gb18030, big5, cp1252") from None
    except UnicodeDecodeError as err:
        raise DataError(f"standard input, line {number}: not {encoding} ({err.reason}); give --encoding NAME, for example gb18030") from err


def text_codec(encoding: str) -> str:
    """The name under which Python decodes `encoding`; UTF-8 takes a byte order mark along. UsageError when there is no such encoding."""
    try:
        name = codecs.lookup(encoding).name
        "".encode(name)
    except (LookupError, TypeError, ValueError) as err:
        raise UsageError(f"encoding = {encoding!r}: no such text encoding; common ones: utf-8, gb18030, big5, utf-16, cp1252") from err
    return "utf-8-sig" if name == "utf-8" else name


def _refuse(path: Path, head: bytes, codec: str) -> None:
    for magic, what, advice in NOT_TEXT:
        if head.startswith(magic):
            raise DataError(f"{path} is {what}; {advice}")
    if codec == "utf-8-sig" and head.startswith(UTF16_MARKS):
        raise DataError(f"{path} is UTF-16 text; give --encoding utf-16")
    text = head.lstrip(codecs.BOM_UTF8).lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html")):
        raise DataError(f"{path} is a web page (HTML), not data; perhaps a log-in or error page was saved: fetch the raw file again")


def _nul_advice(path: Path) -> str:
    """UTF-16 without its mark is every other byte NUL in English text."""
    with open_bytes(path) as stream:
        head = stream.read(HEAD_BYTES)
    even, odd = head[0::2].count(0), head[1::2].count(0)
    if max(even, odd) > len(head) // 8:
        return f"; it looks like UTF-16: give --encoding {'utf-16-le' if odd > even else 'utf-16-be'}"
    return "; is it a binary file?"


def _explain_bytes(path: Path, encoding: str) -> NoReturn:
    """Find the first bytes that cannot be decoded and say where they are, and which encoding would take them."""
    content = read_bytes(path)
    codec = text_codec(encoding).removesuffix("-sig")  # with its mark counted, `start` below is the place in the file
    try:
        content.decode(codec)
    except UnicodeDecodeError as err:
        line = content[: err.start].decode(codec, "ignore").count("\n") + 1
        bad = content[err.start : err.start + 4].hex(" ")
        if codec == "utf-8" and not content[: err.start].isascii():
            advice = "the text before it is UTF-8, so the file is damaged there: fetch it again or correct that line"
        else:
            advice = _other_encoding(content, err.start, codec) or "give --encoding NAME"
        raise DataError(f"{path}, line {line}: byte {err.start} ({bad}) is not {encoding}; {advice}") from err
    raise DataError(f"{path}: cannot be decoded as {encoding}; give --encoding NAME")  # pragma: no cover - the stream failed, the whole did not


def _other_encoding(content: bytes, start: int, tried: str) -> str:
    """'--encoding gb18030 reads it, ...' for the first encoding that takes the whole file and gives plausible text."""
    for name in ("utf-8", "gb18030", "big5", "cp1252"):
        if tried.startswith(name):
            continue
        try:
            content.decode(name)
        except UnicodeDecodeError:
            continue
        begin = content.rfind(b"\n", 0, start) + 1
        sample = content[begin : start + 40].split(b"\n")[0].decode(name, "ignore").strip()
        if name in ("gb18030", "big5") and not any("\u4e00" <= char <= "\u9fff" for char in sample):
            continue
        return f"--encoding {name} reads it, that line then starts {sample[:30]!r}"
    return ""
