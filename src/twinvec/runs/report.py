"""report.html of a training run: curves, before against after, the data in short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.data.dataset import Dataset, normalised_scores
from twinvec.evaluation.charts import loss_curve, metric_curve, similarity_heatmap, similarity_histogram
from twinvec.evaluation.page import Page
from twinvec.model.encoder import Encoder
from twinvec.training.recipe import Recipe
from twinvec.training.source import Source
from twinvec.training.tasks import prompt_name

MOST_PAIRS = 4000  # pairs in the histogram: more do not change its shape
HEATMAP_TEXTS = 10

WORDS = {
    "en": {
        "title": "Training run",
        "result": "Result",
        "curves": "Curves",
        "scores": "Similarity of pairs",
        "map": "Similarity heat map",
        "tests": "Held-out files",
        "data": "Training data",
        "recipe": "Recipe",
        "notes": "Notes",
        "before": "before",
        "after": "after",
        "file": "file",
        "metric": "metric",
        "gain": "gain",
        "histogram": "Cosine of pairs that belong together (positives) and that do not (negatives), before and after training, {n} pairs of {where}.",
        "heat": "Cosine of some texts with each other after training; neighbours in the list (1 and 2, 3 and 4, ...) belong together.",
        "loss": "Loss and learning rate over steps.",
        "value": "{metric} on dev; dashed: the model before training.",
        "dev": "dev",
        "train": "the training data",
    },
    "zh": {
        "title": "训练报告",
        "result": "结果",
        "curves": "曲线",
        "scores": "句对相似度",
        "map": "相似度热力图",
        "tests": "留出文件",
        "data": "训练数据",
        "recipe": "配方",
        "notes": "提示",
        "before": "训练前",
        "after": "训练后",
        "file": "文件",
        "metric": "指标",
        "gain": "提升",
        "histogram": "相关句对（正例）与无关句对（负例）的余弦相似度，训练前后对比，取自{where}的 {n} 对。",
        "heat": "训练后若干文本两两之间的余弦相似度；相邻两条（1 与 2、3 与 4……）意思相同。",
        "loss": "损失与学习率随步数的变化。",
        "value": "开发集上的 {metric}；虚线为训练前的模型。",
        "dev": "开发集",
        "train": "训练数据",
    },
}


@dataclass(frozen=True)
class LabelledPairs:
    """Pairs with 1 (belong together) or 0, for pictures; `where` says which data they are from."""

    left: list[str]
    right: list[str]
    labels: list[int]
    where: str


def labelled_pairs(data: Dataset, where: str = "dev") -> LabelledPairs | None:
    """Positives and negatives of any kind of training data; scores count as positive in the upper third of their range, negative in the lower.

    None when the data has no negatives, or no pairs at all.
    """
    rows: list[tuple[str, str, int]] = []
    if data.kind == "triplets":
        for i in range(len(data)):
            rows.append((data.columns["anchor"][i], data.columns["positive"][i], 1))
            rows.append((data.columns["anchor"][i], data.columns["negative"][i], 0))
    elif data.kind in ("pairs", "scores", "nli") and data.labels is not None:
        if data.kind == "nli":
            marks = [{0: 1, 2: 0}.get(int(label)) for label in data.labels]
        elif data.kind == "pairs":
            marks = [int(label) for label in data.labels]
        else:
            marks = [1 if score >= 2 / 3 else 0 if score <= 1 / 3 else None for score in normalised_scores(data)]
        rows = [(a, b, mark) for a, b, mark in zip(data.columns["sentence1"], data.columns["sentence2"], marks, strict=True) if mark is not None]
    if len(rows) > MOST_PAIRS:
        rows = [rows[i] for i in np.linspace(0, len(rows) - 1, MOST_PAIRS).astype(int)]
    if len({mark for _, _, mark in rows}) < 2:
        return None
    left, right, found = zip(*rows, strict=True)
    return LabelledPairs(list(left), list(right), list(found), where)


def pair_cosines(encoder: Encoder, pairs: LabelledPairs | None, source: Source) -> npt.NDArray[np.float64] | None:
    """(n,) cosines, in the order of the pairs."""
    if pairs is None:
        return None
    u = unit(encoder.encode(pairs.left, prompt=prompt_name("anchor", source)))
    v = unit(encoder.encode(pairs.right, prompt=prompt_name("positive", source)))
    cosines: npt.NDArray[np.float64] = np.clip((u * v).sum(1), -1.0, 1.0)
    return cosines


def heatmap_texts(pairs: LabelledPairs) -> list[str]:
    """Some positive pairs with all texts different, two by two."""
    chosen: list[str] = []
    for a, b, mark in zip(pairs.left, pairs.right, pairs.labels, strict=True):
        if mark == 1 and a != b and a not in chosen and b not in chosen:
            chosen += [a, b]
        if len(chosen) >= HEATMAP_TEXTS:
            break
    return chosen


def write_report(
    path: Path, recipe: Recipe, result: dict[str, Any], best: Encoder, data: Dataset, log: Sequence[dict[str, Any]], pairs: LabelledPairs | None,
    cosines: dict[str, npt.NDArray[np.float64] | None], language: str,
) -> None:  # fmt: skip
    """Write the page of one run."""
    word = WORDS[language]
    page = Page(f"{word['title']}: {Path(recipe.output).name}", language)
    shown = ("metric", "baseline_metric", "best_metric", "best_step", "steps", "stopped", "seconds", "best")
    page.heading(word["result"]).table({key: result[key] for key in shown})
    for text in result["notes"]:
        page.text(f"{word['notes']}: {text}")
    add_tests(page, result["tests"], word)
    page.heading(word["curves"])
    losses = [entry for entry in log if entry["event"] == "loss"]
    if losses:
        page.chart(loss_curve(losses, language=language), word["loss"])
    points = [
        {"step": entry["step"], result["metric"]: entry["value"]} for entry in log if entry["event"] == "evaluation" and entry["value"] is not None
    ]
    if points:
        chart = metric_curve(points, result["metric"], baseline=result["baseline_metric"], best_step=result["best_step"], language=language)
        page.chart(chart, word["value"].format(metric=result["metric"]))
    add_pairs(page, pairs, cosines, best, prompt_name("anchor", recipe.measured_as()), language)
    page.heading(word["data"]).code("\n".join(data.describe()))
    page.heading(word["recipe"]).table({key: value for key, value in recipe.model_dump(mode="json").items() if value not in (None, [], {})})
    page.save(path)


def add_tests(page: Page, tests: Sequence[dict[str, Any]], word: dict[str, str]) -> None:
    rows = []
    for test in tests:
        for name, after in test["after"].items():
            before = test["before"].get(name)
            if isinstance(after, float) and isinstance(before, float) and ("cosine" in name or "@" in name) and "threshold" not in name:
                rows.append(
                    {
                        word["file"]: Path(test["file"]).name,
                        word["metric"]: name,
                        word["before"]: before,
                        word["after"]: after,
                        word["gain"]: after - before,
                    }
                )
    if rows:
        page.heading(word["tests"]).table(rows)


def add_pairs(
    page: Page, pairs: LabelledPairs | None, cosines: dict[str, npt.NDArray[np.float64] | None], best: Encoder, prompt: str | None, language: str
) -> None:
    """Histogram and heat map; nothing when there are no pairs to show."""
    word, before, after = WORDS[language], cosines.get("before"), cosines.get("after")
    if pairs is None or before is None:
        return
    page.heading(word["scores"])
    caption = word["histogram"].format(n=len(pairs.labels), where=word[pairs.where])
    page.chart(similarity_histogram(before, pairs.labels, after, language=language), caption)
    texts = heatmap_texts(pairs)
    if len(texts) >= 4:
        page.heading(word["map"]).chart(similarity_heatmap(texts, cosine_matrix(best, texts, prompt), language=language), word["heat"])


def cosine_matrix(encoder: Encoder, texts: Sequence[str], prompt: str | None) -> npt.NDArray[np.float64]:
    """(n, n) cosines of texts with each other."""
    vectors = unit(encoder.encode(texts, prompt=prompt))
    cosines: npt.NDArray[np.float64] = np.clip(vectors @ vectors.T, -1.0, 1.0)
    return cosines


def unit(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    wide = vectors.astype(np.float64)
    scaled: npt.NDArray[np.float64] = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)
    return scaled
