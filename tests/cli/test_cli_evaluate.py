"""`twinvec evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twinvec.evaluation.evaluate import evaluate
from twinvec.model.encoder import Encoder


def test_json_is_what_the_library_gives(run: Any, saved_model: Path, files: Path) -> None:
    found = run("evaluate", saved_model, files / "pairs.csv", "--prompt", "query", "--json")
    assert found.code == 0, found.err
    (result,) = found.json["results"]
    wanted = evaluate(Encoder.load(saved_model), files / "pairs.csv", prompt="query", progress=False)
    assert (result["task"], result["rows"], result["file"]) == ("sts", 4, str(files / "pairs.csv"))
    for key in ("spearman_cosine", "pearson_cosine", "spearman_dot", "pearson_manhattan"):
        assert result[key] == pytest.approx(wanted[key], abs=1e-6)
    assert "columns: sentence1" in found.err, "which column became what is said"
    assert found.json["fingerprint"] == Encoder.load(saved_model).fingerprint


def test_the_table_shows_the_same_figures(run: Any, saved_model: Path, files: Path) -> None:
    result = run("evaluate", saved_model, files / "pairs.csv", "--prompt", "query", "--json").json["results"][0]
    shown = run("evaluate", saved_model, files / "pairs.csv", "--prompt", "query").out.splitlines()
    assert shown[0] == f"{files / 'pairs.csv'}: sts, 4 rows, prompt 'query: '"
    assert shown[1].split() == ["cosine", "dot", "euclidean", "manhattan"]
    assert shown[2].split() == ["spearman", *(f"{result[f'spearman_{name}']:.4f}" for name in shown[1].split())]
    assert len({len(line) for line in shown[1:4]}) == 1, "columns are straight"


def test_a_forgotten_prompt_is_noted(run: Any, saved_model: Path, files: Path) -> None:
    found = run("evaluate", saved_model, files / "pairs.csv", "--json")
    assert "note: this model has prompts (query, passage) and none was used" in found.err
    assert any("none was used" in note for note in found.json["results"][0]["notes"])
    assert "none was used" not in run("evaluate", saved_model, files / "pairs.csv", "--prompt", "").err


def test_several_files_and_kinds_at_once(run: Any, saved_model: Path, files: Path) -> None:
    (files / "same.tsv").write_text("q\ta\ty\n花呗\t花呗还款\tyes\nthe cat\tthe dog\tno\nrefund\tmy refund\tyes\n", encoding="utf-8")
    (files / "nli.jsonl").write_text(
        "".join(
            json.dumps({"premise": a, "hypothesis": b, "label": c}) + "\n"
            for a, b, c in (("the cat", "a cat", "entailment"), ("the cat", "no cat", "contradiction"), ("a dog", "the mat", "neutral"))
        )
    )
    options = ("--columns", "sentence1=q,sentence2=a,label=y", "--labels", "yes=1,no=0")
    pairs = run("evaluate", saved_model, files / "same.tsv", *options, "--prompt", "query", "--json")
    assert pairs.code == 0, pairs.err
    assert pairs.json["results"][0]["task"] == "pairs"
    assert 0 <= pairs.json["results"][0]["average_precision_cosine"] <= 1
    both = run("evaluate", saved_model, files / "pairs.csv", files / "nli.jsonl", "--prompt", "query", "--json")
    assert [result["task"] for result in both.json["results"]] == ["sts", "nli"]
    shown = run("evaluate", saved_model, files / "pairs.csv", files / "nli.jsonl", "--prompt", "query").out
    assert shown.count("\n\n") == 1


def test_a_retrieval_folder(run: Any, saved_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "faq"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text('{"_id": "a", "title": "", "text": "如何关闭支付宝"}\n{"_id": "b", "title": "", "text": "the cat sat"}\n')
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "the cat sat"}\n')
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq\tb\t1\n")
    found = run("evaluate", saved_model, folder, "--split", "dev", "--prompts", "query=query,document=query", "--json")
    assert found.code == 0, found.err
    (result,) = found.json["results"]
    assert (result["task"], result["accuracy@1"]) == ("retrieval", 1.0)
    shown = run("evaluate", saved_model, folder, "--split", "dev").out.splitlines()
    assert shown[0].endswith("retrieval, 1 queries, prompt 'query: ' (query), 'passage: ' (document)")
    assert shown[1].split() == ["@1", "@3", "@10"]


def test_undefined_scores_are_null_and_said(run: Any, saved_model: Path, tmp_path: Path) -> None:
    (tmp_path / "same.csv").write_text("sentence1,sentence2,score\nthe cat,a dog,3.5\nthe cat,a dog,3.5\n")
    found = run("evaluate", saved_model, tmp_path / "same.csv", "--score-range", "0,5", "--prompt", "query", "--json")
    assert found.code == 0, found.err
    assert found.json["results"][0]["spearman_cosine"] is None
    assert "note: " in found.err
    assert "undefined" in run("evaluate", saved_model, tmp_path / "same.csv", "--score-range", "0,5", "--prompt", "query").out
