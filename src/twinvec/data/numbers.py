"""Numbers in files that know only text: a column of a CSV file that holds nothing but numbers becomes numbers, so that filters can compare them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, TypeVar

from twinvec.errors import DataError

SAMPLE: Final = 1000
"""Rows that decide what a column is."""

# At most 15 digits, which a float holds exactly. No leading zeros: 007 and 02134 are names.
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d{0,14})(?:\.\d{1,15})?(?:[eE][+-]?\d{1,2})?")
_Row = TypeVar("_Row")


def as_number(cell: str) -> int | float | None:
    """The number that a cell writes, None when it is another text."""
    if _NUMBER.fullmatch(cell) is None or sum(map(str.isdigit, cell)) > 17:
        return None
    return float(cell) if any(mark in cell for mark in ".eE") else int(cell)


def numeric_columns(rows: Iterable[Mapping[str, Any]], leave: Iterable[str | None] = ()) -> frozenset[str]:
    """Columns of text whose cells are all numbers or empty, at least one a number. `leave`: columns that stay what they are."""
    state: dict[str, bool] = {}
    left = set(leave)
    for row in rows:
        for name, cell in row.items():
            if name not in left and state.get(name, True) and cell not in (None, ""):
                state[name] = isinstance(cell, str) and as_number(cell) is not None
    return frozenset(name for name, numeric in state.items() if numeric)


def with_numbers(row: Mapping[str, Any], columns: frozenset[str]) -> Mapping[str, Any]:
    """The row with the cells of these columns as numbers: an empty one as null, another text (below the sample) as it is."""
    if not columns:
        return row
    out = dict(row)
    for name in columns & out.keys():
        cell = out[name]
        if cell == "":
            out[name] = None
        elif isinstance(cell, str):
            number = as_number(cell)
            out[name] = cell if number is None else number
    return out


def looked_ahead(rows: Iterator[_Row], n: int = SAMPLE) -> tuple[list[_Row], Iterator[_Row]]:
    """The first n rows, and all rows again. A DataError among the first n is raised where it stood, after the rows before it."""
    head: list[_Row] = []
    trouble: DataError | None = None
    try:
        for row in islice(rows, n):
            head.append(row)  # noqa: PERF402 - one by one: what was read before an error counts
    except DataError as err:
        trouble = err

    def again() -> Iterator[_Row]:
        yield from head
        if trouble is not None:
            raise trouble
        yield from rows

    return head, again()
