"""Which objective learns from which kind of data, and what a file becomes before it does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from twinvec.data.dataset import Dataset
from twinvec.data.nli import nli_triplets
from twinvec.data.pairs import positives
from twinvec.errors import UsageError
from twinvec.training.source import PRETRAINING, Source

WANTED: dict[str, tuple[str, ...]] = {
    "classification": ("nli", "pairs"),
    "regression": ("scores", "pairs"),
    "triplet": ("triplets", "nli"),
    "infonce": ("pairs", "triplets", "nli", "parallel", "scores"),
    "simcse": ("texts", "nli", "triplets"),
    "contrastive": ("pairs",),
    "online_contrastive": ("pairs",),
    "cosent": ("scores", "pairs", "nli"),
    "angle": ("scores", "pairs", "nli"),
    "batch_hard_triplet": ("labelled",),
    "batch_hard_soft_triplet": ("labelled",),
    "batch_semi_hard_triplet": ("labelled",),
    "batch_all_triplet": ("labelled",),
    "distillation": ("texts", "parallel"),
    "margin_mse": ("triplets",),
    **dict.fromkeys(PRETRAINING, ("texts", "pairs", "scores", "nli", "triplets", "parallel", "labelled")),
}
LABELLED = ("classification", "regression", "contrastive", "online_contrastive", "cosent", "angle")


def check_fit(source: Source, data: Dataset) -> None:
    """UsageError when the objective cannot learn from this data; the message names the objectives that can."""
    objective = str(source.objective)
    wanted = WANTED[objective]
    if data.kind not in wanted:
        fitting = [name for name, kinds in WANTED.items() if data.kind in kinds and name not in PRETRAINING]
        raise UsageError(
            f"objective = {objective!r} wants {' or '.join(wanted)}, but {data.path} holds {data.kind}; "
            f"for this file use objective = {' or '.join(map(repr, fitting))}"
        )
    if objective in LABELLED and data.labels is None:
        raise UsageError(
            f"objective = {objective!r} wants a label or score in each row, but {data.path} has no such column; name it with --columns, "
            "or use objective = 'infonce', which learns from pairs that belong together"
        )
    if len(data) == 0:
        raise UsageError(f"{data.path}: no rows to train on")
    if objective in LABELLED and data.labels is not None and len(set(data.labels)) < 2:
        raise UsageError(f"{data.path}: every row has the same label ({data.labels[0]}); {objective} has nothing to learn from it")
    if objective in ("distillation",) and not source.teacher:
        raise UsageError(f"objective = {objective!r} wants teacher = MODEL: whose vectors are to be learned?")
    if objective == "margin_mse" and data.labels is None and not source.teacher:
        raise UsageError(f"objective = 'margin_mse': {data.path} has no margins (a column 'margin'); add it, or name teacher = MODEL that gives them")
    if objective == "margin_mse" and data.labels is not None and len(data.columns) > 3:
        raise UsageError(
            f"objective = 'margin_mse': {data.path} has one margin a row, and {len(data.columns) - 2} negatives: which of them is it of? "
            "Give each negative a row of its own"
        )
    if data.kind == "labelled" and objective not in PRETRAINING:
        counts = data.label_counts()
        if sum(count >= 2 for count in counts.values()) < 1 or len(counts) < 2:
            raise UsageError(f"{data.path}: batch triplets want two classes, and two rows in one of them; found {len(counts)} classes of single rows")


def as_wanted(source: Source, data: Dataset) -> Dataset:
    """The rows as the objective sees them: NLI as triplets, labelled pairs as their positives, NLI as scores. Checks the fit first."""
    check_fit(source, data)
    objective = source.objective
    if objective in ("infonce", "simcse", "triplet") and data.kind == "nli":
        return nli_triplets(data)
    if objective == "infonce" and (data.kind == "scores" or (data.kind == "pairs" and data.labels is not None)):
        return positives(data, threshold=source.positive_score)
    if objective in ("cosent", "angle") and data.kind == "nli":
        # Entailment above neutral above contradiction: only the order counts (as text2vec trains CoSENT on SNLI).
        assert data.labels is not None
        return replace(data, kind="scores", labels=[2.0 - label for label in data.labels], label_names=None, score_range=(0.0, 2.0))
    return data


def settings_of(source: Source) -> dict[str, Any]:
    """Distance and margin with the defaults of their objective."""
    triplets = source.objective is not None and source.objective.endswith("triplet")
    batch = source.objective is not None and source.objective.startswith("batch_")
    return {
        "distance": source.distance or ("euclidean" if triplets else "cosine"),
        "margin": source.margin if source.margin is not None else 5.0 if batch else 1.0 if triplets else 0.5,
    }
