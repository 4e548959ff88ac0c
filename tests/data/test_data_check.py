"""The data check finds what is there, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinvec.data.check import check_data
from twinvec.data.dataset import Dataset


def pairs(*rows: tuple[Any, ...], kind: Any = "pairs") -> Dataset:
    labels = [row[2] for row in rows] if rows and len(rows[0]) > 2 else None
    names = ["entailment", "neutral", "contradiction"] if kind == "nli" else None
    return Dataset(kind, {"sentence1": [row[0] for row in rows], "sentence2": [row[1] for row in rows]}, labels, names)


def count_words(texts: list[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def test_clean_data_has_no_findings() -> None:
    report = check_data(pairs(("a", "b", 1), ("c", "d", 0)), test=pairs(("e", "f", 1)), count_tokens=count_words, window=3)
    assert (report.findings, report.overlaps(), report.rows, report.longest) == ([], [], 2, 1)
    assert report.lines() == ["labels: 0 1 (50%), 1 1 (50%)"]


def test_repeated_pairs_in_either_order() -> None:
    report = check_data(pairs(("a", "b", 1), ("b", "a", 1), ("a", "b", 1), ("A ", "b", 1), ("c", "d", 0)))
    assert (report["duplicates"], report["duplicates_normalised"], report["conflicts"]) == (2, 1, 0)
    assert report.lines()[1:] == [
        "2 of 5 rows repeat an earlier one (in either order) (row 1 = row 2 = row 3)",
        "1 more rows repeat an earlier one but for case, spaces and Unicode form (row 1 = row 4)",
    ]


def test_nli_has_a_direction() -> None:
    report = check_data(pairs(("a", "b", 0), ("b", "a", 1), ("a", "b", 2), kind="nli"))
    assert (report["duplicates"], report["conflicts"]) == (1, 1)
    assert report.findings[1].examples == ["row 1 (entailment) against row 3 (contradiction)"]


def test_the_same_pair_with_two_labels() -> None:
    report = check_data(pairs(("a", "b", 1), ("ｂ", "A", 0), ("c", "d", 0), ("d", "c", 0)))
    assert report["conflicts"] == 1
    assert "1 pairs have two labels (row 1 (1) against row 2 (0))" in report.lines()
    scores = check_data([("a", "b", 4.75), ("a", "b", 5)])
    assert scores.lines()[-1] == "1 pairs have two labels (row 1 (4.75) against row 2 (5))"
    texts = check_data(Dataset("labelled", {"text": ["x", "x", "y"]}, [0, 1, 1], ["p", "q"]))
    assert texts.lines()[1:] == ["1 of 3 texts repeat an earlier one (row 1 = row 2)", "1 texts have two labels (row 1 (p) against row 2 (q))"]


def test_identical_sides_and_empty_texts() -> None:
    report = check_data(pairs(("a", "a", 0), ("b", " ", 1), ("", "", 1)))
    assert (report["identical"], report["empty"]) == (1, 2)
    assert report.findings[-1].examples == ["row 2", "row 3"]
    assert check_data(["a", "", "b"])["empty"] == 1


def test_a_positive_among_the_negatives() -> None:
    columns = {"anchor": ["a", "b"], "positive": ["p", "q"], "negative": ["n", "m"], "negative_2": ["o", "q"]}
    assert check_data(Dataset("triplets", columns))["positive_is_negative"] == 1


def test_rows_longer_than_the_window() -> None:
    asked: list[str] = []

    def count(texts: list[str]) -> list[int]:
        asked.extend(texts)
        return count_words(texts)

    report = check_data(pairs(("a b c d", "x", 1), ("x", "a b c", 0), ("x", "a b c d", 0)), count_tokens=count, window=3)
    assert (report["too_long"], report.longest) == (2, 4)
    assert report.lines()[-1] == "2 of 3 rows have a text beyond the model's window of 3 tokens, which is cut (longest: 4) (row 1; row 3)"
    assert len(asked) == len(set(asked))


def test_what_train_and_test_share() -> None:
    train = pairs(("a", "b", 1), ("c", "d", 0), ("e", "f", 0), ("g", "h", 1))
    test = pairs(("b", "a", 1), ("C", " d", 0), ("a", "x", 0), ("f", "g", 1), ("y", "z", 0))
    report = check_data(train, test=test)
    assert (report["shared_pairs"], report["shared_pairs_normalised"], report["shared_texts"], report["shared_both_texts"]) == (1, 1, 4, 3)
    assert report.overlaps()[0] == "1 of 5 rows of (memory) have a pair that is in the training data (row 1 = row 1 of training)"
    assert len(report.overlaps()) == 4
    assert report.overlaps() == [line for line in report.lines() if "training data" in line or "such a pair" in line]


def test_files_of_other_kinds_are_compared() -> None:
    texts = check_data(Dataset("texts", {"text": ["a", "b"]}), test=pairs(("a", "x", 1), ("y", "z", 0)))
    assert (texts["shared_texts"], texts["shared_pairs"]) == (1, 0)
    triplets = Dataset("triplets", {"anchor": ["a"], "positive": ["b"], "negative": ["c"]})
    assert check_data(triplets, test=pairs(("b", "a", 1)))["shared_pairs"] == 1


def test_rows_are_those_of_the_file(tmp_path: Path) -> None:
    data = pairs(("z", "z2", 0), ("a", "b", 1), ("z", "z3", 0), ("a", "b", 1)).select([1, 3])
    assert check_data(data).findings[0].examples == ["row 2 = row 4"]


def test_many_findings_show_a_few() -> None:
    report = check_data([f"t{i // 2}" for i in range(40)])
    assert report.lines() == ["20 of 40 texts repeat an earlier one (row 1 = row 2; row 3 = row 4; row 5 = row 6; ...)"]


def test_report_as_json() -> None:
    report = check_data(pairs(("a", "b", 1), ("b", "a", 0)), count_tokens=count_words, window=3)
    out = json.loads(json.dumps(report.to_dict()))
    assert {key: out[key] for key in ("rows", "label_counts", "longest")} == {"rows": 2, "label_counts": {"0": 1, "1": 1}, "longest": 1}
    assert [set(finding) for finding in out["findings"]] == [{"name", "count", "message", "examples", "more"}] * 2


SHORT = st.sampled_from(["a", "b", "A", "ａ", "c", "", "a  b", "a b"])


@given(
    st.lists(st.tuples(SHORT, SHORT, st.integers(0, 1)), min_size=1, max_size=12), st.lists(st.tuples(SHORT, SHORT, st.integers(0, 1)), max_size=6)
)
def test_counts_are_those_of_plain_loops(train: list[tuple[str, str, int]], test: list[tuple[str, str, int]]) -> None:
    report = check_data(pairs(*train), test=pairs(*test) if test else None)
    assert report["duplicates"] == len(train) - len({frozenset(row[:2]) for row in train})
    assert report["empty"] == sum(not a or not b for a, b, _ in train)
    assert report["shared_pairs"] == sum(any({a, b} == {c, d} for c, d, _ in train) for a, b, _ in test)


@pytest.mark.parametrize("rows", [[], [("a", "b")], ["a"]])
def test_small_inputs(rows: list[Any]) -> None:
    assert check_data(rows).findings == []
