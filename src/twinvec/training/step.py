"""One optimiser step's gradient: micro-batches, gradient caching, several processes.

Gradient caching (Gao, Zhang, Han and Callan 2021, section 3): vectors are computed without a graph, the loss gives the gradient at the
vectors, and the vectors are computed a second time, micro-batch by micro-batch, to send that gradient on. Memory is that of one micro-batch,
whatever the batch. Each micro-batch has a seed of its own, so that the second pass drops what the first dropped, and so that it does not
matter which process does it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from twinvec.errors import TrainingError
from twinvec.model.batch import chunks
from twinvec.model.net import Net
from twinvec.objectives.parts import Part
from twinvec.training.distributed import World

MICRO_TOKENS = 2048
"""Tokens of a micro-batch, as in encoding: more is no faster on a CPU, and takes memory."""


@dataclass
class Batch:
    """What one batch of a task needs, made ahead in the background.

    rows: row numbers of the data. tokens: distinct token rows to be encoded. skips: for each, its first tokens that pooling leaves out.
    index: (columns * B,) which of `tokens` stands for column c of row b, at c * B + b. prepared: what a token task has made instead.
    """

    rows: list[int]
    tokens: list[list[int]] = field(default_factory=list)
    skips: list[int] = field(default_factory=list)
    index: Tensor | None = None
    prepared: Any = None
    task: int = 0


def seed_of(seed: int, step: int, part: int, micro: int) -> int:
    """A seed for the dropout of one micro-batch, the same on every process and after a resume."""
    digest = hashlib.blake2b(f"{seed}/{step}/{part}/{micro}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


class Stepper:
    """Adds the gradient of a batch to the parameters; `cache` says whether vectors are computed twice."""

    def __init__(self, net: Net, world: World, *, seed: int, bf16: bool, micro_tokens: int | None, cache: bool) -> None:
        self.net, self.world, self.seed, self.bf16, self.cache = net, world, seed, bf16, cache
        self.micro_tokens = micro_tokens or MICRO_TOKENS

    def _budget(self, batch: Batch) -> int:
        """Tokens of a micro-batch; with several processes less where it takes that for each to have work."""
        if self.world.size == 1:
            return self.micro_tokens
        tokens = sum(map(len, batch.tokens))
        return max(1, min(self.micro_tokens, math.ceil(tokens / self.world.size)))

    # ---- vector tasks

    def micros(self, batch: Batch) -> list[list[int]]:
        """Numbers of token rows that travel together: within the token budget, of one prompt length, and at least one a process."""
        lengths = [len(row) for row in batch.tokens]
        budget = self._budget(batch)
        made: list[list[int]] = []
        for skip in sorted(set(batch.skips)):
            members = [i for i, other in enumerate(batch.skips) if other == skip]
            made += [[members[i] for i in chunk] for chunk in chunks([lengths[i] for i in members], budget, pad=self.net.packed is None)]
        return made

    def vectors(self, batch: Batch, micro: Sequence[int], seed: int | None, normalize: bool) -> Tensor:
        """(len(micro), D) float32."""
        if seed is not None:
            torch.manual_seed(seed)
        found: Tensor
        with torch.autocast(self.net.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            found = self.net([batch.tokens[i] for i in micro], batch.skips[micro[0]], normalize=normalize)
        return found.float()

    def vector_step(self, task: Any, batch: Batch, step: int, part: int, scale: float) -> float:
        """Backward of one batch of a vector task, its gradient times `scale`; returns the loss."""
        micros = self.micros(batch)
        mine = range(self.world.rank, len(micros), self.world.size)
        seeds = {number: seed_of(self.seed, step, part, number) for number in mine}
        whole = torch.zeros(len(batch.tokens), self.net.dimensions, device=self.net.device)
        graphs: list[Tensor] = []
        for number in mine:
            with torch.set_grad_enabled(not self.cache):
                found = self.vectors(batch, micros[number], seeds[number], task.normalize)
            whole[micros[number]] = found.detach()
            if not self.cache:
                graphs.append(found)
        self.world.sum_([whole])
        loss, gradient = self._loss(task, batch, whole, scale)
        self.world.sum_([gradient])
        if not self.cache:
            torch.autograd.backward(graphs, [gradient[micros[number]] for number in mine])
            return loss
        for number in mine:
            found = self.vectors(batch, micros[number], seeds[number], task.normalize)
            torch.autograd.backward(found, gradient[micros[number]])
        return loss

    def _loss(self, task: Any, batch: Batch, vectors: Tensor, scale: float) -> tuple[float, Tensor]:
        """Run the parts of the loss that are this process's, each with its own backward, so that no two exist at once.

        Returns the loss of all processes, and this one's gradient at `vectors`. The columns are leaves: were they picked from the vectors within
        the graph, the first backward would free what the next part needs.
        """
        total = torch.zeros((), dtype=torch.float64, device=vectors.device)
        columns = [column.detach().requires_grad_() for column in columns_of(vectors, batch)]
        parts: list[Part] = task.parts(columns, batch.rows)
        for part in parts[self.world.rank :: self.world.size]:
            value = part()
            total += value.detach().double()
            (value * scale).backward()  # type: ignore[no-untyped-call]
        self.world.sum_([total])
        gradient = torch.cat([torch.zeros_like(column) if column.grad is None else column.grad for column in columns])
        if batch.index is not None:
            gradient = torch.zeros_like(vectors).index_add_(0, batch.index.to(vectors.device), gradient)
        return float(total), gradient

    # ---- token tasks

    def token_step(self, task: Any, batch: Batch, step: int, part: int, scale: float) -> float:
        """As vector_step, for a task whose loss is a sum over micro-batches anyway."""
        total = torch.zeros((), dtype=torch.float64, device=self.net.device)
        for number, micro in enumerate(task.micros(batch.prepared, self._budget(batch))):
            if number % self.world.size != self.world.rank:
                continue
            torch.manual_seed(seed_of(self.seed, step, part, number))
            with torch.autocast(self.net.device.type, dtype=torch.bfloat16, enabled=self.bf16):
                value = task.micro_loss(self.net, micro)
            total += value.detach().double()
            (value * scale).backward()
        self.world.sum_([total])
        return float(total)

    def add_gradient(self, task: Any, batch: Batch, step: int, part: int, scale: float) -> float:
        run = self.token_step if task.of_tokens else self.vector_step
        loss = run(task, batch, step, part, scale)
        if not math.isfinite(loss):
            shown = ", ".join(str(row + 1) for row in batch.rows[:5])
            raise TrainingError(
                f"step {step + 1}: the loss is {loss} (rows {shown}, ... of {task.data.path}); try a smaller lr, or precision = 'float32'"
            )
        return loss

    @torch.no_grad()
    def value(self, task: Any, batch: Batch) -> float:
        """The loss of a batch as it is, without gradient; dropout is as the net's mode says."""
        if task.of_tokens:
            return sum(float(task.micro_loss(self.net, micro)) for micro in task.micros(batch.prepared, self.micro_tokens))
        whole = torch.zeros(len(batch.tokens), self.net.dimensions, device=self.net.device)
        for micro in self.micros(batch):
            whole[micro] = self.vectors(batch, micro, None, task.normalize)
        return sum(float(part()) for part in task.parts(columns_of(whole, batch), batch.rows))


def columns_of(vectors: Tensor, batch: Batch) -> list[Tensor]:
    """One (B, D) tensor a column, from the vectors of the distinct token rows."""
    spread = vectors if batch.index is None else vectors[batch.index]
    return list(spread.split(len(batch.rows)))  # type: ignore[no-untyped-call]
