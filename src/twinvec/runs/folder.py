"""The folder of a run: made ready, recorded, listened to."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twinvec.data.dataset import Dataset
from twinvec.errors import TrainingError, UsageError
from twinvec.files import sha256_file
from twinvec.model.encoder import Encoder
from twinvec.model.folder import versions
from twinvec.model.threads import usable_cpus
from twinvec.runs.inputs import Inputs
from twinvec.training.checkpoint import list_checkpoints
from twinvec.training.recipe import Recipe


def prepare_folder(folder: Path, recipe: Recipe) -> None:
    """Refuse a place that holds something else; with `overwrite` remove an earlier run there, its stages included."""
    if folder.is_file():
        raise UsageError(f"output = {str(folder)!r} is a file; wanted a folder for the run")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not (folder / "run.json").is_file():
        raise UsageError(f"output = {str(folder)!r} is a folder with other things in it; choose a new one")
    if recipe.resume:
        return
    if not recipe.overwrite:
        goes_on = bool(recipe.stage) or bool(list_checkpoints(folder))  # stages begin again where there is no checkpoint
        hint = "go on with it (resume = true, --resume)" if goes_on else "it has no checkpoint to go on from"
        raise UsageError(
            f"output = {str(folder)!r} holds an earlier run: {hint}, replace it (overwrite = true, --overwrite), or choose another output"
        )
    own = (folder / name for name in ("best", "checkpoints", "tensorboard", "adapter"))
    coming = (Path(stage.output) for stage in recipe.stages()) if recipe.stage else ()
    for place in [*own, *stages_in(folder), *coming]:
        shutil.rmtree(place, ignore_errors=True)
    for name in ("run.json", "log.jsonl", "report.html"):
        (folder / name).unlink(missing_ok=True)


def stages_in(folder: Path) -> list[Path]:
    """The folders of stages that the run there has made, as its run.json names them."""
    try:
        found = json.loads((folder / "run.json").read_text(encoding="utf-8")).get("stages", [])
        return [folder / Path(name).name for name in found if Path(name).name not in ("", "..") and (folder / Path(name).name / "run.json").is_file()]
    except (OSError, json.JSONDecodeError, AttributeError, TypeError):
        return []


def check_same_inputs(folder: Path, record: dict[str, Any], recipe: Recipe) -> None:
    """TrainingError when a run is to be resumed whose training files, dev file or base model have other contents than when it began."""
    if not recipe.resume or not list_checkpoints(folder):
        return
    try:
        before = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as err:
        raise TrainingError(f"{folder / 'run.json'}: cannot be read ({err}); overwrite the run, or choose another output") from err
    then, now = before.get("files", {}), record["files"]
    changed = [now[name]["path"] for name in now if not name.startswith("test") and name in then and then[name]["sha256"] != now[name]["sha256"]]
    if before.get("base_model", {}).get("fingerprint") not in (None, record["base_model"]["fingerprint"]):
        changed.append(record["base_model"]["name"])
    if changed:
        raise TrainingError(
            f"{folder} cannot be resumed: {', '.join(changed)} has changed since it began; overwrite the run, or choose another output"
        )


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The lines of log.jsonl."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def record_of(recipe: Recipe, encoder: Encoder, inputs: Inputs, metric: str) -> dict[str, Any]:
    """run.json: enough to run it again and to know what it was run on."""
    sources = recipe.sources()
    data = {"data" if len(sources) == 1 else f"source {i}": source.data for i, source in enumerate(sources, 1)}
    data |= {f"exclude {i}": path for i, path in enumerate((path for source in sources for path in source.exclude), 1)}
    data |= {f"new_model {i}": path for i, path in enumerate(recipe.new_model.get("texts", []), 1)}
    files = {**data, "dev": recipe.dev, **{f"test {i}": path for i, path in enumerate(recipe.test)}}
    hashes = {name: {"path": path, "sha256": sha256_file(Path(path))} for name, path in files.items() if path and Path(path).is_file()}
    return {
        "format": 1,
        "recipe": recipe.model_dump(mode="json"),
        "metric": metric,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions(),
        "files": hashes,
        "rows": {"train": inputs.rows, "dev": len(inputs.dev) if isinstance(inputs.dev, Dataset) else None},
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


def tensorboard(folder: Path) -> Callable[[dict[str, Any]], None]:
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
