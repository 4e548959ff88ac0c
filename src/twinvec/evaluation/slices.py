"""The same figure on parts of a file: by length, by language, by a column such as subset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from twinvec.errors import DataError
from twinvec.evaluation.certainty import intervals
from twinvec.evaluation.measured import Measured
from twinvec.evaluation.metrics import Floats
from twinvec.evaluation.values import defined
from twinvec.evaluation.weighted import Figures, Ints, one

LANGUAGES: Final = ("zh", "en", "mixed", "other")
_CLEAR: Final = 0.8  # share of one script among a row's letters from which the row counts as of that script
_HAN_LETTERS: Final = 3.0  # a Chinese character carries about what three Latin letters do


def language_of(texts: Sequence[str]) -> str:
    """ "zh" (Han characters), "en" (Latin letters, whatever their language), "mixed" or "other", by the script of all texts of a row together."""
    per_text = [_scripts(text) for text in texts]
    han, latin, other = (sum(counts) for counts in zip(*per_text, strict=True)) if per_text else (0, 0, 0)
    total = han * _HAN_LETTERS + latin + other
    if not total:
        return "other"
    if han * _HAN_LETTERS >= _CLEAR * total:
        return "zh"
    if latin >= _CLEAR * total:
        return "en"
    return "other" if other >= _CLEAR * total else "mixed"


def _scripts(text: str) -> tuple[int, int, int]:
    han = latin = other = 0
    for char in text:
        code = ord(char)
        if 0x4E00 <= code <= 0x9FFF or 0x3400 <= code <= 0x4DBF or 0x20000 <= code <= 0x3FFFF or 0xF900 <= code <= 0xFAFF:
            han += 1
        elif char.isalpha():
            if code < 0x250 or 0x1E00 <= code <= 0x1EFF or 0xFF21 <= code <= 0xFF5A:
                latin += 1
            else:
                other += 1
    return han, latin, other


def parts_by_language(rows: Sequence[Mapping[str, str]]) -> dict[str, Ints]:
    found = np.asarray([language_of(list(row.values())) for row in rows])
    return {name: np.flatnonzero(found == name) for name in LANGUAGES if (found == name).any()}


def parts_by_length(rows: Sequence[Mapping[str, str]], parts: int = 4) -> dict[str, Ints]:
    """Parts of about equal size by the characters of a row's texts together; fewer where many rows are equally long."""
    lengths = np.asarray([sum(map(len, row.values())) for row in rows])
    bounds = np.unique(np.quantile(lengths, np.arange(1, parts) / parts, method="higher")) if len(lengths) else np.zeros(0)
    number = np.searchsorted(bounds, lengths, side="left")
    out = {}
    for part in np.unique(number):
        mine = np.flatnonzero(number == part)
        low, high = lengths[mine].min(), lengths[mine].max()
        out[f"{low}-{high} characters" if low < high else f"{low} characters"] = mine
    return out


def parts_by_value(values: Sequence[Any]) -> dict[str, Ints]:
    """A part a distinct value, in the order of their first rows."""
    shown = [str(value) if value not in (None, "") else "(none)" for value in values]
    names = {name: number for number, name in enumerate(dict.fromkeys(shown))}
    found = np.asarray([names[name] for name in shown])
    return {name: np.flatnonzero(found == number) for name, number in names.items()}


def sliced(
    measured: Measured, columns: Mapping[str, Sequence[Any]] | None = None, *, draws: int = 0, level: float = 0.95, seed: int = 0
) -> list[dict[str, Any]]:
    """The headline figure on every part: [{"slice": "language", "value": "zh", "rows", FIGURE, "low", "high"}]; no bounds with draws = 0.

    columns: further slices, a name -> one value a unit. A slice that is one part only says nothing and is left out.
    """
    wanted: dict[str, dict[str, Ints]] = {"language": parts_by_language(measured.texts), "length": parts_by_length(measured.texts)}
    for name, values in (columns or {}).items():
        if len(values) != measured.units:
            raise DataError(f"slices: column {name!r} has {len(values)} values for {measured.units} rows; wanted one each")
        wanted[name] = parts_by_value(values)
    figure = measured.figures.only(measured.headline)
    out = []
    for name, parts in wanted.items():
        for value, rows in parts.items() if len(parts) > 1 else ():
            part = _restricted(figure, measured.units, rows)
            found: dict[str, Any] = {
                "slice": name,
                "value": value,
                "rows": len(rows),
                measured.headline: defined(one(part, len(rows))[measured.headline]),
            }
            if draws:
                clusters = None if measured.clusters is None else measured.clusters[rows]
                bounds = intervals(part, len(rows), draws=draws, level=level, seed=seed, clusters=clusters).get(measured.headline)
                found |= {"low": bounds.low if bounds else None, "high": bounds.high if bounds else None}
            out.append(found)
    return out


def _restricted(figures: Figures, units: int, rows: Ints) -> Figures:
    """The figures as functions of how often each of `rows` counts, all other units left out."""

    def part(weights: Floats) -> dict[str, Floats]:
        whole = np.zeros((len(weights), units))
        whole[:, rows] = weights
        return figures(whole)

    return Figures.of(figures.names, part)
