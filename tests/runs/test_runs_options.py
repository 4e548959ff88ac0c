"""What single recipe keys do to a whole run: prompts, exclude, teachers, adapters, freezing, dry run; and the notes of a run."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "training"))
from training_files import SENTENCES, labelled, nli, parallel, partners, scored_triplets, scores, texts, triplets, write

import twinvec as tv
from twinvec.errors import TrainingError, UsageError
from twinvec.training.aligned import least_squares
from twinvec.training.loop import Run

BareModel = Callable[[str], Path]
pytestmark = pytest.mark.filterwarnings("ignore::twinvec.errors.TwinvecWarning")


@pytest.fixture
def base(bare_model: BareModel, tmp_path: Path) -> dict[str, Any]:
    return {"model": str(bare_model("bert")), "pooling": "mean", "output": str(tmp_path / "run"), "batch_size": 8, "lr": 1e-3, "log_steps": 1}


def train(settings: dict[str, Any], **more: Any) -> dict[str, Any]:
    return tv.train(tv.Recipe.of(**{**settings, **more}), progress=False)


def best_weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "run" / "best" / "model.safetensors")


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]


# ---- prompts

PROMPTS = {"query": "query: ", "passage": "passage: represent "}
ROUTES: dict[str, dict[str, Any]] = {
    "at the top": {"column_prompts": {"anchor": "query", "positive": "passage"}},
    "by other names": {"column_prompts": {"question": "query", "answer": "passage"}},
    "in the only source": {"source": [{"column_prompts": {"query": "query", "document": "passage"}}]},
    "in one of two sources": {"source": [{}, {"column_prompts": {"sentence1": "query", "sentence2": "passage"}}]},
}


@pytest.mark.parametrize("route", ROUTES)
def test_column_prompts_are_saved_and_used_in_every_evaluation(route: str, base: dict[str, Any], tmp_path: Path) -> None:
    dev, test = scores(tmp_path / "dev.csv", 15), scores(tmp_path / "test.csv", 12)
    data = scores(tmp_path / "train.csv", 40)
    result = train(base, data=str(data), objective="cosent", dev=str(dev), test=[str(test)], prompts=PROMPTS, **ROUTES[route])
    best = tv.Encoder.load(tmp_path / "run" / "best")
    assert PROMPTS.items() <= best.prompts.items()
    by_hand = {"sentence1": "query", "sentence2": "passage"}
    assert result["best_metric"] == pytest.approx(tv.evaluate(best, dev, prompts=by_hand, progress=False)["spearman_cosine"], abs=1e-6)
    assert result["best_metric"] != pytest.approx(tv.evaluate(best, dev, progress=False)["spearman_cosine"], abs=1e-6)
    after = tv.evaluate(best, test, prompts=by_hand, progress=False)["spearman_cosine"]
    assert result["tests"][0]["after"]["spearman_cosine"] == pytest.approx(after, abs=1e-6)
    bare = tv.Encoder.load(base["model"], pooling="mean")
    bare.prompts = dict(PROMPTS)
    before = tv.evaluate(bare, test, prompts=by_hand, progress=False)["spearman_cosine"]
    assert result["tests"][0]["before"]["spearman_cosine"] == pytest.approx(before, abs=1e-6)


def test_one_prompt_for_all_columns_and_a_retrieval_folder(base: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"_id": str(i), "title": "", "text": text}) + "\n" for i, text in enumerate(SENTENCES)))
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": str(i), "text": f"{text} ?"}) + "\n" for i, text in enumerate(SENTENCES)))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(f"{i}\t{i}\t1\n" for i in range(len(SENTENCES))))
    settings = {**base, "data": str(partners(tmp_path / "t.csv")), "objective": "infonce", "dev": str(folder), "prompts": PROMPTS}
    result = train(settings, column_prompts={"anchor": "query", "positive": "passage"})
    best = tv.Encoder.load(tmp_path / "run" / "best")
    by_hand = tv.evaluate(best, folder, prompts={"query": "query", "document": "passage"}, progress=False)
    assert (result["metric"], result["best_metric"]) == ("ndcg@10", pytest.approx(by_hand["ndcg@10"], abs=1e-6))
    with pytest.raises(UsageError, match="dev is a retrieval folder, which the objective cannot score"):
        train(settings, metric="loss", overwrite=True)


@pytest.mark.parametrize(
    "settings", [{"prompt": "qurey"}, {"column_prompts": {"anchor": "qurey"}}, {"source": [{"prompt": "qurey"}]}], ids=["prompt", "column", "source"]
)
def test_an_unknown_prompt_is_refused_before_anything_else(settings: dict[str, Any], base: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"prompt = 'qurey': .*did you mean 'query'"):
        train(base, data=str(partners(tmp_path / "t.csv")), objective="infonce", prompts=PROMPTS, **settings)
    assert not (tmp_path / "run").exists()


# ---- data


def test_exclude_takes_out_the_pairs_of_a_test_and_silences_the_note(base: dict[str, Any], tmp_path: Path) -> None:
    rows = [[f"{SENTENCES[i % 10]} {i}", f"please {i}", i % 5] for i in range(20)]
    data = write(tmp_path / "t.csv", ["sentence1", "sentence2", "score"], rows)
    test = write(tmp_path / "test.csv", ["sentence1", "sentence2", "score"], rows[:6])
    shared = train(base, data=str(data), objective="cosent", test=[str(test)])
    assert any("exclude = [FILE] takes them out" in note for note in shared["notes"])
    clean = train(base, data=str(data), objective="cosent", test=[str(test)], exclude=[str(test)], overwrite=True)
    assert not any("exclude = [FILE]" in note for note in clean["notes"])
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["rows"]["train"] == 14
    assert record["files"]["exclude 1"]["path"] == str(test)


@pytest.mark.parametrize(
    ("objective", "make"),
    [
        ("classification", nli), ("regression", scores), ("triplet", triplets), ("infonce", partners), ("simcse", texts), ("cosent", scores),
        ("batch_all_triplet", labelled), ("batch_hard_triplet", labelled), ("distillation", parallel), ("margin_mse", scored_triplets),
        ("contrastive", None), ("tsdae", texts),
    ],
)  # fmt: skip
def test_the_loss_can_be_the_metric_of_every_kind_of_task(objective: str, make: Any, base: dict[str, Any], tmp_path: Path) -> None:
    from training_files import pairs

    data, dev = (make or pairs)(tmp_path / "train.csv", 24), (make or pairs)(tmp_path / "dev.csv", 12)
    more = {"teacher": base["model"]} if objective == "distillation" else {}
    result = train(base, data=str(data), dev=str(dev), objective=objective, metric="loss", dropout=0.1, **more)
    values = [entry["value"] for entry in log(tmp_path) if entry["event"] in ("baseline", "evaluation")]
    assert len(values) == 2
    assert all(value is not None and math.isfinite(value) for value in values)
    assert result["best_metric"] == values[1]


def test_a_dev_loss_uses_the_scale_of_the_training_scores(base: dict[str, Any], tmp_path: Path) -> None:
    """Dev may reach over a part of the range only; a 1 in it still means a 1 of 5."""
    header = ["sentence1", "sentence2", "score"]
    data = write(tmp_path / "train.csv", header, [[a, b, i % 6] for i, (a, b) in enumerate(pairwise(SENTENCES))])
    dev = write(tmp_path / "dev.csv", header, [[SENTENCES[i], SENTENCES[i + 2], [0, 1, 0.5][i % 3]] for i in range(6)])
    train(base, data=str(data), dev=str(dev), objective="regression", metric="loss", dropout=0.0, max_steps=1)
    encoder = tv.Encoder.load(base["model"], pooling="mean")
    read = tv.read_data(dev)
    u, v = (encoder.encode(column).astype(np.float64) for column in read.columns.values())
    cosine = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    by_hand = np.mean((cosine * 2.5 + 2.5 - np.array([0, 1, 0.5] * 2)) ** 2)
    assert log(tmp_path)[0]["value"] == pytest.approx(by_hand, rel=1e-4)


def test_a_dev_loss_over_data_of_another_kind_is_refused(base: dict[str, Any], tmp_path: Path) -> None:
    from training_files import pairs

    settings = {**base, "objective": "classification", "data": str(nli(tmp_path / "n.csv")), "dev": str(pairs(tmp_path / "p.csv"))}
    with pytest.raises(UsageError, match=r"p.csv holds pairs, the training data nli; metric = 'loss' needs the same"):
        train(settings, metric="loss")


# ---- teachers


def test_a_guide_and_a_teacher_are_asked_once_and_kept_out_of_the_way(base: dict[str, Any], tmp_path: Path) -> None:
    data = str(partners(tmp_path / "t.csv"))
    train(base, data=data, objective="infonce", guide=base["model"], false_negative_margin=0.0, dropout=0.0, lr=1e-4)
    (kept,) = (tmp_path / "run" / "teacher").iterdir()
    assert np.load(kept).shape == (48, 32)
    guided = log(tmp_path)[0]["loss"]
    train(base, data=data, objective="infonce", dropout=0.0, overwrite=True, lr=1e-4)
    assert guided < log(tmp_path)[0]["loss"], "masked candidates make the loss smaller"
    train(base, data=str(triplets(tmp_path / "tr.csv")), objective="margin_mse", teacher=base["model"], overwrite=True)
    assert log(tmp_path)[-1]["loss"] > 0


def test_a_teacher_of_another_size_is_refused_before_it_encodes(base: dict[str, Any], tmp_path: Path) -> None:
    from twinvec.model.fresh import fresh_encoder

    small = fresh_encoder(SENTENCES, layers=1, hidden=16, heads=2, max_tokens=32).save(tmp_path / "small")
    with pytest.raises(UsageError, match="has 16 dimensions, the model 32"):
        train(base, data=str(parallel(tmp_path / "t.csv")), objective="distillation", teacher=str(small))
    assert not (tmp_path / "run" / "teacher").exists()


def test_a_learned_temperature_moves_and_survives_a_resume(base: dict[str, Any], tmp_path: Path) -> None:
    from twinvec.training.checkpoint import list_checkpoints, load_checkpoint

    settings = {
        **base,
        "data": str(partners(tmp_path / "t.csv")),
        "objective": "infonce",
        "learn_temperature": True,
        "head_lr": 0.05,
        "checkpoint_steps": 1,
    }
    train(settings, epochs=2)
    whole = load_checkpoint(list_checkpoints(tmp_path / "run")[-1])[0]
    assert abs(math.exp(float(whole["heads.0.log"])) - 0.05) > 1e-3
    assert "heads.0.log" not in best_weights(tmp_path)
    with pytest.raises(UsageError, match=r"temperature = 0.005: a learned one stays above 0.01"):
        train(settings, temperature=0.005, overwrite=True)


# ---- a layer to the teacher's size


def test_the_fitted_layer_is_the_least_squares_one() -> None:
    rng = np.random.default_rng(0)
    student, weight, bias = rng.standard_normal((200, 6)), rng.standard_normal((4, 6)), rng.standard_normal(4)
    noisy = student @ weight.T + bias + 0.1 * rng.standard_normal((200, 4))
    found, shift = least_squares(student.astype(np.float32), noisy.astype(np.float32))
    wanted = np.linalg.lstsq(np.hstack([student, np.ones((200, 1))]), noisy, rcond=None)[0]
    np.testing.assert_allclose(np.hstack([found.numpy(), shift.numpy()[:, None]]), wanted.T, atol=5e-3)
    same = np.ones((3, 2), dtype=np.float32)  # no variance at all: the mean is what is left to say
    flat, middle = least_squares(same, np.arange(9, dtype=np.float32).reshape(3, 3))
    assert torch.isfinite(flat).all()
    np.testing.assert_allclose((same @ flat.numpy().T + middle.numpy())[0], [3, 4, 5], atol=1e-5)


def test_a_student_of_another_size_starts_beside_its_teacher(base: dict[str, Any], bare_model: BareModel, tmp_path: Path) -> None:
    teacher = tv.Encoder.load(bare_model("bert"), pooling="cls+mean")
    teacher.save(tmp_path / "teacher")
    settings = {**base, "data": str(parallel(tmp_path / "t.csv")), "objective": "distillation", "teacher": str(tmp_path / "teacher"), "dropout": 0.0}
    dry = train(settings, fit_dense=True, dry_run=True)
    assert dry["lines"]
    assert not (tmp_path / "run").exists()
    train(settings, fit_dense=True, lr=1e-6)
    student = tv.Encoder.load(tmp_path / "run" / "best")
    assert student.dimensions == teacher.dimensions == 64
    aim = np.load(next((tmp_path / "run" / "teacher").glob("*.npy")))
    assert log(tmp_path)[0]["loss"] < ((aim - aim.mean(axis=0)) ** 2).mean(), "nearer than the best single vector, before any step"
    json.dumps(json.loads((tmp_path / "run" / "best" / "2_Dense" / "config.json").read_text()), allow_nan=False)


def test_a_run_with_a_fitted_layer_resumes_to_the_bit(base: dict[str, Any], tmp_path: Path) -> None:
    settings = {**base, "data": str(parallel(tmp_path / "t.csv")), "objective": "distillation", "teacher": base["model"], "fit_dense": True}
    settings |= {"dropout": 0.1, "checkpoint_steps": 1, "batch_size": 4, "max_steps": 4}
    train(settings, output=str(tmp_path / "whole"))
    interrupted(settings, 2)
    train(settings, resume=True)
    for name in ("model.safetensors", "2_Dense/model.safetensors"):
        one, two = (load_file(tmp_path / run / "best" / name) for run in ("whole", "run"))
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one), name
    damaged = tmp_path / "run" / "teacher" / "dense.safetensors"
    damaged.write_bytes(save({"weight": torch.zeros(3, 2), "bias": torch.zeros(3)}))
    with pytest.raises(TrainingError, match=r"dense.safetensors: holds a layer of \(3, 2\), wanted \(32, 32\); remove it"):
        train(settings, resume=True)


# ---- what is trained


def interrupted(settings: dict[str, Any], step: int) -> None:
    """The run, broken off after a step."""
    plain = Run._one_step

    def stop(self: Run, *args: Any) -> None:
        plain(self, *args)
        if self.state.step == step:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "_one_step", stop)
        with pytest.raises(KeyboardInterrupt):
            train(settings)


TRAINED: dict[str, dict[str, Any]] = {
    "lora": {"lora_rank": 4, "lora_keep": True},
    "frozen": {"freeze_layers": 1, "freeze_embeddings": True},
    "checkpointing": {"gradient_checkpointing": True, "gradient_cache": "on", "micro_tokens": 40},
}


@pytest.mark.parametrize("name", TRAINED)
def test_adapters_frozen_layers_and_checkpointing_resume_to_the_bit(name: str, base: dict[str, Any], tmp_path: Path) -> None:
    if name == "lora":
        pytest.importorskip("peft")
    settings = {
        **base,
        **TRAINED[name],
        "data": str(scores(tmp_path / "t.csv", 40)),
        "objective": "cosent",
        "dev": str(scores(tmp_path / "d.csv", 15)),
    }
    settings |= {"dropout": 0.1, "evaluate_steps": 2, "checkpoint_steps": 3}
    whole = train(settings, output=str(tmp_path / "whole"))
    interrupted(settings, 4)
    again = train(settings, resume=True)
    one = load_file(tmp_path / "whole" / "best" / "model.safetensors")
    two = best_weights(tmp_path)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert again["best_metric"] == whole["best_metric"]
    start = tv.Encoder.load(base["model"], pooling="mean").net.backbone.state_dict()
    moved = {key for key, value in one.items() if not torch.equal(value, start[key])}
    if name == "lora":
        assert not any("lora" in key for key in one), "best/ is a plain model"
        assert all(key.endswith("weight") and "orm" not in key and "embeddings" not in key for key in moved)
        assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").is_file()
        sys.modules["peft"], held = None, sys.modules.get("peft")  # type: ignore[assignment]
        try:
            tv.Encoder.load(tmp_path / "run" / "best").encode("the cat sat")
        finally:
            sys.modules["peft"] = held  # type: ignore[assignment]
    if name == "frozen":
        assert moved
        assert not any("layer.0." in key or "embeddings" in key for key in moved)


def test_checkpointing_changes_memory_and_not_the_weights(base: dict[str, Any], tmp_path: Path) -> None:
    settings = {**base, "data": str(scores(tmp_path / "t.csv", 24)), "objective": "cosent", "dropout": 0.1, "lr": 1e-4, "max_steps": 2}
    train(settings)
    plain = best_weights(tmp_path)
    train(settings, gradient_checkpointing=True, overwrite=True)
    for key, value in best_weights(tmp_path).items():
        if "key.bias" not in key:
            torch.testing.assert_close(value, plain[key], rtol=0, atol=1e-6, msg=key)


def test_resuming_on_changed_files_is_refused(base: dict[str, Any], tmp_path: Path) -> None:
    settings = {**base, "data": str(scores(tmp_path / "t.csv", 24)), "objective": "cosent", "checkpoint_steps": 1}
    interrupted(settings, 2)
    scores(tmp_path / "t.csv", 25)
    with pytest.raises(TrainingError, match=r"run cannot be resumed: .*t.csv has changed since it began"):
        train(settings, resume=True)


def test_a_run_killed_before_its_first_checkpoint_begins_anew_with_a_clean_log(base: dict[str, Any], tmp_path: Path) -> None:
    settings = {**base, "data": str(scores(tmp_path / "t.csv", 24)), "objective": "cosent"}
    interrupted(settings, 2)
    assert len(log(tmp_path)) == 2
    train(settings, resume=True)
    assert [entry["step"] for entry in log(tmp_path)] == [1, 2, 3]


# ---- dry run


def test_a_dry_run_gives_a_rising_table_and_writes_nothing(base: dict[str, Any], tmp_path: Path) -> None:
    data = str(partners(tmp_path / "t.csv"))
    result = train(base, data=data, objective="infonce", guide=base["model"], false_negative_margin=0.0, dry_run=True, batch_size=12)
    assert not (tmp_path / "run").exists()
    table = result["table"]
    assert 12 in [row["batch_size"] for row in table]
    for key in ("batch_size", "plain_bytes", "cached_bytes"):
        assert [row[key] for row in table] == sorted(row[key] for row in table)
    assert all(row["cached_bytes"] <= row["plain_bytes"] for row in table)
    fits = [row["plain_fits"] for row in table]
    assert fits == sorted(fits, reverse=True), "what fits is below what does not"
    assert result["seconds"] == pytest.approx(result["seconds_a_step"] * result["steps"], rel=0.1, abs=0.1)
    assert any("the teacher or guide" in line for line in result["lines"])
    train(base, data=data, objective="infonce")  # the folder is free for the run itself


def test_a_dry_run_at_the_command_line(base: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from twinvec.cli.main import app

    arguments = ["--data", str(texts(tmp_path / "t.csv")), "--objective", "tsdae", "--dry-run", "--json", "--quiet"]
    code = app(["train", "--model", base["model"], "--pooling", "mean", "--output", str(tmp_path / "run"), *arguments], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert (code, found["dry_run"], found["table"]) == (0, True, [])
    assert found["steps"] == 2
    assert not (tmp_path / "run").exists()


# ---- notes


def test_a_loss_at_chance_is_said_and_a_matryoshka_sum_is_no_chance(base: dict[str, Any], tmp_path: Path) -> None:
    settings = {**base, "objective": "infonce", "data": str(partners(tmp_path / "t.csv", 48)), "dropout": 0.0}
    result = train(settings, temperature=100.0, lr=1e-6)
    assert any("the loss stays at 2.0" in note and "ln(candidates) = 2.079" in note for note in result["notes"])
    result = train(settings, matryoshka=[16, 8], overwrite=True, epochs=2)
    assert log(tmp_path)[-1]["loss"] > 0.1
    assert not any("ln(candidates)" in note for note in result["notes"])
    result = train(settings, matryoshka=[16, 8], overwrite=True, temperature=100.0, lr=1e-6)
    assert any("ln(candidates) = 6.238" in note for note in result["notes"])


def test_accumulation_gives_no_more_negatives_and_says_so(base: dict[str, Any], tmp_path: Path) -> None:
    result = train(base, objective="infonce", data=str(partners(tmp_path / "t.csv")), accumulation=2)
    assert any("accumulation = 2 gives no more negatives" in note and "batch_size = 16, accumulation = 1" in note for note in result["notes"])
    result = train(base, objective="cosent", data=str(scores(tmp_path / "s.csv")), accumulation=2, overwrite=True)
    assert not any("accumulation" in note for note in result["notes"])


def test_fewer_steps_than_an_epoch_has(base: dict[str, Any], tmp_path: Path) -> None:
    settings = {**base, "objective": "cosent", "data": str(scores(tmp_path / "t.csv", 40)), "dev": str(scores(tmp_path / "d.csv", 12))}
    result = train(settings, max_steps=2, epochs=3)
    assert (result["steps"], result["best_step"]) == (2, 2)
    assert [entry["lr"] for entry in log(tmp_path) if entry["event"] == "loss"] == [1e-3, 1e-3], "warm-up and fall are over the steps that are done"
