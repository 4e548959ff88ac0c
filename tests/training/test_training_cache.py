"""Gradient caching: the gradient of the plain step, in the memory of one micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from training_files import SENTENCES, make_run, triplets, write

from twinvec.model.encoder import Encoder
from twinvec.training.memory import bytes_per_token, free_bytes, saved_bytes
from twinvec.training.step import seed_of

BareModel = Callable[[str], Path]

CASES: dict[str, dict[str, Any]] = {
    "infonce": {"objective": "infonce"},
    "infonce with hard negatives": {"objective": "infonce", "kind_of_data": "triplets"},
    "infonce, symmetric, learned temperature": {"objective": "infonce", "direction": "symmetric", "learn_temperature": True},
    "infonce over all, dot": {"objective": "infonce", "direction": "all", "similarity": "dot", "temperature": 5.0},
    "infonce, matryoshka": {"objective": "infonce", "matryoshka": [16, 8]},
    "simcse": {"objective": "simcse"},
    "cosent, matryoshka": {"objective": "cosent", "matryoshka": [8]},
    "classification, matryoshka": {"objective": "classification", "matryoshka": [8]},
    "distillation": {"objective": "distillation"},
    "margin_mse": {"objective": "margin_mse"},
    "batch triplets": {"objective": "batch_all_triplet"},
    "regression": {"objective": "regression"},
}


def gradients(model: Path, folder: Path, cache: bool, micro_tokens: int = 30, **settings: Any) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of one step with dropout on, micro-batch by micro-batch."""
    folder.mkdir(parents=True, exist_ok=True)
    if settings["objective"] == "distillation":
        settings["teacher"] = str(Encoder.load(model, pooling="mean").save(folder / "its teacher"))
    if settings.pop("kind_of_data", "") == "triplets":
        settings["data"] = triplets(folder / "t.csv")
    run = make_run(model, folder, dropout=0.2, gradient_cache="on" if cache else "off", micro_tokens=micro_tokens, **settings)
    run.net.train()
    rows = list(range(12))
    batch = run.tasks[0].prepare(rows)  # type: ignore[call-arg]
    assert len(run.stepper.micros(batch)) > 2 or micro_tokens > 1000, "one micro-batch proves nothing"
    loss = run.stepper.add_gradient(run.tasks[0], batch, 3, 0, 1.0)
    modules = (("net", run.net), ("heads", run.heads))
    found = {f"{part}.{name}": p.grad for part, module in modules for name, p in module.named_parameters() if p.grad is not None}
    return loss, found


@pytest.mark.parametrize("name", CASES)
def test_cached_gradient_is_the_plain_one_with_dropout_on(name: str, bare_model: BareModel, tmp_path: Path) -> None:
    settings = dict(CASES[name])
    plain_loss, plain = gradients(bare_model("bert"), tmp_path / "a", False, **settings)
    cached_loss, cached = gradients(bare_model("bert"), tmp_path / "b", True, **settings)
    assert cached_loss == pytest.approx(plain_loss, rel=1e-6)
    assert plain.keys() == cached.keys()
    norm = sum(float(gradient.double().square().sum()) for gradient in plain.values()) ** 0.5
    assert norm > 0
    for key, gradient in plain.items():
        # Relative to the whole gradient: where terms cancel, a single entry is rounding and nothing else.
        assert float((cached[key] - gradient).double().norm()) <= 1e-5 * norm, key


@pytest.mark.parametrize("name", [name for name in CASES if "infonce" in name or "matryoshka" in name])
def test_without_dropout_equal_texts_are_encoded_once_and_the_gradient_is_the_same(name: str, bare_model: BareModel, tmp_path: Path) -> None:
    """The parts of a loss share the texts that were encoded once, and each has a backward of its own."""
    found = []
    for i, once in enumerate((True, False)):
        settings = dict(CASES[name])
        (tmp_path / str(i)).mkdir()
        if settings.pop("kind_of_data", ""):
            settings["data"] = triplets(tmp_path / str(i) / "t.csv")
        run = make_run(bare_model("bert"), tmp_path / str(i), **settings, dropout=0.0)
        run.net.train()
        if not once:
            run.tasks[0].dropout = True  # type: ignore[union-attr]
        batch = run.tasks[0].prepare([*range(12), *range(12, 14)])  # type: ignore[call-arg]
        assert (batch.index is not None) == once
        loss = run.stepper.add_gradient(run.tasks[0], batch, 0, 0, 1.0)
        found.append((loss, {key: p.grad for key, p in run.net.named_parameters() if p.grad is not None}))
    (one, first), (two, second) = found
    assert one == pytest.approx(two, rel=1e-5)
    norm = sum(float(gradient.double().square().sum()) for gradient in second.values()) ** 0.5
    assert all(float((first[key] - gradient).double().norm()) <= 1e-5 * norm for key, gradient in second.items())


