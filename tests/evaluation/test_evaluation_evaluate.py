"""`evaluate` over files, with a fake encoder: words are random directions, a text is the sum of its words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from evaluation_fakes import FakeEncoder

from twinvec.data.dataset import read_data
from twinvec.errors import DataError, UsageError
from twinvec.evaluation.encoding import encode_columns, join_reports
from twinvec.evaluation.evaluate import evaluate, mean_random_cosine
from twinvec.evaluation.metrics import similarities
from twinvec.evaluation.nearest import nearest
from twinvec.evaluation.parallel import score_parallel
from twinvec.evaluation.triplets import score_triplets


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def run(data: Any, encoder: FakeEncoder | None = None, **options: Any) -> dict[str, Any]:
    result = evaluate(encoder or FakeEncoder(), data, progress=False, **options)
    json.dumps(result, allow_nan=False)  # what the command line will print
    assert all(isinstance(note, str) for note in result["notes"])
    return result


STS = "sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{s}\n" for a, b, s in [
    ("a dog", "a dog", 5), ("a dog", "a cat", 3.2), ("blue sky", "red sea", 0.5), ("one two three", "one two four", 4), ("x", "y", 0),
])  # fmt: skip


def test_sts_from_a_file(tmp_path: Path) -> None:
    encoder = FakeEncoder()
    result = run(write(tmp_path / "dev.tsv", STS), encoder)
    assert (result["task"], result["rows"], Path(result["file"]).name) == ("sts", 5, "dev.tsv")
    rows = [line.split("\t") for line in STS.splitlines()[1:]]
    u, v = (np.stack([encoder.vector(row[i]) for row in rows]) for i in (0, 1))
    gold = [float(row[2]) for row in rows]
    assert result["spearman_cosine"] == pytest.approx(scipy.stats.spearmanr(similarities(u, v, "cosine"), gold).statistic)
    assert result["pearson_euclidean"] == pytest.approx(scipy.stats.pearsonr(similarities(u, v, "euclidean"), gold).statistic)


def test_each_distinct_text_is_encoded_once_for_both_sides(tmp_path: Path) -> None:
    encoder = FakeEncoder()
    result = run(write(tmp_path / "dev.tsv", STS), encoder)
    assert len(encoder.calls) == 1
    texts = encoder.calls[0][1]
    assert len(texts) == len(set(texts)) == 8
    assert result["encode"]["rows"] == 8
    assert result["encode"]["texts"] == 10
    assert "empty_rows" not in result["encode"]


def test_the_order_of_rows_never_matters(tmp_path: Path) -> None:
    head, *rows = STS.splitlines(keepends=True)
    a = run(write(tmp_path / "a.tsv", STS))
    b = run(write(tmp_path / "b.tsv", head + "".join(rows[::-1])))
    for key in a:
        if "cosine" in key and "random" not in key:
            assert a[key] == pytest.approx(b[key], abs=1e-12)


def test_options_reach_the_encoder_only_when_given(tmp_path: Path) -> None:
    path = write(tmp_path / "dev.tsv", STS)
    encoder = FakeEncoder()
    run(path, encoder)
    run(path, encoder, batch_tokens=64, on_long="split")
    assert encoder.options == [{}, {"batch_tokens": 64, "on_long": "split"}]


def test_a_dataset_gives_what_its_file_gives(tmp_path: Path) -> None:
    path = write(tmp_path / "dev.tsv", STS)
    a, b = run(path), run(read_data(path))
    assert {k: v for k, v in a.items() if k != "encode"} == {k: v for k, v in b.items() if k != "encode"}
    assert run(read_data(path), limit=3)["rows"] == run(path, limit=3)["rows"] == 3


# --- prompts


def test_a_model_with_prompts_and_none_used_is_told(tmp_path: Path) -> None:
    """unilm#1325: without its prompt a model fell from 79.6 to 51.0, and nothing said so."""
    path = write(tmp_path / "dev.tsv", STS)
    prompts = {"query": "query: ", "passage": "passage: "}
    told = "this model has prompts (query, passage) and none was used"
    assert any(told in note for note in run(path, FakeEncoder(prompts))["notes"])
    for result in (
        run(path, FakeEncoder(prompts), prompt="query"),
        run(path, FakeEncoder(prompts, default="query")),
        run(path, FakeEncoder(prompts), prompt=""),  # said on purpose
        run(path, FakeEncoder({"query": "", "document": ""})),  # sentence-transformers 5 writes these for models without prompts
        run(path, FakeEncoder()),
    ):
        assert not any("none was used" in note for note in result["notes"])


