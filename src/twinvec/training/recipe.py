"""`Recipe`: every setting of a training run, in one flat TOML file. Defaults name their source."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from twinvec.data.columns import Kind
from twinvec.errors import UsageError, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Objective = Literal["classification", "regression", "triplet"]


class Recipe(BaseModel):
    """Settings of a run. `Recipe.load("recipe.toml")`, or `Recipe.of(model=..., data=..., objective=..., output=...)`.

    Paths are relative to the folder in which the command runs. Steps are optimiser steps.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    # what is trained, on what
    model: str = Field(description="'minilm', a model folder or a hub id")
    data: str = Field(description="training file: pairs with scores or labels, NLI, or triplets")
    objective: Objective = Field(description="loss: classification, regression or triplet")
    output: str = Field(description="folder of the run: run.json, log.jsonl, checkpoints/, best/, report.html")
    dev: str | None = Field(None, description="file that is evaluated during training and picks the best step")
    dev_share: float = Field(0.0, ge=0, lt=1, description="share of the training rows held out as dev when there is no dev file")
    test: list[str] = Field([], description="files evaluated at the end, with the model before and after")

    # how the files are read
    columns: str | None = Field(None, description="which column is which, e.g. 'sentence1=q,sentence2=a,label=same'")
    kind: Kind | None = Field(None, description="kind of the data, where it cannot be told from the columns")
    labels: str | None = Field(None, description="what the labels mean, e.g. 'yes=1,no=0'")
    score_range: str | None = Field(None, description="lowest and highest score, e.g. '0,5'; found in the data by default")
    encoding: str = Field("utf-8", description="text encoding of the files")
    limit: int | None = Field(None, ge=1, description="read only the first rows of the training file")

    # the encoder
    pooling: str | None = Field(
        None, description="cls, mean, max, mean_sqrt_len, weighted_mean, last_token or a sum such as cls+mean; default: the model's own"
    )
    max_tokens: int | None = Field(None, ge=3, description="window in tokens; default: the model's own")
    prompt: str | None = Field(None, description="name of the model's prompt put before each text, in training and evaluation")
    dropout: float | None = Field(None, ge=0, lt=1, description="dropout of the backbone; default: the model's own")

    # the objective
    concatenation: str = Field("u,v,|u-v|", description="classification: what the classifier sees (SBERT 2019, table 6: the best)")
    mapping: Literal["range", "unit"] = Field(
        "range", description="regression: cosine mapped from -1..1 to the score's range, or scores to 0..1 against the cosine itself"
    )
    distance: Literal["euclidean", "cosine", "manhattan"] = Field("euclidean", description="triplet: distance (SBERT 2019, section 3)")
    margin: float = Field(1.0, gt=0, description="triplet: margin (SBERT 2019, section 3)")
    normalize: bool = Field(False, description="let the loss see unit vectors; the cosine losses give the same either way")

    # the optimiser
    epochs: float = Field(1.0, gt=0, description="passes over the data (SBERT 2019, section 3.1: 1)")
    max_steps: int | None = Field(None, ge=1, description="stop after this many steps, whatever the epochs say")
    batch_size: int = Field(16, ge=1, description="rows a forward pass (SBERT 2019, section 3.1: 16)")
    accumulation: int = Field(1, ge=1, description="forward passes a step; the gradient is their mean")
    lr: float = Field(2e-5, gt=0, description="peak learning rate (SBERT 2019, section 3.1: 2e-5)")
    head_lr: float | None = Field(None, gt=0, description="classification: peak learning rate of the classifier; default: lr")
    weight_decay: float = Field(0.01, ge=0, description="AdamW, not on biases and norms (BERT 2018, appendix A.2: 0.01)")
    schedule: Literal["linear", "cosine", "constant"] = Field("linear", description="learning rate after the warm-up (SBERT 2019: linear)")
    warmup: float = Field(0.1, ge=0, lt=1, description="share of all steps with a rising learning rate (SBERT 2019, section 3.1: 10 %)")
    clip: float = Field(1.0, ge=0, description="largest norm of the gradient, 0 for no limit (BERT reference code: 1.0)")
    precision: Literal["float32", "bf16"] = Field("float32", description="bf16: forward pass under autocast; the weights stay float32")
    seed: int = Field(42, ge=0, description="seed of shuffling, dropout and the classifier's first weights")

    # measuring, stopping, keeping
    metric: str = Field(
        "auto",
        description="what picks the best step, e.g. spearman_cosine, pearson_cosine, average_precision_cosine, loss; auto: by the kind of dev data",
    )
    evaluations_per_epoch: int = Field(1, ge=1, description="evaluations of dev an epoch, evenly spread")
    evaluate_steps: int | None = Field(None, ge=1, description="evaluate every so many steps instead")
    patience: int = Field(0, ge=0, description="stop when the metric has not risen for this many evaluations; 0: never")
    keep_checkpoints: int = Field(2, ge=1, description="checkpoints kept; one is written at each evaluation")
    checkpoint_steps: int | None = Field(None, ge=1, description="write checkpoints every so many steps as well")
    log_steps: int = Field(10, ge=1, description="steps between two lines of log.jsonl")
    tensorboard: bool = Field(False, description="also log to TensorBoard in the run's folder (needs the tensorboard extra)")
    resume: bool = Field(False, description="go on from the last checkpoint in output, if there is one")
    overwrite: bool = Field(False, description="replace an earlier run in output")
    device: str | None = Field(None, description="cpu or cuda; default: cuda when there is one")

    @model_validator(mode="after")
    def _fits_together(self) -> Recipe:
        measured = self.dev is not None or self.dev_share > 0
        if self.patience and not measured:
            raise ValueError("patience: early stopping needs dev data; set dev = FILE or dev_share = 0.1")
        if self.metric != "auto" and not measured:
            raise ValueError("metric: there is no dev data to measure it on; set dev = FILE or dev_share = 0.1")
        if self.dev is not None and self.dev_share:
            raise ValueError("dev_share: there is a dev file already; leave one of the two out")
        return self

    @staticmethod
    def of(**settings: Any) -> Recipe:
        """A recipe from keyword arguments; UsageError names the key, what came and what was wanted."""
        return _build(settings, "recipe")

    @staticmethod
    def load(path: str | Path, changes: Mapping[str, Any] | None = None) -> Recipe:
        """Read a TOML file; `changes` replace single keys."""
        path = Path(path)
        try:
            text = path.read_bytes().decode("utf-8-sig")
            settings = tomllib.loads(text)
        except FileNotFoundError:
            raise UsageError(f"{path}: no such recipe file") from None
        except IsADirectoryError:
            raise UsageError(f"{path} is a folder; give a recipe file (TOML)") from None
        except UnicodeDecodeError as err:
            raise UsageError(f"{path}: not UTF-8 text at byte {err.start}; a recipe is a TOML file") from err
        except tomllib.TOMLDecodeError as err:
            raise UsageError(f"{path}: not TOML: {err}") from err
        return _build({**settings, **(changes or {})}, str(path))

    def changed(self, **changes: Any) -> Recipe:
        return _build({**self.model_dump(), **changes}, "recipe")


