"""What `encode` takes, what it gives, and the account it renders, against counts made by hand."""

from __future__ import annotations

import gc
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from twinvec.errors import EncodeError, InputTypeError, UsageError
from twinvec.model.encoder import Encoder

torch.set_num_threads(1)
LETTERS = list("abcdefghij")


def make_letters(folder: Path, **tokenizer_options: Any) -> Path:
    """A BERT whose tokens are the letters a to j, one each, so that a text's tokens can be counted by eye. Its window is 8."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    from tiny_models import scramble

    vocabulary = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "query", ":", *LETTERS])}
    raw = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    raw.normalizer, raw.pre_tokenizer = normalizers.BertNormalizer(lowercase=False), pre_tokenizers.BertPreTokenizer()
    raw.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, model_max_length=8, **names, **tokenizer_options)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, max_position_embeddings=16
    )
    model = BertModel(config, add_pooling_layer=False)
    scramble(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    encoder = Encoder.load(make_letters(tmp_path_factory.mktemp("letters") / "model"), pooling="mean")
    encoder.prompts.update(query="query: ", long="a b c d e f ", six="a b c d e ", odd="好 : ")
    encoder.net.normalize = True
    return encoder


# ---- what it takes

WORDS = ["a b", "c", "d e f"]
ACCEPTED: dict[str, Callable[[], Any]] = {
    "list": lambda: list(WORDS),
    "tuple": lambda: tuple(WORDS),
    "generator": lambda: (word for word in WORDS),
    "map": lambda: map(str, WORDS),
    "pandas Series": lambda: pd.Series(WORDS),
    "pandas Series with gaps in its index": lambda: pd.Series(WORDS, index=[7, 0, 2]),
    "pandas Series of objects": lambda: pd.Series(WORDS, dtype=object),
    "pandas Series of categories": lambda: pd.Series(WORDS, dtype="category"),
    "pandas Index": lambda: pd.Index(WORDS),
    "polars Series": lambda: pl.Series(WORDS),
    "numpy array of str": lambda: np.array(WORDS),
    "numpy array of objects": lambda: np.array(WORDS, dtype=object),
    "list of numpy strings": lambda: list(np.array(WORDS)),
    "values of a dict": lambda: dict(enumerate(WORDS)).values(),
    "keys of a dict": lambda: dict.fromkeys(WORDS).keys(),
    "lines of a file": lambda: iter(WORDS),
}


@pytest.mark.parametrize("kind", ACCEPTED)
def test_kinds_that_are_accepted(kind: str, letters: Encoder) -> None:
    found = letters.encode(ACCEPTED[kind]())
    assert found.shape == (3, 32)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, letters.encode(WORDS), atol=0)
    assert letters.count_tokens(ACCEPTED[kind]()) == [4, 3, 5]


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "dict": (lambda: {"q": "a"}, r"got a dict; .*list\(texts.values\(\)\)"),
    "OrderedDict": (lambda: OrderedDict(q="a"), r"got a OrderedDict"),
    "set": (lambda: {"a", "b"}, r"got a set, which has no order; .*sorted"),
    "frozenset": (lambda: frozenset({"a"}), r"got a frozenset, which has no order"),
    "bytes": (lambda: b"a", r"got bytes; decode it first"),
    "bytearray": (lambda: bytearray(b"a"), r"got bytearray; decode it first"),
    "None": (lambda: None, r"got a NoneType; give a string"),
    "int": (lambda: 3, r"got a int; give a string"),
    "path": (lambda: Path("a"), r"got a PosixPath|got a WindowsPath"),
    "pairs": (lambda: [["a", "b"]], r"row 0 is a list .*wanted a string; a pair is two texts"),
    "tuple in a list": (lambda: ["a", ("a", "b")], r"row 1 is a tuple .*a pair is two texts"),
    "bytes in a list": (lambda: ["a", b"b"], r"row 1 is a bytes"),
    "None in a list": (lambda: ["a", "b", None], r"row 2 is None \(a missing value\)"),
    "NaN in a list": (lambda: ["a", float("nan")], r"row 1 is nan \(a missing value\)"),
    "pandas NA": (lambda: ["a", pd.NA], r"row 1 is <NA> \(a missing value\)"),
    "number in a list": (lambda: ["a", 1], r"row 1 is a int \('1'\), wanted a string"),
    "gap in a pandas Series": (lambda: pd.Series(["a", None, "b"]), r"row 1 is .* \(a missing value\)"),
    "gap in a polars Series": (lambda: pl.Series(["a", None]), r"row 1 is None \(a missing value\)"),
    "pandas DataFrame": (lambda: pd.DataFrame({"text": WORDS}), r"got a DataFrame, which is no single column.*table\['text'\]"),
    "polars DataFrame": (lambda: pl.DataFrame({"text": WORDS}), r"got a DataFrame, which is no single column"),
    "numpy matrix of str": (lambda: np.array([["a", "b"]]), r"got a ndarray, which is no single column"),
    "numpy scalar array": (lambda: np.array("abc"), r"got a ndarray, which is no single column"),
    "numpy numbers": (lambda: np.zeros(2), r"row 0 is a float"),
    "list of one-letter lists": (lambda: [["a"]], r"row 0 is a list"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_kinds_that_are_refused(kind: str, letters: Encoder) -> None:
    make, message = REFUSED[kind]
    with pytest.raises(InputTypeError, match=message) as found:
        letters.encode(make())
    assert isinstance(found.value, TypeError)  # what Python code expects
    assert isinstance(found.value, EncodeError)


def test_shapes(letters: Encoder) -> None:
    assert letters.encode("a b").shape == (1, 32)
    assert letters.encode("").shape == (1, 32)
    assert letters.encode(np.str_("a")).shape == (1, 32)
    for nothing in ([], (), iter(()), pd.Series([], dtype=object), np.array([], dtype=str)):
        found = letters.encode_with_report(nothing)
        assert found.vectors.shape == (0, 32)
        assert found.vectors.dtype == np.float32
        assert (found.report.rows, found.report.longest, found.report.unknown_rate) == (0, 0, 0.0)


def test_the_result_is_the_callers_own(letters: Encoder) -> None:
    found = letters.encode(["a", "a", "b"])
    assert found.flags.writeable
    assert found.flags.c_contiguous
    found[0] = 0
    assert found[1].any()


def test_empty_texts_are_finite_and_the_same_every_time(letters: Encoder) -> None:
    first = letters.encode_with_report(["", "a b c", " ", "\n\t", "\u3000"])
    assert np.isfinite(first.vectors).all()
    np.testing.assert_allclose(letters.encode([""])[0], first.vectors[0], atol=1e-6)
    np.testing.assert_allclose(first.vectors[2], first.vectors[0], atol=1e-6)
    assert first.report.empty == [0, 2, 3, 4]
    assert any("4 of 5 texts are empty" in note for note in first.report.warnings())


def test_lone_surrogates_are_replaced(letters: Encoder) -> None:
    found = letters.encode(["a \ud800 b", "a \ufffd b", "\ud83d\ude42", "🙂"])
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
    np.testing.assert_allclose(found[2], found[3], atol=1e-6)  # two halves that do belong together are one character


def test_control_characters_and_zero_width_spaces(letters: Encoder) -> None:
    found = letters.encode(["a\u200bb", "a\x00b", "ａ", "\x00"])
    assert np.isfinite(found).all()


def test_lower_case_and_nfkc(tmp_path: Path) -> None:
    encoder = Encoder.load(make_letters(tmp_path / "model"), pooling="mean")
    assert encoder.encode_with_report(["ＡＢ"]).report.unknown_rate == 1
    encoder.tokens.lower_case = encoder.tokens.nfkc = True
    np.testing.assert_allclose(encoder.encode("Ａ Ｂ"), encoder.encode("a b"), atol=1e-6)
    again = Encoder.load(encoder.save(tmp_path / "saved"))
    np.testing.assert_allclose(again.encode("Ａ Ｂ"), encoder.encode("a b"), atol=1e-6)


# ---- the account

SEVEN, SIX, FIVE = "a b c d e f g", "a b c d e f", "a b c d e"  # with [CLS] and [SEP]: 9, 8 and 7 tokens; the window is 8


def test_report_of_cut_rows(letters: Encoder) -> None:
    report = letters.encode_with_report([FIVE, SIX, SEVEN, SEVEN, "a b c d e f g h i j", ""]).report
    assert report.rows == 6
    assert report.dimensions == 32
    assert report.truncated == 3
    assert report.truncated_tokens == 1 + 1 + 4
    assert report.longest == 12
    assert report.tokens == 7 + 8 + 8 + 8 + 8 + 2
    assert report.empty == [5]
    assert report.split == 0
    assert (report.prompt, report.engine, report.precision) == ("", "torch", "float32")
    assert report.threads == torch.get_num_threads()
    assert report.seconds > 0
    assert "3 of 6 texts were longer" in report.warnings()[0]
    assert report.to_dict()["empty"] == 1


@pytest.mark.parametrize(("text", "cut", "lost"), [(FIVE, 0, 0), (SIX, 0, 0), (SEVEN, 1, 1)])
def test_window_exactly(letters: Encoder, text: str, cut: int, lost: int) -> None:
    """One token under the window, the window itself, one over it."""
    report = letters.encode_with_report(text).report
    assert (report.truncated, report.truncated_tokens) == (cut, lost)
    assert report.tokens == min(len(text.split()) + 2, 8)
    if cut:
        np.testing.assert_allclose(letters.encode(text), letters.encode(SIX), atol=1e-6)
        with pytest.raises(EncodeError, match=r"row 1 has 9 tokens, the model's window is 8 \('a b c d e f g'.*on_long='truncate'.*'split'"):
            letters.encode(["a", text], on_long="error")
    else:
        assert letters.encode(["a", text], on_long="error").shape == (2, 32)


def test_long_rows_split(letters: Encoder) -> None:
    """The mean of the pieces weighted by their tokens, of length 1 again; other rows are as they were."""
    text = "a b c d e f g h i j"
    found = letters.encode_with_report(["a", text, SIX, text], on_long="split")
    pieces = letters.encode(["a b c d e f", "g h i j"]).astype(np.float64)
    wanted = 8 * pieces[0] + 6 * pieces[1]
    np.testing.assert_allclose(found.vectors[1], wanted / np.linalg.norm(wanted), atol=1e-5)
    np.testing.assert_allclose(found.vectors[3], found.vectors[1], atol=0)
    np.testing.assert_allclose(found.vectors[[0, 2]], letters.encode(["a", SIX]), atol=1e-6)
    report = found.report
    assert (report.split, report.truncated, report.truncated_tokens, report.longest) == (2, 0, 0, 12)
    assert report.tokens == 3 + 14 + 8 + 14


def test_split_pieces_carry_the_prompt(letters: Encoder) -> None:
    """query : takes two of the six places, so a text of ten letters makes three pieces."""
    found = letters.encode_with_report("a b c d e f g h i j", prompt="query", on_long="split")
    pieces = letters.encode(["a b c d", "e f g h", "i j"], prompt="query").astype(np.float64)
    wanted = 5 * pieces[0] + 5 * pieces[1] + 3 * pieces[2]  # text and [SEP]; [CLS] counts to the prompt
    np.testing.assert_allclose(found.vectors[0], wanted[:] / np.linalg.norm(wanted), atol=1e-5)
    assert found.report.tokens == 8 + 8 + 6


def test_unknown_tokens(letters: Encoder) -> None:
    report = letters.encode_with_report(["a b", "z 你 好", "c"]).report
    assert report.unknown_rate == pytest.approx(3 / 6)
    assert any("50% of the tokens are unknown" in note for note in report.warnings())
    assert letters.encode_with_report(["a b", "c"]).report.unknown_rate == 0
    assert letters.encode_with_report([""]).report.unknown_rate == 0


def test_a_prompt_does_not_hide_unknown_tokens(letters: Encoder) -> None:
    assert letters.encode_with_report(["你", "a"], prompt="query").report.unknown_rate == pytest.approx(1 / 2)
    assert letters.encode_with_report([""], prompt="query").report.unknown_rate == 0
    assert letters.encode_with_report(["a b", "你 c"], prompt="odd").report.unknown_rate == pytest.approx(1 / 4)  # nor make a known text look so


def test_counts_are_of_rows_not_of_distinct_texts(letters: Encoder) -> None:
    report = letters.encode_with_report([SEVEN] * 5 + ["z"] * 3 + [""] * 2).report
    assert (report.rows, report.truncated, report.truncated_tokens, report.empty) == (10, 5, 5, [8, 9])
    assert report.tokens == 5 * 8 + 3 * 3 + 2 * 2
    assert report.unknown_rate == pytest.approx(3 / 38)


# ---- prompts


def test_prompts(letters: Encoder) -> None:
    found = letters.encode_with_report("a b", prompt="query")
    np.testing.assert_allclose(found.vectors, letters.encode("query: a b"), atol=1e-6)
    assert found.report.prompt == "query: "
    assert found.report.tokens == 6
    assert np.abs(found.vectors - letters.encode("a b")).max() > 1e-3


def test_default_prompt(letters: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "default_prompt", "query")
    assert letters.encode_with_report("a").report.prompt == "query: "
    assert letters.encode_with_report("a", prompt="").report.prompt == ""
    np.testing.assert_allclose(letters.encode("a"), letters.encode("a", prompt="query"), atol=1e-6)


def test_unknown_prompt(letters: Encoder) -> None:
    with pytest.raises(UsageError, match=r"prompt = 'qurey'.*knows these prompts: query, long, six, odd; did you mean 'query'\?"):
        letters.encode("a", prompt="qurey")
    with pytest.raises(UsageError, match=r"knows these prompts: none"):
        Encoder(letters.net, letters.tokens, name="x").encode("a", prompt="query")


def test_prompt_that_fills_the_window(letters: Encoder) -> None:
    with pytest.raises(EncodeError, match=r"the prompt 'a b c d e f ' takes 6 of the 6 tokens.*window of 8 leaves: 0 tokens remain for a text"):
        letters.encode("g", prompt="long")
    report = letters.encode_with_report("g h", prompt="six").report  # five of six: one token of text remains
    assert (report.truncated, report.truncated_tokens) == (1, 1)


def test_prompt_left_out_of_pooling(letters: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pooling over the text and [SEP] only; the prompt was still read."""
    monkeypatch.setattr(letters.net, "include_prompt", False)
    monkeypatch.setattr(letters.net, "normalize", False)
    with torch.no_grad():
        row = letters.tokens.cut(letters.tokens.content(["query: a b"])[0])
        states = letters.net.backbone(torch.tensor([row])).last_hidden_state[0]
    np.testing.assert_allclose(letters.encode("a b", prompt="query")[0], states[3:].mean(0).numpy(), atol=1e-5)
    np.testing.assert_allclose(letters.encode("", prompt="query")[0], states_of(letters, "query: ")[3:].mean(0), atol=1e-5)


