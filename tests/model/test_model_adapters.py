"""Adapters, frozen parts and checkpointing: nothing changes but what should, and every way of computing gives the same."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tiny_models import TEXTS
from twinvec.errors import UsageError
from twinvec.model.adapters import (
    add_lora,
    freeze,
    has_lora,
    layers_of,
    load_adapter,
    lora_layers,
    merge_lora,
    merged,
    save_adapter,
    trainable,
    without_lora,
)  # fmt: skip
from twinvec.model.encoder import Encoder
from twinvec.model.heads import Dense
from twinvec.model.linear import lora_delta, plain_lora
from twinvec.model.net import Net

pytest.importorskip("peft")
torch.set_num_threads(1)
WORN = ("bert", "mpnet", "distilbert", "modernbert", "deberta-v2", "qwen2")
BareModel = Callable[[str], Path]


def fresh(bare_model: BareModel, family: str = "bert", **options: object) -> Encoder:
    torch.manual_seed(0)
    encoder = Encoder.load(bare_model(family), pooling="mean")
    add_lora(encoder.net, **{"rank": 4, "alpha": 8, **options})  # type: ignore[arg-type]
    return encoder


def stir(net: Net, seed: int = 1) -> None:
    """Random values in B, which begins as zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in lora_layers(net).values():
            weight = layer.lora_B["default"].weight
            weight.copy_(0.2 * torch.randn(weight.shape, generator=generator))


def rows_of(encoder: Encoder) -> list[list[int]]:
    return [encoder.tokens.cut(row) for row in encoder.tokens.content([text for text in TEXTS if text])]


def loss_of(net: Net, rows: list[list[int]]) -> Tensor:
    found = net(rows, normalize=False)
    return (found * torch.linspace(-1, 1, found.numel(), dtype=found.dtype).view_as(found)).sum()


@pytest.mark.parametrize("family", WORN)
def test_nothing_changes_at_first_and_only_adapters_train(family: str, bare_model: BareModel) -> None:
    plain = Encoder.load(bare_model(family), pooling="mean")
    encoder = fresh(bare_model, family)
    np.testing.assert_allclose(encoder.encode(TEXTS), plain.encode(TEXTS), atol=1e-6)
    assert (encoder.net.packed is None) == (plain.net.packed is None)  # adapters keep the padding-free forward
    assert not encoder.net.training
    for name, parameter in encoder.net.named_parameters():
        assert parameter.requires_grad == (".lora_" in name), name
    linear = [m for m in plain.net.backbone.modules() if isinstance(m, torch.nn.Linear)]
    wanted = sum(4 * (m.in_features + m.out_features) for m in linear)
    assert trainable(encoder.net) == (wanted, sum(p.numel() for p in plain.net.parameters()) + wanted)


