from __future__ import annotations

import base64
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from twinvec.errors import DataError, UsageError
from twinvec.evaluation.charts import similarity_heatmap
from twinvec.evaluation.page import Page, format_number

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \" ' & <!-- \u2028 \ud800 \0 中文"
VOID = {"meta", "link", "img", "br"}


class Reader(HTMLParser):
    """Collects elements and checks that they are closed in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        if self.open:
            self.texts[self.open[-1]][-1] += text


def read(page: Page) -> Reader:
    reader = Reader()
    text = page.html()
    text.encode("utf-8")
    assert "\0" not in text
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def strings(part: Any) -> list[str]:
    if isinstance(part, (dict, list)):
        return [text for value in (part.values() if isinstance(part, dict) else part) for text in strings(value)]
    return [part] if isinstance(part, str) else []


def chart() -> dict[str, Any]:
    return similarity_heatmap(["\0a\x01\uffff", EVIL], [[1.0, 0.1], [0.1, 1.0]])


def test_every_text_is_escaped() -> None:
    page = Page(EVIL).heading(EVIL).text(EVIL).code(EVIL)
    page.table([{EVIL: EVIL}], EVIL).table({EVIL: EVIL}).chart(chart(), EVIL)
    reader = read(page)
    shown = EVIL.replace("\ud800", "\ufffd").replace("\0", "\ufffd")
    assert reader.texts["h1"] == reader.texts["title"] == reader.texts["h2"] == reader.texts["pre"] == [shown]
    assert reader.texts["p"] == [shown.strip()]
    assert reader.texts["td"] == [shown] * 3
    assert reader.texts["caption"] == [shown]
    assert all("onerror" not in attributes for _, attributes in reader.seen)
    assert [tag for tag, _ in reader.seen].count("script") == 3  # the spec, the library, the drawing
    assert shown in strings(json.loads(reader.texts["script"][0]))


def test_a_page_reaches_for_nothing_outside_itself() -> None:
    reader = read(Page("t").chart(chart(), "c"))
    for tag, attributes in reader.seen:
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, attributes)
    assert "@import" not in "".join(reader.texts["style"])
    assert "url(" not in "".join(reader.texts["style"])


def test_one_library_for_any_number_of_charts_and_none_without() -> None:
    one, three = Page("t").chart(chart()), Page("t").chart(chart()).chart(chart()).chart(chart())
    assert three.html().count("window.vegaEmbed=") == one.html().count("window.vegaEmbed=") == 1
    assert len(Page("t").text("x").html()) < 6000
    assert "<script" not in Page("t").text("x").html()


def test_each_chart_has_a_still_picture_for_paper() -> None:
    page = Page("t").chart(chart(), "first").chart(chart(), "second")
    stills = [a for tag, a in read(page).seen if tag == "img"]
    assert [a["alt"] for a in stills] == ["Figure 1. first", "Figure 2. second"]
    source = stills[0]["src"] or ""
    svg = base64.b64decode(source.split(",")[1]).decode("utf-8")
    assert ElementTree.fromstring(svg).tag.endswith("svg")  # well-formed, although the labels hold NUL and U+FFFF
    assert "<script" not in svg
    assert "@media print" in page.html()


def test_the_page_says_its_language() -> None:
    assert '<html lang="en">' in Page("t").html()
    page = Page("报告", "zh").table({"好": True}).chart(chart(), "热图")
    assert '<html lang="zh-Hans">' in page.html()
    assert "图 1. 热图" in page.html()
    assert read(page).texts["td"] == ["好", "是"]
    with pytest.raises(UsageError, match="language = 'de': choose one of en, zh"):
        Page("t", "de")


def test_the_page_is_made_for_phones_and_readers() -> None:
    reader = read(Page("t").chart(chart(), "c"))
    metas = {a.get("name"): a.get("content") for tag, a in reader.seen if tag == "meta"}
    assert metas["viewport"] == "width=device-width,initial-scale=1"
    assert any(a.get("aria-label") == "Figure 1. c" for _, a in reader.seen)


def test_paragraphs_and_tables() -> None:
    reader = read(Page("t").text("one\nline\n\n\ntwo\n \n").table([{"a": 1, "b": 0.82034}, {"b": None, "c": math.nan}]))
    assert reader.texts["p"] == ["one\nline", "two"]
    assert reader.texts["th"] == ["a", "b", "c"]
    assert reader.texts["td"] == ["1", "0.8203", "", "", "–", "nan"]
    with pytest.raises(DataError, match="at least one row"):
        Page("t").table([])


def test_lists_in_a_cell_are_json() -> None:
    assert read(Page("t").table({"ks": [1, 3], "注": {"甲": 1}})).texts["td"] == ["ks", "[1, 3]", "注", '{"甲": 1}']


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (3, "3"),
        (0.5, "0.5000"),
        (2e-5, "2.00e-05"),
        (0.0, "0.0000"),
        (-0.12345, "-0.1235"),
        (12345.67, "12345.7"),
        (10**9, "1000000000"),
        (math.inf, "inf"),
    ],
)
def test_numbers(value: float, shown: str) -> None:
    assert format_number(value) == shown


def test_numpy_numbers_look_like_python_numbers() -> None:
    import numpy as np

    assert format_number(np.float32(0.5)) == "0.5000"
    assert format_number(np.int64(7)) == "7"


def test_a_chart_that_cannot_be_drawn_is_named() -> None:
    with pytest.raises(DataError, match="a value that JSON cannot"):
        Page("t").chart({"data": {"values": [{"x": math.nan}]}, "mark": "bar"})
    with pytest.raises(DataError, match="a value that JSON cannot"):
        Page("t").chart({"mark": {1, 2}})
    with pytest.raises(DataError, match="Vega-Lite cannot draw this chart"):
        Page("t").chart({"mark": 3})


def test_saving_is_whole_and_repeatable(tmp_path: Path) -> None:
    page = Page("t", "zh").text("你好").chart(chart(), "c")
    path = page.save(tmp_path / "sub" / "report.html")
    assert path.read_text(encoding="utf-8") == page.html()
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    assert re.match(r"<!doctype html>\n<html", page.html())
    assert 500_000 < path.stat().st_size < 1_500_000
