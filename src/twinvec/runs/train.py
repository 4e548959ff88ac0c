"""`train`: a recipe in, a run folder out. Joins data, encoder, loop, evaluation and report."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from twinvec.data.beir import RetrievalSet
from twinvec.data.dataset import Dataset
from twinvec.data.documents import read_texts
from twinvec.errors import TrainingError, TwinvecWarning, UsageError
from twinvec.evaluation.evaluate import evaluate
from twinvec.files import write_json
from twinvec.model.adapters import merged, trainable
from twinvec.model.encoder import Encoder
from twinvec.progress import note
from twinvec.runs.afterthoughts import afterthoughts, forethoughts, remarks
from twinvec.runs.dry import dry_run
from twinvec.runs.folder import check_same_inputs, prepare_folder, read_log, record_of, tensorboard
from twinvec.runs.inputs import Held, Inputs, read_inputs, training_texts
from twinvec.runs.report import labelled_pairs, pair_cosines, write_report
from twinvec.training.aligned import add_fitted_dense
from twinvec.training.distributed import World, world
from twinvec.training.fit import as_wanted
from twinvec.training.loop import Evaluate, Run
from twinvec.training.recipe import Recipe
from twinvec.training.source import Source
from twinvec.training.tasks import Task, make_task, prompt_name, share_heads

AUTO_METRIC = {
    "scores": "spearman_cosine",
    "pairs": "average_precision_cosine",
    "nli": "average_precision_cosine",
    "triplets": "accuracy_cosine",
    "parallel": "accuracy_source_to_target",
    "retrieval": "ndcg@10",
}


def train(recipe: Recipe, *, progress: bool = True, language: str = "en") -> dict[str, Any]:
    """Run a recipe. Returns {"best_step", "best_metric", "baseline_metric", "metric", "output", "best", "report", "steps", "tests", ...}.

    Leaves in `recipe.output`: run.json, log.jsonl, checkpoints/, best/ (a model folder that works alone) and report.html; with stages a folder
    for each, and best/ of the last. Under torchrun every process calls it, rank 0 writes, and all return the same.
    With `dry_run` nothing is trained or written; the result says what fits and how long the run would take.
    Raises UsageError for a recipe that cannot be run, DataError and ModelError for its inputs, TrainingError when training fails.
    """
    with world(recipe.device) as everyone:
        if recipe.stage:
            from twinvec.runs.stages import train_stages

            result = train_stages(recipe, everyone, progress=progress, language=language)
        else:
            result = train_stage(recipe, everyone, progress=progress, language=language)
    if everyone.first:
        for line in result["notes"]:
            warnings.warn(line, TwinvecWarning, stacklevel=2)
    return result


def train_stage(recipe: Recipe, everyone: World, *, progress: bool, language: str) -> dict[str, Any]:
    """One stage, in its own folder."""
    start = time.monotonic()
    folder = Path(recipe.output)
    progress = progress and everyone.first
    say: Callable[[str], None] = note if progress else lambda _: None
    if everyone.first and not recipe.dry_run:
        prepare_folder(folder, recipe)
    everyone.barrier()
    encoder = load_base(recipe, say)
    inputs = read_inputs(recipe, encoder, say)
    metric = _metric(recipe, inputs.dev)
    inputs.notes += forethoughts(recipe, inputs)
    for line in remarks(recipe, encoder, inputs):
        say(line)
    pairs = labelled_pairs(inputs.dev, "dev") if isinstance(inputs.dev, Dataset) else labelled_pairs(inputs.raw, "train")
    record = record_of(recipe, encoder, inputs, metric)
    shown = recipe.measured_as()
    before: dict[str, dict[str, Any]] = {}
    cosines = {}
    if everyone.first and not recipe.dry_run:
        check_same_inputs(folder, record, recipe)
        cosines["before"] = pair_cosines(encoder, pairs, shown)
        before = {name: evaluate_held(encoder, data, shown) for name, data in inputs.tests}
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "run.json", record)
    torch.manual_seed(recipe.seed)
    if recipe.fit_dense:
        say(_fit_dense(recipe, encoder, inputs, folder, everyone, progress))
    adapt(encoder, recipe)
    if recipe.lora_rank or recipe.freeze_layers or recipe.freeze_embeddings:
        moving, every = trainable(encoder.net)
        say(f"{moving:,} of {every:,} weights are trained ({moving / every:.1%}), the others stay as they are")
    tasks = _tasks(recipe, encoder, inputs, folder, everyone, progress)
    run = Run(recipe, encoder, tasks, folder, None, metric, world=everyone, show=progress)
    if recipe.dry_run:
        measured: dict[str, Any] = everyone.from_first(dry_run(run))
        return measured
    run.evaluate = _dev_evaluation(run, inputs, recipe, metric)
    if recipe.tensorboard and everyone.first:
        run.listeners.append(tensorboard(folder))
    rows = recipe.batch_size * recipe.accumulation
    say(f"training: {run.total_steps} steps of {rows} rows, {run.steps_per_epoch} steps an epoch")
    state = run.go()
    result: dict[str, Any] = {}
    if everyone.first:
        best = Encoder.load(folder / "best", device=recipe.device)
        notes = [*inputs.notes, *run.notes, *afterthoughts(run, folder)]
        if inputs.dev is not None and metric != "loss" and state.best_metric is not None:
            _confirm(best, inputs.dev, shown, metric, state.best_metric)
        cosines["after"] = pair_cosines(best, pairs, shown)
        result = {
            "best_step": state.best_step,
            "best_metric": state.best_metric,
            "baseline_metric": state.baseline_metric,
            "metric": metric,
            "steps": state.step,
            "stopped": state.stopped or "all steps done",
            "output": str(folder),
            "best": str(folder / "best"),
            "report": str(folder / "report.html"),
            "tests": [{"file": name, "before": before[name], "after": evaluate_held(best, data, shown)} for name, data in inputs.tests],
            "notes": list(dict.fromkeys(notes)),
            "seconds": round(time.monotonic() - start, 1),
        }
        write_json(folder / "run.json", {**record, "result": result, "best_fingerprint": best.fingerprint})
        write_report(folder / "report.html", recipe, result, best, inputs.raw, read_log(folder), pairs, cosines, language)
    found: dict[str, Any] = everyone.from_first(result)
    return found


def _fit_dense(recipe: Recipe, encoder: Encoder, inputs: Inputs, folder: Path, everyone: World, show: bool) -> str:
    """Rank 0 fits the layer, the others read what it wrote; what to say of it."""
    said = ""
    for first in (True, False):
        if everyone.first == first:
            said = add_fitted_dense(encoder, inputs.sources, folder, seed=recipe.seed, device=recipe.device, show=show, dry=recipe.dry_run)
        everyone.barrier()
    return said


def _tasks(recipe: Recipe, encoder: Encoder, inputs: Inputs, folder: Path, everyone: World, show: bool) -> list[Task]:
    """One task a source. Rank 0 makes each first: a teacher encodes once, and the others read what rank 0 has written."""
    device = str(encoder.net.device)
    made = []
    for source, data in inputs.sources:
        if not everyone.first:
            everyone.barrier()
        made.append(make_task(source, data, encoder, folder, normalize=recipe.normalize, device=device, show=show, dry=recipe.dry_run))
        if everyone.first:
            everyone.barrier()
    share_heads(made)
    return made


def load_base(recipe: Recipe, say: Callable[[str], None]) -> Encoder:
    """The model that the stage starts from, with the recipe's prompts."""
    if recipe.model == "new":
        encoder = _new_model(recipe, say)
    else:
        encoder = Encoder.load(recipe.model, device=recipe.device, pooling=recipe.pooling, max_tokens=recipe.max_tokens)
    if recipe.prompts:
        encoder.prompts = {**encoder.prompts, **recipe.prompts}
        encoder.__dict__.pop("fingerprint", None)
    for source in [recipe, *recipe.sources()]:
        for name in [source.prompt, *source.column_prompts.values()]:
            encoder.prompt_text(name)
    return encoder


