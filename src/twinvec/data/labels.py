"""Labels and scores: what a cell says as a number, which kind of data the labels make, and the range of scores."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from twinvec.data.columns import Kind, Mapping
from twinvec.data.tables import Table
from twinvec.errors import DataError, UsageError

# SNLI and MultiNLI order. Some files count otherwise: sentence-transformers' old AllNLI script has contradiction 0, entailment 1, neutral 2.
NLI_CLASSES: Final = ("entailment", "neutral", "contradiction")
ENTAILMENT, NEUTRAL, CONTRADICTION = range(3)
NLI_NAMES: Final = {
    "entailment": 0, "entails": 0, "entail": 0, "蕴含": 0, "蕴涵": 0, "neutral": 1, "中立": 1, "中性": 1, "contradiction": 2, "contradictory": 2,
    "contradicts": 2, "contradict": 2, "矛盾": 2,
}  # fmt: skip
DROP: Final = "drop"
NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.ASCII)
Range = tuple[float, float]


@dataclass(frozen=True)
class Labels:
    """What the label column became. `values`: one a kept row; `kept`: numbers (from 0) of the rows that stay."""

    kind: Kind
    values: list[float] | list[int] | None
    kept: list[int]
    names: list[str] | None = None
    range: Range | None = None
    notes: list[str] = field(default_factory=list)


def label_key(value: Any) -> str:
    """The form in which labels are compared: 1, 1.0, "1", "1.0", True and "true" are "1"; words in lower case."""
    number = as_number(value)
    if number is not None:
        return format(number, ".12g")
    return unicodedata.normalize("NFKC", str(value)).strip().casefold()


def as_number(value: Any) -> float | None:
    """A label as a finite number; true and false are 1 and 0; None when it is none."""
    if isinstance(value, str):
        text = unicodedata.normalize("NFKC", value).strip().casefold()
        if text in ("true", "false"):
            return float(text == "true")
        return _finite(float(text)) if NUMBER.fullmatch(text) else None
    if isinstance(value, (bool, int, float)):
        try:
            return _finite(float(value))
        except OverflowError:
            return None
    return None


def _finite(number: float) -> float | None:
    return number + 0.0 if math.isfinite(number) else None  # -0.0 becomes 0.0


def parse_labels(labels: str | None) -> dict[str, str]:
    """'yes=1,no=0,-=drop' as {"yes": "1", "no": "0", "-": "drop"}, keys as `label_key` makes them."""
    if labels is None:
        return {}
    rules: dict[str, str] = {}
    for item in labels.split(","):
        name, equals, meaning = item.rpartition("=")
        if not equals or not meaning.strip():
            raise UsageError(f"--labels {labels!r}: cannot read {item.strip()!r}; wanted LABEL=MEANING,..., for example yes=1,no=0 or -=drop")
        key = label_key(name)
        if key in rules:
            raise UsageError(f"--labels {labels!r}: {name.strip()!r} is given twice")
        rules[key] = meaning.strip()
    return rules


def parse_range(score_range: str | Range | None) -> Range | None:
    """'0,5' as (0.0, 5.0)."""
    if score_range is None:
        return None
    low, high, *more = [as_number(part) for part in (score_range.split(",") if isinstance(score_range, str) else score_range)] + [None] * 2
    if low is None or high is None or len(more) != 2 or not low < high:
        raise UsageError(f"--score-range {score_range!r}: wanted the lowest and the highest score, for example 0,5")
    return low, high


def read_labels(table: Table, mapping: Mapping, kind: Kind | None, labels: str | None, score_range: Range | None) -> Labels:
    """The label column of `mapping` under the rules of `kind`; with kind None the labels themselves decide. DataError names row, line and label."""
    everything = list(range(len(table)))
    rules = parse_labels(labels)
    if mapping.shape == "triplets" and mapping.label is not None:
        reader = _Reader(table, mapping.label, rules)
        return Labels("triplets", reader.numbers("triplets"), reader.kept, notes=reader.notes + _idle("margins", {}, score_range))
    if mapping.shape in ("triplets", "parallel") or (mapping.label is None and mapping.shape == "text"):
        found: Kind = "texts" if mapping.shape == "text" else mapping.shape
        return Labels(found, None, everything, notes=_idle(found, rules, score_range))
    if mapping.label is None:
        notes = ["no label column: every pair counts as one that belongs together"]
        return Labels("pairs", None, everything, notes=notes + _idle("pairs without labels", rules, score_range))
    reader = _Reader(table, mapping.label, rules)
    if mapping.shape == "text":
        return _classes(reader, score_range)
    decided = kind or _decide(reader, mapping, score_range)
    if decided == "nli":
        return _inference(reader, score_range)
    values = reader.numbers(decided)
    kept, notes = reader.kept, reader.notes
    if decided == "pairs":
        for row, value in zip(kept, values, strict=True):
            if value not in (0, 1):
                reader.wrong(row, "wanted 0 or 1; for scores give --kind scores, or say what the labels mean, such as --labels 1=0,2=1")
        return Labels("pairs", [int(value) for value in values], kept, notes=notes + _idle("pairs with 0 and 1", {}, score_range))
    found_range, why = (score_range, []) if score_range else find_range(values)
    for row, value in zip(kept, values, strict=True):
        if not found_range[0] <= value <= found_range[1]:
            reader.wrong(row, f"outside --score-range {found_range[0]:g},{found_range[1]:g}; correct the row or the range")
    return Labels("scores", values, kept, range=found_range, notes=notes + why)


def find_range(values: Sequence[float]) -> tuple[Range, list[str]]:
    """The range that scores were given in, by what is there: 0-1, -1-1, 0-5 (STS), 1-5 (SICK), else lowest to highest, which is said."""
    low, high = min(values), max(values)
    if low >= 0 and high <= 1:
        return (0.0, 1.0), []
    if low >= -1 and high <= 1:
        return (-1.0, 1.0), []
    if low >= 1 and high <= 5:
        return (1.0, 5.0), ["scores look like 1 to 5; --score-range 0,5 to change"]
    if low >= 0 and high <= 5:
        return (0.0, 5.0), []
    return (low, high), [f"scores of an unusual range: taken as {low:g} to {high:g}, the lowest and highest found; --score-range LOW,HIGH to change"]


def looks_forgotten(values: Sequence[Any]) -> bool:
    """Whether a column could be a label that nobody named: all numbers with repeats, or all NLI names."""
    keys = {label_key(value) for value in values}
    if keys <= NLI_NAMES.keys():
        return True
    return len(keys) < len(values) and all(as_number(key) is not None for key in keys)


def read_groups(table: Table, column: str, kept: Sequence[int]) -> list[int]:
    """A number for each different value of a column, by first appearance; -1 where there is none (empty, null or NaN). 1, 1.0 and "1" are one."""
    numbers: dict[str, int] = {}
    found = []
    for row in kept:
        cell = table.columns[column][row]
        if cell is not None and not isinstance(cell, (str, int, float)):
            raise DataError(f"{table.where(row)}: group is a {type(cell).__name__} in column {column!r}; wanted a name or a number, or nothing")
        key = "" if cell is None or (isinstance(cell, float) and math.isnan(cell)) else label_key(cell)
        found.append(numbers.setdefault(key, len(numbers)) if key else -1)
    return found


class _Reader:
    """The label column after the rules of --labels: `cells` are the labels of the rows in `kept`."""

    def __init__(self, table: Table, column: str, rules: dict[str, str]) -> None:
        self.table, self.column, self.rules = table, column, rules
        self.kept: list[int] = []
        self.cells: list[Any] = []
        self.notes: list[str] = []
        dropped: list[int] = []
        used: set[str] = set()
        for row, raw in enumerate(table.columns[column]):
            key = label_key("" if raw is None else raw)
            if key in rules:
                used.add(key)
            meaning = rules.get(key)
            if meaning is not None and meaning.casefold() == DROP:
                dropped.append(row)
                continue
            cell = raw if meaning is None else meaning
            if cell is None or (isinstance(cell, str) and not cell.strip()):
                raise DataError(f"{table.where(row)}: no label in column {column!r}; give it one, or leave such rows out with --labels =drop")
            self.kept.append(row)
            self.cells.append(cell)
        idle = [key for key in rules if key not in used]
        if idle:
            self.notes.append(f"--labels: no row has the label {' or '.join(map(repr, idle))}")
        if dropped:
            shown = ", ".join(str(row + 1) for row in dropped[:5]) + (", ..." if len(dropped) > 5 else "")
            self.notes.append(f"{len(dropped)} of {len(table)} rows left out because of --labels (rows {shown})")
        if not self.kept:
            raise DataError(f"{table.path}: --labels leaves out every row")

    def numbers(self, kind: Kind) -> list[float]:
        values = []
        for row, cell in zip(self.kept, self.cells, strict=True):
            number = as_number(cell)
            if number is None:
                self._no_number(row, cell, kind)
            values.append(number)
        return values

    def _no_number(self, row: int, cell: Any, kind: Kind) -> NoReturn:
        wanted = "0 or 1" if kind == "pairs" else "a number"
        if isinstance(cell, (float, int)) or (isinstance(cell, str) and cell.strip().casefold().lstrip("+-") in ("nan", "inf", "infinity")):
            self.wrong(row, f"wanted {wanted}, a finite one; correct the row, or leave it out with --labels {str(cell).strip()}=drop")
        if isinstance(cell, str) and as_number(cell.replace(",", ".")) is not None:
            self.wrong(row, f"wanted {wanted}; write decimals with a point")
        counts = self.counts()
        words = {key: count for key, count in counts.items() if as_number(key) is None}
        if len(words) > 12 or sum(words.values()) * 2 < len(self.cells):  # a column of numbers with a slip in it, or one of texts
            self.wrong(row, f"wanted {wanted}; correct the row, or leave it out with --labels {label_key(cell):.40}=drop")
        found = ", ".join(f"{key!r} {count}" for key, count in counts.most_common(5))
        example = ",".join(f"{key}={number}" for number, key in zip((0, 1), sorted(words), strict=False))
        self.wrong(row, f"wanted {wanted}; the labels here are {found}: say what they mean, for example --labels {example}")

    def counts(self) -> Counter[str]:
        return Counter(label_key(cell) for cell in self.cells)

    def wrong(self, row: int, why: str) -> NoReturn:
        raw = self.table.columns[self.column][row]
        shown = raw if isinstance(raw, str) and len(raw) <= 60 else f"{raw!s:.60}..." if isinstance(raw, str) else raw
        raise DataError(f"{self.table.where(row)}: label {shown!r} in column {self.column!r}: {why}")


def _decide(reader: _Reader, mapping: Mapping, score_range: Range | None) -> Kind:
    """nli, pairs or scores, by the labels; DataError where they could be read in two ways."""
    keys = set(reader.counts())
    if keys & NLI_NAMES.keys():
        return "nli"
    if any(as_number(key) is None for key in keys):
        numbers = {key for key in keys if as_number(key) is not None}
        reader.numbers("pairs" if numbers and numbers <= {"0", "1"} and mapping.meaning != "score" else "scores")  # raises
    if score_range is not None:
        return "scores"
    source, small = reader.table.path, keys <= {"0", "1", "2"}
    if mapping.inference and small and not reader.rules:
        if "2" in keys:
            return "nli"
        raise DataError(
            f"{source}: premise and hypothesis with the labels {' and '.join(sorted(keys))} only: are they entailment and neutral (--kind nli), "
            "or does 1 mean the same (--kind pairs)? Say so, or what they mean with --labels"
        )
    if keys <= {"0", "1"}:
        return "pairs"
    if small and mapping.meaning != "score":
        raise DataError(f"{source}: labels 0, 1 and 2 in column {reader.column!r} can be NLI classes or scores; give --kind nli or --kind scores")
    return "scores"


def _inference(reader: _Reader, score_range: Range | None) -> Labels:
    values: list[int] = []
    plain_numbers = False
    for row, cell in zip(reader.kept, reader.cells, strict=True):
        key = label_key(cell)
        if key in ("0", "1", "2"):
            values.append(int(key))
            plain_numbers = plain_numbers or label_key(reader.table.columns[reader.column][row]) not in reader.rules
        elif key in NLI_NAMES:
            values.append(NLI_NAMES[key])
        else:
            meaning = "drop to leave such rows out" if key == "-" else "neutral to say what it means"
            reader.wrong(row, f"wanted entailment, neutral or contradiction (or 蕴含, 中立, 矛盾, or 0, 1, 2); give --labels {key:.40}={meaning}")
    notes = list(reader.notes)
    if plain_numbers:
        if {label_key(cell) for cell in reader.cells} & NLI_NAMES.keys():
            row = next(row for row, cell in zip(reader.kept, reader.cells, strict=True) if label_key(cell) in ("0", "1", "2"))
            reader.wrong(row, "a number among names; wanted names throughout, or say what it means, such as --labels 0=entailment")
        notes.append("labels 0, 1, 2 read as entailment, neutral, contradiction; --labels 0=contradiction,1=entailment,2=neutral to change")
    return Labels("nli", values, reader.kept, list(NLI_CLASSES), notes=notes + _idle("nli", {}, score_range))


def _classes(reader: _Reader, score_range: Range | None) -> Labels:
    names: list[str] = []
    for cell in reader.cells:
        if not isinstance(cell, (str, int, float)):
            row = reader.kept[len(names)]
            reader.wrong(row, f"a {type(cell).__name__} is no class; wanted a name or a number")
        names.append(label_key(cell) if as_number(cell) is not None and not isinstance(cell, str) else str(cell).strip())
    distinct = sorted(set(names), key=lambda name: (as_number(name) is None, as_number(name) or 0.0, name))
    numbers = {name: number for number, name in enumerate(distinct)}
    return Labels("labelled", [numbers[name] for name in names], reader.kept, distinct, notes=reader.notes + _idle("labelled", {}, score_range))


def _idle(what: str, rules: dict[str, str], score_range: Range | None) -> list[str]:
    """Options that had no effect are said, not swallowed."""
    out = ["--labels"] if rules else []
    return [f"{option} has no effect on {what}" for option in [*out, *(["--score-range"] if score_range is not None else [])]]
