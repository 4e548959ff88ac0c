"""`twinvec tune`."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from twinvec.cli import options as opt
from twinvec.cli.console import Console, aligned, bytes_text
from twinvec.cli.loading import check_inputs, texts_of
from twinvec.errors import DataError, UsageError, choose

if TYPE_CHECKING:
    from twinvec.cli.trials import Laboratory, Setting, Trial

NEEDS = {"torch": ("torch",), "ctranslate2": ("ctranslate2",), "onnx": ("onnx", "onnxruntime")}
LOWER = ("bf16", "int8")
BATCHES = (512, 2048, 4096)
START = 60.0  # seconds a measurement may take beyond its encoding: to load, and to encode the first time

Texts = Annotated[
    Path | None, opt.value("--texts", metavar="FILE", help="texts like those to be encoded; default: those of --data, else those of a shop")
]
Data = Annotated[Path | None, opt.value("--data", metavar="FILE", help="labelled pairs, to measure quality")]
Engines = Annotated[str | None, opt.value("--engines", metavar="LIST", help="which to try; default: all that are installed (torch,ctranslate2,onnx)")]
Allow = Annotated[str | None, opt.value("--allow", metavar="LIST", help="precisions that may be chosen besides float32: bf16,int8")]
MaxLoss = Annotated[
    float | None, opt.value("--max-loss", metavar="POINTS", min=0.0, help="with --data: any precision may be chosen that loses no more, of 100")
]
Output = Annotated[
    Path | None,
    opt.value("--output", "-o", metavar="FOLDER", help="a copy of the model with all exports, kept; default: only the chosen one is kept"),
]
Rows = Annotated[int, opt.value("--rows", metavar="N", min=1, help="distinct texts to measure with; default: 500")]
Seconds = Annotated[float, opt.value("--seconds", metavar="S", min=0.0, help="how long each setting encodes; default: 5")]
Bound = Annotated[
    float | None, opt.value("--bound", metavar="S", min=0.1, help="when a setting is given up; default: 60 s more than twelve passes of --seconds")
]


def tune(
    model: opt.Model,
    texts: Texts = None,
    data: Data = None,
    prompt: opt.Prompt = None,
    engines: Engines = None,
    allow: Allow = None,
    max_loss: MaxLoss = None,
    rows: Rows = 500,
    seconds: Seconds = 5.0,
    bound: Bound = None,
    output: Output = None,
    profile: opt.Profile = None,
    text: opt.TextColumn = None,
    columns: opt.Columns = None,
    encoding: opt.Encoding = "utf-8",
    format: opt.Format = None,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Find the fastest way to encode with a model on this machine.

    Measures each installed engine in each precision, then threads and batch sizes of the best, and writes the choice to a profile that --engine auto
    follows. A precision below float32 is measured, but chosen only when you accept it with --allow or --max-loss.

    \b
    Example:
      twinvec tune models/mine --texts texts.csv --data pairs.csv --max-loss 0.3
      twinvec tune minilm --allow int8 -o models/minilm
    """
    out = Console(json, quiet)
    check_inputs([path for path in (texts, data) if path is not None])
    allowed = _listed("--allow", allow, LOWER)
    tried = _listed("--engines", engines, tuple(NEEDS)) or [name for name in NEEDS if _installed(name)]
    for name in tried:
        if not _installed(name):
            raise UsageError(f"--engines {name}: needs pip install 'twinvec[{name}]'")
    if max_loss is not None and data is None:
        raise UsageError("--max-loss is about the file of --data FILE; give one")
    reads = {"columns": columns, "encoding": encoding, "format": format}
    listed = _texts(texts, data, rows, text, reads)
    with _prepared(model, output) as (folder, exports, work):
        from twinvec.cli.trials import Laboratory

        lab = Laboratory(
            work, listed, plain=str(folder), exports=exports, prompt=prompt, data=data, reads=reads, seconds=seconds,
            bound=bound or START + 12 * seconds,
        )  # fmt: skip
        trials = _measure_all(out, lab, tried)
        best = _choose(trials, allowed, max_loss, _usable(model, folder, output))
        better = _refine(out, lab, best)
        trials += better
        best = max([best, *(trial for trial in better if trial.error is None)], key=lambda trial: trial.rate)
        kept = _keep(best, model, folder, exports, output)
    path = _write(model, folder, profile, best, kept, trials, allowed, max_loss)
    _report(out, model, trials, best, path, output, listed)


def _listed(option: str, value: str | None, known: tuple[str, ...]) -> list[str]:
    names = [name.strip() for name in (value or "").split(",") if name.strip()]
    return [choose(option, name, known) for name in names]