def _new_model(recipe: Recipe, say: Callable[[str], None]) -> Encoder:
    """A model from nothing: its vocabulary is made from new_model.texts, or else from the training files."""
    from twinvec.model.fresh import describe, fresh_encoder

    settings = dict(recipe.new_model)
    files = settings.pop("texts", None)
    texts = [text for path in files for text in read_texts(path)] if files else training_texts(recipe)
    encoder = fresh_encoder(texts, pooling=recipe.pooling or "mean", seed=recipe.seed, device=recipe.device, **settings)
    say(describe(encoder))
    return encoder


def adapt(encoder: Encoder, recipe: Recipe) -> None:
    """Dropout, adapters, freezing and checkpointing, in the order in which they build on each other."""
    net = encoder.net
    if recipe.dropout is not None:
        net.set_dropout(recipe.dropout)
    if recipe.lora_rank:
        from twinvec.model.adapters import add_lora

        targets = recipe.lora_targets or "all-linear"
        add_lora(net, rank=recipe.lora_rank, alpha=recipe.lora_alpha, dropout=recipe.lora_dropout, targets=targets)
    if recipe.freeze_layers or recipe.freeze_embeddings:
        from twinvec.model.adapters import freeze

        freeze(net, layers=recipe.freeze_layers, embeddings=recipe.freeze_embeddings)
    if recipe.gradient_checkpointing:
        net.set_checkpointing(True)


