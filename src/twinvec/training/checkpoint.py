"""Checkpoints: everything that a run needs to go on as if it had never stopped. No pickle: safetensors and JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from twinvec.errors import TrainingError
from twinvec.files import atomic_folder, sha256_file, write_json


def _folder(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


def save_checkpoint(run: Path, step: int, tensors: dict[str, Tensor], state: dict[str, Any], keep: int) -> Path:
    """Write checkpoints/step-N whole, then drop the oldest beyond `keep`. `tensors` must not share memory."""
    place = _folder(run, step)
    with atomic_folder(place, replace=True) as folder:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "tensors.safetensors")
        write_json(folder / "state.json", {**state, "step": step, "sha256": sha256_file(folder / "tensors.safetensors")})
    for old in list_checkpoints(run)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return place


def list_checkpoints(run: Path) -> list[Path]:
    """Whole checkpoints of a run, oldest first."""
    folder = run / "checkpoints"
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.glob("step-*") if (path / "state.json").is_file())


def load_checkpoint(place: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and state; TrainingError when the files are damaged."""
    try:
        state = json.loads((place / "state.json").read_text(encoding="utf-8"))
        if sha256_file(place / "tensors.safetensors") != state["sha256"]:
            raise TrainingError(
                f"{place}: tensors.safetensors is damaged (its checksum differs); remove this folder to resume from an older checkpoint"
            )
        return load_file(place / "tensors.safetensors"), state
    except (OSError, json.JSONDecodeError, KeyError) as err:
        raise TrainingError(f"{place}: this checkpoint cannot be read ({err}); remove the folder to resume from an older one") from err


def optimizer_tensors(optimizer: torch.optim.Optimizer, prefix: str = "optimizer") -> dict[str, Tensor]:
    """The state of AdamW as named tensors: optimizer.<parameter number>.<name>."""
    out: dict[str, Tensor] = {}
    for number, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            out[f"{prefix}.{number}.{name}"] = value if isinstance(value, Tensor) else torch.tensor(value)
    return out


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], prefix: str = "optimizer") -> None:
    current = optimizer.state_dict()
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith(f"{prefix}."):
            _, number, name = key.split(".", 2)
            state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": current["param_groups"]})