def test_the_prompt_reaches_both_sides_and_the_report(tmp_path: Path) -> None:
    encoder = FakeEncoder({"query": "query: "})
    result = run(write(tmp_path / "dev.tsv", STS), encoder, prompt="query")
    assert [prompt for prompt, _ in encoder.calls] == ["query"]
    assert result["encode"]["prompt"] == "query: "
    assert result["encode"]["prompts"] == {"sentence1": "query: ", "sentence2": "query: "}


def test_a_prompt_a_column(tmp_path: Path) -> None:
    path = write(tmp_path / "dev.tsv", STS)
    encoder = FakeEncoder({"query": "query: ", "passage": "passage: "})
    result = run(path, encoder, prompts={"sentence1": "query", "sentence2": "passage"})
    assert [prompt for prompt, _ in encoder.calls] == ["query", "passage"]
    assert result["encode"]["prompts"] == {"sentence1": "query: ", "sentence2": "passage: "}
    assert result["encode"]["seconds"] == 1.0
    half = run(path, encoder, prompts={"sentence1": "query"})
    assert any("none was used for sentence2" in note for note in half["notes"])
    with pytest.raises(UsageError, match=r"prompts: column = 'query': choose one of sentence1, sentence2"):
        run(path, encoder, prompts={"query": "query"})
    with pytest.raises(UsageError, match=r"either prompt .* or prompts"):
        run(path, encoder, prompt="query", prompts={})


# --- the other kinds


def test_pairs_from_a_file(tmp_path: Path) -> None:
    text = "sentence1,sentence2,label\na b,a b c,1\na b,x y,0\nq r s,q r,1\nm n,o p,0\n"
    result = run(write(tmp_path / "pairs.csv", text))
    assert (result["task"], result["rows"], result["positives"], result["negatives"]) == ("pairs", 4, 2, 2)
    assert result["average_precision_cosine"] == result["best_f1_cosine"] == result["roc_auc_cosine"] == 1
    assert result["pearson_cosine"] > 0.5


def test_pairs_without_labels_look_for_their_partner(tmp_path: Path) -> None:
    text = "question,answer\n" + "".join(f"w{i} asks,w{i} answers\n" for i in range(8))
    result = run(write(tmp_path / "faq.csv", text), kind="pairs")
    assert result["task"] == "parallel"
    assert 0.5 < result["accuracy"] <= 1


def test_nli_from_a_file(tmp_path: Path) -> None:
    rows = [("a b c", "a b", "entailment"), ("a b c", "a d", "neutral"), ("a b", "x y", "contradiction"), ("p q", "p q", "entailment")]
    text = "premise\thypothesis\tlabel\n" + "".join("\t".join(row) + "\n" for row in rows)
    result = run(write(tmp_path / "nli.tsv", text))
    assert (result["task"], result["rows"]) == ("nli", 4)
    assert (result["rows_entailment"], result["rows_neutral"], result["rows_contradiction"]) == (2, 1, 1)
    assert result["mean_cosine_entailment"] > result["mean_cosine_contradiction"]
    assert result["average_precision_cosine"] == 1


def test_nli_with_one_class_is_noted(tmp_path: Path) -> None:
    text = "premise\thypothesis\tlabel\na\tb\tneutral\nc\td\tentailment\n"
    result = run(write(tmp_path / "nli.tsv", text), kind="nli")
    assert result["average_precision_cosine"] is None
    assert result["mean_cosine_contradiction"] is None
    assert any("not both there" in note for note in result["notes"])


def test_triplets_from_a_file(tmp_path: Path) -> None:
    text = "anchor\tpositive\tnegative\na b c\ta b\tx y\nq r\tq r s\tm\nx y\tm n\tx y\n"
    result = run(write(tmp_path / "triplets.tsv", text))
    assert (result["task"], result["rows"]) == ("triplets", 3)
    assert result["accuracy_cosine"] == pytest.approx(2 / 3)
    assert {f"accuracy_{name}" for name in ("cosine", "dot", "euclidean", "manhattan")} <= set(result)


def test_triplets_need_the_positive_before_every_negative() -> None:
    anchor, near, far = np.eye(3)[[0]], np.array([[0.9, 0.1, 0.0]]), np.eye(3)[[1]]
    assert score_triplets(anchor, near, [far])["accuracy_cosine"] == 1
    assert score_triplets(anchor, near, [far, anchor])["accuracy_cosine"] == 0
    assert score_triplets(anchor, near, [near])["accuracy_cosine"] == 0  # a tie is no success
    broken = score_triplets(anchor, near * np.nan, [far])
    assert broken["accuracy_cosine"] is None
    assert any("NaN" in note for note in broken["notes"])


