"""The import table of docs/architecture.md, held against the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "src" / "twinvec"
BASE = {"errors", "records", "files", "progress", "text"}
ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "data": set(),
    "model": set(),
    "objectives": set(),
    "index": set(),
    "training": {"data", "model", "objectives"},
    "mining": {"data", "model", "index"},
    "search": {"model", "index"},
    "evaluation": {"data", "model", "index"},
    "scale": {"data", "model", "index"},
    "integrations": {"model"},
    "runs": {"data", "model", "objectives", "index", "training", "search", "evaluation"},
    "cli": {"data", "model", "objectives", "index", "training", "mining", "search", "evaluation", "scale", "runs"},
}
NO_TORCH = {"base", "data"}


def room_of(parts: tuple[str, ...]) -> str:
    return "base" if not parts or parts[0] in BASE else parts[0]


def imports(path: Path) -> Iterator[tuple[tuple[str, ...], int]]:
    """Every absolute or relative import in a file, as dotted parts, with its line."""
    package = path.relative_to(ROOT.parent).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield tuple(name.name.split(".")), node.lineno
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            module = (*start, *(node.module or "").split(".")) if node.module else start
            if module == ("twinvec",):
                for name in node.names:
                    yield (*module, name.name), node.lineno
            else:
                yield module, node.lineno


FILES = sorted(path for path in ROOT.rglob("*.py") if path not in (ROOT / "__init__.py", ROOT / "__main__.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_rooms_import_one_way(path: Path) -> None:
    room = room_of(path.relative_to(ROOT).with_suffix("").parts)
    assert room in ALLOWED, f"{path}: no room of that name in the import table"
    for module, line in imports(path):
        if module[0] == "torch":
            assert room not in NO_TORCH, f"{path}:{line}: {room} must not import torch"
        if module[0] != "twinvec":
            continue
        other = room_of(module[1:])
        if module[1:] == ("__version__",):
            continue
        assert other in ("base", room) or other in ALLOWED[room], f"{path}:{line}: {room} may not import {other}"


def test_the_table_names_every_room() -> None:
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == set(ALLOWED) - {"base"}


def test_the_check_can_fail(tmp_path: Path) -> None:
    assert not ALLOWED["index"] & {"model"}
    assert room_of(("model", "encoder")) == "model"
    assert room_of(("errors",)) == "base"
