"""Several processes of one training run: who am I, and sums over all of them. Without torchrun every call is a no-op."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from twinvec.errors import TrainingError

BUCKET = 1 << 24  # elements summed in one message: 64 MB of float32


@dataclass(frozen=True)
class World:
    """rank of size processes. Rank 0 evaluates and writes."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over all processes, in place. Every process must bring the same shapes in the same order."""
        if self.size == 1:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            dist.all_reduce(flat)
            at = 0
            for tensor in bucket:
                tensor.copy_(flat[at : at + tensor.numel()].view_as(tensor))
                at += tensor.numel()

    def gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sum gradients over all processes. A parameter that got none here may have got one elsewhere, so it takes part with zeros."""
        if self.size == 1:
            return
        found = []
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            found.append(parameter.grad)
        self.sum_(found)

    def from_first(self, value: Any) -> Any:
        """What rank 0 has, on every rank (JSON-like values)."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and (tensor.dtype != bucket[0].dtype or sum(t.numel() for t in bucket) + tensor.numel() > BUCKET):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def under_torchrun() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


@contextmanager
def world() -> Iterator[World]:
    """The processes that torchrun started, joined; World() when there is only this one."""
    if not under_torchrun():
        yield World()
        return
    if dist.is_initialized():  # a stage within a run
        yield World(dist.get_rank(), dist.get_world_size())
        return
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        dist.init_process_group(backend)
    except (RuntimeError, ValueError) as err:
        raise TrainingError(
            f"the processes of this run cannot find each other ({err}); start it with torchrun --nproc-per-node N -m twinvec train ..."
        ) from err
    try:
        yield World(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