@pytest.mark.parametrize("family", WORN)
def test_forward_and_gradients_against_float64(family: str, bare_model: BareModel) -> None:
    """The reference: the plain model in float64 with W + alpha / r B A written into it, and dA = s B' dW, dB = s dW A' by the chain rule."""
    encoder = fresh(bare_model, family, dropout=0.0)
    stir(encoder.net)
    reference = Encoder.load(bare_model(family), pooling="mean").net.double()
    layers = lora_layers(encoder.net.backbone)
    weights: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
    for name, layer in layers.items():
        a, b = (layer.lora_A["default"].weight.detach().double(), layer.lora_B["default"].weight.detach().double())
        weight = reference.backbone.get_submodule(name).weight
        with torch.no_grad():
            weight += 8 / 4 * b @ a
        weights[name] = (weight, a, b)
    rows = rows_of(encoder)
    loss_of(reference, rows).backward()
    loss_of(encoder.net, rows).backward()
    for name, (weight, a, b) in weights.items():
        assert weight.grad is not None
        scale = max(1.0, float(weight.grad.abs().max()))
        for found, wanted in ((layers[name].lora_A, 2 * b.T @ weight.grad), (layers[name].lora_B, 2 * weight.grad @ a.T)):
            torch.testing.assert_close(found["default"].weight.grad.double(), wanted, atol=3e-5 * scale, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
    with torch.no_grad():
        wanted = reference.eval()(rows)
        torch.testing.assert_close(encoder.net.eval()(rows).double(), wanted, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(encoder.net._pool_padded(rows, 0).double(), wanted, atol=1e-5, rtol=1e-5)  # peft's own forward
    assert all(p.grad is None for n, p in encoder.net.named_parameters() if ".lora_" not in n)


@pytest.mark.parametrize("family", WORN)
def test_merging_gives_an_ordinary_model(family: str, bare_model: BareModel, tmp_path: Path) -> None:
    encoder = fresh(bare_model, family)
    stir(encoder.net)
    before = encoder.encode(TEXTS)
    assert np.abs(before - Encoder.load(bare_model(family), pooling="mean").encode(TEXTS)).max() > 1e-2
    names = set(Encoder.load(bare_model(family), pooling="mean").net.state_dict())
    assert merge_lora(encoder.net) is encoder.net
    np.testing.assert_allclose(encoder.encode(TEXTS), before, atol=1e-5)
    assert set(encoder.net.state_dict()) == names
    assert all(p.requires_grad for p in encoder.net.parameters())
    assert not has_lora(encoder.net)
    assert not hasattr(encoder.net.backbone, "peft_config")
    again = Encoder.load(encoder.save(tmp_path / "merged"))
    np.testing.assert_allclose(again.encode(TEXTS), before, atol=1e-5)
    add_lora(again.net)  # and it may wear new ones


def test_saving_in_the_middle_of_training(bare_model: BareModel, tmp_path: Path) -> None:
    """The folder is the merged model; the net goes on bit for bit as it was."""
    encoder = fresh(bare_model, "qwen2")
    stir(encoder.net)
    state = {name: value.clone() for name, value in encoder.net.state_dict().items()}
    trains = [name for name, p in encoder.net.named_parameters() if p.requires_grad]
    vectors, packed = encoder.encode(TEXTS), encoder.net.packed
    folder = encoder.save(tmp_path / "best")
    assert not list(folder.glob("adapter*"))
    again = Encoder.load(folder)
    np.testing.assert_allclose(again.encode(TEXTS), vectors, atol=1e-5)
    assert again.fingerprint == encoder.fingerprint
    now = encoder.net.state_dict()
    assert now.keys() == state.keys()
    assert all(torch.equal(now[name], state[name]) for name in state)
    assert [name for name, p in encoder.net.named_parameters() if p.requires_grad] == trains
    assert encoder.net.packed is packed

    def fail_inside() -> None:
        with merged(encoder.net):
            assert not has_lora(encoder.net)
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail_inside()
    assert has_lora(encoder.net)
    assert np.array_equal(encoder.encode(TEXTS), vectors)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks transformers by an old name
def test_adapters_by_peft_itself(bare_model: BareModel, tmp_path: Path) -> None:
    """What is saved here, peft opens there with the same token vectors; and back."""
    from peft import PeftModel
    from transformers import AutoModel

    encoder = fresh(bare_model, "qwen2", targets=["q_proj", "v_proj"])
    stir(encoder.net)
    folder = save_adapter(encoder.net, tmp_path / "adapter")
    assert str(tmp_path) not in (folder / "adapter_config.json").read_text()
    theirs = PeftModel.from_pretrained(AutoModel.from_pretrained(bare_model("qwen2")), folder).eval()
    row = rows_of(encoder)[0]
    with torch.no_grad():
        wanted = theirs(input_ids=torch.tensor([row])).last_hidden_state[0].mean(0)
        torch.testing.assert_close(encoder.net([row])[0], wanted, atol=1e-5, rtol=0)
    other = Encoder.load(bare_model("qwen2"), pooling="mean")
    load_adapter(other.net, folder)
    np.testing.assert_allclose(other.encode(TEXTS), encoder.encode(TEXTS), atol=1e-6)
    assert other.net.state_dict().keys() == encoder.net.state_dict().keys()
    theirs.save_pretrained(tmp_path / "theirs")
    third = Encoder.load(bare_model("qwen2"), pooling="mean")
    load_adapter(third.net, tmp_path / "theirs")
    np.testing.assert_allclose(third.encode(TEXTS), encoder.encode(TEXTS), atol=1e-6)
    save_adapter(third.net, folder)  # an adapter folder is replaced whole


def test_heads_travel_with_the_adapter(bare_model: BareModel, tmp_path: Path) -> None:
    def with_head(seed: int) -> Encoder:
        encoder = Encoder.load(bare_model("bert"), pooling="mean")
        torch.manual_seed(seed)
        net = Net(encoder.net.backbone, ["mean"], [Dense(32, 16)], normalize=True, pad_id=encoder.tokens.pad_id).eval()
        return Encoder(net, encoder.tokens, name="head")

    encoder = with_head(0)
    add_lora(encoder.net, rank=2)
    stir(encoder.net)
    assert all(p.requires_grad for p in encoder.net.heads.parameters())
    save_adapter(encoder.net, tmp_path / "adapter")
    other = with_head(1)
    load_adapter(other.net, tmp_path / "adapter")
    np.testing.assert_allclose(other.encode(TEXTS), encoder.encode(TEXTS), atol=1e-6)


def test_a_run_resumes_from_its_state(bare_model: BareModel) -> None:
    """Names and order of the state are those of a fresh model with the same options; the next step is the same step."""

    def step(encoder: Encoder, optimizer: torch.optim.Optimizer, seed: int) -> None:
        torch.manual_seed(seed)
        optimizer.zero_grad()
        loss_of(encoder.net.train(), rows_of(encoder)).backward()
        optimizer.step()

    def start() -> tuple[Encoder, torch.optim.Optimizer]:
        encoder = fresh(bare_model, "qwen2", dropout=0.3)
        return encoder, torch.optim.AdamW([p for p in encoder.net.parameters() if p.requires_grad], lr=0.01)

    first, optimizer = start()
    step(first, optimizer, 1)
    state = {name: value.clone() for name, value in first.net.state_dict().items()}
    kept = copy.deepcopy(optimizer.state_dict())
    step(first, optimizer, 2)
    second, other = start()
    second.net.load_state_dict(state)
    other.load_state_dict(kept)
    step(second, other, 2)
    assert all(torch.equal(a, b) for a, b in zip(first.net.state_dict().values(), second.net.state_dict().values(), strict=True))
    np.testing.assert_allclose(first.encode(TEXTS), second.encode(TEXTS), atol=0)


def test_the_kept_weight_follows_the_adapter(bare_model: BareModel) -> None:
    encoder = fresh(bare_model)
    before = encoder.encode(TEXTS)
    stir(encoder.net)
    after = encoder.encode(TEXTS)
    assert np.abs(after - before).max() > 1e-3
    with torch.enable_grad():
        torch.testing.assert_close(encoder.net(rows_of(encoder)[:1])[0].detach().numpy(), after[0], atol=1e-5, rtol=0)


def test_dropout_of_adapters(bare_model: BareModel) -> None:
    encoder = fresh(bare_model, dropout=0.4)
    stir(encoder.net)
    encoder.net.set_dropout(0.0)  # the backbone's; that of adapters is an option of its own
    rows = rows_of(encoder)
    with torch.enable_grad():
        one, two = encoder.net.train()(rows).detach(), encoder.net(rows).detach()
        assert (one - two).abs().max() > 1e-3
        still = encoder.net.eval()(rows).detach()
    torch.testing.assert_close(still.numpy(), encoder.encode([t for t in TEXTS if t]), atol=1e-5, rtol=0)


def test_bf16_autocast(bare_model: BareModel) -> None:
    for family in ("bert", "qwen2"):
        encoder = fresh(bare_model, family)
        stir(encoder.net)
        rows = rows_of(encoder)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = encoder.net(rows)
        found.float().square().sum().backward()
        assert all(torch.isfinite(p.grad).all() for p in encoder.net.parameters() if p.requires_grad and p.grad is not None)
        with torch.no_grad():
            wanted = encoder.net(rows)
        assert torch.nn.functional.cosine_similarity(found.float(), wanted).min() > 0.98


def test_targets(bare_model: BareModel) -> None:
    net = fresh(bare_model, "qwen2", targets=["q_proj", "layers.1.mlp.down_proj"]).net
    assert {name.removeprefix("backbone.") for name in lora_layers(net)} == {
        "layers.0.self_attn.q_proj", "layers.1.self_attn.q_proj", "layers.1.mlp.down_proj",
    }  # fmt: skip
    with without_lora(net):
        assert not has_lora(net)
    assert all(float(lora_delta(layer).detach().abs().max()) == 0 for layer in lora_layers(net).values())


def test_other_adapters_of_peft_are_left_to_peft(bare_model: BareModel) -> None:
    """DoRA is no plain LoRA: the padding-free forward steps back, and the padded one computes it."""
    import peft

    encoder = Encoder.load(bare_model("bert"), pooling="mean")
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["query"], use_dora=True), encoder.net.backbone)
    encoder.net.eval().rebuild()
    assert encoder.net.packed is None
    assert not any(plain_lora(module) for module in encoder.net.modules())
    np.testing.assert_allclose(encoder.encode(TEXTS), Encoder.load(bare_model("bert"), pooling="mean").encode(TEXTS), atol=1e-5)