def test_dropout_was_on(bare_model: BareModel, tmp_path: Path) -> None:
    """The comparison above would also pass with dropout off; then two steps would drop alike."""
    run = make_run(bare_model("bert"), tmp_path, "infonce", dropout=0.2)
    run.net.train()
    batch = run.tasks[0].prepare([0, 1, 2, 3])  # type: ignore[call-arg]
    one, two, again = (run.stepper.add_gradient(run.tasks[0], batch, step, 0, 1.0) for step in (0, 1, 0))
    assert one != two
    assert one == again


@pytest.mark.parametrize("family", ["bert", "modernbert", "deberta-v2"])
def test_without_dropout_micro_batches_change_nothing(family: str, bare_model: BareModel, tmp_path: Path) -> None:
    found = []
    for number, micro_tokens in enumerate((20, 100_000)):
        run = make_run(bare_model(family), tmp_path / str(number), "infonce", dropout=0.0, micro_tokens=micro_tokens, gradient_cache="on")
        run.net.train()
        batch = run.tasks[0].prepare(list(range(10)))  # type: ignore[call-arg]
        loss = run.stepper.add_gradient(run.tasks[0], batch, 0, 0, 1.0)
        found.append((loss, {name: p.grad for name, p in run.net.named_parameters() if p.grad is not None}))
    (one, first), (two, second) = found
    assert one == pytest.approx(two, rel=1e-5)
    for key, gradient in first.items():
        torch.testing.assert_close(second[key], gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()) + 1e-8)


def test_equal_texts_of_a_batch_are_encoded_once_when_nothing_is_dropped(bare_model: BareModel, tmp_path: Path) -> None:
    rows = [[SENTENCES[i % 3], SENTENCES[3 + i % 2]] for i in range(12)]
    data = write(tmp_path / "p.csv", ["question", "answer"], rows)
    settings: dict[str, Any] = {"data": data, "mask_same": False}
    once = make_run(bare_model("bert"), tmp_path / "a", "infonce", dropout=0.0, **settings)
    each = make_run(bare_model("bert"), tmp_path / "b", "infonce", dropout=0.0, **settings)
    each.tasks[0].dropout = True  # type: ignore[union-attr]
    losses, grads = [], []
    for run, wanted in ((once, 5), (each, 24)):
        run.net.train()
        batch = run.tasks[0].prepare(list(range(12)))  # type: ignore[call-arg]
        assert len(batch.tokens) == wanted
        losses.append(run.stepper.add_gradient(run.tasks[0], batch, 0, 0, 1.0))
        grads.append({name: p.grad for name, p in run.net.named_parameters() if p.grad is not None})
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for key, gradient in grads[1].items():
        torch.testing.assert_close(grads[0][key], gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()) + 1e-8)


def test_caching_starts_by_itself_when_a_batch_does_not_fit(bare_model: BareModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"micro_tokens": 30, "batch_size": 12, "max_steps": 1}
    roomy = make_run(bare_model("bert"), tmp_path / "a", "infonce", **settings)
    roomy.go()
    assert not roomy.stepper.cache
    monkeypatch.setattr("twinvec.training.loop.free_bytes", lambda device: 1000)
    narrow = make_run(bare_model("bert"), tmp_path / "b", "infonce", **settings)
    narrow.go()
    assert narrow.stepper.cache
    assert "gradient caching is used" in narrow.notes[0]
    off = make_run(bare_model("bert"), tmp_path / "c", "infonce", gradient_cache="off", **settings)
    off.go()
    assert not off.stepper.cache


def test_graph_memory_is_counted_in_storages_not_in_views() -> None:
    x = torch.randn(1000, requires_grad=True)
    assert saved_bytes(lambda: (x * x).exp(), set()) == 4000 * 2  # x once (though saved twice), and the result of exp
    assert saved_bytes(lambda: x.exp().view(10, 100).view(-1), {x.untyped_storage().data_ptr()}) == 4000
    assert free_bytes(torch.device("cpu")) > 1 << 20


def test_graph_memory_grows_with_tokens_and_not_with_weights(bare_model: BareModel, tmp_path: Path) -> None:
    run = make_run(bare_model("bert"), tmp_path, "infonce")
    run.net.train()
    few, many = (run.tasks[0].prepare(list(range(n))) for n in (4, 20))  # type: ignore[call-arg]
    one, two = (bytes_per_token(run.stepper, run.tasks[0], batch) for batch in (few, many))
    assert 0.5 < one / two < 2


def test_seeds_differ_by_step_part_and_micro_batch() -> None:
    seeds = {seed_of(seed, step, part, micro) for seed in range(3) for step in range(10) for part in range(3) for micro in range(10)}
    assert len(seeds) == 900
    assert all(0 <= seed < 2**63 for seed in seeds)
