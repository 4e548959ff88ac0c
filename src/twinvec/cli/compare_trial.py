"""One model of `twinvec compare`, in a process of its own: `python -m twinvec.cli.compare_trial JOB.json`, whose answer is left in a file.

So memory is counted afresh, and a model that crashes or takes all memory ends alone.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import warnings
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinvec.cli.trial import peak_memory, said
from twinvec.errors import TwinvecError, UsageError
from twinvec.files import sha256_file, write_json

if TYPE_CHECKING:
    from twinvec.model.encoder import Encoder


def main(path: str) -> int:
    job: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    warnings.simplefilter("ignore")
    try:
        answer = {"ok": True, **run(job)}
    except Exception as err:  # what a model raises is an answer too
        usage = isinstance(err, UsageError)
        answer = {"ok": False, "error": said(err), "usage": usage, "ours": isinstance(err, TwinvecError)}
    write_json(job["answer"], answer)
    return 0


def run(job: dict[str, Any]) -> dict[str, Any]:
    """{"folder": where the recording lies, "cached": whether it was there}."""
    from twinvec.evaluation.reading import read_held
    from twinvec.evaluation.recorded import data_hash, hash_of, load_recording, record, save_recording

    start = time.perf_counter()
    encoder, exported = open_model(job)
    load_seconds = time.perf_counter() - start
    fingerprint = encoder.fingerprint
    _forget_peak()
    data = [read_held(path, **job["reads"]) for path in job["files"]]
    key = {
        "fingerprint": fingerprint, "engine": encoder.engine.name, "precision": encoder.precision, "threads": encoder.threads,
        "export": None if exported is None else sha256_file(exported / "engine.json"), "prompt": job["prompt"], "max_tokens": encoder.max_tokens,
        "data": [data_hash(held) for held in data], "options": _content(job["options"]), "seconds": job["seconds"], "versions": _versions(),
        "machine": _machine(),
    }  # fmt: skip
    folder = Path(job["cache"]) / "results" / hash_of(key) if job["cache"] else Path(job["work"])
    if job["cache"] and (kept := load_recording(folder)) is not None:
        # The same weights may lie in another folder, with another record of their training.
        if kept.facts.get("source") != str(encoder.source) or kept.facts.get("name") != job["name"]:
            kept.facts |= {"source": str(encoder.source), "name": job["name"]}
            save_recording(folder, kept)
        return {"folder": str(folder), "cached": True}
    recording = record(encoder, data, job["prompt"], seconds=job["seconds"], progress=job["progress"], **job["options"])
    recording.facts |= {
        "name": job["name"], "fingerprint": fingerprint, "source": str(encoder.source), "engine": encoder.engine.name,
        "precision": encoder.precision, "pooling": list(encoder.engine.pooling), "max_tokens": encoder.max_tokens,
    }  # fmt: skip
    recording.facts["cost"] |= {
        "load_seconds": load_seconds, "threads": encoder.threads, "peak_memory": peak_memory(), "disk_bytes": disk_bytes(encoder, exported),
    }  # fmt: skip
    save_recording(folder, recording)
    return {"folder": str(folder), "cached": False}


def open_model(job: dict[str, Any]) -> tuple[Encoder, Path | None]:
    """The encoder, and the folder of its export where it runs from one. An export that is not there is made in the cache, never in the model."""
    from twinvec.model.encoder import Encoder
    from twinvec.model.engines.manifest import export_folder

    loads = {name: value for name, value in job["loads"].items() if value is not None}
    engine, precision = job["engine"], job["precision"]
    if engine not in ("ctranslate2", "onnx"):
        encoder = Encoder.load(job["model"], engine=engine, precision=precision, **loads)
        if encoder.engine.name in ("ctranslate2", "onnx") and encoder.source is not None:  # "auto", as tune has chosen
            return encoder, export_folder(encoder.source, encoder.engine.name, encoder.precision)
        return encoder, None
    from twinvec.model.resolve import resolve

    precision = precision or "float32"
    folder = resolve(job["model"], loads.get("revision"))
    if not (export_folder(folder, engine, precision) / "engine.json").is_file():
        folder = _exported(folder, engine, precision, Path(job["exports"]))
    loads.pop("revision", None)
    return Encoder.load(folder, engine=engine, precision=precision, **loads), export_folder(folder, engine, precision)


def _exported(source: Path, engine: str, precision: str, exports: Path) -> Path:
    """A copy of the model with the export; made once for the same files."""
    from twinvec.evaluation.recorded import hash_of
    from twinvec.model.engines.export import copy_model, export, require
    from twinvec.model.engines.manifest import export_folder, source_files

    require(engine)
    place = exports / hash_of({name: sha256_file(path) for name, path in source_files(source).items()})
    if not place.is_dir():
        from twinvec.files import atomic_folder

        with atomic_folder(place) as target:
            copy_model(source, target)
    if not (export_folder(place, engine, precision) / "engine.json").is_file():
        export(place, engine=engine, precision=precision)
    return place


def disk_bytes(encoder: Encoder, exported: Path | None) -> int | None:
    """Bytes of the files that this way of computing needs: the model's weights and tokenizer, or the export."""
    from twinvec.model.engines.manifest import source_files

    source = encoder.source
    if exported is not None:
        return sum(path.stat().st_size for path in exported.rglob("*") if path.is_file())
    if source is None:
        return None
    if source.is_file():
        return source.stat().st_size
    return sum(path.stat().st_size for path in source_files(source).values())


def _content(options: dict[str, Any]) -> dict[str, Any]:
    """The options with a file's content instead of its name."""
    return {**options, "train": sha256_file(Path(options["train"])) if options.get("train") else None}


def _versions() -> dict[str, str]:
    found = {}
    for name in ("twinvec", "torch", "transformers", "tokenizers", "ctranslate2", "onnxruntime", "numpy"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _machine() -> dict[str, Any]:
    from twinvec.model.machine import describe_machine

    return describe_machine()


def _forget_peak() -> None:
    """Start counting memory here: a fingerprint of a model in lower precision reads the folder a second time. Linux only, and no harm elsewhere."""
    gc.collect()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
