"""The cross-encoder against transformers row by row, and against sentence-transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tiny_models import TEXTS, WINDOW
from twinvec.model.cross import CrossEncoder

PAIRS = [(a, b) for a in TEXTS for b in TEXTS[::2]]
LONG = "the cat sat on the mat and looked at the dog in the kitchen " * 12


def one_by_one(folder: Path, pairs: list[tuple[str, str]]) -> Any:
    """Logits of each pair alone, unpadded, cut by transformers itself."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSequenceClassification.from_pretrained(folder).double().eval()
    out = []
    for a, b in pairs:
        # In lists: of two plain strings transformers takes an empty second one for none.
        row = tokenizer([a], [b], truncation="longest_first", max_length=WINDOW, return_tensors="pt")
        with torch.no_grad():
            out.append(model(**row).logits[0])
    return torch.stack(out)


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "modernbert", "deberta-v2", "qwen2"])
def test_scores_equal_each_pair_alone(family: str, cross_model: Callable[..., Path]) -> None:
    folder = cross_model(family)
    wanted = one_by_one(folder, PAIRS)[:, 0].sigmoid().numpy()
    found = CrossEncoder.load(folder).scores(PAIRS)
    assert found.dtype == np.float32
    assert np.ptp(wanted) > 0.01
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_two_labels_give_the_probability_of_the_second(cross_model: Callable[..., Path]) -> None:
    folder = cross_model("bert", labels=2)
    np.testing.assert_allclose(CrossEncoder.load(folder).scores(PAIRS), one_by_one(folder, PAIRS).softmax(1)[:, 1].numpy(), atol=1e-5)


@pytest.mark.parametrize("where", ["old", "nested", "own"])
def test_the_activation_is_the_folders_own(where: str, cross_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(cross_model("bert"), tmp_path / "bert"))
    name = "torch.nn.modules.linear.Identity"
    if where == "own":
        (folder / "config_sentence_transformers.json").write_text(json.dumps({"activation_fn": name}))
    else:
        config = json.loads((folder / "config.json").read_text())
        config |= {"sbert_ce_default_activation_function": name} if where == "old" else {"sentence_transformers": {"activation_fn": name}}
        (folder / "config.json").write_text(json.dumps(config))
    np.testing.assert_allclose(CrossEncoder.load(folder).scores(PAIRS), one_by_one(folder, PAIRS)[:, 0].numpy(), atol=1e-5)


def test_sentence_transformers_scores_the_same_and_its_folders_open(cross_model: Callable[..., Path], tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder as Theirs

    theirs = Theirs(str(cross_model("bert")), device="cpu")
    wanted = theirs.predict(PAIRS, show_progress_bar=False)
    np.testing.assert_allclose(CrossEncoder.load(cross_model("bert")).scores(PAIRS), wanted, atol=1e-5)
    theirs.save_pretrained(str(tmp_path / "saved"))
    np.testing.assert_allclose(CrossEncoder.load(tmp_path / "saved").scores(PAIRS), wanted, atol=1e-5)


def test_a_long_pair_loses_the_end_of_its_longer_text_and_is_counted(cross_model: Callable[..., Path]) -> None:
    folder = cross_model("bert")
    model = CrossEncoder.load(folder)
    pairs = [("the dog", LONG), (LONG, "the dog"), (LONG, LONG), ("the dog", "a cat")]
    found = model.scores_with_report(pairs)
    np.testing.assert_allclose(found.scores, one_by_one(folder, pairs)[:, 0].sigmoid().numpy(), atol=1e-5)
    lengths = [len(model.tokenizer(a, b, verbose=False)["input_ids"]) for a, b in pairs]
    assert found.truncated == 3
    assert found.truncated_tokens == sum(max(length - WINDOW, 0) for length in lengths)
    assert found.longest == max(lengths)
    assert "3 of 4 pairs were longer than its window" in found.warnings()[0]
    assert model.scores_with_report(PAIRS[:2]).warnings() == []
    assert CrossEncoder.load(folder, max_tokens=16).scores_with_report(pairs).truncated == 3


@pytest.mark.parametrize("tokens", [1, 40, 100_000])
def test_neither_batches_nor_neighbours_matter(tokens: int, cross_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model = CrossEncoder.load(cross_model("bert"))
    wanted = model.scores(PAIRS)
    monkeypatch.setattr("twinvec.model.cross._BLOCK", 5)
    np.testing.assert_allclose(model.scores(PAIRS, batch_tokens=tokens), wanted, atol=1e-5)
    np.testing.assert_allclose(model.scores(PAIRS[::-1])[::-1], wanted, atol=1e-5)
    np.testing.assert_allclose(model.scores(PAIRS[3:4]), wanted[3:4], atol=1e-5)


def test_odd_texts_and_none_at_all(cross_model: Callable[..., Path]) -> None:
    model = CrossEncoder.load(cross_model("bert"))
    assert model.scores([]).shape == (0,)
    found = model.scores([("", ""), ("\ud800", "a"), ["a", "b"], ("", ""), ("a\u0000b", "你好")])
    assert np.isfinite(found).all()
    assert found[0] == found[3]


def test_training_mode_is_left_as_it_was(cross_model: Callable[..., Path]) -> None:
    model = CrossEncoder.load(cross_model("bert"))
    wanted = model.scores(PAIRS[:4])
    model.model.train()
    np.testing.assert_array_equal(model.scores(PAIRS[:4]), wanted)  # without dropout
    assert model.model.training
