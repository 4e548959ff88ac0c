"""`twinvec doctor`: what this machine and this installation give, and what is wrong with them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from twinvec.cli import options as opt
from twinvec.cli.console import Console, pairs

Model = Annotated[str, typer.Option("--model", metavar="MODEL", help="model whose speed is measured; " + opt.MODEL_HELP)]


def doctor(
    model: Model = "minilm",
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Check the installation and this machine.

    Versions, processor, threads, memory, the packaged model, and its speed here. Exit status 1 when something is broken; what to do about it
    stands below the list.

    \b
    Example:
      twinvec doctor
      twinvec doctor --json
    """
    out = Console(json, quiet)
    from twinvec.cli import machine

    problems: list[dict[str, str]] = []
    found: dict[str, Any] = {"packages": machine.packages(problems)}
    found["processor"] = machine.processor()
    found["memory"] = machine.memory(problems)
    found["hub"] = machine.hub()
    if not any(problem["what"].startswith("torch") for problem in problems):
        found["threads"] = machine.threads()
        found["device"] = machine.device()
        found["onednn"] = machine.onednn()
        found["packaged_model"] = machine.packaged_model(problems)
        found["speed"] = machine.speed(model, problems)
    broken = [problem for problem in problems if problem["state"] == "broken"]
    out.note_all(f"{problem['what']}: {problem['remedy']}" for problem in problems if problem["state"] == "note")
    lines = [*pairs(machine.describe(found), indent=""), *(f"broken: {problem['what']}: {problem['remedy']}" for problem in broken)]
    out.result({"ok": not broken, **found, "problems": problems}, [*lines, *([] if broken else ["all well"])])
    if broken:
        raise typer.Exit(1)