def states_of(encoder: Encoder, text: str) -> Any:
    with torch.no_grad():
        row = encoder.tokens.cut(encoder.tokens.content([text])[0])
        return encoder.net.backbone(torch.tensor([row])).last_hidden_state[0].numpy()


# ---- options and failures


def test_wrong_options(letters: Encoder) -> None:
    with pytest.raises(UsageError, match=r"on_long = 'cut': choose one of truncate, error, split"):
        letters.encode("a", on_long="cut")
    for wrong in (0, -5):
        with pytest.raises(UsageError, match=rf"batch_tokens = {wrong}: wanted a number of tokens, 1 or more"):
            letters.encode("a", batch_tokens=wrong)


def test_nan_weights_name_the_rows(tmp_path: Path) -> None:
    encoder = Encoder.load(make_letters(tmp_path / "model"), pooling="mean")
    with torch.no_grad():
        encoder.net.backbone.embeddings.word_embeddings.weight[6] = float("nan")  # type: ignore[union-attr, operator, index]
    with pytest.raises(EncodeError, match=r"3 of 5 rows came out as NaN or infinity \(rows, from 0: 1, 3, 4\): the model's weights"):
        encoder.encode(["b", "a", "c", "b a", "a"])
    assert encoder.encode(["b", "c"]).shape == (2, 32)  # and the encoder lives on


