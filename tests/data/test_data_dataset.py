"""`read_data`: kinds, labels, ranges, notes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinvec.data.dataset import Dataset, normalised_scores, read_data
from twinvec.data.labels import as_number, label_key
from twinvec.errors import DataError
from twinvec.files import sha256_file

NLI = "premise,hypothesis,label\n"
PAIR = "sentence1,sentence2,label\n"


def read(folder: Path, content: str, name: str = "x.csv", **options: Any) -> Dataset:
    (folder / name).write_text(content, encoding="utf-8")
    return read_data(folder / name, **options)


def rows(labels: list[Any], header: str = PAIR) -> str:
    return header + "".join(f"a{i},b{i},{label}\n" for i, label in enumerate(labels))


# --- labels


@pytest.mark.parametrize("labels", [["1", "0"], ["1.0", "0.0"], ["true", "False"], [" 1", "0 "], ["１", "-0"], ["1e0", ".0"]])
def test_ways_to_write_0_and_1(tmp_path: Path, labels: list[str]) -> None:
    """ST#322, #1444: "1", 1 and 1.0 are one label."""
    found = read(tmp_path, rows(labels))
    assert (found.kind, found.labels) == ("pairs", [1, 0])
    assert all(type(label) is int for label in found.labels or [])


def test_labels_of_json_are_the_same(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"sentence1": "a", "sentence2": "b", "label": label}) + "\n" for label in (1, "1", 1.0, True, "true", False, 0))
    assert read(tmp_path, lines, "x.jsonl").labels == [1, 1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "", "x", "1_0", "0x1", "1,5", None, [1], {}, float("nan"), float("inf"), 10**400])
def test_what_is_no_number(value: Any) -> None:
    assert as_number(value) is None


def test_label_keys() -> None:
    assert {label_key(value) for value in (1, 1.0, "1", " 1.00 ", True, "TRUE", "１")} == {"1"}
    assert label_key(" Entailment ") == "entailment"
    assert as_number("-0") == 0
    assert str(as_number("-0")) == "0.0"


@pytest.mark.parametrize(
    ("labels", "kind", "found"),
    [
        ([0, 1, 1], "pairs", [0, 1, 1]),
        ([0, 0.5, 1], "scores", (0.0, 1.0)),
        ([-1, 0.5, 1], "scores", (-1.0, 1.0)),
        ([0, 5, 2.4], "scores", (0.0, 5.0)),
        ([0, 1, 2, 3, 4, 5], "scores", (0.0, 5.0)),
        ([1, 4.9, 5], "scores", (1.0, 5.0)),
        ([3, 3, 3], "scores", (1.0, 5.0)),
        ([0, 100], "scores", (0.0, 100.0)),
        ([-3, 2], "scores", (-3.0, 2.0)),
    ],
)
def test_labels_make_the_kind_and_the_range(tmp_path: Path, labels: list[float], kind: str, found: Any) -> None:
    data = read(tmp_path, rows(labels))
    assert data.kind == kind
    assert (data.labels if kind == "pairs" else data.score_range) == found


def test_unusual_ranges_are_said(tmp_path: Path) -> None:
    """ST#2753: is it 0-1, 0-5 or -1..1?"""
    assert "taken as 0 to 100" in read(tmp_path, rows([0, 50, 100])).notes[0]
    assert "look like 1 to 5; --score-range 0,5 to change" in read(tmp_path, rows([1, 4, 5])).notes[0]
    five = read(tmp_path, rows([0, 4, 5]))
    assert five.notes == []
    assert "  scores: 0 to 5, range 0 to 5 (--score-range LOW,HIGH to change)" in five.describe()


def test_a_given_range_wins(tmp_path: Path) -> None:
    assert read(tmp_path, rows([1, 4, 5]), score_range="0,5").score_range == (0.0, 5.0)
    assert read(tmp_path, rows([0, 1, 1]), score_range=(0, 5)).kind == "scores"
    assert read(tmp_path, rows([0, 1, 1]), kind="scores").score_range == (0.0, 1.0)
    with_pairs = read(tmp_path, rows([0, 1, 1]), kind="pairs", score_range="0,5")
    assert with_pairs.notes == ["--score-range has no effect on pairs with 0 and 1"]


def test_normalised_scores(tmp_path: Path) -> None:
    scaled = normalised_scores(read(tmp_path, rows([0, 2.5, 5])))
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, [0, 0.5, 1])
    np.testing.assert_allclose(normalised_scores(read(tmp_path, rows([1, 3, 5]))), [0, 0.5, 1])
    np.testing.assert_allclose(normalised_scores(read(tmp_path, rows([-1, 0, 0.5]))), [0, 0.5, 0.75])
    np.testing.assert_array_equal(normalised_scores(read(tmp_path, rows([1, 0]))), [1, 0])
    np.testing.assert_array_equal(normalised_scores(read(tmp_path, "question,answer\na,b\n")), [1])
    with pytest.raises(DataError, match="nli have no scores"):
        normalised_scores(read(tmp_path, rows(["neutral"], NLI)))


