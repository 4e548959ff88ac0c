"""docs/cli.md is what the commands say of themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "tools" / "make_cli_docs.py"), "--check"]
    found = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
