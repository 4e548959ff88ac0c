"""`twinvec evaluate`."""

from __future__ import annotations

import csv
import io
import json
import shutil
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


def test_intervals_slices_errors_and_geometry(run: Any, saved_model: Path, files: Path) -> None:
    rows = [f"the cat {'sat ' * (i % 5)},a dog {'looked ' * (i % 3)}at the mat,{i % 6},s{i % 2}" for i in range(20)]
    (files / "sets.csv").write_text("sentence1,sentence2,score,subset\n" + "\n".join(rows) + "\n")
    options = (files / "sets.csv", "--prompt", "query", "--slices", "--errors", "3", "--geometry", "--bootstrap", "50")
    (result,) = run("evaluate", saved_model, *options, "--json").json["results"]
    low, high = result["intervals"]["spearman_cosine"]
    assert low <= result["spearman_cosine"] <= high
    assert result["bootstrap"] == {"draws": 50, "level": 0.95, "seed": 0, "unit": "row"}
    assert {part["slice"] for part in result["slices"]} == {"length", "subset"}
    assert len(result["errors"]) == 3
    assert result["geometry"]["corrections"]["before"]["spearman_cosine"] == pytest.approx(result["spearman_cosine"], abs=1e-6)
    shown = run("evaluate", saved_model, *options).out
    assert f"spearman_cosine  {low:.4f}  to  {high:.4f}" in shown or f"{low:.4f}  to" in shown
    assert "subset  s1" in shown
    assert "the 3 rows that are most wrong" in shown
    assert "effective_rank" in shown
    assert "intervals" not in run("evaluate", saved_model, files / "sets.csv", "--prompt", "", "--bootstrap", "0", "--json").json["results"][0]


def test_markdown_and_csv_hold_every_figure_with_its_bounds(run: Any, saved_model: Path, files: Path) -> None:
    common = ("evaluate", saved_model, files / "pairs.csv", "--prompt", "query", "--bootstrap", "30")
    (result,) = run(*common, "--json").json["results"]
    table = list(csv.DictReader(io.StringIO(run(*common, "--csv").out)))
    values = {row["figure"]: row for row in table}
    assert float(values["spearman_cosine"]["value"]) == pytest.approx(result["spearman_cosine"], abs=1e-5)
    assert {row["file"] for row in table} == {str(files / "pairs.csv")}
    markdown = run(*common, "--markdown").out.splitlines()
    assert markdown[0].startswith("| file | task | rows | figure | value | low | high |")
    assert len(markdown) == len(table) + 2


def suite_folder(root: Path) -> Path:
    folder = root / "sts"
    folder.mkdir()
    words = ["the", "cat", "sat", "on", "mat", "a", "dog", "looked", "where", "is", "my", "refund"]
    for name, count in (("sts12.test", 14), ("stsb.test", 12), ("stsb.dev", 8)):
        lines = ["sentence1,sentence2,score,subset"]
        lines += [
            f"{words[i % 7]} {words[i % 11]},{words[(i * 3) % 11]} {words[i % 5]},{i % 6},{'MSRpar' if i % 2 else 'MSRvid'}" for i in range(count)
        ]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_a_suite_for_several_models_with_and_without_a_prompt(run: Any, saved_model: Path, other_model: Path, tmp_path: Path) -> None:
    folder = suite_folder(tmp_path)
    names = (str(saved_model), f"{saved_model}::query", str(other_model))
    found = run("evaluate", *names, "--suite", "sts-en", "--data-dir", folder, "--bootstrap", "40", "--json")
    assert found.code == 0, found.err
    assert [model["model"] for model in found.json["models"]] == list(names)
    first, second, third = found.json["models"]
    assert first["sets"][0]["spearman"] == third["sets"][0]["spearman"], "without a prompt they are the same weights"
    assert first["sets"][0]["spearman"] != second["sets"][0]["spearman"]
    assert (second["encode"]["prompt"], second["pooling"]) == ("query: ", "mean")
    assert first["average"]["spearman"]["all"] == pytest.approx(sum(row["spearman"]["all"] for row in first["sets"]) / 2)
    assert {row["set"] for row in found.json["differences"]} == {"STS12", "STS-B", "average"}
    assert [(data["set"], data["rows"], data["published_rows"]) for data in found.json["sets"]] == [("STS12", 14, 3108), ("STS-B", 12, 1379)]
    assert any("SICK-R is missing" in note for note in found.json["notes"])
    assert "STS12: 14 rows where the published test set has 3108" in found.err
    assert "none was used" in found.err, "a forgotten prompt is said for the model that has one"
    shown = run("evaluate", *names, "--suite", "sts-en", "--data-dir", folder, "--bootstrap", "40").out.splitlines()
    assert shown[0].startswith("sts-en, test: correlation x 100")
    assert shown[1].split() == ["model", "measure", "aggregation", "STS12", "STS-B", "average"]
    assert shown[2].split() == ["(rows)", "14", "12"]
    assert f"{first['sets'][1]['spearman']['all'] * 100:.2f}" in shown[3]
    assert sum("weighted mean" in line for line in shown) == 6


