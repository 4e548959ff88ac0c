"""profile.json: what `twinvec tune` found to be best for a model on a machine. No torch here."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from twinvec.errors import ModelError, choose
from twinvec.files import write_json
from twinvec.model.engines import ENGINES, PRECISIONS
from twinvec.model.layout import read_object
from twinvec.model.machine import describe_machine

FORMAT: Final = 1
NAME: Final = "profile.json"


@dataclass(frozen=True)
class Profile:
    """engine, precision, threads, batch_tokens: the choice. exports: a model folder with the export where the model's own has none. allowed:
    precisions below float32 that the user accepted, max_loss: points of quality that they may cost. measured: all that was measured.
    """

    model: str
    machine: dict[str, Any]
    engine: str
    precision: str
    threads: int | None = None
    batch_tokens: int | None = None
    exports: str | None = None
    allowed: list[str] = field(default_factory=list)
    max_loss: float | None = None
    measured: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        write_json(path, {"format": FORMAT, **asdict(self)})

    @property
    def of_this_machine(self) -> bool:
        return self.machine == describe_machine()


def read_profile(path: Path) -> Profile:
    """ModelError when it is not there, cannot be read, or names what is not known here."""
    found = read_object(path)
    if found.get("format") != FORMAT:
        raise ModelError(f"{path}: format {found.get('format')!r}, this twinvec reads {FORMAT}; run twinvec tune again")
    try:
        profile = Profile(**{name: found[name] for name in Profile.__dataclass_fields__})
    except KeyError as err:
        raise ModelError(f"{path}: {err} is missing; run twinvec tune again") from err
    choose(f"{path}: engine", profile.engine, ENGINES[1:], ModelError)
    choose(f"{path}: precision", profile.precision, PRECISIONS, ModelError)
    for name in ("threads", "batch_tokens"):
        number = getattr(profile, name)
        if number is not None and (not isinstance(number, int) or number < 1):
            raise ModelError(f"{path}: {name} = {number!r}, wanted a number, 1 or more; run twinvec tune again")
    return profile


def profile_path(name: str | Path, folder: Path) -> Path:
    """In the model's folder where that is the user's own; for packaged and hub models in the user's configuration folder."""
    if Path(name).expanduser() == folder:
        return folder / NAME
    home = os.environ.get("XDG_CONFIG_HOME") or os.environ.get("APPDATA") or Path.home() / ".config"
    slug = re.sub(r"[^A-Za-z0-9._-]+", "--", str(name)).strip(".-") or "model"
    return Path(home) / "twinvec" / "profiles" / f"{slug}.json"
