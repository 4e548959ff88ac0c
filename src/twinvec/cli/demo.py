"""`twinvec demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twinvec.cli import options as opt
from twinvec.cli.console import Console

Output = Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="where everything goes; an earlier demo there is replaced")]
Language = Annotated[str, opt.choice("--language", choices=("en", "zh"), help="language of the sample data")]
Model = Annotated[str, typer.Option("--model", metavar="MODEL", help=opt.MODEL_HELP + "; for zh, one that knows Chinese")]
Epochs = Annotated[float, typer.Option("--epochs", min=0.01, metavar="X", help="passes over the sample pairs")]


def demo(
    output: Output = Path("demo-run"),
    language: Language = "en",
    model: Model = "minilm",
    epochs: Epochs = 2.0,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Show the whole way once, on the sample FAQ.

    Evaluates a model, fine-tunes it, evaluates again on held-out questions, indexes the answers and asks three questions. All files stay.

    \b
    Example:
      twinvec demo
      twinvec demo --language zh --model models/e5-small-zh-en
    """
    out = Console(json, quiet)
    from twinvec.runs.demo import demo as run

    result = run(output, model=model, language=language, epochs=epochs, progress=out.progress)
    shown = [f"report: {result['report']}"] if quiet else []  # else it was said on the way
    out.result(result, [*shown, f'ask on: twinvec search {result["collection"]} "..."'])