def test_a_suite_as_markdown_csv_and_on_dev(run: Any, other_model: Path, tmp_path: Path) -> None:
    folder = suite_folder(tmp_path)
    options = ("evaluate", other_model, "--suite", "sts-en", "--data-dir", folder, "--bootstrap", "0")
    table = list(csv.DictReader(io.StringIO(run(*options, "--csv").out)))
    assert [row["aggregation"] for row in table[1:]] == ["all", "mean of subsets", "weighted mean"] * 2
    assert run(*options, "--markdown").out.startswith("| model | measure | aggregation | STS12 | STS-B | average |\n| --- |")
    dev = run(*options, "--split", "dev", "--json")
    assert [data["set"] for data in dev.json["sets"]] == ["STS-B"]
    assert "do not report these figures as test figures" in dev.err


def labelled_pairs(path: Path) -> Path:
    lines = [f"the cat sat {i},the cat sat {i} on the mat,1\nwhere is refund {i},a dog looked {i},0" for i in range(15)]
    path.write_text("sentence1,sentence2,label\n" + "\n".join(lines) + "\n")
    return path


def test_a_calibration_is_saved_and_used(run: Any, saved_model: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(saved_model, tmp_path / "model"))
    pairs = labelled_pairs(tmp_path / "pairs.csv")
    found = run("evaluate", model, pairs, "--prompt", "query", "--calibrate", "--precision-goal", "0.9", "--save", "--bootstrap", "40", "--json")
    assert found.code == 0, found.err
    stored = json.loads((model / "calibration.json").read_text())
    made = found.json["results"][0]["calibration"]
    assert {**made, "format": 1} == stored
    assert (stored["rows"], stored["method"], stored["fingerprint"]) == (30, "platt", found.json["fingerprint"])
    assert set(stored["thresholds"]) == {"best_f1", "precision_0.9"}
    texts = ("the cat sat", "the cat sat on the mat")
    plain, with_it = (run("similarity", model, *texts, "--prompt", "query", *more, "--json") for more in ((), ("--probability",)))
    assert "probability" not in plain.json
    assert 0 <= with_it.json["probability"] <= 1
    assert plain.json["similarity"] == with_it.json["similarity"]
    assert "learnt with prompt" not in with_it.err
    other = run("similarity", model, *texts, "--probability", "--prompt", "passage")
    assert "note: the calibration was learnt with prompt 'query: ' and is used with 'passage: '" in other.err
    scored = run("similarity", model, "--data", pairs, "--prompt", "query", "--probability", "-o", tmp_path / "out.csv")
    assert scored.code == 0, scored.err
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text())))
    same, different = ([float(row["probability"]) for row in rows if row["label"] == label] for label in "10")
    assert sum(same) / 15 > sum(different) / 15
    three = run("similarity", model, *texts, "a dog", "--prompt", "query", "--probability", "--json").json
    assert len(three["probability"]) == 3


def test_a_calibration_of_other_weights_is_refused(run: Any, saved_model: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(saved_model, tmp_path / "model"))
    missing = run("similarity", model, "a cat", "a dog", "--probability")
    assert missing.code == 1
    assert "no calibration.json there; make one with: twinvec evaluate MODEL pairs.csv --calibrate --save" in missing.err
    assert run("evaluate", model, labelled_pairs(tmp_path / "p.csv"), "--calibrate", "--save", "--bootstrap", "10").code == 0
    stored = json.loads((model / "calibration.json").read_text())
    (model / "calibration.json").write_text(json.dumps({**stored, "fingerprint": "0" * 32}))
    refused = run("similarity", model, "a cat", "a dog", "--probability")
    assert refused.code == 2
    assert "was made of another model (fingerprint 00000000..." in refused.err