def test_parallel_texts_from_a_file(tmp_path: Path) -> None:
    text = "source\ttarget\n" + "".join(f"w{i} x\tw{i} y\n" for i in range(6))
    result = run(write(tmp_path / "parallel.tsv", text), kind="parallel")
    assert result["task"] == "parallel"
    assert result["accuracy"] == (result["accuracy_source_to_target"] + result["accuracy_target_to_source"]) / 2


def test_repeated_partners_are_no_mistakes() -> None:
    u = np.eye(4, dtype=np.float32)
    result = score_parallel(u[[0, 0, 1, 2]], u[[0, 0, 1, 2]], ["a", "a", "b", "c"], ["A", "A", "B", "C"])
    assert result["accuracy"] == 1
    two_answers = score_parallel(u[[0, 0]], u[[0, 1]], ["a", "a"], ["A", "B"])
    assert two_answers["accuracy_source_to_target"] == 1  # A is a right answer in both rows
    collapsed = score_parallel(np.ones((4, 3)), np.ones((4, 3)), list("abcd"), list("ABCD"))
    assert collapsed["accuracy"] == 0.25  # chance, not luck
    with pytest.raises(DataError, match="vector 2 of 2 holds NaN"):
        score_parallel([[1.0], [np.nan]], [[1.0], [1.0]], ["a", "b"], ["c", "d"])


@pytest.mark.parametrize("kind", ["texts"])
def test_kinds_without_a_measure_say_what_is_wanted(tmp_path: Path, kind: Any) -> None:
    path = write(tmp_path / "x.csv", "text,label\nhello,greeting\nbye,parting\n")
    with pytest.raises(DataError, match=rf"nothing to measure in a file of kind '{kind}'; needs pairs with scores"):
        run(path, kind=kind)


# --- what may go wrong


def test_empty_texts_are_named_by_their_rows(tmp_path: Path) -> None:
    result = run(write(tmp_path / "dev.tsv", "sentence1\tsentence2\tscore\na b\t\t1\nc\td\t2\n\te f\t0\ng\tg h\t4\n"))
    assert "sentence1: 1 of 4 texts are empty (rows 3)" in result["notes"]
    assert "sentence2: 1 of 4 texts are empty (rows 1)" in result["notes"]
    assert result["encode"]["empty"] == 1  # one distinct empty text


def test_constant_gold_and_collapsed_vectors_are_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "dev.tsv", "sentence1\tsentence2\tscore\na\tb\t3\nc\td\t3\n")
    result = run(path)
    assert result["spearman_cosine"] is None
    assert any("all 2 gold scores are 3" in note for note in result["notes"])


def test_crowded_vectors_are_told(tmp_path: Path) -> None:
    path = write(tmp_path / "dev.tsv", STS)
    assert not any("crowd together" in note for note in run(path)["notes"])
    result = run(path, FakeEncoder(shared=30.0))
    assert result["mean_random_cosine"] > 0.9
    assert any("crowd together" in note for note in result["notes"])


def test_mean_random_cosine_leaves_partners_out() -> None:
    u = np.eye(4, dtype=np.float32)
    assert mean_random_cosine(u, u, list("abcd"), list("abcd")) == 0
    assert mean_random_cosine(u[:1], u[:1], ["a"], ["b"]) is None
    assert mean_random_cosine(u[[0, 0, 0]], u[[0, 0, 0]], ["a"] * 3, ["a"] * 3) is None


