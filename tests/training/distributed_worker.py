"""What each process of the distributed tests does: `python distributed_worker.py JOB FOLDER MODEL`, with the environment that torchrun sets."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from training_files import make_run, nli, partners, scores, texts, triplets

from twinvec.training.distributed import World, world
from twinvec.training.loop import Run

NEW = {"layers": 1, "hidden": 32, "heads": 2, "vocabulary": 300, "max_tokens": 32}
CASES: dict[str, dict[str, Any]] = {
    "infonce, two hard negatives": {"objective": "infonce", "make": triplets, "batch_size": 6, "direction": "symmetric", "learn_temperature": True},
    "matryoshka, cached": {"objective": "infonce", "matryoshka": [16, 8], "gradient_cache": "on", "make": partners},
    "classification": {"objective": "classification", "make": nli},
    "regression, one row a batch": {"objective": "regression", "batch_size": 1, "micro_tokens": 4, "make": scores},
    "mlm": {"objective": "mlm", "new": True, "make": texts},
    "mixed, accumulated": {"source": (("infonce", partners), ("classification", nli)), "mixing": "even", "accumulation": 2},
    "without dropout, default micro-batches": {"objective": "infonce", "dropout": 0.0, "micro_tokens": None, "make": partners},
}


def case_run(name: str, model: Path, folder: Path, world: World) -> Run:
    """A run of three steps with dropout on; `folder` exists already, with the data files in it."""
    settings = {"dropout": 0.2, "micro_tokens": 24, "lr": 1e-4, "max_steps": 3, "log_steps": 1, "batch_size": 4, **CASES[name]}
    if settings.pop("new", False):
        model, settings["new_model"] = Path("new"), NEW
    folder.mkdir(parents=True, exist_ok=True)
    kinds = settings.pop("source", ())
    made = {objective: ready(folder / f"{objective}.csv", make) for objective, make in kinds or [(settings["objective"], settings.pop("make"))]}
    if kinds:
        settings["source"] = [{"objective": objective, "data": str(path)} for objective, path in made.items()]
        settings["objective"] = kinds[0][0]
    return make_run(model, folder, data=next(iter(made.values())), world=world, **settings)


def ready(path: Path, make: Callable[[Path], Path]) -> Path:
    """The file, made by the first that comes; `make` may choose another ending."""
    found = list(path.parent.glob(f"{path.stem}.*"))
    return found[0] if found else make(path)


def weights(run: Run) -> dict[str, torch.Tensor]:
    parts = (("net", run.net), ("heads", run.heads))
    return {f"{part}.{name}": value.detach().clone() for part, module in parts for name, value in module.state_dict().items()}


def compare(folder: Path, model: Path, everyone: World) -> None:
    """Every case; rank 0 leaves the weights, and the other ranks say whether theirs are the same to the bit."""
    for number, name in enumerate(CASES):
        place = folder / f"case {number}"
        if everyone.first:
            case_run(name, model, place, World())  # makes the files
        everyone.barrier()
        run = case_run(name, model, place, everyone)
        run.go()
        found = weights(run)
        theirs = {key: value.clone() for key, value in found.items()}
        everyone.same(theirs.values())
        assert all(torch.equal(theirs[key], found[key]) for key in found), f"{name}: the processes have other weights"
        if everyone.first:
            save_file(found, place / "weights.safetensors")


def recipe(folder: Path, model: Path, name: str) -> dict[str, Any]:
    data = folder / "train.csv"
    if not data.is_file() and int(os.environ.get("RANK", "0")) == 0:
        scores(data, 32)
    return {
        "model": str(model), "pooling": "mean", "data": str(data), "dev_share": 0.25, "test": [str(data)], "objective": "cosent",
        "output": str(folder / name), "batch_size": 4, "lr": 1e-3, "epochs": 2, "evaluate_steps": 4, "checkpoint_steps": 3, "log_steps": 1,
        "dropout": 0.1, "micro_tokens": 24,
    }  # fmt: skip


def whole_and_killed(folder: Path, model: Path, everyone: World) -> None:
    """A run from beginning to end; then the same one, which at step 8 kills every process."""
    import twinvec as tv
    from twinvec.evaluation import evaluate as room
    from twinvec.runs import train as runs

    count = {"evaluations": 0}
    plain = room.evaluate

    def counted(*args: Any, **options: Any) -> Any:
        count["evaluations"] += 1
        return plain(*args, **options)

    runs.evaluate = counted  # type: ignore[attr-defined]
    result = tv.train(tv.Recipe.of(**recipe(folder, model, "whole")), progress=False)
    (folder / f"rank {everyone.rank}.json").write_text(json.dumps({"result": result, **count}))
    everyone.barrier()
    pids = [torch.zeros(1, dtype=torch.int64) for _ in range(everyone.size)]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    step: Callable[..., Any] = Run._one_step

    def deadly(self: Run, *args: Any) -> None:
        step(self, *args)
        if self.state.step == 8 and everyone.first:
            for pid in reversed(pids):
                os.kill(int(pid), signal.SIGKILL)

    Run._one_step = deadly  # type: ignore[method-assign]
    tv.train(tv.Recipe.of(**recipe(folder, model, "broken")), progress=False)


def resume_and_crash(folder: Path, model: Path) -> None:
    """The killed run resumed from the command line; then a run in which one process fails at its second step."""
    from twinvec.cli.main import app
    from twinvec.training.step import Stepper

    rank = int(os.environ["RANK"])
    toml = folder / f"broken {rank}.toml"
    toml.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in recipe(folder, model, "broken").items()))
    sys.stdout = open(folder / f"stdout {rank}", "w")  # noqa: SIM115
    app(["train", str(toml), "--resume", "--json"], standalone_mode=False)
    sys.stdout.close()
    sys.stdout = sys.__stdout__
    add: Callable[..., float] = Stepper.add_gradient

    def failing(self: Stepper, task: Any, batch: Any, step: int, *more: Any) -> float:
        if rank == 1 and step == 1:
            raise ValueError("the disk is on fire")
        return add(self, task, batch, step, *more)

    Stepper.add_gradient = failing  # type: ignore[method-assign]
    app(["train", str(toml), "--set", f"output={folder / 'crashed'}", "--quiet"])


def main() -> None:
    job, folder, model = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    if job == "resume":
        resume_and_crash(folder, model)
        return
    with world() as everyone:
        compare(folder, model, everyone)
        whole_and_killed(folder, model, everyone)


if __name__ == "__main__":
    main()
