"""A linear layer from the student's space into the teacher's, fitted by least squares before the first step.

Two models that were trained apart have spaces of their own, and of their own sizes. Gradient steps alone first have to turn one into the other, which
takes many of them and undoes on the way what the student knew; a linear map between the two is found in one go (Mikolov, Le and Sutskever 2013,
"Exploiting Similarities among Languages for Machine Translation", section 3, for word vectors). Training then starts from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save

from twinvec.data.dataset import Dataset
from twinvec.errors import TrainingError, UsageError
from twinvec.files import atomic_file
from twinvec.model.encoder import Encoder
from twinvec.model.heads import Dense
from twinvec.objectives.rows import cosine
from twinvec.records import Vectors
from twinvec.training.source import Source
from twinvec.training.tasks import prompt_name
from twinvec.training.teacher import FrozenVectors

ROWS = 10_000  # rows of the data that the layer is fitted on, at most; 385 x 384 numbers need no more
RIDGE = 1e-3  # of the mean variance of a dimension
_IDENTITY = "torch.nn.modules.linear.Identity"


def least_squares(student: Vectors, teacher: Vectors) -> tuple[torch.Tensor, torch.Tensor]:
    """student (n, D), teacher (n, E) -> W (E, D) and b (E,) float32 with the least sum of |W s + b - t|^2 + ridge |W|^2, in float64."""
    x, y = student.astype(np.float64), teacher.astype(np.float64)
    middle, aim = x.mean(axis=0), y.mean(axis=0)
    x, y = x - middle, y - aim
    square = x.T @ x
    ridge = max(RIDGE * float(np.trace(square)) / len(square), 1e-300)
    weight = np.linalg.solve(square + ridge * np.eye(len(square)), x.T @ y).T
    return torch.from_numpy(weight).float().contiguous(), torch.from_numpy(aim - weight @ middle).float()


def add_fitted_dense(
    encoder: Encoder, sources: Sequence[tuple[Source, Dataset]], folder: Path, *, seed: int, device: str | None, show: bool, dry: bool = False
) -> str:
    """Put a linear layer to the teacher's size behind the pooling, fitted on the rows of the first data set that is distilled; what to say of it.

    The model then normalises where the teacher does. A fit that `folder` holds already (a run that is resumed) is read; dry: no fit at all.
    UsageError when no data set is distilled from a teacher.
    """
    chosen = next(((source, data) for source, data in sources if source.objective == "distillation" and source.teacher), None)
    if chosen is None:
        raise UsageError("fit_dense: no data set has objective = 'distillation' with a teacher, so there is nothing to fit the layer to")
    source, data = chosen
    path = folder / "teacher" / "dense.safetensors"
    texts = list(data.columns.values())
    teacher = FrozenVectors(str(source.teacher), source.teacher_prompt, texts[:1], folder / "teacher", device, show, dry=dry)
    dense = Dense(encoder.dimensions, teacher.dimensions, activation=_IDENTITY)
    net: Any = encoder.net
    said = f"fit_dense: a linear layer of {encoder.dimensions} to {teacher.dimensions} dimensions"
    if path.is_file():
        found = load_file(path)
        if found["weight"].shape != dense.linear.weight.shape:
            raise TrainingError(f"{path}: holds a layer of {tuple(found['weight'].shape)}, wanted {tuple(dense.linear.weight.shape)}; remove it")
        _put(dense, found["weight"], found["bias"])
    elif not dry:
        rows = np.random.default_rng(seed).permutation(len(data))[:ROWS].tolist()
        own = _vectors(encoder, source, data, rows, show)
        aim = np.concatenate([teacher.rows(0, rows).numpy()] * len(texts))
        weight, bias = least_squares(own, aim)
        _put(dense, weight, bias)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as stream:
            stream.write(save({"weight": weight, "bias": bias}))
        near = float(cosine(torch.from_numpy(own) @ weight.T + bias, torch.from_numpy(aim)).mean())
        said += f", fitted on {len(own):,} texts; cosine with the teacher's vectors {near:.3f}"
    net.heads.append(dense.to(net.device))
    net.normalize = teacher.normalizes
    encoder.__dict__.pop("fingerprint", None)
    return said


def _put(dense: Dense, weight: torch.Tensor, bias: torch.Tensor) -> None:
    with torch.no_grad():
        dense.linear.weight.copy_(weight)
        dense.linear.bias.copy_(bias)


def _vectors(encoder: Encoder, source: Source, data: Dataset, rows: Sequence[int], show: bool) -> Vectors:
    """The student's vectors of every column, one after the other, before they are normalised."""
    net: Any = encoder.net
    normalize, net.normalize = net.normalize, False
    try:
        made = [encoder.encode([texts[row] for row in rows], prompt=prompt_name(name, source), progress=show) for name, texts in data.columns.items()]
    finally:
        net.normalize = normalize
    return np.concatenate(made)
