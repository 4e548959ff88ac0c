"""What the tests of `twinvec compare` share: models measured inside the test's own process, which is faster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twinvec.cli import compare_runs, compare_trial

PAIRS = "sentence1,sentence2,label\n" + "".join(
    f"the cat sat {i},the cat sat {i} on the mat,1\nwhere is refund {i},a dog looked {i},0\n" for i in range(8)
)
QUICK = ("--bootstrap", "50", "--seconds", "0")


def measure_inside(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No processes from here on; the list tells what was measured and what was kept."""
    done: list[str] = []

    def go(job: Path, answer: Path, setting: Any, show: bool) -> dict[str, Any]:
        compare_trial.main(str(job))
        told: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        done.append(f"{setting.name}: {'failed' if not told['ok'] else 'kept' if told['cached'] else 'measured'}")
        return told

    monkeypatch.setattr(compare_runs, "_run", go)
    return done
