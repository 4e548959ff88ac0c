"""Models beside each other on the same data: quality with intervals, differences, cost, the best trades, and what to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from twinvec.errors import DataError, UsageError, choose
from twinvec.evaluation.advice import advise, best_trades
from twinvec.evaluation.certainty import DRAWS, bootstrap_p, drawn, holm, permutation_p
from twinvec.evaluation.encoding import EncoderLike
from twinvec.evaluation.evaluate import Outcome, measure
from twinvec.evaluation.extras import protocol_notes
from twinvec.evaluation.metrics import Floats
from twinvec.evaluation.reading import Held
from twinvec.evaluation.values import defined
from twinvec.evaluation.weighted import one


@dataclass(frozen=True)
class Candidate:
    """One row of the table. path: what the name is short for; encoders: one for each data set (most often the same); cost: see COST."""

    name: str
    encoders: Sequence[EncoderLike]
    prompt: str | None = None
    path: str | None = None
    engine: str | None = None
    precision: str | None = None
    cost: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """result: the JSON of `twinvec compare`; outcomes: for each candidate, what each data set gave, as material for pictures."""

    result: dict[str, Any]
    outcomes: list[list[Outcome]]
    candidates: list[Candidate]


COST = ("texts_per_second", "latency_p50_ms", "latency_p95_ms", "peak_memory", "disk_bytes", "load_seconds", "threads")


def compare(
    candidates: Sequence[Candidate], data: Sequence[Held], *, figure: str | None = None, draws: int = DRAWS, level: float = 0.95, seed: int = 0,
    **options: Any,
) -> Comparison:  # fmt: skip
    """Measure every candidate on every data set. options: as `evaluate.measure` takes them (task, ks, prompts, train, folds, on_long, progress).

    figure: by which models are compared; None takes each task's headline. With several data sets the quality is the plain mean over them.
    The draws of the bootstrap are the same for all candidates, so what is common to them cancels in a difference. p values are of the paired
    bootstrap, or of a permutation of signs for one data set whose figure is a mean over rows, with Holm's correction over all pairs.
    UsageError: no candidate, no data, two of one name, an unknown figure. DataError: as `measure`.
    """
    names = [candidate.name for candidate in candidates]
    if not names or not data:
        raise UsageError(f"compare: {len(names)} models and {len(data)} files; wanted one or more of each")
    if len(set(names)) < len(names):
        raise UsageError(f"compare: {next(name for name in names if names.count(name) > 1)} is given twice; wanted each once")
    if draws < 1 or not 0 < level < 1:
        raise UsageError(f"bootstrap = {draws}, level = {level}: wanted 1 draw or more, and a confidence between 0 and 1 such as 0.95")
    outcomes = [
        [
            measure(encoder, held, prompt=candidate.prompt, seed=seed, **options)
            for encoder, held in zip(candidate.encoders, data, strict=True)
        ]
        for candidate in candidates
    ]  # fmt: skip
    figures = [_figure(figure, per_model[0].measured.figures.names, outcomes, number) for number, per_model in enumerate(zip(*outcomes, strict=True))]
    samples = [_samples(found, figures, draws, seed) for found in outcomes]
    rows = [
        _row(number, candidate, found, figures, sample, level)
        for number, (candidate, found, sample) in enumerate(zip(candidates, outcomes, samples, strict=True), start=1)
    ]
    differences = _differences(rows, outcomes, samples, figures, level, seed)
    trades = best_trades([(row["quality"], row["texts_per_second"]) for row in rows])
    listed = [
        {"file": str(held.path), "task": found.measured.task, "rows": found.measured.units, "figure": name}
        for held, found, name in zip(data, outcomes[0], figures, strict=True)
    ]
    result = {
        "files": listed,
        "models": rows,
        "differences": differences,
        "pareto": [rows[i]["number"] for i in trades],
        "recommendation": advise(rows, differences, listed),
        "bootstrap": {"draws": draws, "level": level, "seed": seed},
    }
    return Comparison(result, outcomes, list(candidates))


def _figure(asked: str | None, known: Sequence[str], outcomes: list[list[Outcome]], number: int) -> str:
    measured = outcomes[0][number].measured
    if asked is None:
        return measured.headline
    return choose(f"figure (of {outcomes[0][number].data.path})", asked, known)


def _samples(found: list[Outcome], figures: Sequence[str], draws: int, seed: int) -> list[Floats]:
    """The figure in every draw, for each data set: (draws,)."""
    out = []
    for number, (outcome, name) in enumerate(zip(found, figures, strict=True)):
        measured = outcome.measured
        out.append(drawn(measured.figures.only(name), measured.units, draws, seed + number, measured.clusters)[name])
    return out


def _row(number: int, candidate: Candidate, found: list[Outcome], figures: Sequence[str], sample: list[Floats], level: float) -> dict[str, Any]:
    scores = []
    for outcome, name, draws in zip(found, figures, sample, strict=True):
        value = outcome.measured.scores.get(name, defined(one(outcome.measured.figures.only(name), outcome.measured.units)[name]))
        ends = _ends(draws, level) if value is not None else None
        scores.append(
            {"file": outcome.result["file"], "figure": name, "value": value, "low": ends and ends[0], "high": ends and ends[1]}
        )  # fmt: skip
    whole = all(score["value"] is not None for score in scores)
    mean = np.mean(sample, axis=0)
    ends = _ends(mean, level) if whole else None
    reports = [outcome.encoded.report for outcome in found]
    knows = all(getattr(encoder, "knows_tokens", True) for encoder in candidate.encoders)
    texts = sum(report["rows"] for report in reports)
    tokens = sum(report["tokens"] for report in reports)
    encoder = candidate.encoders[0]
    notes = [note for outcome in found for note in [*outcome.result["notes"], *protocol_notes(encoder, outcome.data)]]
    return {
        "number": number,
        "model": candidate.name,
        "path": candidate.path or candidate.name,
        "fingerprint": getattr(encoder, "fingerprint", None),
        "prompts": reports[0]["prompts"],
        "engine": candidate.engine or reports[0]["engine"],
        "precision": candidate.precision or reports[0]["precision"],
        "dimensions": reports[0]["dimensions"],
        "quality": float(np.mean([score["value"] for score in scores])) if whole else None,
        "low": ends and ends[0],
        "high": ends and ends[1],
        "scores": scores,
        **{name: candidate.cost.get(name) for name in COST},
        "truncated_share": sum(report["truncated"] for report in reports) / texts if knows and texts else None,
        "unknown_rate": sum(report["unknown_rate"] * report["tokens"] for report in reports) / max(tokens, 1) if knows else None,
        "mean_random_cosine": found[0].result.get("mean_random_cosine"),
        "notes": list(dict.fromkeys(notes)),
    }


def _ends(draws: Floats, level: float) -> tuple[float, float] | None:
    finite = draws[np.isfinite(draws)]
    if len(finite) < 0.9 * len(draws):
        return None
    low, high = np.quantile(finite, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


def _bootstrap_p(value: float, away: Floats) -> float:
    """As `bootstrap_p`; where no draw lies beyond 0, so that the draws can say no more than "small", by the normal law with their spread.

    Without it Holm's correction over many pairs could never call a difference sure: 15 pairs and 1,000 draws end at 0.03, 30 at 0.06.
    """
    from scipy.special import ndtr

    p = bootstrap_p(away)
    finite = away[np.isfinite(away)]
    spread = float(finite.std()) if len(finite) else 0.0
    if p > 2 / (1 + len(finite)) or not spread:
        return p
    return min(p, 2 * float(ndtr(-abs(value) / spread)))


def _differences(
    rows: list[dict[str, Any]], outcomes: list[list[Outcome]], samples: list[list[Floats]], figures: Sequence[str], level: float, seed: int
) -> list[dict[str, Any]]:  # fmt: skip
    """Of every two candidates with a quality, the better one first."""
    usable = [i for i, row in enumerate(rows) if row["quality"] is not None]
    for i in usable[1:]:
        for one_of, other in zip(outcomes[usable[0]], outcomes[i], strict=True):
            if one_of.measured.names != other.measured.names or one_of.measured.task != other.measured.task:
                raise DataError(f"{rows[i]['model']} and {rows[usable[0]]['model']} were not measured on the same rows")
    found = []
    for i, j in combinations(usable, 2):
        a, b = (i, j) if rows[i]["quality"] >= rows[j]["quality"] else (j, i)
        away = np.mean(samples[a], axis=0) - np.mean(samples[b], axis=0)
        ends = _ends(away, level)
        if ends is None:
            continue
        values_a, values_b = (outcomes[k][0].measured.values.get(figures[0]) for k in (a, b))
        if len(figures) == 1 and values_a is not None and values_b is not None and outcomes[a][0].measured.clusters is None:
            test, p = "permutation", permutation_p(values_a, values_b, seed=seed)
        else:
            test, p = "paired bootstrap", _bootstrap_p(rows[a]["quality"] - rows[b]["quality"], away)
        found.append(
            {
                "first": rows[a]["number"], "second": rows[b]["number"], "value": rows[a]["quality"] - rows[b]["quality"], "low": ends[0],
                "high": ends[1], "p": p, "test": test,
            }
        )  # fmt: skip
    for row, adjusted in zip(found, holm([row["p"] for row in found]), strict=True):
        row["p_holm"] = adjusted
    return found
