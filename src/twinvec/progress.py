"""One progress bar, on standard error: live on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any


def note(message: str) -> None:
    """A line for a human, on standard error, so that standard output stays machine-readable."""
    print(message, file=sys.stderr, flush=True)


class Progress:
    """`with Progress(total, "encode") as bar: bar.advance(32, loss=0.1)`. `total` may be None (unknown).

    Off a terminal it prints at most one line every `every` seconds, and one at the end.
    """

    def __init__(self, total: int | None, title: str, *, show: bool = True, unit: str = "rows", every: float = 10.0) -> None:
        self.total, self.title, self.unit, self.every = total, title, unit, every
        self.show = show
        self.done = 0
        self.fields: dict[str, Any] = {}
        self._live: Any = None
        self._task: Any = None
        self._start = self._last = 0.0

    def __enter__(self) -> Progress:
        self._start = self._last = time.monotonic()
        if self.show and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
            self._live = RichProgress(*columns, console=Console(stderr=True))
            self._live.start()
            self._task = self._live.add_task(self.title, total=self.total, note="")
        return self

    def advance(self, amount: int = 1, **fields: Any) -> None:
        """Count `amount` more; `fields` (loss=..., rate=...) are shown beside the bar and kept until replaced."""
        self.done += amount
        self.fields.update(fields)
        if self._live is not None:
            self._live.update(self._task, advance=amount, note=self._note())
        elif self.show and time.monotonic() - self._last >= self.every:
            self._last = time.monotonic()
            self._line()

    def message(self, text: str) -> None:
        """A line above the bar."""
        if not self.show:
            return
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            note(text)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
        elif self.show and self.done and time.monotonic() - self._start >= self.every:
            self._line()

    def _note(self) -> str:
        return "  ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in self.fields.items())

    def _line(self) -> None:
        seconds = max(time.monotonic() - self._start, 1e-9)
        of = f"/{self.total}" if self.total is not None else ""
        left = f", {(self.total - self.done) * seconds / self.done:.0f} s left" if self.total and self.done < self.total else ""
        note(f"{self.title}: {self.done}{of} {self.unit}, {self.done / seconds:.1f}/s{left}  {self._note()}".rstrip())
