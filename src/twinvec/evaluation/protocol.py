"""Ways to fool oneself: a test that was trained on, a dev file reported as test. Each is said aloud beside the figure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from twinvec.data.dataset import read_data
from twinvec.errors import TwinvecError
from twinvec.text import same_text_key

_SEEN_ROWS: Final = 5_000_000  # pairs of training data looked through at most
_NOT_TEST: Final = re.compile(r"(^|[^a-z])(dev|develop|development|valid|validation|val|trial|train|training)([^a-z]|$)")
_HELD = ("dev", "test", "exclude")


def not_a_test(path: str | Path) -> list[str]:
    """A note when a file's own name says that it is no test set."""
    name = Path(path).name.lower()
    found = _NOT_TEST.search(name)
    if not found:
        return []
    if found[2].startswith("train"):
        return [f"{name} is a training file by its name: figures on rows that models were trained on say nothing; measure on a test file"]
    return [f"{name} is a dev file by its name: settings and checkpoints are chosen on such files, so do not report this figure as a test figure"]


def trained_on(encoder: Any, sha256: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Notes when the run that made this model trained on the file, on pairs of it, or chose its checkpoint by it.

    encoder: its `source` is the model's folder; the run's record is run.json there or one folder up (and in the folders of its stages).
    sha256: of the files measured; rows: their texts, row by row. A model without a record says nothing. Training files that are no longer
    where they were are named, since then only the hashes could be compared.
    """
    records = list(_records(getattr(encoder, "source", None)))
    if not records:
        return []
    notes: list[str] = []
    excluded: set[str] = set()
    sources: dict[str, _Source] = {}
    for folder, record in records:
        files = record.get("files")
        for role, entry in files.items() if isinstance(files, dict) else ():
            if not isinstance(entry, dict) or not isinstance(entry.get("path"), str) or not isinstance(entry.get("sha256"), str):
                continue
            path, digest = entry["path"], entry["sha256"]
            if role.startswith("exclude"):
                excluded.add(digest)
            elif digest in sha256 and role == "dev":
                notes.append(f"{path} chose this model's checkpoint (dev in {folder / 'run.json'}): its figure is too good to be a test figure")
            elif digest in sha256 and not role.startswith(_HELD):
                notes.append(f"this model was TRAINED on this very file ({role} in {folder / 'run.json'}): the figure says nothing about new data")
            elif not role.startswith(_HELD):
                sources[digest] = _Source(path, _there(folder, path), _reads(record.get("recipe"), path))
    if (sha256 and set(sha256) <= excluded) or not sources:
        return list(dict.fromkeys(notes))
    notes += _shared_pairs(rows, sources)
    return list(dict.fromkeys(notes))


@dataclass(frozen=True)
class _Source:
    """A training file as the record names it, where it is now (None: nowhere), and how the recipe read it."""

    path: str
    file: Path | None
    reads: dict[str, Any]


def _reads(recipe: Any, path: str) -> dict[str, Any]:
    """Columns, kind and the like that the recipe gave for a file."""
    if not isinstance(recipe, dict):
        return {}
    listed = [source for source in recipe.get("source") or [] if isinstance(source, dict)]
    given: dict[str, Any] = next((source for source in listed if source.get("data") == path), recipe)
    return {name: given[name] for name in ("kind", "columns", "encoding", "labels", "score_range") if given.get(name) is not None}


def _records(source: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
    if source is None:
        return
    here = Path(source)
    for folder in (here, here.parent):
        record = _read(folder)
        if record is None:
            continue
        yield folder, record
        for name in record.get("stages") or []:
            stage = folder / Path(str(name)).name
            found = _read(stage)
            if found is not None:
                yield stage, found
        return


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "recipe" in found else None


def _there(folder: Path, path: str) -> Path | None:
    """The file as the record names it: from here, or from a folder above the run (runs are started beside their data)."""
    for start in (Path(), *folder.absolute().parents):
        if (start / path).is_file():
            return start / path
    return None


def _shared_pairs(rows: Iterable[Sequence[str]], sources: dict[str, _Source]) -> list[str]:
    wanted = [_pair(row) for row in rows]
    distinct = set(wanted)
    notes = []
    for source in sources.values():
        path = source.path
        if source.file is None:
            notes.append(f"this model was trained on {path}, which is not here any more: whether it holds pairs of this test could not be checked")
            continue
        try:
            data = read_data(source.file, **source.reads)
        except (TwinvecError, TypeError) as err:  # a damaged record must not stop a measurement
            notes.append(f"this model was trained on {path}, which cannot be read now ({str(err)[:120]}): shared pairs could not be checked")
            continue
        seen = {_pair(row) for _, row in zip(range(_SEEN_ROWS), zip(*data.columns.values(), strict=True), strict=False)} & distinct
        count = sum(pair in seen for pair in wanted)
        if count:
            notes.append(f"{count} of {len(wanted)} rows are in the training data of this model ({path}): the figure is too good by what they give")
    return notes


def _pair(row: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(same_text_key(text) for text in list(row)[:2]))