def test_missing_file_and_wrong_label_come_from_the_reader(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.csv"):
        run(tmp_path / "nowhere.csv")
    with pytest.raises(DataError, match=r"bad\.csv"):
        run(write(tmp_path / "bad.csv", "sentence1,sentence2,score\na,b,1\nc,d,many\n"))


def test_reports_are_joined() -> None:
    encoder = FakeEncoder()
    a, b = (encoder.encode_with_report(texts).report for texts in (["x y", ""], ["z"]))
    joined = join_reports([a, b])
    assert (joined.rows, joined.tokens, joined.empty, joined.longest, joined.seconds) == (3, 3, [1], 2, 1.0)
    assert join_reports([a]) is a


def test_columns_come_back_in_order() -> None:
    encoder = FakeEncoder()
    encoded = encode_columns(encoder, {"a": ["x", "y", "x"], "b": ["y", "z", "x"]}, {"a": None, "b": None})
    for name, texts in {"a": ["x", "y", "x"], "b": ["y", "z", "x"]}.items():
        np.testing.assert_array_equal(encoded.vectors[name], np.stack([encoder.vector(t) for t in texts]))


# --- retrieval


def beir(folder: Path, documents: list[dict[str, str]], queries: dict[str, str], qrels: list[tuple[str, str, int]]) -> Path:
    write(folder / "corpus.jsonl", "".join(json.dumps(d, ensure_ascii=False) + "\n" for d in documents))
    write(folder / "queries.jsonl", "".join(json.dumps({"_id": i, "text": t}, ensure_ascii=False) + "\n" for i, t in queries.items()))
    write(folder / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore\n" + "".join(f"{q}\t{d}\t{s}\n" for q, d, s in qrels))
    return folder


DOCUMENTS = [{"_id": f"d{i}", "title": "", "text": f"w{i} v{i} u{i}"} for i in range(12)]


def test_retrieval_from_a_folder(tmp_path: Path) -> None:
    folder = beir(tmp_path / "set", DOCUMENTS, {"q1": "w1 v1 u1", "q2": "w2 v2 u2"}, [("q1", "d1", 1), ("q2", "d5", 1)])
    result = run(folder)
    assert (result["task"], result["rows"], result["queries"], result["documents"]) == ("retrieval", 2, 2, 12)
    assert result["accuracy@1"] == 0.5
    assert result["recall@10"] in (0.5, 1)
    assert "mean_random_cosine" not in result
    assert run(folder, limit=1)["accuracy@1"] == 1


def test_retrieval_takes_the_models_own_two_prompts(tmp_path: Path) -> None:
    folder = beir(tmp_path / "set", DOCUMENTS, {"q1": "w1"}, [("q1", "d1", 1)])
    prompts = {"query": "query: ", "passage": "passage: "}
    encoder = FakeEncoder(prompts)
    result = run(folder, encoder)
    assert result["encode"]["prompts"] == {"query": "query: ", "document": "passage: "}
    assert not any("none was used" in note for note in result["notes"])
    for options in ({"prompt": "query"}, {"prompts": {"query": "query", "document": "query"}}):
        assert run(folder, encoder, **options)["encode"]["prompts"] == {"query": "query: ", "document": "query: "}


def test_a_query_is_not_its_own_answer(tmp_path: Path) -> None:
    """ArguAna: each query stands in the corpus under its own id; counting it would push every answer down one place."""
    documents = [{"_id": "1", "title": "T", "text": "a b c"}, {"_id": "2", "title": "", "text": "a b d"}, {"_id": "3", "title": "", "text": "x"}]
    result = run(beir(tmp_path / "set", documents, {"1": "a b c"}, [("1", "2", 1)]))
    assert result["accuracy@1"] == 1
    assert any("1 queries stand in the corpus themselves" in note for note in result["notes"])


def test_equal_ids_with_other_texts_are_no_accident(tmp_path: Path) -> None:
    documents = [{"_id": "1", "title": "", "text": "a b c d"}, {"_id": "2", "title": "", "text": "x y"}]
    result = run(beir(tmp_path / "set", documents, {"1": "a b c"}, [("1", "1", 1)]))
    assert result["accuracy@1"] == 1
    assert not any("stand in the corpus" in note for note in result["notes"])


def test_empty_documents_are_never_found(tmp_path: Path) -> None:
    documents = [{"_id": "0", "title": "", "text": ""}, {"_id": "1", "title": "", "text": "a"}]
    result = run(beir(tmp_path / "set", documents, {"q": "a"}, [("q", "1", 1)]), ks=(1, 2))
    assert result["documents"] == 1
    assert result["mrr@2"] == 1
    assert any("1 of 2 documents are empty" in note for note in result["notes"])


def test_nearest_is_exact_and_breaks_ties_by_row() -> None:
    rng = np.random.default_rng(0)
    documents = np.eye(6)[rng.integers(0, 6, 200)]  # six directions: many ties
    queries = rng.normal(size=(20, 6))
    top3, top50 = nearest(queries, documents, 3), nearest(queries, documents, 50)
    for query, few, many in zip(queries, top3, top50, strict=True):
        assert np.lexsort((np.arange(200), -(documents @ query)))[:3].tolist() == few.tolist() == many[:3].tolist()
    assert len(nearest(queries, documents, 500)[0]) == 200


def test_zero_vectors_find_nothing_and_are_never_found() -> None:
    rows = np.array([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.1]])
    assert [found.tolist() for found in nearest(rows, rows, 3)] == [[], [1, 2], [2, 1]]
    assert [found.tolist() for found in nearest(rows[:1], rows, 3)] == [[]]
    assert nearest(rows, rows[:1], 1)[1].tolist() == []
    with pytest.raises(DataError, match=r"vector 1 of 1 holds NaN or infinity"):
        nearest([[np.inf, 1.0]], rows, 1)
