"""`twinvec evaluate MODEL... --suite`: the published table for any number of models."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from twinvec.cli.console import Console, aligned
from twinvec.cli.evaluate_tables import written
from twinvec.cli.loading import load_encoder
from twinvec.errors import UsageError

SHOWN = {"all": "all", "mean": "mean of subsets", "weighted_mean": "weighted mean"}


def run_suite(
    out: Console, names: list[str], suite: str, data_dir: Path | None, split: str, prompt: str | None, loads: dict[str, Any], calls: dict[str, Any],
    chance: dict[str, Any], style: str,
) -> None:  # fmt: skip
    """Measure every model and print one table. names: MODEL or MODEL::PROMPT (MODEL:: for no prompt at all)."""
    if data_dir is None:
        raise UsageError(f"--suite {suite} needs --data-dir DIR, the folder with its files (sts12.test.csv, ..., or SentEval's folders for sts-en)")
    if len(set(names)) < len(names):
        raise UsageError(f"{next(name for name in names if names.count(name) > 1)} is given twice; wanted each model once")
    from twinvec.evaluation.suite import compare_suite, measure_suite
    from twinvec.evaluation.suites import SPLITS, read_suite

    if split not in SPLITS:
        raise UsageError(f"--split {split!r}: choose one of {', '.join(SPLITS)}")
    sets, notes = read_suite(suite, data_dir, split)
    if split == "dev":
        notes.append("these are dev sets: settings are chosen on them, so do not report these figures as test figures")
    out.note_all(notes)
    models = []
    cosines = {}
    for name in names:
        path, mark, own = name.rpartition("::")
        place, asked = (path, own) if mark else (name, prompt)
        encoder = load_encoder(place, **loads)
        start = time.monotonic()
        options = {key: value for key, value in calls.items() if value is not None}
        found = measure_suite(encoder, sets, prompt=asked, progress=out.progress, **options)
        cosines[name] = found.pop("cosines")
        for note in found["notes"]:
            out.note(note if len(names) == 1 else f"{name}: {note}", keep=False)
        pooling = "+".join(getattr(encoder.engine, "pooling", ())) or None
        seconds = round(time.monotonic() - start, 1)
        models.append({"model": name, "fingerprint": encoder.fingerprint, "pooling": pooling, "seconds": seconds, **found})
    bounds, differences = compare_suite(sets, cosines, **chance) if chance["draws"] else ({}, [])
    for model in models:
        for row in model["sets"]:
            row["interval"] = bounds.get(model["model"], {}).get(row["set"])
        model["average_interval"] = bounds.get(model["model"], {}).get("average")
    if out.json:
        listed = [{"set": s.name, "rows": len(s.gold), "published_rows": s.expected, "files": s.files, "sha256": s.sha256} for s in sets]
        out.result(
            {"suite": suite, "split": split, "sets": listed, "models": models, "differences": differences, "bootstrap": chance}, []
        )  # fmt: skip
        return
    head = f"{suite}, {split}: correlation x 100 of cosine with gold; all: the rows of a set together; the means are over its subsets"
    sizes = ["(rows)", "", "", *(f"{len(data.gold):,}" for data in sets), ""]
    rows = suite_rows(models, sizes)
    if style != "plain":
        out.result({}, written(rows, style))
        return
    said = [
        f"{model['model']}: {model['encode']['rows']:,} distinct texts in {model['seconds']} s, prompt {model['encode']['prompt'] or 'none'!r}"
        + (f", pooling {model['pooling']}" if model["pooling"] else "")
        for model in models
    ]
    out.result({}, [head, *aligned(rows, right=range(3, len(rows[0]))), "", *said, *difference_lines(differences)])


def suite_rows(models: list[dict[str, Any]], sizes: list[str]) -> list[list[str]]:
    """A header and the rows of the table: for each model the three aggregations of both measures, and the interval of Spearman over all rows."""
    names = [row["set"] for row in models[0]["sets"]]
    rows = [["model", "measure", "aggregation", *names, "average"], sizes]
    for model in models:
        for measure in ("spearman", "pearson"):
            for kind, shown in SHOWN.items():
                cells = [_hundred(row[measure][kind]) for row in model["sets"]]
                rows.append([model["model"], measure, shown, *cells, _hundred(model["average"][measure][kind])])
                if measure == "spearman" and kind == "all" and model["average_interval"]:
                    ends = [*(row["interval"] for row in model["sets"]), model["average_interval"]]
                    rows.append([model["model"], measure, "all, interval", *(f"{e[0] * 100:.1f}-{e[1] * 100:.1f}" if e else "-" for e in ends)])
    return rows


def _hundred(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.2f}"


def difference_lines(differences: list[dict[str, Any]]) -> list[str]:
    """Each model less the first, in the average and where a set differs beyond chance."""
    if not differences:
        return []
    lines = ["", "differences of Spearman (all) x 100, with intervals and p after Holm's correction:"]
    rows = []
    for row in differences:
        if row["set"] == "average" or row["p_holm"] < 0.05:
            middle = f"{row['low'] * 100:+.2f} to {row['high'] * 100:+.2f}"
            verdict = "beyond chance" if row["p_holm"] < 0.05 else "may be chance"
            rows.append([f"{row['first']} - {row['second']}", row["set"], middle, f"p {row['p_holm']:.3f}", verdict])
    return [*lines, *aligned(rows, indent="  ")]
