"""`Recipe`: every setting of a training run, in one TOML file. Defaults name their source."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from twinvec.errors import TwinvecWarning, UsageError, nearest
from twinvec.training.source import Source

NEW_MODEL = ("layers", "hidden", "heads", "intermediate", "vocabulary", "max_tokens", "kind", "texts")
WHOLE_RUN = ("output", "resume", "overwrite", "dry_run", "stage")  # settings that a single stage cannot have

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Recipe(Source):
    """Settings of a run. `Recipe.load("recipe.toml")`, or `Recipe.of(model=..., data=..., objective=..., output=...)`.

    One data set: its settings stand at the top. Several in one stage: a list `source` of tables, each over the settings at the top.
    Several stages: a list `stage` of tables likewise; each starts from the best model of the one before it.
    Paths are relative to the folder in which the command runs. Steps are optimiser steps.
    """

    # what is trained, and where it goes
    model: str = Field(description="'minilm', a model folder or a hub id; 'new' for one from nothing (see new_model)")
    output: str = Field(description="folder of the run: run.json, log.jsonl, checkpoints/, best/, report.html")
    source: list[dict[str, Any]] = Field([], description="several data sets in one stage, each with its own settings (TOML: [[source]])")
    stage: list[dict[str, Any]] = Field([], description="stages, each from the best of the last (TOML: [[stage]])")
    name: str | None = Field(None, description="name of the stage, for its folder")
    mixing: Literal["proportional", "even", "temperature", "weights"] = Field(
        "proportional", description="how often each source gives a batch: by its size, evenly, by size^(1/T), or by weight"
    )
    mixing_temperature: float = Field(2.0, ge=1, description="T of mixing = 'temperature' (mBERT: 1/0.7; T5 2020, section 3.5.2: 2)")
    new_model: dict[str, Any] = Field({}, description="model = 'new': layers, hidden, heads, vocabulary, max_tokens, texts (files)")
    dev: str | None = Field(None, description="file that is evaluated during training and picks the best step")
    dev_share: float = Field(0.0, ge=0, lt=1, description="share of the training rows held out as dev when there is no dev file")
    test: list[str] = Field([], description="files evaluated at the end, with the model before and after")

    # the encoder
    pooling: str | None = Field(
        None, description="cls, mean, max, mean_sqrt_len, weighted_mean, last_token or a sum such as cls+mean; default: the model's own"
    )
    max_tokens: int | None = Field(None, ge=3, description="window in tokens; default: the model's own")
    prompts: dict[str, str] = Field({}, description="prompts by name, saved in the model, e.g. query='query: '")
    dropout: float | None = Field(None, ge=0, lt=1, description="dropout of the backbone; default: the model's own")

    normalize: bool = Field(False, description="let the loss see unit vectors; the cosine losses give the same either way")

    freeze_layers: int = Field(0, ge=0, description="leave the first so many layers as they are")
    freeze_embeddings: bool = Field(False, description="leave the token embeddings as they are")
    lora_rank: int = Field(
        0, ge=0, description="train low-rank adapters of this rank instead of the weights (LoRA 2021; needs the lora extra); 0: no"
    )
    lora_alpha: float = Field(32.0, gt=0, description="LoRA: scale of the adapters is alpha / rank")
    lora_dropout: float = Field(0.05, ge=0, lt=1, description="LoRA: dropout before the adapters (QLoRA 2023, appendix A.2: 0.05)")
    lora_targets: list[str] = Field([], description="LoRA: names of the linear layers; default: all of them (QLoRA 2023, section 4)")
    lora_keep: bool = Field(False, description="LoRA: write the adapters alone into adapter/ as well; best/ is always the merged model")

    fit_dense: bool = Field(
        False,
        description="distillation: first add a linear layer to the teacher's size, fitted by least squares; for a student of another size or space",
    )

    # memory and machines
    gradient_cache: Literal["auto", "on", "off"] = Field(
        "auto", description="compute vectors twice so that memory is bounded whatever the batch (Gao 2021); auto: when the batch would not fit"
    )
    micro_tokens: int | None = Field(None, ge=1, description="tokens of one forward pass; default: what the machine runs fastest")
    gradient_checkpointing: bool = Field(False, description="keep only each layer's input, and compute the rest twice")
    dry_run: bool = Field(False, description="train nothing: measure a few steps, and say which batch fits and how long the run takes")

    # the optimiser
    epochs: float = Field(1.0, gt=0, description="passes over the data (SBERT 2019, section 3.1: 1)")
    max_steps: int | None = Field(None, ge=1, description="stop after this many steps, whatever the epochs say")
    batch_size: int = Field(16, ge=1, description="rows a forward pass (SBERT 2019, section 3.1: 16)")
    accumulation: int = Field(1, ge=1, description="forward passes a step; the gradient is their mean")
    lr: float = Field(2e-5, gt=0, description="peak learning rate (SBERT 2019, section 3.1: 2e-5)")
    head_lr: float | None = Field(
        None, gt=0, description="peak learning rate of what is trained beside the encoder (classifier, decoder); default: lr"
    )
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
        if self.stage and self.source:
            raise ValueError("source: a recipe with stages has its sources inside them ([[stage.source]])")
        if not self.stage and not self.source:
            for key in ("data", "objective"):
                if not getattr(self, key):
                    raise ValueError(f"{key!r} is missing ({Source.model_fields[key].description})")
        if not self.stage:
            if self.patience and not measured:
                raise ValueError("patience: early stopping needs dev data; set dev = FILE or dev_share = 0.1")
            if self.metric != "auto" and not measured:
                raise ValueError("metric: there is no dev data to measure it on; set dev = FILE or dev_share = 0.1")
        if self.dev is not None and self.dev_share:
            raise ValueError("dev_share: there is a dev file already; leave one of the two out")
        self._check_new_model()
        if self.name is not None and not self.name.replace("-", "").replace("_", "").replace(".", "a").isalnum():
            raise ValueError(f"name = {self.name!r}: it names a folder; wanted letters, digits and - _ . only")
        weighed = [source for source in self.source if source.get("weight") is not None]
        if (weighed or self.weight is not None) and not self.stage and self.mixing != "weights":
            raise ValueError(f"weight: mixing = {self.mixing!r} looks at no weights; set mixing = 'weights'")
        return self

    def _check_new_model(self) -> None:
        if self.model == "new" and not self.new_model:
            raise ValueError("model = 'new' wants new_model, e.g. new_model = {layers = 4, hidden = 256, texts = ['texts.txt']}")
        if self.new_model and self.model != "new":
            raise ValueError(f"new_model: the model is {self.model!r}, so nothing is made anew; set model = 'new', or leave new_model out")
        for key in self.new_model:
            if key not in NEW_MODEL:
                raise ValueError(f"new_model: unknown key {key!r}; wanted {', '.join(NEW_MODEL)}{nearest(key, NEW_MODEL)}")
        texts = self.new_model.get("texts")
        if texts is not None and not (isinstance(texts, list) and texts and all(isinstance(path, str) for path in texts)):
            raise ValueError(f"new_model.texts = {texts!r}: wanted a list of files, e.g. ['texts.txt']")

    def sources(self) -> list[Source]:
        """The data sets of one stage, each with every setting filled in."""
        own = {key: getattr(self, key) for key in Source.model_fields}
        if not self.source:
            return [Source(**own)]
        return [_source({**own, **settings}, f"source {i}") for i, settings in enumerate(self.source, 1)]

    def measured_as(self) -> Source:
        """The prompts with which dev and test files are measured, as a source.

        Those of the only data set; with several data sets those at the top, or else those of the first that has any.
        """
        sources = self.sources()
        if len(sources) == 1:
            return sources[0]
        own = [source for source in sources if source.prompt is not None or source.column_prompts]
        return self if self.prompt is not None or self.column_prompts or not own else own[0]

    def stages(self) -> list[Recipe]:
        """One recipe a stage, with `output` a folder inside this one's; [self] when there are no stages.

        `model` of a later stage is the best model of the one before it, unless the stage names another. A stage without dev data takes neither
        metric nor patience from the top.
        """
        if not self.stage:
            return [self]
        # Only what was written down is handed on: a stage may well have no dev while the top says nothing about it either.
        given = {key: getattr(self, key) for key in self.model_fields_set if key != "stage"}
        made: list[Recipe] = []
        for number, settings in enumerate(self.stage, 1):
            source = f"stage {number}"
            wrong = [key for key in WHOLE_RUN if key in settings]
            if wrong:
                raise UsageError(f"{source}: {wrong[0]} belongs to the whole run; set it at the top, above the stages")
            name = str(settings.get("name") or _last(settings, given))
            merged = {**given, **settings, "name": name, "output": str(Path(self.output) / f"{number}-{name}")}
            if made and "model" not in settings:
                merged["model"] = str(Path(made[-1].output) / "best")
            for key in ("pooling", "new_model"):  # they are in the folder of the last stage
                if made and key not in settings and (key != "new_model" or merged["model"] != "new"):
                    merged.pop(key, None)
            if not merged.get("dev") and not merged.get("dev_share"):
                for key in ("metric", "patience"):
                    if key not in settings:
                        merged.pop(key, None)
            made.append(_build(merged, source))
        return made

    @staticmethod
    def of(**settings: Any) -> Recipe:
        """A recipe from keyword arguments; UsageError names the key, what came and what was wanted."""
        return _build(settings, "recipe")

    @staticmethod
    def load(path: str | Path, changes: Mapping[str, Any] | None = None) -> Recipe:
        """Read a TOML file; `changes` replace single keys at its top, and a warning names stages and sources that keep a value of their own."""
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
        made = _build({**settings, **(changes or {})}, str(path))
        for key in changes or {}:
            if own := [f"{place} ({found[key]!r})" for place, found in _inside(settings) if key in found]:
                warnings.warn(f"{path}: {key} stands in {', '.join(own)}, and stays what it is there", TwinvecWarning, stacklevel=2)
        return made

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


def _inside(settings: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tables inside a recipe: its stages, and the sources of each and of the recipe, with what to call them."""
    for number, source in enumerate(settings.get("source", []), 1):
        yield f"source {number}", source
    for number, stage in enumerate(settings.get("stage", []), 1):
        place = f"stage {stage.get('name', number)}"
        yield place, stage
        yield from ((f"source {i} of {place}", source) for i, source in enumerate(stage.get("source", []), 1))


