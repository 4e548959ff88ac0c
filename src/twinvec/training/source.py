"""`Source`: one data set and the objective that learns from it; a stage of a recipe has one or several."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from twinvec.data.columns import Kind
from twinvec.errors import nearest

Objective = Literal[
    "classification", "regression", "triplet", "infonce", "simcse", "contrastive", "online_contrastive", "cosent", "angle",
    "batch_hard_triplet", "batch_hard_soft_triplet", "batch_semi_hard_triplet", "batch_all_triplet", "distillation", "margin_mse",
    "mlm", "retromae", "tsdae",
]  # fmt: skip
PRETRAINING = ("mlm", "retromae", "tsdae")
IN_BATCH = ("infonce", "simcse", "cosent", "angle", "online_contrastive", "batch_hard_triplet", "batch_hard_soft_triplet", "batch_semi_hard_triplet",
            "batch_all_triplet")  # fmt: skip
"""Objectives in which the rows of a batch are compared with each other."""
FIRST = ("anchor", "sentence1", "source", "text", "query", "question", "premise", "text1")
SECOND = ("positive", "negative", "sentence2", "target", "document", "passage", "answer", "hypothesis", "text2")
"""Names of the two sides of a row, in column_prompts; negatives are called like positives."""


class Source(BaseModel):
    """Settings that may differ from one data set of a stage to the next."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: str = Field("", description="training file: pairs, scores, labels, NLI, triplets, parallel or bare texts")
    objective: Objective | None = Field(None, description="loss; which fits which file: docs/training.md")
    weight: float | None = Field(None, gt=0, description="mixing = 'weights': this source's share of the batches, relative to the others'")

    # how the file is read
    columns: str | None = Field(None, description="which column is which, e.g. 'sentence1=q,sentence2=a,label=same'")
    kind: Kind | None = Field(None, description="kind of the data, where it cannot be told from the columns")
    labels: str | None = Field(None, description="what the labels mean, e.g. 'yes=1,no=0'")
    score_range: str | None = Field(None, description="lowest and highest score, e.g. '0,5'; found in the data by default")
    encoding: str = Field("utf-8", description="text encoding of the files")
    limit: int | None = Field(None, ge=1, description="read only the first rows of the training file")
    exclude: list[str] = Field([], description="files whose pairs are taken out of the training data, so that a test stays a test")
    positive_score: float = Field(0.8, ge=0, le=1, description="infonce on scored pairs: share of the score range from which a pair is a positive")

    # prompts
    prompt: str | None = Field(None, description="name of the model's prompt put before each text, in training and evaluation")
    column_prompts: dict[str, str] = Field({}, description="a prompt's name for each column, e.g. anchor=query positive=document")

    # the objective
    concatenation: str = Field("u,v,|u-v|", description="classification: what the classifier sees (SBERT 2019, table 6: the best)")
    mapping: Literal["range", "unit"] = Field(
        "range", description="regression: cosine mapped from -1..1 to the score's range, or scores to 0..1 against the cosine itself"
    )
    distance: Literal["euclidean", "cosine", "manhattan"] | None = Field(
        None, description="triplets: euclidean (SBERT 2019, section 3); contrastive: cosine (as sentence-transformers)"
    )
    margin: float | None = Field(
        None, ge=0, description="triplets: 1.0 (SBERT 2019, section 3), batch triplets 5.0; contrastive: 0.5 (as sentence-transformers)"
    )
    similarity: Literal["cosine", "dot"] = Field("cosine", description="infonce, margin_mse: similarity of two vectors")
    temperature: float = Field(0.05, gt=0, description="infonce, simcse: the similarity is divided by it (SimCSE 2021, section 3.1: 0.05)")
    learn_temperature: bool = Field(False, description="infonce: train the temperature too (CLIP 2021, section 2.3)")
    direction: Literal["one_sided", "symmetric", "all"] = Field(
        "one_sided", description="infonce: anchors against all, both ways, or every vector of the batch against all others"
    )
    mask_same: bool = Field(True, description="infonce: equal texts, and rows of one group, are no negatives of each other")
    false_negative_margin: float | None = Field(
        None, description="infonce: candidates scoring above the positive plus this are no negatives (GISTEmbed 2024, eq. 2: 0)"
    )
    guide: str | None = Field(None, description="infonce: the model whose scores judge false negatives; default: the trained one")
    scale: float = Field(20.0, gt=0, description="cosent, angle: the cosine is multiplied by it (CoSENT 2022: 20)")
    matryoshka: list[int] = Field([], description="also train the first so many dimensions, e.g. 256 128 64 (Kusupati 2022, eq. 1)")
    matryoshka_weights: list[float] = Field([], description="weight of each, the full size first; default: 1 each (Kusupati 2022, section 3)")
    teacher: str | None = Field(None, description="distillation, margin_mse: the model that is learned from")
    teacher_prompt: str | None = Field(None, description="name of the teacher's own prompt")
    distill_loss: Literal["mse", "cosine"] = Field("mse", description="distillation: mean squared error (Reimers 2020, eq. 1) or 1 - cosine")
    mask_share: float | None = Field(
        None, gt=0, lt=1, description="share of tokens hidden: mlm 0.15 (BERT 2018), retromae 0.3, tsdae 0.6 deleted (Wang 2021)"
    )
    decoder_mask_share: float = Field(0.5, gt=0, lt=1, description="retromae: share hidden from the decoder (RetroMAE 2022's published runs: 0.5)")
    whole_words: bool = Field(False, description="mlm, retromae, tsdae: hide whole words (BERT, release of May 2019)")
    per_class: int = Field(4, ge=2, description="batch triplets: rows of each class in a batch (Hermans 2017, section 3.2: K = 4)")

    @field_validator("column_prompts")
    @classmethod
    def _columns_are_known(cls, value: dict[str, str]) -> dict[str, str]:
        for column in value:
            if column not in FIRST and side_name(column) not in SECOND:
                known = (*FIRST, *SECOND)
                raise ValueError(f"column_prompts: no column is called {column!r}; wanted {', '.join(known)}{nearest(column, known)}")
        return value


def side_name(column: str) -> str:
    """negative_2 and its like count as negative."""
    return "negative" if column.startswith("negative_") and column[9:].isdigit() else column
