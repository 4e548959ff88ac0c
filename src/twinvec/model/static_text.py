"""Word vectors from a text file (GloVe, word2vec, fastText's .vec), and weights of words."""

from __future__ import annotations

import gzip
import io
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from twinvec.errors import ModelError, UsageError
from twinvec.model.encoder import warn

Array = npt.NDArray[Any]
SUFFIXES = (".txt", ".vec", ".txt.gz", ".vec.gz", ".gz")
_LINES_AT_ONCE = 2000


def is_vector_text(path: Path) -> bool:
    """True for a file whose name is that of word vectors in text; what is in it is another question."""
    return path.is_file() and path.name.lower().endswith(SUFFIXES)


def read_vectors(path: Path, limit: int | None = None) -> tuple[list[str], Array]:
    """Words and their vectors float32 (V, D), in the order of the file; the first `limit` words only, where given.

    One word a line, then its numbers; a first line "COUNT DIMENSIONS" may stand before. The number of dimensions is that of the first line, so a
    word may hold spaces. A word that comes twice keeps its first vector; a word that is not UTF-8 is left out; both are said in a warning.
    ModelError names the line that does not fit.
    """
    words: dict[str, None] = {}
    blocks: list[Array] = []
    seen = {"twice": 0, "undecodable": 0}
    try:
        with _opened(path) as stream:
            for names, numbers in _blocks(path, stream):
                keep = []
                for i, raw in enumerate(names):
                    try:
                        word = raw.decode("utf-8")
                    except UnicodeDecodeError:
                        seen["undecodable"] += 1
                        continue
                    if word in words:
                        seen["twice"] += 1
                    elif limit is None or len(words) < limit:
                        words[word] = None
                        keep.append(i)
                blocks.append(numbers[keep])
                if limit is not None and len(words) >= limit:
                    break
    except (EOFError, zlib.error, gzip.BadGzipFile) as err:
        raise ModelError(f"{path}: the gzip file is damaged or cut short ({err}); fetch it again") from err
    if not words:
        raise ModelError(f"{path}: no word vectors in the file")
    if seen["twice"]:
        warn(f"{path}: {seen['twice']} words come more than once; the first vector of each is kept")
    if seen["undecodable"]:
        warn(f"{path}: {seen['undecodable']} words are not UTF-8 and are left out")
    return list(words), np.concatenate(blocks)


def _blocks(path: Path, stream: BinaryIO) -> Iterator[tuple[list[bytes], Array]]:
    """Words, as bytes, and vectors of a few thousand lines at a time."""
    first = stream.readline()
    if first.startswith(b"version https://git-lfs"):
        raise ModelError(f"{path} is a Git LFS pointer, not the vectors; run 'git lfs pull' in its repository")
    if first.lstrip()[:1] == b"<" and b"html" in first.lower():
        raise ModelError(f"{path} holds a web page, not word vectors (it begins {first.lstrip()[:15].decode('latin-1')!r}); download it again")
    header = _header(first.split())
    number = 1
    if header is not None:
        dimensions = header[1]
    else:
        dimensions = len(first.split()) - 1
        stream = _Rejoined(first, stream)  # type: ignore[assignment]
        number = 0
    if dimensions < 1:
        raise ModelError(f"{path}, line 1: wanted a word and its numbers, or 'COUNT DIMENSIONS', got {first[:40].decode('utf-8', 'replace')!r}")
    names: list[bytes] = []
    rest: list[bytes] = []
    start = number + 1
    for line in stream:
        number += 1
        parts = line.replace(b"\t", b" ").strip(b" \r\n").rsplit(b" ", dimensions)
        if len(parts) != dimensions + 1 or not parts[0]:
            if not line.strip():
                raise ModelError(f"{path}, line {number}: empty, wanted a word and {dimensions} numbers")
            raise ModelError(
                f"{path}, line {number}: {len(line.split()) - 1} numbers after the word, wanted {dimensions} as on the first line"
                + ("; is this word2vec's binary format? Save it as text first" if b"\x00" in line or header else "")
            )
        names.append(parts[0])
        rest.append(b" ".join(parts[1:]))
        if len(names) == _LINES_AT_ONCE:
            yield names, _parsed(path, rest, dimensions, start)
            names, rest, start = [], [], number + 1
    if names:
        yield names, _parsed(path, rest, dimensions, start)


