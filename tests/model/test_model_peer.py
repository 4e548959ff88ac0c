"""Folders in both directions between twinvec and sentence-transformers 6, for each family, with equal vectors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tiny_models import FAMILIES, TEXTS, WINDOW
from twinvec.model.encoder import Encoder

peer = pytest.importorskip("sentence_transformers", reason="sentence-transformers (dev extra) is not installed")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules", reason="needs sentence-transformers 6")
torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:torch")
BareModel = Callable[[str], Path]
PROMPTS = {"query": "query: ", "passage": "passage: "}
LONG = " ".join(TEXTS) * 3


def texts_for(family: str) -> list[str]:
    """Ours gives zeros for a decoder's empty text only where no end token is added; the tiny one adds it, so "" is a text like others."""
    return [*TEXTS, LONG]


def make_theirs(bare: Path, folder: Path, *, pooling: Any = "mean", dense: bool = False, normalize: bool = True, **more: Any) -> Any:
    include = more.pop("include_prompt", True)
    transformer = modules.Transformer(str(bare), **({"max_seq_length": more.pop("window")} if "window" in more else {}))
    parts = [transformer, modules.Pooling(32, pooling, include_prompt=include)]
    if dense:
        width = 32 * (1 if isinstance(pooling, str) else len(pooling))
        parts += [modules.Dense(width, 24), modules.Dense(24, 12, bias=False, activation_function=torch.nn.Identity())]
    if normalize:
        parts.append(modules.Normalize())
    model = peer.SentenceTransformer(modules=parts, device="cpu", **more).eval()
    model.save(str(folder), create_model_card=False)
    return model


def old_spelling(folder: Path) -> None:
    """Rewrite a folder as releases before 6 wrote it."""
    names = {"Transformer": "sentence_transformers.models.Transformer", "Pooling": "sentence_transformers.models.Pooling",
             "Dense": "sentence_transformers.models.Dense", "Normalize": "sentence_transformers.models.Normalize"}  # fmt: skip
    found = json.loads((folder / "modules.json").read_text())
    for module in found:
        module["type"] = names[module["type"].rsplit(".", 1)[1]]
    (folder / "modules.json").write_text(json.dumps(found))
    path = folder / "1_Pooling" / "config.json"
    config = json.loads(path.read_text())
    given = config.pop("pooling_mode")
    flags = {"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
             "weightedmean": "weightedmean_tokens", "lasttoken": "lasttoken"}  # fmt: skip
    chosen = [given] if isinstance(given, str) else given
    config.update({f"pooling_mode_{flag}": mode in chosen for mode, flag in flags.items()})
    config["word_embedding_dimension"] = config.pop("embedding_dimension")
    path.write_text(json.dumps(config))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 40, "do_lower_case": False}))


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_theirs_opens_here(family: str, bare_model: BareModel, tmp_path: Path) -> None:
    theirs = make_theirs(bare_model(family), tmp_path / "st", pooling="lasttoken" if family == "qwen2" else "mean", prompts=PROMPTS)
    ours = Encoder.load(tmp_path / "st")
    texts = texts_for(family)
    assert ours.prompts == PROMPTS
    assert ours.normalizes
    assert ours.max_tokens == WINDOW == theirs.max_seq_length
    np.testing.assert_allclose(ours.encode(texts), theirs.encode(texts), atol=1e-5)
    for name in PROMPTS:
        np.testing.assert_allclose(ours.encode(texts, prompt=name), theirs.encode(texts, prompt_name=name), atol=1e-5)


