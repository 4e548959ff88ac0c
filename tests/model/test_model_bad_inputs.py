"""Model folders and names that cannot be used, with the error each gives. `CASES` is the table of the documentation.

Each case: a name; how it is made, a function of a folder to work in and of a good model folder (a copy, free to be spoilt), that returns what is
given to `Encoder.load`; the error; and a pattern that its message must match.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from twinvec.errors import ModelError, TwinvecError, TwinvecWarning, UsageError
from twinvec.model.encoder import Encoder
from twinvec.model.heads import Dense
from twinvec.model.net import Net

torch.set_num_threads(1)
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:53aa5117\nsize 90868376\n"
HTML = "<!DOCTYPE html>\n<html><head><title>404</title></head></html>"
Make = Callable[[Path, Path], "str | Path"]


class Case(NamedTuple):
    name: str
    make: Make
    error: type[TwinvecError]
    message: str


def spoil(*steps: Callable[[Path], Any]) -> Make:
    """A case that changes the good folder."""

    def make(place: Path, good: Path) -> Path:
        for change in steps:
            change(good)
        return good

    return make


def write(name: str, content: str | bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def remove(*names: str) -> Callable[[Path], Any]:
    return lambda folder: [(folder / name).unlink() for name in names if (folder / name).exists()]


def cut(name: str, share: float) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])

    return change


def edit(name: str, **changes: Any) -> Callable[[Path], Any]:
    """Change keys of a JSON file; a value None takes the key away."""

    def change(folder: Path) -> None:
        found = {**json.loads((folder / name).read_text()), **changes}
        (folder / name).write_text(json.dumps({key: value for key, value in found.items() if value is not None}))

    return change


def module(index: int, **changes: Any) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        found = json.loads((folder / "modules.json").read_text())
        found[index].update(changes)
        (folder / "modules.json").write_text(json.dumps(found))

    return change


def modules(*kinds: str) -> Callable[[Path], Any]:
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "2_Dense", "Normalize": "3_Normalize"}
    found = [{"idx": i, "name": str(i), "path": paths.get(kind, "x"), "type": f"sentence_transformers.models.{kind}"} for i, kind in enumerate(kinds)]
    return write("modules.json", json.dumps(found))


def weights(change: Callable[[dict[str, torch.Tensor]], Any], name: str = "model.safetensors") -> Callable[[Path], Any]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / name)
        change(tensors)
        save_file(tensors, folder / name, {"format": "pt"})

    return apply


def to_bin(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def other_folder(place: Path, good: Path) -> Path:
    (place / "photos").mkdir()
    (place / "photos" / "beach.jpg").write_bytes(b"\xff\xd8")
    return place / "photos"


def nan(tensors: dict[str, torch.Tensor]) -> None:
    tensors["embeddings.LayerNorm.weight"].fill_(float("nan"))


def drop(prefix: str) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith(prefix)]


BARE = spoil(remove("modules.json", "twinvec.json"))
UNSIGNED = remove("twinvec.json")  # so that the case itself is met, not the golden vectors
CASES = [
    # names
    Case("a typo of minilm", lambda *_: "minlim", ModelError, r"no model 'minlim'.*did you mean 'minilm'\?"),
    Case("a name that is nothing", lambda *_: "bert", ModelError, r"no model 'bert': give 'minilm', a folder that exists, or a hub id such as"),
    Case("no name", lambda *_: "", ModelError, r"no model ''"),
    Case("a folder that does not exist", lambda place, _: place / "nowhere", ModelError, r"no model .*nowhere"),
    Case("a relative folder that does not exist", lambda *_: "./models/mine", ModelError, r"no model './models/mine'"),
    Case("an address", lambda *_: "https://huggingface.co/owner/name", ModelError, r"no model 'https:"),
    Case("a file instead of its folder", lambda _, good: good / "model.safetensors", ModelError, r"is a file; give the model's folder"),
    # what is in the folder
    Case("an empty folder", lambda place, _: place, ModelError, r"is no model folder: it has neither modules.json nor config.json \(it holds good\)"),
    Case("a folder of something else", other_folder, ModelError, r"neither modules.json nor config.json \(it holds beach.jpg\)"),
    Case("no config.json", spoil(remove("config.json")), ModelError, r"transformers cannot load this model"),
    Case("config.json cut short", spoil(cut("config.json", 0.5)), ModelError, r"transformers cannot load this model.*config.json"),
    Case("a config without model_type", spoil(edit("config.json", model_type=None)), ModelError, r"transformers cannot load this model"),
    Case("a config of an unknown family", spoil(edit("config.json", model_type="berd")), ModelError, r"transformers cannot load this model.*berd"),
    Case(
        "a config that wants code of its own",
        spoil(edit("config.json", model_type="berd", auto_map={"AutoConfig": "evil.Config", "AutoModel": "evil.Model"})),
        ModelError,
        r"the model wants to run code of its own; read that code, then load with trust_remote_code=True",
    ),
    Case(
        "a config of another size",
        spoil(edit("config.json", intermediate_size=64)),
        ModelError,
        r"6 weights do not fit config.json \(first: encoder.layer.0.intermediate.dense.bias is \(48,\) in the file, \(64,\) by config.json\)",
    ),
    # weights
    Case("no weights", spoil(remove("model.safetensors")), ModelError, r"no weights \(model.safetensors\) in the folder"),
    Case("pickled weights only", spoil(to_bin), ModelError, r"only pickled weights \(\*.bin\), which can run code when opened; convert"),
    Case("a Git LFS pointer", spoil(write("model.safetensors", LFS)), ModelError, r"model.safetensors is a Git LFS pointer.*git lfs pull"),
    Case(
        "a web page saved as weights", spoil(write("model.safetensors", HTML)), ModelError, r"holds a web page.*'<!DOCTYPE html>'.*download it again"
    ),
    Case("weights cut short", spoil(cut("model.safetensors", 0.7)), ModelError, r"the weights cannot be read .*damaged or cut short, fetch it again"),
    Case("weights of no length", spoil(write("model.safetensors", b"")), ModelError, r"the weights cannot be read"),
    Case("weights that are noise", spoil(write("model.safetensors", bytes(range(256)) * 9)), ModelError, r"the weights cannot be read"),
    Case("a layer missing", spoil(weights(drop("encoder.layer.1."))), ModelError, r"16 weights are not in the file \(first: encoder.layer.1.*random"),
    Case("weights of another architecture", spoil(edit("config.json", model_type="distilbert")), ModelError, r"weights are not in the file"),
    Case("weights that are NaN", spoil(weights(nan)), ModelError, r"golden texts cannot be encoded .*NaN.*fetch the model again"),
    Case("weights of another model", spoil(weights(lambda t: t["embeddings.word_embeddings.weight"].neg_())), ModelError, r"saved: weights"),
    # tokenizer
    Case("no tokenizer", spoil(remove("tokenizer.json", "tokenizer_config.json")), ModelError, r"the tokenizer has no vocabulary; tokenizer.json"),
    Case("no tokenizer.json", spoil(remove("tokenizer.json")), ModelError, r"the tokenizer (cannot be loaded|has no vocabulary).*tokenizer.json"),
    Case("tokenizer.json cut short", spoil(cut("tokenizer.json", 0.5)), ModelError, r"the tokenizer cannot be loaded"),
    Case("tokenizer.json is a pointer", spoil(write("tokenizer.json", LFS)), ModelError, r"the tokenizer cannot be loaded"),
    # modules and heads
    Case("modules.json is no JSON", spoil(write("modules.json", "[{")), ModelError, r"modules.json: cannot be read as JSON"),
    Case("modules.json is no list", spoil(write("modules.json", '{"a": 1}')), ModelError, r"modules.json: wanted a list of modules"),
    Case("an unknown module", spoil(modules("Transformer", "Pooling", "LSTM")), ModelError, r"module sentence_transformers.models.LSTM .*not known"),
    Case("a module of somebody's own", spoil(module(0, type="custom_st.Transformer")), ModelError, r"module custom_st.Transformer .*not known"),
    Case("a Dense head before pooling", spoil(modules("Transformer", "Dense", "Pooling")), ModelError, r"models.Dense at this place is not known"),
    Case("no pooling module", spoil(modules("Transformer")), ModelError, r"wanted a Transformer and a Pooling module, found"),
    Case("no transformer module", spoil(modules("Pooling")), ModelError, r"wanted a Transformer and a Pooling module, found"),
    Case("a module's folder is missing", spoil(module(1, path="9_Pooling")), ModelError, r"9_Pooling/config.json: this file of the model is missing"),
    Case(
        "an unknown pooling", spoil(write("1_Pooling/config.json", '{"pooling_mode": "attention"}')), ModelError, r"pooling_mode 'attention' is not"
    ),
    Case("no pooling is chosen", spoil(write("1_Pooling/config.json", "{}")), ModelError, r"no pooling mode is set; wanted one of"),
    Case("the pooling file is a list", spoil(write("1_Pooling/config.json", "[]")), ModelError, r"wanted a JSON object, found a list"),
    Case(
        "a Dense head of another size",
        spoil(UNSIGNED, edit("2_Dense/config.json", out_features=9)),
        ModelError,
        r"\(16, 32\).*config.json wants .*\(9, 32\)",
    ),
    Case(
        "a Dense head with a bias too many",
        spoil(UNSIGNED, edit("2_Dense/config.json", bias=False)),
        ModelError,
        r"'linear.bias': \(16,\).*its config.json wants",
    ),
    Case("a Dense head without sizes", spoil(edit("2_Dense/config.json", in_features=None)), ModelError, r"2_Dense/config.json: .*needs in_features"),
    Case(
        "a Dense head with an unknown activation", spoil(edit("2_Dense/config.json", activation_function="x.Y")), ModelError, r"= 'x.Y': choose one"
    ),
    Case(
        "a Dense head over tokens", spoil(edit("2_Dense/config.json", module_input_name="token_embeddings")), ModelError, r"over 'token_embeddings'"
    ),
    Case("a Dense head without weights", spoil(remove("2_Dense/model.safetensors")), ModelError, r"2_Dense: no weights"),
    Case("a Dense head cut short", spoil(cut("2_Dense/model.safetensors", 0.9)), ModelError, r"2_Dense/model.safetensors: cannot be read .*damaged"),
    Case("a Dense head that is a pointer", spoil(write("2_Dense/model.safetensors", LFS)), ModelError, r"2_Dense/model.safetensors is a Git LFS"),
    # settings
    Case("a default prompt that is none", spoil(edit("config_sentence_transformers.json", default_prompt_name="q")), ModelError, r"'q' is not among"),
    Case("a window that is no number", spoil(edit("sentence_bert_config.json", max_seq_length="long")), ModelError, r"max_seq_length = 'long'"),
    Case("a window of two", spoil(UNSIGNED, edit("sentence_bert_config.json", max_seq_length=2)), ModelError, r"a window of 2 tokens holds no text"),
    Case(
        "twinvec.json of a newer format",
        spoil(edit("twinvec.json", format=2)),
        ModelError,
        r"format 2 is newer than this twinvec knows \(1\); update",
    ),
    Case("twinvec.json without a format", spoil(edit("twinvec.json", format=None)), ModelError, r"format = None, wanted a number"),
    Case("twinvec.json is no JSON", spoil(write("twinvec.json", "{")), ModelError, r"twinvec.json: cannot be read as JSON"),
    Case("settings that are not UTF-8", spoil(write("config_sentence_transformers.json", b"\xff\xfe{")), ModelError, r"cannot be read as JSON"),
]


@pytest.fixture(scope="session")
def good_model(bare_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole twinvec folder: BERT, mean pooling, a Dense head, a Normalize head, a prompt."""
    encoder = Encoder.load(bare_model("bert"), pooling="mean")
    torch.manual_seed(0)
    net = Net(encoder.net.backbone, ["mean"], [Dense(32, 16)], normalize=True, pad_id=encoder.tokens.pad_id).eval()
    return Encoder(net, encoder.tokens, name="good", prompts={"query": "query: "}).save(tmp_path_factory.mktemp("good") / "model")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_model(case: Case, good_model: Path, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    good = Path(shutil.copytree(good_model, tmp_path / "good"))
    given = case.make(tmp_path, good)
    with pytest.raises(case.error, match=case.message) as found:
        Encoder.load(given)
    message = str(found.value)
    record_property("message", message)
    assert "\n" not in message
    assert len(message) < 900
    if isinstance(given, Path):
        assert str(given.name) in message  # what came is named


def test_there_are_enough_cases_and_each_has_its_name() -> None:
    assert len(CASES) >= 20
    assert len({case.name for case in CASES}) == len(CASES)


def test_the_good_model_is_good(good_model: Path) -> None:
    assert Encoder.load(good_model).encode("a man").shape == (1, 16)


OFFLINE = """
import warnings
from twinvec.errors import ModelError
from twinvec.model.encoder import Encoder
for name in ("nobody/no-such-model", "owner/na me"):
    try:
        Encoder.load(name)
    except ModelError as err:
        print(err)
"""


def test_a_hub_id_without_a_network(tmp_path: Path) -> None:
    """Offline, by the hub client's own switch: a message at once, no traceback, nothing hanging."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", OFFLINE], capture_output=True, text=True, env=env, timeout=60)
    first, second = found.stdout.strip().splitlines()
    assert "nobody/no-such-model: not a folder here, and it could not be fetched from the hub" in first
    assert "Check the name and the connection, or give a folder that holds the model" in first
    assert "'owner/na me' is neither a folder nor a hub id" in second


def test_an_owner_that_is_a_folder_here_is_never_asked_for_at_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"no model 'runs/best'"):
        Encoder.load("runs/best")


def test_a_bare_folder_is_a_guess_and_says_so(good_model: Path, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(good_model, tmp_path / "bare"))
    BARE(tmp_path, bare)
    assert Encoder.load(bare).net.pooling == ("mean",)  # 1_Pooling still says it
    shutil.rmtree(bare / "1_Pooling")
    with pytest.warns(TwinvecWarning, match="pooling is a guess"):
        Encoder.load(bare)


def test_wrong_options_are_usage_errors(good_model: Path) -> None:
    """What is wrong with the call, not with the model, has exit status 2."""
    for options in ({"max_tokens": 0}, {"max_tokens": 1000}, {"pooling": "meen"}, {"precision": "int4"}, {"device": "tpu9"}, {"revision": "v1"}):
        with pytest.raises(UsageError, match=next(iter(options))):
            Encoder.load(good_model, **options)  # type: ignore[arg-type]
