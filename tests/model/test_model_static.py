"""Static models: averaged token vectors, held against numpy by hand, model2vec and sentence-transformers."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tiny_models import CORPUS, TEXTS, bpe, unigram, wordpiece
from twinvec.errors import EncodeError, ModelError, TwinvecWarning, UsageError
from twinvec.model.encoder import Encoder
from twinvec.model.static_bag import Bag
from twinvec.model.static_text import idf_weights, read_vectors, sif_weights
from twinvec.model.static_words import SpacedWords, UnicodeWords

Array = npt.NDArray[Any]
LINE = "the cat dog sat on mat a man is playing guitar do n't 's , . u.s. new-york 支付宝 支付 宝 如何 关 闭 🙂 naïve"
WORDS = LINE.split(" ")
MANY = [*TEXTS, *CORPUS, "The CAT sat.", "xyz unknown", "🙂🙃", "ＡＢＣ cat", "a" * 300, "支付宝" * 40]


def vectors_of(words: list[str], dimensions: int = 8, seed: int = 0) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {word: random.normal(size=dimensions).round(4).astype(np.float32) for word in words}


def write_glove(path: Path, vectors: dict[str, Array], header: bool = False) -> Path:
    lines = [f"{word} " + " ".join(f"{x:.4f}" for x in vector) for word, vector in vectors.items()]
    if header:
        lines.insert(0, f"{len(vectors)} {len(next(iter(vectors.values())))}")
    content = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture
def glove(tmp_path: Path) -> Path:
    return write_glove(tmp_path / "glove.txt", vectors_of(WORDS))


def unit(x: Any) -> Array:
    x = np.asarray(x, dtype=np.float64)
    found: Array = x / (np.linalg.norm(x) or 1)
    return found


# ---- text files


@pytest.mark.parametrize(("name", "header"), [("v.txt", False), ("v.vec", True), ("v.txt.gz", True), ("v.gz", False)])
def test_a_text_file_is_a_model(name: str, header: bool, tmp_path: Path) -> None:
    vectors = vectors_of(WORDS)
    encoder = Encoder.load(write_glove(tmp_path / name, vectors, header))
    found = encoder.encode_with_report(["The cat sat on the mat.", "", "xyz", "cat xyz"])
    wanted = [
        unit(np.mean([vectors[word] for word in ("the", "cat", "sat", "on", "the", "mat")], axis=0)),
        np.zeros(8),
        np.zeros(8),
        unit(vectors["cat"]),
    ]
    np.testing.assert_allclose(found.vectors, wanted, atol=1e-6)
    report = found.report
    assert (report.engine, report.precision, report.dimensions, report.empty) == ("static", "float32", 8, [1])
    assert report.unknown_rate == pytest.approx(2 / 9)
    assert any("unknown to this model" in note for note in report.warnings())
    assert report.truncated == 0


def test_save_and_load(glove: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(glove)
    encoder.prompts["query"] = "the cat "
    again = Encoder.load(encoder.save(tmp_path / "model"))
    assert again.fingerprint == encoder.fingerprint
    np.testing.assert_array_equal(again.encode(MANY), encoder.encode(MANY))
    np.testing.assert_array_equal(again.encode("dog", prompt="query"), encoder.encode("the cat dog"))
    assert json.loads((tmp_path / "model" / "twinvec.json").read_text())["fingerprint"] == encoder.fingerprint
    again.save(tmp_path / "model")  # over itself
    assert Encoder.load(tmp_path / "model", engine="static").fingerprint == encoder.fingerprint


def test_no_torch_is_imported(glove: Path, tmp_path: Path) -> None:
    Encoder.load(glove).save(tmp_path / "model")
    code = f"""
import sys
from twinvec.model.encoder import Encoder
for path in ({str(glove)!r}, {str(tmp_path / "model")!r}):
    assert Encoder.load(path).encode(["a cat"]).any()
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path), "PATH": ""})


def test_a_changed_folder_is_found_out(glove: Path, tmp_path: Path) -> None:
    folder = Encoder.load(glove).save(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "pooling": "max"}))
    with pytest.raises(ModelError, match="changed since it was saved: pooling"):
        Encoder.load(folder)
    (folder / "config.json").write_text(json.dumps(config))
    words = (folder / "words.txt").read_text(encoding="utf-8").replace("guitar", "xguitar")
    (folder / "words.txt").write_text(words, encoding="utf-8")
    with pytest.raises(ModelError, match=r"golden text 'A man is playing a guitar.'.*changed since it was saved: tokenizer"):
        Encoder.load(folder)