def test_ours_opens_there_and_in_transformers(family: str, bare_model: BareModel, tmp_path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    pooling = "last_token" if family == "qwen2" else "cls+mean"
    ours = Encoder.load(bare_model(family), pooling=pooling, max_tokens=40)
    ours.prompts.update(PROMPTS)
    ours.save(tmp_path / "ours")
    texts = texts_for(family)
    theirs = peer.SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    assert theirs.max_seq_length == 40
    np.testing.assert_allclose(theirs.encode(texts), ours.encode(texts), atol=1e-5)
    np.testing.assert_allclose(theirs.encode(texts, prompt_name="query"), ours.encode(texts, prompt="query"), atol=1e-5)
    model, tokenizer = AutoModel.from_pretrained(tmp_path / "ours").eval(), AutoTokenizer.from_pretrained(tmp_path / "ours")
    for text, vector in zip(texts, ours.encode(texts), strict=True):
        batch = tokenizer(text, return_tensors="pt", truncation=True)
        if not batch["input_ids"].numel():
            continue
        with torch.no_grad():
            states = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state[0]
        wanted = states[-1] if family == "qwen2" else torch.cat([states[0], states.mean(0)])
        np.testing.assert_allclose(vector, wanted.numpy(), atol=1e-5)


def test_saved_here_saved_there_saved_here(family: str, bare_model: BareModel, tmp_path: Path) -> None:
    """The way there and back keeps vectors and fingerprint."""
    ours = Encoder.load(bare_model(family), pooling="mean")
    ours.prompts.update(PROMPTS)
    ours.default_prompt = "passage"
    ours.save(tmp_path / "ours")
    peer.SentenceTransformer(str(tmp_path / "ours"), device="cpu").save(str(tmp_path / "theirs"), create_model_card=False)
    again = Encoder.load(tmp_path / "theirs")
    resaved = Encoder.load(again.save(tmp_path / "again"))
    assert again.prompts == PROMPTS
    assert again.default_prompt == "passage"
    assert ours.fingerprint == again.fingerprint == resaved.fingerprint
    np.testing.assert_allclose(resaved.encode(TEXTS), ours.encode(TEXTS), atol=1e-6)


JOINED = ("mean", ("cls", "max"), ("mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"))


@pytest.mark.parametrize(  # ("lasttoken", "cls") is an order that the old flags cannot say
    ("pooling", "spelling"), [*((names, "new") for names in JOINED), *((names, "old") for names in JOINED), (("lasttoken", "cls"), "new")]
)
def test_heads_both_ways(pooling: Any, spelling: str, bare_model: BareModel, tmp_path: Path) -> None:
    theirs = make_theirs(bare_model("bert"), tmp_path / "st", pooling=pooling, dense=True)
    if spelling == "old":
        old_spelling(tmp_path / "st")
        theirs.max_seq_length = 40
    ours = Encoder.load(tmp_path / "st")
    texts = [*TEXTS, LONG]
    assert ours.dimensions == 12
    np.testing.assert_allclose(ours.encode(texts), theirs.encode(texts), atol=1e-5)
    back = peer.SentenceTransformer(str(ours.save(tmp_path / "back")), device="cpu")
    np.testing.assert_allclose(back.encode(texts), ours.encode(texts), atol=1e-5)
    assert Encoder.load(tmp_path / "back").fingerprint == ours.fingerprint


@pytest.mark.parametrize("mode", ["mean", "cls", "max", "weightedmean", "lasttoken", "mean_sqrt_len_tokens"])
@pytest.mark.parametrize("family_", ["bert", "xlm-roberta", "roberta", "qwen2"])
def test_prompts_left_out_of_pooling(mode: str, family_: str, bare_model: BareModel, tmp_path: Path) -> None:
    theirs = make_theirs(bare_model(family_), tmp_path / "st", pooling=mode, include_prompt=False, prompts=PROMPTS, default_prompt_name="query")
    ours = Encoder.load(tmp_path / "st")
    texts = [text for text in TEXTS if text]
    assert ours.default_prompt == "query"
    np.testing.assert_allclose(ours.encode(texts), theirs.encode(texts), atol=1e-5)
    np.testing.assert_allclose(ours.encode(texts, prompt="passage"), theirs.encode(texts, prompt_name="passage"), atol=1e-5)
    np.testing.assert_allclose(ours.encode(texts, prompt=""), theirs.encode(texts, prompt=""), atol=1e-5)
    assert Encoder.load(ours.save(tmp_path / "saved")).net.include_prompt is False
    back = peer.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_allclose(back.encode(texts), ours.encode(texts), atol=1e-5)


@pytest.mark.parametrize("window", [8, 33])
def test_their_window(window: int, bare_model: BareModel, tmp_path: Path) -> None:
    theirs = make_theirs(bare_model("bert"), tmp_path / "st", window=window)
    ours = Encoder.load(tmp_path / "st")
    assert ours.max_tokens == window
    np.testing.assert_allclose(ours.encode([*TEXTS, LONG]), theirs.encode([*TEXTS, LONG]), atol=1e-5)


def test_their_lower_case(bare_model: BareModel, tmp_path: Path) -> None:
    """do_lower_case over a tokenizer that keeps case, as the old folders say it."""
    make_theirs(bare_model("roberta"), tmp_path / "st")
    old_spelling(tmp_path / "st")
    (tmp_path / "st" / "sentence_bert_config.json").write_text('{"max_seq_length": 40, "do_lower_case": true}')
    theirs, ours = peer.SentenceTransformer(str(tmp_path / "st"), device="cpu"), Encoder.load(tmp_path / "st")
    texts = ["A MAN Is Playing", "a man is playing"]
    np.testing.assert_allclose(ours.encode(texts), theirs.encode(texts), atol=1e-5)
    np.testing.assert_allclose(*ours.encode(texts), atol=1e-6)
    assert Encoder.load(ours.save(tmp_path / "saved")).tokens.lower_case


def test_spaces_are_kept_as_they_keep_them(bare_model: BareModel, tmp_path: Path) -> None:
    for family_ in ("roberta", "xlm-roberta", "bert", "modernbert"):
        theirs = make_theirs(bare_model(family_), tmp_path / family_)
        texts = [" a man", "a man", "a man \n", "\t", "  the   cat  ", "\u3000花呗\u3000", "a\u200bb"]
        np.testing.assert_allclose(Encoder.load(tmp_path / family_).encode(texts), theirs.encode(texts), atol=1e-5)


def test_cut_from_the_left(bare_model: BareModel, tmp_path: Path) -> None:
    """truncation_side is part of the model: kept when saved, and in the fingerprint."""
    shutil.copytree(bare_model("bert"), tmp_path / "bare")
    path = tmp_path / "bare" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "truncation_side": "left"}))
    theirs = make_theirs(tmp_path / "bare", tmp_path / "st", window=12)
    ours, right = Encoder.load(tmp_path / "st"), Encoder.load(bare_model("bert"), pooling="mean", max_tokens=12)
    np.testing.assert_allclose(ours.encode([LONG]), theirs.encode([LONG]), atol=1e-5)
    assert np.abs(right.encode(LONG) - ours.encode(LONG)).max() > 1e-3
    saved = Encoder.load(ours.save(tmp_path / "saved"))
    np.testing.assert_allclose(saved.encode([LONG]), ours.encode([LONG]), atol=1e-6)
    assert saved.fingerprint == ours.fingerprint


def test_bare_folder_pools_as_they_guess(bare_model: BareModel) -> None:
    with pytest.warns(UserWarning, match="does not say how it pools"):
        ours = Encoder.load(bare_model("bert"))
    theirs = peer.SentenceTransformer(str(bare_model("bert")), device="cpu")
    np.testing.assert_allclose(ours.encode(TEXTS), theirs.encode(list(TEXTS)), atol=1e-5)