def test_labels_option(tmp_path: Path) -> None:
    assert read(tmp_path, rows(["Yes", "no", "YES"]), labels="yes=1,no=0").labels == [1, 0, 1]
    data = read(tmp_path, rows([1, "?", 0, "?"]), labels="?=drop")
    assert (data.labels, data.columns["sentence1"], data.numbers, data.lines) == ([1, 0], ["a0", "a2"], [1, 3], [2, 4])
    assert data.notes == ["2 of 4 rows left out because of --labels (rows 2, 4)"]
    assert read(tmp_path, rows([1, "", 0]), labels="=drop").labels == [1, 0]
    assert read(tmp_path, rows([1, 2, 1]), labels="1=0,2=1").labels == [0, 1, 0]
    assert read(tmp_path, rows([1, 0]), labels="x=1").notes == ["--labels: no row has the label 'x'"]


# --- NLI


def test_nli_names_in_both_languages(tmp_path: Path) -> None:
    data = read(tmp_path, rows(["entailment", "Neutral", "CONTRADICTION", "蕴含", "中立", "矛盾"], NLI))
    assert (data.kind, data.labels) == ("nli", [0, 1, 2, 0, 1, 2])
    assert data.label_names == ["entailment", "neutral", "contradiction"]
    assert data.label_counts() == {"entailment": 2, "neutral": 2, "contradiction": 2}
    assert data.mapping == {"sentence1": "premise", "sentence2": "hypothesis", "label": "label"}
    assert data.notes == []


def test_nli_numbers_are_read_in_the_usual_order_and_said(tmp_path: Path) -> None:
    data = read(tmp_path, rows([0, 1, 2], NLI))
    assert (data.kind, data.labels) == ("nli", [0, 1, 2])
    assert data.notes[0].startswith("labels 0, 1, 2 read as entailment, neutral, contradiction")
    other = read(tmp_path, rows([0, 1, 2], NLI), labels="0=contradiction,1=entailment,2=neutral")
    assert (other.kind, other.labels, other.notes) == ("nli", [2, 0, 1], [])
    assert read(tmp_path, rows([0, 1], NLI), kind="nli").labels == [0, 1]
    assert read(tmp_path, rows([0, 1], NLI), kind="pairs").labels == [0, 1]
    assert read(tmp_path, rows([1, 1], NLI), labels="1=entailment").labels == [0, 0]


def test_nli_rows_without_agreement_are_dropped_on_demand(tmp_path: Path) -> None:
    data = read(tmp_path, rows(["neutral", "-", "entailment"], NLI), labels="-=drop")
    assert (data.labels, data.rows, data.numbers) == ([1, 0], 2, [1, 3])
    assert data.notes == ["1 of 3 rows left out because of --labels (rows 2)"]


def test_nli_under_the_names_of_pairs(tmp_path: Path) -> None:
    assert read(tmp_path, rows(["neutral", "contradiction"])).kind == "nli"


def test_premises_with_scores_are_scores(tmp_path: Path) -> None:
    assert read(tmp_path, rows([0.5, 4], "premise,hypothesis,score\n")).kind == "scores"
    assert read(tmp_path, rows([0, 1, 2], "sentence1,sentence2,score\n")).kind == "scores"


# --- other kinds


def test_triplets_with_lists(tmp_path: Path) -> None:
    """FlagEmbedding's layout."""
    lines = '{"query": "q", "pos": ["p"], "neg": ["m", "n"]}\n{"query": "r", "pos": ["o"], "neg": ["s", "t"]}\n'
    data = read(tmp_path, lines, "x.jsonl")
    assert data.kind == "triplets"
    assert data.columns == {"anchor": ["q", "r"], "positive": ["p", "o"], "negative": ["m", "s"], "negative_2": ["n", "t"]}
    assert data.texts(1) == ["r", "o", "s", "t"]
    mixed = '{"query": "q", "pos": "p", "neg": ["m", "n"], "neg2": "o"}\n'
    assert list(read(tmp_path, mixed, "y.jsonl").columns) == ["anchor", "positive", "negative", "negative_2", "negative_3"]


def test_pairs_without_labels(tmp_path: Path) -> None:
    data = read(tmp_path, "id,question,answer\n1,q,a\n2,r,b\n3,q,c\n")
    assert (data.kind, data.labels, data.unused) == ("pairs", None, ["id"])
    assert data.notes == ["no label column: every pair counts as one that belongs together"]
    assert read(tmp_path, "question,answer,gold\nq,a,1\nr,b,1\n", kind="pairs").labels is None


def test_classes(tmp_path: Path) -> None:
    data = read(tmp_path, "text,label\na,z\nb,y\nc,z\n")
    assert (data.kind, data.labels, data.label_names) == ("labelled", [1, 0, 1], ["y", "z"])
    assert data.label_counts() == {"y": 1, "z": 2}
    assert read(tmp_path, "text,label\na,10\nb,9\nc,10\n").label_names == ["9", "10"]
    lines = '{"text": "a", "label": 1}\n{"text": "b", "label": 1.0}\n'
    assert read(tmp_path, lines, "x.jsonl").label_names == ["1"]
    assert read(tmp_path, "text,label\na,z\n", kind="texts").labels is None


