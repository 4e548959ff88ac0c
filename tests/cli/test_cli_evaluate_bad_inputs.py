"""What `twinvec evaluate` refuses, and what it says. BAD is the table: name, arguments, exit code, a pattern of the message."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAIRS = "".join(f"the cat sat {i},the cat sat {i} on the mat,1\nwhere is refund {i},a dog looked {i},0\n" for i in range(15))

BAD = [
    ("no file", ("MODEL",), 2, r"no file to measure it on; give files or folders, or --suite sts-en\|sts-zh --data-dir DIR"),
    ("a suite without its folder", ("MODEL", "--suite", "sts-en"), 2, r"--suite sts-en needs --data-dir DIR"),
    ("a suite that is none", ("MODEL", "--suite", "sts-de"), 2, r"'sts-de' is not one of sts-en, sts-zh"),
    (
        "a suite in an empty folder",
        ("MODEL", "--suite", "sts-en", "--data-dir", "EMPTY"),
        1,
        r"no set of the suite sts-en \(test\) in it; wanted sts12",
    ),
    ("a suite in no folder", ("MODEL", "--suite", "sts-zh", "--data-dir", "nowhere"), 1, r"nowhere is not there; wanted the folder"),
    ("a suite with a file's option", ("MODEL", "--suite", "sts-en", "--data-dir", "EMPTY", "--errors", "3"), 2, r"--errors is for files of your own"),
    ("a suite's split", ("MODEL", "--suite", "sts-en", "--data-dir", "EMPTY", "--split", "trian"), 2, r"--split 'trian': choose one of test, dev"),
    ("a model twice", ("MODEL", "MODEL", "--suite", "sts-en", "--data-dir", "EMPTY"), 2, r"is given twice; wanted each model once"),
    ("a folder of data without a suite", ("MODEL", "PAIRS", "--data-dir", "EMPTY"), 2, r"--data-dir is for --suite"),
    ("two formats", ("MODEL", "PAIRS", "--csv", "--json"), 2, r"give one of --json, --markdown and --csv"),
    ("save without calibrate", ("MODEL", "PAIRS", "--save"), 2, r"--save is for --calibrate"),
    ("a goal without calibrate", ("MODEL", "PAIRS", "--precision-goal", "0.9"), 2, r"--precision-goal is for --calibrate"),
    (
        "a goal in percent",
        ("MODEL", "PAIRS", "--calibrate", "--precision-goal", "95"),
        2,
        r"--precision-goal 95: wanted a share above 0 and at most 1",
    ),
    (
        "saving into the packaged model",
        ("minilm", "PAIRS", "--calibrate", "--save"),
        2,
        r"--save writes into the model's own folder, and 'minilm' is none",
    ),
    ("calibrating on scores", ("MODEL", "SCORES", "--calibrate"), 2, r"--calibrate learns from pairs with 0 and 1 \(or NLI\), .* is measured as sts"),
    (
        "a task that the file is not",
        ("MODEL", "PAIRS", "--task", "clustering"),
        1,
        r"clustering cannot be measured in a file of kind 'pairs', only pairs or",
    ),
    ("training rows for pairs", ("MODEL", "PAIRS", "--train", "PAIRS"), 2, r"train: rows to learn from are for classification"),
    ("training rows that are none", ("MODEL", "CLASSES", "--train", "PAIRS"), 1, r"holds pairs; wanted texts with classes"),
    ("a training file that is not there", ("MODEL", "CLASSES", "--train", "no.csv"), 1, r"no.csv: no such file or folder"),
    ("one class only", ("MODEL", "ONECLASS"), 1, r"every row is of the class 'a'; wanted two classes or more"),
    ("fewer rows than folds", ("MODEL", "CLASSES", "--folds", "9"), 1, r"4 rows for 9 folds; give more rows, fewer folds, or training rows"),
    ("slices by no column", ("MODEL", "PAIRS", "--by", "colour"), 2, r"by = 'colour': choose one of sentence1, sentence2, label"),
    ("slices of a folder by a column", ("MODEL", "FAQ", "--by", "topic"), 2, r"only the rows of a file have columns to slice by, not retrieval"),
    ("a level in percent", ("MODEL", "PAIRS", "--level", "95"), 2, r"level = 95.0: wanted a confidence between 0 and 1"),
    (
        "lists without a query",
        ("MODEL", "NOQUERY", "--task", "reranking"),
        1,
        r"row 1 \(line 1\): query is None; wanted a text under one of query, question",
    ),
    ("lists of numbers", ("MODEL", "NUMBERS"), 1, r"row 1 \(line 1\): positive is \[1, 2\]; wanted a text or a list of texts"),
    ("lists with nothing to rank", ("MODEL", "IDLE"), 1, r"no query with both an answer and another text"),
]


@pytest.fixture
def places(saved_model: Path, files: Path) -> dict[str, str]:
    made = {"MODEL": saved_model, "EMPTY": files / "empty", "SCORES": files / "pairs.csv", "PAIRS": files / "same.csv", "FAQ": files / "faq"}
    (files / "same.csv").write_text("sentence1,sentence2,label\n" + PAIRS)
    (files / "empty").mkdir()
    (files / "faq/qrels").mkdir(parents=True)
    (files / "faq/corpus.jsonl").write_text('{"_id": "b", "title": "", "text": "the cat sat"}\n')
    (files / "faq/queries.jsonl").write_text('{"_id": "q", "text": "the cat sat"}\n')
    (files / "faq/qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\tb\t1\n")
    contents = {
        "CLASSES": ("classes.csv", "text,label\nthe cat,a\na dog,b\nmy mat,a\nrefund,b\n"),
        "ONECLASS": ("one.csv", "text,label\nthe cat,a\na dog,a\n"),
        "NOQUERY": ("noquery.jsonl", '{"positive": ["a"], "negative": ["b"]}\n'),
        "NUMBERS": ("numbers.jsonl", '{"query": "q", "positive": [1, 2], "negative": ["b"]}\n'),
        "IDLE": ("idle.jsonl", '{"query": "q", "positive": ["a", "b"], "negative": []}\n'),
    }  # fmt: skip
    for name, (file, content) in contents.items():
        (files / file).write_text(content)
        made[name] = files / file
    return {name: str(path) for name, path in made.items()}


@pytest.mark.parametrize(("name", "arguments", "code", "message"), BAD, ids=[case[0] for case in BAD])
def test_bad_use(name: str, arguments: tuple[str, ...], code: int, message: str, run: Any, places: dict[str, str], record_property: Any) -> None:
    found = run("evaluate", *(places.get(argument, argument) for argument in arguments))
    said = found.err.strip().splitlines()[-1] if "Try: " not in found.err else found.err.strip().splitlines()[-2]
    assert found.code == code, found.err
    assert found.out == ""
    assert "Traceback" not in found.err
    assert re.search(message, said), said
    record_property("message", said)
