"""`read_data`: a file as columns of texts with canonical names, labels as numbers, and an account of how it was read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.data.columns import (
    KINDS,
    ROW_NUMBERS,
    Columns,
    Kind,
    Mapping,
    are_positions,
    is_known,
    map_columns,
    parse_columns,
    plain,
)
from twinvec.data.labels import Range, as_number, looks_forgotten, parse_range, read_groups, read_labels
from twinvec.data.tables import Table, format_of, place, read_table
from twinvec.errors import DataError, UsageError, choose
from twinvec.files import sha256_file
from twinvec.text import without_surrogates

__all__ = ["Dataset", "Kind", "normalised_scores", "read_data"]

ROWS_SHOWN = 3
TEXT_SHOWN = 60


@dataclass(frozen=True)
class Dataset:
    """Rows of one kind, in the file's order.

    columns: sentence1, sentence2 (scores, pairs, nli: premise and hypothesis), anchor, positive, negative, negative_2, ... (triplets),
    source, target (parallel), text (texts, labelled); all of `rows` texts. labels: numbers of scores; 0 or 1 of pairs (None: every pair
    belongs together); 0 entailment, 1 neutral, 2 contradiction of nli; numbers into `label_names` of labelled; margins of triplets
    (a score of the positive less that of the negative), where the file has them; None otherwise. groups: a number for each row of pairs and
    triplets, -1 for none: rows of one group mean the same and are no negatives of each other; None without such a column.
    mapping: canonical name -> the file's own column. numbers: the row numbers in the file, from 1; lines: the lines, where there are any.
    """

    kind: Kind
    columns: dict[str, list[str]]
    labels: list[float] | list[int] | None = None
    label_names: list[str] | None = None
    score_range: Range | None = None
    path: Path = Path("(memory)")
    sha256: str = ""
    rows: int = -1
    mapping: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    lines: list[int] | None = None
    numbers: list[int] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    groups: list[int] | None = None

    def __post_init__(self) -> None:
        lengths = {name: len(values) for name, values in self.columns.items()}
        lengths |= {} if self.labels is None else {"labels": len(self.labels)}
        lengths |= {} if self.groups is None else {"groups": len(self.groups)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"Dataset: columns of different lengths: {lengths}")
        rows = next(iter(lengths.values()), 0)
        if self.rows not in (-1, rows):
            raise ValueError(f"Dataset: rows = {self.rows}, but the columns have {rows}")
        object.__setattr__(self, "rows", rows)
        if not self.numbers:
            object.__setattr__(self, "numbers", list(range(1, rows + 1)))

    def __len__(self) -> int:
        return self.rows

    def texts(self, row: int) -> list[str]:
        """The texts of one row, in the order of `columns`."""
        return [values[row] for values in self.columns.values()]

    def where(self, row: int) -> str:
        """'row 3 (line 4)' of the file, for index 2."""
        return place(self.numbers[row], self.lines[row] if self.lines else None)

    def select(self, indices: Sequence[int] | npt.NDArray[np.integer[Any]]) -> Dataset:
        """The rows of these indices (from 0), in this order."""
        chosen = [int(i) for i in indices]
        return replace(
            self,
            columns={name: [values[i] for i in chosen] for name, values in self.columns.items()},
            labels=None if self.labels is None else [self.labels[i] for i in chosen],
            groups=None if self.groups is None else [self.groups[i] for i in chosen],
            lines=None if self.lines is None else [self.lines[i] for i in chosen],
            numbers=[self.numbers[i] for i in chosen],
            rows=len(chosen),
        )

    def label_counts(self) -> dict[str, int]:
        """How often each label stands there, by name (nli, labelled) or as 0 and 1; empty for other kinds."""
        if self.labels is None or self.kind in ("scores", "triplets"):
            return {}
        counts = Counter(int(label) for label in self.labels)
        return {self.label_names[label] if self.label_names else str(label): counts[label] for label in sorted(counts)}

    def describe(self) -> list[str]:
        """Lines for a human: which column became what, labels or scores, notes, three rows."""
        lines = [f"{self.path}: {self.rows} rows, {_WHAT[self.kind]}"]
        lines.append("  columns: " + ", ".join(f"{role} <- {name!r}" for role, name in self.mapping.items()))
        if self.unused:
            lines.append("  not used: " + ", ".join(map(repr, self.unused)))
        counts = self.label_counts()
        if counts:
            shown = ", ".join(f"{name} {count}" for name, count in list(counts.items())[:6])
            lines.append(f"  labels: {shown}" + (f", ... ({len(counts)} classes)" if len(counts) > 6 else ""))
        if self.score_range and self.labels:
            low, high = self.score_range
            hint = "" if any("--score-range" in note for note in self.notes) else " (--score-range LOW,HIGH to change)"
            lines.append(f"  scores: {min(self.labels):g} to {max(self.labels):g}, range {low:g} to {high:g}{hint}")
        if self.kind == "triplets" and self.labels:
            lines.append(f"  margins: {min(self.labels):g} to {max(self.labels):g}")
        if self.groups is not None:
            several = {number: count for number, count in Counter(self.groups).items() if number >= 0}
            lines.append(f"  groups: {len(several)}, of {max(several.values(), default=0)} rows at most; {self.groups.count(-1)} rows without")
        empty = sum(not text.strip() for values in self.columns.values() for text in values)
        if empty:
            lines.append(f"  empty texts: {empty}")
        lines += [f"  note: {note}" for note in self.notes]
        for i in range(min(ROWS_SHOWN, self.rows)):
            cells = [_short(text) for text in self.texts(i)]
            if self.labels is not None:
                cells.append(self.label_names[int(self.labels[i])] if self.label_names else f"{self.labels[i]:g}")
            lines.append(f"  {self.where(i)}: " + " | ".join(cells))
        return lines


_WHAT = {
    "scores": "pairs with scores",
    "pairs": "pairs",
    "nli": "premises and hypotheses with entailment, neutral or contradiction",
    "triplets": "triplets",
    "texts": "texts",
    "parallel": "parallel texts",
    "labelled": "texts with classes",
}


def read_data(
    path: str | Path, *, kind: Kind | None = None, columns: Columns | None = None, encoding: str = "utf-8", format: str | None = None,
    labels: str | None = None, score_range: str | Range | None = None, limit: int | None = None,
) -> Dataset:  # fmt: skip
    """Read a file of scores, pairs, NLI, triplets, texts, parallel texts or labelled texts.

    kind: found from the columns and labels when None. columns: "sentence1=q,sentence2=a,label=y", or with a kind "q,a,y"; names, or
    positions from 1. Positions alone mean a CSV or TSV without header, unless its first line holds well-known column names.
    labels: "yes=1,no=0", "c=contradiction,...", "-=drop". score_range: "0,5", found when None. limit: only the first rows, after
    the whole file was read. format, encoding: as in `read_table`.

    DataError: what cannot be read, with file, row and line, and anything that could be read in two ways. UsageError: a wrong option.
    """
    path = Path(path)
    if kind is not None:
        choose("kind", kind, KINDS)
    if limit is not None and limit < 1:
        raise UsageError(f"limit = {limit}: wanted the number of rows to read, 1 or more")
    wanted_range = parse_range(score_range)
    chosen = parse_columns(columns, kind)
    table = _table(path, encoding, format, chosen)
    mapping = map_columns(list(table.columns), str(path), kind, chosen)
    _no_forgotten_label(table, mapping, kind)
    labelled = read_labels(table, mapping, kind, labels, wanted_range)
    texts, notes = _texts(table, mapping, labelled.kept)
    names = dict(mapping.texts) | {role: name for role, name in (("label", mapping.label), ("group", mapping.group)) if name is not None}
    kept = labelled.kept
    found = Dataset(
        kind=labelled.kind,
        columns=texts,
        labels=labelled.values,
        groups=None if mapping.group is None else read_groups(table, mapping.group, kept),
        label_names=labelled.names,
        score_range=labelled.range,
        path=path,
        sha256=sha256_file(path),
        mapping=names,
        notes=[*table.notes, *notes, *labelled.notes],
        lines=None if table.lines is None else [table.lines[row] for row in kept],
        numbers=[row + 1 for row in kept],
        unused=mapping.unused,
    )
    if limit is not None and limit < len(found):
        said = [*found.notes, f"only the first {limit} of {len(found)} rows are used (limit)"]
        found = replace(found.select(range(limit)), notes=said)
    return found


def normalised_scores(dataset: Dataset) -> npt.NDArray[np.float32]:
    """(n,) float32 in 0..1: scores by their range, pairs as they are (all 1 without labels). DataError for other kinds."""
    if dataset.kind == "pairs":
        return np.ones(dataset.rows, np.float32) if dataset.labels is None else np.asarray(dataset.labels, np.float32)
    if dataset.kind != "scores" or dataset.labels is None or dataset.score_range is None:
        raise DataError(f"{dataset.path}: {dataset.kind} have no scores; wanted pairs with scores or with 0 and 1")
    low, high = dataset.score_range
    if not low < high:
        raise DataError(f"{dataset.path}: every score is {low:g}, so there is no range to scale by; give --score-range LOW,HIGH")
    return ((np.asarray(dataset.labels, np.float64) - low) / (high - low)).astype(np.float32)


def _table(path: Path, encoding: str, format: str | None, chosen: dict[str, str]) -> Table:
    """The file; under positions alone a CSV or TSV is read without header, unless the first line has well-known names in it."""
    if not are_positions(chosen) or format_of(path, format) not in ("csv", "tsv", "tsv-quoted"):
        return read_table(path, encoding=encoding, format=format)
    table = read_table(path, encoding=encoding, format=format, header=False)
    first = [str(values[0]) for values in table.columns.values() if values[0] is not None]
    if all(name in first for name in chosen.values()):  # a header of numbers, and they are meant as names
        return read_table(path, encoding=encoding, format=format)
    if not any(is_known(cell) for cell in first) or any(as_number(cell) is not None for cell in first):
        said = "positions in --columns and no well-known names in the first line: it is read as a row, not as a header"
        return replace(table, notes=[*table.notes, said])
    if len(table) == 1:
        raise DataError(f"{path}: no rows (a header at most); is it the right file?")
    titles = [str(values[0] or "").strip() for values in table.columns.values()]
    names = [title if title and titles.count(title) == 1 else position for title, position in zip(titles, table.columns, strict=True)]
    return replace(
        table,
        columns={name: values[1:] for name, values in zip(names, table.columns.values(), strict=True)},
        header=True,
        lines=table.lines[1:] if table.lines else None,
        notes=[*table.notes, f"the first line is taken as a header: {', '.join(first)[:120]}"],
    )


def _no_forgotten_label(table: Table, mapping: Mapping, kind: Kind | None) -> None:
    """Pairs "without" labels beside a column that may well be the labels are ambiguous: all of them would count as positive."""
    if kind is not None or mapping.shape != "pair" or mapping.label is not None:
        return
    for name in mapping.unused:
        if not ROW_NUMBERS.fullmatch(plain(name)) and looks_forgotten(table.columns[name]):
            raise DataError(
                f"{table.path}: no column has a label's name, but {name!r} may hold labels; give --columns label={name}, "
                "or --kind pairs if every pair belongs together"
            )


def _texts(table: Table, mapping: Mapping, kept: list[int]) -> tuple[dict[str, list[str]], list[str]]:
    """The text columns in canonical order; lists of positives and negatives spread out. Anything but text is an error with its row."""
    out: dict[str, list[str]] = {}
    replaced = 0
    for role, name in mapping.texts.items():
        raw = table.columns[name]
        for canonical, cells in _spread(table, role, name, raw, kept, len(out) - 1 if role.startswith("negative") else 1).items():
            texts = []
            for row, cell in zip(kept, cells, strict=True):
                if not isinstance(cell, str):
                    raise DataError(f"{table.where(row)}: {_no_text(cell, canonical, name)}")
                clean = without_surrogates(cell)
                replaced += clean is not cell
                texts.append(clean)
            out[canonical] = texts
    return out, [f"{replaced} texts held lone surrogates, which are no characters; U+FFFD stands in their place"] if replaced else []


def _no_text(cell: Any, role: str, name: str) -> str:
    if cell is None:
        return f"no {role}: column {name!r} is missing there; correct the row, or choose another column with --columns"
    return f"{role} is {cell!r:.60} ({type(cell).__name__}) in column {name!r}; wanted a text"


def _spread(table: Table, role: str, name: str, raw: list[Any], kept: list[int], first: int) -> dict[str, list[Any]]:
    """A column of lists (FlagEmbedding's "pos" and "neg") as one column an item; any other column as it is. `first`: number of the first negative."""
    cells = [raw[row] for row in kept]
    if not any(isinstance(cell, list) for cell in cells):
        return {"negative" if first == 1 else f"negative_{first}": cells} if role.startswith("negative") else {role: cells}
    size = len(next(cell for cell in cells if isinstance(cell, list)))
    for row, cell in zip(kept, cells, strict=True):
        if not isinstance(cell, list) or len(cell) != size:
            count = len(cell) if isinstance(cell, list) else 0
            raise DataError(f"{table.where(row)}: {count} texts in column {name!r}, but {size} in the rows before; wanted as many in every row")
    if not role.startswith("negative"):
        if size != 1:
            raise DataError(f"{table.where(kept[0])}: {size} texts in column {name!r}; wanted one {role}: give each a row of its own")
        return {role: [cell[0] for cell in cells]}
    if size == 0:
        raise DataError(f"{table.where(kept[0])}: no negative in column {name!r}; wanted one or more")
    numbers = range(first, first + size)
    return {"negative" if i == 1 else f"negative_{i}": [cell[i - first] for cell in cells] for i in numbers}


def _short(text: str) -> str:
    shown = " ".join(text.split())
    return shown if len(shown) <= TEXT_SHOWN else shown[: TEXT_SHOWN - 3] + "..."
