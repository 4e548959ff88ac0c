"""Texts to encode or to index: documents with id, text and metadata from any table, or a plain list of texts."""

from __future__ import annotations

import datetime
import decimal
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from twinvec.data.beir import corpus_documents, document_id, is_retrieval_folder
from twinvec.data.columns import TEXTS, plain
from twinvec.data.numbers import looked_ahead, numeric_columns, with_numbers
from twinvec.data.tables import format_of, parquet_columns, place, read_table, stream_rows
from twinvec.data.unique import Seen
from twinvec.errors import DataError, UsageError, nearest
from twinvec.records import Document
from twinvec.text import without_surrogates

IDS: Final = ("id", "docid", "documentid", "pid", "uid", "编号", "文档编号", "序号")
TITLES: Final = ("title", "标题")
BOTH: Final = "title+text"
TEXT_TABLES: Final = ("csv", "tsv", "tsv-quoted")


def read_documents(
    paths: str | Path | Sequence[str | Path], *, text: str | None = None, id: str | None = None, encoding: str = "utf-8", format: str | None = None,
    metadata: bool = True, among: Sequence[str | Path] = (), numbers: bool = True,
) -> Iterator[Document]:  # fmt: skip
    """Documents of files, or of retrieval folders (their corpus), one by one.

    text: the text's column ("title+text" joins two), found by name when None: text, sentence, question, content, 文本, 问题, ...; a title
    goes before the text, as in BEIR. id: the id's column, found by name when None (id, _id, doc_id, 编号); without one the id is
    "FILE:ROW" with rows from 1. All other columns, the title too, become metadata, unless metadata=False. among: all files of the job, when these
    are some of them; an id names its folder too where two files are called the same. numbers: a metadata column of a CSV or TSV file whose first
    1,000 cells are all numbers (or empty, then null) becomes numbers; numbers with leading zeros or of more than 15 digits are names, and stay text.
    Memory does not grow with the files, but for 16 bytes a row: ids must differ.
    DataError: a file that cannot be read, no column or more than one for the text, an id twice (both rows are named).
    """
    sources = [Path(path) for path in ([paths] if isinstance(paths, (str, Path)) else paths)]
    if not sources:
        raise UsageError("documents: no file was given")
    others = [Path(path) for path in among] or sources

    def rows_of(path: Path) -> Iterator[_Placed]:
        if path.is_dir() and is_retrieval_folder(path):
            if text is not None or id is not None:
                raise UsageError(f"{path} is a retrieval folder, whose columns are fixed; leave out --text and --id")
            return ((document, line, line) for document, line in corpus_documents(path))
        return _rows(path, _stem(path, others), text, id, encoding, format, metadata, numbers=numbers)

    return _distinct(sources, rows_of)


_Placed = tuple[Document, int, int | None]  # with its row from 1 and its line
_AHEAD, _AHEAD_CHARACTERS = 1024, 1 << 20  # rows whose ids are compared at once


def _distinct(sources: Sequence[Path], rows_of: Callable[[Path], Iterator[_Placed]]) -> Iterator[Document]:
    """The documents of all files; DataError where an id comes again."""
    seen, starts = Seen(), [0]

    def checked(path: Path, part: list[_Placed]) -> Iterator[Document]:
        suspects = dict(seen.add([document.id for document, _, _ in part]))
        first = seen.count - len(part)
        for i, (document, row, line) in enumerate(part):
            if first + i in suspects:
                number = suspects[first + i]
                file = bisect_right(starts, number) - 1
                earlier = part[number - first] if number >= first else _nth(rows_of(sources[file]), number - starts[file])
                if earlier is None or earlier[0].id == document.id:
                    other = f"{sources[file]}, " if sources[file] != path else ""
                    where = place(earlier[1], earlier[2]) if earlier else place(number - starts[file] + 1, None)
                    raise DataError(
                        f"{path}, {place(row, line)}: the id {document.id!r} was given before, in {other}{where}; "
                        "ids must differ, or choose another column with --id"
                    )
            yield document

    for number, path in enumerate(sources):
        if number:
            starts.append(seen.count)
        part, size = [], 0
        try:
            for placed in rows_of(path):
                part.append(placed)
                size += len(placed[0].text)
                if len(part) == _AHEAD or size > _AHEAD_CHARACTERS:
                    full, part, size = part, [], 0
                    yield from checked(path, full)
        except DataError:
            yield from checked(path, part)  # the rows before a bad one come out, as they do in a file without ids
            raise
        yield from checked(path, part)


def _nth(rows: Iterator[_Placed], number: int) -> _Placed | None:
    """Row `number` (from 0) of a file that is read once more; None where it cannot be, as a pipe."""
    try:
        return next(islice(rows, number, None), None)
    except DataError:
        return None


def stream_texts(path: str | Path, column: str | None = None, *, encoding: str = "utf-8", format: str | None = None) -> Iterator[str]:
    """The texts of a file one by one, as `read_texts` gives them, for files larger than memory."""
    path = Path(path)
    return (document.text for document, _, _ in _rows(path, "", column, None, encoding, format, metadata=False, named=False))


