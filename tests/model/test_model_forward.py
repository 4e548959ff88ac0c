"""Vectors and gradients against plain transformers, one text at a time, for each family; and nothing that a neighbour can change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tiny_models import FAMILIES, MAKERS, PACKED, TEXTS, make_bare
from twinvec.model.batch import PackedBatch
from twinvec.model.encoder import Encoder
from twinvec.model.pooling import POOLINGS

torch.set_num_threads(1)
MODES = "+".join(POOLINGS)
BareModel = Callable[[str], Path]


def plain_tokens(folder: Path, texts: tuple[str, ...]) -> list[torch.Tensor]:
    """Last hidden states (L, D) of transformers itself."""
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    found = []
    for text in texts:
        batch = tokenizer(text, return_tensors="pt", truncation=True)
        found.append(model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state[0])
    return found


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def encoder(family: str, bare_model: BareModel) -> Encoder:
    return Encoder.load(bare_model(family), pooling=MODES)


def test_the_families_that_travel_packed(family: str, encoder: Encoder) -> None:
    assert (encoder.net.packed is not None) == (family in PACKED)


def test_forward_equals_transformers(family: str, encoder: Encoder, bare_model: BareModel) -> None:
    texts = tuple(text for text in TEXTS if text or family != "qwen2")
    with torch.no_grad():
        wanted = [torch.cat([x[0], x.amax(0), x.mean(0), x.sum(0) / len(x) ** 0.5]).numpy() for x in plain_tokens(bare_model(family), texts)]
    found = encoder.encode(list(texts))
    assert np.std(found) > 0.1  # the texts do differ, and the weights are not trivial
    np.testing.assert_allclose(found[:, : 4 * 32], np.stack(wanted), atol=1e-5)


def test_gradients_equal_transformers(family: str, bare_model: BareModel) -> None:
    """The same loss through twinvec's forward (all texts at once) and through transformers' (one at a time)."""
    from transformers import AutoModel

    folder = bare_model(family)
    encoder = Encoder.load(folder, pooling="mean")
    texts = [text for text in TEXTS if text]
    rows = [encoder.tokens.cut(row) for row in encoder.tokens.content(texts)]
    weights = torch.linspace(-1, 1, len(rows) * 32).view(len(rows), 32)
    (encoder.net(rows, normalize=False) * weights).sum().backward()
    plain = AutoModel.from_pretrained(folder).eval()
    means = [plain(input_ids=torch.tensor([row])).last_hidden_state[0].mean(0) for row in rows]
    (torch.stack(means) * weights).sum().backward()
    wanted = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
    found = {name: p.grad for name, p in encoder.net.backbone.named_parameters() if p.grad is not None}
    assert found.keys() == wanted.keys()
    for name, grad in wanted.items():
        torch.testing.assert_close(found[name], grad, atol=2e-5 * max(1.0, float(grad.abs().max())), rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("budget", [None, 1, 17, 40, 10_000])
def test_rows_do_not_depend_on_their_neighbours(encoder: Encoder, budget: int | None) -> None:
    alone = np.concatenate([encoder.encode(text) for text in TEXTS])
    np.testing.assert_allclose(encoder.encode(TEXTS, batch_tokens=budget), alone, atol=1e-5)
    if budget is None and encoder.net.packed is None:
        assert encoder.net._leaks is False  # these families do not need the slower way, one length at a time
    order = np.random.default_rng(0).permutation(len(TEXTS))
    np.testing.assert_allclose(encoder.encode([TEXTS[i] for i in order], batch_tokens=budget), alone[order], atol=1e-5)


@pytest.mark.parametrize("mode", POOLINGS)
def test_left_padding_equals_right_padding(encoder: Encoder, family: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pooling, with and without a prompt left out; against the packed forward where there is one."""
    net = encoder.net
    monkeypatch.setattr(net, "pooling", (mode,))
    rows = [encoder.tokens.cut(row) for row in encoder.tokens.content([text for text in TEXTS if text])]
    with torch.no_grad():
        for skip in (0, 3):
            right = net._pool_padded(rows, skip)
            alone = torch.cat([net._pool_padded([row], skip) for row in rows])
            torch.testing.assert_close(right, alone, atol=1e-5, rtol=0)
            if family != "mpnet":  # its relative positions count from the first column, so a left-padded row is the same row all the same
                torch.testing.assert_close(net._pool_padded(rows, skip, left=True), alone, atol=1e-5, rtol=0)
            if net.packed is not None:
                torch.testing.assert_close(net._pool_packed(rows, skip), alone, atol=1e-5, rtol=0)


