"""Small tables to disk, whole or not at all."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from twinvec.errors import DataError
from twinvec.files import atomic_file, write_text


def write_table(path: Path, columns: dict[str, list[Any]]) -> None:
    """Columns of equal length as .csv, .tsv, .jsonl or .parquet, by the name's ending.

    DataError: a tab or line break inside a text of a .tsv, which has no way to hold it.
    """
    suffix = path.suffix.lower()
    rows = list(zip(*columns.values(), strict=True))
    if suffix == ".parquet":
        import polars

        with atomic_file(path) as stream:
            polars.DataFrame(columns).write_parquet(stream)
    elif suffix == ".jsonl":
        write_text(path, "".join(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False, allow_nan=False) + "\n" for row in rows))
    elif suffix == ".tsv":
        write_text(path, "".join(_tab_line(path, number, row) for number, row in enumerate([tuple(columns), *rows])))
    else:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
        write_text(path, out.getvalue())


def _tab_line(path: Path, number: int, row: tuple[Any, ...]) -> str:
    cells = [str(cell) for cell in row]
    if any(mark in cell for cell in cells for mark in "\t\r\n"):
        raise DataError(f"{path}: row {number} has a tab or line break inside a text, which a .tsv cannot hold; give a .csv, .jsonl or .parquet")
    return "\t".join(cells) + "\n"
