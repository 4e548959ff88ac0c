"""NLI as triplets: each entailment once, beside a contradiction of the same premise."""

from __future__ import annotations

from pathlib import Path

import pytest

from twinvec.data.dataset import Dataset, read_data
from twinvec.data.nli import nli_triplets
from twinvec.errors import DataError

E, N, C = 0, 1, 2


def nli(*rows: tuple[str, str, int]) -> Dataset:
    premises, hypotheses, labels = zip(*rows, strict=True)
    columns = {"sentence1": list(premises), "sentence2": list(hypotheses)}
    return Dataset(
        "nli", columns, list(labels), ["entailment", "neutral", "contradiction"], mapping={"sentence1": "p", "sentence2": "h", "label": "l"}
    )


def triplets(data: Dataset) -> list[tuple[str, ...]]:
    return list(zip(*data.columns.values(), strict=True))


def test_a_premise_with_both() -> None:
    found = nli_triplets(nli(("p", "neutral", N), ("p", "no", C), ("q", "yes of q", E), ("p", "yes", E), ("q", "no of q", C)))
    assert (found.kind, list(found.columns), found.labels, found.label_names) == ("triplets", ["anchor", "positive", "negative"], None, None)
    assert triplets(found) == [("q", "yes of q", "no of q"), ("p", "yes", "no")]
    assert found.numbers == [3, 4]  # the rows of the entailments
    assert found.mapping == {"anchor": "p", "positive": "h", "negative": "h"}
    assert found.notes == ["2 triplets of premise, entailment and contradiction, made from 5 NLI rows"]


def test_several_go_in_turn() -> None:
    found = nli_triplets(nli(("p", "a", E), ("p", "b", E), ("p", "c", E), ("p", "x", C), ("p", "y", C)))
    assert triplets(found) == [("p", "a", "x"), ("p", "b", "y"), ("p", "c", "x")]
    assert triplets(nli_triplets(nli(("p", "a", E), ("p", "x", C), ("p", "y", C)))) == [("p", "a", "x")]


def test_equal_premises_in_other_writing_belong_together() -> None:
    found = nli_triplets(nli(("A  Man", "yes", E), ("a man", "no", C), ("a man", "YES", E), ("Ａ man", "No", C)))
    assert triplets(found) == [("A  Man", "yes", "no")]  # and neither side is used twice


def test_a_hypothesis_that_is_both_is_used_as_neither() -> None:
    found = nli_triplets(nli(("p", "so", E), ("p", "So", C), ("p", "yes", E), ("p", "no", C)))
    assert triplets(found) == [("p", "yes", "no")]
    with pytest.raises(DataError, match="no premise has both"):
        nli_triplets(nli(("p", "so", E), ("p", "so", C)))


def test_entailments_without_a_contradiction() -> None:
    data = nli(
        ("p", "yes", E), ("q", "alone", E), ("r", "also alone", E), ("s", "no", C), ("p", "no of p", C), ("t", "yes of t", E), ("t", "no of t", C)
    )
    dropped = nli_triplets(data)
    assert triplets(dropped) == [("p", "yes", "no of p"), ("t", "yes of t", "no of t")]
    assert dropped.notes[-1].endswith("made from 7 NLI rows; 2 entailments without a contradiction are left out")
    kept = nli_triplets(data, without="pair")
    assert triplets(kept) == [("p", "yes", "no of p"), ("q", "alone", "no of t"), ("r", "also alone", "no of t"), ("t", "yes of t", "no of t")]
    assert kept.notes[-1].endswith("2 entailments without a contradiction are given that of another premise")


def test_a_borrowed_contradiction_is_never_what_the_premise_entails() -> None:
    data = nli(("p", "it rains", E), ("q", "yes", E), ("q", "It rains", C), ("r", "yes r", E), ("r", "no r", C))
    assert triplets(nli_triplets(data, without="pair"))[0] == ("p", "it rains", "no r")
    lone = nli(("p", "it rains", E), ("q", "yes", E), ("q", "It rains", C))
    assert triplets(nli_triplets(lone, without="pair")) == [("q", "yes", "It rains")]


def test_from_a_file_with_groups(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("premise,hypothesis,label,group\np,yes,entailment,a\np,no,contradiction,a\nq,also,neutral,b\n", encoding="utf-8")
    found = nli_triplets(read_data(tmp_path / "x.csv"))
    assert (found.groups, found.mapping["group"]) == ([0], "group")
    assert "  columns: anchor <- 'premise', positive <- 'hypothesis', negative <- 'hypothesis', group <- 'group'" in found.describe()


def test_plain_loops_agree() -> None:
    """Against the slowest way to say it: for each premise all entailments, all contradictions, in the order of the file."""
    rows = [(f"p{i % 7}", f"h{(i * i) % 23}", (i * 5) % 3) for i in range(60)]
    expected = []
    for premise in dict.fromkeys(p for p, _, _ in rows):
        yes = list(dict.fromkeys(h for p, h, label in rows if p == premise and label == E))
        no = list(dict.fromkeys(h for p, h, label in rows if p == premise and label == C))
        yes, no = [h for h in yes if h not in no], [h for h in no if h not in yes]
        expected += [(premise, h, no[i % len(no)]) for i, h in enumerate(yes)] if no else []
    assert sorted(triplets(nli_triplets(nli(*rows)))) == sorted(expected)
    assert len(expected) > 5
