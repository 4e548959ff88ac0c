"""The loop: repeatable, resumable, honest about what is best."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training_files import MAKERS, make_run, triplets

from twinvec.data.dataset import read_data
from twinvec.errors import TrainingError, UsageError
from twinvec.model.encoder import Encoder
from twinvec.training.checkpoint import list_checkpoints, load_checkpoint
from twinvec.training.fit import check_fit
from twinvec.training.source import Source

BareModel = Callable[[str], Path]


def scripted(values: list[float | None]) -> Callable[[Encoder], dict[str, float | None]]:
    """An evaluation that gives these values in turn (the first is the baseline)."""
    left = list(values)
    return lambda encoder: {"m": left.pop(0)}


def losses(folder: Path) -> list[float]:
    return [entry["loss"] for entry in map(json.loads, (folder / "log.jsonl").read_text().splitlines()) if entry["event"] == "loss"]


def log(folder: Path) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in entry.items() if key != "seconds"} for entry in entries]


OBJECTIVES = sorted(MAKERS)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_loss_falls(objective: str, bare_model: BareModel, tmp_path: Path) -> None:
    model = bare_model("bert")
    settings: dict[str, Any] = {"dropout": 0.1 if objective == "simcse" else 0.0}
    if objective == "distillation":
        # A teacher of its own: the same model would be reached before the first step.
        teacher = Encoder.load(model, pooling="mean")
        with torch.no_grad():
            for parameter in teacher.net.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.2)
        settings["teacher"] = str(teacher.save(tmp_path / "teacher"))
    if objective in ("mlm", "retromae"):  # they want a mask token, which the tiny models lack
        model = Path("new")
        settings |= {"new_model": {"layers": 1, "hidden": 32, "heads": 2, "vocabulary": 300, "max_tokens": 32}}
    run = make_run(model, tmp_path / "run", objective, epochs=12, log_steps=6, **settings)
    run.go()
    found = losses(tmp_path / "run")
    assert found[-1] < 0.95 * found[0], found
    saved = Encoder.load(tmp_path / "run" / "best")
    assert np.isfinite(saved.encode(["the cat sat", ""])).all()


@pytest.mark.parametrize("family", ["bert", "modernbert", "deberta-v2"])
def test_first_loss_is_that_of_a_plain_forward(family: str, bare_model: BareModel, tmp_path: Path) -> None:
    run = make_run(bare_model(family), tmp_path, dropout=0.0)
    rows = [0, 5, 9, 17]
    run.net.train()
    data = run.tasks[0].data
    loss = run.stepper.add_gradient(run.tasks[0], run.tasks[0].prepare(rows), 0, 0, 1.0)
    run.net.eval()
    u, v = (run.encoder.encode([data.columns[name][i] for i in rows]).astype(np.float64) for name in ("sentence1", "sentence2"))
    cosine = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    gold = np.asarray(data.labels)[rows]
    assert loss == pytest.approx(np.mean((gold - (cosine * 2.5 + 2.5)) ** 2), rel=1e-4)


def test_accumulation_gives_the_gradient_of_the_whole_batch(bare_model: BareModel, tmp_path: Path) -> None:
    whole = make_run(bare_model("bert"), tmp_path / "a", dropout=0.0, clip=0)
    parts = make_run(bare_model("bert"), tmp_path / "b", dropout=0.0, clip=0)
    for run, groups in ((whole, [range(8)]), (parts, [range(4), range(4, 8)])):
        run.net.train()
        for part, rows in enumerate(groups):
            run.stepper.add_gradient(run.tasks[0], run.tasks[0].prepare(list(rows)), 0, part, 1 / len(groups))
    for one, two in zip(whole.net.parameters(), parts.net.parameters(), strict=True):
        if one.grad is not None:
            torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-6)


def test_weight_decay_spares_biases_and_norms(bare_model: BareModel, tmp_path: Path) -> None:
    run = make_run(bare_model("bert"), tmp_path, "classification", weight_decay=0.1, head_lr=5e-2)
    names = {id(p): name for module in (run.net, run.heads) for name, p in module.named_parameters()}
    for group in run.optimizer.param_groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            spared = name.endswith("bias") or "LayerNorm" in name
            assert (group["weight_decay"] == 0.0) == spared, name
    assert {group["peak_lr"] for group in run.optimizer.param_groups} == {1e-3, 5e-2}
    assert sum(len(group["params"]) for group in run.optimizer.param_groups) == len(names)


def test_same_seed_same_curve_and_another_seed_another(bare_model: BareModel, tmp_path: Path) -> None:
    curves = []
    for i, seed in enumerate((7, 7, 8)):
        make_run(bare_model("bert"), tmp_path / str(i), "classification", seed=seed, epochs=2, log_steps=1).go()
        curves.append(losses(tmp_path / str(i)))
    assert curves[0] == curves[1]
    assert curves[0] != curves[2]


CHILD = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from training_files import MAKERS, make_run, triplets
import numpy as np
def evaluate(encoder):
    return {{"m": float(np.cos(encoder.encode(["the cat sat"])[0, :4]).sum())}}
run = make_run(Path({model!r}), Path(sys.argv[1]), "classification", evaluate, **dict(
    epochs=3, log_steps=2, evaluate_steps=4, checkpoint_steps=3, resume=True, seed=3, accumulation=2, batch_size=3))
stop = int(sys.argv[2])
def listen(entry):
    if stop and entry["step"] >= stop and entry["event"] == "loss":
        os.kill(os.getpid(), signal.SIGKILL)
run.listeners.append(listen)
run.go()
"""


