"""An encoder made from texts alone: repeatable, an ordinary folder, and small enough for its sizes to be counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tiny_models import CORPUS as ONCE
from twinvec.model.encoder import Encoder
from twinvec.model.fresh import SPECIALS, describe, fresh_encoder, wordpiece_tokenizer

torch.set_num_threads(1)
CORPUS = ONCE * 3  # a merge is made for what occurs twice
SMALL = {"layers": 2, "hidden": 32, "heads": 4, "vocabulary": 400, "max_tokens": 24, "device": "cpu"}


@pytest.fixture(scope="module")
def fresh() -> Encoder:
    return fresh_encoder(CORPUS, **SMALL)


def test_it_saves_and_loads_as_any_model(fresh: Encoder, tmp_path: Path) -> None:
    texts = ["The cat sat on the mat", "如何关闭支付宝", "", "Ünïcode GUITAR 12"]
    before = fresh.encode(texts)
    fresh.save(tmp_path / "model")
    again = Encoder.load(tmp_path / "model", device="cpu")
    np.testing.assert_allclose(again.encode(texts), before, atol=1e-6)
    assert again.max_tokens == 24
    assert again.net.pooling == ("mean",)
    assert again.tokens.tokenizer.mask_token == "[MASK]"
    assert again.fingerprint == fresh.fingerprint


def test_the_folder_opens_in_sentence_transformers(fresh: Encoder, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    fresh.save(tmp_path / "model")
    texts = ["a man is playing", "没网的时候支付宝能够支付吗"]
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(texts)
    np.testing.assert_allclose(theirs, fresh.encode(texts), atol=1e-5)


def test_the_same_arguments_give_the_same_encoder_and_another_seed_another_one(fresh: Encoder) -> None:
    state = torch.get_rng_state()
    same = fresh_encoder(CORPUS, **SMALL)
    assert (torch.get_rng_state() == state).all()  # the caller's own chance is left alone
    assert same.fingerprint == fresh.fingerprint
    other = fresh_encoder(CORPUS, **SMALL, seed=1)
    assert other.tokens.tokenizer.get_vocab() == fresh.tokens.tokenizer.get_vocab()
    assert other.fingerprint != fresh.fingerprint


TIES = [f"{a}{b} {b}{a}x {a}{a}{b}" for a in "abcdefghijklm" for b in "nopqrstuvwxyz"]


def test_another_process_finds_the_same_vocabulary() -> None:
    """All pairs of these letters are equally frequent: whatever breaks ties must not be a hash."""
    script = (
        "import sys, json; from twinvec.model.fresh import wordpiece_tokenizer; "
        "print(json.dumps(wordpiece_tokenizer(json.load(sys.stdin), 150, 16).get_vocab(), sort_keys=True))"
    )
    found = subprocess.run([sys.executable, "-c", script], input=json.dumps(TIES), capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(found.stdout.splitlines()[-1]) == wordpiece_tokenizer(TIES, 150, 16).get_vocab()


def test_the_vocabulary_is_of_the_bert_kind(fresh: Encoder) -> None:
    tokenizer = fresh.tokens.tokenizer
    vocabulary = tokenizer.get_vocab()
    assert [vocabulary[token] for token in SPECIALS] == [0, 1, 2, 3, 4]
    assert len(vocabulary) <= 400
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    assert tokenizer.tokenize("支付宝能够支付吗") == list("支付宝能够支付吗")
    assert tokenizer.tokenize("The CAT") == tokenizer.tokenize("the cat") == ["the", "cat"]
    assert tokenizer("cat").input_ids == [2, vocabulary["cat"], 3]
    assert fresh.net.backbone.config.vocab_size == len(vocabulary)  # type: ignore[union-attr]
    assert tokenizer.decode(tokenizer("a man is playing").input_ids, skip_special_tokens=True) == "a man is playing"


def test_a_small_vocabulary_keeps_the_most_frequent_characters() -> None:
    tokenizer = wordpiece_tokenizer(["aaa aaa aa b 中中中 国"], 11, 8)
    assert len(tokenizer) <= 11
    assert {"a", "##a"} <= set(tokenizer.get_vocab())
    assert tokenizer.tokenize("国") == ["[UNK]"]


def test_sizes_are_those_asked_for(fresh: Encoder) -> None:
    vocabulary = len(fresh.tokens.tokenizer)
    layer = 4 * (32 * 32 + 32) + 2 * 32 * 128 + 32 + 128 + 2 * 64
    expected = (vocabulary + 24 + 2) * 32 + 64 + 2 * layer
    assert sum(p.numel() for p in fresh.net.parameters()) == expected
    assert describe(fresh) == f"fresh bert: 2 layers of 32, {vocabulary} words and pieces, 0.0 million parameters"
    one = fresh_encoder(CORPUS, **{**SMALL, "layers": 1, "intermediate": 40}, pooling="cls+max")
    assert one.dimensions == 64
    assert one.net.backbone.config.intermediate_size == 40  # type: ignore[union-attr]
