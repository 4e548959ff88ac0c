"""Five models and settings on ATEC dev, and their report in a real browser."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from twinvec.data.dataset import read_data
from twinvec.evaluation.compare import Candidate, Comparison, compare
from twinvec.evaluation.recorded import Replayed, record
from twinvec.evaluation.report.build import write_report
from twinvec.evaluation.sources import Shortened
from twinvec.model.encoder import Encoder

SHARED = Path(__file__).resolve().parents[3] / "shared"
ATEC = SHARED / "data/pairs/zh/atec.dev.csv.gz"
E5 = SHARED / "models/e5-small-zh-en"
ROWS = 150


@pytest.fixture(scope="module")
def found() -> Comparison:
    for path in (ATEC, E5):
        if not path.exists():
            pytest.skip(f"needs {path.relative_to(SHARED.parent)}, which is not here")
    data = read_data(ATEC).select(range(ROWS))
    encoders = {"minilm": (Encoder.load("minilm"), None), "e5": (Encoder.load(E5), ""), "e5::query": (Encoder.load(E5), "query")}
    candidates = []
    for name, (encoder, prompt) in encoders.items():
        made = record(encoder, [data], prompt, seconds=0.0, progress=False)
        made.facts["fingerprint"] = f"{encoder.fingerprint}{prompt}"
        candidates.append(Candidate(name, [Replayed(made)], prompt, cost=made.facts["cost"]))
        if name != "e5":
            candidates.append(Candidate(f"{name}, 64d", [Shortened(Replayed(made), 64)], prompt, cost=made.facts["cost"]))
    return compare(candidates, [data], figure="spearman_cosine", draws=500, progress=False)


def test_a_chinese_model_is_better_at_chinese(found: Comparison) -> None:
    quality = {row["model"]: row["quality"] for row in found.result["models"]}
    unknown = {row["model"]: row["unknown_rate"] for row in found.result["models"]}
    assert len(quality) == 5
    assert quality["e5::query"] > quality["minilm"]
    assert unknown["minilm"] > 0.5 > 0.05 > unknown["e5::query"]
    assert found.result["recommendation"]["choice"] in {row["number"] for row in found.result["models"] if row["model"].startswith("e5")}


def test_its_report_in_a_browser(found: Comparison, tmp_path: Path) -> None:
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = write_report(tmp_path / "r.html", found, geometry=True)
    where = next((at for name in ("chromium", "chromium-browser", "google-chrome") if (at := shutil.which(name))), None)
    with sync.sync_playwright() as play:
        try:
            browser = play.chromium.launch(executable_path=where, args=["--no-sandbox"])
        except sync.Error as err:
            pytest.skip(f"no Chromium that starts here: {str(err).splitlines()[0]}")
        for width in (1280, 390):
            page = browser.new_page(viewport={"width": width, "height": 844})
            said: list[Any] = []
            page.on("console", lambda message, said=said: said.append(message.text))
            page.on("pageerror", lambda error, said=said: said.append(str(error)))
            page.goto(path.as_uri())
            page.locator("table.sortable th button").nth(2).click()
            page.locator("svg circle[data-tip]").first.hover(force=True)
            assert page.locator("#tip").is_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert said == []
        browser.close()