def test_a_copy_is_its_own(bare_model: BareModel) -> None:
    """deepcopy: its forward reads its own weights, embeddings included, and no kept weight goes along."""
    for family in ("bert", "qwen2", "modernbert"):
        encoder = Encoder.load(bare_model(family), pooling="mean")
        wanted = encoder.encode(TEXTS)
        net = copy.deepcopy(encoder.net)
        with torch.no_grad():
            for parameter in encoder.net.parameters():
                parameter.zero_()
        np.testing.assert_allclose(Encoder(net, encoder.tokens, name="copy").encode(TEXTS), wanted, atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "distilbert", "mpnet", "modernbert", "deberta-v2", "qwen2"])
def test_frozen_layers_do_not_move(family: str, bare_model: BareModel) -> None:
    encoder = Encoder.load(bare_model(family), pooling="mean")
    net, plain = encoder.net, {name: value.clone() for name, value in encoder.net.state_dict().items()}
    assert len(layers_of(net.backbone)) == (3 if family == "modernbert" else 2)
    left = freeze(net, layers=1, embeddings=True)
    assert left == trainable(net)[0] < trainable(net)[1]
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.05)
    loss_of(net.train(), rows_of(encoder)).backward()
    optimizer.step()
    first = {id(p) for p in layers_of(net.backbone)[0].parameters()}
    embeddings = ("backbone.embeddings.", "backbone.embed_tokens.")
    for name, parameter in net.named_parameters():
        if id(parameter) in first or name.startswith(embeddings):
            assert parameter.grad is None, name
            assert torch.equal(parameter, plain[name]), name
    last = list(layers_of(net.backbone)[-1].parameters())
    assert any(p.grad is not None and bool(p.grad.any()) for p in last)


