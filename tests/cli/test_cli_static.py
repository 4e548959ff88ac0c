"""`twinvec convert` of word vectors and to static models, and `twinvec trim`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny_models import CORPUS
from twinvec.model.encoder import Encoder

WORDS = {"the": [1, 0, 0], "cat": [0, 1, 0], "dog": [0, 0.6, 0.8], "Paris": [1, 1, 1]}
ENGLISH = [text for text in CORPUS if text.isascii()]


@pytest.fixture
def glove(tmp_path: Path) -> Path:
    path = tmp_path / "glove.txt"
    path.write_text("".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in WORDS.items()))
    return path


@pytest.fixture
def model(bare_model: Callable[[str], Path], tmp_path: Path) -> Path:
    encoder = Encoder.load(bare_model("bert"), pooling="mean")
    encoder.net.normalize = True
    return encoder.save(tmp_path / "bert")


def unit(*vector: float) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = np.asarray(vector) / np.linalg.norm(vector)
    return found


def test_word_vectors_become_a_folder(run: Any, glove: Path, tmp_path: Path) -> None:
    found = run("convert", glove, "-o", tmp_path / "model", "--json").json
    encoder = Encoder.load(tmp_path / "model")
    assert found["fingerprint"] == encoder.fingerprint == Encoder.load(glove).fingerprint
    assert (found["parameters"], found["dimensions"], found["pooling"]) == (12, 3, ["mean"])
    np.testing.assert_allclose(encoder.encode(["The cat", "paris", "Paris"]), [unit(1, 1, 0), np.zeros(3), unit(1, 1, 1)], atol=1e-6)
    shown = run("inspect", tmp_path / "model", "--verify")
    assert shown.code == 0
    assert "static, vocabulary 4" in shown.out


def test_options_of_word_vectors(run: Any, glove: Path, tmp_path: Path) -> None:
    (tmp_path / "idf.txt").write_text("the 0.5\ncat 3\n")
    (tmp_path / "counts.tsv").write_text("the\t900\ncat\t100\n")
    (tmp_path / "texts.txt").write_text("the\nthe cat\nthe dog\n")

    def vectors(*options: Any) -> Any:
        assert run("convert", glove, "-o", tmp_path / "model", "--force", *options).code == 0
        return Encoder.load(tmp_path / "model").encode(["the cat", "dog", "PARIS"])

    np.testing.assert_allclose(vectors("--limit", "2"), [unit(1, 1, 0), np.zeros(3), np.zeros(3)], atol=1e-6)
    np.testing.assert_allclose(vectors("--idf", tmp_path / "idf.txt")[0], unit(0.5, 3, 0), atol=1e-6)
    a = 1e-3
    np.testing.assert_allclose(vectors("--sif", tmp_path / "counts.tsv")[0], unit(a / (a + 0.9), a / (a + 0.1), 0), atol=1e-6)
    np.testing.assert_allclose(vectors("--pooling", "max")[0], unit(1, 1, 0), atol=1e-6)
    np.testing.assert_allclose(vectors("--case", "lower")[2], np.zeros(3), atol=1e-6)
    rows = np.asarray([[1, 0, 0], [0.5, 0.5, 0], [0.5, 0.3, 0.4]])
    direction = np.linalg.svd(rows)[2][0]
    wanted = np.asarray([0.5, 0.5, 0]) - direction[[0, 1, 2]] * (direction @ [0.5, 0.5, 0])
    np.testing.assert_allclose(vectors("--common", tmp_path / "texts.txt")[0], unit(*wanted), atol=1e-5)


def test_a_static_model_of_a_transformer(run: Any, model: Path, tmp_path: Path) -> None:
    """Against the recipe computed here: each token alone, centred, turned by PCA, weighed by Zipf's law."""
    found = run("convert", model, "--static", "--dimensions", 8, "-o", tmp_path / "static", "--json").json
    assert (found["dimensions"], found["pooling"]) == (8, ["mean"])
    static, encoder = Encoder.load(tmp_path / "static"), Encoder.load(model)
    pieces = encoder.tokens.tokenizer.get_vocab()
    special = {encoder.tokens.tokenizer.convert_tokens_to_ids(token) for token in encoder.tokens.tokenizer.all_special_tokens}
    ids = [at for at in sorted(pieces.values()) if at not in special]
    net = encoder.net
    import torch

    with torch.no_grad():
        alone = torch.stack([net([[*encoder.tokens.prefix, at, *encoder.tokens.suffix]], normalize=False)[0] for at in ids]).double().numpy()
    alone -= alone.mean(0)
    turned = alone @ np.linalg.svd(alone, full_matrices=False)[2][:8].T
    rank = 1 / np.arange(2, len(ids) + 2)
    turned *= (1e-4 / (1e-4 + rank / rank.sum()))[:, None]
    for text in ("the cat", "a man is playing", "支付宝"):
        row = [ids.index(at) for at in encoder.tokens.content([text])[0] if at in ids]
        mean = turned[row].mean(0)
        np.testing.assert_allclose(np.abs(static.encode(text)[0]), np.abs(mean / np.linalg.norm(mean)), atol=2e-3)  # kept in 16 bits
    gram = static.encode(ENGLISH) @ static.encode(ENGLISH).T
    np.testing.assert_allclose(np.diag(gram), 1, atol=1e-5)
    from model2vec import StaticModel

    np.testing.assert_allclose(StaticModel.from_pretrained(tmp_path / "static").encode(ENGLISH), static.encode(ENGLISH), atol=3e-3)


