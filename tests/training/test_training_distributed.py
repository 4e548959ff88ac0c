"""Two real processes learn what one learns from the whole batch; one of them measures and writes; killed, they go on; one crash ends all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed_worker import CASES, case_run, weights
from safetensors.torch import load_file

from twinvec.errors import TrainingError, UsageError
from twinvec.training.checkpoint import list_checkpoints, load_checkpoint
from twinvec.training.distributed import World, own_rank, under_torchrun

BareModel = Callable[[str], Path]
WORKER = Path(__file__).parent / "distributed_worker.py"


def launch(job: str, folder: Path, model: Path) -> subprocess.CompletedProcess[str]:
    """Two processes by torchrun; how they ended and what they said."""
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1]), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(WORKER), job, str(folder), str(model)]
    return subprocess.run(command, env=environment, timeout=400, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def folder(bare_model: BareModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two processes have run every case, a whole run, and a run that killed them all at step 8."""
    made = tmp_path_factory.mktemp("distributed")
    done = launch("compare", made, bare_model("bert"))
    assert (made / "rank 1.json").is_file(), done.stderr
    assert "SIGKILL" in done.stderr
    return made


@pytest.fixture(scope="module")
def resumed(folder: Path, bare_model: BareModel) -> tuple[Path, subprocess.CompletedProcess[str]]:
    assert [path.name for path in list_checkpoints(folder / "broken")] == ["step-00000006", "step-00000008"]
    return folder, launch("resume", folder, bare_model("bert"))


def log(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", CASES)
def test_two_processes_learn_what_one_learns_from_the_whole_batch(name: str, folder: Path, bare_model: BareModel, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    run = case_run(name, bare_model("bert"), tmp_path, World())
    start = weights(run)
    run.go()
    place = folder / f"case {list(CASES).index(name)}"
    one, two = weights(run), load_file(place / "weights.safetensors")
    assert one.keys() == two.keys()
    for key, value in one.items():
        if "key.bias" in key:  # its gradient is 0 but for rounding, which AdamW blows up
            continue
        torch.testing.assert_close(two[key], value, rtol=0, atol=1e-5, msg=key)
    assert max(float((one[key] - start[key]).abs().max()) for key in one if one[key].is_floating_point()) > 1e-4, "nothing was learned"
    # AdamW does not see a factor in the gradient; the log does.
    for mine, theirs in zip(log(tmp_path), log(place), strict=True):
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=1e-5)
        assert theirs["gradient_norm"] == pytest.approx(mine["gradient_norm"], rel=1e-4)


def test_rank_0_alone_evaluates_and_writes(folder: Path) -> None:
    first, second = (json.loads((folder / f"rank {rank}.json").read_text()) for rank in (0, 1))
    assert first["result"] == second["result"]
    assert second["evaluations"] == 0
    # Baseline, three evaluations, the saved model once more, and the test file before and after.
    measured = [entry["step"] for entry in log(folder / "whole") if entry["event"] == "evaluation"]
    assert measured == [4, 8, 12]
    assert first["evaluations"] == 1 + len(measured) + 1 + 2
    assert [path.name for path in list_checkpoints(folder / "whole")] == ["step-00000009", "step-00000012"]


def test_killed_and_resumed_is_bitwise_an_unbroken_run(resumed: tuple[Path, Any]) -> None:
    folder, done = resumed
    whole, broken = (load_checkpoint(list_checkpoints(folder / name)[-1])[0] for name in ("whole", "broken"))
    assert whole.keys() == broken.keys(), done.stderr
    assert all(torch.equal(whole[key], broken[key]) for key in whole)
    assert log(folder / "broken") == log(folder / "whole")
    assert (folder / "broken" / "best" / "model.safetensors").read_bytes() == (folder / "whole" / "best" / "model.safetensors").read_bytes()


def test_one_process_speaks_for_all(resumed: tuple[Path, Any]) -> None:
    folder, done = resumed
    assert json.loads((folder / "stdout 0").read_text())["steps"] == 12, done.stderr
    assert (folder / "stdout 1").read_text() == ""


def test_a_crash_of_one_process_ends_all_with_its_message(resumed: tuple[Path, Any]) -> None:
    folder, done = resumed
    assert done.returncode != 0
    assert "twinvec: error: ValueError: the disk is on fire" in done.stderr
    assert not (folder / "crashed" / "best").exists()
    said = [line for line in done.stderr.splitlines() if line.startswith("twinvec: error")]
    assert all("on fire" in line or "process 0: another process of this run has ended; its own message says why" in line for line in said), said


def test_a_gradient_that_no_process_has_stays_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """AdamW lets weights with a gradient of zeros decay, and those without one not."""
    monkeypatch.setattr("torch.distributed.all_reduce", lambda tensor: None)
    used, unused = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    used.grad = torch.ones(2)
    World(0, 2).gradients([used, unused])
    assert used.grad is not None
    assert unused.grad is None


def test_a_lost_process_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: Any, **__: Any) -> None:
        raise RuntimeError("Connection closed by peer [127.0.0.1]:1234")

    for name in ("all_reduce", "broadcast", "barrier"):
        monkeypatch.setattr(f"torch.distributed.{name}", closed)
    monkeypatch.setattr("torch.distributed.get_backend", lambda: "gloo")
    lonely = World(1, 2)
    for call in (lambda: lonely.sum_([torch.ones(1)]), lambda: lonely.from_first(1), lonely.barrier, lambda: lonely.same([torch.ones(1)])):
        with pytest.raises(TrainingError, match="process 1: another process of this run has ended"):
            call()


def test_environments_that_are_no_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert not under_torchrun()
    monkeypatch.setenv("RANK", "3")  # some batch systems set it for a single process
    assert (under_torchrun(), own_rank()) == (False, 0)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match="MASTER_ADDR and MASTER_PORT is not; several processes are started with"):
        under_torchrun()
    monkeypatch.delenv("RANK")
    assert not under_torchrun()
