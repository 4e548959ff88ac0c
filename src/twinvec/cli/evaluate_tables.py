"""Results of `twinvec evaluate` for a human: figures as a table, intervals, slices, the worst rows; also as Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from twinvec.cli.console import aligned, one_line, room

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
ASIDE = ("task", "file", "rows", "encode", "notes", "intervals", "bootstrap", "slices", "errors", "geometry", "calibration")
# The figures whose interval is shown beside the table; --json, --markdown and --csv have all.
MAIN = (
    "spearman_cosine", "pearson_cosine", "average_precision_cosine", "roc_auc_cosine", "best_f1_cosine", "accuracy_cosine", "accuracy", "ndcg@10",
    "recall@10", "map", "accuracy_nearest", "accuracy_logistic", "v_measure", "adjusted_rand_index",
)  # fmt: skip


def report(result: dict[str, Any]) -> list[str]:
    """One result: what was measured, then the scores as a table and whatever else was asked for."""
    prompts = {column: text for column, text in result["encode"].get("prompts", {}).items() if text}
    same = len(set(prompts.values())) == 1 and len(prompts) == len(result["encode"]["prompts"])
    said = repr(next(iter(prompts.values()))) if same else ", ".join(f"{text!r} ({column})" for column, text in prompts.items())
    made = (result["encode"].get("engine"), result["encode"].get("precision"))
    how = "" if made in (("torch", "float32"), (None, None)) else f", {made[0]} in {made[1]}"
    what = "queries" if result["task"] in ("retrieval", "reranking") else "rows"
    head = f"{result['file']}: {result['task']}, {result['rows']:,} {what}{f', prompt {said}' if prompts else ''}{how}"
    return [head, *_scores(result), *_intervals(result), *_slices(result), *_geometry(result), *_calibration(result), *_errors(result)]


def _scores(result: dict[str, Any]) -> Iterator[str]:
    values = {key: value for key, value in result.items() if key not in ASIDE}
    at = {key: key.rpartition("@") for key in values if "@" in key}
    by = {key: key.rpartition("_") for key in values if key.rpartition("_")[2] in SIMILARITIES}
    if at:
        yield from _grid({key: (name, f"@{k}") for key, (name, _, k) in at.items()}, values)
    # A metric of several similarities is a row of a table, one of a single similarity a line.
    metrics = [metric for metric, _, _ in by.values()]
    table = {key: (metric, name) for key, (metric, _, name) in by.items() if metrics.count(metric) > 1}
    if table:
        yield from _grid(table, values)
    rest = [[key, number(value)] for key, value in values.items() if key not in at and key not in table]
    yield from aligned(rest, right=(1,), indent="  ")


def _grid(places: dict[str, tuple[str, str]], values: dict[str, Any]) -> list[str]:
    rows = list(dict.fromkeys(row for row, _ in places.values()))
    columns = list(dict.fromkeys(column for _, column in places.values()))
    cells = {place: number(values[key]) for key, place in places.items()}
    table = [["", *columns], *([row, *(cells.get((row, column), "") for column in columns)] for row in rows)]
    return aligned(table, right=range(1, len(columns) + 1), indent="  ")


def number(value: Any) -> str:
    if value is None:
        return "undefined"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _intervals(result: dict[str, Any]) -> list[str]:
    found = {name: bounds for name, bounds in result.get("intervals", {}).items() if name in MAIN}
    if not found:
        return []
    drawn = result["bootstrap"]
    head = f"  {drawn['level']:.0%} intervals ({drawn['draws']:,} bootstrap draws, unit: {drawn['unit']})"
    return [head, *aligned([[name, f"{low:.4f}", "to", f"{high:.4f}"] for name, (low, high) in found.items()], right=(1, 3), indent="    ")]


def _slices(result: dict[str, Any]) -> list[str]:
    if not result.get("slices"):
        return ["  slices: all rows are of one language and length"] if "slices" in result else []
    figure = next(key for key in result["slices"][0] if key not in ("slice", "value", "rows", "low", "high"))
    rows = [["slice", "", "rows", figure, ""]]
    for part in result["slices"]:
        bounds = f"{part['low']:.4f} to {part['high']:.4f}" if part.get("low") is not None else ""
        rows.append([part["slice"], one_line(part["value"], 40), f"{part['rows']:,}", number(part[figure]), bounds])
    return ["", *aligned(rows, right=(2, 3), indent="  ")]


def _geometry(result: dict[str, Any]) -> list[str]:
    found = result.get("geometry")
    if not found:
        return []
    lines: list[list[str]] = []
    for name, value in found.items():
        if name == "corrections":
            continue
        if isinstance(value, dict):
            lines += [[f"{name} {part}", number(share)] for part, share in value.items()]
        else:
            lines.append([name, number(value)])
    out = ["", "  geometry", *aligned(lines, right=(1,), indent="    ")]
    table = [["", *next(iter(found["corrections"].values()))]] if found["corrections"] else []
    table += [[name, *(number(value) for value in values.values())] for name, values in found["corrections"].items()]
    return [*out, *aligned(table, right=(1, 2), indent="    ")]


def _calibration(result: dict[str, Any]) -> list[str]:
    found = result.get("calibration")
    if not found:
        return []
    held = found["held_out"]
    out = [
        "",
        f"  calibration ({found['method']}, {found['rows']:,} rows): expected calibration error {held['expected_calibration_error']:.4f}, "
        f"Brier {held['brier']:.4f} (always the share of positives: {held['brier_of_the_share']:.4f}), on rows that the curve had not seen",
    ]
    rows = [["said", "came true", "rows"]]
    rows += [[f"{step['said']:.3f}", f"{step['true']:.3f}", f"{step['rows']:,}"] for step in held["bins"]]
    out += aligned(rows, right=(0, 1, 2), indent="    ")
    for name, at in found["thresholds"].items():
        if not at["reached"]:
            out.append(f"  threshold {name}: no threshold reaches it on these rows (it is reached in {at['share_reached']:.0%} of the draws)")
            continue
        unseen = f"{at['held_out_precision']:.3f}" if at["held_out_precision"] is not None else "undefined"
        out.append(
            f"  threshold {name}: {at['threshold']:.4f} ({at['low']:.4f} to {at['high']:.4f}): precision {at['precision']:.3f} "
            f"(on rows left out: {unseen}), recall {at['recall']:.3f}, F1 {at['f1']:.3f}"
        )
    return out


def _errors(result: dict[str, Any]) -> list[str]:
    if "errors" not in result:
        return []
    if not result["errors"]:
        return ["", "  no row is wrong"]
    out = ["", f"  the {len(result['errors'])} rows that are most wrong"]
    for error in result["errors"]:
        where = f"query {error['query']}" if "query" in error else f"row {error['row']}"
        said = [f"{key} {number(value)}" for key, value in error.items() if key not in ("row", "query", "texts") and not key.endswith("_text")]
        out.append("  " + one_line(f"{where}: {', '.join(said)}", room(2)))
        texts = {**error["texts"], **{key: value for key, value in error.items() if key.endswith("_text")}}
        out += ["      " + one_line(f"{name}: {text}", room(6)) for name, text in texts.items() if text is not None]
    return out


# --- Markdown and CSV


def table(result: dict[str, Any], style: str) -> list[str]:
    """Every figure with its interval, one a line."""
    bounds = result.get("intervals", {})
    rows = [["file", "task", "rows", "figure", "value", "low", "high"]]
    for name, value in result.items():
        if name not in ASIDE and not isinstance(value, (dict, list, str)):
            low, high = bounds.get(name, (None, None))
            rows.append([result["file"], result["task"], str(result["rows"]), name, *(_plain(x) for x in (value, low, high))])
    for part in result.get("slices", ()):
        figure = next(key for key in part if key not in ("slice", "value", "rows", "low", "high"))
        name = f"{figure}, {part['slice']} {part['value']}"
        cells = [_plain(x) for x in (part[figure], part.get("low"), part.get("high"))]
        rows.append([result["file"], result["task"], str(part["rows"]), name, *cells])
    return written(rows, style)


def _plain(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def written(rows: Sequence[Sequence[str]], style: str) -> list[str]:
    """Rows of cells, the first a header, as lines of Markdown or CSV."""
    if style == "csv":
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(rows)
        return out.getvalue().splitlines()
    cells = [[one_line(cell).replace("|", "\\|") for cell in row] for row in rows]
    numbers = [all(_is_number(row[i]) for row in cells[1:]) for i in range(len(cells[0]))]
    line = ["---:" if right else "---" for right in numbers]
    return ["| " + " | ".join(row) + " |" for row in [cells[0], line, *cells[1:]]]


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", ""))
    except ValueError:
        return cell in ("", "-")
    return True
