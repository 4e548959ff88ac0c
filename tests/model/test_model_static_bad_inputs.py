"""Static models that cannot be used, and models that cannot be trimmed, with the error each gives. `CASES` is the table of the documentation.

Each case: a name; how it is made, a function of an empty folder that returns what is given to `Encoder.load`; the error; and a pattern that its
message must match.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import save_file

from tiny_models import wordpiece
from twinvec.errors import ModelError, TwinvecError, UsageError
from twinvec.model.encoder import Encoder
from twinvec.model.static_folder import encoder_of_words

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:53aa5117\nsize 90868376\n"
GOOD = "the 1 2 3\ncat 4 5 6\ndog 7 8 9\n"
Make = Callable[[Path], Path]


class Case(NamedTuple):
    name: str
    make: Make
    error: type[TwinvecError]
    message: str


def text(content: str | bytes, name: str = "v.txt") -> Make:
    def make(place: Path) -> Path:
        raw = content.encode() if isinstance(content, str) else content
        (place / name).write_bytes(raw)
        return place / name

    return make


def own(change: Callable[[Path], Any]) -> Make:
    """A good folder of words, changed."""

    def make(place: Path) -> Path:
        (place / "v.txt").write_text(GOOD)
        folder = Encoder.load(place / "v.txt").save(place / "model")
        (folder / "twinvec.json").unlink()
        change(folder)
        return folder

    return make


def config(**changes: Any) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        found = {**json.loads((folder / "config.json").read_text()), **changes}
        (folder / "config.json").write_text(json.dumps(found))

    return change


def arrays(**given: Any) -> Callable[[Path], Any]:
    return lambda folder: save_file({name: np.asarray(value, dtype=np.float32) for name, value in given.items()}, folder / "model.safetensors")


def tokens(change: Callable[[Path, int], Any]) -> Make:
    """A good model2vec folder, changed; `change` is told the size of the vocabulary."""

    def make(place: Path) -> Path:
        folder = place / "m2v"
        folder.mkdir()
        tokenizer = wordpiece().backend_tokenizer
        tokenizer.save(str(folder / "tokenizer.json"))
        size = tokenizer.get_vocab_size()
        save_file({"embeddings": np.ones((size, 4), dtype=np.float32)}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": True}))
        change(folder, size)
        return folder

    return make


def modules(first: str, *rest: str, **files: Any) -> Make:
    def make(place: Path) -> Path:
        kinds = [first, *rest]
        listed = [{"idx": i, "name": str(i), "path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"} for i, kind in enumerate(kinds)]
        (place / "model").mkdir()
        (place / "model" / "modules.json").write_text(json.dumps(listed))
        for name, content in files.items():
            path = place / "model" / name.replace("__", "/").replace("DOT", ".")
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(content))
        return place / "model"

    return make


WORDS_CONFIG = {"tokenizer_class": "sentence_transformers.models.tokenizer.WhitespaceTokenizer", "max_seq_length": 9}
CASES = [
    # text files
    Case("an empty file of vectors", text(""), ModelError, r"v.txt, line 1: wanted a word and its numbers, or 'COUNT DIMENSIONS', got ''"),
    Case("a text without numbers", text("hello\nworld\n"), ModelError, r"v.txt, line 1: wanted a word and its numbers"),
    Case("a list of words", text("the cat sat\na dog ran\n"), ModelError, r"v.txt, line 1: wanted 2 numbers after the word, got 'cat sat'"),
    Case("a vector too short", text("a 1 2 3\nb 1 2\n"), ModelError, r"v.txt, line 2: 2 numbers after the word, wanted 3 as on the first line"),
    Case("a vector with a word in it", text("a 1 2 3\nb 1 x 3\n"), ModelError, r"v.txt, line 2: wanted 3 numbers after the word, got '1 x 3'"),
    Case("NaN in a vector", text("a 1 2\nb nan 2\n"), ModelError, r"v.txt, line 2: a number of the vector is NaN or infinity; take the line out"),
    Case("an empty line between vectors", text("a 1 2\n\nb 1 2\n"), ModelError, r"v.txt, line 2: empty, wanted a word and 2 numbers"),
    Case("a header and nothing else", text("400000 300\n"), ModelError, r"v.txt: no word vectors in the file"),
    Case("a header of other dimensions", text("2 4\na 1 2\nb 3 4\n"), ModelError, r"v.txt, line 2: 2 numbers after the word, wanted 4"),
    Case(
        "word2vec's binary format",
        text(b"2 3\na \x00\x01\x02\x03\xff\xfe", "v.vec"),
        ModelError,
        r"v.vec, line 2: .* word2vec's binary format\? Save",
    ),
    Case("vectors: a Git LFS pointer", text(LFS), ModelError, r"v.txt is a Git LFS pointer, not the vectors; run 'git lfs pull'"),
    Case(
        "vectors: a web page", text("<!DOCTYPE html><html>404</html>"), ModelError, r"v.txt holds a web page, not word vectors .* download it again"
    ),
    Case("a .gz that is none", text(GOOD, "v.txt.gz"), ModelError, r"v.txt.gz: the gzip file is damaged or cut short"),
    Case("a .gz cut short", text(gzip.compress((GOOD * 999).encode())[:-40], "v.gz"), ModelError, r"v.gz: the gzip file is damaged or cut short"),
    # our own folder
    Case("words.txt is missing", own(lambda f: (f / "words.txt").unlink()), ModelError, r"words.txt: cannot be read .*fetch the model again"),
    Case(
        "a word too many", own(lambda f: (f / "words.txt").write_text("the\ncat\n")), ModelError, r"'embeddings' has 3 rows, the tokenizer 2 tokens"
    ),
    Case("words: an unknown way to split", own(config(split="jieba")), ModelError, r"split = 'jieba': choose one of unicode"),
    Case("words: an unknown pooling", own(config(pooling="cls")), ModelError, r"pooling 'cls' has no meaning for a static model; known: mean, max"),
    Case("words: a window that is no number", own(config(max_tokens="many")), ModelError, r"the model's window is 'many', wanted a number of tokens"),
    Case(
        "words: weights of another length", own(arrays(embeddings=np.ones((3, 3)), weights=[1, 2])), ModelError, r"'weights' wants 3 finite numbers"
    ),
    Case("words: NaN in the vectors", own(arrays(embeddings=np.full((3, 3), np.nan))), ModelError, r"'embeddings' holds NaN or infinity"),
    Case(
        "words: no vectors in the file",
        own(arrays(other=[1])),
        ModelError,
        r"wanted an array 'embeddings' of two dimensions, the file holds other \(1,\)",
    ),
    Case(
        "words: vectors cut short", own(lambda f: (f / "model.safetensors").write_bytes(b"\x10")), ModelError, r"the weights cannot be read .*damaged"
    ),
    Case("words: vectors are a pointer", own(lambda f: (f / "model.safetensors").write_text(LFS)), ModelError, r"is a Git LFS pointer"),
    # model2vec
    Case("model2vec without tokenizer", tokens(lambda f, n: (f / "tokenizer.json").unlink()), ModelError, r"tokenizer.json: this file .* is missing"),
    Case("model2vec: tokenizer cut short", tokens(lambda f, n: (f / "tokenizer.json").write_text("{")), ModelError, r"the tokenizer cannot be read"),
    Case(
        "model2vec: too few rows", tokens(lambda f, n: arrays(embeddings=np.ones((3, 4)))(f)), ModelError, r"'embeddings' has 3 rows, the tokenizer"
    ),
    Case(
        "model2vec: a mapping that points outside",
        tokens(lambda f, n: arrays(embeddings=np.ones((3, 4)), mapping=[9] * n)(f)),
        ModelError,
        r"'mapping' points outside the 3 rows of 'embeddings'",
    ),
    Case(
        "model2vec: a mapping too short", tokens(lambda f, n: arrays(embeddings=np.ones((3, 4)), mapping=[0])(f)), ModelError, r"'mapping' has 1 rows"
    ),
    Case("model2vec: a window of 0", tokens(lambda f, n: config(max_length=0)(f)), ModelError, r"the model's window is 0, wanted a number"),
    # sentence-transformers
    Case("StaticEmbedding without files", modules("StaticEmbedding"), ModelError, r"0_StaticEmbedding/tokenizer.json: this file .* is missing"),
    Case(
        "an unknown module after it", modules("StaticEmbedding", "LSTM"), ModelError, r"module sentence_transformers.models.LSTM .* not known after"
    ),
    Case(
        "WordEmbeddings without files", modules("WordEmbeddings", "Pooling"), ModelError, r"1_Pooling/config.json: this file of the model is missing"
    ),
    Case(
        "words cut by a tokenizer unknown here",
        modules("WordEmbeddings", **{"0_WordEmbeddings__wordembedding_configDOTjson": {"tokenizer_class": "x.PhraseTokenizer"}}),
        ModelError,
        r"tokenizer_class 'x.PhraseTokenizer' is not known here; known: WhitespaceTokenizer",
    ),
    Case(
        "WordEmbeddings without a word",
        modules(
            "WordEmbeddings",
            **{
                "0_WordEmbeddings__wordembedding_configDOTjson": WORDS_CONFIG,
                "0_WordEmbeddings__whitespacetokenizer_configDOTjson": {"vocab": "the"},
            },
        ),
        ModelError,
        r"whitespacetokenizer_config.json: 'vocab' is no list of words",
    ),
    Case(
        "a bag of no words", modules("BoW", **{"0_BoW__configDOTjson": {"vocab": []}}), ModelError, r"0_BoW/config.json: 'vocab' is no list of words"
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_static_model(case: Case, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    given = case.make(tmp_path)
    with pytest.raises(case.error, match=case.message) as found:
        Encoder.load(given)
    message = str(found.value)
    record_property("message", message)
    assert "\n" not in message
    assert len(message) < 600


WEIGHTS = {
    "a weight that is none": ("the 1\ncat x\n", r"w.txt, line 2: .* wants lines of a word and a number of 0 or more, got 'cat x'"),
    "a weight below 0": ("the -1\n", r"w.txt, line 1: .*got 'the -1'"),
    "a word without a weight": ("the\n", r"w.txt, line 1: .*got 'the'"),
    "no weights": ("\n", r"w.txt: .* wants lines of a word and a number, the file has none"),
}


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("option", ["idf", "sif"])
def test_bad_weights(option: str, name: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    content, message = WEIGHTS[name]
    (tmp_path / "v.txt").write_text(GOOD)
    (tmp_path / "w.txt").write_text(content)
    with pytest.raises(UsageError, match=message) as found:
        encoder_of_words(tmp_path / "v.txt", **{option: tmp_path / "w.txt"})
    record_property("message", str(found.value))


def test_counts_of_zero_and_texts_of_unknown_words(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text(GOOD)
    (tmp_path / "w.txt").write_text("the 0\n")
    with pytest.raises(UsageError, match="SIF weights need counts of words; all of them are 0"):
        encoder_of_words(tmp_path / "v.txt", sif=tmp_path / "w.txt")
    with pytest.raises(UsageError, match="have hardly a known word"):
        encoder_of_words(tmp_path / "v.txt", common=["xyz", ""])


def test_names_differ() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