def test_texts(tmp_path: Path) -> None:
    data = read(tmp_path, "b\na\n\nb\n", "x.txt")
    assert (data.kind, data.columns, data.labels) == ("texts", {"text": ["b", "a", "", "b"]}, None)
    assert "  empty texts: 1" in data.describe()
    assert read(tmp_path, "x\n", "y.txt", labels="a=1").notes == ["--labels has no effect on texts"]


def test_lone_surrogates_are_replaced_and_counted(tmp_path: Path) -> None:
    data = read(tmp_path, '{"text": "a\\ud800b"}\n{"text": "\\ud83d\\ude00"}\n', "x.jsonl")
    assert data.columns["text"] == ["a\ufffdb", "😀"]
    assert data.notes[0].startswith("1 texts held lone surrogates")


# --- the record


def test_record(tmp_path: Path) -> None:
    data = read(tmp_path, rows([1, 0, 1]) + "“x”,y,0\n")
    assert (data.path, data.rows, len(data)) == (tmp_path / "x.csv", 4, 4)
    assert data.sha256 == sha256_file(tmp_path / "x.csv")
    assert data.texts(3) == ["“x”", "y"]
    assert data.where(3) == "row 4 (line 5)"
    assert data.describe() == [
        f"{tmp_path / 'x.csv'}: 4 rows, pairs",
        "  columns: sentence1 <- 'sentence1', sentence2 <- 'sentence2', label <- 'label'",
        "  labels: 0 2, 1 2",
        "  row 1 (line 2): a0 | b0 | 1",
        "  row 2 (line 3): a1 | b1 | 0",
        "  row 3 (line 4): a2 | b2 | 1",
    ]


def test_select_and_limit(tmp_path: Path) -> None:
    data = read(tmp_path, rows([0, 1.5, 5, 3]))
    chosen = data.select(np.array([3, 0]))
    assert (chosen.rows, chosen.columns["sentence1"], chosen.labels, chosen.numbers, chosen.lines) == (2, ["a3", "a0"], [3, 0], [4, 1], [5, 2])
    assert chosen.where(0) == "row 4 (line 5)"
    assert (chosen.kind, chosen.score_range, chosen.sha256) == (data.kind, data.score_range, data.sha256)
    assert len(data.select([])) == 0
    first = read(tmp_path, rows([0, 1, 5]), limit=2)
    assert (first.kind, first.score_range, first.rows) == ("scores", (0.0, 5.0), 2)  # the whole file decides
    assert first.notes == ["only the first 2 of 3 rows are used (limit)"]
    assert read(tmp_path, rows([0, 1, 5]), limit=9).notes == []


def test_a_dataset_of_ones_own() -> None:
    data = Dataset("pairs", {"sentence1": ["a"], "sentence2": ["b"]}, [1])
    assert (data.rows, data.numbers, data.where(0)) == (1, [1], "row 1")
    with pytest.raises(ValueError, match="columns of different lengths"):
        Dataset("pairs", {"sentence1": ["a"], "sentence2": []})
    with pytest.raises(ValueError, match="rows = 3"):
        Dataset("texts", {"text": ["a"]}, rows=3)


def test_published_layouts(tmp_path: Path) -> None:
    """As the files come: SNLI's JSON lines, OCNLI's .json, QQP, SICK."""
    snli = '{"annotator_labels": ["neutral"], "captionID": "1", "gold_label": "neutral", "pairID": "2", "sentence1": "A", "sentence2": "B"}\n'
    assert read(tmp_path, snli, "snli_1.0_dev.jsonl").labels == [1]
    ocnli = '{"level":"medium","sentence1":"甲","sentence2":"乙","label":"entailment","genre":"lit","id":0}\n'
    assert read(tmp_path, ocnli, "train.50k.json").labels == [0]
    afqmc = '{"sentence1": "双十一花呗", "sentence2": "花呗", "label": "0"}\n'
    assert read(tmp_path, afqmc, "dev.json").kind == "pairs"
    qqp = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tA?\tB?\t0\n"
    assert read(tmp_path, qqp, "qqp.tsv").labels == [0]
    sick = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n1\tA\tB\t4.5\tNEUTRAL\n"
    assert read(tmp_path, sick, "SICK_train.txt", format="tsv", kind="nli").labels == [1]
    assert read(tmp_path, sick, "SICK_train.txt", format="tsv", kind="scores").labels == [4.5]
    lcqmc = "喜欢打篮球\t爱打篮球\t1\n你好\t再见\t0\n"
    assert read(tmp_path, lcqmc, "LCQMC.txt", format="tsv", columns="sentence1=1,sentence2=2,label=3").labels == [1, 0]
