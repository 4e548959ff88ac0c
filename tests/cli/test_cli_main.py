"""The frame around all commands: help, errors, interrupts, pipes, notes."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from twinvec.cli import options
from twinvec.cli.main import app, guarded
from twinvec.errors import DataError, UsageError

ROOT = Path(__file__).resolve().parents[2]
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
LIGHT = ("torch", "numpy", "transformers", "polars", "pydantic", "scipy", "rich", "faiss")


def command(*args: object, env: dict[str, str] | None = None) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **(env or {})}
    return {"args": [sys.executable, "-m", "twinvec.cli.main", *map(str, args)], "env": environment}


def twinvec(*args: object, env: dict[str, str] | None = None, stdout: Any = subprocess.PIPE) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(**command(*args, env=env), stdout=stdout, stderr=subprocess.PIPE, timeout=120, check=False)


def start(*args: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(**command(*args), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_help_is_light_and_quick() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = twinvec("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert found.returncode == 0
    # Processor time, since other work on the machine must not fail a test; it is what the wall clock shows on a free one.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.4
    for name in COMMANDS:
        assert f"  {name} ".encode() in found.stdout


def test_no_heavy_import_at_module_level() -> None:
    code = f"import sys, twinvec.cli.main; print([m for m in {LIGHT} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], env=command()["env"], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented(name: str, run: Any) -> None:
    shown = run(name, "--help")
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert lines[0].startswith(f"Usage: twinvec {name} [OPTIONS]")
    assert lines[2].strip().endswith("."), "one line says what the command is for"
    assert len(lines[2].strip()) <= 64, "it must fit the list of commands"
    example = shown.out.partition("Example:\n")[2].partition("\n\n")[0]
    assert f"twinvec {name} " in example or example.strip() == f"twinvec {name}" or f"twinvec {name}\n" in example
    assert "--json" in shown.out
    assert "--quiet" in shown.out
    assert f"## twinvec {name}" in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_help_text(name: str) -> None:
    from twinvec.cli.train import real_command

    command = real_command() if name == "train" else COMMANDS[name]
    for param in command.params:
        assert param.help, f"{name}: {param.name} has no help text"


def test_choices_are_those_of_the_library() -> None:
    from twinvec.data.columns import KINDS as DATA_KINDS
    from twinvec.data.tables import FORMATS
    from twinvec.index.collection import KINDS
    from twinvec.model.encoder import ON_LONG
    from twinvec.model.engines import ENGINES, PRECISIONS

    assert tuple(DATA_KINDS) == options.DATA_KINDS
    assert tuple(FORMATS) == options.FORMATS
    assert tuple(KINDS) == options.INDEX_KINDS
    assert (options.ENGINES, options.PRECISIONS) == (ENGINES, PRECISIONS)
    assert tuple(ON_LONG) == options.ON_LONG


def test_version_and_no_arguments(run: Any) -> None:
    assert run("--version").out.startswith("twinvec 0")
    bare = run()
    assert bare.code == 2
    assert "Commands:" in bare.err
    assert bare.out == ""


# errors


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (DataError("rows.csv, row 3: no label"), 1, "twinvec: error: rows.csv, row 3: no label\n"),
        (UsageError("k = 0: wanted 1 or more"), 2, "twinvec: error: k = 0: wanted 1 or more\n"),
        (PermissionError(13, "Permission denied", "out.npy"), 1, "twinvec: error: out.npy: permission denied\n"),
        (OSError(28, "No space left on device"), 1, "twinvec: error: no space left on device\n"),
        (KeyboardInterrupt(), 130, "twinvec: interrupted\n"),
        (MemoryError(), 1, "twinvec: error: out of memory"),
        (
            ZeroDivisionError("division by zero\nmore"),
            1,
            "twinvec: error: ZeroDivisionError: division by zero (unexpected; --debug shows the traceback)\n",
        ),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
    ],
)
def test_each_failure_is_one_message(error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise error

    assert guarded(fail) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(message)
    assert "Traceback" not in shown.err


def test_debug_shows_the_traceback(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "none.csv"
    plain, debug = run("inspect", path), run("inspect", path, "--debug")
    assert plain.code == debug.code == 1
    assert "Traceback" not in plain.err
    assert "Traceback" in debug.err
    assert debug.err.endswith(plain.err)


def test_debug_after_two_dashes_is_a_text(run: Any, collection: Path) -> None:
    found = run("search", collection, "--json", "--", "--debug")
    assert found.code == 0, found.err
    assert len(found.json["hits"]) == 3


# notes


def test_notes_go_to_standard_error_once_and_into_json(run: Any, saved_model: Path) -> None:
    plain = run("similarity", saved_model, "the cat sat", "", "--json")
    assert plain.err.count("note: ") == len(plain.json["notes"]) == 2
    assert any("empty" in note for note in plain.json["notes"])
    assert any("--prompt" in note for note in plain.json["notes"])
    quiet = run("similarity", saved_model, "the cat sat", "", "--json", "--quiet")
    assert quiet.err == ""
    assert quiet.json == plain.json


def test_a_warning_of_the_library_is_a_note(run: Any, bare_model: Any) -> None:
    found = run("similarity", bare_model("bert"), "the cat sat", "a dog")
    assert found.code == 0
    assert found.err.count("note: ") == 1
    assert "pooling is a guess" in found.err


# real processes; `inspect` of a data file needs no torch and so starts quickly


def test_output_survives_a_terminal_without_chinese(files: Path) -> None:
    narrow = {"PYTHONIOENCODING": "ascii"}
    plain = twinvec("inspect", files / "pairs.csv", env=narrow)
    assert plain.returncode == 0, plain.stderr
    assert b"\\u5982" in plain.stdout
    found = twinvec("inspect", files / "pairs.csv", "--json", env=narrow)
    assert json.loads(found.stdout)["sample"][2]["sentence1"] == "如何关闭支付宝免密支付"
    assert found.stdout.isascii()


def test_a_closed_pipe_is_quiet(files: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        found = twinvec("inspect", files / "pairs.csv", stdout=writer)
    finally:
        os.close(writer)
    assert (found.returncode, found.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_is_one_message(files: Path) -> None:
    with open("/dev/full", "wb") as full:
        found = twinvec("inspect", files / "pairs.csv", stdout=full)
    assert (found.returncode, found.stderr) == (1, b"twinvec: error: no space left on device\n")


@pytest.mark.parametrize(("sent", "code", "said"), [(signal.SIGINT, 130, b"twinvec: interrupted\n"), (signal.SIGTERM, 143, b"")])
def test_a_stopped_command_leaves_nothing(sent: signal.Signals, code: int, said: bytes, saved_model: Path, tmp_path: Path) -> None:
    process = start("encode", saved_model, "-", "-o", tmp_path / "out.npy", "--prompt", "query")
    try:
        assert process.stdin is not None
        process.stdin.write((b"word " * 2000 + b"\n") * 30)  # more than a pipe holds: once it is written, the command is reading, and waits for more
        process.stdin.flush()
        process.send_signal(sent)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, err) == (code, said)
    assert list(tmp_path.iterdir()) == []