def test_rows_without_tokens_give_zeros(encoder: Encoder) -> None:
    row = encoder.tokens.cut(encoder.tokens.content(["a man"])[0])
    with torch.no_grad():
        mixed, none, alone = encoder.net([[], row, []]), encoder.net([[], []]), encoder.net([row])
        left = encoder.net._pool_padded([[], row], 0, left=True)
        padded = encoder.net._pool_padded([[], row], 0)
    assert mixed.shape == (3, encoder.dimensions)
    assert none.shape == (2, encoder.dimensions)
    assert not mixed[[0, 2]].any()
    assert not none.any()
    assert not left[0].any()
    assert not padded[0].any()
    torch.testing.assert_close(mixed[1], alone[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(padded[1], alone[0], atol=1e-5, rtol=0)


def test_training_mode_drops_and_eval_mode_does_not(family: str, bare_model: BareModel) -> None:
    net = Encoder.load(bare_model(family), pooling="mean").net
    net.set_dropout(0.0)
    rows = [[5, 6, 7, 8, 9], [7, 8]]
    with torch.no_grad():
        still = net.eval()(rows)
        torch.testing.assert_close(net.train()(rows), still, atol=1e-6, rtol=0)
        net.set_dropout(0.3)
        torch.manual_seed(0)
        first, second = net.train()(rows), net.train()(rows)
        torch.testing.assert_close(net.eval()(rows), still, atol=1e-6, rtol=0)
    assert (first - second).abs().max() > 1e-3


@pytest.mark.parametrize("family_", ["roberta", "xlm-roberta", "mpnet"])
def test_a_padding_token_written_in_a_text(family_: str, bare_model: BareModel) -> None:
    """RoBERTa numbers positions by counting tokens that are no padding; a text may well say "<pad>"."""
    encoder = Encoder.load(bare_model(family_), pooling="mean")
    text = "a man <pad> the cat"
    row = encoder.tokens.cut(encoder.tokens.content([text])[0])
    assert encoder.tokens.pad_id in row
    from transformers import AutoModel

    with torch.no_grad():
        wanted = AutoModel.from_pretrained(bare_model(family_))(input_ids=torch.tensor([row])).last_hidden_state[0].mean(0)
    found = encoder.encode(["the dog", text, "the cat sat on the mat"])[1]
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-5)


@pytest.mark.parametrize("family_", PACKED)
def test_bf16_stays_near(family_: str, bare_model: BareModel) -> None:
    wide = Encoder.load(bare_model(family_), pooling="mean").encode(TEXTS)
    half = Encoder.load(bare_model(family_), pooling="mean", precision="bf16").encode(TEXTS)
    assert half.dtype == np.float32
    cosine = (wide * half).sum(1) / np.linalg.norm(wide, axis=1) / np.linalg.norm(half, axis=1)
    assert cosine.min() > 0.995


def test_bf16_autocast_with_gradients(bare_model: BareModel) -> None:
    """The way a bf16 training step goes: float32 weights, autocast inside."""
    for family_ in ("bert", "modernbert"):
        net = Encoder.load(bare_model(family_), pooling="mean").net
        rows = [[5, 6, 7, 8, 9], [7, 8]]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            vectors = net(rows)
        vectors.float().square().sum().backward()
        with torch.no_grad():
            torch.testing.assert_close(vectors.float(), net(rows), atol=0.1, rtol=0.1)
        assert all(torch.isfinite(p.grad).all() for p in net.parameters() if p.grad is not None)


def test_modernbert_window_matters(bare_model: BareModel) -> None:
    """The local layers see 4 tokens to each side: without the window the vectors are others, so the tests above do test it."""
    encoder = Encoder.load(bare_model("modernbert"), pooling="mean")
    long = encoder.encode(TEXTS[4])
    encoder.net.backbone.config.sliding_window = 1000  # type: ignore[union-attr]
    assert np.abs(encoder.encode(TEXTS[4]) - long).max() > 1e-3


def test_backbones_through_which_padding_leaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ConvBERT's convolutions reach into padding, mask or not; such rows travel by length."""
    from transformers import ConvBertConfig

    from tiny_models import _size, wordpiece

    monkeypatch.setitem(MAKERS, "convbert", lambda: (wordpiece(), ConvBertConfig(**_size(max_position_embeddings=64, embedding_size=32))))
    encoder = Encoder.load(make_bare("convbert", tmp_path / "convbert"), pooling="mean")
    alone = np.concatenate([encoder.encode(text) for text in TEXTS])
    assert encoder.net._leaks is None  # one row at a time shows nothing
    np.testing.assert_allclose(encoder.encode(TEXTS), alone, atol=1e-5)
    assert encoder.net._leaks is True


def test_t5_encoder_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an encoder-decoder the encoder is taken; what is saved is that half, and opens again."""
    from transformers import T5Config

    from tiny_models import unigram

    monkeypatch.setitem(MAKERS, "t5", lambda: (unigram(), T5Config(d_model=32, num_layers=2, num_heads=4, d_kv=8, d_ff=48)))
    encoder = Encoder.load(make_bare("t5", tmp_path / "t5"), pooling="mean")
    alone = np.concatenate([encoder.encode(text) for text in TEXTS])
    np.testing.assert_allclose(encoder.encode(TEXTS), alone, atol=1e-5)
    again = Encoder.load(encoder.save(tmp_path / "saved"))
    np.testing.assert_allclose(again.encode(TEXTS), encoder.encode(TEXTS), atol=1e-6)
    assert again.fingerprint == encoder.fingerprint


def test_packed_batch_says_where_each_row_lies() -> None:
    rows = [[5, 6, 7], [8], [], [9, 10, 11], [12, 13]]
    batch = PackedBatch.of(rows)
    assert batch.empty_rows == 1
    found: dict[int, list[int]] = {}
    place = batch.empty_rows
    for group in batch.groups:
        assert group.stop == group.start + group.rows * group.length
        for i in range(group.rows):
            at = group.start + i * group.length
            found[batch.order[place]] = batch.ids[at : at + group.length].tolist()
            assert batch.positions[at : at + group.length].tolist() == list(range(group.length))
            place += 1
    assert found == {i: row for i, row in enumerate(rows) if row}


def test_a_fused_optimiser_is_seen_by_the_next_encode(bare_model: Callable[[str], Path]) -> None:
    """torch's fused AdamW writes weights without counting a version."""
    encoder = Encoder.load(bare_model("bert"), pooling="mean")
    optimizer = torch.optim.AdamW(encoder.net.parameters(), lr=0.05, fused=True)
    before = encoder.encode("the cat sat")
    encoder.net.train()
    encoder.net([[1, 5, 6, 7]]).square().sum().backward()
    optimizer.step()
    encoder.net.eval()
    after = encoder.encode("the cat sat")
    with torch.enable_grad():
        plain = encoder.net([encoder.tokens.cut(encoder.tokens.content(["the cat sat"])[0])]).detach().numpy()
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, plain, atol=1e-5)


@pytest.mark.parametrize("family", PACKED)
def test_rows_of_many_lengths_train_as_they_encode(family: str, bare_model: Callable[[str], Path]) -> None:
    """The layers with gradients and the kept, joined weights without: one result, whatever the mix of lengths."""
    encoder = Encoder.load(bare_model(family), pooling="mean")
    rows = [
        encoder.tokens.cut(row)
        for row in encoder.tokens.content([" ".join(["the cat sat on the mat"] * n) for n in (1, 9, 2, 1, 5, 3)] + ["x", "a dog"])
    ]
    encoder.net.eval()
    with torch.enable_grad():
        with_gradient = encoder.net(rows).detach()
    with torch.inference_mode():
        without = encoder.net(rows)
    torch.testing.assert_close(with_gradient, without, rtol=1e-5, atol=1e-5)
