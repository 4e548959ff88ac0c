"""One reader for CSV, TSV, JSON lines, JSON, Parquet and plain text: rows stay in order, none is lost, each knows its line."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from twinvec.data.textfile import check_path, open_bytes, read_lines, text_codec
from twinvec.errors import DataError, choose

FORMATS: Final = ("csv", "tsv", "tsv-quoted", "jsonl", "json", "parquet", "txt")
SUFFIXES: Final = {
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet", ".pq": "parquet",
    ".txt": "txt",
}  # fmt: skip
PARQUET_ROWS: Final = 4096  # decoded at once
Row = tuple[int | None, dict[str, Any]]  # line number in the file (None where there are no lines), and the cells by column


@dataclass(frozen=True)
class Table:
    """Columns of equal length, in the file's order. `lines`: the line on which each row starts, from 1; None for Parquet and JSON arrays.

    Cells are strings in CSV, TSV and text; in JSON and Parquet whatever is there, None where a key is missing.
    """

    columns: dict[str, list[Any]]
    path: Path
    lines: list[int] | None
    header: bool
    format: str = "csv"
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def where(self, row: int) -> str:
        """'data.csv, row 3 (line 4)' for index 2."""
        return f"{self.path}, {place(row + 1, self.lines[row] if self.lines else None)}"


def place(number: int, line: int | None) -> str:
    return f"row {number}" + (f" (line {line})" if line is not None else "")


def format_of(path: Path, format: str | None = None) -> str:
    """The format by `format` or by the name; DataError when neither tells."""
    if format is not None:
        return choose("format", format, FORMATS)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    if not suffixes or suffixes[-1] not in SUFFIXES:
        check_path(path)
        known = f"{', '.join(SUFFIXES)} (each also .gz), or give --format {'|'.join(FORMATS)}"
        raise DataError(f"{path}: cannot tell the format from the name; wanted {known}")
    return SUFFIXES[suffixes[-1]]


def read_table(path: str | Path, *, encoding: str = "utf-8", format: str | None = None, header: bool = True) -> Table:
    """Read a whole file. With header=False the columns of CSV and TSV are named "1", "2", ... and rows may differ in length (None beyond the end).

    CSV follows RFC 4180 (quoted line breaks; broken quoting is an error); TSV is not quoted, as STS, SNLI and most Chinese sets are not
    ("tsv-quoted" is). DataError names file, row and line. A file without rows is an error.
    """
    path = Path(path)
    notes: list[str] = []
    columns: dict[str, list[Any]] = {}
    lines: list[int] = []
    count = 0
    for line, cells in stream_rows(path, encoding=encoding, format=format, header=header, notes=notes):
        for name, value in cells.items():
            if name not in columns:
                columns[name] = [None] * count
            columns[name].append(value)
        count += 1
        if line is not None:
            lines.append(line)
        if len(cells) < len(columns):
            for values in columns.values():
                if len(values) < count:
                    values.append(None)
    if not count:
        raise DataError(f"{path}: no rows (a header at most); is it the right file?")
    kind = format_of(path, format)
    has_header = header and kind != "txt"
    return Table(columns, path, lines if len(lines) == count else None, has_header, kind, notes)


def stream_rows(
    path: str | Path, *, encoding: str = "utf-8", format: str | None = None, header: bool = True, notes: list[str] | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[Row]:  # fmt: skip
    """The rows of a file one by one, for files larger than memory (a JSON array alone is read whole).

    Sentences about lines that are no rows are added to `notes` at the end. columns: those to read of a Parquet file; None for all.
    """
    path = Path(path)
    kind = format_of(path, format)
    said = notes if notes is not None else []
    text_codec(encoding)
    if kind == "parquet":
        return _parquet(path, columns)
    if kind == "json":
        return _json(path, encoding, said)
    lines = read_lines(path, encoding)
    if kind == "jsonl":
        return _json_lines(path, lines, said)
    if kind == "txt":
        return _text(path, lines, said)
    records = _tab_records(path, lines) if kind == "tsv" else _quoted_records(path, lines, "," if kind == "csv" else "\t")
    return _grid(path, records, header, kind, said)


# --- CSV and TSV

Record = tuple[int, list[str]]  # the line on which it starts, its fields ([] for a blank line)


def _quoted_records(path: Path, lines: Iterator[str], delimiter: str) -> Iterator[Record]:
    csv.field_size_limit(2**31 - 1)  # the default of 131,072 characters refuses a long document
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    start = 1
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as err:
            reason = str(err)
            if "unexpected end of data" in reason:
                advice = 'a quote (") opens there and is never closed; give --format tsv if the file is tab-separated and unquoted'
            elif "new-line character" in reason:
                advice = "a lone carriage return stands outside quotes; save the file with LF or CRLF line ends"
            else:
                advice = 'quotes inside a quoted cell are doubled ("")'
            raise DataError(f"{path}, line {start}: not valid CSV ({reason}); {advice}") from err
        yield start, fields
        start = reader.line_num + 1


def _tab_records(path: Path, lines: Iterator[str]) -> Iterator[Record]:
    for number, line in enumerate(lines, start=1):
        text = _without_end(path, line, number)
        yield number, text.split("\t") if text else []


def _without_end(path: Path, line: str, number: int) -> str:
    text = line[:-1] if line.endswith("\n") else line
    text = text.removesuffix("\r")
    if number == 1 and "\r" in text and not line.endswith("\n"):
        raise DataError(f"{path}: its lines end in lone carriage returns (old Mac text); save it with LF or CRLF line ends")
    return text


def _grid(path: Path, records: Iterator[Record], header: bool, kind: str, notes: list[str]) -> Iterator[Row]:
    """Records under the names of the first one, or numbered from "1" without a header."""
    names: list[str] | None = None
    blank: list[int] = []
    gaps = 0
    number = quoted = 0
    for line, fields in records:
        if not fields:
            blank.append(line)
            continue
        if header and names is None:
            names = _names(path, fields, line)
            blank.clear()
            continue
        # Blank lines of a one-column file are empty texts; elsewhere they are no rows. Those at the end are neither.
        if names is not None and len(names) == 1:
            for empty in blank:
                number += 1
                yield empty, {names[0]: ""}
        else:
            gaps += len(blank)
        blank.clear()
        number += 1
        if names is not None and len(fields) != len(names):
            raise DataError(f"{path}, {place(number, line)}: {_ragged(fields, names, kind)}")
        if kind == "tsv" and any(len(cell) > 1 and cell[0] == cell[-1] == '"' for cell in fields):
            quoted += 1
        yield line, dict(zip(names or [str(i + 1) for i in range(len(fields))], fields, strict=True))
    if names is not None and len(names) == 1 and blank:
        notes.append(f"{len(blank)} blank lines at the end were skipped")
    if gaps:
        notes.append(f"{gaps} blank lines between the rows were skipped")
    if quoted * 5 > number:
        notes.append(f"{quoted} of {number} rows have cells inside quotes, which were kept as text; if they are not, give --format tsv-quoted")


def _names(path: Path, fields: Sequence[str], line: int) -> list[str]:
    names = [cell.strip() or f"column {i + 1}" for i, cell in enumerate(fields)]
    for name in names:
        if names.count(name) > 1:
            places = ", ".join(str(i + 1) for i, other in enumerate(names) if other == name)
            raise DataError(
                f"{path}, line {line}: the header names {name!r} more than once (columns {places}); rename one, "
                "or if the file has no header give positions, such as --columns sentence1=1,sentence2=2,label=3"
            )
    return names


def _ragged(fields: Sequence[str], names: Sequence[str], kind: str) -> str:
    separator = "commas" if kind == "csv" else "tabs"
    wanted = f"{len(fields)} fields, but the header has {len(names)} ({', '.join(names)[:120]})"
    if len(names) == 1 and kind == "csv":
        other = next((mark for mark in ("\t", ";") if mark in names[0]), None)
        if other:
            return f"{wanted}; the header is separated by {other!r}: " + ("give --format tsv" if other == "\t" else "save the file with commas")
    if kind == "csv":
        return f"{wanted}; cells that hold {separator} need quotes"
    return f"{wanted}; take tabs out of texts, or give positions if later columns do not matter, such as --columns sentence1=1,sentence2=2,label=3"


# --- JSON, text, Parquet


def _json_lines(path: Path, lines: Iterator[str], notes: list[str]) -> Iterator[Row]:
    blank = waiting = 0
    for number, line in enumerate(lines, start=1):
        text = _without_end(path, line, number)
        if not text.strip():
            waiting += 1
            continue
        blank, waiting = blank + waiting, 0
        try:
            value = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as err:
            column = f", column {err.colno}" if isinstance(err, json.JSONDecodeError) else ""
            reason = err.msg if isinstance(err, json.JSONDecodeError) else "nested too deeply"
            raise DataError(f'{path}, line {number}{column}: not JSON ({reason}); wanted one object a line, such as {{"text": "..."}}') from err
        if not isinstance(value, dict):
            advice = "; if the whole file is one array, give --format json" if text.lstrip().startswith("[") else ""
            raise DataError(f'{path}, line {number}: a JSON {_json_name(value)}; wanted one object a line, such as {{"text": "..."}}{advice}')
        yield number, value
    if blank:
        notes.append(f"{blank} blank lines between the rows were skipped")


def _json(path: Path, encoding: str, notes: list[str]) -> Iterator[Row]:
    """A JSON array of objects, or else one object a line (as the CLUE files are, for all their .json)."""
    lines = list(read_lines(path, encoding))
    if not next((line for line in lines if line.strip()), "").lstrip().startswith("["):
        yield from _json_lines(path, iter(lines), notes)
        return
    try:
        items = json.loads("".join(lines))
    except (json.JSONDecodeError, RecursionError) as err:
        at = f", line {err.lineno}, column {err.colno}" if isinstance(err, json.JSONDecodeError) else ""
        reason = err.msg if isinstance(err, json.JSONDecodeError) else "nested too deeply"
        raise DataError(f"{path}{at}: not JSON ({reason}); wanted an array of objects, or one object a line") from err
    for number, item in enumerate(items, start=1):
        if not isinstance(item, dict):
            raise DataError(f'{path}, row {number}: a JSON {_json_name(item)}; wanted an array of objects, such as [{{"text": "..."}}]')
        yield None, item


def _json_name(value: object) -> str:
    return {list: "array", str: "string", int: "number", float: "number", bool: "boolean"}.get(type(value), "null")


def _text(path: Path, lines: Iterator[str], notes: list[str]) -> Iterator[Row]:
    empty = tabs = number = 0
    for number, line in enumerate(lines, start=1):
        text = _without_end(path, line, number)
        empty += not text.strip()
        tabs += "\t" in text
        yield number, {"text": text}
    if empty:
        notes.append(f"{empty} of {number} lines are blank; each is kept as an empty text")
    if tabs and tabs == number - empty:
        notes.append("every line holds a tab and was read as one text; if these are columns, give --format tsv")


def parquet_columns(path: Path) -> list[str]:
    """The names of the columns of a Parquet file."""
    with _open_parquet(path) as file:
        return list(file.schema_arrow.names)


def _parquet(path: Path, columns: Sequence[str] | None = None) -> Iterator[Row]:
    import polars

    with _open_parquet(path) as file:
        for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=None if columns is None else list(columns), use_threads=False):
            for row in polars.from_arrow(batch).iter_rows(named=True):
                yield None, row


@contextmanager
def _open_parquet(path: Path) -> Iterator[Any]:
    """A pyarrow ParquetFile that is read in pieces; DataError when it cannot be, then or later."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open_bytes(path) as stream:
        # Inside gzip the end of the file, where Parquet has its table of contents, is reached by unzipping all of it.
        content = io.BytesIO(stream.read()) if isinstance(stream, gzip.GzipFile) else stream
        try:
            yield pq.ParquetFile(content, buffer_size=1 << 20)
        except (pa.ArrowException, OSError) as err:
            reason = str(err).splitlines()[0].rstrip(".") if str(err) else type(err).__name__
            raise DataError(f"{path}: not a readable Parquet file ({reason}); is it whole?") from err
