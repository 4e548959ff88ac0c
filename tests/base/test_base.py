"""Atomic files, texts, errors, progress, the light import."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from twinvec import files
from twinvec.errors import UsageError, choose, nearest
from twinvec.progress import Progress
from twinvec.records import EncodeReport
from twinvec.text import same_text_key, without_surrogates


def test_a_file_is_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.json"
    files.write_json(path, {"a": "中文"})
    assert path.read_text(encoding="utf-8") == '{\n  "a": "中文"\n}\n'
    with contextlib.suppress(RuntimeError), files.atomic_file(path) as stream:
        stream.write(b"half")
        raise RuntimeError
    assert "中文" in path.read_text(encoding="utf-8")
    with pytest.raises(ValueError):
        files.write_json(path, {"a": float("nan")})
    assert [p.name for p in path.parent.iterdir()] == ["a.json"], "nothing half-written stays"


def test_a_file_obeys_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        files.write_text(tmp_path / "a", "x")
    finally:
        os.umask(old)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_a_folder_is_swapped_whole(tmp_path: Path) -> None:
    with files.atomic_folder(tmp_path / "f") as folder:
        (folder / "one").write_text("1")
    with pytest.raises(FileExistsError), files.atomic_folder(tmp_path / "f"):
        pass
    with contextlib.suppress(RuntimeError), files.atomic_folder(tmp_path / "f", replace=True) as folder:
        (folder / "two").write_text("2")
        raise RuntimeError
    assert [p.name for p in (tmp_path / "f").iterdir()] == ["one"]
    with files.atomic_folder(tmp_path / "f", replace=True) as folder:
        (folder / "two").write_text("2")
    assert [p.name for p in (tmp_path / "f").iterdir()] == ["two"]
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_folder_is_swapped_where_the_kernel_cannot_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.sys, "platform", "darwin")
    for name in ("one", "two"):
        with files.atomic_folder(tmp_path / "f", replace=True) as folder:
            (folder / name).write_text(name)
    assert [p.name for p in (tmp_path / "f").iterdir()] == ["two"]
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert files.sha256_file(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    with open(tmp_path / "a", "rb") as stream:
        assert files._digest(stream) == files.sha256_file(tmp_path / "a")


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [("ＡＢＣ  d", "abc D", True), ("é", "e\u0301", True), ("Straße", "STRASSE", True), ("a b", "ab", False)],
)
def test_same_text(one: str, two: str, same: bool) -> None:
    assert (same_text_key(one) == same_text_key(two)) == same


def test_lone_surrogates_are_replaced_and_nothing_else_is() -> None:
    assert without_surrogates("a\ud800b") == "a\ufffdb"
    assert without_surrogates("😀 中 é") == "😀 中 é"


def test_choices_are_listed_and_the_nearest_is_offered() -> None:
    assert choose("kind", "a", ["a", "b"]) == "a"
    with pytest.raises(UsageError, match=r"kind = 'exat': choose one of exact, flat; did you mean 'exact'\?"):
        choose("kind", "exat", ["exact", "flat"])
    assert nearest("zzz", ["exact"]) == ""


def report(**changes: object) -> EncodeReport:
    base = {
        "rows": 10, "dimensions": 4, "tokens": 50, "truncated": 0, "truncated_tokens": 0, "split": 0, "longest": 9, "empty": [], "unknown_rate": 0.0,
        "prompt": "", "engine": "torch", "precision": "float32", "threads": 2, "seconds": 0.1,
    }  # fmt: skip
    return EncodeReport(**{**base, **changes})  # type: ignore[arg-type]


def test_a_report_warns_of_what_was_lost() -> None:
    assert report().warnings() == []
    lost = report(truncated=2, truncated_tokens=30, empty=[3], unknown_rate=0.5)
    said = " ".join(lost.warnings())
    assert all(part in said for part in ("2 of 10", "30 tokens", "--on-long", "empty", "50%", "does not know this language"))
    assert lost.to_dict()["empty"] == 1
    assert lost.to_dict()["empty_rows"] == [3]


def test_progress_off_a_terminal_prints_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(4, "encode", every=0.0) as bar:
        for _ in range(4):
            bar.advance(1, loss=0.5)
        bar.message("half way")
    said = capsys.readouterr()
    assert said.out == ""
    assert "encode: 4/4 rows" in said.err
    assert "loss 0.5" in said.err
    assert "half way" in said.err
    with Progress(None, "quiet", show=False) as bar:
        bar.advance()
        bar.message("unseen")
    assert capsys.readouterr().err == ""


LIGHT = """
import os, sys
before = dict(os.environ)
import twinvec as tv
assert dict(os.environ) == before, "importing changes no environment variable"
assert "torch" not in sys.modules and "numpy" not in sys.modules, sorted(sys.modules)
assert "Encoder" in dir(tv) and tv.__version__
tv.Document("a", "b")
assert "torch" not in sys.modules
try:
    tv.Encodr
except AttributeError as err:
    assert "Encodr" in str(err)
"""


def test_the_import_is_light() -> None:
    subprocess.run([sys.executable, "-c", LIGHT], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
