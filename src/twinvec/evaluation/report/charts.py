"""The drawings of a comparison: quality against rate, histograms, reliability, heat map, map of texts, cone and spectrum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from twinvec.evaluation.charts import shorten
from twinvec.evaluation.metrics import Floats
from twinvec.evaluation.report.svg import COLOURS, FAINT, GRID, INK, PAPER, WIDTH, Scale, Svg, Words, both, tick_text

LEFT, RIGHT, TOP, BOTTOM = 52.0, 12.0, 14.0, 38.0


def _frame(svg: Svg, x: Scale, y: Scale, across: Words, up: Words, *, percent: bool = False) -> None:
    for value in y.ticks():
        svg.line(LEFT, y(value), svg.width - RIGHT, y(value))
        shown = f"{value * 100:.0f} %" if percent else tick_text(value)
        svg.text(LEFT - 5, y(value) + 4, shown, anchor="end", size=10, colour=FAINT)
    for value in x.ticks():
        svg.line(x(value), svg.height - BOTTOM, x(value), svg.height - BOTTOM + 4)
        svg.text(x(value), svg.height - BOTTOM + 15, tick_text(value), anchor="middle", size=10, colour=FAINT)
    svg.line(LEFT, svg.height - BOTTOM, svg.width - RIGHT, svg.height - BOTTOM, colour=FAINT)
    svg.text((LEFT + svg.width - RIGHT) / 2, svg.height - 6, across, anchor="middle", colour=FAINT)
    svg.text(10, (TOP + svg.height - BOTTOM) / 2, up, anchor="middle", colour=FAINT, turned=True)


def _scales(low_x: float, high_x: float, low_y: float, high_y: float, height: float, *, log: bool = False) -> tuple[Scale, Scale]:
    return Scale(low_x, high_x, LEFT, WIDTH - RIGHT, log), Scale(low_y, high_y, height - BOTTOM, TOP)


def pareto_chart(rows: Sequence[dict[str, Any]], front: Sequence[int], figure: str) -> Svg | None:
    """Quality x 100 with its interval against texts a second (logarithmic); rows by their numbers, the best trades joined. None: no rate known."""
    shown = [row for row in rows if row["quality"] is not None and row["texts_per_second"]]
    if not shown:
        return None
    svg = Svg(280, (f"{figure} against texts a second", f"{figure} 与每秒文本数"))
    rates = [row["texts_per_second"] for row in shown]
    ends = [100 * value for row in shown for value in (row["quality"], row["low"], row["high"]) if value is not None]
    margin = max(max(ends) - min(ends), 1.0) * 0.08
    x, y = _scales(min(rates) / 1.3, max(rates) * 1.3, min(ends) - margin, max(ends) + margin, svg.height, log=True)
    _frame(svg, x, y, ("texts a second", "每秒文本数"), (f"{figure} × 100", f"{figure} × 100"))
    by_number = {row["number"]: row for row in shown}
    way = [(x(by_number[n]["texts_per_second"]), y(by_number[n]["quality"] * 100)) for n in front if n in by_number]
    svg.path(way, colour=COLOURS[0], width=1.5, dash="4 3")
    places: list[tuple[dict[str, Any], str, float, float]] = []
    for row in sorted(shown, key=lambda row: row["texts_per_second"]):
        true, up = x(row["texts_per_second"]), y(row["quality"] * 100)
        # Cuts of one model have one rate: numbers stand beside each other so that they can be told apart, in the order of their rates.
        at = true
        while any(abs(at - a) < 19 and abs(up - b) < 19 for _, _, a, b in places) and at < WIDTH - RIGHT - 10:
            at += 5
        colour = COLOURS[0] if row["number"] in front else FAINT
        places.append((row, colour, at, up))
        if row["low"] is not None:
            svg.line(true, y(row["low"] * 100), true, y(row["high"] * 100), colour=colour, width=1.5)
        if at != true:
            svg.circle(true, up, 3, colour=colour)
    for row, colour, at, up in places:  # above all lines, so that the pointer finds them
        svg.circle(at, up, 9, colour=colour, tip=_pareto_tip(row, figure))
        svg.text(at, up + 3.5, str(row["number"]), anchor="middle", size=10, colour=PAPER, bold=True, tip=_pareto_tip(row, figure))
    return svg


def _pareto_tip(row: dict[str, Any], figure: str) -> Words:
    name = f"{row['number']}  {row['model']}"
    band = f" ({row['low'] * 100:.1f}-{row['high'] * 100:.1f})" if row["low"] is not None else ""
    value = f"{figure} {row['quality'] * 100:.2f}{band}"
    return f"{name}\n{value}\n{row['texts_per_second']:,.0f} texts/s", f"{name}\n{value}\n每秒 {row['texts_per_second']:,.0f} 条"


@dataclass(frozen=True)
class Histogram:
    """Values of one class; `colour` numbers a colour."""

    name: Words
    values: Floats
    colour: int


def histogram_chart(parts: Sequence[Histogram], label: Words, across: Words = ("cosine", "余弦"), bins: int = 32) -> Svg | None:
    """Shares within each class, so that classes of unequal size compare; an upright line marks each mean. None: nothing finite."""
    kept = [Histogram(part.name, part.values[np.isfinite(part.values)], part.colour) for part in parts]
    kept = [part for part in kept if len(part.values)]
    if not kept:
        return None
    low, high = min(float(part.values.min()) for part in kept), max(float(part.values.max()) for part in kept)
    if high - low < 1e-6:
        low, high = low - 0.05, high + 0.05
    edges = np.linspace(low, high, bins + 1)
    counted = [np.histogram(part.values, edges)[0] / len(part.values) for part in kept]
    svg = Svg(200 + 15 * len(kept), label)
    x, y = _scales(low, high, 0.0, max(float(shares.max()) for shares in counted) * 1.05, svg.height)
    head = 4 + 15 * len(kept)
    y = Scale(y.low, y.high, y.start, TOP + head)
    _frame(svg, x, y, across, ("share", "占比"), percent=True)
    for part, shares in zip(kept, counted, strict=True):
        colour = COLOURS[part.colour % len(COLOURS)]
        en, zh = both(part.name)
        for i, share in enumerate(shares):
            if share > 0:
                span = f"{edges[i]:.3f} - {edges[i + 1]:.3f}: {share:.1%}"
                left = x(float(edges[i]))
                svg.rect(
                    left, y(float(share)), x(float(edges[i + 1])) - left, y(0) - y(float(share)), colour=colour, opacity=0.45,
                    tip=(f"{en}\n{span}", f"{zh}\n{span}"),
                )  # fmt: skip
    for line, part in enumerate(kept):
        mean = float(part.values.mean())
        colour = COLOURS[part.colour % len(COLOURS)]
        svg.line(x(mean), TOP + head, x(mean), y(0), colour=colour, width=2)
        en, zh = both(part.name)
        svg.rect(LEFT, TOP - 6 + 15 * line, 10, 10, colour=colour, opacity=0.7)
        svg.text(LEFT + 15, TOP + 3 + 15 * line, (f"{shorten(en, 34)}, mean {mean:.3f}", f"{shorten(zh, 34)}，均值 {mean:.3f}"), tip=part.name)
    return svg


def reliability_chart(bins: Sequence[dict[str, float]]) -> Svg:
    """What was said against what came true; the size of a dot by its rows. On the diagonal a probability means what it says."""
    svg = Svg(280, ("reliability: probability said against share that came true", "可靠性：预测概率与实际比例"))
    x, y = _scales(0.0, 1.0, 0.0, 1.0, svg.height)
    _frame(svg, x, y, ("probability said", "预测概率"), ("share that came true", "实际比例"))
    svg.line(x(0), y(0), x(1), y(1), colour=FAINT, dash="4 3")
    most = max((part["rows"] for part in bins), default=1)
    svg.path([(x(part["said"]), y(part["true"])) for part in bins], colour=COLOURS[0], width=1.5)
    for part in bins:
        span = f"{part['said']:.3f} → {part['true']:.3f}"
        tip = (f"said {span} true\n{part['rows']:.0f} rows", f"预测 → 实际：{span}\n{part['rows']:.0f} 行")
        svg.circle(x(part["said"]), y(part["true"]), 3 + 6 * (part["rows"] / most) ** 0.5, colour=COLOURS[0], opacity=0.8, tip=tip)
    return svg


def heatmap_chart(texts: Sequence[str], cosines: Floats) -> Svg:
    """Cosines of some texts with each other; the darker the nearer, from the least cosine of the picture (or 0) to 1."""
    n = len(texts)
    names = 118.0
    cell = (WIDTH - names - 4) / n
    svg = Svg(18 + cell * n + 4, ("similarity heat map", "相似度热力图"))
    low = float(min(0.0, cosines.min())) if cosines.min() < 0.3 else float(cosines.min())
    for i, text in enumerate(texts):
        svg.text(names - 5, 18 + cell * (i + 0.5) + 4, f"{i + 1} {shorten(text, 17)}", anchor="end", size=10, tip=text)
        svg.text(names + cell * (i + 0.5), 13, str(i + 1), anchor="middle", size=10, colour=FAINT, tip=text)
    for i in range(n):
        for j in range(n):
            value = float(cosines[i, j])
            share = (value - low) / (1 - low) if low < 1 else 1.0
            tip = f"{value:.4f}\n{i + 1}: {texts[i]}\n{j + 1}: {texts[j]}"
            svg.rect(names + cell * j, 18 + cell * i, cell - 1, cell - 1, colour=COLOURS[0], opacity=min(1.0, max(0.03, share)), tip=tip)
            if cell >= 22:
                ink = PAPER if share > 0.55 else INK
                svg.text(names + cell * (j + 0.5), 18 + cell * (i + 0.5) + 3, f"{value:.2f}", anchor="middle", size=8.5, colour=ink, tip=tip)
    return svg


def map_chart(
    points: Floats, groups: Sequence[int], names: Sequence[Words], texts: Sequence[str], links: Sequence[tuple[int, int, int]],
    axes: tuple[Words, Words],
) -> Svg:  # fmt: skip
    """points (n, 2), a group and a text for each; links: two points and a group, drawn as a line between them."""
    rows = -(-len(names) // 2)
    svg = Svg(310 + 15 * rows, ("map of texts", "文本分布图"))
    head = 15.0 * rows
    (low_x, low_y), (high_x, high_y) = points.min(0), points.max(0)
    x = Scale(float(low_x), float(high_x), 16, WIDTH - 10)
    y = Scale(float(low_y), float(high_y), svg.height - 24, TOP + head)
    svg.line(10, svg.height - 18, WIDTH - 6, svg.height - 18, colour=GRID)
    svg.line(10, svg.height - 18, 10, TOP + head - 4, colour=GRID)
    for a, b, group in links:
        colour = COLOURS[group % len(COLOURS)]
        svg.line(x(points[a, 0]), y(points[a, 1]), x(points[b, 0]), y(points[b, 1]), colour=colour, width=0.8)
    for (at, up), group, text in zip(points, groups, texts, strict=True):
        en, zh = both(names[group])
        svg.circle(x(float(at)), y(float(up)), 3.2, colour=COLOURS[group % len(COLOURS)], opacity=0.75, tip=(f"{en}\n{text}", f"{zh}\n{text}"))
    for i, name in enumerate(names):
        left, top = 12 + (i % 2) * (WIDTH / 2 - 6), 10 + 15 * (i // 2)
        en, zh = both(name)
        svg.circle(left + 4, top - 4, 4, colour=COLOURS[i % len(COLOURS)])
        svg.text(left + 13, top, (shorten(en, 24), shorten(zh, 24)), tip=name)
    svg.text(WIDTH - 8, svg.height - 5, axes[0], anchor="end", size=10, colour=FAINT)
    svg.text(14, svg.height - 5, axes[1], size=10, colour=FAINT)
    return svg


# --- the cone


@dataclass(frozen=True)
class Cone:
    """How one model's vectors lie: cosines of random pairs (m,), and the share of all that the first k directions hold, k = 1, 2, ..."""

    name: str
    cosines: Floats
    energy: Floats


