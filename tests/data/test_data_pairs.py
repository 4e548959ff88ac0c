"""Pairs that belong together, texts that are the same, rows that repeat, rows that a test has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinvec.data.beir import RetrievalSet
from twinvec.data.dataset import Dataset, read_data
from twinvec.data.pairs import judged_pairs, positives, row_keys, text_ids, without_pairs_of, without_repeats
from twinvec.errors import DataError
from twinvec.records import Document
from twinvec.text import same_text_key


def pairs(*rows: tuple[str, str], labels: list[int] | None = None, **more: object) -> Dataset:
    columns = {"sentence1": [row[0] for row in rows], "sentence2": [row[1] for row in rows]}
    return Dataset("pairs", columns, labels, **more)  # type: ignore[arg-type]


def rows_of(data: Dataset) -> list[tuple[str, ...]]:
    return list(zip(*data.columns.values(), strict=True))


# --- positives


def test_positives_of_labels() -> None:
    data = pairs(("a", "b"), ("c", "d"), ("e", "f"), labels=[1, 0, 1], groups=[5, 6, -1])
    found = positives(data)
    assert (rows_of(found), found.labels, found.kind, found.groups, found.numbers) == ([("a", "b"), ("e", "f")], None, "pairs", [5, -1], [1, 3])
    assert found.notes == ["2 of 3 rows are used as positive pairs (label 1)"]
    assert positives(found) is found


def test_positives_of_scores() -> None:
    data = Dataset("scores", {"sentence1": list("abcd"), "sentence2": list("efgh")}, [5.0, 4.0, 3.99, 0.0], score_range=(0.0, 5.0))
    assert positives(data).columns["sentence1"] == ["a", "b"]  # 4 of 5 is 0.8, whatever float32 makes of it
    assert positives(data, threshold=1).columns["sentence1"] == ["a"]
    assert positives(data, threshold=0.0).rows == 4
    found = positives(data)
    assert (found.kind, found.labels, found.score_range) == ("pairs", None, None)
    sick = Dataset("scores", {"sentence1": ["a", "b"], "sentence2": ["c", "d"]}, [4.2, 4.1], score_range=(1.0, 5.0))
    assert positives(sick).columns["sentence1"] == ["a"]


def test_positives_of_other_kinds() -> None:
    inference = Dataset("nli", {"sentence1": ["a", "b"], "sentence2": ["c", "d"]}, [2, 0], ["entailment", "neutral", "contradiction"])
    assert rows_of(positives(inference)) == [("b", "d")]
    assert positives(inference).label_names is None
    parallel = Dataset("parallel", {"source": ["a"], "target": ["b"]})
    assert positives(parallel) is parallel


# --- the same text


def test_texts_are_numbered_over_all_columns() -> None:
    found = text_ids(Dataset("triplets", {"anchor": ["A b", "x"], "positive": ["a  B", "y"], "negative": ["y", "ａ b"]}))
    assert {name: ids.tolist() for name, ids in found.items()} == {"anchor": [0, 1], "positive": [0, 2], "negative": [2, 0]}
    assert all(ids.dtype == np.int64 for ids in found.values())
    assert text_ids(Dataset("texts", {"text": []}))["text"].shape == (0,)


def test_keys_of_rows_hold_texts_and_group() -> None:
    data = pairs(("a", "b"), ("c", "A"), ("d", "e"), groups=[0, -1, 0])
    keys = row_keys(data)
    assert keys[0][0] == keys[1][1]
    assert keys[0][-1] == keys[2][-1] < 0
    assert len(keys[1]) == 2
    assert len({key for row in keys for key in row}) == 6
    assert row_keys(pairs(("a", "b"))) == [(0, 1)]


# --- repeats


def test_repeats_go_and_contradictions_stay() -> None:
    data = pairs(("a", "b"), ("b", "a"), ("a", "b"), ("A", "b"), ("a", "c"), labels=[1, 1, 0, 1, 1])
    found = without_repeats(data)
    assert found.numbers == [1, 3, 4, 5]
    assert found.notes == ["1 of 5 rows left out because they repeat an earlier one (in either order)"]
    assert without_repeats(found) is found


def test_directions_count_where_there_are_any() -> None:
    inference = Dataset("nli", {"sentence1": ["a", "b", "a"], "sentence2": ["b", "a", "b"]}, [0, 0, 0], ["entailment", "neutral", "contradiction"])
    assert without_repeats(inference).numbers == [1, 2]
    three = Dataset("triplets", {"anchor": ["a", "a", "b"], "positive": ["b", "b", "a"], "negative": ["c", "d", "c"]})
    assert without_repeats(three).rows == 3
    texts = without_repeats(Dataset("texts", {"text": ["x", "y", "x"]}))
    assert (texts.columns["text"], texts.notes) == (["x", "y"], ["1 of 3 rows left out because they repeat an earlier one"])


# --- leaks


def test_pairs_of_the_test_go() -> None:
    train = pairs(("a", "b"), ("C", "d "), ("e", "f"), ("a", "f"), ("g", "h"), labels=[1, 0, 1, 0, 1])
    test, dev = pairs(("d", "c"), ("x", "e"), path=Path("test.csv")), pairs(("b", "a"), ("c", "d"), path=Path("dev.csv"))
    found = without_pairs_of(train, [test, dev])
    assert found.numbers == [3, 4, 5]
    assert found.labels == [1, 0, 1]
    assert found.notes == [
        "1 of 5 rows left out because test.csv has their pair (in either order)",
        "1 of 5 rows left out because dev.csv has their pair (in either order)",
    ]
    assert without_pairs_of(found, [test, dev]) is found
    assert without_pairs_of(train, []) is train
    assert without_pairs_of(train, test).numbers == [1, 3, 4, 5]


def test_any_two_texts_of_a_triplet_are_a_pair() -> None:
    train = Dataset("triplets", {"anchor": ["a", "b", "c"], "positive": ["k", "l", "m"], "negative": ["x", "y", "z"]})
    assert without_pairs_of(train, pairs(("x", "a"), ("m", "z"))).numbers == [2]


def test_single_texts_go_when_the_test_has_them() -> None:
    train = Dataset("texts", {"text": ["One", "two", "three"]})
    assert without_pairs_of(train, pairs(("one", "x"), ("y", "two"))).columns["text"] == ["three"]
    assert without_pairs_of(pairs(("a", "b")), Dataset("texts", {"text": ["a"]})).rows == 1  # a lone text is no pair


def test_nothing_left_is_an_error() -> None:
    with pytest.raises(DataError, match=r"every row is in dev\.csv or test\.csv, so nothing is left to train on"):
        without_pairs_of(pairs(("a", "b")), [pairs(("a", "c"), path=Path("dev.csv")), pairs(("b", "a"), path=Path("test.csv"))])


TEXTS = st.sampled_from(["a", "A", "b", " b", "c", "ｃ", ""])


@given(train=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=12), test=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=8))
def test_plain_loops_agree(train: list[tuple[str, str]], test: list[tuple[str, str]]) -> None:
    def same(x: tuple[str, str], y: tuple[str, str]) -> bool:
        one, other = [same_text_key(text) for text in x], [same_text_key(text) for text in y]
        return one in (other, other[::-1])

    expected = [pair for pair in train if not any(same(pair, other) for other in test)]
    if expected:
        assert rows_of(without_pairs_of(pairs(*train), pairs(*test))) == expected
    else:
        with pytest.raises(DataError):
            without_pairs_of(pairs(*train), pairs(*test))


# --- groups and margins in files


def read(folder: Path, content: str, name: str = "x.csv", **options: object) -> Dataset:
    (folder / name).write_text(content, encoding="utf-8")
    return read_data(folder / name, **options)  # type: ignore[arg-type]


def test_groups_by_name(tmp_path: Path) -> None:
    data = read(tmp_path, "anchor,positive,Group ID\na,b,7\nc,d,\ne,f,x\ng,h,7.0\n")
    assert (data.kind, data.groups, data.labels) == ("pairs", [0, -1, 1, 0], None)
    assert data.mapping == {"sentence1": "anchor", "sentence2": "positive", "group": "Group ID"}
    assert data.select([3, 1]).groups == [0, -1]
    assert "  groups: 2, of 2 rows at most; 1 rows without" in data.describe()
    lines = '{"anchor": "a", "positive": "b", "negative": "c", "group": null}\n{"anchor": "a", "positive": "b", "negative": "c", "group": 3}\n'
    assert read(tmp_path, lines, "x.jsonl").groups == [-1, 0]
    assert read(tmp_path, "anchor,positive\na,b\n").groups is None


def test_groups_by_option_and_dropped_rows(tmp_path: Path) -> None:
    data = read(tmp_path, "sentence1,sentence2,label,topic\na,b,1,s\nc,d,-,t\ne,f,0,t\n", columns="group=topic", labels="-=drop")
    assert (data.groups, data.labels, data.numbers) == ([0, 1], [1, 0], [1, 3])
    assert read(tmp_path, "a,b,9\nc,d,9\n", columns="sentence1=1,sentence2=2,group=3").groups == [0, 0]
    assert read(tmp_path, "text,group\na,1\n").groups is None  # single texts have none


def test_margins_of_triplets(tmp_path: Path) -> None:
    data = read(tmp_path, "query,pos,neg,margin\na,b,c,4.5\nd,e,f,-1\n")
    assert (data.kind, data.labels, data.label_counts(), data.score_range) == ("triplets", [4.5, -1.0], {}, None)
    assert "  margins: -1 to 4.5" in data.describe()
    assert read(tmp_path, "query,pos,neg,score\na,b,c,4.5\n").labels is None  # a score may be anything
    named = read(tmp_path, "query,pos,neg,score\na,b,c,4.5\n", columns="label=score")
    assert (named.labels, named.mapping["label"]) == ([4.5], "score")
    assert read(tmp_path, "query,pos,neg,score\na,b,c,4.5\n", columns="margin=score").labels == [4.5]


def test_bare_texts_may_be_zipped(tmp_path: Path) -> None:
    import gzip

    (tmp_path / "x.txt.gz").write_bytes(gzip.compress("一\n二\n".encode()))
    assert (read_data(tmp_path / "x.txt.gz").kind, read_data(tmp_path / "x.txt.gz").columns) == ("texts", {"text": ["一", "二"]})


def test_judged_pairs_are_relevant_documents_grouped_by_query() -> None:
    corpus = [Document(id, text) for id, text in (("a", "text a"), ("b", "text b"), ("c", " "), ("d", "text d"))]
    qrels = {"q1": {"a": 2.0, "b": 1.0, "c": 1.0, "x": 1.0}, "q2": {"b": 0.0, "d": 1.0}}
    made = judged_pairs(RetrievalSet(corpus, {"q1": "one", "q2": "two"}, qrels, Path("folder"), split="train"))
    assert (made.kind, made.labels) == ("pairs", None)
    assert made.columns == {"sentence1": ["one", "one", "two"], "sentence2": ["text a", "text b", "text d"]}
    assert made.groups == [0, 0, 1]
    with pytest.raises(DataError, match=r"folder: no judged pair .* is there a train split"):
        judged_pairs(RetrievalSet(corpus, {"q1": "one"}, {"q1": {"c": 1.0}}, Path("folder")))
