"""`check_data`: what is wrong with a training file before it is trained on, and what it shares with a test file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from twinvec.data.dataset import Dataset
from twinvec.errors import UsageError
from twinvec.text import same_text_key

EXAMPLES = 3
OVERLAPS = ("shared_pairs", "shared_pairs_normalised", "shared_texts", "shared_both_texts")


@dataclass(frozen=True)
class Finding:
    """One thing found: how many rows, a sentence that says so, and the first of them: 'row 3', or 'row 3 = row 9'."""

    name: str
    count: int
    message: str
    examples: list[str] = field(default_factory=list)
    more: bool = False  # whether there are others than the examples

    def line(self) -> str:
        shown = "; ".join(self.examples) + ("; ..." if self.more else "")
        return f"{self.message} ({shown})" if shown else self.message


@dataclass(frozen=True)
class DataReport:
    """What `check_data` found. `findings` holds only what was there; an empty list means nothing was found. longest: tokens of the longest text."""

    rows: int
    findings: list[Finding]
    label_counts: dict[str, int]
    longest: int | None = None

    def __getitem__(self, name: str) -> int:
        """The count of a finding, 0 when there is none of that name."""
        return next((finding.count for finding in self.findings if finding.name == name), 0)

    def lines(self) -> list[str]:
        """Sentences for a human, one a finding, labels first."""
        counts = ", ".join(f"{label} {count} ({count / self.rows:.0%})" for label, count in list(self.label_counts.items())[:6])
        more = f", ... ({len(self.label_counts)} classes)" if len(self.label_counts) > 6 else ""
        return [*([f"labels: {counts}{more}"] if counts else []), *(finding.line() for finding in self.findings)]

    def overlaps(self) -> list[str]:
        """Only the sentences about what train and test share."""
        return [finding.line() for finding in self.findings if finding.name in OVERLAPS]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_data(
    train: Dataset | Sequence[Any], *, test: Dataset | Sequence[Any] | None = None, count_tokens: Callable[[list[str]], list[int]] | None = None,
    window: int | None = None,
) -> DataReport:  # fmt: skip
    """Look for repeated pairs (in either order; NLI has a direction), the same pair with two labels, identical sides, empty texts, texts longer
    than `window` tokens (by `count_tokens`), and with `test` for pairs and single texts in both.

    train, test: a Dataset; or a list of texts, of pairs, or of (text, text, label) rows. Two texts are the same after normalisation when
    `same_text_key` gives the same for both. Nothing is changed. UsageError: a window without count_tokens, or the reverse.
    """
    if (count_tokens is None) != (window is None):
        raise UsageError("check_data: give both count_tokens and window, or neither")
    data = train if isinstance(train, Dataset) else _dataset(train)
    findings = [*_repeats(data), *_conflicts(data), *_identical(data), *_empty(data)]
    longest = None
    if count_tokens is not None and window is not None:
        longest, found = _too_long(data, count_tokens, window)
        findings += found
    if test is not None:
        findings += _shared(data, test if isinstance(test, Dataset) else _dataset(test))
    return DataReport(len(data), findings, data.label_counts(), longest)


def _dataset(rows: Sequence[Any]) -> Dataset:
    """Plain Python rows as a Dataset."""
    if all(isinstance(row, str) for row in rows):
        return Dataset("texts", {"text": list(rows)})
    for number, row in enumerate(rows, start=1):
        fits = isinstance(row, (tuple, list)) and len(row) in (2, 3) and len(row) == len(rows[0]) and all(isinstance(text, str) for text in row[:2])
        if not fits:
            raise UsageError(f"check_data: row {number} is {row!r:.80}; wanted texts, (text, text) pairs, or (text, text, label) rows throughout")
    columns = {"sentence1": [row[0] for row in rows], "sentence2": [row[1] for row in rows]}
    return Dataset("scores", columns, [float(row[2]) for row in rows] if len(rows[0]) == 3 else None)


def _keys(data: Dataset, normalised: bool) -> list[Hashable]:
    """What makes two rows the same: their texts, for pairs without a direction in either order."""
    columns = list(_normalised(data).values()) if normalised else list(data.columns.values())
    if data.kind in ("pairs", "scores", "parallel"):
        return [(a, b) if a <= b else (b, a) for a, b in zip(*columns, strict=True)]
    return list(zip(*columns, strict=True))


def _normalised(data: Dataset) -> dict[str, list[str]]:
    known: dict[str, str] = {}
    for texts in data.columns.values():
        for text in texts:
            if text not in known:
                known[text] = same_text_key(text)
    return {name: [known[text] for text in texts] for name, texts in data.columns.items()}


def _groups(keys: Iterable[Hashable]) -> list[list[int]]:
    """Rows of equal keys, where there is more than one."""
    found: dict[Hashable, list[int]] = defaultdict(list)
    for row, key in enumerate(keys):
        found[key].append(row)
    return [rows for rows in found.values() if len(rows) > 1]


def _repeats(data: Dataset) -> list[Finding]:
    findings = []
    what = "texts" if len(data.columns) == 1 else "rows"
    exact = _groups(_keys(data, False))
    count = sum(len(rows) - 1 for rows in exact)
    if count:
        order = " (in either order)" if data.kind in ("pairs", "scores", "parallel") else ""
        findings.append(Finding("duplicates", count, f"{count} of {len(data)} {what} repeat an earlier one{order}", *_equal(data, exact)))
    loose = _groups(_keys(data, True))
    more = sum(len(rows) - 1 for rows in loose) - count
    if more:
        strict = _keys(data, False)
        firsts = [list({strict[row]: row for row in reversed(rows)}.values()) for rows in loose]  # one row for each way to write it
        apart = [sorted(rows) for rows in firsts if len(rows) > 1]
        message = f"{more} more {what} repeat an earlier one but for case, spaces and Unicode form"
        findings.append(Finding("duplicates_normalised", more, message, *_equal(data, apart)))
    return findings


def _equal(data: Dataset, groups: Sequence[Sequence[int]]) -> tuple[list[str], bool]:
    return [" = ".join(_at(data, row) for row in rows[:3]) for rows in groups[:EXAMPLES]], len(groups) > EXAMPLES


def _at(data: Dataset, row: int) -> str:
    return f"row {data.numbers[row]}"


def _conflicts(data: Dataset) -> list[Finding]:
    if data.labels is None:
        return []
    labels = data.labels
    groups = [rows for rows in _groups(_keys(data, True)) if len({labels[row] for row in rows}) > 1]
    if not groups:
        return []
    what = "texts" if len(data.columns) == 1 else "pairs"
    shown = [" against ".join(f"{_at(data, row)} ({_label(data, row)})" for row in _differing(rows, labels)) for rows in groups[:EXAMPLES]]
    return [Finding("conflicts", len(groups), f"{len(groups)} {what} have two labels", shown, len(groups) > EXAMPLES)]


def _differing(rows: Sequence[int], labels: Sequence[float]) -> list[int]:
    return [rows[0], next(row for row in rows if labels[row] != labels[rows[0]])]


def _label(data: Dataset, row: int) -> str:
    assert data.labels is not None
    return data.label_names[int(data.labels[row])] if data.label_names else f"{data.labels[row]:g}"


def _identical(data: Dataset) -> list[Finding]:
    """Pairs whose two sides are the same text: no fault by itself, but no news to a model either."""
    if len(data.columns) < 2 or data.kind == "parallel":
        return []
    first, second, *_ = data.columns.values()
    rows = [row for row, (a, b) in enumerate(zip(first, second, strict=True)) if a == b and a.strip()]
    findings = [_rows("identical", data, rows, f"{len(rows)} of {len(data)} rows have the same text on both sides")] if rows else []
    if data.kind == "triplets":
        same = [row for row in range(len(data)) if data.columns["positive"][row] in data.texts(row)[2:]]
        findings += [_rows("positive_is_negative", data, same, f"{len(same)} triplets have their positive among the negatives")] if same else []
    return findings


def _empty(data: Dataset) -> list[Finding]:
    rows = [row for row in range(len(data)) if not all(text.strip() for text in data.texts(row))]
    return [_rows("empty", data, rows, f"{len(rows)} of {len(data)} rows have an empty text")] if rows else []


def _too_long(data: Dataset, count_tokens: Callable[[list[str]], list[int]], window: int) -> tuple[int, list[Finding]]:
    distinct = list(dict.fromkeys(text for texts in data.columns.values() for text in texts))
    lengths = dict(zip(distinct, count_tokens(distinct), strict=True)) if distinct else {}
    longest = max(lengths.values(), default=0)
    rows = [row for row in range(len(data)) if any(lengths[text] > window for text in data.texts(row))]
    message = f"{len(rows)} of {len(data)} rows have a text beyond the model's window of {window} tokens, which is cut (longest: {longest})"
    return longest, [_rows("too_long", data, rows, message)] if rows else []


def _rows(name: str, data: Dataset, rows: Sequence[int], message: str) -> Finding:
    return Finding(name, len(rows), message, [_at(data, row) for row in rows[:EXAMPLES]], len(rows) > EXAMPLES)


def _shared(train: Dataset, test: Dataset) -> list[Finding]:
    """Test rows that training has seen. Pairs are compared in either order, whatever the kinds of the two files."""
    findings = []
    if len(train.columns) > 1 and len(test.columns) > 1:
        exact = _both(_pairs(train.columns), _pairs(test.columns))
        loose = _both(_pairs(_normalised(train)), _pairs(_normalised(test)))
        more = {row: first for row, first in loose.items() if row not in exact}
        findings += _overlap("shared_pairs", train, test, exact, "have a pair that is in the training data")
        findings += _overlap("shared_pairs_normalised", train, test, more, "more have such a pair but for case, spaces and Unicode form")
    places: dict[str, int] = {}
    for texts in _normalised(train).values():
        for row, text in enumerate(texts):
            places.setdefault(text, row)
    columns = list(_normalised(test).values())
    seen: dict[int, int] = {}
    whole: dict[int, int] = {}
    for row, side in enumerate(zip(*columns, strict=True)):
        known = [places[text] for text in side if text and text in places]
        if known:
            seen[row] = known[0]
        if len(known) == len(side) > 1:
            whole[row] = known[0]
    findings += _overlap("shared_texts", train, test, seen, "have a text that is in the training data")
    findings += _overlap("shared_both_texts", train, test, whole, "have all their texts in the training data")
    return findings


def _pairs(columns: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    first, second, *_ = columns.values()
    return [(a, b) if a <= b else (b, a) for a, b in zip(first, second, strict=True)]


def _both(train: Sequence[tuple[str, str]], test: Sequence[tuple[str, str]]) -> dict[int, int]:
    """Row of test -> first row of train with the same pair."""
    places: dict[tuple[str, str], int] = {}
    for row, pair in enumerate(train):
        places.setdefault(pair, row)
    return {row: places[pair] for row, pair in enumerate(test) if pair in places}


def _overlap(name: str, train: Dataset, test: Dataset, found: Mapping[int, int], what: str) -> list[Finding]:
    if not found:
        return []
    shown = [f"{_at(test, row)} = {_at(train, first)} of training" for row, first in list(found.items())[:EXAMPLES]]
    return [Finding(name, len(found), f"{len(found)} of {len(test)} rows of {test.path.name} {what}", shown, len(found) > EXAMPLES)]