def _metric(recipe: Recipe, dev: Held | None) -> str:
    if recipe.metric != "auto":
        return recipe.metric
    if dev is None:
        return "loss"
    kind = "retrieval" if isinstance(dev, RetrievalSet) else dev.kind
    if kind == "pairs" and isinstance(dev, Dataset) and dev.labels is None:
        kind = "parallel"  # partners without labels: each should find its own
    return AUTO_METRIC.get(kind, "loss")


def evaluate_held(encoder: Encoder, data: Held, source: Source) -> dict[str, Any]:
    """Measure with the prompts of `source`: those that the columns were trained with. Adapters are merged, as in the folder that is written."""
    with merged(encoder.net):
        if not source.column_prompts:
            return evaluate(encoder, data, prompt=source.prompt, progress=False)
        columns = ("query", "document") if isinstance(data, RetrievalSet) else tuple(data.columns)
        return evaluate(encoder, data, prompts={column: prompt_name(column, source) for column in columns}, progress=False)


def _dev_evaluation(run: Run, inputs: Inputs, recipe: Recipe, metric: str) -> Evaluate | None:
    held = inputs.dev
    if held is None:
        return None
    known: dict[str, Any] = {}
    source, shown = inputs.sources[0][0], recipe.measured_as()
    if metric != "loss":
        known = evaluate_held(run.encoder, held, shown) if run.world.first else {}
        if run.world.first and metric not in known:
            raise UsageError(f"metric = {metric!r}: dev ({recipe.dev or 'dev_share'}) does not give it; it gives {', '.join(_numbers(known))}, loss")
    elif not isinstance(held, Dataset):
        raise UsageError("metric = 'loss': dev is a retrieval folder, which the objective cannot score; choose ndcg@10")
    elif len(inputs.sources) > 1:
        raise UsageError("metric = 'loss': the losses of several sources have no common scale; give a dev file with labels or scores, and its metric")
    else:
        held = as_wanted(source, held)
        if run.world.first:
            run.tasks[0].on(held)  # says now what does not fit
    first = [known]  # the check above was the baseline already; no need to encode dev twice before step 1

    def measure(encoder: Encoder) -> dict[str, float | None]:
        if metric == "loss":
            assert isinstance(held, Dataset)
            return {"loss": run.mean_loss(held)}
        return _numbers(first.pop() if first and run.state.step == 0 else evaluate_held(encoder, held, shown))

    return measure


def _numbers(result: dict[str, Any]) -> dict[str, float | None]:
    """The scores of an evaluation: its numbers, less the counts."""
    return {key: value for key, value in result.items() if key not in ("rows", "notes") and (value is None or isinstance(value, float))}


def _confirm(best: Encoder, dev: Held, source: Source, metric: str, logged: float) -> None:
    """The saved folder must give the logged value: what is shipped is what was measured."""
    again = evaluate_held(best, dev, source)[metric]
    if again is None or abs(again - logged) > 1e-6:
        raise TrainingError(
            f"{best.name}: re-evaluated after loading, {metric} is {again}, but {logged} was logged; the folder is not what was measured"
        )
