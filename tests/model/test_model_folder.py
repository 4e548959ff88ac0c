"""Model folders: what is saved comes back, what was changed since is refused, and the fingerprint says which model this is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tiny_models import FAMILIES, TEXTS
from twinvec.errors import ModelError, TwinvecWarning, UsageError
from twinvec.model.encoder import Encoder
from twinvec.model.fingerprint import parts_of
from twinvec.model.heads import Dense
from twinvec.model.net import Net

torch.set_num_threads(1)
BareModel = Callable[[str], Path]


def with_heads(encoder: Encoder) -> Encoder:
    """The encoder with a Dense head, a Normalize head and prompts."""
    torch.manual_seed(3)
    net = Net(encoder.net.backbone, encoder.net.pooling, [Dense(32, 16)], normalize=True, pad_id=encoder.tokens.pad_id)
    return Encoder(net.eval(), encoder.tokens, name="made here", prompts={"query": "query: "}, default_prompt="query")


@pytest.fixture
def saved(bare_model: BareModel, tmp_path: Path) -> Path:
    return with_heads(Encoder.load(bare_model("bert"), pooling="mean")).save(tmp_path / "saved")


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("family", FAMILIES)
def test_save_and_load(family: str, bare_model: BareModel, tmp_path: Path) -> None:
    encoder = with_heads(Encoder.load(bare_model(family), pooling="mean"))
    again = Encoder.load(encoder.save(tmp_path / "saved"))
    assert again.fingerprint == encoder.fingerprint
    assert (again.prompts, again.default_prompt, again.normalizes, again.dimensions) == ({"query": "query: "}, "query", True, 16)
    np.testing.assert_allclose(again.encode(TEXTS), encoder.encode(TEXTS), atol=1e-6)
    kept = json.loads((tmp_path / "saved" / "twinvec.json").read_text())
    assert kept["fingerprint"] == encoder.fingerprint
    assert len(kept["golden"]) == 3
    assert len(kept["golden"][0]["vector"]) == 16
    assert {"torch", "transformers", "python"} <= kept["versions"].keys()
    assert not list((tmp_path / "saved").rglob("*.bin"))


def test_saving_prints_nothing(saved: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Encoder.load(saved).save(tmp_path / "again")
    assert capfd.readouterr() == ("", "")


def test_saving_over_a_model_replaces_it_whole(saved: Path) -> None:
    (saved / "leftover.txt").write_text("of the old model")
    encoder = Encoder.load(saved)
    encoder.save(saved)
    assert not (saved / "leftover.txt").exists()
    assert Encoder.load(saved).fingerprint == encoder.fingerprint


def test_saving_over_something_else_is_refused(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    for name in ("letters", "file"):
        with pytest.raises(ModelError, match=r"exists and is no model folder"):
            Encoder.load(saved).save(tmp_path / name)
    assert (tmp_path / "letters" / "dear.txt").read_text() == "x"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_failed_save_leaves_the_old_model(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder.load(saved)
    before = encoder.fingerprint
    encoder.net.backbone.embeddings.word_embeddings.weight.data.mul_(2)  # type: ignore[union-attr, operator]
    monkeypatch.setattr("twinvec.model.folder.write_layout", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        encoder.save(saved)
    assert Encoder.load(saved).fingerprint == before
    assert [path.name for path in saved.parent.iterdir()] == ["saved"]


# ---- fingerprint


def change_weight(encoder: Encoder) -> None:
    with torch.no_grad():
        next(encoder.net.backbone.parameters())[7, 3] += 1e-6


def change_head(encoder: Encoder) -> None:
    with torch.no_grad():
        encoder.net.heads[0].linear.bias[0] += 1e-6  # type: ignore[union-attr, index, operator]


CHANGES: dict[str, Callable[[Encoder], Any]] = {
    "one weight": change_weight,
    "one bias of a head": change_head,
    "pooling": lambda e: setattr(e.net, "pooling", ("cls",)),
    "normalize": lambda e: setattr(e.net, "normalize", False),
    "include_prompt": lambda e: setattr(e.net, "include_prompt", False),
    "a prompt's text": lambda e: e.prompts.update(query="query:"),
    "a prompt more": lambda e: e.prompts.update(passage="passage: "),
    "the default prompt": lambda e: setattr(e, "default_prompt", None),
    "the window": lambda e: setattr(e.tokens, "max_tokens", 63),
    "lower case": lambda e: setattr(e.tokens, "lower_case", True),
    "nfkc": lambda e: setattr(e.tokens, "nfkc", True),
    "the side that is cut": lambda e: setattr(e.tokens, "cut_left", True),
    "a token": lambda e: e.tokens.tokenizer.add_tokens(["支付宝"]),
    "the number of heads": lambda e: setattr(e.net.backbone.config, "num_attention_heads", 2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_fingerprint_changes_with(change: str, saved: Path) -> None:
    before, encoder = Encoder.load(saved).fingerprint, Encoder.load(saved)
    CHANGES[change](encoder)
    assert encoder.fingerprint != before
    assert len(before) == 32
    assert int(before, 16) >= 0


def test_fingerprint_does_not_depend_on_the_order_of_prompts_nor_on_the_name(saved: Path, tmp_path: Path) -> None:
    first, second = Encoder.load(saved), Encoder.load(saved)
    first.prompts.update(a="1", b="2")
    second.prompts.update(b="2", a="1")
    assert first.fingerprint == second.fingerprint
    shutil.copytree(saved, tmp_path / "renamed")
    assert Encoder.load(tmp_path / "renamed").fingerprint == Encoder.load(saved).fingerprint


def test_parts_are_plain_json(saved: Path) -> None:
    encoder = Encoder.load(saved)
    parts = parts_of(encoder.net, encoder.tokens, encoder.prompts, encoder.default_prompt)
    assert json.loads(json.dumps(parts, allow_nan=False)) == parts


# ---- tampering


def tamper_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.1.output.dense.weight"] *= -1
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def tamper_head(folder: Path) -> None:
    weights = load_file(folder / "2_Dense" / "model.safetensors")
    save_file({name: -value for name, value in weights.items()}, folder / "2_Dense" / "model.safetensors")


def tamper_pooling(folder: Path) -> None:
    edit_json(folder / "1_Pooling" / "config.json", pooling_mode_mean_tokens=False, pooling_mode_cls_token=True)


def tamper_activation(folder: Path) -> None:
    edit_json(folder / "2_Dense" / "config.json", activation_function="torch.nn.modules.linear.Identity")


def tamper_modules(folder: Path) -> None:
    kept = [module for module in json.loads((folder / "modules.json").read_text()) if not module["type"].endswith("Normalize")]
    (folder / "modules.json").write_text(json.dumps(kept))


def tamper_tokenizer(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(content))


def drop_head_from_golden(folder: Path) -> None:
    found = json.loads((folder / "twinvec.json").read_text())
    for row in found["golden"]:
        row["vector"] = row["vector"][:-1]
    (folder / "twinvec.json").write_text(json.dumps(found))


TAMPERINGS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a weight": (tamper_weights, r"golden text .* gives cosine .*changed since it was saved: weights"),
    "a head's weight": (tamper_head, r"changed since it was saved: weights"),
    "the pooling file": (tamper_pooling, r"changed since it was saved: pooling \(pooling: \['mean'\] in twinvec.json, \['cls'\]"),
    "the prompts": (
        lambda folder: edit_json(folder / "config_sentence_transformers.json", prompts={"query": "question: "}),
        r"changed since it was saved: prompts \(prompts: \{'query': 'query: '\} in twinvec.json, \{'query': 'question: '\}",
    ),
    "the default prompt": (lambda folder: edit_json(folder / "config_sentence_transformers.json", default_prompt_name=None), "saved: default_prompt"),
    "the window": (lambda folder: edit_json(folder / "sentence_bert_config.json", max_seq_length=20), r"saved: max_tokens .*64 in twinvec.json, 20"),
    "an activation": (tamper_activation, "saved: heads"),
    "a module left out": (tamper_modules, "saved: normalize"),
    "the tokenizer": (tamper_tokenizer, "saved: tokenizer"),
    "the number of heads": (lambda folder: edit_json(folder / "config.json", num_attention_heads=8), "saved: architecture"),
    "golden vectors of another size": (drop_head_from_golden, r"shape \(3, 15\), the model gives \(3, 16\)"),
    "golden rows without vectors": (lambda folder: edit_json(folder / "twinvec.json", golden=[{"text": "a"}]), "golden vectors cannot be read"),
}


@pytest.mark.parametrize("what", TAMPERINGS)
def test_a_changed_folder_is_refused(what: str, saved: Path) -> None:
    Encoder.load(saved)
    change, message = TAMPERINGS[what]
    change(saved)
    with pytest.raises(ModelError, match=message) as found:
        Encoder.load(saved)
    assert str(saved) in str(found.value)


def test_a_library_that_computes_something_else(saved: Path) -> None:
    """Every file as saved, other vectors: the message does not blame the files."""
    found = json.loads((saved / "twinvec.json").read_text())
    found["golden"][1]["vector"] = [-x for x in found["golden"][1]["vector"]]
    (saved / "twinvec.json").write_text(json.dumps(found))
    with pytest.raises(ModelError, match=r"its files are as saved, so the libraries compute something else.*transformers"):
        Encoder.load(saved)


def test_a_folder_without_golden_vectors_loads(saved: Path) -> None:
    edit_json(saved / "twinvec.json", golden=[])
    assert Encoder.load(saved).dimensions == 16
    (saved / "twinvec.json").unlink()
    assert Encoder.load(saved).dimensions == 16


# ---- precision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_on_disk_comes_up_as_float32(dtype: torch.dtype, bare_model: BareModel, tmp_path: Path) -> None:
    from transformers import AutoModel

    shutil.copytree(bare_model("bert"), tmp_path / "half")
    AutoModel.from_pretrained(bare_model("bert"), dtype=dtype).save_pretrained(tmp_path / "half")
    assert load_file(tmp_path / "half" / "model.safetensors")["embeddings.word_embeddings.weight"].dtype == dtype
    encoder = Encoder.load(tmp_path / "half", pooling="mean")
    assert {p.dtype for p in encoder.net.parameters()} == {torch.float32}
    full = Encoder.load(bare_model("bert"), pooling="mean").encode(TEXTS)
    assert 0 < np.abs(encoder.encode(TEXTS) - full).max() < 0.1
    resaved = Encoder.load(encoder.save(tmp_path / "resaved"))
    assert resaved.fingerprint == encoder.fingerprint
    assert load_file(tmp_path / "resaved" / "model.safetensors")["embeddings.word_embeddings.weight"].dtype == torch.float32


def test_bf16(saved: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(saved, precision="bf16")
    assert {p.dtype for p in encoder.net.parameters()} == {torch.bfloat16}
    found = encoder.encode_with_report(TEXTS)
    assert found.vectors.dtype == np.float32
    assert found.report.precision == "bf16"
    assert (found.vectors * Encoder.load(saved).encode(TEXTS)).sum(1).min() > 0.99
    np.testing.assert_allclose(np.linalg.norm(found.vectors, axis=1), 1, atol=1e-5)
    Encoder.load(encoder.save(tmp_path / "half"))


def test_options_of_load(saved: Path, bare_model: BareModel) -> None:
    with pytest.raises(UsageError, match=r"precision = 'fp32': choose one of float32, bf16, float16"):
        Encoder.load(saved, precision="fp32")
    with pytest.raises(UsageError, match=r"float16.*ten times slower"):
        Encoder.load(saved, precision="float16")
    with pytest.raises(UsageError, match=r"device = 'cdua'.*choose cpu or cuda"):
        Encoder.load(saved, device="cdua")
    with pytest.raises(UsageError, match=r"max_tokens = 65: this model's window is 1 to 64 tokens"):
        Encoder.load(saved, max_tokens=65)
    with pytest.raises(ModelError, match=r"a window of 2 tokens holds no text: 2 of them are special tokens"):
        Encoder.load(saved, max_tokens=2)
    with pytest.raises(UsageError, match=r"revision = 'main'.*a folder on this disk"):
        Encoder.load(saved, revision="main")
    with pytest.raises(ModelError, match=r"Dense head 0 wants vectors of 32, what comes before it gives 64"):
        Encoder.load(saved, pooling="cls+mean")
    assert Encoder.load(saved, max_tokens=10, pooling="cls").max_tokens == 10


def test_a_bare_folder_warns(bare_model: BareModel) -> None:
    with pytest.warns(TwinvecWarning, match=r"does not say how it pools: mean pooling is a guess.*--pooling"):
        assert Encoder.load(bare_model("bert")).net.pooling == ("mean",)
    with pytest.warns(TwinvecWarning, match=r"last_token pooling is a guess"):
        assert Encoder.load(bare_model("qwen2")).net.pooling == ("last_token",)


def test_loading_leaves_transformers_as_talkative_as_it_was(saved: Path) -> None:
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    Encoder.load(saved)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_repr_says_what_it_is(saved: Path) -> None:
    assert repr(Encoder.load(saved)).endswith("dimensions=16, max_tokens=64, pooling='mean', precision='float32')")


def test_the_precision_it_runs_in_is_no_part_of_the_fingerprint(bare_model: Callable[[str], Path], tmp_path: Path) -> None:
    encoder = Encoder.load(bare_model("bert"), pooling="mean")
    encoder.save(tmp_path / "m")
    assert Encoder.load(tmp_path / "m", precision="bf16").fingerprint == encoder.fingerprint