def parse_changes(items: Sequence[str]) -> dict[str, Any]:
    """['lr=1e-5', 'dev="d.csv"'] as a dict: each value read as TOML, or taken as a plain string."""
    out: dict[str, Any] = {}
    for item in items:
        key, equals, value = item.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UsageError(f"--set {item!r}: wanted KEY=VALUE, for example lr=1e-5")
        if key not in Recipe.model_fields:
            raise UsageError(f"--set {item!r}: no recipe key {key!r}{nearest(key, Recipe.model_fields)}")
        try:
            out[key] = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            out[key] = value
    return out


def _build(settings: Mapping[str, Any], source: str) -> Recipe:
    try:
        return Recipe(**settings)
    except ValidationError as err:
        raise UsageError(f"{source}: " + "; ".join(_say(problem, settings) for problem in err.errors())) from None


def _say(problem: Any, settings: Mapping[str, Any]) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    kind, message = problem["type"], problem["msg"]
    if kind == "extra_forbidden":
        return f"unknown key {key!r}{nearest(key, Recipe.model_fields)}"
    if kind == "missing":
        return f"{key!r} is missing ({Recipe.model_fields[key].description})"
    if kind == "value_error":
        return str(message.removeprefix("Value error, "))
    return f"{key} = {settings.get(key.split('.')[0])!r}: {message[:1].lower()}{message[1:]}"
