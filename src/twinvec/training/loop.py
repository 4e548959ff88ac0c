"""The training loop: readable in one sitting, resumable at any moment, repeatable to the bit on one machine."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from twinvec.data.dataset import Dataset
from twinvec.errors import TrainingError
from twinvec.files import write_text
from twinvec.model.encoder import Encoder
from twinvec.progress import Progress
from twinvec.training.checkpoint import list_checkpoints, load_checkpoint, optimizer_tensors, restore_optimizer, save_checkpoint
from twinvec.training.distributed import World
from twinvec.training.keep import save_best
from twinvec.training.memory import SHARE, bytes_per_token, free_bytes
from twinvec.training.mixing import make_order, order_of
from twinvec.training.optimizer import make_optimizer
from twinvec.training.prefetch import Prefetcher
from twinvec.training.recipe import Recipe
from twinvec.training.schedule import lr_factor
from twinvec.training.state import State, identity
from twinvec.training.step import Batch, Stepper
from twinvec.training.tasks import Task

Evaluate = Callable[[Encoder], dict[str, float | None]]
"""Measures an encoder on the dev data; a value that is undefined (constant scores, say) is None and never the best."""

Group = tuple[int, int, bool, list[tuple[int, list[int]]]]
"""Epoch, first batch in it, whether it ends the epoch, and the batches of one optimiser step: (task, rows) each."""


class Run:
    """One stage of training in one folder. `go()` trains to the end and returns the final state."""

    def __init__(
        self, recipe: Recipe, encoder: Encoder, tasks: Sequence[Task], folder: Path, evaluate: Evaluate | None, metric: str, *,
        world: World | None = None, show: bool = True,
    ) -> None:  # fmt: skip
        self.recipe, self.encoder, self.tasks, self.folder, self.evaluate, self.metric = recipe, encoder, list(tasks), folder, evaluate, metric
        self.world = world or World()
        self.show = show and self.world.first
        self.net = encoder.net
        self.heads = nn.ModuleDict({str(i): task.heads for i, task in enumerate(self.tasks) if task.heads is not None}).to(self.net.device)
        self.order = make_order(recipe, self.tasks)
        self.batches_per_epoch = len(self.order)
        self.steps_per_epoch = math.ceil(self.batches_per_epoch / recipe.accumulation)
        self.total_steps = max(1, round(recipe.epochs * self.steps_per_epoch))
        if recipe.max_steps:
            self.total_steps = min(self.total_steps, recipe.max_steps)
        self.optimizer = make_optimizer(self.net, self.heads, recipe)
        self.state = State()
        self.stepper = Stepper(
            self.net,
            self.world,
            seed=recipe.seed,
            bf16=recipe.precision == "bf16",
            micro_tokens=recipe.micro_tokens,
            cache=recipe.gradient_cache == "on",
        )
        self.notes: list[str] = []
        self._held: tuple[Dataset, Task, list[list[int]]] | None = None
        self.started = time.monotonic()
        self.listeners: list[Callable[[dict[str, Any]], None]] = []

    # ---- the loop

    def go(self) -> State:
        resumed = self._resume() if self.recipe.resume else False
        state = self.state
        if self.recipe.gradient_cache == "auto":
            self.stepper.cache = self._too_big()
        if not resumed and self.world.first:  # lines of a run that was killed before its first checkpoint
            (self.folder / "log.jsonl").unlink(missing_ok=True)
        self.world.same([*self.net.state_dict().values(), *self.heads.state_dict().values()])
        if not resumed and self.evaluate is not None:
            state.baseline_metric = self._measure("baseline")
        with Progress(self.total_steps, "train", show=self.show, unit="steps") as bar:
            bar.advance(state.step)
            ahead = Prefetcher(self._groups(state.epoch, state.batch), self._prepare)
            try:
                while state.step < self.total_steps and not state.stopped:
                    self._one_step(*next(ahead), bar)
            finally:
                ahead.close()
        self._finish()
        return state

    def _groups(self, epoch: int, first: int) -> Iterator[Group]:
        """The batches of each optimiser step from a place in an epoch on, without end; no group reaches over an epoch's end."""
        while True:
            batches = self.order.batches(epoch)
            for at in range(first, len(batches), self.recipe.accumulation):
                chosen = batches[at : at + self.recipe.accumulation]
                yield epoch, at, at + len(chosen) >= len(batches), chosen
            epoch, first = epoch + 1, 0

    def _prepare(self, group: Group) -> tuple[Group, list[Batch]]:
        epoch, at, _, chosen = group
        made = []
        for number, (task, rows) in enumerate(chosen):
            batch = self.tasks[task].prepare(rows, np.random.default_rng([self.recipe.seed, epoch, at + number]))
            batch.task = task
            made.append(batch)
        return group, made

    def _one_step(self, group: Group, batches: list[Batch], bar: Progress) -> None:
        state, recipe = self.state, self.recipe
        loss, norm = self._step(batches)
        epoch, at, last, _ = group
        state.epoch, state.batch = (epoch + 1, 0) if last else (epoch, at + len(batches))
        state.step += 1
        state.loss_sum += loss
        state.loss_count += 1
        bar.advance(1, loss=loss, **({"best": state.best_metric} if state.best_metric is not None else {}))
        if state.step % recipe.log_steps == 0 or state.step == self.total_steps:
            self._log_loss(norm)
        due = self._due()
        if due and self.evaluate is not None:
            self._judge(bar)
        if due or (recipe.checkpoint_steps and state.step % recipe.checkpoint_steps == 0):
            self._checkpoint()

    def _step(self, batches: Sequence[Batch]) -> tuple[float, float]:
        """One optimiser step over a group of batches: mean loss and the gradient's norm before clipping."""
        recipe = self.recipe
        self.net.train()
        self.heads.train()
        factor = lr_factor(self.state.step, self.total_steps, recipe.warmup, recipe.schedule)
        for settings in self.optimizer.param_groups:
            settings["lr"] = settings["peak_lr"] * factor
        self.optimizer.zero_grad(set_to_none=True)
        share = 1 / len(batches)
        total = 0.0
        try:
            for part, batch in enumerate(batches):
                total += share * self.stepper.add_gradient(self.tasks[batch.task], batch, self.state.step, part, share)
        except RuntimeError as err:
            if not isinstance(err, torch.OutOfMemoryError) and "can't allocate memory" not in str(err):  # the latter is a CPU's
                raise
            raise TrainingError(
                f"step {self.state.step + 1}: out of memory ({str(err).splitlines()[0][:120]}); what helps, cheapest first: gradient_cache = 'on', "
                "a smaller micro_tokens, gradient_checkpointing = true, a smaller max_tokens, precision = 'bf16', a smaller batch_size. "
                "dry_run = true says what fits"
            ) from err
        parameters = [p for settings in self.optimizer.param_groups for p in settings["params"]]
        self.world.gradients(parameters)
        norm = torch.nn.utils.clip_grad_norm_(parameters, recipe.clip or math.inf).item()
        if not math.isfinite(norm):
            raise TrainingError(f"step {self.state.step + 1}: the gradient is not finite; try a smaller lr, or precision = 'float32'")
        self.optimizer.step()
        return total, norm

    def mean_loss(self, data: Dataset) -> float:
        """The loss of the first task over other data of the same kind, without dropout: the metric "loss".

        Batches are drawn as in training, always the same: in the file's order a batch might hold one class only.
        """
        if self._held is None or self._held[0] is not data:
            made = self.tasks[0].on(data)
            self._held = (data, made, order_of(self.recipe, made).batches(0))
        _, task, batches = self._held
        self.net.eval()
        self.heads.eval()
        total, count = 0.0, 0
        for number, rows in enumerate(batches):
            batch = task.prepare(rows, np.random.default_rng([self.recipe.seed, 0xDE7, number]))
            total += self.stepper.value(task, batch) * len(rows)
            count += len(rows)
        return total / max(1, count)

    def _too_big(self) -> bool:
        """Would the graph of a batch take more memory than there is? Then vectors are computed twice instead."""
        self.net.train()
        needed = 0.0
        batches = self.order.batches(0)
        for number, task in enumerate(self.tasks):
            if task.of_tokens:
                continue
            rows = next((rows for source, rows in batches if source == number), None)
            batch = task.prepare(rows) if rows else None  # type: ignore[call-arg]
            if batch is None or len(self.stepper.micros(batch)) <= self.world.size:
                continue  # one micro-batch a process: nothing to gain
            needed = max(needed, bytes_per_token(self.stepper, task, batch) * sum(map(len, batch.tokens)))
        big = bool(self.world.from_first(needed > SHARE * free_bytes(self.net.device)))
        if big:
            said = f"a batch would keep {needed / 1e9:.1f} GB for its backward pass: gradient caching is used (vectors are computed twice)"
            self.notes.append(said)
        return big

    # ---- measuring

    def _due(self) -> bool:
        """Is this step one after which dev is evaluated? Evenly spread over an epoch, its last step included."""
        state, recipe = self.state, self.recipe
        if state.step == self.total_steps:
            return True
        if recipe.evaluate_steps:
            return state.step % recipe.evaluate_steps == 0
        parts = min(recipe.evaluations_per_epoch, self.steps_per_epoch)
        inside = (state.step - 1) % self.steps_per_epoch + 1
        return any(inside == math.ceil(part * self.steps_per_epoch / parts) for part in range(1, parts + 1))

    def _measure(self, event: str) -> float | None:
        """Evaluate once, on rank 0, for all."""
        assert self.evaluate is not None
        values: dict[str, float | None] = {}
        if self.world.first:
            found = self.evaluate(self.encoder)
            values = {name: value if value is not None and math.isfinite(value) else None for name, value in found.items()}
        values = self.world.from_first(values)
        value = values.get(self.metric)
        self._log({"event": event, "step": self.state.step, "epoch": self._epochs_done(), "metric": self.metric, "value": value, "values": values})
        return value

    def _judge(self, bar: Progress) -> None:
        """Evaluate, save the encoder when it is the best so far, stop when patience has run out."""
        state = self.state
        value = self._measure("evaluation")
        sign = -1.0 if self.metric == "loss" else 1.0
        if value is not None and (state.best_metric is None or sign * value > sign * state.best_metric):
            state.best_metric, state.best_step, state.without_gain = value, state.step, 0
            self._save_best()
        else:
            state.without_gain += 1
        shown = "undefined" if value is None else f"{value:.4f}"
        best = "none yet" if state.best_metric is None else f"best {state.best_metric:.4f} at step {state.best_step}"
        bar.message(f"step {state.step}: {self.metric} {shown} ({best})")
        if self.recipe.patience and state.without_gain >= self.recipe.patience:
            state.stopped = f"{self.metric} has not {'fallen' if self.metric == 'loss' else 'risen'} for {state.without_gain} evaluations"

    def _save_best(self) -> None:
        if self.world.first:
            save_best(self.encoder, self.folder, self.recipe)
        self.world.barrier()

    def _finish(self) -> None:
        if self.evaluate is None or self.state.best_metric is None:
            # Nothing was measured (or nothing could be): the last weights are what the user asked for.
            self._save_best()
            self.state.best_step = self.state.step

    # ---- what is kept

    def _epochs_done(self) -> float:
        return round(self.state.step / self.steps_per_epoch, 4)

    def _log(self, entry: dict[str, Any]) -> None:
        self.state.log_lines += 1
        if not self.world.first:
            return
        for listener in self.listeners:
            listener(entry)
        with open(self.folder / "log.jsonl", "a", encoding="utf-8") as stream:
            stream.write(json.dumps({**entry, "seconds": round(time.monotonic() - self.started, 3)}, ensure_ascii=False, allow_nan=False) + "\n")

    def _log_loss(self, norm: float) -> None:
        state = self.state
        lr = self.optimizer.param_groups[0]["lr"]
        mean = state.loss_sum / max(1, state.loss_count)
        self._log({"event": "loss", "step": state.step, "epoch": self._epochs_done(), "loss": mean, "lr": lr, "gradient_norm": norm})
        state.loss_sum, state.loss_count = 0.0, 0

    def _trained(self) -> dict[str, Tensor]:
        """What a checkpoint holds of net and heads: parameters that are trained, and buffers; frozen ones come with the base model."""
        out: dict[str, Tensor] = {}
        for part, module in (("net", self.net), ("heads", self.heads)):
            frozen = {name for name, parameter in module.named_parameters(remove_duplicate=False) if not parameter.requires_grad}
            out |= {f"{part}.{name}": tensor for name, tensor in module.state_dict().items() if name not in frozen}
        return out

    def _checkpoint(self) -> None:
        if self.world.first:
            tensors = {**self._trained(), **optimizer_tensors(self.optimizer)}
            # Tied weights share memory, which safetensors refuses: each goes in as its own copy.
            copies = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
            state = {**vars(self.state), "recipe": identity(self.recipe)}
            save_checkpoint(self.folder, self.state.step, copies, state, self.recipe.keep_checkpoints)
        self.world.barrier()

    def _resume(self) -> bool:
        found = list_checkpoints(self.folder)
        if not found:
            return False
        tensors, state = load_checkpoint(found[-1])
        now = identity(self.recipe)
        if state["recipe"] != now:
            changed = sorted(key for key in {**now, **state["recipe"]} if state["recipe"].get(key) != now.get(key))
            raise TrainingError(
                f"{found[-1]} was written by another recipe (different: {', '.join(changed)}); "
                "resume with the same settings, or choose another output"
            )
        wanted = self._trained().keys()
        if missing := sorted(wanted - tensors.keys()):
            raise TrainingError(
                f"{found[-1]}: {len(missing)} tensors are not in it (first: {missing[0]}); remove this folder to resume from an older checkpoint"
            )
        for part, module in (("net", self.net), ("heads", self.heads)):
            own = {name.removeprefix(f"{part}."): tensor for name, tensor in tensors.items() if name.startswith(f"{part}.")}
            module.load_state_dict(own, strict=False)
        restore_optimizer(self.optimizer, tensors)
        self.state = State(**{name: state[name] for name in vars(State())})
        if self.world.first:
            # Lines that a killed run wrote after its last checkpoint will be written again.
            lines = (self.folder / "log.jsonl").read_text(encoding="utf-8").splitlines() if (self.folder / "log.jsonl").is_file() else []
            write_text(self.folder / "log.jsonl", "".join(f"{line}\n" for line in lines[: self.state.log_lines]))
        self.world.barrier()
        return True
