"""`train`: a recipe in, a run folder out. Joins data, encoder, loop, evaluation and report."""

from __future__ import annotations

import json
import math
import platform
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twinvec.data.beir import RetrievalSet, read_retrieval
from twinvec.data.check import check_data
from twinvec.data.dataset import Dataset, read_data
from twinvec.data.sampling import split_rows
from twinvec.errors import TrainingError, TwinvecWarning, UsageError
from twinvec.evaluation.evaluate import evaluate
from twinvec.files import sha256_file, write_json
from twinvec.model.encoder import Encoder
from twinvec.model.folder import versions
from twinvec.model.threads import usable_cpus
from twinvec.progress import note
from twinvec.runs.report import labelled_pairs, pair_cosines, write_report
from twinvec.training.checkpoint import list_checkpoints
from twinvec.training.loop import Evaluate, Run
from twinvec.training.objective import check_fit
from twinvec.training.recipe import Recipe

AUTO_METRIC = {
    "scores": "spearman_cosine",
    "pairs": "average_precision_cosine",
    "nli": "average_precision_cosine",
    "triplets": "accuracy_cosine",
    "parallel": "accuracy_source_to_target",
    "retrieval": "ndcg@10",
}


@dataclass
class _Inputs:
    """What is read before anything is trained."""

    train: Dataset
    dev: Dataset | RetrievalSet | None
    tests: list[tuple[str, Dataset | RetrievalSet]]
    notes: list[str] = field(default_factory=list)


def train(recipe: Recipe, *, progress: bool = True, language: str = "en") -> dict[str, Any]:
    """Run a recipe. Returns {"best_step", "best_metric", "baseline_metric", "metric", "output", "best", "report", "steps", "tests", ...}.

    Leaves in `recipe.output`: run.json, log.jsonl, checkpoints/, best/ (a model folder that works alone) and report.html.
    Raises UsageError for a recipe that cannot be run, DataError and ModelError for its inputs, TrainingError when training fails.
    """
    start = time.monotonic()
    folder = Path(recipe.output)
    _prepare_folder(folder, recipe)
    say: Callable[[str], None] = note if progress else lambda _: None
    encoder = Encoder.load(recipe.model, device=recipe.device, pooling=recipe.pooling, max_tokens=recipe.max_tokens)
    inputs = _read_inputs(recipe, encoder, say)
    metric = _metric(recipe, inputs.dev)
    pairs = labelled_pairs(inputs.dev, "dev") if isinstance(inputs.dev, Dataset) else labelled_pairs(inputs.train, "train")
    cosines = {"before": pair_cosines(encoder, pairs, recipe.prompt)}
    before = {name: _evaluate(encoder, data, recipe) for name, data in inputs.tests}
    record = _record(recipe, encoder, inputs, metric)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "run.json", record)

    run = Run(recipe, encoder, inputs.train, folder, None, metric, show=progress)
    run.evaluate = _dev_evaluation(run, inputs.dev, recipe, metric)
    if recipe.tensorboard:
        run.listeners.append(_tensorboard(folder))
    say(f"training: {run.total_steps} steps of {recipe.batch_size * recipe.accumulation} rows, {run.steps_per_epoch} steps an epoch")
    state = run.go()

    best = Encoder.load(folder / "best", device=recipe.device)
    notes = [*inputs.notes, *_afterthoughts(recipe, state, metric, folder)]
    if inputs.dev is not None and metric != "loss" and state.best_metric is not None:
        _confirm(best, inputs.dev, recipe, metric, state.best_metric)
    cosines["after"] = pair_cosines(best, pairs, recipe.prompt)
    tests = [{"file": name, "before": before[name], "after": _evaluate(best, data, recipe)} for name, data in inputs.tests]
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
        "tests": tests,
        "notes": notes,
        "seconds": round(time.monotonic() - start, 1),
    }
    write_json(folder / "run.json", {**record, "result": result, "best_fingerprint": best.fingerprint})
    write_report(folder / "report.html", recipe, result, best, inputs.train, _read_log(folder), pairs, cosines, language)
    for line in notes:
        warnings.warn(line, TwinvecWarning, stacklevel=2)
    return result


