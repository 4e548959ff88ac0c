"""From the names and options of `twinvec compare` to candidates with their vectors: models in processes of their own, services and files here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinvec.cli.console import Console
from twinvec.errors import ModelError, UsageError
from twinvec.files import write_json

if TYPE_CHECKING:
    from twinvec.evaluation.compare import Candidate
    from twinvec.evaluation.reading import Held

VECTORS = (".npy", ".parquet", ".pq")


@dataclass(frozen=True)
class Setting:
    """One model in one engine and precision, as it is called in the table."""

    name: str
    model: str
    prompt: str | None
    kind: str  # "model", "vectors" or "endpoint"
    engine: str | None = None
    precision: str | None = None


@dataclass
class Bench:
    """What all settings share. data: the files as read; files and reads: how another process reads them again."""

    out: Console
    data: list[Held]
    files: list[Path]
    reads: dict[str, Any]
    options: dict[str, Any]
    loads: dict[str, Any]
    seconds: float
    cache: Path | None
    work: Path
    service: dict[str, Any]
    left_out: list[str] = field(default_factory=list)


def settings_of(models: list[str], prompt: str | None, engines: list[str], precisions: list[str]) -> list[Setting]:
    """Every model in every engine and precision asked for. Vectors, services and static models have one way only.

    MODEL::PROMPT gives a model a prompt of its own, MODEL:: none; a service is URL::MODEL. UsageError: no such model, one given twice.
    """
    from twinvec.evaluation.sources import is_endpoint, split_endpoint

    if len(set(models)) < len(models):
        raise UsageError(f"{next(name for name in models if models.count(name) > 1)} is given twice; wanted each model once")
    found: list[Setting] = []
    short = _short_names(models)
    for name in models:
        if is_endpoint(name):
            split_endpoint(name)
            found.append(Setting(name, name, None, "endpoint"))
            continue
        place, asked = _split(name, prompt)
        shown = short.get(name, name)
        if place.lower().endswith(VECTORS):
            if place != name and asked:
                raise UsageError(f"{name}: a file of vectors has no prompts; they were put in when it was made")
            found.append(Setting(shown, place, None, "vectors"))
        elif _is_static(place):
            found.append(Setting(shown, place, asked, "model"))
        else:
            for engine in engines or [None]:  # type: ignore[list-item]
                for precision in precisions or [None]:  # type: ignore[list-item]
                    parts = [shown, *([engine] if len(engines) > 1 else []), *([precision] if len(precisions) > 1 else [])]
                    found.append(Setting(", ".join(parts), place, asked, "model", engine, precision))
    return found


def _split(name: str, prompt: str | None) -> tuple[str, str | None]:
    """MODEL::PROMPT -> (MODEL, PROMPT)."""
    path, mark, own = name.rpartition("::")
    return (path, own) if mark else (name, prompt)


def _short_names(models: list[str]) -> dict[str, str]:
    """The last part of a path on this disk, where no two are alike: a table of long paths is hard to read."""
    short = {}
    for name in models:
        place, _ = _split(name, None)
        if "/" in place and Path(place).expanduser().exists():
            short[name] = Path(place).name + name[len(place) :]
    taken = [short.get(name, name) for name in models]
    return {name: last for name, last in short.items() if taken.count(last) == 1}


def _is_static(place: str) -> bool:
    from twinvec.model.resolve import resolve
    from twinvec.model.static_folder import static_kind

    path = Path(place).expanduser()
    return static_kind(path if path.is_file() else resolve(place)) is not None


def candidates_of(bench: Bench, settings: list[Setting], dimensions: list[int]) -> list[Candidate]:
    """Encode with every setting, and cut to every number of dimensions.

    A setting that fails is left out with a note while another of the same model works; a model of which none works is the error.
    """
    found: list[Candidate] = []
    errors: dict[str, tuple[Setting, ModelError | UsageError]] = {}
    done: set[str] = set()
    for number, setting in enumerate(settings):
        bench.out.note(f"{setting.name} ({number + 1} of {len(settings)})", keep=False)
        try:
            made = _one(bench, setting, number)
        except (ModelError, UsageError) as err:
            errors.setdefault(_whose(setting), (setting, err))
            bench.left_out.append(f"{setting.name}: {err}")
            continue
        done.add(_whose(setting))
        found += _cut(bench, made, dimensions)
    for whose, (setting, first) in errors.items():
        if whose not in done:
            said = str(first) if setting.model in str(first) else f"{setting.name}: {first}"
            raise UsageError(said) if isinstance(first, UsageError) else ModelError(said)
    for text in bench.left_out:
        bench.out.note(f"left out: {text}")
    if not found:
        raise UsageError(f"--dimensions {','.join(map(str, dimensions))}: no model has so many dimensions")
    return found


def _whose(setting: Setting) -> str:
    return f"{setting.model}::{setting.prompt}"


def _cut(bench: Bench, made: Candidate, dimensions: list[int]) -> list[Candidate]:
    from dataclasses import replace

    from twinvec.evaluation.sources import Shortened

    whole = int(made.cost["dimensions"])
    out = []
    for count in dimensions or [whole]:
        if count > whole:
            bench.left_out.append(f"{made.name}: {count} dimensions asked for, the model has {whole}")
            continue
        name = f"{made.name}, {count}d" if len(dimensions) > 1 else made.name
        encoders = made.encoders if count == whole else [_named(Shortened(encoder, count), made.encoders[0]) for encoder in made.encoders]
        out.append(replace(made, name=name, encoders=encoders))
    return out


def _named(short: Any, whole: Any) -> Any:
    short.fingerprint = getattr(whole, "fingerprint", None)
    short.knows_tokens = getattr(whole, "knows_tokens", True)
    return short


def _one(bench: Bench, setting: Setting, number: int) -> Candidate:
    if setting.kind == "vectors":
        return _vectors(bench, setting)
    if setting.kind == "endpoint":
        return _endpoint(bench, setting)
    return _model(bench, setting, number)


def _vectors(bench: Bench, setting: Setting) -> Candidate:
    from twinvec.evaluation.compare import Candidate
    from twinvec.evaluation.sources import VectorsEncoder
    from twinvec.scale.read import read_vectors

    stored = read_vectors(setting.model)
    whole = VectorsEncoder(stored.vectors, name=setting.model, texts=stored.texts, ids=stored.ids)
    cost = {"disk_bytes": Path(setting.model).stat().st_size, "dimensions": stored.vectors.shape[1]}
    return Candidate(setting.name, [whole.bind(held) for held in bench.data], None, setting.model, "vectors", stored.store, cost)


def _endpoint(bench: Bench, setting: Setting) -> Candidate:
    from twinvec.evaluation.compare import Candidate
    from twinvec.evaluation.recorded import Replayed, record
    from twinvec.evaluation.sources import EndpointEncoder, split_endpoint

    encoder = EndpointEncoder(*split_endpoint(setting.model), **bench.service)
    # Measured each time: a service may change its model without a sign.
    recording = record(encoder, bench.data, None, seconds=bench.seconds, progress=False, **bench.options)
    facts = recording.facts
    cost = {**facts["cost"], "dimensions": facts["dimensions"]}
    return Candidate(setting.name, [Replayed(recording)] * len(bench.data), None, setting.model, "endpoint", None, cost)


def _model(bench: Bench, setting: Setting, number: int) -> Candidate:
    from twinvec.evaluation.compare import Candidate
    from twinvec.evaluation.recorded import Replayed, load_recording

    answer = bench.work / f"answer-{number}.json"
    job = bench.work / f"job-{number}.json"
    write_json(
        job,
        {
            "model": setting.model, "name": setting.name, "prompt": setting.prompt, "engine": setting.engine, "precision": setting.precision,
            "files": [str(path) for path in bench.files], "reads": bench.reads, "options": bench.options, "loads": bench.loads,
            "seconds": bench.seconds, "cache": None if bench.cache is None else str(bench.cache), "work": str(bench.work / f"recording-{number}"),
            "exports": str((bench.cache or bench.work) / "exports"), "progress": bench.out.progress, "answer": str(answer),
        },
    )  # fmt: skip
    told = _run(job, answer, setting, bench.out.progress)
    if not told["ok"]:
        raise (UsageError if told["usage"] else ModelError)(told["error"])
    recording = load_recording(Path(told["folder"]))
    if recording is None:
        raise ModelError(f"{told['folder']}: what was measured cannot be read back; is the disk full?")
    facts = recording.facts
    if told["cached"]:
        bench.out.note(f"{setting.name}: from the cache (same model, data, options and machine)", keep=False)
    cost = {**facts["cost"], "dimensions": facts["dimensions"], "cached": told["cached"]}
    return Candidate(setting.name, [Replayed(recording)] * len(bench.data), setting.prompt, setting.model, facts["engine"], facts["precision"], cost)


def _run(job: Path, answer: Path, setting: Setting, show: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "twinvec.cli.compare_trial", str(job)]
    found = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=None if show and sys.stderr.isatty() else subprocess.PIPE)
    if not answer.is_file():
        last = ((found.stderr or b"").decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1][:200]
        how = f"signal {-found.returncode}" if found.returncode < 0 else f"exit status {found.returncode}"
        raise ModelError(f"{setting.name}: the process that measured it ended with {how} ({last})")
    told: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return told


def default_cache() -> Path:
    """XDG_CACHE_HOME/twinvec/compare, or ~/.cache/twinvec/compare."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if given and Path(given).is_absolute() else Path.home() / ".cache") / "twinvec" / "compare"