def test_a_tokenizer_with_more_tokens_than_the_model(tmp_path: Path) -> None:
    from twinvec.errors import ModelError

    encoder = Encoder.load(make_letters(tmp_path / "model"), pooling="mean")
    encoder.tokens.tokenizer.add_tokens(["zzz"])
    with pytest.raises(ModelError, match=r"tokens up to 16 .*tokenizer and weights do not belong together"):
        encoder.encode(["a", "zzz"])


def test_encoding_leaves_training_mode_and_gradients_as_they_were(letters: Encoder) -> None:
    for training in (True, False):
        letters.net.train(training)
        with torch.enable_grad():
            found = letters.encode("a b")
        assert letters.net.training is training
        np.testing.assert_allclose(found, letters.encode("a b"), atol=0)  # no dropout either way
    letters.net.eval()


def test_blocks_do_not_change_a_vector(letters: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [" ".join(np.random.default_rng(i).choice(LETTERS, i % 12)) for i in range(50)]
    whole = letters.encode_with_report(texts)
    monkeypatch.setattr("twinvec.model.encoder._BLOCK_TEXTS", 7)
    monkeypatch.setattr("twinvec.model.encoder._BLOCK_CHARACTERS", 40)
    parts = letters.encode_with_report(texts)
    np.testing.assert_allclose(parts.vectors, whole.vectors, atol=1e-5)
    assert {**parts.report.to_dict(), "seconds": 0} == {**whole.report.to_dict(), "seconds": 0}
    with pytest.raises(EncodeError, match=rf"row {next(i for i, text in enumerate(texts) if len(text.split()) > 6)} has"):
        letters.encode(texts, on_long="error")


def test_progress_goes_to_stderr_and_counts_texts(letters: Encoder, capfd: pytest.CaptureFixture[str]) -> None:
    letters.encode(["a b", "a b c d e f g h i j"] * 3, progress=True, on_long="split")
    out, err = capfd.readouterr()
    assert out == ""
    assert "3/2" not in err


def rss() -> float:
    """Resident memory of this process in MB."""
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux's /proc")
@pytest.mark.parametrize("family", ["bert", "xlm-roberta", "roberta"])
def test_memory_of_long_words_stays_flat(family: str, bare_model: Callable[[str], Path]) -> None:
    """Words of 12,345 characters, all different: tokenizers keep caches, and a block of them must stay small (ten thousand gave others 4 GB)."""
    encoder = Encoder.load(bare_model(family), pooling="mean")
    random = np.random.default_rng(0)

    def words(n: int) -> list[str]:
        return ["".join(map(chr, row)) for row in random.integers(97, 123, (n, 12_345))]

    for _ in range(2):
        encoder.encode(words(40))
    gc.collect()
    before = rss()
    for _ in range(6):
        assert encoder.encode(words(40)).shape == (40, 32)
    gc.collect()
    assert rss() - before < 60
