from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import vl_convert

from twinvec.errors import DataError, UsageError
from twinvec.evaluation.charts import MOST_POINTS, WORDS, loss_curve, metric_curve, shorten, similarity_heatmap, similarity_histogram

LOG = [{"step": i, "loss": 2 / i, "lr": 1e-5 * i} for i in range(1, 21)]


def drawn(spec: dict[str, Any]) -> str:
    """The chart as SVG: Vega-Lite accepts the spec, and it is JSON without NaN."""
    assert spec["$schema"].startswith("https://vega.github.io/schema/vega-lite/")
    return str(vl_convert.vegalite_to_svg(json.dumps(spec, allow_nan=False)))


def data(part: Any) -> list[list[dict[str, Any]]]:
    """Every inline data block of a spec, at any depth."""
    if isinstance(part, dict):
        own = [part["data"]["values"]] if "values" in part.get("data", {}) else []
        return own + [rows for key, value in part.items() if key != "data" for rows in data(value)]
    return [rows for value in part for rows in data(value)] if isinstance(part, list) else []


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_chart_draws_and_speaks_its_language(language: str) -> None:
    word = WORDS[language]
    rng = np.random.default_rng(0)
    assert word["lr"] in drawn(loss_curve(LOG, language=language))
    points = [{"step": s, "spearman_cosine": 0.8 + s / 1000} for s in range(5)]
    svg = drawn(metric_curve(points, "spearman_cosine", baseline=0.79, language=language))
    assert f"{word['baseline']} 0.7900" in svg
    assert f"{word['best']} 0.8040" in svg
    svg = drawn(similarity_histogram(rng.random(50), np.arange(50) % 2, rng.random(50), language=language))
    assert all(word[key] in svg for key in ("before", "after", "positive", "negative", "similarity"))
    svg = drawn(similarity_heatmap(["one", "两"], [[1.0, 0.2], [0.2, 1.0]], language=language))
    assert word["similarity"] in svg
    assert "0.20" in svg


def test_both_languages_have_all_words() -> None:
    assert set(WORDS["en"]) == set(WORDS["zh"])
    with pytest.raises(UsageError, match="language = 'cn': choose one of en, zh"):
        loss_curve(LOG, language="cn")


def test_loss_without_a_learning_rate_has_one_panel() -> None:
    spec = loss_curve([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}, {"step": 2, "dev": 0.3}])
    assert "vconcat" not in spec
    assert [len(rows) for rows in data(spec)] == [2]
    drawn(spec)


def test_a_long_log_is_averaged_not_sampled() -> None:
    log = [{"step": i, "loss": float(i % 2), "lr": 1.0} for i in range(1, 10_001)]
    rows = data(loss_curve(log))[0]
    assert len(rows) <= MOST_POINTS
    assert rows[-1]["step"] == 10_000
    assert {row["loss"] for row in rows} <= {0.48, 0.5, 0.52}


def test_nan_leaves_a_gap() -> None:
    spec = loss_curve([{"step": 1, "loss": 1.0, "lr": 1.0}, {"step": 2, "loss": math.nan, "lr": 1.0}])
    drawn(spec)
    assert data(spec)[0][1]["loss"] is None
    spec = metric_curve([{"step": 1, "m": None}, {"step": 2, "m": 0.5}, {"step": 3, "m": math.nan}], "m", baseline=math.nan)
    assert "0.5000" in drawn(spec)


def test_the_given_best_step_is_marked() -> None:
    points = [{"step": 1, "loss": 0.9}, {"step": 2, "loss": 0.4}]
    assert "best 0.4000" in drawn(metric_curve(points, "loss", best_step=2))
    assert "best" not in drawn(metric_curve(points, "loss", best_step=7)).replace("baseline", "")


def test_histogram_counts_every_pair_once_on_one_axis() -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random(300) < 0.2).astype(int)
    before, after = rng.normal(0.7, 0.05, 300), rng.normal(0.2, 0.2, 300)
    spec = similarity_histogram(before, labels, after)
    blocks = [rows for rows in data(spec) if rows and "share" in rows[0]]
    for rows in blocks:
        assert sum(row["pairs"] for row in rows) == 300
        for kind in ("positive pairs", "negative pairs"):
            assert sum(row["share"] for row in rows if row["kind"] == kind) == pytest.approx(1)
    domains = [layer["encoding"]["x"]["scale"]["domain"] for panel in spec["vconcat"] for layer in panel["layer"]]
    assert len({tuple(d) for d in domains}) == 1
    assert domains[0] == pytest.approx([min(before.min(), after.min()), max(before.max(), after.max())])


def test_histogram_of_odd_pairs() -> None:
    drawn(similarity_histogram([0.5, 0.5], [1, 1]))  # one class, no spread
    assert "vconcat" not in similarity_histogram([0.5, math.nan, 0.1], [1, 1, 0])
    with pytest.raises(DataError, match=r"after needs one similarity for each of the 2 labels, got shape \(3,\)"):
        similarity_histogram([0.1, 0.2], [0, 1], [0.1, 0.2, 0.3])
    with pytest.raises(DataError, match="no pair with a finite"):
        similarity_histogram([math.nan], [1])


def test_heat_map_keeps_whole_texts_for_the_tooltip() -> None:
    texts = ["a long text " * 20, "a long text " * 20 + "with another end", "</script>"]
    spec = similarity_heatmap(texts, np.eye(3))
    rows = data(spec)[0]
    assert len(rows) == 9
    assert len({row["row"] for row in rows}) == 3  # equal beginnings stay two rows
    assert max(len(row["row"]) for row in rows) < 32
    assert {row["text"] for row in rows} == set(texts)
    drawn(spec)
    svg = drawn(similarity_heatmap(texts, np.eye(3)[:, :2], ["q1", "q2"]))
    assert "2 q2" in svg
    with pytest.raises(DataError, match=r"3 x 3 texts need as many scores, at least one; got shape \(2, 2\)"):
        similarity_heatmap(texts, np.eye(2))
    with pytest.raises(DataError, match="0 x 0"):
        similarity_heatmap([], np.zeros((0, 0)))


def test_large_heat_maps_leave_the_figures_to_the_tooltip() -> None:
    texts = [f"t{i}" for i in range(13)]
    assert len(similarity_heatmap(texts, np.eye(13))["layer"]) == 1
    drawn(similarity_heatmap(["x"], [[math.nan]]))


def test_shorten_counts_columns() -> None:
    assert shorten("short") == "short"
    assert shorten("a  line\nbreak") == "a line break"
    assert shorten("abcdefgh", 4) == "abcd…"
    assert shorten("没网的时候支付宝能够支付吗", 10) == "没网的时候…"
    assert shorten("") == ""


@pytest.mark.parametrize("log", [[], [{"step": 1, "lr": 0.1}]])
def test_nothing_to_draw_is_an_error(log: list[dict[str, Any]]) -> None:
    with pytest.raises(DataError, match="no entry with a loss"):
        loss_curve(log)
    with pytest.raises(DataError, match="no step has a value of 'spearman_cosine'"):
        metric_curve([{"step": 1, "spearman_cosine": None}], "spearman_cosine")
