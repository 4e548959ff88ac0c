"""engine.json: what an export was made of, and the checks that it still is what it was. No torch here."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from twinvec.errors import ModelError, UsageError
from twinvec.files import sha256_file, write_json
from twinvec.model.layout import read_object

FORMAT: Final = 1
NAME: Final = "engine.json"
LEAST_COSINE: Final = {"float32": 0.9999, "int8": 0.98}
"""Least cosine between the vectors of the golden texts here and those of torch in float32: wrong weights or a wrong order of layers is far
below, the rounding of another library or of int8 is above (MiniLM int8: 0.99)."""
MAX_LOSS: Final = 0.5
"""Points (of 100) that an int8 export may lose on the user's own data."""
ASIDE: Final = {"twinvec.json", "profile.json", "calibration.json"}
"""Files of a model folder that decide no vector: an export stays good when they change."""

ASIDE_FOLDERS: Final = {"engines", "onnx", "openvino", "checkpoints"}


@dataclass(frozen=True)
class Manifest:
    """files: SHA-256 of each file of the export. sources: size, time and SHA-256 of each file of the model. parts: what the fingerprint covers.

    tokens, runtime: what the tokenizer and the runtime need. golden: texts with the vectors of torch in float32, without a prompt.
    """

    engine: str
    precision: str
    files: dict[str, str]
    sources: dict[str, dict[str, Any]]
    fingerprint: str
    parts: dict[str, Any]
    tokens: dict[str, Any]
    width: int
    runtime: dict[str, Any]
    golden: list[dict[str, Any]]
    least_cosine: float
    quality: dict[str, Any] | None = None
    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        write_json(folder / NAME, {"format": FORMAT, **asdict(self)})

    @staticmethod
    def read(folder: Path) -> Manifest:
        """ModelError when it is not there or not whole."""
        path = folder / NAME
        found = read_object(path)
        if found.get("format") != FORMAT:
            raise ModelError(f"{path}: format {found.get('format')!r}, this twinvec reads {FORMAT}; export the model again, or update twinvec")
        missing = [name for name in Manifest.__dataclass_fields__ if name not in found]
        if missing:
            raise ModelError(f"{path}: {missing[0]!r} is missing; export the model again")
        try:
            made = Manifest(**{name: found[name] for name in Manifest.__dataclass_fields__})
            made._vectors()
        except (KeyError, TypeError, ValueError) as err:
            raise ModelError(f"{path}: cannot be read ({type(err).__name__}: {err}); export the model again") from err
        return made

    def _vectors(self) -> npt.NDArray[np.float64]:
        return np.asarray([row["vector"] for row in self.golden], dtype=np.float64)

    def golden_cosine(self, vectors: Any) -> float:
        """The least cosine of `vectors` (those of the golden texts) to the stored ones; -1 where they cannot be compared."""
        wanted, found = self._vectors(), np.asarray(vectors, dtype=np.float64)
        return least_cosine(found, wanted)

    def check_files(self, folder: Path) -> None:
        """Every file of the export, byte for byte."""
        for name, wanted in self.files.items():
            path = folder / name
            if not path.is_file():
                raise ModelError(f"{path}: this file of the export is missing; export the model again")
            if sha256_file(path) != wanted:
                raise ModelError(f"{path}: its bytes are not those that were exported; the file is damaged, export the model again")

    def check_sources(self, model: Path, place: Path) -> None:
        """The files of the model that the export was made of. A file with the time and size of then is believed unread."""
        now = source_files(model)
        for name, then in self.sources.items():
            path = now.pop(name, None)
            if path is None:
                raise ModelError(f"{model}: {name} is gone since {place} was exported from it; export the model again")
            facts = path.stat()
            if facts.st_size == then["size"] and facts.st_mtime_ns == then["time"]:
                continue
            if facts.st_size != then["size"] or sha256_file(path) != then["sha256"]:
                raise ModelError(f"{path}: changed since {place} was exported from the model; export the model again")
        if now:
            raise ModelError(f"{model}: {min(now)} is new since {place} was exported from it; export the model again")


def least_cosine(found: npt.NDArray[np.float64], wanted: npt.NDArray[np.float64]) -> float:
    """Over rows; NaN counts as -1, and a zero row equals a zero row."""
    if found.shape != wanted.shape or not found.size:
        return -1.0
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1)
    both_zero = (np.linalg.norm(found, axis=1) == 0) & (np.linalg.norm(wanted, axis=1) == 0)
    cosine = np.where(both_zero, 1.0, (found * wanted).sum(1) / np.where(norms > 0, norms, np.inf))
    return float(np.nan_to_num(cosine, nan=-1.0).min())


def exports_of(model: Path) -> Path:
    return model / "engines"


def export_folder(model: Path, engine: str, precision: str) -> Path:
    """Where the export of a model folder lies."""
    return exports_of(model) / f"{engine}-{precision}"


def available(model: Path) -> list[tuple[str, str]]:
    """(engine, precision) of each export in a model folder."""
    found = sorted(exports_of(model).glob(f"*/{NAME}"))
    pairs = [path.parent.name.rpartition("-") for path in found]
    return [(engine, precision) for engine, _, precision in pairs if engine]


def source_files(model: Path) -> dict[str, Path]:
    """The files of a model folder that decide its vectors, by their path within it."""
    found = {}
    for folder, names, files in os.walk(model, followlinks=True):
        here = Path(folder)
        names[:] = sorted(name for name in names if here != model or not (name in ASIDE_FOLDERS or name.startswith(".")))
        for name in files:
            if name.endswith((".json", ".safetensors", ".txt", ".model", ".jinja")) and not (here == model and name in ASIDE):
                found[(here / name).relative_to(model).as_posix()] = here / name
    return found


def describe_sources(model: Path) -> dict[str, dict[str, Any]]:
    out = {}
    for name, path in sorted(source_files(model).items()):
        facts = path.stat()
        out[name] = {"size": facts.st_size, "time": facts.st_mtime_ns, "sha256": sha256_file(path)}
    return out


def missing_export(name: str, engine: str, precision: str, folder: Path) -> UsageError:
    """What to say where an export is asked for that is not there."""
    have = [f"{engine} {precision}" for engine, precision in available(folder)]
    aside = "" if folder.is_dir() and str(name) == str(folder) else " --output FOLDER, then give that folder as the model"
    return UsageError(
        f"engine = {engine!r}: {name} has no export for it in {precision} (it has: {', '.join(have) or 'none'}); "
        f"make one with: twinvec export {name} --engine {engine} --precision {precision}{aside}"
    )
