"""A suite of sets measured for any number of models: correlations by all three aggregations, with intervals, and differences between models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from twinvec.errors import DataError, UsageError
from twinvec.evaluation.certainty import DRAWS, bootstrap_p, draw_weights, holm
from twinvec.evaluation.encoding import EncoderLike, encode_columns
from twinvec.evaluation.metrics import Floats, pearson, similarities, spearman
from twinvec.evaluation.protocol import trained_on
from twinvec.evaluation.suites import SuiteSet
from twinvec.evaluation.values import defined, trouble
from twinvec.evaluation.weighted import spearman_of

AGGREGATIONS: Final = ("all", "mean", "weighted_mean")
MEASURES: Final = ("spearman", "pearson")


def measure_suite(encoder: EncoderLike, sets: Sequence[SuiteSet], *, prompt: str | None = None, **options: Any) -> dict[str, Any]:
    """One model on a suite; every distinct text of the suite is encoded once. options: as `encode_with_report` takes them.

    -> {"sets": [{"set", "rows", "spearman": {"all", "mean", "weighted_mean"}, "pearson": ..., "subsets": {name: {"rows", "spearman", "pearson"}}}],
    "average": {"spearman": {...}, "pearson": {...}} over the sets, "encode": report, "notes", "cosines": {set: (n,)}}.
    all: all rows of a set together (SimCSE's "all"); mean and weighted_mean: over its subsets, as SentEval reports them (weighted by rows).
    A set without subsets is its own only subset. Undefined figures (constant scores) are None, and the notes say why.
    """
    texts = {f"{data.name} sentence{i}": side for data in sets for i, side in ((1, data.first), (2, data.second))}
    encoded = encode_columns(encoder, texts, dict.fromkeys(texts, prompt), **options)
    notes = list(encoded.notes)
    rows = []
    cosines: dict[str, Floats] = {}
    for data in sets:
        u, v = encoded.vectors[f"{data.name} sentence1"], encoded.vectors[f"{data.name} sentence2"]
        scores = cosines[data.name] = similarities(u, v, "cosine")
        why = trouble(scores, "cosine")
        notes += [f"{data.name}: {why}"] if why else []
        rows.append({"set": data.name, "rows": len(data.gold), **aggregated(scores, np.asarray(data.gold), data.subsets)})
        notes += [f"{data.name}: {note}" for note in trained_on(encoder, data.sha256, zip(data.first, data.second, strict=True))]
    prompts = set(encoded.report.pop("prompts").values())
    encoded.report["prompt"] = next(iter(prompts)) if len(prompts) == 1 else None
    average = {measure: {kind: _mean([row[measure][kind] for row in rows]) for kind in AGGREGATIONS} for measure in MEASURES}
    return {"sets": rows, "average": average, "encode": encoded.report, "notes": notes, "cosines": cosines}


def aggregated(scores: Floats, gold: Floats, subsets: Sequence[str]) -> dict[str, Any]:
    """The three aggregations of both correlations; scores and gold (n,), a subset's name for each row."""
    if not len(scores) == len(gold) == len(subsets):
        raise DataError(f"suite: {len(scores)} scores, {len(gold)} gold scores and {len(subsets)} names of subsets; wanted one each a row")
    names = list(dict.fromkeys(subsets))
    member = np.asarray([names.index(name) for name in subsets])
    parts: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(names):
        mine = member == number
        parts[name] = {"rows": int(mine.sum()), **{key: defined(f(scores[mine], gold[mine])) for key, f in _CORRELATIONS.items()}}
    found: dict[str, Any] = {}
    for key, f in _CORRELATIONS.items():
        values = [part[key] for part in parts.values()]
        weights = [part["rows"] for part in parts.values()]
        found[key] = {"all": defined(f(scores, gold)), "mean": _mean(values), "weighted_mean": _mean(values, weights)}
    return {**found, "subsets": parts if any(names) else {}}


_CORRELATIONS: Final = {"spearman": spearman, "pearson": pearson}


def _mean(values: Sequence[float | None], weights: Sequence[int] | None = None) -> float | None:
    """None when a value is: a mean over what happens to be defined would be another figure."""
    if any(value is None for value in values) or not values:
        return None
    return float(np.average(np.asarray(values, dtype=np.float64), weights=weights))


def compare_suite(
    sets: Sequence[SuiteSet], cosines: Mapping[str, Mapping[str, Floats]], *, draws: int = DRAWS, level: float = 0.95, seed: int = 0
) -> tuple[dict[str, dict[str, list[float]]], list[dict[str, Any]]]:
    """cosines: model -> set -> (n,). -> (intervals, differences): of Spearman over all rows of each set and of its average over the sets ("average").

    intervals: model -> set -> [low, high]. differences: each model less the first one, on the same draws, with p and Holm's correction over
    all models and sets (the average is corrected apart, over the models: it is the one figure most people read).
    """
    if draws < 1:
        raise UsageError(f"bootstrap = {draws}: wanted the number of draws, 1 or more")
    samples: dict[str, dict[str, Floats]] = {model: {} for model in cosines}
    for number, data in enumerate(sets):
        gold = np.asarray(data.gold, dtype=np.float64)
        figures = {model: spearman_of(np.asarray(found[data.name]), gold, "all") for model, found in cosines.items()}
        blocks: dict[str, list[Floats]] = {model: [] for model in cosines}
        for weights in draw_weights(len(gold), draws, seed + number):
            for model, figure in figures.items():
                blocks[model].append(figure(weights)["all"])
        for model, parts in blocks.items():
            samples[model][data.name] = np.concatenate(parts)
    for sample in samples.values():
        sample["average"] = np.mean(list(sample.values()), axis=0)
    ends = ((1 - level) / 2, (1 + level) / 2)
    bounds = {
        model: {name: [float(x) for x in np.quantile(sample, ends)] for name, sample in of_model.items() if np.isfinite(sample).all()}
        for model, of_model in samples.items()
    }
    first, *others = samples
    rows = []
    for other in others:
        for name in samples[first]:
            away = samples[other][name] - samples[first][name]
            if np.isfinite(away).all():
                low, high = np.quantile(away, ends)
                rows.append(
                    {"first": other, "second": first, "set": name, "low": float(low), "high": float(high), "p": bootstrap_p(away)}
                )  # fmt: skip
    for family in ([row for row in rows if row["set"] != "average"], [row for row in rows if row["set"] == "average"]):
        for row, adjusted in zip(family, holm([float(row["p"]) for row in family]), strict=True):  # type: ignore[arg-type]
            row["p_holm"] = adjusted
    return bounds, rows