def test_freezing_adapters_too(bare_model: BareModel) -> None:
    net = fresh(bare_model, "qwen2").net
    freeze(net, layers=1)
    assert {name.split(".")[2] for name, p in net.named_parameters() if p.requires_grad} == {"1"}


def saved_bytes(run: Callable[[], Tensor]) -> tuple[int, Tensor]:
    """Bytes that the forward pass keeps for the backward pass, each memory once."""
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = run()
    return sum(seen.values()), out


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("family", ["bert", "modernbert", "qwen2", "deberta-v2"])
def test_checkpointing_gives_the_same_gradient(family: str, lora: bool, bare_model: BareModel) -> None:
    """Dropout on, seeded: the second computing of a layer drops what the first did."""
    encoder = fresh(bare_model, family, dropout=0.2) if lora else Encoder.load(bare_model(family), pooling="mean")
    net = encoder.net.train()
    net.set_dropout(0.2)
    stir(net)
    rows = rows_of(encoder) * 4
    found = []
    for on in (False, True, False):
        net.set_checkpointing(on)
        torch.manual_seed(3)
        net.zero_grad()
        kept, loss = saved_bytes(lambda: loss_of(net, rows))
        loss.backward()
        after = torch.rand(1)  # the generator stands where it would without
        found.append((kept, loss.detach(), after, [p.grad.clone() for p in net.parameters() if p.grad is not None]))
    plain, checked, again = found
    assert checked[0] < 0.8 * plain[0]
    assert again[0] == plain[0]
    torch.testing.assert_close(checked[1], plain[1])
    assert torch.equal(checked[2], plain[2])
    for a, b in zip(checked[3], plain[3], strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_checkpointing_outlasts_what_is_rebuilt(bare_model: BareModel) -> None:
    net = Encoder.load(bare_model("bert"), pooling="mean").net
    net.set_checkpointing(True)
    net.set_dropout(0.1)
    add_lora(net)
    merge_lora(net)
    assert net.packed is not None
    assert net.packed.checkpointing


def test_config_of_an_adapter_is_plain_json(bare_model: BareModel, tmp_path: Path) -> None:
    folder = save_adapter(fresh(bare_model).net, tmp_path / "adapter")
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["peft_type"], config["base_model_name_or_path"]) == (4, 8, "LORA", None)


def test_albert_shares_its_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AlbertConfig

    from tiny_models import MAKERS, _size, make_bare, wordpiece

    config = AlbertConfig(**_size(max_position_embeddings=64, embedding_size=16))
    monkeypatch.setitem(MAKERS, "albert", lambda: (wordpiece(), config))
    net = Encoder.load(make_bare("albert", tmp_path / "albert"), pooling="mean").net
    assert layers_of(net.backbone) == []
    with pytest.raises(UsageError, match="this model has 0 layers that can be frozen"):
        freeze(net, layers=1)
    add_lora(net, rank=2)
    assert net([[5, 6, 7]]).shape == (1, 32)
