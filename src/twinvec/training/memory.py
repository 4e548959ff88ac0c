"""How much memory a training step takes, and how much there is: measured, not guessed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

SHARE = 0.6  # of what is free, for the graph of a batch; the rest is for gradients in flight, buffers and other programs
CGROUP = Path("/sys/fs/cgroup")


def saved_bytes(forward: Callable[[], Tensor], parameters: set[int]) -> int:
    """Bytes that the graph of `forward` keeps for its backward pass, weights not counted (`parameters`: their data pointers)."""
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        found = forward()
    total = sum(seen.values())
    del found
    return total


def standing_bytes(modules: list[nn.Module]) -> int:
    """Weights, gradients and the two moments of AdamW."""
    parameters = [p for module in modules for p in module.parameters()]
    return sum(p.numel() * p.element_size() * (4 if p.requires_grad else 1) for p in parameters)


def free_bytes(device: torch.device) -> int:
    """Memory that a process may still take: of the GPU, or of the machine within the limit of its control group."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = int(os.sysconf("SC_AVPHYS_PAGES")) * int(os.sysconf("SC_PAGE_SIZE"))
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    except OSError:
        pass
    limit = _number(CGROUP / "memory.max")
    used = _number(CGROUP / "memory.current")
    return min(free, max(0, limit - used)) if limit is not None and used is not None else free


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def bytes_per_token(stepper: Any, task: Any, batch: Any) -> float:
    """Graph memory of one token, measured on the first micro-batch of a batch."""
    micro = stepper.micros(batch)[0]
    weights = {p.untyped_storage().data_ptr() for p in stepper.net.parameters()}
    taken = saved_bytes(lambda: stepper.vectors(batch, micro, 0, task.normalize), weights)
    return taken / max(1, sum(len(batch.tokens[i]) for i in micro))


def megabytes(count: float) -> str:
    return f"{count / 1e6:,.0f} MB" if count < 1e10 else f"{count / 1e9:,.1f} GB"