def test_killed_and_resumed_is_bitwise_an_unbroken_run(bare_model: BareModel, tmp_path: Path) -> None:
    script = CHILD.format(here=str(Path(__file__).parent), model=str(bare_model("bert")))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}

    def child(folder: Path, stop: int) -> int:
        return subprocess.run([sys.executable, "-c", script, str(folder), str(stop)], env=environment, timeout=120, check=False).returncode

    assert child(tmp_path / "whole", 0) == 0
    # Killed twice: in the first epoch between two checkpoints, and in the second.
    assert child(tmp_path / "broken", 4) == -signal.SIGKILL
    assert child(tmp_path / "broken", 8) == -signal.SIGKILL
    assert child(tmp_path / "broken", 0) == 0
    assert log(tmp_path / "broken") == log(tmp_path / "whole")
    whole, state = load_checkpoint(list_checkpoints(tmp_path / "whole")[-1])
    broken, again = load_checkpoint(list_checkpoints(tmp_path / "broken")[-1])
    assert {**state, "recipe": 0} == {**again, "recipe": 0}
    assert whole.keys() == broken.keys()
    for name, tensor in whole.items():
        assert torch.equal(tensor, broken[name]), name
    one, two = (load_file(tmp_path / name / "best" / "model.safetensors") for name in ("whole", "broken"))
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_best_step_is_kept_and_patience_stops(bare_model: BareModel, tmp_path: Path) -> None:
    values = [0.9, 0.1, 0.5, 0.4, None, 0.3, 0.99]
    run = make_run(bare_model("bert"), tmp_path, evaluate=scripted(values), evaluate_steps=1, patience=3, epochs=5)
    state = run.go()
    assert (state.baseline_metric, state.best_metric, state.best_step, state.step) == (0.9, 0.5, 2, 5)
    assert "has not risen for 3" in state.stopped
    saved = Encoder.load(tmp_path / "best")
    assert not np.allclose(saved.encode("the cat sat"), run.encoder.encode("the cat sat"), atol=1e-6), "best is step 2, not the last"


def test_an_undefined_metric_is_never_the_best(bare_model: BareModel, tmp_path: Path) -> None:
    run = make_run(bare_model("bert"), tmp_path, evaluate=scripted([None, float("nan"), None]), evaluate_steps=3)
    state = run.go()
    assert state.best_metric is None
    assert (tmp_path / "best" / "twinvec.json").is_file(), "the last weights are kept when nothing could be measured"


def test_a_loss_metric_is_better_when_lower(bare_model: BareModel, tmp_path: Path) -> None:
    left = [3.0, 2.0, 1.0, 1.5]
    run = make_run(bare_model("bert"), tmp_path, evaluate=lambda encoder: {"loss": left.pop(0)}, metric="loss", evaluate_steps=2)
    assert run.go().best_metric == 1.0


def test_checkpoints_are_counted_and_checked(bare_model: BareModel, tmp_path: Path) -> None:
    run = make_run(bare_model("bert"), tmp_path, checkpoint_steps=1, keep_checkpoints=2)
    run.go()
    found = list_checkpoints(tmp_path)
    assert [path.name for path in found] == ["step-00000005", "step-00000006"]
    assert not list(tmp_path.rglob("*.tmp"))
    raw = bytearray((found[-1] / "tensors.safetensors").read_bytes())
    raw[-10] ^= 1
    (found[-1] / "tensors.safetensors").write_bytes(raw)
    with pytest.raises(TrainingError, match=r"step-00000006: tensors.safetensors is damaged"):
        make_run(bare_model("bert"), tmp_path, checkpoint_steps=1, keep_checkpoints=2, resume=True).go()


def test_resuming_with_another_recipe_is_refused(bare_model: BareModel, tmp_path: Path) -> None:
    make_run(bare_model("bert"), tmp_path, checkpoint_steps=2).go()
    with pytest.raises(TrainingError, match=r"written by another recipe \(different: lr\)"):
        make_run(bare_model("bert"), tmp_path, lr=5e-4, resume=True).go()


def test_bf16_keeps_float32_weights(bare_model: BareModel, tmp_path: Path) -> None:
    run = make_run(bare_model("bert"), tmp_path, precision="bf16", epochs=4, log_steps=6, dropout=0.0)
    run.go()
    assert {p.dtype for p in run.net.parameters()} == {torch.float32}
    assert losses(tmp_path)[-1] < losses(tmp_path)[0]


def test_a_loss_that_is_not_finite_stops_with_its_step(bare_model: BareModel, tmp_path: Path) -> None:
    run = make_run(bare_model("bert"), tmp_path, lr=1e-3)
    with torch.no_grad():
        next(run.net.parameters()).fill_(float("nan"))
    with pytest.raises(TrainingError, match=r"step 1: the loss is nan \(rows .*try a smaller lr"):
        run.go()


def test_an_objective_that_cannot_learn_from_the_file_names_those_that_can(bare_model: BareModel, tmp_path: Path) -> None:
    data = read_data(triplets(tmp_path / "t.csv"))
    wanted = r"'regression' wants scores or pairs, but .*t.csv holds triplets; for this file use objective = 'triplet' or 'infonce'"
    with pytest.raises(UsageError, match=wanted):
        check_fit(Source(data="t.csv", objective="regression"), data)


def test_evaluations_fall_on_even_parts_of_an_epoch(bare_model: BareModel, tmp_path: Path) -> None:
    run = make_run(bare_model("bert"), tmp_path, evaluate=scripted([0.0, 0.1, 0.2, 0.3, 0.4]), evaluations_per_epoch=2, epochs=2)
    run.go()
    assert [entry["step"] for entry in log(tmp_path) if entry["event"] == "evaluation"] == [3, 6, 9, 12]