def test_duplicates_limit_and_words_that_are_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_bytes(b"a 1 2\nb 3 4\na 5 6\n\xff\xfe 7 8\n. . 9 10\nc 11 12\n")
    with pytest.warns(TwinvecWarning) as said:
        words, table = read_vectors(path)
    assert words == ["a", "b", ". .", "c"]
    np.testing.assert_array_equal(table, [[1, 2], [3, 4], [9, 10], [11, 12]])
    assert [str(note.message).split(": ", 1)[1] for note in said] == [
        "1 words come more than once; the first vector of each is kept", "1 words are not UTF-8 and are left out",
    ]  # fmt: skip
    assert read_vectors(write_glove(tmp_path / "w.txt", vectors_of(WORDS)), limit=3)[0] == WORDS[:3]


def test_many_lines_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinvec.model.static_text._LINES_AT_ONCE", 3)
    vectors = vectors_of([f"w{i}" for i in range(11)])
    words, table = read_vectors(write_glove(tmp_path / "v.txt", vectors, header=True))
    assert words == list(vectors)
    np.testing.assert_array_equal(table, np.stack(list(vectors.values())))


# ---- words


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The cat.", ["the", "cat"]),
        ("don't", ["do", "n't"]),
        ("the dog's mat", ["the", "dog", "'s", "mat"]),
        ("the dog’s mat", ["the", "dog", "'s", "mat"]),
        ("u.s. cat", ["u.s.", "cat"]),
        ("new-york cat-dog", ["new-york", "cat", "dog"]),
        ("如何关闭支付宝", ["如何", "关", "闭", "支付宝"]),
        ("支付 支付寶", ["支付", "支付", None]),
        ("GPT支付cat", [None, "支付", "cat"]),
        ("cat 🙂 🙃", ["cat", "🙂", None]),
        ("naïve nai\u0308ve", ["naïve", None]),
        ("a\u200bcat", ["a", "cat"]),
        ("!?… — $ + \t\n", []),
        ("ＣＡＴ", [None]),
        ("x" * 100_000, [None]),
        ("支付宝" * 30_000, ["支付宝"] * 30_000),
    ],
    ids=lambda value: str(value)[:20],
)
def test_unicode_words(text: str, wanted: list[str | None]) -> None:
    splitter = UnicodeWords(WORDS, lower_case=True)
    found = [splitter.words[at] if at < len(WORDS) else None for at in splitter.ids(text)]
    assert found == wanted


def test_cased_words_are_looked_up_as_they_stand_first() -> None:
    splitter = UnicodeWords(["Apple", "apple", "pear"], lower_case=False)
    assert [splitter.ids(text) for text in ("Apple", "apple", "APPLE", "Pear")] == [[0], [1], [1], [2]]


def test_compositions_and_full_width_forms_by_nfkc(glove: Path) -> None:
    encoder = Encoder.load(glove)
    assert encoder.tokens.nfkc
    for one, other in (("ＣＡＴ", "cat"), ("nai\u0308ve", "naïve")):
        np.testing.assert_array_equal(encoder.encode(one), encoder.encode(other))


def test_spaced_words_are_those_of_sentence_transformers() -> None:
    from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer

    texts = [*MANY, "The Cat, the 'mat'!", "... , a", "CAT the. (dog)"]
    for lower in (False, True):
        for stops in ((), ("the", ",", "a")):
            theirs = WhitespaceTokenizer(WORDS, stop_words=stops, do_lower_case=lower)
            ours = SpacedWords(WORDS, lower_case=lower, stop_words=stops)
            for text in texts:
                assert [at for at in ours.ids(text) if at != ours.unknown] == theirs.tokenize(text), (text, lower, stops)


# ---- the arithmetic


