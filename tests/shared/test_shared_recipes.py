"""Every recipe of examples/ runs: its files are read, its objectives fit them, a few steps are made, and what it leaves works alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import twinvec as tv

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))
SHARED = ROOT.parent / "shared"
MEASURING = ("dev", "metric", "patience", "dev_share", "evaluations_per_epoch", "test")

pytestmark = pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="../shared is not there")


def shortened(settings: dict[str, Any]) -> dict[str, Any]:
    """A few rows, two steps, nothing measured; stages and sources likewise."""
    short = {key: value for key, value in settings.items() if key not in MEASURING}
    for name in ("stage", "source"):
        if name in short:
            short[name] = [shortened(item) for item in short[name]]
    if "data" in short or "source" in short or "stage" in short:
        short |= {"limit": 1500}  # enough to hold NLI triplets and several classes
    if "data" in short and short["data"].startswith("runs/"):
        short["data"] = "../shared/data/nli/en/cad-snli.dev.csv"  # what an earlier command would have made
    return short


@pytest.mark.filterwarnings("ignore::twinvec.errors.TwinvecWarning")  # small batches, shared pairs: said, and meant here
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_recipe_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    settings = shortened(tomllib.loads(path.read_text(encoding="utf-8")))
    if str(settings["model"]).startswith("runs/"):
        settings["model"] = "minilm"  # stands in for the model that an earlier recipe trains
    if settings["model"] == "new":
        settings["new_model"] |= {"layers": 1, "texts": ["../shared/data/text/tatoeba-zh.txt.gz"], "vocabulary": 500}
    settings |= {"output": str(tmp_path / "run"), "max_steps": 2, "batch_size": 8}
    for stage in settings.get("stage", []):
        stage["batch_size"] = 8
    result = tv.train(tv.Recipe.of(**settings), progress=False)
    encoder = tv.Encoder.load(result["best"])
    assert np.isfinite(encoder.encode(["a man plays a guitar", "花呗怎么还款"], prompt="")).all()
    assert (tmp_path / "run" / "report.html").stat().st_size > 1000