class _Rejoined:
    """A stream with its first line put back."""

    def __init__(self, first: bytes, rest: BinaryIO) -> None:
        self.first, self.rest = first, rest

    def __iter__(self) -> Iterator[bytes]:
        yield self.first
        yield from self.rest


def _parsed(path: Path, lines: list[bytes], dimensions: int, start: int) -> Array:
    found = _numbers(b" ".join(lines))
    if found is not None and len(found) == len(lines) * dimensions and np.isfinite(found).all():
        return found.reshape(len(lines), dimensions)
    for i, line in enumerate(lines):
        row = _numbers(line)
        if row is None or len(row) != dimensions:
            raise ModelError(f"{path}, line {start + i}: wanted {dimensions} numbers after the word, got {line[:60].decode('utf-8', 'replace')!r}")
        if not np.isfinite(row).all():
            raise ModelError(f"{path}, line {start + i}: a number of the vector is NaN or infinity; take the line out")
    raise AssertionError("a block that does not parse has a line that does not parse")


def _numbers(text: bytes) -> Array | None:
    """Numbers divided by spaces, or None. np.fromstring reads 30 million a second; float() of each would take ten times as long."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return np.fromstring(text.decode("ascii"), dtype=np.float32, sep=" ")
        except (DeprecationWarning, RuntimeWarning, ValueError):
            return None


def _header(parts: list[bytes]) -> tuple[int, int] | None:
    """COUNT and DIMENSIONS of a word2vec file."""
    if len(parts) == 2 and parts[0].isdigit() and parts[1].isdigit():
        return int(parts[0]), int(parts[1])
    return None


def _opened(path: Path) -> BinaryIO:
    try:
        if path.name.lower().endswith(".gz"):
            return io.BufferedReader(gzip.open(path, "rb"))
        return open(path, "rb")
    except OSError as err:
        raise ModelError(f"{path}: cannot be read ({err.strerror or err})") from err


def read_weights(path: Path, what: str) -> dict[str, float]:
    """Lines of a word and a number (space or tab between them; also .gz). UsageError names the line that is none."""
    found: dict[str, float] = {}
    try:
        with _opened(path) as stream:
            for number, raw in enumerate(stream, start=1):
                line = raw.decode("utf-8", "replace").strip()
                if not line:
                    continue
                word, _, value = line.replace("\t", " ").rpartition(" ")
                try:
                    weight = float(value)
                except ValueError:
                    weight = float("nan")
                if not word.strip() or not np.isfinite(weight) or weight < 0:
                    raise UsageError(f"{path}, line {number}: {what} wants lines of a word and a number of 0 or more, got {line[:60]!r}")
                found.setdefault(word.strip(), weight)
    except (EOFError, zlib.error, gzip.BadGzipFile) as err:
        raise UsageError(f"{path}: the gzip file is damaged or cut short ({err})") from err
    except ModelError as err:
        raise UsageError(str(err)) from None
    if not found:
        raise UsageError(f"{path}: {what} wants lines of a word and a number, the file has none")
    return found


def idf_weights(words: list[str], idf: dict[str, float]) -> Array:
    """float32 (V,): a word that the file lacks is rarer than all in it, so it gets the largest weight."""
    rarest = max(idf.values())
    return np.asarray([_look_up(idf, word, rarest) for word in words], dtype=np.float32)


def sif_weights(words: list[str], counts: dict[str, float], a: float = 1e-3) -> Array:
    """float32 (V,): a / (a + p(w)), p from the counts (Arora, Liang and Ma 2017, section 3; a = 1e-3 is in the middle of what they found good)."""
    total = sum(counts.values())
    if not total > 0:
        raise UsageError("SIF weights need counts of words; all of them are 0")
    return np.asarray([a / (a + _look_up(counts, word, 0.0) / total) for word in words], dtype=np.float32)


def _look_up(table: dict[str, float], word: str, otherwise: float) -> float:
    found = table.get(word)
    return found if found is not None else table.get(word.lower(), otherwise)
