"""Which engine, in which precision, serves a load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from twinvec.errors import ModelError
from twinvec.model.encoder import warn
from twinvec.model.engines.profile import Profile, profile_path, read_profile
from twinvec.model.machine import describe_machine


@dataclass(frozen=True)
class Choice:
    """threads and batch_tokens are None for the engine's own; exports is the model folder that holds the export, None for the model's own."""

    engine: str
    precision: str = "float32"
    threads: int | None = None
    batch_tokens: int | None = None
    exports: Path | None = None


def decide(
    name: str | Path, folder: Path, *, engine: str | None, precision: str | None, profile: str | Path | None, threads: int | None, device: str | None
) -> Choice:
    """What was asked for; for "auto" what tune has found on this machine, or torch in float32.

    A profile serves "auto" only, and only where nothing that was asked for says otherwise: another precision, or a GPU.
    """
    plain = Choice("torch" if engine in (None, "auto") else str(engine), precision or "float32", threads)
    if engine != "auto" or device not in (None, "cpu"):
        return plain
    found = _profile(name, folder, profile)
    if found is None or (precision is not None and precision != found.precision):
        return plain
    exports = Path(found.exports) if found.exports else None
    if exports is not None and not exports.is_dir():
        warn(f"the profile of {name} names {exports}, which is gone: not used; run twinvec tune again")
        return plain
    return Choice(found.engine, found.precision, threads or found.threads, found.batch_tokens, exports)


def _profile(name: str | Path, folder: Path, given: str | Path | None) -> Profile | None:
    path = Path(given) if given is not None else profile_path(name, folder)
    if given is not None and not path.is_file():
        raise ModelError(f"{path}: no such profile; make one with: twinvec tune {name} --profile {path}")
    if not path.is_file():
        return None
    found = read_profile(path)
    if found.of_this_machine:
        return found
    here = describe_machine()
    differs = ", ".join(f"{key} {found.machine.get(key)!r} there, {value!r} here" for key, value in here.items() if found.machine.get(key) != value)
    warn(f"{path} was made on another machine ({differs}): not used, torch computes in float32; run twinvec tune here")
    return None
