"""Small drawings as SVG: in a page with both languages and dark mode, or as a file of their own."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from twinvec.errors import DataError
from twinvec.text import without_surrogates

Words = str | tuple[str, str]  # one text for all, or English and Chinese
# Apart for colour-blind readers (Okabe and Ito), the first two also by lightness on grey paper.
COLOURS: Final = ("#1b6ca8", "#e07b1a", "#2a8f63", "#b3478f", "#8a6d00", "#4d4dbd", "#c0392b", "#3c8ea3")
INK, FAINT, GRID, PAPER = "#1c1c1c", "#6b6b6b", "#dddddd", "#ffffff"
NAMES: Final = {INK: "ink", FAINT: "faint", GRID: "grid", PAPER: "paper", **{value: f"c{i}" for i, value in enumerate(COLOURS)}}
WIDTH: Final = 360  # drawn for a phone's width, so that letters stay readable there
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escape(text: object) -> str:
    """Any text as HTML and XML can hold it."""
    return html.escape(_NOT_XML.sub("\ufffd", without_surrogates(str(text))), quote=True)


def both(words: Words) -> tuple[str, str]:
    return (words, words) if isinstance(words, str) else words


@dataclass
class Svg:
    """A drawing that grows: shapes are drawn in the order they come. Numbers must be finite: DataError."""

    height: float
    label: Words
    width: float = WIDTH
    _parts: list[tuple[str, Words | None]] = field(default_factory=list)

    def line(
        self, x1: float, y1: float, x2: float, y2: float, *, colour: str = GRID, width: float = 1, dash: str = "", tip: Words | None = None
    ) -> None:
        more = f' stroke-dasharray="{dash}"' if dash else ""
        at = f'x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}"'
        self._parts.append((f'<line {at} {_paint("stroke", colour)} stroke-width="{_n(width)}"{more}{_tip(tip)}/>', None))

    def rect(self, x: float, y: float, width: float, height: float, *, colour: str, opacity: float = 1.0, tip: Words | None = None) -> None:
        at = f'x="{_n(x)}" y="{_n(y)}" width="{_n(max(width, 0))}" height="{_n(max(height, 0))}"'
        self._parts.append((f'<rect {at} {_paint("fill", colour)} fill-opacity="{_n(opacity)}"{_tip(tip)}/>', None))

    def circle(self, x: float, y: float, r: float, *, colour: str, opacity: float = 1.0, tip: Words | None = None) -> None:
        at = f'cx="{_n(x)}" cy="{_n(y)}" r="{_n(r)}"'
        self._parts.append((f'<circle {at} {_paint("fill", colour)} fill-opacity="{_n(opacity)}"{_tip(tip)}/>', None))

    def path(self, points: Sequence[tuple[float, float]], *, colour: str, width: float = 2, dash: str = "", tip: Words | None = None) -> None:
        """A line through the points."""
        if len(points) < 2:
            return
        more = f' stroke-dasharray="{dash}"' if dash else ""
        way = "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)
        self._parts.append(
            (f'<path d="{way}" fill="none" {_paint("stroke", colour)} stroke-width="{_n(width)}" stroke-linejoin="round"{more}{_tip(tip)}/>', None)
        )

    def text(
        self, x: float, y: float, text: Words, *, anchor: str = "start", size: float = 11, colour: str = INK, turned: bool = False,
        bold: bool = False, tip: Words | None = None,
    ) -> None:  # fmt: skip
        turn = f' transform="rotate(-90 {_n(x)} {_n(y)})"' if turned else ""
        weight = ' font-weight="600"' if bold else ""
        head = f'<text{{}} x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}" font-size="{_n(size)}" {_paint("fill", colour)}{weight}{turn}{_tip(tip)}>'
        self._parts.append((head, text))

    def html(self) -> str:
        """Inline, for a page whose style shows the texts of one language."""
        en, zh = both(self.label)
        inner = "".join(_shown(part, text, None) for part, text in self._parts)
        return (
            f'<svg viewBox="0 0 {_n(self.width)} {_n(self.height)}" role="img" data-label-en="{escape(en)}" data-label-zh="{escape(zh)}" '
            f'aria-label="{escape(en)}">{inner}</svg>'
        )

    def file(self, language: str = "en") -> str:
        """A file of its own, on white."""
        inner = "".join(_shown(part, text, language) for part, text in self._parts)
        label = escape(both(self.label)[language == "zh"])
        size = f'width="{_n(self.width * 2)}" height="{_n(self.height * 2)}" viewBox="0 0 {_n(self.width)} {_n(self.height)}"'
        fonts = "system-ui, Roboto, Noto Sans, Noto Sans CJK SC, PingFang SC, Microsoft YaHei, sans-serif"
        return (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{fonts}"><title>{label}</title>'
            f'<rect width="100%" height="100%" fill="#ffffff"/>{inner}</svg>\n'
        )


def _shown(part: str, text: Words | None, language: str | None) -> str:
    if text is None:
        return part
    en, zh = both(text)
    if language is not None or en == zh:
        return part.format("") + escape(zh if language == "zh" else en) + "</text>"
    return f"{part.format(' class=en')}{escape(en)}</text>{part.format(' class=zh')}{escape(zh)}</text>"


def _paint(what: str, colour: str) -> str:
    """The colour as an attribute, and for a named one a class that dark mode changes."""
    name = NAMES.get(colour)
    return f'{what}="{colour}"' + (f' data-{what[0]}="{name}"' if name else "")


def _tip(tip: Words | None) -> str:
    if tip is None:
        return ""
    en, zh = (escape(text).replace("\n", "&#10;").replace("{", "&#123;").replace("}", "&#125;") for text in both(tip))
    return f' data-tip="{en}"' + (f' data-tip-zh="{zh}"' if zh != en else "")


def _n(value: float) -> str:
    if not math.isfinite(value):
        raise DataError(f"drawing: a place of {value}; wanted a finite number")
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


# --- axes


@dataclass(frozen=True)
class Scale:
    """From values [low, high] to places [start, stop]; with `log` by their logarithm."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (math.log(x) for x in (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return self.start + (self.stop - self.start) * ((at - low) / (high - low) if high > low else 0.5)

    def ticks(self, count: int = 5) -> list[float]:
        if self.log:
            steps = [
                base * 10.0**power for power in range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1) for base in (1, 2, 5)
            ]
            inside = [step for step in steps if self.low * 0.999 <= step <= self.high * 1.001]
            if len(inside) >= 3:
                return inside[:: max(1, math.ceil(len(inside) / (count + 1)))]
        return nice_ticks(self.low, self.high, count)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers inside [low, high], about `count` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * k for k in (1, 2, 2.5, 5, 10) if size * k >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 10) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_text(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
