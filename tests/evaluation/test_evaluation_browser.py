"""The report in a real browser: no error, tables sort, hover tells, a phone needs no sideways scrolling, paper shows all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from compare_data import candidate, classes, compared, pairs

from twinvec.evaluation.report.build import write_report

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LONG = "a-model-with-a-name-that-is-as-long-as-names-on-the-hub-are/" * 2


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    with sync.sync_playwright() as play:
        try:
            started = play.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except sync.Error as err:
            pytest.skip(f"no Chromium that starts here: {str(err).splitlines()[0]}")
        yield started
        started.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cost = {"peak_memory": 5e8, "disk_bytes": 9e7, "latency_p50_ms": 5.0}
    models = [candidate("good", 0.2, 2, 100.0, **cost), candidate(LONG, 0.5, 2, 950.0, **cost), candidate("poor", 9.0, 2)]
    path = tmp_path_factory.mktemp("report") / "r.html"
    return write_report(
        path, compared(*models, data=[pairs(), classes()], draws=50), geometry=True, about={"command": "twinvec compare " + "x" * 200}
    )


@pytest.fixture
def opened(browser: Any, report: Path) -> Iterator[Any]:
    pages: list[Any] = []

    def go(width: int = 1280, **context: Any) -> Any:
        page = browser.new_page(viewport={"width": width, "height": 800}, **context)
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if not request.url.startswith(("file:", "data:")) else None)
        page.goto(report.as_uri())
        page.said = said
        pages.append(page)
        return page

    yield go
    for page in pages:
        assert page.said == []
        page.close()


def test_tables_sort_on_a_click(opened: Any) -> None:
    page = opened()
    table = page.locator("table.sortable").first
    heads = table.locator("th")
    rate = next(i for i in range(heads.count()) if heads.nth(i).inner_text().startswith("texts/s"))
    cells = f"tbody tr td:nth-child({rate + 1})"

    def shown() -> list[str]:
        return [text.strip() for text in table.locator(cells).all_inner_texts()]

    assert shown() == ["100", "950", "–"]
    heads.nth(rate).locator("button").click()
    assert shown() == ["950", "100", "–"]  # numbers: the largest first
    assert heads.nth(rate).get_attribute("aria-sort") == "descending"
    heads.nth(rate).locator("button").click()
    assert shown() == ["100", "950", "–"]  # unknown stays last
    heads.nth(1).locator("button").press("Enter")  # by the keyboard too
    assert [text.strip()[:4] for text in table.locator("tbody tr td:nth-child(2)").all_inner_texts()] == [LONG[:4], "good", "poor"]
    assert heads.nth(rate).get_attribute("aria-sort") == "none"


def test_hover_shows_what_a_point_is(opened: Any) -> None:
    page = opened()
    tip = page.locator("#tip")
    assert not tip.is_visible()
    page.locator("svg circle[data-tip]").first.hover(force=True)
    assert tip.is_visible()
    assert "good" in tip.inner_text()
    assert "texts/s" in tip.inner_text()
    page.locator("#switch").click()
    page.locator("svg circle[data-tip]").first.hover(force=True)
    assert "每秒 100 条" in tip.inner_text()
    box = tip.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 1280


def test_the_language_changes(opened: Any) -> None:
    page = opened()
    assert page.locator("h1").inner_text() == "Comparison of models"
    page.locator("#switch").click()
    assert page.locator("h1").inner_text() == "模型对比"
    assert page.evaluate("document.documentElement.lang") == "zh-Hans"
    assert page.title() == "模型对比"
    assert "Quality and cost" not in page.locator("body").inner_text()


@pytest.mark.parametrize("width", [320, 390, 768])
def test_narrow_screens_need_no_sideways_scrolling(opened: Any, width: int) -> None:
    page = opened(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = page.evaluate("[...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().right > innerWidth + 0.5).length")
    assert wide == 0
    page.locator("#switch").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_mode_stays_readable(opened: Any) -> None:
    page = opened(color_scheme="dark")
    paper, ink = page.evaluate("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))")
    assert paper == "rgb(23, 25, 28)"
    assert ink == "rgb(232, 232, 232)"
    assert page.evaluate("getComputedStyle(document.querySelector('svg text')).fill") != "rgb(28, 28, 28)"


def test_without_scripts_and_on_paper(opened: Any) -> None:
    page = opened(java_script_enabled=False)
    assert page.locator("h1").inner_text() == "Comparison of models"
    assert page.locator("svg").first.is_visible()
    printed = opened()
    printed.emulate_media(media="print")
    printed.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert not printed.locator("#switch").is_visible()
    assert printed.evaluate("[...document.querySelectorAll('details')].every(d => d.open)")
    assert len(printed.pdf()) > 10_000