def cone_chart(cones: Sequence[Cone]) -> Svg:
    """All models in one picture: above the cosines of random pairs, below how few directions hold how much."""
    head, panel = 15.0 * len(cones) + 6, 190.0
    svg = Svg(
        head + 2 * panel + 60,
        ("how the vectors lie: cosine of random pairs, and share held by the first directions", "向量分布：随机文本对的余弦，以及前若干方向所占份额"),
    )
    for i, cone in enumerate(cones):
        colour = COLOURS[i % len(COLOURS)]
        svg.line(12, 8 + 15 * i, 30, 8 + 15 * i, colour=colour, width=3)
        mean = float(cone.cosines.mean())
        name = shorten(cone.name, 32)
        svg.text(
            36,
            12 + 15 * i,
            (f"{name}, mean {mean:.2f}, first {cone.energy[0]:.0%}", f"{name}，均值 {mean:.2f}，首方向 {cone.energy[0]:.0%}"),
            tip=cone.name,
        )
    low = min(-0.2, min(float(np.quantile(cone.cosines, 0.001)) for cone in cones))
    edges = np.linspace(low, 1.0, 61)
    counted = [np.histogram(np.clip(cone.cosines, low, 1.0), edges)[0] / len(cone.cosines) for cone in cones]
    floor = head + panel - 20
    x, y = Scale(low, 1.0, LEFT, WIDTH - RIGHT), Scale(0.0, max(float(shares.max()) for shares in counted) * 1.05, floor, head + 12)
    _panel(svg, x, y, floor, ("cosine of two random texts", "两条随机文本的余弦"), ("share", "占比"))
    for i, (cone, shares) in enumerate(zip(cones, counted, strict=True)):
        steps = [(x(float(edges[k + side])), y(float(share))) for k, share in enumerate(shares) for side in (0, 1)]
        svg.path(steps, colour=COLOURS[i % len(COLOURS)], width=1.8, tip=f"{cone.name}\n{float(cone.cosines.mean()):.3f}")
    floor = head + 2 * panel + 18
    most = max(len(cone.energy) for cone in cones)
    x, y = Scale(1.0, float(max(most, 2)), LEFT, WIDTH - RIGHT, log=True), Scale(0.0, 1.0, floor, head + panel + 38)
    _panel(svg, x, y, floor, ("directions, the largest first", "方向数（从大到小）"), ("share of all, together", "累计份额"))
    for i, cone in enumerate(cones):
        way = [(x(k + 1.0), y(float(share))) for k, share in enumerate(cone.energy)]
        svg.path(way, colour=COLOURS[i % len(COLOURS)], width=1.8, tip=f"{cone.name}\n1: {cone.energy[0]:.1%}")
        for k in (0, 2, 9, 29):
            if k < len(way):
                svg.circle(*way[k], 2.5, colour=COLOURS[i % len(COLOURS)], tip=f"{cone.name}\n{k + 1}: {cone.energy[k]:.1%}")
    return svg


def _panel(svg: Svg, x: Scale, y: Scale, floor: float, across: Words, up: Words) -> None:
    for value in y.ticks(4):
        svg.line(LEFT, y(value), WIDTH - RIGHT, y(value))
        svg.text(LEFT - 5, y(value) + 4, f"{value * 100:.0f} %", anchor="end", size=10, colour=FAINT)
    for value in x.ticks(6):
        svg.text(x(value), floor + 14, tick_text(value), anchor="middle", size=10, colour=FAINT)
    svg.line(LEFT, floor, WIDTH - RIGHT, floor, colour=FAINT)
    svg.text((LEFT + WIDTH - RIGHT) / 2, floor + 29, across, anchor="middle", colour=FAINT)
    svg.text(10, (y.start + y.stop) / 2, up, anchor="middle", colour=FAINT, turned=True)