def _installed(engine: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in NEEDS[engine])


def _texts(texts: Path | None, data: Path | None, rows: int, column: str | None, reads: dict[str, Any]) -> list[str]:
    """Distinct texts, as they come."""
    found: Iterator[str]
    if texts is not None:
        found = texts_of(texts, text=column, encoding=reads["encoding"], format=reads["format"])
    elif data is not None:
        from twinvec.data.dataset import read_data

        found = (cell for row in zip(*read_data(data, **reads).columns.values(), strict=True) for cell in row)
    else:
        from twinvec.model.engines.sample import sample_texts

        found = iter(sample_texts())
    listed = list(islice(dict.fromkeys(text for text in found if text.strip()), rows))
    if not listed:
        raise DataError(f"{texts or data}: no texts to measure with")
    return listed


@contextmanager
def _prepared(model: str, output: Path | None) -> Iterator[tuple[Path, Path, Path]]:
    """(the model's folder, a copy that takes the exports, a folder for the work)."""
    from twinvec.model.engines.export import copy_model
    from twinvec.model.resolve import resolve
    from twinvec.model.static_folder import static_kind

    if output is not None and output.exists():
        raise UsageError(f"--output {output} exists already; give another name")
    if Path(model).is_file() or static_kind(resolve(model)) is not None:
        raise UsageError(f"{model} is a static model: there is one way to compute it, and nothing to tune")
    folder = resolve(model)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
    place = tempfile.mkdtemp(prefix=".twinvec-tune.", dir=output.parent if output is not None else None)
    try:
        exports, work = Path(place) / "model", Path(place) / "work"
        exports.mkdir()
        work.mkdir()
        copy_model(folder, exports)
        yield folder, exports, work
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _usable(model: str, folder: Path, output: Path | None) -> bool:
    """Can an export be kept where `--engine auto` finds it?"""
    return output is not None or Path(model).expanduser() == folder


def _measure_all(out: Console, lab: Laboratory, engines: list[str]) -> list[Trial]:
    """Every engine in every precision, torch in float32 first: it is what the others are compared with."""
    from twinvec.cli.trials import Setting, Trial

    settings = [Setting("torch", "float32")]
    settings += [Setting("torch", name) for name in LOWER if "torch" in engines and _torch_knows(name)]
    settings += [Setting(engine, precision) for engine in ("ctranslate2", "onnx") if engine in engines for precision in ("float32", "int8")]
    failed = lab.export([setting for setting in settings if setting.exported])
    trials = []
    for setting in settings:
        error = failed.get(setting)
        trial = Trial(setting, error=error) if error is not None else lab.measure(setting)
        if setting == settings[0] and trial.error is not None:
            raise UsageError(f"torch in float32, with which all else is compared, cannot be measured: {trial.error}")
        _say(out, trial)
        trials.append(trial)
    return trials


def _torch_knows(precision: str) -> bool:
    return precision != "int8" or importlib.util.find_spec("twinvec.model.quantized") is not None


def _say(out: Console, trial: Trial) -> None:
    if out.progress:
        from twinvec.progress import note

        note(f"{trial.setting}: {trial.error}" if trial.error is not None else f"{trial.setting}: {trial.rate:.0f} texts/s")


def _choose(trials: list[Trial], allowed: list[str], max_loss: float | None, usable: bool) -> Trial:
    """The fastest of those that were accepted; torch in float32 is always among them."""
    reference = trials[0]
    good = []
    for trial in trials:
        if trial.error is not None or (trial.setting.exported and not usable):
            continue
        if trial is reference or acceptable(trial, reference, allowed, max_loss):
            good.append(trial)
    return max(good, key=lambda trial: trial.rate)


def acceptable(trial: Trial, reference: Trial, allowed: list[str], max_loss: float | None) -> bool:
    """float32 is; a lower precision where the user allows it, and where it loses no more than the user said."""
    small = max_loss is not None and trial.quality is not None and reference.quality is not None and reference.quality - trial.quality <= max_loss
    if trial.setting.precision == "float32":
        return max_loss is None or small or trial.quality is None
    return small if max_loss is not None else trial.setting.precision in allowed


