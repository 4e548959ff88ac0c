"""The training loop: readable in one sitting, resumable at any moment, repeatable to the bit on one machine."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from twinvec.data.dataset import Dataset
from twinvec.data.sampling import LengthBucketedOrder
from twinvec.errors import TrainingError
from twinvec.files import write_text
from twinvec.model.encoder import Encoder
from twinvec.progress import Progress
from twinvec.training.checkpoint import (
    list_checkpoints,
    load_checkpoint,
    optimizer_tensors,
    restore_optimizer,
    restore_rng,
    rng_tensors,
    save_checkpoint,
)
from twinvec.training.objective import TrainingObjective
from twinvec.training.recipe import Recipe
from twinvec.training.schedule import lr_factor

Evaluate = Callable[[Encoder], dict[str, float | None]]
"""Measures an encoder on the dev data; a value that is undefined (constant scores, say) is None and never the best."""


@dataclass
class State:
    """What changes during a run, besides weights and optimiser; all of it goes into each checkpoint."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # micro-batches of this epoch already used
    best_step: int = 0
    best_metric: float | None = None
    baseline_metric: float | None = None
    without_gain: int = 0
    loss_sum: float = 0.0
    loss_count: int = 0
    stopped: str = ""
    log_lines: int = 0


class Run:
    """One training run in one folder. `go()` trains to the end and returns the final state."""

    def __init__(
        self, recipe: Recipe, encoder: Encoder, data: Dataset, folder: Path, evaluate: Evaluate | None, metric: str, *, show: bool = True
    ) -> None:
        self.recipe, self.encoder, self.data, self.folder, self.evaluate, self.metric, self.show = (
            recipe,
            encoder,
            data,
            folder,
            evaluate,
            metric,
            show,
        )
        torch.manual_seed(recipe.seed)
        self.net = encoder.net
        if recipe.dropout is not None:
            self.net.set_dropout(recipe.dropout)
        self.objective = TrainingObjective(recipe, data, encoder.dimensions)
        if self.objective.head is not None:
            self.objective.head.to(self.net.device)
        self.labels = self.objective.labels_of(data)
        lengths = [max(len(column[i]) for column in data.columns.values()) for i in range(len(data))]
        self.order = LengthBucketedOrder(lengths, recipe.batch_size, recipe.seed)
        self.batches_per_epoch = math.ceil(len(data) / recipe.batch_size)
        self.steps_per_epoch = math.ceil(self.batches_per_epoch / recipe.accumulation)
        self.total_steps = max(1, round(recipe.epochs * self.steps_per_epoch))
        if recipe.max_steps:
            self.total_steps = min(self.total_steps, recipe.max_steps)
        self.optimizer = make_optimizer(self.net, self.objective.head, recipe)
        self.state = State()
        self.prompt = encoder.tokens.prompt(encoder.tokens.clean(encoder.prompt_text(recipe.prompt)))
        self.started = time.monotonic()
        self.listeners: list[Callable[[dict[str, Any]], None]] = []

    # ---- the loop

    def go(self) -> State:
        resumed = self._resume() if self.recipe.resume else False
        state = self.state
        if not resumed and self.evaluate is not None:
            state.baseline_metric = self._measure("baseline")
        with Progress(self.total_steps, "train", show=self.show, unit="steps") as bar:
            bar.advance(state.step)
            while state.step < self.total_steps and not state.stopped:
                batches = self.order.batches(state.epoch)
                self._epoch(batches, bar)
                if state.batch >= len(batches):
                    state.epoch, state.batch = state.epoch + 1, 0
        self._finish()
        return state

    def _epoch(self, batches: list[list[int]], bar: Progress) -> None:
        state, recipe = self.state, self.recipe
        while state.batch < len(batches) and state.step < self.total_steps and not state.stopped:
            group = batches[state.batch : state.batch + recipe.accumulation]
            loss, norm = self._step(group)
            state.batch += len(group)
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

    def _step(self, group: list[list[int]]) -> tuple[float, float]:
        """One optimiser step over a group of micro-batches: mean loss and the gradient's norm before clipping."""
        recipe = self.recipe
        self.net.train()
        factor = lr_factor(self.state.step, self.total_steps, recipe.warmup, recipe.schedule)
        for settings in self.optimizer.param_groups:
            settings["lr"] = settings["peak_lr"] * factor
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for rows in group:
            loss = self.batch_loss(rows) / len(group)
            if not torch.isfinite(loss):
                shown = ", ".join(str(row + 1) for row in rows[:5])
                raise TrainingError(
                    f"step {self.state.step + 1}: the loss is {loss.item()} (rows {shown}, ... of {self.data.path}); "
                    "try a smaller lr, or precision = 'float32'"
                )
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        parameters = [p for settings in self.optimizer.param_groups for p in settings["params"]]
        norm = torch.nn.utils.clip_grad_norm_(parameters, recipe.clip or math.inf).item()
        if not math.isfinite(norm):
            raise TrainingError(f"step {self.state.step + 1}: the gradient is not finite; try a smaller lr, or precision = 'float32'")
        self.optimizer.step()
        return total, norm

    def batch_loss(self, rows: list[int], data: Dataset | None = None, labels: Tensor | None = None) -> Tensor:
        """The loss of some rows (of the training data by default). All columns travel in one forward pass, so both sides see the same weights."""
        if data is None:
            data, labels = self.data, self.labels
        texts = [data.columns[name][i] for name in self.objective.columns for i in rows]
        tokens = self.encoder.tokens
        content = tokens.content([self.prompt.text + text for text in texts] if self.prompt.text else texts)
        with torch.autocast(self.net.device.type, dtype=torch.bfloat16, enabled=self.recipe.precision == "bf16"):
            vectors = self.net([tokens.cut(row) for row in content], self.prompt.tokens, normalize=self.recipe.normalize)
        chosen = labels[rows].to(self.net.device) if labels is not None else None
        return self.objective.loss(vectors.float().split(len(rows)), chosen)

    def mean_loss(self, data: Dataset) -> float:
        """The loss over other data of the same kind, without dropout: the metric "loss"."""
        labels = self.objective.labels_of(data)
        self.net.eval()
        total = 0.0
        with torch.no_grad():
            for start in range(0, len(data), self.recipe.batch_size):
                rows = list(range(start, min(start + self.recipe.batch_size, len(data))))
                total += self.batch_loss(rows, data, labels).item() * len(rows)
        return total / max(1, len(data))

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
        assert self.evaluate is not None
        found = self.evaluate(self.encoder)
        values = {name: value if value is not None and math.isfinite(value) else None for name, value in found.items()}
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
            self.encoder.save(self.folder / "best")
        else:
            state.without_gain += 1
        shown = "undefined" if value is None else f"{value:.4f}"
        best = "none yet" if state.best_metric is None else f"best {state.best_metric:.4f} at step {state.best_step}"
        bar.message(f"step {state.step}: {self.metric} {shown} ({best})")
        if self.recipe.patience and state.without_gain >= self.recipe.patience:
            state.stopped = f"{self.metric} has not risen for {state.without_gain} evaluations"

    def _finish(self) -> None:
        if self.evaluate is None or self.state.best_metric is None:
            # Nothing was measured (or nothing could be): the last weights are what the user asked for.
            self.encoder.save(self.folder / "best")
            self.state.best_step = self.state.step

    # ---- what is kept

    def _epochs_done(self) -> float:
        return round(self.state.step / self.steps_per_epoch, 4)

    def _log(self, entry: dict[str, Any]) -> None:
        self.state.log_lines += 1
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
        parts: dict[str, nn.Module] = {"net": self.net}
        if self.objective.head is not None:
            parts["head"] = self.objective.head
        return {f"{part}.{name}": tensor for part, module in parts.items() for name, tensor in module.state_dict().items()}

    def _checkpoint(self) -> None:
        tensors = {**self._trained(), **optimizer_tensors(self.optimizer), **rng_tensors(self.net.device)}
        state = {**vars(self.state), "recipe": identity(self.recipe)}
        # Tied weights share memory, which safetensors refuses: each goes in as its own copy.
        save_checkpoint(
            self.folder,
            self.state.step,
            {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()},
            state,
            self.recipe.keep_checkpoints,
        )

    def _resume(self) -> bool:
        found = list_checkpoints(self.folder)
        if not found:
            return False
        tensors, state = load_checkpoint(found[-1])
        if state["recipe"] != identity(self.recipe):
            changed = sorted(key for key in identity(self.recipe) if state["recipe"].get(key) != identity(self.recipe)[key])
            raise TrainingError(
                f"{found[-1]} was written by another recipe (different: {', '.join(changed)}); "
                "resume with the same settings, or choose another output"
            )
        for part, module in (("net", self.net), ("head", self.objective.head)):
            if module is not None:
                module.load_state_dict({name.removeprefix(f"{part}."): tensor for name, tensor in tensors.items() if name.startswith(f"{part}.")})
        restore_optimizer(self.optimizer, tensors)
        restore_rng(tensors, self.net.device)
        self.state = State(**{name: state[name] for name in vars(State())})
        # Lines that a killed run wrote after its last checkpoint will be written again.
        lines = (self.folder / "log.jsonl").read_text(encoding="utf-8").splitlines() if (self.folder / "log.jsonl").is_file() else []
        write_text(self.folder / "log.jsonl", "".join(f"{line}\n" for line in lines[: self.state.log_lines]))
        return True


NOT_IDENTITY = {"output", "resume", "keep_checkpoints", "checkpoint_steps", "tensorboard", "test", "device"}


def identity(recipe: Recipe) -> dict[str, Any]:
    """The settings that decide what is learned; a resumed run must have the same."""
    return {key: value for key, value in recipe.model_dump(mode="json").items() if key not in NOT_IDENTITY}


def make_optimizer(net: nn.Module, head: nn.Module | None, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019); weight decay on matrices only, never on biases, norms and other vectors."""
    groups = []
    for module, peak in ((net, recipe.lr), (head, recipe.head_lr or recipe.lr)):
        if module is None:
            continue
        trained = [p for p in module.parameters() if p.requires_grad]
        for decay, chosen in ((recipe.weight_decay, [p for p in trained if p.ndim > 1]), (0.0, [p for p in trained if p.ndim <= 1])):
            if chosen:
                groups.append({"params": chosen, "weight_decay": decay, "peak_lr": peak, "lr": peak})
    return torch.optim.AdamW(groups, lr=recipe.lr, fused=True)
