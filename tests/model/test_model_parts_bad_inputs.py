"""Adapters, freezing and conversion: options and files that cannot be used, with the error each gives. `CASES` is the table of the documentation.

Each case: a name; what is done, a function of a folder to work in and of an encoder free to be spoilt; the error; and a pattern of its message.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from tiny_gguf import write_gguf
from tiny_models import make_bare
from twinvec.errors import ModelError, TrainingError, TwinvecError, UsageError
from twinvec.model.adapters import add_lora, freeze, has_lora, load_adapter, lora_layers, merge_lora, save_adapter
from twinvec.model.convert import load_gguf
from twinvec.model.encoder import Encoder
from twinvec.model.heads import Dense
from twinvec.model.net import Net

pytest.importorskip("peft")
pytest.importorskip("gguf")
torch.set_num_threads(1)
Do = Callable[[Path, Encoder], Any]


class Case(NamedTuple):
    name: str
    do: Do
    error: type[TwinvecError]
    message: str


def lora(**options: Any) -> Do:
    return lambda place, encoder: add_lora(encoder.net, **options)


def twice(place: Path, encoder: Encoder) -> None:
    add_lora(encoder.net, rank=2)
    add_lora(encoder.net, rank=2)


def without_peft(place: Path, encoder: Encoder) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "peft", None)
        add_lora(encoder.net)


def poisoned(then: Callable[[Path, Encoder], Any]) -> Do:
    def do(place: Path, encoder: Encoder) -> None:
        add_lora(encoder.net, rank=2)
        first = next(iter(lora_layers(encoder.net).values()))
        with torch.no_grad():
            first.lora_B["default"].weight.fill_(float("nan"))
        then(place, encoder)

    return do


def adapter(*changes: Callable[[Path], Any]) -> Do:
    """A saved adapter, changed, then loaded on the model it came from."""

    def do(place: Path, encoder: Encoder) -> None:
        add_lora(encoder.net, rank=2)
        folder = save_adapter(encoder.net, place / "adapter")
        merge_lora(encoder.net)
        for change in changes:
            change(folder)
        load_adapter(encoder.net, folder)

    return do


def edit(**options: Any) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        found = {**json.loads((folder / "adapter_config.json").read_text()), **options}
        (folder / "adapter_config.json").write_text(json.dumps({key: value for key, value in found.items() if value is not None}))

    return change


def remove(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).unlink()


def tensors(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Callable[[Path], Any]:
    def do(folder: Path) -> None:
        path = folder / "adapter_model.safetensors"
        save_file(change(load_file(path)), path)

    return do


def other_model(place: Path, encoder: Encoder) -> None:
    add_lora(encoder.net, rank=2)
    save_adapter(encoder.net, place / "adapter")
    merge_lora(encoder.net)
    with torch.no_grad():
        next(encoder.net.parameters()).add_(1.0)
    load_adapter(encoder.net, place / "adapter")


def other_heads(place: Path, encoder: Encoder) -> None:
    add_lora(encoder.net, rank=2)
    save_adapter(encoder.net, place / "adapter")
    merge_lora(encoder.net)
    load_adapter(Net(encoder.net.backbone, ["mean"], [Dense(32, 8)], normalize=True), place / "adapter")


def onto_other_things(place: Path, encoder: Encoder) -> None:
    (place / "adapter").mkdir()
    (place / "adapter" / "novel.txt").write_text("mine")
    add_lora(encoder.net, rank=2)
    save_adapter(encoder.net, place / "adapter")


def onto_merged_weights(place: Path, encoder: Encoder) -> None:
    before = {name: value.clone() for name, value in encoder.net.state_dict().items()}
    try:
        adapter(tensors(lambda found: {**found, "base_model.model.encoder.layer.0.attention.self.query.lora_A.weight": torch.ones(3, 32)}))(
            place, encoder
        )
    finally:
        now = encoder.net.state_dict()
        assert all(torch.equal(now[name], value) for name, value in before.items())  # refused, and nothing changed
        assert not has_lora(encoder.net)


def frozen(**options: Any) -> Do:
    return lambda place, encoder: freeze(encoder.net, **options)


def no_checkpointing(place: Path, encoder: Encoder) -> None:
    from transformers import ConvBertConfig

    from tiny_models import MAKERS, _size, wordpiece

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MAKERS, "convbert", lambda: (wordpiece(), ConvBertConfig(**_size(max_position_embeddings=64, embedding_size=32))))
        net = Encoder.load(make_bare("convbert", place / "convbert"), pooling="mean").net
    patch.setattr(type(net.backbone), "supports_gradient_checkpointing", False)
    try:
        net.set_checkpointing(True)
    finally:
        patch.undo()


def gguf(content: bytes, name: str = "model.gguf", **options: Any) -> Do:
    def do(place: Path, encoder: Encoder) -> None:
        (place / name).write_bytes(content)
        load_gguf(place / name, **options)

    return do


def good_gguf(change: Callable[[Path], Any] = lambda path: None, leave_out: str | None = None, **options: Any) -> Do:
    def do(place: Path, encoder: Encoder) -> None:
        write_gguf(place / "model.gguf", leave_out=leave_out)
        change(place / "model.gguf")
        load_gguf(place / "model.gguf", **options)

    return do


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20_000])


def several(place: Path, encoder: Encoder) -> None:
    for name in ("a.gguf", "b.gguf"):
        (place / name).write_bytes(b"GGUF")
    load_gguf(place)


def without_gguf(place: Path, encoder: Encoder) -> None:
    import importlib.util

    (place / "model.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        load_gguf(place / "model.gguf")


CASES = [
    Case("LoRA of rank 0", lora(rank=0), UsageError, r"rank = 0: wanted a whole number, 1 or more"),
    Case("LoRA of rank 2.5", lora(rank=2.5), UsageError, r"rank = 2\.5: wanted a whole number"),
    Case("LoRA with alpha 0", lora(alpha=0), UsageError, r"alpha = 0: wanted a number above 0"),
    Case("LoRA with alpha NaN", lora(alpha=float("nan")), UsageError, r"alpha = nan: wanted a number above 0"),
    Case("LoRA with dropout 1", lora(dropout=1.0), UsageError, r"dropout = 1\.0: wanted a share from 0 to below 1"),
    Case("LoRA without targets", lora(targets=[]), UsageError, r"targets is empty; give 'all-linear' or names"),
    Case("LoRA with an unknown target", lora(targets=["querry"]), UsageError, r"no linear layer is called 'querry'; .*did you mean 'query'"),
    Case("LoRA twice", twice, UsageError, r"wears adapters already; merge_lora\(net\) first"),
    Case("LoRA without peft", without_peft, UsageError, r"needs the package peft .*pip install 'twinvec\[lora\]'"),
    Case("merging adapters that are NaN", poisoned(lambda p, e: merge_lora(e.net)), TrainingError, r"merged weight of .* is not finite"),
    Case("saving a model whose adapters are NaN", poisoned(lambda p, e: e.save(p / "model")), TrainingError, r"merged weight of .* is not finite"),
    Case("saving adapters that are NaN", poisoned(lambda p, e: save_adapter(e.net, p / "adapter")), TrainingError, r"not written: 1 adapter weights"),
    Case("saving adapters where there are none", lambda p, e: save_adapter(e.net, p / "adapter"), UsageError, r"wears no LoRA adapters"),
    Case("saving adapters over other things", onto_other_things, ModelError, r"exists and holds no adapter"),
    Case("adapters of another model", other_model, ModelError, r"trained on a model with other weights"),
    Case("adapters of a model with other heads", other_heads, ModelError, r"heads after pooling .* are not those of this model"),
    Case("adapter folder without weights", adapter(remove("adapter_model.safetensors")), ModelError, r"adapter_model.safetensors is missing"),
    Case("adapter folder without its config", adapter(remove("adapter_config.json")), ModelError, r"adapter_config.json is missing"),
    Case("adapter weights cut short", adapter(lambda f: (f / "adapter_model.safetensors").write_bytes(b"\x10")), ModelError, r"cannot be read"),
    Case("adapters of another kind", adapter(edit(peft_type="IA3")), ModelError, r"only plain LoRA adapters"),
    Case("adapter config without a rank", adapter(edit(r=None)), ModelError, r"do not fit this model \(KeyError: 'r'\)"),
    Case("adapter config with another rank", adapter(edit(r=3)), ModelError, r"adapter weights are missing, unknown or of another shape"),
    Case(
        "adapters for layers that are not there",
        adapter(tensors(lambda found: {name.replace("layer.1.", "layer.7."): value for name, value in found.items()})),
        ModelError, r"do not fit this model .*layer\.7\.",
    ),
    Case("adapter weights of another shape", onto_merged_weights, ModelError, r"of another shape"),
    Case("freezing too many layers", frozen(layers=3), UsageError, r"layers = 3: this model has 2 layers .*wanted 0 to 2"),
    Case("freezing -1 layers", frozen(layers=-1), UsageError, r"layers = -1: .*wanted 0 to 2"),
    Case("freezing everything", frozen(layers=2, embeddings=True), UsageError, r"nothing would be left to train"),
    Case("checkpointing where there is none", no_checkpointing, UsageError, r"a backbone of the kind 'convbert' has none"),
    Case("GGUF that is not there", lambda p, e: load_gguf(p / "none.gguf"), ModelError, r"none.gguf: no such file"),
    Case("GGUF folder without a file", lambda p, e: load_gguf(p), ModelError, r"give the GGUF file itself.*\(it holds none\)"),
    Case("GGUF folder with two", several, ModelError, r"it holds a.gguf, b.gguf"),
    Case("GGUF that is an LFS pointer", gguf(b"version https://git-lfs.github.com/spec/v1\n"), ModelError, r"Git LFS pointer"),
    Case("GGUF that is something else", gguf(b"PK\x03\x04zip"), ModelError, r"is no GGUF file: it begins b'PK"),
    Case("GGUF of rubbish", gguf(b"GGUF" + bytes(range(200))), ModelError, r"transformers cannot read this GGUF file"),
    Case("GGUF cut short", good_gguf(cut), ModelError, r"transformers cannot read this GGUF file"),
    Case("GGUF without one weight", good_gguf(leave_out="blk.1.ffn_up.weight"), ModelError, r"1 weights are not in the file \(first: .*up_proj"),
    Case("GGUF with an unknown pooling", good_gguf(pooling="lst_token"), UsageError, r"pooling = 'lst_token'.*did you mean 'last_token'"),
    Case("GGUF with a window too large", good_gguf(max_tokens=65), UsageError, r"max_tokens = 65: this model's window is 1 to 64"),
    Case("GGUF without the package", without_gguf, ModelError, r"pip install 'twinvec\[gguf\]'"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input(case: Case, bare_model: Callable[[str], Path], tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    encoder = Encoder.load(bare_model("bert"), pooling="mean")
    before = set(tmp_path.iterdir())
    with pytest.raises(case.error, match=case.message) as found:
        case.do(tmp_path, encoder)
    message = str(found.value)
    record_property("message", message)
    assert "\n" not in message
    assert len(message) < 900
    for path in set(tmp_path.iterdir()) - before:  # nothing half-written
        assert not path.name.endswith(".tmp")
    assert not (tmp_path / "model").exists()


def test_each_case_has_its_name() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