def test_a_static_model_works_in_every_command(run: Any, glove: Path, tmp_path: Path) -> None:
    run("convert", glove, "-o", tmp_path / "model")
    (tmp_path / "sts.csv").write_text("sentence1,sentence2,score\nthe cat,the cat,5\nthe cat,dog,3\nthe,dog,0\nparis,cat,1\n")
    result = run("evaluate", tmp_path / "model", tmp_path / "sts.csv", "--json")
    assert result.code == 0
    assert np.isfinite(result.json["results"][0]["spearman_cosine"])
    assert run("similarity", tmp_path / "model", "the cat", "cat").code == 0
    report = run("encode", tmp_path / "model", tmp_path / "sts.csv", "--text", "sentence1", "-o", tmp_path / "v.npy", "--json").json
    assert (report["engine"], report["rows"]) == ("static", 4)
    assert run("index", tmp_path / "faq", tmp_path / "sts.csv", "--text", "sentence2", "--model", tmp_path / "model").code == 0
    hits = run("search", tmp_path / "faq", "dog", "--json").json["hits"]
    assert hits[0]["text"] == "dog"
    refused = run("export", tmp_path / "model", "--engine", "onnx")
    assert refused.code == 2
    assert "static model" in refused.err


def test_trim(run: Any, model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(ENGLISH[:3]) + "\n")
    (tmp_path / "b.csv").write_text("text\n" + "\n".join(f'"{text}"' for text in ENGLISH[3:]) + "\n")
    (tmp_path / "check.txt").write_text("如何关闭支付宝\nthe cat\n", encoding="utf-8")
    (tmp_path / "keep.txt").write_text("支\n", encoding="utf-8")
    call = (
        "trim",
        model,
        "--texts",
        tmp_path / "a.txt",
        "--texts",
        tmp_path / "b.csv",
        "--check",
        tmp_path / "check.txt",
        "--keep",
        tmp_path / "keep.txt",
    )
    found = run(*call, "-o", tmp_path / "small", "--json").json
    assert (found["texts"], found["changed_texts"], found["largest_difference"]) == (len(ENGLISH), 0, 0)
    assert found["vocabulary_after"] < found["vocabulary_before"]
    assert found["check"]["texts"] == 2
    assert 0 < found["check"]["changed_share"] < 1
    small = Encoder.load(tmp_path / "small")
    np.testing.assert_array_equal(small.encode(ENGLISH), Encoder.load(model).encode(ENGLISH))
    assert "支" in small.tokens.tokenizer.get_vocab()
    shown = run(*call, "-o", tmp_path / "small", "--force", "--min-count", "3", "--characters", "used", "--verify", "0")
    assert shown.code == 0
    assert all(word in shown.out for word in ("vocabulary", "parameters", "on disk", "less)", "held out", "unknown"))
    assert "texts have tokens used fewer than 3 times" in shown.err
    assert json.loads((tmp_path / "small" / "twinvec.json").read_text())["golden"]