def _prepare_folder(folder: Path, recipe: Recipe) -> None:
    if folder.is_file():
        raise UsageError(f"output = {str(folder)!r} is a file; wanted a folder for the run")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not (folder / "run.json").is_file():
        raise UsageError(f"output = {str(folder)!r} is a folder with other things in it; choose a new one")
    if recipe.resume:
        return
    if not recipe.overwrite:
        hint = "go on with it (resume = true, --resume)" if list_checkpoints(folder) else "it has no checkpoint to go on from"
        raise UsageError(
            f"output = {str(folder)!r} holds an earlier run: {hint}, replace it (overwrite = true, --overwrite), or choose another output"
        )
    for name in ("best", "checkpoints", "tensorboard"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in ("run.json", "log.jsonl", "report.html"):
        (folder / name).unlink(missing_ok=True)


def _read(path: str, recipe: Recipe, *, limit: int | None = None) -> Dataset | RetrievalSet:
    if Path(path).is_dir():
        return read_retrieval(Path(path))
    return read_data(
        path, kind=recipe.kind, columns=recipe.columns, encoding=recipe.encoding, labels=recipe.labels, score_range=recipe.score_range, limit=limit
    )


def _read_inputs(recipe: Recipe, encoder: Encoder, say: Callable[[str], None]) -> _Inputs:
    train_data = _read(recipe.data, recipe, limit=recipe.limit)
    if isinstance(train_data, RetrievalSet):
        raise UsageError(f"data = {recipe.data!r} is a retrieval folder; the objectives here learn from a file of pairs, scores, NLI or triplets")
    dev: Dataset | RetrievalSet | None = None
    if recipe.dev is not None:
        dev = _read(recipe.dev, recipe)
    elif recipe.dev_share:
        kept, held = split_rows(len(train_data), recipe.dev_share, recipe.seed)
        if not len(held) or not len(kept):
            raise UsageError(
                f"dev_share = {recipe.dev_share}: of {len(train_data)} rows that leaves {len(kept)} to train on and {len(held)} to measure"
            )
        train_data, dev = train_data.select(kept), train_data.select(held)
    check_fit(recipe, train_data)
    for line in train_data.describe():
        say(line)
    tests = [(path, _read(path, recipe)) for path in recipe.test]
    inputs = _Inputs(train_data, dev, tests, list(train_data.notes))
    window = {"count_tokens": encoder.count_tokens, "window": encoder.max_tokens}
    for line in check_data(train_data, **window).lines():  # type: ignore[arg-type]
        say(f"train: {line}")
    for name, other in [("dev", dev), *tests]:
        if isinstance(other, Dataset):
            for finding in check_data(train_data, test=other).findings:
                # A shared pair makes a figure worthless, which is a note of the run; a shared text (one answer to many questions) is often meant.
                if finding.name.startswith("shared_pairs"):
                    inputs.notes.append(f"{name}: {finding.line()}")
                elif finding.name.startswith("shared"):
                    say(f"{name}: {finding.line()}")
    return inputs


def _metric(recipe: Recipe, dev: Dataset | RetrievalSet | None) -> str:
    if recipe.metric != "auto":
        return recipe.metric
    if dev is None:
        return "loss"
    kind = "retrieval" if isinstance(dev, RetrievalSet) else dev.kind
    return AUTO_METRIC.get(kind, "loss")


def _evaluate(encoder: Encoder, data: Dataset | RetrievalSet, recipe: Recipe) -> dict[str, Any]:
    return evaluate(encoder, data, prompt=recipe.prompt, progress=False)


def _dev_evaluation(run: Run, dev: Dataset | RetrievalSet | None, recipe: Recipe, metric: str) -> Evaluate | None:
    if dev is None:
        return None
    held = dev
    known: dict[str, Any] = {}
    if metric != "loss":
        known = _evaluate(run.encoder, held, recipe)
        if metric not in known:
            raise UsageError(f"metric = {metric!r}: dev ({recipe.dev or 'dev_share'}) does not give it; it gives {', '.join(_numbers(known))}, loss")
    elif not isinstance(held, Dataset):
        raise UsageError("metric = 'loss': dev is a retrieval folder, which the objective cannot score; choose ndcg@10")
    else:
        check_fit(recipe, held)
    first = [known]  # the check above was the baseline already; no need to encode dev twice before step 1

    def measure(encoder: Encoder) -> dict[str, float | None]:
        if metric == "loss":
            assert isinstance(held, Dataset)
            return {"loss": run.mean_loss(held)}
        return _numbers(first.pop() if first and run.state.step == 0 else _evaluate(encoder, held, recipe))

    return measure


def _numbers(result: dict[str, Any]) -> dict[str, float | None]:
    """The scores of an evaluation: its numbers, less the counts."""
    return {key: value for key, value in result.items() if key not in ("rows", "notes") and (value is None or isinstance(value, float))}


def _confirm(best: Encoder, dev: Dataset | RetrievalSet, recipe: Recipe, metric: str, logged: float) -> None:
    """The saved folder must give the logged value: what is shipped is what was measured."""
    again = _evaluate(best, dev, recipe)[metric]
    if again is None or abs(again - logged) > 1e-6:
        raise TrainingError(
            f"{best.name}: re-evaluated after loading, {metric} is {again}, but {logged} was logged; the folder is not what was measured"
        )


def _afterthoughts(recipe: Recipe, state: Any, metric: str, folder: Path) -> list[str]:
    notes = []
    sign = -1 if metric == "loss" else 1
    if state.best_metric is not None and state.baseline_metric is not None and sign * state.best_metric < sign * state.baseline_metric:
        notes.append(
            f"the best step ({metric} {state.best_metric:.4f}) is below the model before training ({state.baseline_metric:.4f}): keep the old model"
        )
    if state.best_metric is None and (recipe.dev or recipe.dev_share):
        notes.append(f"{metric} was never defined on dev (constant scores?), so the last weights were kept instead of the best")
    losses = [entry["loss"] for entry in _read_log(folder) if entry["event"] == "loss"]
    if len(losses) >= 5 and recipe.objective == "classification":
        third = max(1, len(losses) // 3)
        start, end = sum(losses[:third]) / third, sum(losses[-third:]) / third
        if end > start * 0.98 and not math.isclose(end, 0.0, abs_tol=1e-3):
            notes.append(f"the loss hardly fell ({start:.3f} to {end:.3f}): the classifier learns little; try a higher lr, more epochs, or head_lr")
    return notes


def _read_log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def _record(recipe: Recipe, encoder: Encoder, inputs: _Inputs, metric: str) -> dict[str, Any]:
    """run.json: enough to run it again and to know what it was run on."""
    files = {"data": recipe.data, "dev": recipe.dev, **{f"test {i}": path for i, path in enumerate(recipe.test)}}
    hashes = {name: {"path": path, "sha256": sha256_file(Path(path))} for name, path in files.items() if path and Path(path).is_file()}
    return {
        "format": 1,
        "recipe": recipe.model_dump(mode="json"),
        "metric": metric,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions(),
        "files": hashes,
        "rows": {"train": len(inputs.train), "dev": len(inputs.dev) if isinstance(inputs.dev, Dataset) else None},
        "base_model": {"name": encoder.name, "fingerprint": encoder.fingerprint},
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "cpus": usable_cpus(),
            "threads": encoder.threads,
            "device": str(encoder.net.device),
        },
        "command": sys.argv,
    }


def _tensorboard(folder: Path) -> Callable[[dict[str, Any]], None]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as err:
        raise UsageError("tensorboard = true: TensorBoard is not installed; pip install 'twinvec[tensorboard]'") from err
    writer = SummaryWriter(str(folder / "tensorboard"))

    def listen(entry: dict[str, Any]) -> None:
        values = entry.get("values") or {key: entry[key] for key in ("loss", "lr", "gradient_norm") if key in entry}
        for name, value in values.items():
            if isinstance(value, float):
                writer.add_scalar(f"{entry['event']}/{name}", value, entry["step"])
        writer.flush()

    return listen
