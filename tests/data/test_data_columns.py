"""Columns are found by name in both languages; positions never decide in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from twinvec.data.columns import map_columns, parse_columns, plain
from twinvec.data.dataset import Kind, read_data
from twinvec.errors import DataError, UsageError


@pytest.mark.parametrize(
    ("header", "first", "second", "label"),
    [
        ("sentence1,sentence2,score", "sentence1", "sentence2", "score"),
        ("score,sentence2,sentence1", "sentence1", "sentence2", "score"),
        ("Sentence_A,Sentence B,relatedness-score", "Sentence_A", "Sentence B", "relatedness-score"),
        ("text1,text2,label", "text1", "text2", "label"),
        ("id,qid1,qid2,question1,question2,is_duplicate", "question1", "question2", "is_duplicate"),
        ("answer,question", "question", "answer", None),
        ("query,passage,label", "query", "passage", "label"),
        ("gold_label,sentence1_binary_parse,sentence1,sentence2", "sentence1", "sentence2", "gold_label"),
        ("Quality,#1 ID,#2 ID,#1 String,#2 String", "#1 String", "#2 String", "Quality"),
        ("句子1,句子2,分数", "句子1", "句子2", "分数"),
        ("句子２,句子１,标签", "句子１", "句子２", "标签"),
        ("标签,前提,假设", "前提", "假设", "标签"),
        ("问题,答案", "问题", "答案", None),
        ("文本1,文本2,相似度", "文本1", "文本2", "相似度"),
        ("sent0,sent1", "sent0", "sent1", None),
        ("sent1,sent2,class", "sent1", "sent2", "class"),
        ("anchor,positive", "anchor", "positive", None),
        ("label,class,sentence1,sentence2", "sentence1", "sentence2", "label"),
    ],
)
def test_pairs_by_name(header: str, first: str, second: str, label: str | None) -> None:
    found = map_columns(header.split(","), "x.csv")
    assert (found.shape, found.texts, found.label) == ("pair", {"sentence1": first, "sentence2": second}, label)
    assert {*found.texts.values(), found.label, *found.unused} - {None} == set(header.split(","))


@pytest.mark.parametrize(
    ("header", "texts"),
    [
        ("anchor,positive,negative", {"anchor": "anchor", "positive": "positive", "negative": "negative"}),
        ("negative,anchor,positive", {"anchor": "anchor", "positive": "positive", "negative": "negative"}),
        ("query,pos,neg", {"anchor": "query", "positive": "pos", "negative": "neg"}),
        ("sent0,sent1,hard_neg", {"anchor": "sent0", "positive": "sent1", "negative": "hard_neg"}),
        ("锚点,正例,负例", {"anchor": "锚点", "positive": "正例", "negative": "负例"}),
        (
            "anchor,positive,negative_10,negative_2,negative_1",
            {"anchor": "anchor", "positive": "positive", "negative": "negative_1", "negative_2": "negative_2", "negative_3": "negative_10"},
        ),
        ("锚点,正例,负例2,负例1", {"anchor": "锚点", "positive": "正例", "negative": "负例1", "negative_2": "负例2"}),
    ],
)
def test_triplets_by_name(header: str, texts: dict[str, str]) -> None:
    found = map_columns(header.split(","), "x.csv")
    assert (found.shape, found.texts) == ("triplets", texts)
    assert list(found.texts) == list(texts)


@pytest.mark.parametrize(
    ("header", "shape", "texts", "label"),
    [
        ("source,target", "parallel", {"source": "source", "target": "target"}, None),
        ("译文,原文", "parallel", {"source": "原文", "target": "译文"}, None),
        ("zh,en,id", "parallel", {"source": "en", "target": "zh"}, None),
        ("text,label", "text", {"text": "text"}, "label"),
        ("category,Text", "text", {"text": "Text"}, "category"),
        ("文本,类别", "text", {"text": "文本"}, "类别"),
        ("id,句子", "text", {"text": "句子"}, None),
        ("question,intent", "text", {"text": "question"}, "intent"),
        ("text,score", "text", {"text": "text"}, None),
    ],
)
def test_other_shapes(header: str, shape: str, texts: dict[str, str], label: str | None) -> None:
    found = map_columns(header.split(","), "x.csv")
    assert (found.shape, found.texts, found.label) == (shape, texts, label)


def test_the_kind_chooses_the_label() -> None:
    """SICK as it is published has both."""
    names = ["pair_ID", "sentence_A", "sentence_B", "relatedness_score", "entailment_judgment"]
    assert map_columns(names, "SICK.txt", "scores").label == "relatedness_score"
    assert map_columns(names, "SICK.txt", "nli").label == "entailment_judgment"
    with pytest.raises(DataError, match=r"could each be the label; say which with --columns, for example --columns label="):
        map_columns(names, "SICK.txt")
    assert map_columns(["text1", "text2", "score"], "x.csv", "pairs").label == "score"  # the only one there


def test_a_kind_may_take_the_other_pair() -> None:
    assert map_columns(["source", "target"], "x.csv", "pairs").texts == {"sentence1": "source", "sentence2": "target"}
    assert map_columns(["sentence1", "sentence2"], "x.csv", "parallel").texts == {"source": "sentence1", "target": "sentence2"}
    three = map_columns(["anchor", "positive", "negative"], "x.csv", "pairs")
    assert (three.texts, three.unused) == ({"sentence1": "anchor", "sentence2": "positive"}, ["negative"])


@pytest.mark.parametrize("kind", [None, "pairs", "scores"])
def test_chosen_columns(kind: Kind | None) -> None:
    names = ["q", "a", "y", "id"]
    for option in (
        "sentence1=q,sentence2=a,label=y",
        "sentence1=1,sentence2=2,label=3",
        "label=y, text2=a ,text1=q",
        "score=Y,sentence2=A,sentence1=Q",
    ):
        found = map_columns(names, "x.csv", kind, parse_columns(option, kind))
        assert (found.texts, found.label, found.unused) == ({"sentence1": "q", "sentence2": "a"}, "y", ["id"])
    assert parse_columns({"sentence1": 1, "sentence2": "a"}, None) == {"sentence1": "1", "sentence2": "a"}


def test_chosen_columns_with_names_for_the_rest() -> None:
    names = ["sentence1", "sentence2", "similar", "label"]
    assert map_columns(names, "x.csv", None, {"label": "similar"}).texts == {"sentence1": "sentence1", "sentence2": "sentence2"}
    assert map_columns(["q", "a", "label"], "x.csv", None, {"sentence1": "q", "sentence2": "a"}).label == "label"
    asked = map_columns(["query", "answer", "text"], "x.csv", None, parse_columns("query=query,answer=text", None))
    assert asked.texts == {"sentence1": "query", "sentence2": "text"}
    with pytest.raises(DataError, match=r"no column for sentence2 \(--columns gives only the other side\)"):
        map_columns(["q", "a"], "x.csv", None, {"sentence1": "q"})


def test_a_plain_list_follows_the_kind() -> None:
    assert parse_columns("q,a,y", "pairs") == {"sentence1": "q", "sentence2": "a", "label": "y"}
    assert parse_columns("q,a", "pairs") == {"sentence1": "q", "sentence2": "a"}
    assert parse_columns("q,a", "parallel") == {"source": "q", "target": "a"}
    assert parse_columns("q,p,n,m,o", "triplets") == {"anchor": "q", "positive": "p", "negative": "n", "negative_2": "m", "negative_3": "o"}
    assert parse_columns("t", "texts") == {"text": "t"}
    with pytest.raises(UsageError, match="2 columns, but kind 'scores' wants 3"):
        parse_columns("q,a", "scores")


def test_names_with_commas_stand_in_quotes() -> None:
    chosen = parse_columns('sentence1=q,"sentence2=a, or b"', None)
    assert map_columns(["q", "a, or b"], "x.csv", None, chosen).texts == {"sentence1": "q", "sentence2": "a, or b"}
    with pytest.raises(DataError, match='--columns sentence1=q,"sentence2=a, or b"'):
        map_columns(["q", "a, or b"], "x.csv")


def test_triplets_by_choice() -> None:
    chosen = parse_columns("anchor=a,positive=b,negative=c,negative_2=d", None)
    found = map_columns(list("dcba"), "x.csv", None, chosen)
    assert found.texts == {"anchor": "a", "positive": "b", "negative": "c", "negative_2": "d"}
    assert map_columns(["a", "b"], "x.csv", None, {"anchor": "a", "positive": "b"}).shape == "pair"
    assert map_columns(["q", "positive", "negative"], "x.csv", None, {"anchor": "q"}).shape == "triplets"


def test_a_name_made_of_digits_is_a_name_first() -> None:
    assert map_columns(["2", "1"], "x.csv", None, {"sentence1": "1", "sentence2": "2"}).texts == {"sentence1": "1", "sentence2": "2"}


def test_plain_names() -> None:
    assert plain("Sentence_A") == plain("sentence a") == plain("ＳＥＮＴＥＮＣＥ-A") == "sentencea"


def test_order_of_columns_never_matters(tmp_path: Path) -> None:
    """ST#2791: the order of columns, not their names, decided what was the question."""
    (tmp_path / "a.csv").write_text("question,answer\nq1,a1\nq2,a2\n")
    (tmp_path / "b.csv").write_text("answer,question\na1,q1\na2,q2\n")
    a, b = read_data(tmp_path / "a.csv"), read_data(tmp_path / "b.csv")
    assert a.columns == b.columns == {"sentence1": ["q1", "q2"], "sentence2": ["a1", "a2"]}
    assert "  columns: sentence1 <- 'question', sentence2 <- 'answer'" in b.describe()


