"""From a comparison to its page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from twinvec import files
from twinvec.errors import UsageError, choose
from twinvec.evaluation.advice import SURE
from twinvec.evaluation.compare import Comparison
from twinvec.evaluation.evaluate import Outcome
from twinvec.evaluation.pictures import cone_of, distinct_texts, heat_texts, histogram_of, map_of, reliability_of
from twinvec.evaluation.report.charts import cone_chart, heatmap_chart, histogram_chart, map_chart, pareto_chart, reliability_chart
from twinvec.evaluation.report.page import Cell, bytes_cell, figure, folded, heading, listed, number_cell, page, paragraph, table, word
from twinvec.evaluation.report.svg import Svg, Words
from twinvec.evaluation.report.words import W, fill

LANGUAGES: Final = ("en", "zh")
MOST_CLOSER: Final = 6  # models shown closer: each takes four pictures and a table
PICTURES: Final = (".svg", ".png")


def write_report(
    path: str | Path, comparison: Comparison, *, language: str = "en", map: str = "pca", errors: int = 20, geometry: bool = False,
    about: Mapping[str, str] | None = None, left_out: Sequence[str] = (),
) -> Path:  # fmt: skip
    """Write the page whole or not at all. about: lines on how it was made (command, machine); left_out: settings that could not be measured."""
    text = build_report(comparison, language=language, map=map, errors=errors, geometry=geometry, about=about, left_out=left_out)
    files.write_text(Path(path), text)
    return Path(path)


def build_report(
    comparison: Comparison, *, language: str = "en", map: str = "pca", errors: int = 20, geometry: bool = False,
    about: Mapping[str, str] | None = None, left_out: Sequence[str] = (),
) -> str:  # fmt: skip
    """The page as text. language: "en" or "zh" shown first, with a switch; map: "pca" or "umap" (the extra umap)."""
    choose("language", language, LANGUAGES)
    result = comparison.result
    advice = result["recommendation"]
    parts = [heading(W["take"]), paragraph((advice["sentence"], advice["sentence_zh"]), "advice")]
    parts += _quality(result)
    parts += _trades(result)
    parts += _differences(result)
    chosen = closer(comparison)
    if geometry:
        svg = geometry_picture(comparison)
        parts += [heading(W["geometry"]), f"<div class=one>{figure(svg, None, W['geometry_note'])}</div>"]
    parts += [heading(W["models"]), paragraph(fill(W["models_note"], file=Path(result["files"][0]["file"]).name), "note")]
    for at in chosen:
        parts += _closer(result["models"][at], comparison.outcomes[at][0], map, errors, result["bootstrap"]["seed"], at == chosen[0])
    parts += _notes(result, left_out)
    parts += _about(result, about or {})
    return page(W["title"], parts, language)


def closer(comparison: Comparison) -> list[int]:
    """The first setting of each model: other engines, precisions and dimensions look alike."""
    seen: dict[Any, int] = {}
    for at, row in enumerate(comparison.result["models"]):
        seen.setdefault((row["fingerprint"] or row["model"], tuple(row["prompts"].values())), at)
    return list(seen.values())[:MOST_CLOSER]


def geometry_picture(comparison: Comparison) -> Svg:
    """Cosines of random texts and the spectrum, all models in one picture, over the texts of the first data set."""
    return cone_chart(
        [
            cone_of(comparison.result["models"][at]["model"], distinct_texts(comparison.outcomes[at][0])[1], comparison.result["bootstrap"]["seed"])
            for at in closer(comparison)
        ]
    )


def save_picture(path: str | Path, svg: Svg, language: str = "en") -> Path:
    """The drawing as a file of its own: .svg, or .png at twice its size. UsageError for another ending."""
    path = Path(path)
    text = svg.file(language)
    if path.suffix.lower() == ".svg":
        files.write_text(path, text)
    elif path.suffix.lower() == ".png":
        import vl_convert

        files.write_bytes(path, vl_convert.svg_to_png(text, scale=1.5))
    else:
        raise UsageError(f"{path}: the name's ending chooses the format; wanted one of {', '.join(PICTURES)}")
    return path


def short_figure(result: Mapping[str, Any]) -> str:
    figures = list(dict.fromkeys(file["figure"] for file in result["files"]))
    return figures[0] if len(figures) == 1 else "quality"


def _quality(result: dict[str, Any]) -> Iterator[str]:
    several = len(result["files"]) > 1
    drawn = result["bootstrap"]
    yield heading(W["table"])
    yield paragraph(fill(W["table_note"], level=f"{drawn['level']:.0%}", draws=f"{drawn['draws']:,}"), "note")
    figure_heads: list[Words] = [f"{Path(file['file']).name}: {file['figure']}" for file in result["files"]]
    head = [W["number"], W["model"], *([W["quality"]] if several else figure_heads), W["interval"], *(figure_heads if several else [])]
    costs = ("rate", "latency", "memory", "disk", "dimensions", "engine", "precision", "truncated", "unknown", "crowd", "trade")
    rows = []
    for row in result["models"]:
        band = "–" if row["low"] is None else f"{row['low'] * 100:.1f} – {row['high'] * 100:.1f}"
        rows.append(
            [
                Cell(str(row["number"]), row["number"], True),
                Cell(row["model"]),
                number_cell(row["quality"], 2, factor=100),
                Cell(band, row["low"], True),
                *([number_cell(score["value"], 2, factor=100) for score in row["scores"]] if several else []),
                number_cell(row["texts_per_second"], 0 if (row["texts_per_second"] or 0) >= 10 else 1),
                number_cell(row["latency_p50_ms"], 1),
                bytes_cell(row["peak_memory"]),
                bytes_cell(row["disk_bytes"]),
                number_cell(row["dimensions"], 0),
                Cell(row["engine"]),
                Cell(row["precision"]),
                number_cell(row["truncated_share"], 1, factor=100, unit=" %"),
                number_cell(row["unknown_rate"], 1, factor=100, unit=" %"),
                number_cell(row["mean_random_cosine"], 2),
                Cell(W["yes"]) if row["number"] in result["pareto"] else Cell(""),
            ]
        )
    marked = [at for at, row in enumerate(result["models"]) if row["number"] == result["recommendation"]["choice"]]
    yield table([*head, *(W[name] for name in costs)], rows, marked=marked)


def _trades(result: dict[str, Any]) -> Iterator[str]:
    svg = pareto_chart(result["models"], result["pareto"], short_figure(result))
    if svg is None:
        return
    yield heading(W["pareto"])
    key = ", ".join(f"{row['number']} {row['model']}" for row in result["models"])
    yield f"<div class=one>{figure(svg, None, W['pareto_note'])}<p class=note>{word(key)}</p></div>"
    unknown = [row["model"] for row in result["models"] if not row["texts_per_second"] or row["quality"] is None]
    if unknown:
        yield paragraph(fill(W["no_rate"], names=", ".join(unknown)), "note")


def _differences(result: dict[str, Any]) -> Iterator[str]:
    if not result["differences"]:
        return
    names = {row["number"]: row["model"] for row in result["models"]}
    yield heading(W["differences"])
    yield paragraph(W["differences_note"], "note")
    head = [W["better"], W["than"], W["by"], W["interval"], W["p"], W["verdict"]]
    rows = [(away, _difference(away, names)) for away in result["differences"]]
    best = max((row for row in result["models"] if row["quality"] is not None), key=lambda row: row["quality"])["number"]
    yield table(head, [cells for away, cells in rows if best in (away["first"], away["second"])])
    if len(result["models"]) > 2:
        yield folded(W["all_pairs"], table(head, [cells for _, cells in rows]))


def _difference(away: dict[str, Any], names: Mapping[int, str]) -> list[Cell]:
    p = "< 0.001" if away["p_holm"] < 0.001 else f"{away['p_holm']:.3f}"
    return [
        Cell(names[away["first"]]),
        Cell(names[away["second"]]),
        number_cell(away["value"], 2, factor=100),
        Cell(f"{away['low'] * 100:+.2f} – {away['high'] * 100:+.2f}", away["low"], True),
        Cell(p, away["p_holm"], True),
        Cell(W["sure" if away["p_holm"] < SURE else "unsure"]),
    ]


def _closer(row: dict[str, Any], outcome: Outcome, map: str, errors: int, seed: int, first: bool) -> Iterator[str]:
    yield heading(f"{row['number']}  {row['model']}", 3)
    cards = figure(histogram_chart(histogram_of(outcome), W["histogram"]), W["histogram"])
    reliable = reliability_of(outcome, seed)
    if reliable is not None:
        said = {"error": f"{reliable['expected_calibration_error']:.3f}", "brier": f"{reliable['brier']:.3f}", "method": reliable["method"]}
        cards += figure(reliability_chart(reliable["bins"]), W["reliability"], fill(W["reliability_note"], **said))
    found = heat_texts(outcome)
    if found is not None:
        cards += figure(heatmap_chart(*found), W["heat"])
    drawn = map_of(outcome, map, seed)
    if drawn is not None:
        chart = map_chart(drawn.points, drawn.groups, drawn.names, drawn.texts, drawn.links, drawn.axes)
        cards += figure(chart, W["map"])
    yield f"<div class=cards>{cards}</div>"
    if errors:
        yield from _worst(outcome, errors, first)


def _worst(outcome: Outcome, count: int, first: bool) -> Iterator[str]:
    wrong = outcome.measured.mistakes(count)
    if not wrong:
        yield paragraph(W["none_wrong"], "note")
        return
    rows = []
    for entry in wrong:
        texts = {**entry["texts"], **{key: value for key, value in entry.items() if key.endswith("_text") and value is not None}}
        said = [
            f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}"
            for key, value in entry.items() if key not in ("row", "query", "texts") and not key.endswith("_text")
        ]  # fmt: skip
        where = entry.get("row", entry.get("query"))
        place = Cell(str(where), float(where), True) if isinstance(where, int) else Cell(str(where))
        rows.append([place, Cell(" · ".join(f"{name}: {text}" for name, text in texts.items())), Cell(", ".join(said))])
    head = [W["query" if "query" in wrong[0] else "row"], W["texts"], W["said"]]
    yield folded(fill(W["worst"], count=len(wrong)), table(head, rows), open=first)


def _notes(result: dict[str, Any], left_out: Sequence[str]) -> Iterator[str]:
    notes = [f"{row['number']} {row['model']}: {note}" for row in result["models"] for note in row["notes"]]
    if notes:
        yield heading(W["notes"])
        yield listed(notes)
    if left_out:
        yield heading(W["left_out"])
        yield listed(left_out)


def _about(result: dict[str, Any], about: Mapping[str, str]) -> Iterator[str]:
    yield heading(W["how"])
    data = [f"{file['file']}: {file['task']}, {file['rows']:,}" for file in result["files"]]
    rows = [[Cell(W["data"]), Cell("; ".join(data))]]
    rows += [[Cell(W.get(name, name)), Cell(value)] for name, value in about.items()]
    yield table(["", ""], rows, sortable=False)
