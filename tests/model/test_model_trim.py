"""Trimming: a smaller vocabulary, the same tokens and the same vectors on the texts that it was trimmed by."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny_models import CORPUS, FAMILIES, TEXTS, bpe, unigram, wordpiece
from twinvec.errors import ModelError, UsageError
from twinvec.model.encoder import Encoder
from twinvec.model.trim import trim
from twinvec.model.trim_tokenizer import Vocabulary, script_of

ENGLISH = [text for text in (*CORPUS, *TEXTS) if text.isascii()]
CHINESE = [text for text in (*CORPUS, *TEXTS) if not text.isascii()]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("language", ["english", "chinese"])
def test_vectors_stay_as_they_are(family: str, language: str, bare_model: Callable[[str], Path], tmp_path: Path) -> None:
    texts = ENGLISH if language == "english" else CHINESE
    encoder = Encoder.load(bare_model(family), pooling="mean")
    encoder.prompts["query"] = "query: "
    before, plain = encoder.encode(texts), encoder.encode(TEXTS)
    found = trim(encoder, lambda: texts, tmp_path / "small", characters="used", vectors=None)
    np.testing.assert_array_equal(encoder.encode(TEXTS), plain)  # the model that was given is as it was
    small = Encoder.load(tmp_path / "small")
    np.testing.assert_array_equal(small.encode(texts), before)
    np.testing.assert_allclose(small.encode(texts, prompt="query"), encoder.encode(texts, prompt="query"), atol=1e-6)
    assert small.fingerprint != encoder.fingerprint
    assert (found.verified_vectors, found.largest_difference, found.changed_texts) == (len(texts), 0.0, 0)
    assert found.vocabulary_after < found.vocabulary_before
    config: Any = small.net.backbone.config
    rows = small.net.backbone.get_input_embeddings().num_embeddings  # type: ignore[operator]
    assert found.vocabulary_after == len(small.tokens.tokenizer) == config.vocab_size == rows
    width = encoder.net.token_dimensions
    assert found.parameters_before - found.parameters_after == (encoder.net.backbone.config.vocab_size - rows) * width  # type: ignore[union-attr, operator]
    assert found.bytes_after < found.bytes_before
    for name in ("pad", "cls", "sep", "unk", "mask", "bos", "eos"):  # special tokens keep their names and find their new numbers
        token = getattr(encoder.tokens.tokenizer, f"{name}_token", None)
        assert token == getattr(small.tokens.tokenizer, f"{name}_token", None)
        at = getattr(config, f"{name}_token_id", None)
        old = getattr(encoder.net.backbone.config, f"{name}_token_id", None)
        if isinstance(at, int) and isinstance(old, int) and old < len(encoder.tokens.tokenizer):
            assert small.tokens.tokenizer.convert_ids_to_tokens(at) == encoder.tokens.tokenizer.convert_ids_to_tokens(old)


def test_other_libraries_open_the_folder(bare_model: Callable[[str], Path], tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel, AutoTokenizer

    encoder = Encoder.load(bare_model("xlm-roberta"), pooling="mean")
    trim(encoder, lambda: ENGLISH, tmp_path / "small")
    found = SentenceTransformer(str(tmp_path / "small"), device="cpu").encode(ENGLISH)
    np.testing.assert_allclose(found, encoder.encode(ENGLISH), atol=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "small")
    assert AutoModel.from_pretrained(tmp_path / "small").config.vocab_size == len(tokenizer)
    assert not list((tmp_path / "small").glob("*.txt"))  # no older form of the vocabulary that would say otherwise


def test_random_texts_are_cut_as_before(tmp_path: Path, bare_model: Callable[[str], Path]) -> None:
    """Strings of the letters that occur, so that merges, ties and unknown characters come up that no sentence has."""
    random = np.random.default_rng(0)
    letters = np.array(list("thecats nodgmr 如何付吗宝Ωж😀-'"))
    texts = ["".join(random.choice(letters, random.integers(1, 30))) for _ in range(400)]
    for family in ("bert", "roberta", "xlm-roberta"):
        encoder = Encoder.load(bare_model(family), pooling="mean")
        for part in (texts[:40], texts[40:80], texts):
            found = trim(encoder, lambda part=part: part, tmp_path / family, characters="used", vectors=20, force=True)  # type: ignore[misc]
            assert found.changed_texts == 0  # the command itself compares the tokens of every text


def test_wordpiece_words_that_end_as_unknown_stay_unknown(tmp_path: Path) -> None:
    """'ab' + nothing for 'cz' is unknown; without 'ab', 'a' + '##bc' + '##z' would not be. So 'ab' must stay."""
    from tokenizers import Tokenizer, models

    vocab = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "a", "ab", "##bc", "##z", "x"])}
    raw = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    vocabulary = Vocabulary(json.loads(raw.to_str()), "x")
    assert raw.encode("abcz").ids == [1]
    assert vocabulary.failed_matches(["abcz", "x"]) == {3}
    kept = vocabulary.closed({2, 4, 5, *vocabulary.failed_matches(["abcz"])})
    assert Tokenizer.from_str(json.dumps(vocabulary.cut(kept))).encode("abcz").tokens == ["[UNK]"]
    without = vocabulary.closed({2, 4, 5})
    assert Tokenizer.from_str(json.dumps(vocabulary.cut(without))).encode("abcz").tokens == ["a", "##bc", "##z"]


def test_bpe_keeps_the_way_to_each_token() -> None:
    from tokenizers import Tokenizer, models

    vocab = {token: i for i, token in enumerate(["a", "b", "c", "d", "ab", "cd", "abcd", "bc", "da"])}
    merges = [("a", "b"), ("b", "c"), ("c", "d"), ("ab", "cd"), ("d", "a")]
    raw = Tokenizer(models.BPE(vocab, merges))
    vocabulary = Vocabulary(json.loads(raw.to_str()), "x")
    kept = vocabulary.closed({6})
    assert [vocabulary.pieces[at] for at in kept] == ["a", "b", "c", "d", "ab", "cd", "abcd"]
    small = vocabulary.cut(kept)
    assert [tuple(merge) for merge in small["model"]["merges"]] == [("a", "b"), ("c", "d"), ("ab", "cd")]
    assert Tokenizer.from_str(json.dumps(small)).encode("abcdabcd").tokens == ["abcd", "abcd"]


def test_bpe_with_a_mark_at_the_end_of_words() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.train_from_iterator(CORPUS * 3, trainers.BpeTrainer(vocab_size=300, special_tokens=["[UNK]"], end_of_word_suffix="</w>", show_progress=False))
    vocabulary = Vocabulary(json.loads(raw.to_str()), "x")
    used = {at for text in ENGLISH for at in raw.encode(text).ids}
    small = Tokenizer.from_str(json.dumps(vocabulary.cut(vocabulary.closed(used))))
    assert small.get_vocab_size() < raw.get_vocab_size()
    assert [small.encode(text).tokens for text in ENGLISH] == [raw.encode(text).tokens for text in ENGLISH]


def test_unigram_keeps_its_lowest_score() -> None:
    """An unknown character costs 10 more than the lowest piece, so without that piece other segmentations could win."""
    vocabulary = Vocabulary(json.loads(unigram().backend_tokenizer.to_str()), "x")
    scores = [score for _, score in vocabulary.model["vocab"]]
    assert min(scores) in {scores[at] for at in vocabulary.closed({5, 6})}


def test_what_is_kept_beside_the_texts(bare_model: Callable[[str], Path], tmp_path: Path) -> None:
    encoder = Encoder.load(bare_model("xlm-roberta"), pooling="mean")
    sizes = {}
    for mode in ("used", "scripts", "all"):
        found = trim(encoder, lambda: ENGLISH, tmp_path / mode, characters=mode, check=lambda: CHINESE)
        sizes[mode] = found.vocabulary_after
        assert found.check is not None
        assert (found.check.texts, found.check.changed_texts) == (len(CHINESE), len(CHINESE))
        assert 0 < found.check.changed_share <= 1
        assert (found.check.unknown_after > found.check.unknown_before) is (mode != "all")
    assert sizes["used"] < sizes["scripts"] < sizes["all"] < len(encoder.tokens.tokenizer)
    found = trim(encoder, lambda: ENGLISH, tmp_path / "same", check=lambda: ENGLISH)
    assert found.check is not None
    assert (found.check.changed_share, found.check.changed_texts) == (0, 0)
    token = next(piece for at, piece in source_pieces(encoder).items() if len(piece) > 1 and script_of(piece[-1]) == "CJK")
    trim(encoder, lambda: ENGLISH, tmp_path / "keep", keep=[token])
    assert token in Encoder.load(tmp_path / "keep").tokens.tokenizer.get_vocab()


def source_pieces(encoder: Encoder) -> dict[int, str]:
    return Vocabulary(json.loads(encoder.tokens.tokenizer.backend_tokenizer.to_str()), "x").pieces


def test_min_count_says_which_texts_change(bare_model: Callable[[str], Path], tmp_path: Path) -> None:
    encoder = Encoder.load(bare_model("xlm-roberta"), pooling="mean")
    texts = ["the cat sat"] * 3 + ["a guitar"]
    found = trim(encoder, lambda: texts, tmp_path / "small", min_count=2, characters="used")
    assert (found.texts, found.changed_texts, found.verified_vectors) == (4, 1, 3)
    np.testing.assert_array_equal(Encoder.load(tmp_path / "small").encode(texts[:1]), encoder.encode(texts[:1]))


@pytest.mark.parametrize("make", [wordpiece, unigram, bpe])
@pytest.mark.parametrize("weighted", [False, True])
def test_static_models(make: Callable[[], Any], weighted: bool, tmp_path: Path) -> None:
    from model2vec import StaticModel

    tokenizer = make().backend_tokenizer
    tokenizer.no_truncation()
    size, random = tokenizer.get_vocab_size(), np.random.default_rng(2)
    more: dict[str, Any] = {"weights": random.random(size).astype(np.float32), "token_mapping": random.integers(0, size, size)} if weighted else {}
    StaticModel(random.normal(size=(size, 16)).astype(np.float32), tokenizer, normalize=True, **more).save_pretrained(tmp_path / "m2v")
    encoder = Encoder.load(tmp_path / "m2v")
    found = trim(encoder, lambda: CHINESE, tmp_path / "small", characters="used")
    small = Encoder.load(tmp_path / "small")
    np.testing.assert_array_equal(small.encode(CHINESE), encoder.encode(CHINESE))
    assert found.parameters_after < found.parameters_before
    np.testing.assert_allclose(StaticModel.from_pretrained(tmp_path / "small").encode(CHINESE), encoder.encode(CHINESE), atol=1e-6)


def test_a_difference_leaves_nothing_behind(bare_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder.load(bare_model("bert"), pooling="mean")
    real = Encoder.encode

    def shifted(self: Encoder, texts: Any, **options: Any) -> Any:
        return real(self, texts, **options) + (0 if self is encoder else 1e-4)

    monkeypatch.setattr(Encoder, "encode", shifted)
    with pytest.raises(ModelError, match=r"the vector of 'A man is playing a guitar on the stage.' would change by 0.0001, at most 1e-06 was wanted"):
        trim(encoder, lambda: ENGLISH, tmp_path / "out" / "small")
    assert list((tmp_path / "out").iterdir()) == []
    monkeypatch.setattr("twinvec.model.trim.Vocabulary.closed", lambda self, kept: sorted(set(kept) - {max(kept)} | set(self.added)))
    with pytest.raises(ModelError, match=r"text \d+ would be cut another way .* this tokenizer cannot be trimmed, and nothing was written"):
        trim(encoder, lambda: ENGLISH, tmp_path / "out" / "small", characters="used")
    assert list((tmp_path / "out").iterdir()) == []
    assert len(encoder.tokens.tokenizer) == encoder.net.backbone.get_input_embeddings().num_embeddings  # type: ignore[operator]


def test_wrong_options(bare_model: Callable[[str], Path], tmp_path: Path) -> None:
    encoder = Encoder.load(bare_model("bert"), pooling="mean")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "x").write_text("x")
    for options, message in (
        ({"characters": "latin"}, "characters = 'latin': choose one of scripts, all, used"),
        ({"min_count": 0}, "min_count = 0: wanted 1 or more"),
        ({"texts": lambda: ()}, "no text to trim by"),
        ({"keep": ["nope!"]}, "1 of the tokens to keep are not in the vocabulary of .* 'nope!'"),
        ({"folder": tmp_path / "there"}, "there exists already"),
    ):
        with pytest.raises(UsageError, match=message):
            trim(encoder, **{"texts": lambda: ENGLISH, "folder": tmp_path / "out", **options})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]
    (tmp_path / "glove.txt").write_text("the 1 2\n")
    with pytest.raises(ModelError, match=r"made of word vectors.*--limit"):
        trim(Encoder.load(tmp_path / "glove.txt"), lambda: ENGLISH, tmp_path / "out")
    for change, message in (({"type": "Odd"}, "of the kind 'Odd'"), ({"type": "BPE", "dropout": 0.1}, "subword prefix or dropout")):
        with pytest.raises(ModelError, match=message):
            Vocabulary({"model": {"vocab": {}, "merges": [], **change}}, "x")
