"""What a command says: results on standard output, notes and errors on standard error."""

from __future__ import annotations

import json
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any


class Console:
    """The voice of one command. With `json` only one JSON object goes to standard output; with `quiet` no notes and no progress are shown."""

    current: Console | None = None

    def __init__(self, json: bool = False, quiet: bool = False) -> None:
        self.json, self.quiet = json, quiet
        self.notes: list[str] = []
        self._said: set[str] = set()
        Console.current = self

    @property
    def progress(self) -> bool:
        return not self.quiet

    def note(self, text: str, *, keep: bool = True) -> None:
        """A thing the user should know: on standard error, once, and with `keep` among the "notes" of the JSON object."""
        if text in self._said:
            return
        self._said.add(text)
        if keep:
            self.notes.append(text)
        if not self.quiet:
            print(f"note: {text}", file=sys.stderr, flush=True)

    def note_all(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.note(text)

    def describe(self, lines: Iterable[str]) -> None:
        """How a file was understood, such as which column became what: for a human, on standard error. Notes come as notes, not here."""
        if not self.quiet:
            for line in without_notes(lines):
                print(line, file=sys.stderr)

    def result(self, payload: dict[str, Any], lines: Iterable[str]) -> None:
        """The outcome: `payload` as JSON (with the notes), or `lines` for a human."""
        if self.json:
            print_json({**payload, "notes": self.notes})
        else:
            print_lines(lines)


def without_notes(lines: Iterable[str]) -> list[str]:
    """What `describe()` of a data set says, less its notes."""
    return [line for line in lines if not line.startswith("  note: ")]


def print_json(payload: dict[str, Any]) -> None:
    """One object; on one line, unless a terminal shows it. NaN and infinity are a ValueError: they are not JSON."""
    ascii_only = "utf" not in (sys.stdout.encoding or "").lower()
    print(json.dumps(payload, ensure_ascii=ascii_only, allow_nan=False, indent=2 if sys.stdout.isatty() else None))


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


# Chinese characters take two cells of a terminal.


def width(text: str) -> int:
    """Cells that `text` takes on a terminal."""
    return sum(_cells(char) for char in text)


def _cells(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Cf", "Me", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def one_line(text: str, cells: int | None = None) -> str:
    """`text` with its white space and control characters as single spaces, cut with "…" to at most `cells` cells."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    if cells is None or width(line) <= cells:
        return line
    kept, used = [], 0
    for char in line:
        used += _cells(char)
        if used > cells - 1:
            break
        kept.append(char)
    return "".join(kept).rstrip() + "…"


def room(used: int, least: int = 20) -> int | None:
    """Cells left on the terminal's line beside `used`; None when standard output is no terminal, so that nothing is cut in a file."""
    if not sys.stdout.isatty():
        return None
    return max(least, shutil.get_terminal_size().columns - used)


def aligned(rows: Sequence[Sequence[str]], right: Iterable[int] = (), gap: str = "  ", indent: str = "") -> list[str]:
    """Rows of cells as lines with straight columns; the columns numbered in `right` are flush right."""
    flush = set(right)
    columns = max((len(row) for row in rows), default=0)
    wide = [max((width(row[i]) for row in rows if i < len(row)), default=0) for i in range(columns)]
    lines = []
    for row in rows:
        cells = [
            " " * (wide[i] - width(cell)) + cell if i in flush else cell + (" " * (wide[i] - width(cell)) if i < len(row) - 1 else "")
            for i, cell in enumerate(row)
        ]
        lines.append((indent + gap.join(cells)).rstrip())
    return lines


def pairs(items: Iterable[tuple[str, Any]], indent: str = "  ") -> list[str]:
    """Name and value a line, values in one column; items whose value is None are left out."""
    return aligned([[name, str(value)] for name, value in items if value is not None], indent=indent)


def bytes_text(count: float) -> str:
    """1536 -> '1.5 KB' (units of 1,000, as file managers show)."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
