"""What evaluation refuses, and what it says. CASES is the table: name, what is done in a folder, the error, a pattern of its message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluation_fakes import FakeEncoder

from twinvec.data.dataset import Dataset
from twinvec.errors import DataError, ModelError, TwinvecError, UsageError
from twinvec.evaluation.calibration import Calibration, calibrate
from twinvec.evaluation.certainty import compare_models, draw_weights, intervals
from twinvec.evaluation.clustering import agreement_of, k_means
from twinvec.evaluation.evaluate import evaluate
from twinvec.evaluation.logistic import fit_logistic
from twinvec.evaluation.metrics import average_precision_at
from twinvec.evaluation.reranking import read_reranking
from twinvec.evaluation.suites import read_suite
from twinvec.evaluation.weighted import means
from twinvec.evaluation.whitening import whitening


def suite(name: str, content: str, suite: str = "sts-en") -> Callable[[Path], Any]:
    """Read a suite from a folder with one file."""

    def go(root: Path) -> Any:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content, encoding="utf-8")
        return read_suite(suite, root)

    return go


def year(pairs: str, scores: str | None) -> Callable[[Path], Any]:
    def go(root: Path) -> Any:
        (root / "STS12-en-test").mkdir()
        (root / "STS12-en-test/STS.input.MSRpar.txt").write_text(pairs)
        if scores is not None:
            (root / "STS12-en-test/STS.gs.MSRpar.txt").write_text(scores)
        return read_suite("sts-en", root)

    return go


def lists(content: str) -> Callable[[Path], Any]:
    def go(root: Path) -> Any:
        (root / "lists.jsonl").write_text(content)
        return read_reranking(root / "lists.jsonl")

    return go


def measured(kind: Any, columns: dict[str, list[str]], labels: Any = None, names: list[str] | None = None, **options: Any) -> Callable[[Path], Any]:
    return lambda root: evaluate(FakeEncoder(), Dataset(kind=kind, columns=columns, labels=labels, label_names=names), progress=False, **options)


class Broken(FakeEncoder):
    def vector(self, text: str) -> Any:
        return np.full(8, np.nan, np.float32)


TWO = {"sentence1": ["a", "b"], "sentence2": ["c", "d"]}
CASES: list[tuple[str, Callable[[Path], Any], type[TwinvecError], str]] = [
    ("a suite with another name", lambda p: read_suite("sts-fr", p), UsageError, r"suite = 'sts-fr': choose one of sts-en, sts-zh"),
    ("a suite's split", lambda p: read_suite("sts-en", p, "train"), UsageError, r"split = 'train': choose one of test, dev"),
    ("a suite in an empty folder", lambda p: read_suite("sts-zh", p), DataError, r"no set of the suite sts-zh \(test\) in it; wanted stsb-mt.test"),
    ("a suite of bare texts", suite("sts12.test.csv", "text\na\n"), DataError, r"holds texts; wanted the pairs of STS12 with a score or a 0/1 label"),
    ("a suite without scores", suite("stsb.test.csv", "sentence1,sentence2\na,b\n"), DataError, r"holds pairs; wanted the pairs of STS-B"),
    ("SentEval: scores missing", year("a\tb\n", None), DataError, r"no STS.gs.MSRpar.txt beside it, so its pairs have no gold scores"),
    ("SentEval: fewer scores", year("a\tb\nc\td\n", "1\n"), DataError, r"2 pairs, but STS.gs.MSRpar.txt has 1 scores; wanted one line each"),
    ("SentEval: no tab", year("a b\n", "1\n"), DataError, r"MSRpar.txt, line 1: no tab between two sentences"),
    ("SentEval: no number", year("a\tb\n", "good\n"), DataError, r"STS.gs.MSRpar.txt, line 1: 'good' is no score; wanted a number"),
    ("SentEval: commas", suite("STSBenchmark/sts-test.csv", "x,y,z\n"), DataError, r"row 1: 1 fields, wanted 7 or more separated by tabs"),
    ("SentEval: SICK cut short", suite("SICK/SICK_test_annotated.txt", "pair_ID\n1\ta\n"), DataError, r"row 1: 2 fields, wanted 4 or more"),
    ("reranking: no query", lists('{"positive": "a", "negative": "b"}\n'), DataError, r"row 1 \(line 1\): query is None; wanted a text under one of"),
    ("reranking: a number", lists('{"query": "q", "positive": 3, "negative": "b"}\n'), DataError, r"positive is 3; wanted a text or a list of texts"),
    ("reranking: nothing to rank", lists('{"query": "q", "positive": "a"}\n'), DataError, r"no query with both an answer and another text"),
    ("reranking: one label", measured("pairs", TWO, [1, 1], task="reranking"), DataError, r"no first text has rows of both labels"),
    ("reranking: scores", measured("scores", TWO, [1.0, 2.0], task="reranking"), DataError, r"holds scores; reranking wants query, positive"),
    ("no rows", measured("pairs", {"sentence1": [], "sentence2": []}, []), DataError, r"no rows, so there is nothing to measure"),
    ("two kinds of prompts", measured("pairs", TWO, [1, 0], prompt="", prompts={}), UsageError, r"give either prompt .* or prompts"),
    ("one class", measured("labelled", {"text": ["a", "b"]}, [0, 0], ["x"]), DataError, r"every row is of the class 'x'; wanted two classes or more"),
    (
        "clusters of one class", measured("labelled", {"text": ["a", "b"]}, [0, 0], ["x"], task="clustering"), DataError,
        r"1 classes; clustering wants two or more",
    ),
    ("few rows for the folds", measured("labelled", {"text": ["a", "b"]}, [0, 1], ["x", "y"]), DataError, r"2 rows for 5 folds; give more rows"),
    ("one fold", measured("labelled", {"text": list("abcdef")}, [0, 1] * 3, ["x", "y"], folds=1), UsageError, r"folds = 1: wanted 2 or more"),
    (
        "a broken model on classes",
        lambda p: evaluate(
            Broken(), Dataset(kind="labelled", columns={"text": list("abcdef")}, labels=[0, 1] * 3, label_names=["x", "y"]), progress=False
        ),
        DataError, r"the model gives NaN or infinity for some texts; it is broken",
    ),
    ("no draws", lambda p: list(draw_weights(5, 0)), UsageError, r"bootstrap = 0: wanted the number of draws, 1 or more"),
    ("no units", lambda p: list(draw_weights(0, 5)), DataError, r"bootstrap: no rows"),
    ("clusters of another length", lambda p: list(draw_weights(3, 5, clusters=[1])), DataError, r"1 cluster numbers for 3 units; wanted one each"),
    ("an interval's method", lambda p: intervals(means({"m": np.ones(2)}), 2, method="t"), UsageError, r"method = 't': choose one of percentile"),
    ("one model to compare", lambda p: compare_models({}), UsageError, r"0 models: wanted two or more to compare"),
    ("k-means of more clusters than rows", lambda p: k_means(np.zeros((2, 2)), 3), DataError, r"k-means: 3 clusters of vectors of shape \(2, 2\)"),
    ("clusters for other rows", lambda p: agreement_of([0, 1], [0]), DataError, r"2 classes for 1 cluster numbers; wanted one each a row"),
    ("logistic regression on nothing", lambda p: fit_logistic(np.zeros((0, 2)), [], 2), DataError, r"needs vectors \(n, D\) and n labels"),
    ("logistic regression on NaN", lambda p: fit_logistic([[np.nan]], [0], 2), DataError, r"the vectors hold NaN or infinity"),
    ("logistic regression: a label beyond", lambda p: fit_logistic([[1.0]], [2], 2), DataError, r"labels from 2 to 2; wanted 0 to 1"),
    ("a cut-off of 0", lambda p: average_precision_at(["a"], {"a": 1.0}, 0), DataError, r"k = 0: a cut-off needs to be 1 or more"),
    ("a document twice", lambda p: average_precision_at(["a", "a"], {"a": 1.0}, 3), DataError, r"document 'a' stands twice in one ranked list"),
    ("whitening one row", lambda p: whitening(np.ones((1, 2))), DataError, r"whitening: vectors of shape \(1, 2\); wanted two or more rows"),
    ("calibration of too few rows", lambda p: calibrate([0.1, 0.2], [0, 1]), DataError, r"1 of 2 rows are the same; wanted 10 rows or more"),
    ("calibration that is not there", lambda p: Calibration.load(p), ModelError, r"no calibration.json there; make one with: twinvec evaluate"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "do", "error", "message"), CASES, ids=[case[0] for case in CASES])
def test_bad_input(
    name: str, do: Callable[[Path], Any], error: type[TwinvecError], message: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:  # fmt: skip
    with pytest.raises(error, match=message) as found:
        do(tmp_path)
    assert type(found.value) is error
    assert "\n" not in str(found.value)
    record_property("message", str(found.value))
