"""`twinvec encode` in a process of its own that is killed: nothing lost, nothing doubled, nothing left lying about."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from twinvec.scale.bulk import encode_files

ROWS = 400
# Small shards, and a pause after each, so that there is a middle to be killed in.
CODE = """
import time
from twinvec.scale import bulk, parts
bulk.encode_files.__kwdefaults__["shard_rows"] = 20
commit = parts.Parts.commit
parts.Parts.commit = lambda *args: (commit(*args), time.sleep(0.05))
from twinvec.cli.main import main
main()
"""


def start(model: Path, texts: Path, output: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CODE, "encode", str(model), str(texts), "-o", str(output)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(path: Path, child: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert child.poll() is None, child.stderr and child.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_killed_and_interrupted_runs_go_on(model: Path, tmp_path: Path) -> None:
    texts, output = tmp_path / "t.txt", tmp_path / "out.parquet"
    texts.write_text("".join(f"the cat {i % 150} sat\n" for i in range(ROWS)))
    encode_files(model, texts, tmp_path / "whole.parquet", shard_rows=20, progress=False)
    parts = tmp_path / "out.parquet.parts"
    with start(model, texts, output) as child:
        wait_for(parts / "shard-000004.arrow", child)
        child.send_signal(signal.SIGKILL)
    assert not output.exists()
    first = len(list(parts.glob("shard-*.arrow")))
    assert 5 <= first < 20
    with start(model, texts, output) as child:
        wait_for(parts / f"shard-{first + 2:06d}.arrow", child)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert f"{20 * first} rows were done before, in {parts}; going on from there" in err
    assert f"what is done is kept in {parts} (" in err
    assert "parts); the same command goes on from there" in err
    assert err.rstrip().endswith("twinvec: interrupted")
    assert "Traceback" not in err
    report = encode_files(model, texts, output, shard_rows=20)
    assert report.rows == ROWS
    assert report.resumed_rows >= 20 * (first + 3)
    assert output.read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["out.parquet", "t.txt", "whole.parquet"]


@pytest.mark.parametrize("when", ["whole", "replaced"])
def test_killed_while_the_parts_are_put_together(when: str, encoder: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, output = tmp_path / "t.txt", tmp_path / "out.npy"
    texts.write_text("".join(f"the cat {i}\n" for i in range(100)))
    encode_files(encoder, texts, tmp_path / "whole.npy", shard_rows=20)  # type: ignore[arg-type]

    def killed(*_: object) -> None:
        raise SystemExit(143)

    with monkeypatch.context() as patched:
        patched.setattr("twinvec.scale.parts.Parts.become" if when == "whole" else "twinvec.scale.parts.Parts.remove", killed)
        with pytest.raises(SystemExit):
            encode_files(encoder, texts, output, shard_rows=20)  # type: ignore[arg-type]
    assert output.exists() == (when == "replaced")
    report = encode_files(encoder, texts, output, shard_rows=20, force=True)  # type: ignore[arg-type]
    assert report.resumed_rows == 100
    np.testing.assert_array_equal(np.load(output), np.load(tmp_path / "whole.npy"))
    assert sorted(os.listdir(tmp_path)) == ["out.npy", "t.txt", "whole.npy"]
