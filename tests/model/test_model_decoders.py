"""Decoders travel without padding: tokens, gradients and causality against transformers and against a float64 reference of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tiny_models import MAKERS, TEXTS, WINDOW, _size, bpe, make_bare
from twinvec.model.batch import PackedBatch
from twinvec.model.encoder import Encoder
from twinvec.model.packed import packed_forward
from twinvec.model.states import token_states

torch.set_num_threads(1)


def llama() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(**_size(num_key_value_heads=2, max_position_embeddings=WINDOW))


def llama_wide_heads() -> Any:
    """Head size apart from hidden size / heads, biases everywhere, one key head for all."""
    from transformers import LlamaConfig

    return LlamaConfig(**_size(num_key_value_heads=1, head_dim=12, attention_bias=True, mlp_bias=True, max_position_embeddings=WINDOW))


def llama_scaled() -> Any:
    from transformers import LlamaConfig

    rope = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope["original_max_position_embeddings"] = 16
    return LlamaConfig(**_size(num_key_value_heads=4, max_position_embeddings=WINDOW, rope_parameters=rope))


def mistral() -> Any:
    from transformers import MistralConfig

    return MistralConfig(**_size(num_key_value_heads=2, head_dim=8, max_position_embeddings=WINDOW, sliding_window=5))


def qwen2() -> Any:
    from transformers import Qwen2Config

    return Qwen2Config(**_size(num_key_value_heads=2, max_position_embeddings=WINDOW))


def qwen2_window() -> Any:
    """Layer 0 sees all before it, the later ones a window."""
    from transformers import Qwen2Config

    return Qwen2Config(
        **_size(num_hidden_layers=3, num_key_value_heads=2, max_position_embeddings=WINDOW, use_sliding_window=True, sliding_window=4),
        max_window_layers=1,
    )


def qwen3() -> Any:
    from transformers import Qwen3Config

    return Qwen3Config(**_size(num_key_value_heads=2, head_dim=16, max_position_embeddings=WINDOW))


CONFIGS: dict[str, Callable[[], Any]] = {made.__name__: made for made in (llama, llama_wide_heads, llama_scaled, mistral, qwen2, qwen2_window, qwen3)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(MAKERS, name, lambda: (bpe(None, "<|endoftext|>", "<|endoftext|>", None), CONFIGS[name]()))
                made[name] = make_bare(name, tmp_path_factory.mktemp("decoders") / name)
        return made[name]

    return get


@pytest.fixture(scope="module", params=CONFIGS)
def folder(request: pytest.FixtureRequest, folders: Callable[[str], Path]) -> Path:
    return folders(request.param)


def rows_of(encoder: Encoder) -> list[list[int]]:
    return [encoder.tokens.cut(row) for row in encoder.tokens.content(TEXTS)]


def test_tokens_and_gradients_equal_transformers(folder: Path) -> None:
    """All texts at once here, one text at a time there."""
    from transformers import AutoModel

    encoder = Encoder.load(folder, pooling="last_token")
    assert encoder.net.packed is not None
    rows = rows_of(encoder)
    plain = AutoModel.from_pretrained(folder).eval()
    wanted = torch.cat([plain(input_ids=torch.tensor([row])).last_hidden_state[0] for row in rows if row])
    found = token_states(encoder.net, rows)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    with torch.inference_mode():
        torch.testing.assert_close(token_states(encoder.net, rows), wanted.detach(), atol=1e-5, rtol=1e-5)
    weights = torch.linspace(-1, 1, wanted.numel()).view_as(wanted)
    (wanted * weights).sum().backward()
    (found * weights).sum().backward()
    grads = {name: p.grad for name, p in encoder.net.backbone.named_parameters()}
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        found_grad = grads[name]
        assert found_grad is not None
        limit = 2e-5 * max(1.0, float(parameter.grad.abs().max()))
        torch.testing.assert_close(found_grad, parameter.grad, atol=limit, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def reference(state: dict[str, Tensor], config: Any, row: list[int], window: int | None) -> Tensor:
    """Llama's forward of one row, written from the papers in float64, token by token: (L, D)."""

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * weight

    heads, groups = config.num_attention_heads, config.num_key_value_heads
    d = config.hidden_size // heads
    theta = config.rope_parameters["rope_theta"]

    def turned(x: Tensor, at: int) -> Tensor:
        """Pairs (i, i + d/2) turned by at * theta^(-2i/d)."""
        out = x.clone()
        for i in range(d // 2):
            angle = torch.tensor(at * theta ** (-2 * i / d), dtype=torch.float64)
            a, b = x[i], x[i + d // 2]
            out[i], out[i + d // 2] = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
        return out

    x = torch.stack([state["embed_tokens.weight"][token] for token in row])
    for n in range(config.num_hidden_layers):
        w = {name.removeprefix(f"layers.{n}."): value for name, value in state.items() if name.startswith(f"layers.{n}.")}
        h = norm(x, w["input_layernorm.weight"])
        q, k, v = (h @ w[f"self_attn.{name}_proj.weight"].T for name in "qkv")
        mixed = torch.zeros(len(row), heads * d, dtype=torch.float64)
        for head in range(heads):
            key = head // (heads // groups)
            for i in range(len(row)):
                first = 0 if window is None else max(0, i - window + 1)
                one = turned(q[i, head * d : (head + 1) * d], i)
                scores = torch.stack([one @ turned(k[j, key * d : (key + 1) * d], j) / d**0.5 for j in range(first, i + 1)])
                mixed[i, head * d : (head + 1) * d] = scores.softmax(0) @ v[first : i + 1, key * d : (key + 1) * d]
        x = x + mixed @ w["self_attn.o_proj.weight"].T
        h = norm(x, w["post_attention_layernorm.weight"])
        gate = h @ w["mlp.gate_proj.weight"].T
        x = x + (gate * gate.sigmoid() * (h @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T
    return norm(x, state["norm.weight"])


@pytest.mark.parametrize(("name", "window"), [("llama", None), ("mistral", 5)])
def test_against_a_float64_reference(name: str, window: int | None, folders: Callable[[str], Path]) -> None:
    encoder = Encoder.load(folders(name), pooling="last_token")
    rows = [row for row in rows_of(encoder) if row][:3]
    state = {key: value.double() for key, value in encoder.net.backbone.state_dict().items()}
    with torch.inference_mode():
        found = token_states(encoder.net, rows)
    wanted = torch.cat([reference(state, encoder.net.backbone.config, row, window) for row in rows])
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("gradients", [False, True])
def test_no_token_sees_a_later_one(folder: Path, gradients: bool) -> None:
    """Rows of one length, so that they share a group: a change at place 6 leaves places 0 to 5 and the other rows alone, and moves the rest."""
    encoder = Encoder.load(folder, pooling="last_token")
    rows = [[3 + i + 7 * n for i in range(11)] for n in range(4)]
    other = [list(row) for row in rows]
    other[2][6] += 100
    with torch.set_grad_enabled(gradients):
        before, after = (token_states(encoder.net, given).detach().view(4, 11, -1) for given in (rows, other))
    changed = (before - after).abs().amax(-1) > 1e-4
    assert changed[2, 6:].any()
    assert changed[2, 6]
    assert not changed[2, :6].any()
    assert not changed[[0, 1, 3]].any()


def test_the_window_hides_what_is_far(folders: Callable[[str], Path]) -> None:
    """Two layers with a window of 5 reach 8 tokens back, no farther."""
    encoder = Encoder.load(folders("mistral"), pooling="last_token")
    row = [3 + i for i in range(20)]
    with torch.no_grad():
        before = encoder.net([row])
        for place, seen in ((10, False), (11, True)):
            other = list(row)
            other[place] += 100
            assert bool((encoder.net([other]) - before).abs().max() > 1e-4) == seen


@pytest.mark.parametrize("pooling", ["last_token", "mean", "weighted_mean"])
def test_rows_do_not_depend_on_their_neighbours(folder: Path, pooling: str) -> None:
    encoder = Encoder.load(folder, pooling=pooling)
    alone = np.concatenate([encoder.encode(text) for text in TEXTS])
    for budget in (None, 1, 30):
        np.testing.assert_allclose(encoder.encode(TEXTS, batch_tokens=budget), alone, atol=1e-5)


def test_dropout_of_attention(folder: Path) -> None:
    """Decoders of these families drop in attention only; SimCSE needs it on."""
    encoder = Encoder.load(folder, pooling="mean")
    net, rows = encoder.net, [[5, 6, 7, 8, 9], [7, 8, 9]]
    with torch.no_grad():
        still = net.eval()(rows)
        torch.testing.assert_close(net.train()(rows), still, atol=1e-6, rtol=0)  # as published: none
        assert not net.drops()
        net.set_dropout(0.3)
        assert net.drops()
        assert (net(rows) - net(rows)).abs().max() > 1e-3
        torch.testing.assert_close(net.eval()(rows), still, atol=1e-6, rtol=0)


def test_bf16(folder: Path) -> None:
    """Weights in bf16 for encoding; float32 weights under autocast for training."""
    wide = Encoder.load(folder, pooling="mean").encode(TEXTS)
    half = Encoder.load(folder, pooling="mean", precision="bf16").encode(TEXTS)
    real = [i for i, row in enumerate(wide) if row.any()]
    cosine = (wide * half).sum(1)[real] / np.linalg.norm(wide, axis=1)[real] / np.linalg.norm(half, axis=1)[real]
    assert cosine.min() > 0.99
    net = Encoder.load(folder, pooling="mean").net.train()
    rows = [[5, 6, 7, 8, 9], [7, 8]]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        vectors = net(rows)
    vectors.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 and bool(torch.isfinite(p.grad).all()) for p in net.parameters())
    with torch.no_grad():
        assert torch.nn.functional.cosine_similarity(vectors.float(), net(rows)).min() > 0.98


def test_what_this_forward_does_not_know_is_left_to_transformers() -> None:
    """Positions that turn by the longest row of the batch."""
    from transformers import AutoModel, LlamaConfig

    rope = {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 2.0}
    config = LlamaConfig(**_size(num_key_value_heads=2, max_position_embeddings=WINDOW, rope_parameters=rope), vocab_size=50)
    assert packed_forward(AutoModel.from_config(config)) is None


def test_idle_tokens_have_no_say(folders: Callable[[str], Path]) -> None:
    net = Encoder.load(folders("llama"), pooling="mean").net
    batch = PackedBatch.of([[5, 6, 7], [8]])
    assert net.packed is not None
    assert len(batch.ids) > 4
    with torch.no_grad():
        wanted = net.packed(batch)[:4]
        batch.ids[4:] = 9
        torch.testing.assert_close(net.packed(batch)[:4], wanted, atol=0, rtol=0)
