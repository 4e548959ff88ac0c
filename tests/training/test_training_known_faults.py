"""Faults that users of other tools report (pains.md, section b) and that no other test here is named after: the right value of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_files import make_run, scores

from twinvec.errors import TrainingError
from twinvec.model.encoder import Encoder
from twinvec.model.engines.torch_engine import TorchEngine
from twinvec.model.heads import Dense
from twinvec.model.net import Net
from twinvec.training.loop import Run
from twinvec.training.recipe import Recipe
from twinvec.training.tasks import make_task

BareModel = Callable[[str], Path]


def cosine_metric(encoder: Encoder) -> dict[str, float | None]:
    return {"m": float(encoder.encode(["the cat sat", "where is my refund"]).astype(np.float64).prod(0).sum())}


def with_dense_head(model: Path, folder: Path, **settings: Any) -> Run:
    """A run over a model with a Dense head after pooling, of which every layer learns."""
    encoder = Encoder.load(model, pooling="mean")
    torch.manual_seed(0)
    net = Net(encoder.net.backbone, ["mean"], [Dense(32, 16)], normalize=True, pad_id=encoder.tokens.pad_id)
    encoder.engine = TorchEngine(net)
    folder.mkdir(exist_ok=True)
    data = scores(folder / "train.csv", 24)
    recipe = Recipe.of(model=str(model), data=str(data), dev=str(data), objective="cosent", output=str(folder), batch_size=4, lr=1e-3, **settings)
    from twinvec.data.dataset import read_data

    task = make_task(recipe.sources()[0], read_data(data), encoder, folder, normalize=False)
    return Run(recipe, encoder, [task], folder, cosine_metric, "m", show=False)


def test_the_best_step_brings_back_every_layer_the_dense_head_too(bare_model: BareModel, tmp_path: Path) -> None:
    """sentence-transformers#3344: the best checkpoint restored the transformer, and Dense stayed that of the last step."""
    run = with_dense_head(bare_model("bert"), tmp_path, epochs=3, evaluate_steps=1)
    values = []
    plain = cosine_metric

    def measured(encoder: Encoder) -> dict[str, float | None]:
        found = plain(encoder)
        values.append((found["m"], {name: value.clone() for name, value in encoder.net.heads.state_dict().items()}))
        return {"m": -abs(len(values) - 5.0)}  # the fifth is the best

    run.evaluate = measured
    state = run.go()
    assert state.best_step == 4
    saved = Encoder.load(tmp_path / "best")
    assert saved.dimensions == 16
    assert plain(saved)["m"] == pytest.approx(values[4][0], abs=1e-6)
    for name, value in saved.net.heads.state_dict().items():
        assert torch.equal(value, values[4][1][name])
        assert not torch.equal(value, run.net.heads.state_dict()[name])


def test_a_resumed_run_sees_the_same_rows_at_the_same_rates(bare_model: BareModel, tmp_path: Path) -> None:
    """transformers#27749, #23099: after a resume past the first epoch, data order and learning rate were others."""

    def rows_of(folder: Path, stop: int = 0, **settings: Any) -> list[tuple[int, list[int], float]]:
        run = make_run(bare_model("bert"), folder, "cosent", epochs=3, checkpoint_steps=4, accumulation=2, batch_size=3, **settings)
        seen: list[tuple[int, list[int], float]] = []
        step = run._step

        def watched(batches: Any) -> tuple[float, float]:
            if stop and run.state.step == stop:
                raise KeyboardInterrupt
            found = step(batches)
            seen.append((run.state.step, [row for batch in batches for row in batch.rows], run.optimizer.param_groups[0]["lr"]))
            return found

        run._step = watched  # type: ignore[method-assign]
        try:
            run.go()
        except KeyboardInterrupt:
            assert stop
        return seen

    whole = rows_of(tmp_path / "whole")
    first, second = rows_of(tmp_path / "broken", stop=10), rows_of(tmp_path / "broken", resume=True)
    assert [step for step, _, _ in whole] == list(range(12))
    assert second[0][0] == 8, "from the checkpoint of step 8, in the last of three epochs"
    assert first[:8] + second == whole
    for epoch in range(3):
        assert sorted(row for step, rows, _ in whole if step // 4 == epoch for row in rows) == list(range(24)), "each row once an epoch"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nmore"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["gpu", "cpu"],
)
def test_out_of_memory_lists_what_helps(error: RuntimeError, bare_model: BareModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FlagEmbedding#1218, #1195, #1338: an error of the allocator, and no advice."""
    run = make_run(bare_model("bert"), tmp_path, "infonce")

    def full(*_: Any) -> float:
        raise error

    monkeypatch.setattr(run.stepper, "add_gradient", full)
    with pytest.raises(TrainingError, match=r"step 1: out of memory .*gradient_cache = 'on'.*micro_tokens.*batch_size.*dry_run = true") as found:
        run.go()
    assert "\n" not in str(found.value)


def test_another_error_of_torch_is_not_taken_for_a_lack_of_memory(bare_model: BareModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(bare_model("bert"), tmp_path, "infonce")

    def wrong(*_: Any) -> float:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(run.stepper, "add_gradient", wrong)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        run.go()


def test_texts_with_nothing_to_hide_give_an_empty_step_and_no_nan(bare_model: BareModel, tmp_path: Path) -> None:
    """A batch of empty texts has no hidden token: no micro-batch, no gradient, a loss of 0, and the run goes on."""
    (tmp_path / "t.txt").write_text("the cat sat on the mat\n" * 3 + "。\n" * 9, encoding="utf-8")
    new = {"layers": 1, "hidden": 16, "heads": 2, "vocabulary": 60, "max_tokens": 16}
    run = make_run(Path("new"), tmp_path / "run", "mlm", data=tmp_path / "t.txt", new_model=new, batch_size=2, log_steps=1)
    batch = run.tasks[0].prepare([3, 4], np.random.default_rng(0))
    batch.prepared = run.tasks[0].made.prepare([[2, 3], [2, 3]], np.random.default_rng(0))  # type: ignore[union-attr]
    before = {name: value.clone() for name, value in run.net.state_dict().items()}
    loss, norm = run._step([batch])
    assert (loss, norm) == (0.0, 0.0)
    assert all(torch.equal(value, before[name]) for name, value in run.net.state_dict().items())
    assert run.go().step == 6