WRONG: dict[str, tuple[list[str], int, str]] = {
    "convert: --idf and --sif": (["convert", "glove.txt", "-o", "out", "--idf", "w", "--sif", "w"], 2, "--idf and --sif are two ways to weigh words"),
    "convert: --limit with a GGUF file": (["convert", "x.gguf", "-o", "out", "--limit", "5"], 2, "--limit has no meaning for a GGUF file"),
    "convert: --end-token with vectors": (["convert", "glove.txt", "-o", "out", "--end-token"], 2, "--end-token has no meaning for word vectors"),
    "convert: --static with --pooling": (
        ["convert", "bert", "--static", "-o", "out", "--pooling", "cls"],
        2,
        "--pooling has no meaning for --static",
    ),
    "convert: --dimensions too many": (["convert", "bert", "--static", "-o", "out", "--dimensions", "99"], 2, "this model has 32 and"),
    "convert: --static of a static model": (["convert", "glove.txt", "--static", "-o", "out"], 1, "made of a transformer that has a tokenizer.json"),
    "convert: no such vectors": (["convert", "none.vec", "-o", "out"], 1, "none.vec: cannot be read (No such file or directory)"),
    "convert: no such texts": (["convert", "glove.txt", "-o", "out", "--common", "none.txt"], 1, "none.txt: no such file or folder"),
    "trim: no such texts": (["trim", "bert", "--texts", "none.txt", "-o", "out"], 1, "none.txt: no such file or folder"),
    "trim: texts from standard input": (["trim", "bert", "--texts", "-", "-o", "out"], 2, "the texts are read more than once"),
    "trim: an output that is there": (["trim", "bert", "--texts", "glove.txt", "-o", "bert"], 2, "exists already; give another name, or --force"),
    "trim: an output that is a file": (
        ["trim", "bert", "--texts", "glove.txt", "-o", "glove.txt"],
        2,
        "glove.txt is a file; give the name of a folder",
    ),
    "trim: --min-count 0": (["trim", "bert", "--texts", "glove.txt", "-o", "out", "--min-count", "0"], 2, "greater than or equal to 1"),
    "trim: unknown characters": (["trim", "bert", "--texts", "glove.txt", "-o", "out", "--characters", "latin"], 2, "'latin' is not one of"),
    "trim: a model of word vectors": (
        ["trim", "glove.txt", "--texts", "glove.txt", "-o", "out"],
        1,
        "twinvec convert FILE --limit N makes it smaller",
    ),
    "trim: a token that is none": (
        ["trim", "bert", "--texts", "glove.txt", "-o", "out", "--keep", "glove.txt"],
        2,
        "tokens to keep are not in the vocab",
    ),
    "trim: texts without a text": (["trim", "bert", "--texts", "empty.txt", "-o", "out"], 1, "empty.txt"),
    "encode: another engine": (
        ["encode", "glove.txt", "glove.txt", "-o", "v.npy", "--engine", "torch"],
        2,
        "is a static model, which runs on its own",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use(name: str, run: Any, glove: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("")
    before = sorted(path.name for path in tmp_path.iterdir())
    arguments, code, message = WRONG[name]
    found = run(*arguments)
    assert (found.code, found.out) == (code, "")
    assert message in " ".join(found.err.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == before