def test_positions_mean_no_header_unless_the_first_line_is_one(tmp_path: Path) -> None:
    chosen = "sentence1=6,sentence2=7,score=5"
    raw = tmp_path / "sts.tsv"
    raw.write_text("a\tb\tc\td\t5.000\tA plane.\tA jet.\na\tb\tc\td\t1.5\tA dog.\tA cat.\textra\n")
    found = read_data(raw, columns=chosen)
    assert (len(found), found.columns["sentence1"], found.labels, found.lines) == (2, ["A plane.", "A dog."], [5.0, 1.5], [1, 2])
    assert any("it is read as a row" in note for note in found.notes)
    raw.write_text("genre\tfile\tyear\tn\tscore\tsentence1\tsentence2\n" + raw.read_text())
    headed = read_data(raw, columns=chosen)
    assert (headed.columns, headed.labels, headed.lines) == (found.columns, found.labels, [2, 3])
    assert headed.mapping == {"sentence1": "sentence1", "sentence2": "sentence2", "label": "score"}
    assert found.mapping == {"sentence1": "6", "sentence2": "7", "label": "5"}
    assert any("the first line is taken as a header" in note for note in headed.notes)
    (tmp_path / "short.tsv").write_text("a\tb\t1\nc\n")
    with pytest.raises(DataError, match=r"short\.tsv, row 2 \(line 2\): no label"):
        read_data(tmp_path / "short.tsv", columns="sentence1=1,sentence2=2,label=3")


def test_positions_of_an_unknown_header_fail_at_its_label(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("q,a,same\nx,y,1\nz,w,0\nu,v,1\n")
    with pytest.raises(DataError, match=r"row 1 \(line 1\): label 'same'"):
        read_data(tmp_path / "x.csv", columns="sentence1=1,sentence2=2,label=3")


def test_positions_of_json_count_its_keys(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({"q": "x", "a": "y"}) + "\n")
    assert read_data(tmp_path / "x.jsonl", columns="sentence1=2,sentence2=1").columns == {"sentence1": ["y"], "sentence2": ["x"]}
