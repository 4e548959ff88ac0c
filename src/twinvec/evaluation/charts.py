"""Charts as Vega-Lite dicts: JSON-safe, with their data inside, ready for `page.Page` or any Vega viewer."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import altair as alt
import numpy as np
import numpy.typing as npt

from twinvec.errors import DataError, choose

Spec = dict[str, Any]
Floats = npt.NDArray[np.float64]
Rows = list[dict[str, Any]]

# Blue and orange stay apart for colour-blind readers and, by lightness, on grey paper.
BLUE, ORANGE, GREY = "#1b6ca8", "#e07b1a", "#666666"
WIDTH: Final = 560
MOST_POINTS: Final = 400  # a line of 560 pixels shows no more

WORDS: Final[dict[str, dict[str, str]]] = {
    "en": {
        "step": "step", "loss": "loss", "lr": "learning rate", "baseline": "before training", "best": "best", "before": "before training",
        "after": "after training", "positive": "positive pairs", "negative": "negative pairs", "similarity": "cosine similarity",
        "share": "share of pairs", "pairs": "pairs", "mean": "mean", "row": "text", "column": "with", "from": "from", "to": "to",
    },
    "zh": {
        "step": "步数", "loss": "损失", "lr": "学习率", "baseline": "训练前", "best": "最佳", "before": "训练前",
        "after": "训练后", "positive": "正例", "negative": "负例", "similarity": "余弦相似度",
        "share": "占比", "pairs": "句对数", "mean": "均值", "row": "文本", "column": "对比文本", "from": "从", "to": "到",
    },
}  # fmt: skip


def words(language: str) -> dict[str, str]:
    return WORDS[choose("language", language, WORDS)]


def loss_curve(log: Sequence[Mapping[str, Any]], *, language: str = "en") -> Spec:
    """Loss over steps, and under it, on the same steps, the learning rate.

    log: entries {"step": int, "loss": float, "lr": float}; entries without a loss are passed over, "lr" may be missing everywhere.
    More than 400 entries are averaged in runs of equal length. No entry with a loss: DataError.
    """
    word = words(language)
    rows = _thin(
        [{"step": entry["step"], "loss": _number(entry["loss"]), "lr": _number(entry.get("lr"))} for entry in log if entry.get("loss") is not None]
    )
    if not rows:
        raise DataError("loss curve: the log has no entry with a loss")
    steps = _step_axis(rows, word)
    base = alt.Chart(alt.Data(values=rows)).properties(width=WIDTH)
    tip = [alt.Tooltip("step:Q", title=word["step"], format=",.0f"), alt.Tooltip("loss:Q", title=word["loss"], format=".4f")]
    has_rate = any(row["lr"] is not None for row in rows)
    if has_rate:
        tip.append(alt.Tooltip("lr:Q", title=word["lr"], format=".2e"))
    # With the rate below, the step axis is drawn once, at the bottom.
    above = steps(labels=not has_rate, title=not has_rate)
    loss = _line(base, above, alt.Y("loss:Q", title=word["loss"], scale=alt.Scale(zero=False)), tip, BLUE).properties(height=200)
    if not has_rate:
        return _spec(loss)
    rate = _line(base, steps(), alt.Y("lr:Q", title=word["lr"], axis=alt.Axis(format=".1e", tickCount=3)), tip, GREY).properties(height=80)
    return _spec(alt.vconcat(loss, rate, spacing=8))


def metric_curve(
    points: Sequence[Mapping[str, Any]], metric: str, *, baseline: float | None = None, best_step: int | None = None, language: str = "en"
) -> Spec:
    """A metric over steps: a dashed line for the value before training, a marked point for the best.

    points: entries {"step": int, metric: float or None}; undefined values leave a gap. `best_step` None: the largest value is marked.
    No defined value at all: DataError.
    """
    word = words(language)
    rows: Rows = [{"step": entry["step"], "value": _number(entry.get(metric))} for entry in points]
    defined = [row for row in rows if row["value"] is not None]
    if not defined:
        raise DataError(f"metric curve: no step has a value of {metric!r}")
    best = next((row for row in defined if row["step"] == best_step), None) if best_step is not None else max(defined, key=lambda row: row["value"])
    tip = [alt.Tooltip("step:Q", title=word["step"], format=",.0f"), alt.Tooltip("value:Q", title=metric, format=".4f")]
    steps, y = _step_axis(rows, word), alt.Y("value:Q", title=metric, scale=alt.Scale(zero=False))
    layers = [_line(alt.Chart(alt.Data(values=rows)), steps(), y, tip, BLUE, points=True)]
    if _number(baseline) is not None:
        base = alt.Chart(alt.Data(values=[{"value": baseline, "label": f"{word['baseline']} {baseline:.4f}"}]))
        layers.append(base.mark_rule(strokeDash=[6, 4], color=GREY, strokeWidth=1.5).encode(y="value:Q"))
        layers.append(
            base.mark_text(align="right", baseline="bottom", dx=-4, dy=-3, color=GREY).encode(y="value:Q", x=alt.value("width"), text="label:N")
        )
    if best is not None:
        marked = alt.Chart(alt.Data(values=[{**best, "label": f"{word['best']} {best['value']:.4f}"}]))
        layers.append(marked.mark_point(size=140, filled=True, color=ORANGE, opacity=1).encode(x="step:Q", y="value:Q", tooltip=tip))
        late = best["step"] > (rows[0]["step"] + rows[-1]["step"]) / 2  # the label stays inside the frame
        text = marked.mark_text(align="right" if late else "left", baseline="bottom", dx=-8 if late else 8, dy=-8, color=ORANGE, fontWeight="bold")
        layers.append(text.encode(x="step:Q", y="value:Q", text="label:N"))
    return _spec(alt.layer(*layers).properties(width=WIDTH, height=220))


def similarity_histogram(
    before: npt.ArrayLike, labels: npt.ArrayLike, after: npt.ArrayLike | None = None, *, bins: int = 30, language: str = "en"
) -> Spec:
    """How positives and negatives spread over similarity, before training and (in a second panel on the same axis) after it.

    before, after (n,) similarities of the same pairs; labels (n,) of 0 and 1. Bars are shares within a class, so that classes of unequal
    size compare; the upright lines are the means. Pairs whose similarity is not finite are left out. Unequal lengths, or no pair: DataError.
    """
    word = words(language)
    y = np.asarray(labels, dtype=np.float64)
    panels = [("before", np.asarray(before, dtype=np.float64))]
    if after is not None:
        panels.append(("after", np.asarray(after, dtype=np.float64)))
    for name, scores in panels:
        if scores.ndim != 1 or scores.shape != y.shape:
            raise DataError(f"histogram: {name} needs one similarity for each of the {y.size} labels, got shape {scores.shape}")
    finite = [scores[np.isfinite(scores)] for _, scores in panels]
    if not all(len(scores) for scores in finite):
        raise DataError("histogram: no pair with a finite similarity")
    low, high = min(s.min() for s in finite), max(s.max() for s in finite)
    edges = np.linspace(low, high, bins + 1) if high > low else np.array([low - 0.05, low + 0.05])
    counted = [_counts(scores, y, edges, word) for _, scores in panels]
    top = max(row["share"] for rows, _ in counted for row in rows)
    charts = []
    for at, ((name, _), (rows, means)) in enumerate(zip(panels, counted, strict=True)):
        last = at == len(panels) - 1
        chart = _panel(rows, means, (float(edges[0]), float(edges[-1])), top, word, axis=last)
        charts.append(chart.properties(width=WIDTH, height=150, title=alt.Title(word[name], anchor="start", fontSize=12)))
    return _spec(alt.vconcat(*charts, spacing=10).resolve_scale(color="shared") if len(charts) > 1 else charts[0])


def similarity_heatmap(texts: Sequence[str], scores: npt.ArrayLike, columns: Sequence[str] | None = None, *, language: str = "en") -> Spec:
    """A square a pair: scores (n, m) of `texts` (n) with `columns` (m, by default the texts themselves).

    Labels are numbered and shortened; the tooltip holds both whole texts. Up to 12 x 12 the figures are written in the squares.
    A shape that does not fit, or no texts: DataError.
    """
    word = words(language)
    others = texts if columns is None else columns
    values = np.asarray(scores, dtype=np.float64)
    if values.shape != (len(texts), len(others)) or not values.size:
        raise DataError(f"heat map: {len(texts)} x {len(others)} texts need as many scores, at least one; got shape {values.shape}")
    across = [str(j + 1) if columns is None else f"{j + 1} {shorten(text, 14)}" for j, text in enumerate(others)]
    rows: Rows = [
        {"row": f"{i + 1} {shorten(text)}", "column": across[j], "score": _number(values[i, j]), "text": text, "other": other}
        for i, text in enumerate(texts)
        for j, other in enumerate(others)
    ]
    finite = values[np.isfinite(values)]
    low = float(min(0.0, finite.min())) if finite.size else 0.0
    tip = [alt.Tooltip("text:N", title=word["row"]), alt.Tooltip("other:N", title=word["column"])]
    tip.append(alt.Tooltip("score:Q", title=word["similarity"], format=".4f"))
    x_axis = alt.Axis(orient="top", labelAngle=0 if columns is None else -90, ticks=False, domain=False)
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("column:N", sort=None, title=None, axis=x_axis),
        y=alt.Y("row:N", sort=None, title=None, axis=alt.Axis(labelLimit=260, ticks=False, domain=False)),
        tooltip=tip,
    )
    colour = alt.Color("score:Q", title=word["similarity"], scale=alt.Scale(scheme="blues", domain=[low, 1.0]), legend=alt.Legend(orient="bottom"))
    layers = [base.mark_rect(stroke="white").encode(color=colour)]
    if len(texts) <= 12 and len(others) <= 12:
        ink = alt.condition(f"datum.score > {low + 0.6 * (1 - low)}", alt.value("white"), alt.value("#222222"))
        layers.append(base.mark_text(fontSize=10).encode(text=alt.Text("score:Q", format=".2f"), color=ink))
    return _spec(alt.layer(*layers).properties(width=min(WIDTH, 44 * len(others) + 40), height=max(60, 26 * len(texts))))


def shorten(text: str, columns: int = 26) -> str:
    """One line of at most `columns` columns (a Chinese character takes two), cut with an ellipsis."""
    line = " ".join(text.split())
    used = 0
    for at, char in enumerate(line):
        used += 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if used > columns:
            return line[:at].rstrip() + "…"
    return line


def _counts(
    scores: npt.NDArray[np.float64], labels: npt.NDArray[np.float64], edges: npt.NDArray[np.float64], word: dict[str, str]
) -> tuple[Rows, Rows]:
    rows: Rows = []
    means: Rows = []
    for name, wanted in (("negative", labels <= 0), ("positive", labels > 0)):
        chosen = scores[wanted & np.isfinite(scores)]
        if not len(chosen):
            continue
        counts, _ = np.histogram(chosen, edges)
        means.append({"kind": word[name], "mean": float(chosen.mean()), "pairs": len(chosen)})
        rows += [
            {"kind": word[name], "from": float(edges[i]), "to": float(edges[i + 1]), "pairs": int(count), "share": float(count / len(chosen))}
            for i, count in enumerate(counts)
            if count
        ]
    return rows, means


def _panel(rows: Rows, means: Rows, domain: tuple[float, float], top: float, word: dict[str, str], *, axis: bool) -> Any:
    scale = alt.Scale(domain=list(domain), nice=False, zero=False)
    x_axis = alt.Axis(format=".1f", labels=axis, tickCount=8)
    x = alt.X("from:Q", bin="binned", title=word["similarity"] if axis else None, scale=scale, axis=x_axis)
    y = alt.Y("share:Q", title=word["share"], stack=None, scale=alt.Scale(domain=[0, top]), axis=alt.Axis(format="%", tickCount=4))
    colours = alt.Scale(domain=[word["positive"], word["negative"]], range=[BLUE, ORANGE])
    colour = alt.Color("kind:N", title=None, scale=colours, legend=alt.Legend(orient="top", symbolOpacity=1))
    tip = [
        alt.Tooltip("kind:N", title=" "),
        alt.Tooltip("from:Q", title=word["from"], format=".3f"),
        alt.Tooltip("to:Q", title=word["to"], format=".3f"),
    ]
    tip += [alt.Tooltip("pairs:Q", title=word["pairs"]), alt.Tooltip("share:Q", title=word["share"], format=".1%")]
    bars = alt.Chart(alt.Data(values=rows)).mark_bar(opacity=0.6).encode(x=x, x2="to", y=y, color=colour, tooltip=tip)
    mean_tip = [
        alt.Tooltip("kind:N", title=" "),
        alt.Tooltip("mean:Q", title=word["mean"], format=".4f"),
        alt.Tooltip("pairs:Q", title=word["pairs"]),
    ]
    rules = alt.Chart(alt.Data(values=means)).mark_rule(strokeWidth=2).encode(x=alt.X("mean:Q", scale=scale), color=colour, tooltip=mean_tip)
    return alt.layer(bars, rules)


def _step_axis(rows: Rows, word: dict[str, str]) -> Any:
    domain = [min(row["step"] for row in rows), max(row["step"] for row in rows)]

    def axis(*, labels: bool = True, title: bool = True) -> Any:
        scale = alt.Scale(domain=domain, nice=False, zero=False)
        return alt.X(
            "step:Q", title=word["step"] if title else None, scale=scale, axis=alt.Axis(format=",.0f", labels=labels, tickMinStep=1, tickCount=8)
        )

    return axis


def _line(base: Any, x: Any, y: Any, tip: list[Any], colour: str, *, points: bool = False) -> Any:
    few = points or len(base.data.values) <= 60
    mark = base.mark_line(color=colour, point={"color": colour, "size": 30} if few else False)
    return mark.encode(x=x, y=y, tooltip=tip)


def _thin(rows: Rows) -> Rows:
    size = math.ceil(len(rows) / MOST_POINTS)
    if size <= 1:
        return rows
    blocks = [rows[start : start + size] for start in range(0, len(rows), size)]
    return [{"step": block[-1]["step"], "loss": _mean(block, "loss"), "lr": _mean(block, "lr")} for block in blocks]


def _mean(block: Rows, key: str) -> float | None:
    values = [row[key] for row in block if row[key] is not None]
    return math.fsum(values) / len(values) if values else None


def _number(value: Any) -> float | None:
    """A plain float, or None for None, NaN and infinity, which JSON cannot hold."""
    return float(value) if value is not None and math.isfinite(value) else None


def _spec(chart: Any) -> Spec:
    chart = chart.configure_view(stroke="#dddddd").configure_axis(gridColor="#eeeeee", labelFontSize=11, titleFontSize=12, titleFontWeight="normal")
    return cast(Spec, chart.configure_legend(labelFontSize=12, labelLimit=260).to_dict())