def _last(settings: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """A name for a stage without one: its objective."""
    sources = settings.get("source")
    inside = [item.get("objective") for item in sources if isinstance(item, dict)] if isinstance(sources, list) else []
    return str(settings.get("objective") or next(iter(inside), None) or given.get("objective") or "stage")


def _source(settings: Mapping[str, Any], source: str) -> Source:
    try:
        found = Source(**settings)
    except ValidationError as err:
        raise UsageError(f"{source}: " + "; ".join(_say(problem, settings, Source) for problem in err.errors())) from None
    for key in ("data", "objective"):
        if not getattr(found, key):
            raise UsageError(f"{source}: {key!r} is missing ({Source.model_fields[key].description})")
    return found


def _build(settings: Mapping[str, Any], source: str) -> Recipe:
    try:
        made = Recipe(**settings)
        if made.source:
            made.sources()
        if made.stage:
            made.stages()
        return made
    except ValidationError as err:
        raise UsageError(f"{source}: " + "; ".join(_say(problem, settings) for problem in err.errors())) from None


def _say(problem: Any, settings: Mapping[str, Any], model: type[Source] | None = None) -> str:
    fields = (model or Recipe).model_fields
    key = ".".join(str(part) for part in problem["loc"])
    kind, message = problem["type"], problem["msg"]
    if kind == "extra_forbidden" and model is Source and key in Recipe.model_fields:
        return f"{key!r} is a setting of the whole stage, not of one data set; set it outside of [[source]]"
    if kind == "extra_forbidden":
        return f"unknown key {key!r}{nearest(key, fields)}"
    if kind == "missing":
        return f"{key!r} is missing ({fields[key].description})"
    if kind == "value_error":
        return str(message.removeprefix("Value error, "))
    return f"{key} = {settings.get(key.split('.')[0])!r}: {message[:1].lower()}{message[1:]}"
