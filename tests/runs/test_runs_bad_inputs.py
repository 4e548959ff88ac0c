"""Runs that cannot be: each is refused before the first step is trained. `CASES` is the table of the documentation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "training"))
from training_files import SENTENCES, labelled, nli, pairs, partners, scores, texts, triplets, write

import twinvec as tv
from twinvec.errors import DataError, TwinvecError, UsageError
from twinvec.training.loop import Run

pytestmark = pytest.mark.filterwarnings("ignore::twinvec.errors.TwinvecWarning")
Make = Callable[[Path], Path]


class Case(NamedTuple):
    name: str
    objective: str
    data: Make
    more: dict[str, Any]
    message: str
    error: type[TwinvecError] = UsageError


def one_label(path: Path) -> Path:
    return write(path, ["sentence1", "sentence2", "label"], [[a, b, 1] for a, b in zip(SENTENCES, reversed(SENTENCES), strict=True)])


def one_premise(path: Path) -> Path:
    return write(path, ["premise", "hypothesis", "label"], [[a, "x", "neutral"] for a in SENTENCES] + [[SENTENCES[0], "y", "contradiction"]])


def lonely(path: Path) -> Path:
    return write(path, ["text", "label"], [[text, f"class {i}"] for i, text in enumerate(SENTENCES)])


def header_only(path: Path) -> Path:
    return write(path, ["anchor", "positive"], [])


def missing(path: Path) -> Path:
    return path.with_name("nowhere.csv")


BATCH = ("batch_hard_triplet", "batch_hard_soft_triplet", "batch_semi_hard_triplet", "batch_all_triplet")
SELF = {"teacher": "SELF"}
MISFITS = (
    ("classification", triplets, "nli or pairs"), ("regression", nli, "scores or pairs"), ("triplet", scores, "triplets or nli"),
    ("infonce", labelled, "pairs or triplets or nli or parallel or scores"), ("simcse", scores, "texts or nli or triplets"),
    ("contrastive", scores, "pairs"), ("online_contrastive", nli, "pairs"), ("cosent", triplets, "scores or pairs or nli"),
    ("angle", texts, "scores or pairs or nli"), ("distillation", scores, "texts or parallel"), ("margin_mse", pairs, "triplets"),
    *((name, partners, "labelled") for name in BATCH),
)  # fmt: skip
CASES = (
    *(Case(f"{name}: data of another kind", name, make, {}, rf"objective = '{name}' wants {wanted}, but .* holds ")
      for name, make, wanted in MISFITS),
    *(Case(f"{name}: pairs without labels", name, partners, {}, r"wants a label or score in each row, but .* has no such column")
      for name in ("classification", "contrastive", "cosent")),
    Case("contrastive: one label only", "contrastive", one_label, {}, r"every row has the same label \(1\)"),
    Case("triplet: NLI that gives none", "triplet", one_premise, {}, r"no premise has both an entailment", DataError),
    Case("batch triplets: classes of one row", "batch_hard_triplet", lonely, {}, r"batch triplets want two classes, and two rows in one of them"),
    Case("batch triplets: no room for two classes", "batch_hard_triplet", labelled, {"batch_size": 4}, r"batch_size = 4, per_class = 4"),
    Case("simcse: no dropout", "simcse", texts, {"dropout": 0.0}, r"'simcse' on bare texts needs dropout"),
    Case("mlm: a tokenizer without a mask", "mlm", texts, {}, r"mlm: .*has no mask token; use tsdae"),
    Case("distillation: no teacher", "distillation", texts, {}, r"'distillation' wants teacher = MODEL"),
    Case("distillation: a teacher that is not there", "distillation", texts, {"teacher": "nowhere"}, r"nowhere", TwinvecError),
    Case("distillation: an unknown prompt of the teacher", "distillation", texts, {**SELF, "teacher_prompt": "q"}, r"prompt = 'q': this model"),
    Case("distillation: a teacher of another size", "distillation", texts, {"teacher": "SMALL"}, r"has 16 dimensions, the model 32"),
    Case("fit_dense: nothing to fit to", "infonce", partners, {"fit_dense": True}, r"fit_dense: no data set has objective = 'distillation'"),
    Case("margin_mse: no margins and no teacher", "margin_mse", triplets, {}, r"has no margins \(a column 'margin'\); add it, or name teacher"),
    Case("infonce: a guide without a margin", "infonce", partners, {"guide": "SELF"}, r"say from where on with false_negative_margin"),
    Case("infonce: a learned temperature too low", "infonce", partners, {"temperature": 0.01, "learn_temperature": True}, r"stays above 0.01"),
    Case("matryoshka: more than the model has", "infonce", partners, {"matryoshka": [64]}, r"matryoshka = \[64\]: the model has 32 dimensions"),
    Case("matryoshka: a size twice", "infonce", partners, {"matryoshka": [16, 16]}, r"dimensions = \[32, 16, 16\]: each may stand once"),
    Case("matryoshka: a size of nothing", "infonce", partners, {"matryoshka": [0]}, r"needs whole numbers of 1 or more"),
    Case("matryoshka: a weight too few", "infonce", partners, {"matryoshka": [16, 8], "matryoshka_weights": [1, 1]}, r"2 weights for 3 dimensions"),
    Case("matryoshka: a weight of zero", "infonce", partners, {"matryoshka": [8], "matryoshka_weights": [1, 0]}, r"needs finite numbers above 0"),
    Case("matryoshka: weights alone", "infonce", partners, {"matryoshka_weights": [1]}, r"there is no matryoshka = \[...\] that they would weigh"),
    Case("new model: heads that do not divide", "tsdae", texts, {"new_model": {"hidden": 32, "heads": 5}}, r"hidden = 32, heads = 5"),
    Case("new model: layers that are no number", "tsdae", texts, {"new_model": {"layers": "two"}}, r"layers = 'two': wanted a whole number"),
    Case("new model: texts that are not there", "tsdae", texts, {"new_model": {"texts": ["nowhere.txt"]}}, r"nowhere.txt", DataError),
    Case("prompt: unknown", "infonce", partners, {"prompt": "qurey", "prompts": {"query": "q: "}}, r"prompt = 'qurey': .*did you mean 'query'"),
    Case("prompt: of a column, unknown", "infonce", partners, {"column_prompts": {"anchor": "q"}}, r"prompt = 'q': .* these prompts: none"),
    Case("data: no such file", "infonce", missing, {}, r"nowhere.csv", DataError),
    Case("data: no rows", "infonce", header_only, {}, r"no rows", TwinvecError),
    Case("exclude: a folder", "infonce", partners, {"exclude": ["."]}, r"exclude = '.' is a folder; wanted files"),
    Case("exclude: all of the data", "cosent", scores, {"exclude": ["DATA"]}, r"every row is in .* so nothing is left to train on", DataError),
    Case("dev: nothing held out", "cosent", scores, {"dev_share": 0.01}, r"dev_share = 0.01: of 24 rows that leaves 24 to train on and 0 to measure"),
    Case("dev: a metric it cannot give", "cosent", scores, {"dev_share": 0.3, "metric": "ndcg@10"}, r"dev \(dev_share\) does not give it; it gives"),
    Case("dev: a file for another objective's loss", "infonce", partners, {"dev": "NLI", "metric": "loss", "kind": None}, r"nli.csv", TwinvecError),
    Case("test: no such file", "infonce", partners, {"test": ["nowhere.csv"]}, r"nowhere.csv", DataError),
    Case("test: bare texts", "infonce", partners, {"test": ["TEXTS"], "kind": None}, r"nothing|texts", DataError),
    Case("pooling: unknown", "infonce", partners, {"pooling": "meen"}, r"pooling = 'meen'.*did you mean 'mean'"),
    Case("freezing: more layers than there are", "infonce", partners, {"freeze_layers": 9}, r"freeze: layers = 9: this model has 2 layers"),
    Case("freezing: everything", "infonce", partners, {"freeze_layers": 2, "freeze_embeddings": True}, r"nothing would be left to train"),
    Case("LoRA: a layer it has not", "infonce", partners, {"lora_rank": 4, "lora_targets": ["qurey"]}, r"no linear layer is called 'qurey'"),
    Case("output: a file", "infonce", partners, {"output": "DATA"}, r"is a file; wanted a folder for the run"),
)  # fmt: skip


@pytest.fixture(scope="module")
def models(bare_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    from twinvec.model.fresh import fresh_encoder

    small = fresh_encoder(SENTENCES, layers=1, hidden=16, heads=2, max_tokens=32).save(tmp_path_factory.mktemp("small") / "small")
    return {"SELF": str(bare_model("bert")), "SMALL": str(small)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_run_that_cannot_be_gets_its_message(
    case: Case, models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    if "lora_rank" in case.more:
        pytest.importorskip("peft")

    def too_late(*_: Any) -> None:
        raise AssertionError("training has begun")

    monkeypatch.setattr(Run, "_one_step", too_late)
    monkeypatch.setattr("twinvec.training.teacher._encode", too_late)
    data = case.data(tmp_path / "train.csv")
    names = {**models, "DATA": str(data), "NLI": str(nli(tmp_path / "nli.csv")), "TEXTS": str(texts(tmp_path / "texts.csv"))}

    def named(value: Any) -> Any:
        return [named(item) for item in value] if isinstance(value, list) else names.get(value, value) if isinstance(value, str) else value

    settings = {"pooling": "mean", "batch_size": 8, "output": str(tmp_path / "run"), **{key: named(value) for key, value in case.more.items()}}
    model = "new" if "new_model" in settings else models["SELF"]
    with pytest.raises(case.error, match=case.message) as found:
        tv.train(tv.Recipe.of(model=model, data=str(data), objective=case.objective, **settings), progress=False)
    message = str(found.value)
    record_property("message", message)
    assert "\n" not in message
    assert len(message) < 700
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert not (tmp_path / "run" / "best").exists()


def test_each_case_has_its_name() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def test_the_full_size_may_stand_in_the_list_with_a_weight_of_its_own(models: dict[str, str], tmp_path: Path) -> None:
    """As sentence-transformers writes it: [32, 16]; then there is one weight a listed size."""
    data = partners(tmp_path / "t.csv")
    settings = {
        "model": models["SELF"],
        "pooling": "mean",
        "data": str(data),
        "objective": "infonce",
        "batch_size": 8,
        "max_steps": 1,
        "log_steps": 1,
    }
    losses = []
    for name, more in (("a", {"matryoshka": [16]}), ("b", {"matryoshka": [16, 32], "matryoshka_weights": [1.0, 1.0]})):
        tv.train(tv.Recipe.of(**settings, **more, output=str(tmp_path / name)), progress=False)
        losses.append((tmp_path / name / "log.jsonl").read_text().split('"loss": ')[1].split(",")[0])
    assert float(losses[0]) == pytest.approx(float(losses[1]), rel=1e-6)