def _refine(out: Console, lab: Laboratory, best: Trial) -> list[Trial]:
    """Other batch sizes, then fewer threads, for the best engine."""
    from twinvec.cli.trials import Setting

    setting = best.setting
    trials = []
    for tokens in BATCHES:
        trials.append(lab.measure(Setting(setting.engine, setting.precision, None, tokens)))
        _say(out, trials[-1])
    if best.threads > 1:
        fastest: Setting = max([best, *(trial for trial in trials if trial.error is None)], key=lambda trial: trial.rate).setting
        trials.append(lab.measure(Setting(setting.engine, setting.precision, best.threads // 2, fastest.batch_tokens)))
        _say(out, trials[-1])
    return trials


def _keep(best: Trial, model: str, folder: Path, exports: Path, output: Path | None) -> Path | None:
    """Put what was chosen where it is found again; the folder that holds the export where that is not the model's own."""
    from twinvec.files import atomic_folder
    from twinvec.model.engines.manifest import export_folder

    if output is not None:
        with atomic_folder(output) as place:
            shutil.copytree(exports, place, dirs_exist_ok=True)
        return output.absolute() if best.setting.exported else None
    if best.setting.exported:
        engine, precision = best.setting.engine, best.setting.precision
        with atomic_folder(export_folder(folder, engine, precision), replace=True) as place:
            shutil.copytree(export_folder(exports, engine, precision), place, dirs_exist_ok=True)
    return None


def _write(
    model: str, folder: Path, given: Path | None, best: Trial, kept: Path | None, trials: list[Trial], allowed: list[str], max_loss: float | None
) -> Path:
    from dataclasses import replace

    from twinvec.model.engines.profile import NAME, Profile, profile_path
    from twinvec.model.folder import versions
    from twinvec.model.machine import describe_machine

    path = given or profile_path(model, folder)
    made = Profile(
        model=str(model), machine=describe_machine(), engine=best.setting.engine, precision=best.setting.precision, threads=best.threads,
        batch_tokens=best.setting.batch_tokens, exports=str(kept) if kept else None, allowed=allowed, max_loss=max_loss,
        measured=[trial.to_dict() for trial in trials], versions=versions(),
    )  # fmt: skip
    made.write(path)
    if kept is not None:  # the folder with the exports is a model too, and has its own profile
        replace(made, model=str(kept), exports=None).write(kept / NAME)
    return path


def _report(out: Console, model: str, trials: list[Trial], best: Trial, path: Path, output: Path | None, texts: list[str]) -> None:
    reference = trials[0]
    head = ["engine", "precision", "threads", "batch", "texts/s", "ratio", "memory", "least cosine", "mean cosine", "quality"]
    rows = [head]
    for trial in trials:
        shown = [trial.setting.engine, trial.setting.precision]
        if trial.error is not None:
            rows.append([*shown, trial.error])
            continue
        memory = bytes_text(trial.memory) if trial.memory is not None else ""
        quality = f"{trial.quality:.2f}" if trial.quality is not None else ""
        rows.append(
            [*shown, str(trial.threads), str(trial.setting.batch_tokens or "own"), f"{trial.rate:.1f}", f"{trial.rate / reference.rate:.2f}", memory,
             f"{trial.least_cosine:.5f}", f"{trial.mean_cosine:.5f}", quality]
        )  # fmt: skip
    if reference.quality is None:
        rows = [row[:-1] if len(row) == len(head) else row for row in rows]
    failed = [row for row in rows if len(row) == 3]
    lines = aligned([row for row in rows if len(row) > 3], right=range(2, len(head)))
    lines += [f"{engine} {precision}: not measured: {error}" for engine, precision, error in failed]
    lines.append(f"chosen: {best.setting}, {best.threads} threads, {best.rate / reference.rate:.2f} times torch in float32; written to {path}")
    fastest = max((trial for trial in trials if trial.error is None), key=lambda trial: trial.rate)
    if fastest.rate > 1.05 * best.rate:
        lines.append(_advice(model, fastest, best, output))
    payload: dict[str, Any] = {
        "model": model, "texts": len(texts), "chosen": best.to_dict(), "profile": str(path), "output": str(output) if output else None,
        "measured": [trial.to_dict() for trial in trials],
    }  # fmt: skip
    out.result(payload, lines)


def _advice(model: str, fastest: Trial, best: Trial, output: Path | None) -> str:
    """How to get the fastest one, which was not chosen."""
    setting = fastest.setting
    wants = [] if setting.precision == "float32" else [f"--allow {setting.precision}"]
    if setting.exported and output is None:
        wants.append("--output FOLDER for a model that is not yours to write into")
    gain = f"{fastest.rate / best.rate:.2f} times as fast (least cosine {fastest.least_cosine:.4f})"
    return f"{setting} is {gain}; accept it with {' and '.join(wants) or '--max-loss'}"
