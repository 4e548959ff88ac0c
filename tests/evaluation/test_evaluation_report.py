"""The report of a comparison: whole, safe, in both languages, and drawn from the right numbers."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from compare_data import candidate, classes, compared, pairs, parallel, retrieval, scores, triplets

from twinvec.data.dataset import Dataset
from twinvec.errors import DataError, UsageError
from twinvec.evaluation.calibration import reliability
from twinvec.evaluation.pictures import cone_of, heat_texts, histogram_of, map_of, pairs_of, random_cosines, reliability_of
from twinvec.evaluation.report.build import build_report, closer, geometry_picture, save_picture, write_report
from twinvec.evaluation.report.charts import histogram_chart, pareto_chart
from twinvec.evaluation.report.svg import Scale, Svg, nice_ticks
from twinvec.evaluation.report.words import W

NASTY = "</script><img src=x onerror=alert(1)>{0}\"'&\x00\ud800"


class Reader(HTMLParser):
    """Tags with their attributes, and whether they close in order."""

    VOID = ("meta", "link", "br", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    text = build_report(compared(), geometry=True, about={"command": "twinvec compare a b", "machine": "a machine"})
    found = Reader(text)
    assert text.startswith("<!doctype html>")
    for tag, attributes in found.tags:
        assert tag not in ("img", "iframe", "object")
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, attributes)
    assert not re.search(r"https?://", text)
    assert "@import" not in text
    assert "url(" not in text
    assert "nan" not in re.sub(r"[a-z]nan|nan[a-z]", "", re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL).lower())
    assert len(text) < 300_000
    assert text.count("<svg") == 1 + 1 + 3 * 4
    assert build_report(compared()) == build_report(compared())


def test_both_languages_stand_in_the_page() -> None:
    found = compared()
    for language, lang in (("en", "en"), ("zh", "zh-Hans")):
        text = build_report(found, language=language)
        assert f'<html lang="{lang}" class="show-{language}">' in text
        for words in (W["title"], W["table"], W["pareto"]):
            assert f"<span class=en>{words[0]}</span><span class=zh>{words[1]}</span>" in text
        assert found.result["recommendation"]["sentence"] in text
        assert found.result["recommendation"]["sentence_zh"] in text


def test_every_word_has_both_languages() -> None:
    for name, words in W.items():
        assert isinstance(words, tuple), name
        en, zh = words
        assert set(re.findall(r"\{\w+\}", en)) == set(re.findall(r"\{\w+\}", zh)), name
        assert name == "switch" or re.search("[\u4e00-\u9fff]", zh), name


def test_texts_are_escaped_everywhere() -> None:
    data = pairs(30)
    columns = {name: [f"{NASTY[:-1]}{text}" for text in texts] for name, texts in data.columns.items()}
    hostile = replace(data, columns=columns, path=Path(f"{NASTY[:20]}.csv"))
    found = compared(candidate(f"a{NASTY[:-1]}", 0.3, rate=5.0), candidate("b", 0.4, rate=6.0), data=[hostile])
    text = build_report(found, geometry=True, about={"command": NASTY}, left_out=[NASTY])
    assert "<img" not in text
    assert text.count("<script>") == text.count("</script>") == 1
    assert "\x00" not in text
    text.encode("utf-8")
    read = Reader(text)
    assert not [name for _, attributes in read.tags for name in attributes if name.startswith("on")]
    assert "{0}" in text.replace("&#123;", "{").replace("&#125;", "}")
    labelled = compared(candidate("a", 0.3), data=[classes()])
    assert "<b>one</b>" not in build_report(labelled)


ALL = {"pairs": pairs, "sts": scores, "classification": classes, "retrieval": retrieval, "parallel": parallel, "triplets": triplets}


@pytest.mark.parametrize("task", ALL)
def test_a_report_of_every_task(task: str) -> None:
    found = compared(candidate("a", 0.3, rate=5.0), candidate("b", 1.0), data=[ALL[task]()], draws=50)
    assert found.result["files"][0]["task"] == task
    Reader(build_report(found, geometry=True))
    outcome = found.outcomes[0][0]
    drawn = map_of(outcome)
    assert drawn is not None
    assert len(drawn.points) == len(drawn.groups) == len(drawn.texts)
    assert histogram_of(outcome)
    assert heat_texts(outcome) is not None


def test_a_report_of_almost_nothing() -> None:
    one = Dataset(kind="pairs", columns={"sentence1": ["a", "b"], "sentence2": ["a c", ""]}, labels=[1, 0])
    found = compared(candidate("a", 0.3), data=[one], draws=20)
    Reader(build_report(found, geometry=True))
    assert reliability_of(found.outcomes[0][0]) is None
    assert pareto_chart(found.result["models"], [], "x") is None
    assert map_of(found.outcomes[0][0]) is not None


def test_only_the_first_setting_of_a_model_is_shown_closer() -> None:
    twice = [replace(candidate("a", 0.3), name=name) for name in ("a, torch", "a, onnx")]
    assert closer(compared(*twice, candidate("b", 0.4))) == [0, 2]
    assert len(closer(compared(*(candidate(f"m{i}", 0.1 * i) for i in range(9)), draws=5))) == 6


# --- the numbers behind the pictures


def test_pairs_of_scores_are_the_ends_of_their_range() -> None:
    data = scores()
    found = compared(candidate("a", 0.3), data=[data], draws=20)
    cosines, same = pairs_of(found.outcomes[0][0]) or (None, None)
    assert cosines is not None
    assert same is not None
    gold = np.asarray(data.labels) / 6
    np.testing.assert_array_equal(same == 1, gold >= 2 / 3)
    np.testing.assert_array_equal(same == 0, gold <= 1 / 3)


def test_reliability_is_of_rows_not_learnt_from() -> None:
    found = compared(candidate("a", 2.0), data=[pairs(400)], draws=5)
    made = reliability_of(found.outcomes[0][0])
    assert made is not None
    assert sum(part["rows"] for part in made["bins"]) == 400
    assert made["expected_calibration_error"] < 0.15
    assert len(made["bins"]) == len(reliability([part["said"] for part in made["bins"]], [0] * len(made["bins"])))


def test_the_map_is_the_two_first_components() -> None:
    from sklearn.decomposition import PCA

    found = compared(candidate("a", 0.3), data=[classes(40)], draws=5)
    drawn = map_of(found.outcomes[0][0])
    assert drawn is not None
    vectors = found.outcomes[0][0].encoded.vectors["text"].astype(np.float64)
    wanted = PCA(2).fit(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(np.abs(drawn.points), np.abs(wanted.transform(unit)), atol=1e-6)
    assert f"{wanted.explained_variance_ratio_[0]:.0%}" in drawn.axes[0][0]
    assert drawn.names[0] == "<b>one</b>"


def test_heat_map_shows_pairs_that_mean_the_same_side_by_side() -> None:
    data = pairs()
    chosen, cosines = heat_texts(compared(candidate("a", 0.3), data=[data], draws=5).outcomes[0][0]) or ([], np.zeros(0))
    assert len(chosen) == 8
    together = dict(zip(data.columns["sentence1"], zip(data.columns["sentence2"], data.labels or [], strict=True), strict=True))
    assert all(together[chosen[i]] == (chosen[i + 1], 1) for i in range(0, 8, 2))
    np.testing.assert_allclose(np.diag(cosines), 1.0, atol=1e-6)


def test_the_cone() -> None:
    rng = np.random.default_rng(0)
    round_, narrow = rng.normal(size=(500, 32)), rng.normal(size=(500, 32)) + 4.0
    wide, thin = cone_of("wide", round_), cone_of("thin", narrow)
    assert abs(wide.cosines.mean()) < 0.02
    assert thin.cosines.mean() > 0.9
    assert wide.energy[0] < 0.1
    assert thin.energy[0] > 0.9
    assert thin.energy[-1] == pytest.approx(1.0)
    unit = round_[:40] / np.linalg.norm(round_[:40], axis=1, keepdims=True)
    all_pairs = (unit @ unit.T)[np.triu_indices(40, 1)]
    np.testing.assert_allclose(np.sort(random_cosines(unit)), np.sort(all_pairs))
    sampled = random_cosines(narrow / np.linalg.norm(narrow, axis=1, keepdims=True), pairs=1000)
    assert len(sampled) == 1000
    assert sampled.max() < 1 - 1e-9  # no text with itself
    with pytest.raises(DataError, match="x: 1 texts with a vector; a picture of the geometry wants two or more"):
        cone_of("x", np.asarray([[1.0, 0], [0, 0]]))


def test_pictures_as_files(tmp_path: Path) -> None:
    svg = geometry_picture(compared())
    path = save_picture(tmp_path / "cone.svg", svg, "zh")
    root = ET.fromstring(path.read_text(encoding="utf-8"))
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "两条随机文本的余弦" in texts
    assert "cosine of two random texts" not in texts
    assert save_picture(tmp_path / "cone.png", svg).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with pytest.raises(UsageError, match=r"cone.gif: the name's ending chooses the format; wanted one of .svg, .png"):
        save_picture(tmp_path / "cone.gif", svg)


def test_umap_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(UsageError, match=r"--map umap needs pip install 'twinvec\[umap\]'"):
        map_of(compared(candidate("a", 0.3), draws=5).outcomes[0][0], "umap")


def test_drawing_refuses_what_is_no_place() -> None:
    with pytest.raises(DataError, match="a place of nan; wanted a finite number"):
        Svg(10, "x").line(0, 0, float("nan"), 1)
    assert histogram_chart([], "x") is None


def test_ticks_are_round_and_inside() -> None:
    rng = np.random.default_rng(1)
    for low, width in zip(rng.normal(size=50) * 10, rng.exponential(size=50) * 10, strict=True):
        ticks = nice_ticks(float(low), float(low + width))
        assert 2 <= len(ticks) <= 8
        assert all(low - 1e-9 <= tick <= low + width + 1e-9 for tick in ticks)
    for low, factor in ((90.0, 1.5), (3.0, 1000.0), (0.7, 4.0)):
        assert len(Scale(low, low * factor, 0, 1, log=True).ticks()) >= 2
    assert nice_ticks(1.0, 1.0) == [1.0]


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.html"
    with pytest.raises(UsageError, match="language = 'de': choose one of en, zh"):
        write_report(path, compared(), language="de")
    assert not list(tmp_path.iterdir())
    write_report(path, compared())
    assert path.read_text(encoding="utf-8").endswith("</html>\n")


def test_numbers_of_near_rates_stand_side_by_side_in_their_order_and_above_the_bars() -> None:
    rates = {1: 204.0, 2: 287.0, 3: 220.0, 4: 227.0, 5: 217.0, 6: 217.0}
    rows = [
        {"number": n, "model": f"m{n}", "quality": 0.59 + n / 1e5, "low": 0.58, "high": 0.60, "texts_per_second": rate} for n, rate in rates.items()
    ]
    chart = pareto_chart(rows, [4, 2], "x")
    assert chart is not None
    drawn = chart.html()
    badges = re.findall(r'<circle cx="([0-9.]+)" cy="[0-9.]+" r="9"[^>]*data-tip[^>]*>', drawn)
    order = [int(n) for n in re.findall(r">([1-6])<", drawn[drawn.index('r="9"') :])]
    assert [rates[n] for n in order] == sorted(rates.values())
    places = [float(place) for place in badges]
    assert places == sorted(places)
    assert min(np.diff(places)) >= 15
    assert drawn.rindex("<line") < drawn.index('r="9"'), "a bar over a number would take the pointer"