def read_texts(path: str | Path, column: str | None = None, *, encoding: str = "utf-8", format: str | None = None) -> list[str]:
    """The texts of a file in its order: the lines of plain text, or one column of a table (found by name when None)."""
    path = Path(path)
    table = read_table(path, encoding=encoding, format=format)
    picker = _Picker(list(table.columns), path, column, None)
    out = []
    for i in range(len(table)):
        row = {name: table.columns[name][i] for name in picker.wanted}
        out.append(picker.text(row, i + 1, table.lines[i] if table.lines else None))
    return out


def _stem(path: Path, sources: Sequence[Path]) -> str:
    """The file's name without endings; with its folder's name when another file is called the same."""

    def name(source: Path) -> str:
        return source.name.removesuffix(".gz").rpartition(".")[0] or source.name

    return name(path) if sum(name(other) == name(path) for other in sources) == 1 else f"{path.parent.name}/{name(path)}"


def _rows(
    path: Path, stem: str, text: str | None, id: str | None, encoding: str, format: str | None, metadata: bool = True, named: bool = True,
    numbers: bool = False,
) -> Iterator[_Placed]:  # fmt: skip
    picker: _Picker | None = None
    kind = format_of(path, format)
    columns: list[str] | None = None
    if kind == "parquet" and not metadata:  # other columns, such as vectors, need not be read at all
        picker = _Picker(parquet_columns(path), path, text, id, named)
        columns = picker.needed
    # JSON objects may lack keys, so a column that is asked for is looked for in every row, and known ones in the first row only.
    fixed = kind not in ("json", "jsonl")
    number, numeric = 0, frozenset[str]()
    rows = stream_rows(path, encoding=encoding, format=format, columns=columns)
    if numbers and metadata and kind in TEXT_TABLES:
        head, rows = looked_ahead(rows)
        numeric = numeric_columns(row for _, row in head)
    for number, (line, row) in enumerate(rows, start=1):
        if picker is None:
            extra = [] if fixed else [name for name in (text, id) if name and name != BOTH and name not in row]
            picker = _Picker([*row, *extra], path, text, id, named)
        if not named:
            name = ""
        elif picker.id is None:
            name = f"{stem}:{number}"
        else:
            name = document_id(_whole(row.get(picker.id)), f"{path}, {place(number, line)}", picker.id)
        content = picker.text(row, number, line)
        kept = {}
        if metadata:
            cells = with_numbers(row, numeric)
            kept = {key: _json_value(value) for key, value in cells.items() if key != picker.id and key != picker.main}
        yield Document(name, content, kept), number, line
    if not number:
        raise DataError(f"{path}: no rows (a header at most); is it the right file?")


class _Picker:
    """Which columns of a file hold title, text and id."""

    def __init__(self, names: list[str], path: Path, text: str | None, id: str | None, named: bool = True) -> None:
        self.path, self.names = path, names
        by_key: dict[str, list[str]] = {}
        for name in names:
            by_key.setdefault(plain(name), []).append(name)
        titles = [name for key in TITLES for name in by_key.get(key, [])]
        known = [name for key in IDS for name in by_key.get(key, [])]
        self.id = self._given(id, "--id") if id is not None else self._only(known, "the id", "--id") if named else None
        self.title: str | None = None
        if text is not None and text != BOTH:
            self.main = self._given(text, "--text")
        else:
            found = [name for key in TEXTS for name in by_key.get(key, []) if name != self.id]
            main = self._only(found, "the text", "--text")
            self.title = titles[0] if titles and (text == BOTH or main in by_key.get("text", []) + by_key.get("文本", [])) else None
            if main is None or (text == BOTH and self.title is None):
                example = next((name for name in names if name != self.id), names[0])
                wanted = "a title and a text" if text == BOTH else "the text (text, sentence, content, 文本, ...)"
                there = ", ".join(map(repr, names[:12]))
                raise DataError(f"{path}: no column for {wanted} among {there}; say which with --text, for example --text {example}")
            self.main = main
        self.wanted = [name for name in (self.title, self.main) if name is not None]
        self.needed = list(dict.fromkeys(name for name in (self.id, *self.wanted) if name is not None))

    def _given(self, name: str, option: str) -> str:
        if name in self.names:
            return name
        close = [other for other in self.names if plain(other) == plain(name)]
        if len(close) != 1:
            there = ", ".join(map(repr, self.names[:12]))
            raise UsageError(f"{self.path}: {option} {name!r} is no column; there are {there}{nearest(name, self.names)}")
        return close[0]

    def _only(self, found: list[str], what: str, option: str) -> str | None:
        if len(found) > 1:
            several = " and ".join(map(repr, found))
            raise DataError(f"{self.path}: {several} could each be {what}; say which with {option}, for example {option} {found[0]}")
        return found[0] if found else None

    def text(self, row: Mapping[str, Any], number: int, line: int | None) -> str:
        parts = []
        for name in self.wanted:
            value = row.get(name)
            if value is None and name == self.title:
                continue
            if not isinstance(value, str):
                said = "is missing" if value is None else f"is {value!r:.60} ({type(value).__name__})"
                raise DataError(f"{self.path}, {place(number, line)}: {name!r} {said}; wanted a text, or choose another column with --text")
            parts.append(value)
        return without_surrogates(" ".join(part for part in parts if part) if len(parts) > 1 else parts[0])


def _whole(value: Any) -> Any:
    """3.0 as 3: what a table program makes of ids."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _json_value(value: Any) -> Any:
    """Metadata as JSON can hold it: dates and decimals as text, NaN as null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, datetime.timedelta)):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value]
    return value
