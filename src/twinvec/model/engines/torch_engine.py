"""The torch engine: a `Net`, in any of its precisions, on a CPU or a GPU."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

from twinvec.errors import UsageError, choose
from twinvec.model.adapters import merged
from twinvec.model.backbone import PRECISIONS
from twinvec.model.engines import Advance, Engine, Rows
from twinvec.model.fingerprint import parts_of
from twinvec.model.net import Net
from twinvec.model.resolve import first_line
from twinvec.model.threads import respect_quota
from twinvec.model.tokens import Tokens
from twinvec.records import Vectors


class TorchEngine(Engine):
    """Runs `net`, which stays an ordinary torch module: training changes it in place."""

    name = "torch"

    def __init__(self, net: Net, precision: str = "float32") -> None:
        self._net, self.precision = net, precision
        self.budget: int | None = None  # tokens of a pass where the caller does not say
        respect_quota()

    @property
    def net(self) -> Net:
        return self._net

    @property
    def threads(self) -> int:  # type: ignore[override]
        return torch.get_num_threads()

    def set_threads(self, threads: int) -> None:
        """torch has one thread count a process."""
        torch.set_num_threads(threads)

    @property
    def dimensions(self) -> int:
        return self._net.dimensions

    @property
    def normalizes(self) -> bool:
        return self._net.normalize

    @property
    def pooling(self) -> tuple[str, ...]:
        return self._net.pooling

    def parts(self, tokens: Tokens, prompts: dict[str, str], default_prompt: str | None) -> dict[str, Any]:
        with merged(self._net):  # adapters count for what they make of the weights
            return parts_of(self._net, tokens, prompts, default_prompt)

    def forward(self, rows: Rows, prompt_tokens: int, budget: int | None, advance: Advance) -> Vectors:
        lengths = [len(row) for row in rows]
        out = np.zeros((len(lengths), self.dimensions), dtype=np.float32)
        was_training = self._net.training
        self._net.eval()
        try:
            with torch.inference_mode():
                for chunk in self._net.chunked(lengths, budget or self.budget):
                    found = self._net([rows[i] for i in chunk], prompt_tokens)
                    out[chunk] = found.float().cpu().numpy()
                    advance(chunk)
        finally:
            self._net.train(was_training)
        return out


def _after_fork() -> None:
    """A forked process does not have the threads that OpenMP keeps, and would wait for them for ever; alone it needs none."""
    if torch.get_num_threads() > 1:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def pick_device(device: str | None) -> torch.device:
    """None takes a CUDA device when there is one, else the CPU."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.zeros(1, device=found)
    except (RuntimeError, AssertionError) as err:
        raise UsageError(f"device = {device!r}: torch cannot use it ({first_line(err)}); choose cpu or cuda") from err
    return found


def check_precision(precision: str, device: torch.device) -> None:
    choose("precision", precision, (*PRECISIONS, "int8"))
    if precision == "int8" and device.type != "cpu":
        raise UsageError("precision = 'int8': torch computes with bytes on a CPU only; use bf16 or float16 on a GPU, or --device cpu")
    if precision == "float16" and device.type == "cpu":
        raise UsageError("precision = 'float16': on a CPU half precision is about ten times slower than float32; use float32 or bf16")
