"""The page of a comparison: one HTML file, both languages, its own style and script, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from twinvec import __version__
from twinvec.evaluation.report.svg import COLOURS, FAINT, GRID, INK, NAMES, PAPER, Svg, Words, both, escape
from twinvec.evaluation.report.words import W, fill


@dataclass(frozen=True)
class Cell:
    """A cell of a table: what it shows, and by what it is sorted (a number, else its text)."""

    shown: Words
    value: float | None = None
    number: bool = False


def word(words: Words) -> str:
    """Both languages; the style shows one of them."""
    en, zh = both(words)
    return escape(en) if en == zh else f"<span class=en>{escape(en)}</span><span class=zh>{escape(zh)}</span>"


def heading(words: Words, level: int = 2) -> str:
    return f"<h{level}>{word(words)}</h{level}>"


def paragraph(words: Words, kind: str = "") -> str:
    return f"<p{f' class={kind}' if kind else ''}>{word(words)}</p>"


def listed(items: Iterable[Words]) -> str:
    return "<ul>" + "".join(f"<li>{word(item)}</li>" for item in items) + "</ul>"


def figure(svg: Svg | None, title: Words | None, note: Words | None = None) -> str:
    if svg is None:
        return ""
    above = f"<h4>{word(title)}</h4>" if title is not None else ""
    below = f"<figcaption>{word(note)}</figcaption>" if note is not None else ""
    return f"<figure>{above}{svg.html()}{below}</figure>"


def folded(title: Words, inner: str, *, open: bool = False) -> str:
    """A part that opens at a click, and by itself for paper."""
    return f"<details{' open' if open else ''}><summary>{word(title)}</summary>{inner}</details>"


def table(head: Sequence[Words], rows: Sequence[Sequence[Cell]], *, sortable: bool = True, marked: Sequence[int] = ()) -> str:
    """Rows of cells; a column of numbers is flush right. marked: rows (from 0) that stand out."""
    right = [bool(rows) and all(row[i].number for row in rows) for i in range(len(head))]
    top = "".join(
        f"<th scope=col{' class=n' if right[i] else ''}{' aria-sort=none' if sortable else ''}>"
        + (f"<button type=button>{word(name)}</button>" if sortable else word(name))
        + "</th>"
        for i, name in enumerate(head)
    )
    body = ""
    for at, row in enumerate(rows):
        cells = "".join(
            f"<td{' class=n' if right[i] else ''}{'' if cell.value is None else f' data-v={float(cell.value)!r}'}>{word(cell.shown)}</td>"
            for i, cell in enumerate(row)
        )
        body += f"<tr{' class=marked' if at in marked else ''}>{cells}</tr>"
    return f"<div class=wide><table{' class=sortable' if sortable else ''}><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"


def page(title: Words, parts: Iterable[str], language: str = "en") -> str:
    """The whole page, shown first in `language` ("en" or "zh"); a button changes to the other."""
    en, zh = both(title)
    lang = "zh-Hans" if language == "zh" else "en"
    return (
        f'<!doctype html>\n<html lang="{lang}" class="show-{language}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n<meta name="color-scheme" content="light dark">\n'
        f'<meta name="generator" content="twinvec {__version__}">\n<link rel="icon" href="data:,">\n<title>{escape(zh if language == "zh" else en)}'
        f"</title>\n<style>{_style()}</style>\n</head>\n<body>\n<header><h1>{word(title)}</h1>"
        f"<button type=button id=switch>{word(W['switch'])}</button></header>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + f"\n</main>\n<footer>{word(fill(W['made'], version=__version__))}</footer>\n<div id=tip role=tooltip hidden></div>\n"
        f"<script>{_file('report.js')}</script>\n</body>\n</html>\n"
    )


@cache
def _file(name: str) -> str:
    return resources.files("twinvec.evaluation.report").joinpath(name).read_text(encoding="utf-8")


@cache
def _style() -> str:
    """The style, with the colours of the drawings: an attribute says the light one, a rule by its name the one of dark mode."""
    dark = {INK: "#e8e8e8", FAINT: "#a8a8a8", GRID: "#3a3d42", PAPER: "#17191c"}
    dark |= dict(zip(COLOURS, ("#6fb4e8", "#f2a65a", "#5fc79a", "#e08cc4", "#d6b84a", "#9d9df5", "#f08a7d", "#7cc9d9"), strict=True))
    rules = "".join(f'[data-f="{NAMES[light]}"]{{fill:{shade}}}[data-s="{NAMES[light]}"]{{stroke:{shade}}}' for light, shade in dark.items())
    return _file("report.css").replace("/*dark*/", f"@media screen and (prefers-color-scheme:dark){{{rules}}}")


def number_cell(value: float | None, places: int = 2, *, factor: float = 1.0, unit: str = "") -> Cell:
    if value is None:
        return Cell("–", None, True)
    scaled = value * factor
    shown = f"{scaled:,.0f}" if places == 0 or abs(scaled) >= 10_000 else f"{scaled:,.{places}f}"
    return Cell(shown + unit, value, True)


def bytes_cell(value: Any) -> Cell:
    if value is None:
        return Cell("–", None, True)
    return Cell(f"{value / 1e6:,.0f} MB" if value >= 1e7 else f"{value / 1e6:,.1f} MB", float(value), True)
