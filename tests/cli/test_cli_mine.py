"""`twinvec mine negatives`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
import typer

from twinvec.data.dataset import read_data
from twinvec.model.encoder import Encoder

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    ("a man is playing a guitar", "a man plays the guitar", 1),
    ("the cat sat", "the cat sat on the mat, and looked", 1),
    ("如何关闭支付宝免密支付", "花呗什么时候还款", 0),
    ("where is my refund", "my refund has not arrived", 1),
    ("how do i close the account", "close the payment account", 1),
    ("The  cat sat", "a cat on the mat", 1),
]
EXTRA = ["a woman is slicing an onion", "没网的时候支付宝能够支付吗", "the dog looked at the cat", "order 1024", ""]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    lines = ["sentence1,sentence2,label", *(f'"{a}","{b}",{label}' for a, b, label in ROWS)]
    (tmp_path / "pairs.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "corpus.txt").write_text("\n".join(EXTRA) + "\n", encoding="utf-8")
    (tmp_path / "taken.csv").write_text("mine\n")
    return tmp_path


def test_the_output_is_triplets_that_train_reads(run: Any, saved_model: Path, place: Path) -> None:
    found = run(
        "mine", "negatives", saved_model, "--data", place / "pairs.csv", "-o", place / "out.jsonl", "--negatives", 2, "--prompt", "query", "--json"
    )
    assert found.code == 0, found.err
    data = read_data(place / "out.jsonl")
    assert data.kind == "triplets"
    assert list(data.columns) == ["anchor", "positive", "negative", "negative_2"]
    assert data.columns["anchor"] == [a for a, _, label in ROWS if label]
    assert found.json["rows"] == 5
    assert found.json["counts"]["label_0"] == 1
    assert found.json["negatives"] == 2
    assert found.json["output"] == str(place / "out.jsonl")
    assert found.json["scores"].keys() == {"positive", "negative", "difference"}
    assert len(found.json["sample"]) == 3
    for i in range(len(data)):
        anchor, positive, *negatives = data.texts(i)
        assert positive not in negatives
        assert anchor not in negatives
    assert "a cat on the mat" not in data.texts(1)  # of the same anchor, in another spelling
    assert [path.name for path in place.glob(".*")] == []


def test_the_negatives_are_the_nearest(run: Any, saved_model: Path, place: Path) -> None:
    files = ("--data", place / "pairs.csv", "--corpus", place / "corpus.txt", "-o", place / "out.csv")
    found = run("mine", "negatives", saved_model, *files, "--scores", "-q", "--query-prompt", "query", "--document-prompt", "passage")
    assert found.code == 0, found.err
    frame = polars.read_csv(place / "out.csv")
    assert frame.columns == ["anchor", "positive", "negative", "positive_score", "negative_score", "margin"]
    encoder = Encoder.load(saved_model)
    texts = [text for text in EXTRA if text]
    cosines = encoder.encode(frame["anchor"].to_list(), prompt="query") @ encoder.encode(texts, prompt="passage").T
    assert frame["negative"].to_list() == [texts[i] for i in cosines.argmax(1)]
    np.testing.assert_allclose(frame["negative_score"], cosines.max(1), atol=1e-5)
    np.testing.assert_allclose(frame["margin"], frame["positive_score"] - frame["negative_score"], atol=1e-9)


def test_what_a_human_sees(run: Any, saved_model: Path, place: Path) -> None:
    found = run("mine", "negatives", saved_model, "--data", place / "pairs.csv", "-o", place / "out.tsv", "--rank-to", 3)
    assert found.code == 0, found.err
    assert "5 of 6 rows, with 1 negative each" in found.out
    assert re.search(r"rows left out +label 0 1", found.out)
    assert re.search(r"candidates refused +known \d", found.out)
    assert len(re.findall(r"^  rank [123] ", found.out, re.MULTILINE)) == 3
    assert "label <- 'label'" in found.err
    assert "this model has prompts" in found.err
    assert found.err.count("this model has prompts") == 1


def test_the_same_command_gives_the_same_file(run: Any, saved_model: Path, place: Path) -> None:
    for name in ("one.jsonl", "two.jsonl"):
        found = run("mine", "negatives", saved_model, "--data", place / "pairs.csv", "-o", place / name, "--sample", "random", "--seed", 7, "-q")
        assert found.code == 0, found.err
    assert (place / "one.jsonl").read_bytes() == (place / "two.jsonl").read_bytes()


def test_a_reranker_scores_the_window(run: Any, saved_model: Path, place: Path, bare_model: Callable[[str], Path]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    from tiny_models import scramble
    from twinvec.model.cross import CrossEncoder

    config = AutoConfig.from_pretrained(bare_model("bert"))
    config.num_labels = 1
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config)
    scramble(model, seed=3)
    model.save_pretrained(place / "cross")
    AutoTokenizer.from_pretrained(bare_model("bert")).save_pretrained(place / "cross")
    found = run(
        "mine",
        "negatives",
        saved_model,
        "--data",
        place / "pairs.csv",
        "-o",
        place / "out.jsonl",
        "--reranker",
        place / "cross",
        "--json",
        "--scores",
    )
    assert found.code == 0, found.err
    assert any("cross-encoder" in note for note in found.json["notes"])
    rows = [json.loads(line) for line in (place / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    wanted = CrossEncoder.load(place / "cross").scores([(row["anchor"], row["negative"]) for row in rows])
    np.testing.assert_allclose([row["negative_score"] for row in rows], wanted, atol=1e-5)


BAD = [
    ("no command", "mine", 2, r"Mine training data"),
    ("unknown command", "mine negativs", 2, r"No such command 'negativs'. Did you mean 'negatives'\?"),
    ("no data", "mine negatives {m} -o {d}/out.csv", 2, r"Missing option '--data'"),
    ("file that is not there", "mine negatives {m} --data {d}/none.csv -o {d}/out.csv", 1, r"none\.csv: no such file"),
    ("corpus that is not there", "mine negatives {m} --data {d}/pairs.csv --corpus {d}/no.txt -o {d}/out.csv", 1, r"no\.txt: no such file"),
    ("output of no kind", "mine negatives {m} --data {d}/pairs.csv -o {d}/out.npy", 2, r"wanted one of \.jsonl, \.csv, \.tsv, \.parquet"),
    ("output exists", "mine negatives {m} --data {d}/pairs.csv -o {d}/taken.csv", 2, r"taken\.csv exists already"),
    ("no negatives", "mine negatives {m} --data {d}/pairs.csv -o {d}/out.csv --negatives 0", 2, r"'--negatives'"),
    ("small window", "mine negatives {m} --data {d}/pairs.csv -o {d}/out.csv --rank-to 2 --negatives 3", 2, r"ranks 1 to 2 hold 2 candidates"),
    ("share in per cent", "mine negatives {m} --data {d}/pairs.csv -o {d}/out.csv --relative-margin 95", 2, r"relative_margin = 95"),
    ("column without a corpus", "mine negatives {m} --data {d}/pairs.csv -o {d}/out.csv --corpus-text x", 2, r"--corpus-text is for --corpus FILE"),
    ("unknown prompt", "mine negatives {m} --data {d}/pairs.csv -o {d}/out.csv --query-prompt querry", 2, r"knows these prompts: query, passage"),
    ("encoder as a reranker", "mine negatives {m} --data {d}/pairs.csv -o {d}/out.csv --reranker {m}", 1, r"no head that scores pairs"),
    ("nothing passes", "mine negatives {m} --data {d}/pairs.csv -o {d}/out.csv --max-score -0.99", 1, r"none of the 5 rows .*max_score \d+"),
    ("texts instead of pairs", "mine negatives {m} --data {d}/corpus.txt -o {d}/out.csv", 1, r"holds texts: wanted pairs"),
]


@pytest.mark.parametrize(("name", "arguments", "code", "message"), BAD, ids=[case[0] for case in BAD])
def test_bad_input(name: str, arguments: str, code: int, message: str, run: Any, saved_model: Path, place: Path) -> None:
    before = {path: path.read_bytes() for path in place.iterdir()}
    found = run(*[word.format(m=saved_model, d=place) for word in arguments.split()])
    assert re.search(message, found.err, re.DOTALL), found.err
    assert found.code == code
    assert found.out == ""
    assert "Traceback" not in found.err
    assert "unexpected" not in found.err
    assert {path: path.read_bytes() for path in place.iterdir()} == before, "something was left behind"


def test_the_commands_of_the_group_are_documented(run: Any) -> None:
    from twinvec.cli.main import app

    group: Any = typer.main.get_command(app).commands["mine"]  # type: ignore[attr-defined]
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for name, command in group.commands.items():
        shown = run("mine", name, "--help")
        assert shown.code == 0
        assert shown.out.startswith(f"Usage: twinvec mine {name} [OPTIONS]")
        assert f"twinvec mine {name} " in shown.out.partition("Example:")[2]
        assert f"## twinvec mine {name}" in page
        assert all(param.help for param in command.params)
        assert {"json", "quiet"} <= {param.name for param in command.params}
