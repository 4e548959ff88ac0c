"""What `twinvec compare` prints: one table, the differences, and the sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twinvec.cli.console import aligned, bytes_text

HEAD = ("model", "engine", "precision", "dims")
COSTS = ("texts/s", "p50 ms", "memory", "disk", "truncated", "unknown")


def report(result: dict[str, Any]) -> list[str]:
    """For a terminal."""
    files = result["files"]
    head = "; ".join(f"{file['file']}: {file['task']}, {file['rows']:,} rows, {file['figure']} x 100" for file in files)
    rows = table(result)
    right = range(4, len(rows[0]))
    return [head, *aligned(rows, right=right, indent="  "), *differences(result), "", result["recommendation"]["sentence"]]


def table(result: dict[str, Any]) -> list[list[str]]:
    """A header and a row a model. The best trades of quality and rate are marked with *, the recommended one with >."""
    files = result["files"]
    several = len(files) > 1
    figures = [f"{Path(file['file']).name} {file['figure']}" if several else file["figure"] for file in files]
    rows = [["", "no", *HEAD, *(["mean"] if several else figures), "interval", *(figures if several else []), *COSTS]]
    for row in result["models"]:
        mark = (">" if row["number"] == result["recommendation"]["choice"] else "") + ("*" if row["number"] in result["pareto"] else "")
        band = "-" if row["low"] is None else f"{row['low'] * 100:.1f}-{row['high'] * 100:.1f}"
        rows.append(
            [
                mark, str(row["number"]), row["model"], row["engine"], row["precision"], str(row["dimensions"]), _hundred(row["quality"]), band,
                *([_hundred(score["value"]) for score in row["scores"]] if several else []),
                _number(row["texts_per_second"], 0), _number(row["latency_p50_ms"], 1), _bytes(row["peak_memory"]), _bytes(row["disk_bytes"]),
                _share(row["truncated_share"]), _share(row["unknown_rate"]),
            ]
        )  # fmt: skip
    return rows


def plain_table(result: dict[str, Any]) -> list[list[str]]:
    """The same with bare numbers, for CSV: quality as it is (not x 100), bytes, shares from 0 to 1."""
    names = [f"{Path(file['file']).name}:{file['figure']}" for file in result["files"]]
    keys = ("texts_per_second", "latency_p50_ms", "latency_p95_ms", "peak_memory", "disk_bytes", "load_seconds", "truncated_share", "unknown_rate")
    rows = [["number", "model", "engine", "precision", "dimensions", "quality", "low", "high", *names, *keys, "best_trade", "recommended"]]
    for row in result["models"]:
        cells = [row["number"], row["model"], row["engine"], row["precision"], row["dimensions"], row["quality"], row["low"], row["high"]]
        cells += [score["value"] for score in row["scores"]] + [row[key] for key in keys]
        cells += [int(row["number"] in result["pareto"]), int(row["number"] == result["recommendation"]["choice"])]
        rows.append(["" if cell is None else f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in cells])
    return rows


def differences(result: dict[str, Any]) -> list[str]:
    if not result["differences"]:
        return []
    names = {row["number"]: row["model"] for row in result["models"]}
    best = max((row for row in result["models"] if row["quality"] is not None), key=lambda row: row["quality"])["number"]
    rows = []
    for away in result["differences"]:
        if best not in (away["first"], away["second"]):
            continue
        p = "p < 0.001" if away["p_holm"] < 0.001 else f"p {away['p_holm']:.3f}"
        verdict = "beyond chance" if away["p_holm"] < 0.05 else "may be chance"
        band = f"{away['low'] * 100:+.2f} to {away['high'] * 100:+.2f}"
        rows.append([f"{names[away['first']]} - {names[away['second']]}", f"{away['value'] * 100:+.2f}", band, p, verdict])
    every = "" if len(names) < 3 else "; --json and --html have all pairs"
    head = f"the best less each other, x 100, on the same rows, with intervals and p after Holm's correction over all pairs{every}:"
    return ["", head, *aligned(rows, right=(1,), indent="  ")]


def _hundred(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.2f}"


def _number(value: float | None, places: int) -> str:
    return "-" if value is None else f"{value:,.{places if value >= 10 else max(places, 1)}f}"


def _bytes(value: Any) -> str:
    return "-" if value is None else bytes_text(value)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
