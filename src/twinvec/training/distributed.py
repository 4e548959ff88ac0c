"""Several processes of one training run: who am I, and sums over all of them. Without torchrun every call is a no-op."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from twinvec.errors import TrainingError, UsageError

BUCKET: Final = 1 << 24  # elements summed in one message: 64 MB of float32
MEETING: Final = timedelta(minutes=10)
"""How long processes wait for each other to appear at the start."""
WORKING: Final = timedelta(days=30)
"""How long one waits for another's work: rank 0 may evaluate, or encode with a teacher, for hours. A process that has died is noticed at once."""
_MEETINGS: Final = itertools.count()
VARIABLES: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


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
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in bucket])
            with self._together():
                dist.all_reduce(flat)
            at = 0
            for tensor in bucket:
                tensor.copy_(flat[at : at + tensor.numel()].view_as(tensor))
                at += tensor.numel()

    @torch.no_grad()
    def same(self, tensors: Iterable[Tensor]) -> None:
        """Give each tensor the values it has on rank 0, in place."""
        if self.size == 1:
            return
        found = list(tensors)
        if not self.first:
            for tensor in found:
                tensor.zero_()
        self.sum_(found)

    def gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sum gradients over all processes. One that has a gradient anywhere takes part everywhere; one that has none stays without.

        Zeros instead of none would not be the same: AdamW lets the weights of a parameter with a gradient decay.
        """
        if self.size == 1:
            return
        listed = list(parameters)
        if not listed:
            return
        present = torch.tensor([float(parameter.grad is not None) for parameter in listed], device=listed[0].device)
        self.sum_([present])
        found = []
        for parameter, there in zip(listed, present.tolist(), strict=True):
            if there:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                found.append(parameter.grad)
        self.sum_(found)

    def from_first(self, value: Any) -> Any:
        """What rank 0 has, on every rank. JSON values only: torch's own broadcast of objects would pickle them."""
        if self.size == 1:
            return value
        place = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
        payload = bytearray(json.dumps(value).encode()) if self.first else bytearray()
        length = torch.tensor([len(payload)], device=place)
        with self._together():
            dist.broadcast(length, src=0)
            text = torch.frombuffer(payload, dtype=torch.uint8).to(place) if self.first else torch.empty(int(length), dtype=torch.uint8, device=place)
            dist.broadcast(text, src=0)
        return json.loads(bytes(text.tolist()))

    def barrier(self) -> None:
        if self.size > 1:
            with self._together():
                dist.barrier()

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Something that all processes do: when one of them is gone, the others end with one line and leave the explaining to it."""
        try:
            yield
        except RuntimeError as err:  # torch's DistBackendError is one
            raise TrainingError(f"process {self.rank}: another process of this run has ended; its own message says why") from err


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
    """Did torchrun start this process beside others? UsageError when the environment says so by halves."""
    size, rank = _number("WORLD_SIZE", "1"), _number("RANK", "0")
    if size <= 1:
        return False
    missing = [name for name in VARIABLES if not os.environ.get(name)]
    if missing and "RANK" in missing:  # a batch system that sets WORLD_SIZE for its own ends
        return False
    if missing:
        raise UsageError(f"WORLD_SIZE = {size} and RANK = {rank} are set, but {' and '.join(missing)} is not; {HOW}")
    if not 0 <= rank < size:
        raise UsageError(f"RANK = {rank}, WORLD_SIZE = {size}: wanted a rank from 0 to {size - 1}; {HOW}")
    return True


HOW: Final = "several processes are started with: python -m torch.distributed.run --standalone --nproc-per-node N -m twinvec train ..."


def own_rank() -> int:
    """The rank of this process; 0 when it is alone."""
    return _number("RANK", "0") if under_torchrun() else 0


def _number(name: str, default: str) -> int:
    text = os.environ.get(name) or default
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"the environment variable {name} is {text!r}, wanted a whole number; {HOW}") from None


@contextmanager
def world(device: str | None = None) -> Iterator[World]:
    """The processes that torchrun started, joined; World() when there is only this one. `device`: as in a recipe."""
    if not under_torchrun():
        yield World()
        return
    if dist.is_initialized():  # a program that has joined them already
        yield World(dist.get_rank(), dist.get_world_size())
        return
    backend = "nccl" if torch.cuda.is_available() and device != "cpu" else "gloo"
    if backend == "nccl":
        _choose_gpu(device)
    try:
        store, rank, size = next(rendezvous("env://", timeout=MEETING))
        store.set_timeout(MEETING)
        # A second run of the same processes must not find the addresses of the first.
        dist.init_process_group(backend, store=PrefixStore(f"twinvec {next(_MEETINGS)}", store), rank=rank, world_size=size, timeout=WORKING)
    except (RuntimeError, ValueError) as err:
        raise TrainingError(f"the processes of this run cannot find each other ({' '.join(str(err).split())[:200]}); {HOW}") from err
    try:
        yield World(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


def _choose_gpu(device: str | None) -> None:
    """Each process takes the GPU of its number on this machine."""
    local, count = _number("LOCAL_RANK", "0"), torch.cuda.device_count()
    if device not in (None, "cuda"):
        raise UsageError(f"device = {device!r}: each of several processes takes a GPU of its own; leave device out, or set it to 'cpu'")
    if local >= count:
        raise UsageError(
            f"process {local} of this machine has no GPU of its own: there are {count}; start fewer with --nproc-per-node, or device = 'cpu'"
        )
    torch.cuda.set_device(local)
