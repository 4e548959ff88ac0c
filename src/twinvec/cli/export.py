"""`twinvec export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from twinvec.cli import options as opt
from twinvec.cli.console import Console, bytes_text
from twinvec.cli.loading import check_inputs
from twinvec.errors import UsageError

if TYPE_CHECKING:
    from twinvec.model.encoder import Encoder
    from twinvec.model.engines.export import Measure

Engine = Annotated[str, opt.choice("--engine", choices=("ctranslate2", "onnx"), help="what shall compute")]
Precision = Annotated[str, opt.choice("--precision", choices=("float32", "int8"), help="numbers it computes with")]
Output = Annotated[
    Path | None,
    opt.value("--output", "-o", metavar="FOLDER", help="a copy of the model with the export in it; default: beside the model, in its own folder"),
]
Data = Annotated[Path | None, opt.value("--data", metavar="FILE", help="labelled pairs on which the export must be as good as the model")]
MaxLoss = Annotated[
    float | None, opt.value("--max-loss", metavar="POINTS", min=0.0, help="what it may lose there, of 100; default: 0.5")
]  # fmt: skip


def export(
    model: opt.Model,
    engine: Engine,
    precision: Precision = "float32",
    output: Output = None,
    data: Data = None,
    max_loss: MaxLoss = None,
    prompt: opt.Prompt = None,
    columns: opt.Columns = None,
    labels: opt.Labels = None,
    score_range: opt.ScoreRange = None,
    encoding: opt.Encoding = "utf-8",
    format: opt.Format = None,
    revision: opt.Revision = None,
    force: opt.Force = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Write a model for a faster engine, and measure what it loses.

    The export goes into the model's folder; with --output into a new folder that is a whole model. Its vectors are held against those of torch in
    float32, on golden texts and with --data on your own pairs; a bad one is refused. Needs the extra ctranslate2 or onnx.

    \b
    Example:
      twinvec export models/mine --engine ctranslate2 --precision int8 --data pairs.csv
      twinvec export minilm --engine ctranslate2 --precision int8 -o models/minilm
      twinvec encode models/minilm texts.csv -o texts.npy --engine ctranslate2 --precision int8
    """
    from twinvec.model.engines.export import export as make
    from twinvec.model.engines.manifest import MAX_LOSS, export_folder

    out = Console(json, quiet)
    if max_loss is not None and data is None:
        raise UsageError("--max-loss is about the file of --data FILE; give one")
    measure = None
    if data is not None:
        check_inputs([data])
        reads = {"columns": columns, "labels": labels, "score_range": score_range, "encoding": encoding, "format": format}
        measure = quality_of(out, data, prompt, reads)
    made = make(
        model, engine=engine, precision=precision, output=output, force=force, revision=revision, measure=measure,
        max_loss=MAX_LOSS if max_loss is None else max_loss,
    )  # fmt: skip
    place = export_folder(output or Path(model), engine, precision)
    size = sum((place / name).stat().st_size for name in made.files)
    payload: dict[str, Any] = {
        "engine": engine, "precision": precision, "output": str(place), "model": str(output or model), "bytes": size,
        "least_cosine": made.least_cosine, "quality": made.quality, "fingerprint": made.fingerprint, "versions": made.versions,
    }  # fmt: skip
    lines = [f"{place}: {engine}, {precision}, {bytes_text(size)}; least cosine to torch in float32 {made.least_cosine:.5f} on golden texts"]
    if made.quality is not None:
        before, after = made.quality["before"], made.quality["after"]
        lines.append(f"  on {data}: {after:.2f}, torch in float32 {before:.2f} ({after - before:+.2f} points)")
    lines.append(f"  use it: --engine {engine} --precision {precision} with the model {output or model}")
    out.result(payload, lines)


METRICS = ("spearman_cosine", "ap_cosine", "accuracy_cosine", "ndcg@10")
"""What a file is judged by: the first of these that its kind of task has."""


def quality_of(out: Console, path: Path, prompt: str | None, reads: dict[str, Any]) -> Measure:
    """A function from an encoder to its quality on the file, 0 to 100."""
    from twinvec.data.dataset import read_data
    from twinvec.evaluation.evaluate import evaluate

    data = read_data(path, **reads)
    out.describe(data.describe())

    def measure(encoder: Encoder) -> float:
        return 100 * main_metric(evaluate(encoder, data, prompt=prompt), path)

    return measure


def main_metric(result: dict[str, Any], path: Path) -> float:
    """UsageError where the file has no labels to be judged by, or no two different ones."""
    for name in METRICS:
        if name in result:
            if result[name] is None:
                raise UsageError(f"--data {path}: {name} is undefined on it (are all its labels the same?); give pairs with different labels")
            return float(result[name])
    raise UsageError(f"--data {path}: holds {result.get('task')}, which has no single score; give pairs with scores or 0/1, triplets, or NLI")