def reference(bag: Bag, rows: list[list[int]]) -> Array:
    """By the formulas, in float64."""
    out = []
    for row in rows:
        ids = [i for i in row if i != bag.skip]
        if not ids:
            out.append(np.zeros(bag.width))
            continue
        table = np.asarray(bag.table, dtype=np.float64)
        weights = np.asarray(bag.weights, dtype=np.float64)[ids] if bag.weights is not None else np.ones(len(ids))
        vectors = table[bag.mapping[ids] if bag.mapping is not None else ids] * weights[:, None]
        below = weights.sum() if bag.divide_by_weights and bag.weights is not None else len(ids)
        found = {"mean": vectors.sum(0) / below, "mean_sqrt_len": vectors.sum(0) / np.sqrt(below), "max": vectors.max(0)}
        out.append(np.concatenate([found[name] for name in bag.pooling]))
    found_all = np.stack(out)
    if bag.common is not None:
        found_all -= np.outer(found_all @ bag.common, bag.common)
    return np.stack([unit(row) for row in found_all]) if bag.normalize else found_all


@pytest.mark.parametrize("pooling", [("mean",), ("max",), ("mean_sqrt_len",), ("mean", "max")])
@pytest.mark.parametrize("weighted", [None, "tokens", "weights"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_pooling_by_formula(pooling: tuple[str, ...], weighted: str | None, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinvec.model.static_bag._TOKENS_AT_ONCE", 16)  # so that rows and long rows fall in pieces
    random = np.random.default_rng(1)
    table = (random.normal(size=(7, 5)) * (20 if dtype == "int8" else 1)).astype(dtype)
    bag = Bag(
        table=table, mapping=random.integers(0, 7, 30), weights=random.random(30).astype(np.float32) if weighted else None,
        divide_by_weights=weighted == "weights", pooling=pooling, skip=29, normalize=weighted is None,
        common=unit(random.normal(size=5 * len(pooling))) if weighted == "weights" else None,
    )  # fmt: skip
    rows = [random.integers(0, 30, n).tolist() for n in (0, 1, 3, 3, 5, 1, 40, 100, 0, 2)]
    rows += [[29], [29, 29], [4, 29, 4]]
    found = bag.forward(rows)
    np.testing.assert_allclose(found, reference(bag, rows), rtol=2e-5, atol=2e-5)
    np.testing.assert_array_equal(found[[3, 1]], bag.forward([rows[3], rows[1]]))  # neighbours do not matter, bit for bit
    assert found.dtype == np.float32
    assert bag.forward([]).shape == (0, 5 * len(pooling))


def test_a_zero_row_in_half_precision_stays_zero() -> None:
    """MinishLab/model2vec PR#368: the length of a float16 zero row must not round to 0/0."""
    bag = Bag(table=np.zeros((2, 4), dtype=np.float16), normalize=True)
    np.testing.assert_array_equal(bag.forward([[0], [1, 0], []]), np.zeros((3, 4)))
    tiny = Bag(table=np.full((1, 4), 6e-8, dtype=np.float16), normalize=True)
    np.testing.assert_allclose(tiny.forward([[0]]), 0.5, rtol=1e-3)


def test_sif_and_idf_weights() -> None:
    weights = sif_weights(["the", "Cat", "rare"], {"the": 900, "cat": 100}, a=1e-3)
    np.testing.assert_allclose(weights, [1e-3 / (1e-3 + 0.9), 1e-3 / (1e-3 + 0.1), 1], rtol=1e-6)
    np.testing.assert_allclose(idf_weights(["the", "cat", "rare"], {"the": 0.5, "cat": 2}), [0.5, 2, 2])


# ---- model2vec


@pytest.mark.parametrize("make", [wordpiece, unigram, bpe])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
def test_model2vec_folders(make: Callable[[], Any], normalize: bool, weighted: bool, tmp_path: Path) -> None:
    from model2vec import StaticModel

    tokenizer = make().backend_tokenizer
    tokenizer.no_truncation()
    size, random = tokenizer.get_vocab_size(), np.random.default_rng(2)
    more: dict[str, Any] = {}
    rows = size
    if weighted:
        rows = 40
        more = {"weights": random.random(size).astype(np.float32), "token_mapping": random.integers(0, rows, size)}
    theirs = StaticModel(random.normal(size=(rows, 16)).astype(np.float32), tokenizer, normalize=normalize, **more)
    theirs.save_pretrained(tmp_path / "m2v")
    encoder = Encoder.load(tmp_path / "m2v")
    np.testing.assert_allclose(encoder.encode(MANY), theirs.encode(MANY), atol=1e-6)
    assert (encoder.normalizes, encoder.max_tokens) == (normalize, 512)
    again = Encoder.load(encoder.save(tmp_path / "saved"))
    assert again.fingerprint == encoder.fingerprint
    np.testing.assert_array_equal(again.encode(MANY), encoder.encode(MANY))
    np.testing.assert_allclose(StaticModel.from_pretrained(tmp_path / "saved").encode(MANY), theirs.encode(MANY), atol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("int8", 1e-6)])
def test_model2vec_in_few_bits(dtype: str, tolerance: float, tmp_path: Path) -> None:
    """Stored as they are, averaged in float32; model2vec averages float16 in float16."""
    from model2vec import StaticModel

    tokenizer = wordpiece().backend_tokenizer
    table = (np.random.default_rng(2).normal(size=(tokenizer.get_vocab_size(), 16)) * 30).astype(dtype)
    theirs = StaticModel(table, tokenizer, normalize=True)
    theirs.save_pretrained(tmp_path / "m2v")
    encoder = Encoder.load(tmp_path / "m2v")
    np.testing.assert_allclose(encoder.encode(MANY), theirs.encode(MANY), atol=tolerance)
    assert Encoder.load(encoder.save(tmp_path / "saved")).fingerprint == encoder.fingerprint
    assert (tmp_path / "saved" / "model.safetensors").stat().st_size < table.nbytes + 500


def test_the_window_of_model2vec_is_said(tmp_path: Path) -> None:
    from model2vec import StaticModel

    tokenizer = wordpiece().backend_tokenizer
    tokenizer.no_truncation()
    theirs = StaticModel(np.random.default_rng(2).normal(size=(tokenizer.get_vocab_size(), 8)).astype(np.float32), tokenizer, max_length=5)
    theirs.save_pretrained(tmp_path / "m2v")
    encoder = Encoder.load(tmp_path / "m2v")
    text = "the cat sat on the mat"
    report = encoder.encode_with_report([text, "the cat"]).report
    assert (encoder.max_tokens, report.truncated, report.longest) == (5, 1, 6)
    # model2vec also cuts a text to window x median length of a token characters, before it looks; that is not done here
    np.testing.assert_allclose(encoder.encode(text)[0], theirs.encode("the cat sat on the", max_length=None), atol=1e-6)
    with pytest.raises(EncodeError, match="row 0 has 6 tokens, the model's window is 5"):
        encoder.encode(text, on_long="error")
    pieces = encoder.encode(["the cat sat on the", "mat"])
    np.testing.assert_allclose(encoder.encode(text, on_long="split")[0], (5 * pieces[0] + pieces[1]) / 6, atol=1e-6)
    assert Encoder.load(tmp_path / "m2v", max_tokens=3).max_tokens == 3


# ---- sentence-transformers


def peer(modules: list[Any], folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    found = SentenceTransformer(modules=modules, device="cpu")
    found.save(str(folder), create_model_card=False)
    return found


def same_as_peer(model: Any, folder: Path, saved: Path, texts: list[str] = MANY) -> Encoder:
    """Our vectors are the peer's; the folder that we write opens here and there, with the same vectors."""
    from sentence_transformers import SentenceTransformer

    encoder = Encoder.load(folder)
    wanted = model.encode(texts)
    np.testing.assert_allclose(encoder.encode(texts), wanted, atol=1e-6)
    again = Encoder.load(encoder.save(saved))
    assert again.fingerprint == encoder.fingerprint
    np.testing.assert_array_equal(again.encode(texts), encoder.encode(texts))
    np.testing.assert_allclose(SentenceTransformer(str(saved), device="cpu").encode(texts), wanted, atol=1e-6)
    return encoder


@pytest.mark.parametrize("make", [wordpiece, unigram, bpe])
def test_static_embedding_folders(make: Callable[[], Any], tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, StaticEmbedding
    from torch import nn

    tokenizer = make().backend_tokenizer
    tokenizer.no_truncation()
    weights = np.random.default_rng(3).normal(size=(tokenizer.get_vocab_size(), 12)).astype(np.float32)
    model = peer([StaticEmbedding(tokenizer, embedding_weights=weights)], tmp_path / "a")
    encoder = same_as_peer(model, tmp_path / "a", tmp_path / "a2")
    assert (encoder.engine.name, encoder.normalizes) == ("static", False)
    model = peer([StaticEmbedding(tokenizer, embedding_weights=weights), Dense(12, 6, activation_function=nn.Tanh()), Normalize()], tmp_path / "b")
    assert same_as_peer(model, tmp_path / "b", tmp_path / "b2").dimensions == 6


@pytest.mark.parametrize("modes", [["mean"], ["max"], ["mean", "max"], ["mean_sqrt_len_tokens"]])
@pytest.mark.parametrize("weighted", [False, True])
def test_word_embeddings_folders(modes: list[str], weighted: bool, tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, WordEmbeddings, WordWeights
    from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer

    path = write_glove(tmp_path / "g.txt", vectors_of(WORDS))
    words = WordEmbeddings.from_text_file(str(path), tokenizer=WhitespaceTokenizer(stop_words=["the"], do_lower_case=True))
    words.emb_layer.weight.data = words.emb_layer.weight.data.float()
    modules: list[Any] = [words]
    if weighted:
        modules.append(WordWeights(["PADDING_TOKEN", *WORDS], {"cat": 0.25, "dog": 3.0}, unknown_word_weight=1.5))
    modules += [Pooling(8, pooling_mode=modes[0] if len(modes) == 1 else tuple(modes)), Normalize()]
    known = [text for text in MANY if any(word.strip(".").lower() in WORDS and word.lower() != "the" for word in text.split())]
    # theirs gives -1e9 for the maximum over no token; ours gives zeros
    encoder = same_as_peer(peer(modules, tmp_path / "a"), tmp_path / "a", tmp_path / "a2", known if "max" in modes else MANY)
    assert not encoder.encode("xyz").any()
    assert encoder.encode_with_report("xyz cat").report.unknown_rate == 0.5


@pytest.mark.parametrize("each", [True, False])
def test_bag_of_words_folders(each: bool, tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer.modules import BoW, Normalize

    model = peer([BoW(WORDS, {"cat": 0.25, "dog": 3.0}, unknown_word_weight=2, cumulative_term_frequency=not each), Normalize()], tmp_path / "a")
    encoder = same_as_peer(model, tmp_path / "a", tmp_path / "a2")
    assert encoder.dimensions == len(WORDS)
    assert encoder.engine.bag.table is None


# ---- like any other model


def test_options_that_have_no_meaning(glove: Path, bare_model: Callable[[str], Path]) -> None:
    for options, message in (
        ({"engine": "torch"}, "engine = 'torch': .* is a static model"),
        ({"engine": "onnx"}, "is a static model, which runs on its own engine"),
        ({"precision": "bf16"}, "precision = 'bf16': .* computes in float32"),
        ({"device": "cuda"}, "device = 'cuda': .* runs on the CPU"),
        ({"revision": "v1"}, "revision = 'v1': .* has no revisions"),
        ({"pooling": "cls"}, "no token that stands for its text; it can pool by: mean, max, mean_sqrt_len"),
        ({"pooling": "nope"}, "pooling = 'nope'"),
        ({"max_tokens": 0}, "max_tokens = 0: this model's window is 1 to 1000000"),
    ):
        with pytest.raises(UsageError, match=message):
            Encoder.load(glove, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"is no static model; twinvec convert .* --static"):
        Encoder.load(bare_model("bert"), engine="static")
    with pytest.raises(UsageError, match="a static model has no layers: it cannot be trained, exported or tuned"):
        _ = Encoder.load(glove).net
    assert Encoder.load(glove, engine="auto", pooling="mean+max", device="cpu", precision="float32").dimensions == 16


def test_a_collection_and_a_search(glove: Path, tmp_path: Path) -> None:
    """A text without a known word is stored, and never found before one that has some."""
    import twinvec as tv
    from twinvec.records import Document

    encoder = Encoder.load(glove)
    texts = ["the cat sat on the mat", "a man is playing guitar", "如何关闭支付宝", "qqq zzz", ""]
    with tv.Collection.create(tmp_path / "c", encoder) as collection:
        collection.add([Document(str(i), text) for i, text in enumerate(texts)])
        searcher = tv.Searcher(encoder, collection)
        assert [hit.id for hit in searcher.search("cat on the mat", k=1)] == ["0"]
        assert [hit.id for hit in searcher.search("关闭支付宝", k=1)] == ["2"]
        assert "4" not in {hit.id for hit in searcher.search("guitar", k=5)}
