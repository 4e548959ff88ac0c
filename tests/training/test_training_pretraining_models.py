"""The token tasks on models of other families, and that they learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from pretraining_models import TASKS, load, make_masked, total_loss

from tiny_models import CORPUS
from twinvec.model.encoder import Encoder
from twinvec.model.fresh import fresh_encoder
from twinvec.training.pretraining.tsdae import TSDAE
from twinvec.training.pretraining.vocabulary import vocabulary_of

torch.set_num_threads(1)


@pytest.mark.parametrize("family", ["deberta-v2", "modernbert", "qwen2"])
def test_tsdae_has_a_decoder_of_its_own_where_the_encoders_layers_cannot_serve(bare_model: Callable[[str], Path], family: str) -> None:
    encoder, rows = load(bare_model(family), "last_token" if family == "qwen2" else "mean")
    task = TSDAE(encoder)
    assert not task.tied
    encoder.net.train()
    loss = total_loss(task, encoder, rows)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in encoder.net.parameters() if p.grad is not None)
    assert task.heads["decoder"].own[0].query.weight.grad is not None


@pytest.mark.parametrize("family", ["deberta-v2", "modernbert"])
@pytest.mark.parametrize("name", ["mlm", "retromae"])
def test_masking_tasks_run_on_other_families(bare_model: Callable[[str], Path], family: str, name: str) -> None:
    encoder, rows = load(bare_model(family))
    encoder.tokens.tokenizer.add_special_tokens({"mask_token": encoder.tokens.tokenizer.convert_ids_to_tokens(9)})
    task = TASKS[name](encoder)
    assert not getattr(task, "head_was_stored", False)
    loss = total_loss(task, encoder, rows)
    loss.backward()
    assert torch.isfinite(loss)
    assert encoder.net.backbone.get_input_embeddings().weight.grad.any()  # type: ignore[operator]


def test_a_vector_of_another_width_than_the_tokens(tmp_path: Path) -> None:
    """Two poolings side by side: the decoders take the vector through a linear layer."""
    encoder, rows = load(make_masked("bert", tmp_path)[0], "cls+mean")
    for name in ("retromae", "tsdae"):
        loss = total_loss(TASKS[name](encoder), encoder, rows)
        loss.backward()
        assert torch.isfinite(loss)


def test_sentencepiece_marks_where_words_begin(bare_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, rows = load(bare_model("xlm-roberta"), texts=("payment 如何关闭",))
    tokenizer = encoder.tokens.tokenizer
    stray = next(piece for piece, token in tokenizer.get_vocab().items() if token not in rows[0] and token not in tokenizer.all_special_ids)
    # As in the vocabulary of XLM-R itself, where "##" is a piece of text.
    vocabulary = {"##" if piece == stray else piece: token for piece, token in tokenizer.get_vocab().items()}
    monkeypatch.setattr(tokenizer, "get_vocab", lambda: vocabulary)
    continues = vocabulary_of(encoder).continues("mlm")
    pieces = encoder.tokens.tokenizer.convert_ids_to_tokens(rows[0])
    for piece, token in zip(pieces, rows[0], strict=True):
        chinese = any("\u4e00" <= c <= "\u9fff" for c in piece)
        assert continues[token] == (not piece.startswith(("▁", "<")) and not chinese), piece


# ---- learning


@pytest.mark.parametrize("name", TASKS)
def test_the_loss_falls_on_a_toy_corpus_and_the_encoder_saves_without_heads(name: str, tmp_path: Path) -> None:
    encoder = fresh_encoder(CORPUS * 3, layers=2, hidden=32, heads=4, vocabulary=300, max_tokens=32, device="cpu")
    torch.manual_seed(0)
    task = TASKS[name](encoder)
    optimizer = torch.optim.AdamW([*encoder.net.parameters(), *task.heads.parameters()], lr=5e-3)
    rows = [encoder.tokens.cut(row) for row in encoder.tokens.content(CORPUS)]
    rng = np.random.default_rng(0)
    losses = []
    for _ in range(80):
        encoder.net.train()
        task.heads.train()
        optimizer.zero_grad()
        losses.append(0.0)
        for micro in task.micros(task.prepare(rows, rng), 256):
            loss = task.loss(encoder.net, micro)
            loss.backward()
            losses[-1] += loss.item()
        optimizer.step()
    # Of 300 entries: ln 300 = 5.7 at the start, twice that for RetroMAE's two losses.
    assert np.mean(losses[-10:]) < 0.75 * np.mean(losses[:5])
    encoder.net.eval()
    before = encoder.encode(list(CORPUS))
    encoder.save(tmp_path / "model")
    np.testing.assert_allclose(Encoder.load(tmp_path / "model", device="cpu").encode(list(CORPUS)), before, atol=1e-5)
