"""Engines other than torch: the same vectors, the same report and the same fingerprint, for every family that they can compute."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tiny_models import FAMILIES, TEXTS
from twinvec.errors import EncodeError, ModelError, TwinvecWarning, UsageError
from twinvec.model.encoder import Encoder
from twinvec.model.engines import after
from twinvec.model.engines.chunking import batches
from twinvec.model.engines.export import export
from twinvec.model.engines.manifest import LEAST_COSINE, NAME, Manifest, export_folder, least_cosine
from twinvec.model.engines.profile import Profile
from twinvec.model.heads import ACTIVATIONS, Dense
from twinvec.model.machine import cpu_model, describe_machine
from twinvec.model.net import Net
from twinvec.model.pooling import POOLINGS, pool

torch.set_num_threads(1)
CT2 = ("bert", "roberta", "xlm-roberta", "mpnet", "distilbert")
ALL = "+".join(POOLINGS)
ODD = [*TEXTS, "🙂🙃 ﬁ e\u0301 é", "a\u200bb", "lone \ud800 surrogate", "ＡＢＣ１２３", "x" * 4000, "мир 世界 שלום", "[SEP] </s> <pad>x"]


def needs(engine: str) -> None:
    pytest.importorskip({"ctranslate2": "ctranslate2", "onnx": "onnxruntime"}[engine])


@pytest.fixture(scope="module")
def model(bare_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """model("bert"): a model folder with all poolings, two prompts that pooling leaves out, and no Normalize. Exports are kept in it."""
    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            encoder = Encoder.load(bare_model(family), pooling=ALL)
            encoder.prompts = {"query": "the cat sat ", "passage": "a "}
            encoder.net.include_prompt = False
            made[family] = encoder.save(tmp_path_factory.mktemp("engines") / family)
        return made[family]

    return get


def exported(folder: Path, engine: str, precision: str = "float32") -> Encoder:
    needs(engine)
    if not export_folder(folder, engine, precision).is_dir():
        export(folder, engine=engine, precision=precision)
    return Encoder.load(folder, engine=engine, precision=precision)


SERVED = [("ctranslate2", family) for family in CT2] + [("onnx", family) for family in FAMILIES]


@pytest.mark.parametrize(("engine", "family"), SERVED)
def test_as_torch(engine: str, family: str, model: Callable[[str], Path]) -> None:
    """Every pooling, prompts left out of it, empty and odd texts; alone, shuffled and split."""
    ours, theirs = exported(model(family), engine), Encoder.load(model(family))
    assert (ours.engine.name, ours.precision, ours.dimensions, ours.max_tokens) == (engine, "float32", theirs.dimensions, theirs.max_tokens)
    assert ours.fingerprint == theirs.fingerprint
    assert ours.prompts == theirs.prompts
    texts = [text for text in ODD if "<pad>" not in text or engine == "onnx"]
    for prompt in ("", "query"):
        found, wanted = ours.encode_with_report(texts, prompt=prompt), theirs.encode_with_report(texts, prompt=prompt)
        np.testing.assert_allclose(found.vectors, wanted.vectors, atol=2e-5)
        same = ("rows", "tokens", "truncated", "truncated_tokens", "longest", "empty", "unknown_rate", "prompt", "dimensions")
        assert all(getattr(found.report, name) == getattr(wanted.report, name) for name in same)
        assert (found.report.engine, found.report.precision) == (engine, "float32")
    np.testing.assert_allclose(np.concatenate([ours.encode(text) for text in texts]), ours.encode(texts), atol=1e-5)
    np.testing.assert_allclose(ours.encode(texts[::-1], batch_tokens=1)[::-1], ours.encode(texts), atol=1e-5)
    np.testing.assert_allclose(ours.encode(ODD[4:5], on_long="split"), theirs.encode(ODD[4:5], on_long="split"), atol=2e-5)


@pytest.mark.parametrize(("engine", "family"), [("ctranslate2", "bert"), ("ctranslate2", "mpnet"), ("onnx", "xlm-roberta"), ("onnx", "qwen2")])
def test_int8(engine: str, family: str, model: Callable[[str], Path]) -> None:
    ours, theirs = exported(model(family), engine, "int8"), Encoder.load(model(family))
    found, wanted = ours.encode(TEXTS), theirs.encode(TEXTS)
    assert least_cosine(found.astype(float), wanted.astype(float)) > 0.99
    assert np.abs(found - wanted).max() > 1e-3  # it is another arithmetic
    assert ours.fingerprint == theirs.fingerprint  # yet it searches what torch has stored
    np.testing.assert_allclose(np.concatenate([ours.encode(text) for text in TEXTS]), found, atol=1e-5)  # each token has its own scale


def test_an_empty_row_and_a_row_of_one_token(model: Callable[[str], Path]) -> None:
    ours, theirs = exported(model("bert"), "ctranslate2"), Encoder.load(model("bert"))
    rows: list[list[int]] = [[], [7], [], [5, 6, 7]]
    seen: list[int] = []
    found = ours.engine.forward(rows, 0, None, seen.extend)
    np.testing.assert_allclose(found, theirs.engine.forward(rows, 0, None, lambda _: None), atol=1e-5)
    assert not found[[0, 2]].any()
    assert sorted(seen) == [0, 1, 2, 3]
    assert ours.encode([]).shape == (0, theirs.dimensions)


def test_heads_and_normalisation(bare_model: Callable[[str], Path], tmp_path: Path) -> None:
    encoder = Encoder.load(bare_model("bert"), pooling="cls+mean")
    torch.manual_seed(0)
    heads = [Dense(64, 24, residual=True), Dense(24, 24, activation="torch.nn.modules.activation.GELU", residual=True), Dense(24, 8, bias=False)]
    net = Net(encoder.net.backbone, ["cls", "mean"], heads, normalize=True, pad_id=encoder.tokens.pad_id).eval()
    folder = Encoder(net, encoder.tokens, name="x").save(tmp_path / "m")
    ours = exported(folder, "ctranslate2")
    assert (ours.dimensions, ours.normalizes) == (8, True)
    np.testing.assert_allclose(ours.encode(TEXTS), Encoder.load(folder).encode(TEXTS), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(ours.encode(TEXTS), axis=1), 1, atol=1e-6)
    with pytest.raises(ModelError, match="Dense head 0 wants vectors of 64, this gives 32"):
        Encoder.load(folder, engine="ctranslate2", pooling="mean")


def test_pooling_and_window_can_be_chosen(model: Callable[[str], Path]) -> None:
    folder = model("bert")
    exported(folder, "ctranslate2")
    for options in ({"pooling": "cls"}, {"max_tokens": 8}, {"pooling": "last_token+max", "max_tokens": 12}):
        ours, theirs = Encoder.load(folder, engine="ctranslate2", **options), Encoder.load(folder, **options)  # type: ignore[arg-type]
        np.testing.assert_allclose(ours.encode(TEXTS), theirs.encode(TEXTS), atol=1e-5)
        assert ours.fingerprint == theirs.fingerprint
    with pytest.raises(UsageError, match="max_tokens = 65: this model's window is 1 to 64"):
        Encoder.load(folder, engine="ctranslate2", max_tokens=65)


def test_what_an_exported_model_cannot_do(model: Callable[[str], Path], tmp_path: Path) -> None:
    ours = exported(model("bert"), "ctranslate2")
    with pytest.raises(UsageError, match=r"runs on the engine 'ctranslate2', which cannot be trained, saved or taken apart.*engine='torch'"):
        ours.net  # noqa: B018
    with pytest.raises(UsageError, match="engine='torch'"):
        ours.save(tmp_path / "x")
    assert "engine='ctranslate2'" in repr(ours)


# ---- numpy against torch


@pytest.mark.parametrize("mode", POOLINGS)
@pytest.mark.parametrize("skip", [0, 2, 5])
def test_numpy_pooling_is_torch_pooling(mode: str, skip: int) -> None:
    generator = np.random.default_rng(0)
    states = generator.standard_normal((5, 7, 6), dtype=np.float32) - 3  # all below zero: a padded zero would win a maximum
    lengths = np.array([7, 1, 3, 2, 5])
    mask = torch.arange(7)[None] < torch.tensor(lengths)[:, None]
    wanted = pool(torch.tensor(states), mask, [mode], skip).numpy()
    found = after.pool(states, lengths, [mode], skip)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert found.dtype == np.float32
    whole = np.full(5, 7)
    np.testing.assert_allclose(after.pool(states, whole, [mode], skip), pool(torch.tensor(states), torch.ones(5, 7).bool(), [mode], skip), atol=1e-5)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_numpy_activations_are_torchs(name: str) -> None:
    x = np.linspace(-90, 90, 181, dtype=np.float32)
    np.testing.assert_allclose(after.ACTIVATIONS[name](x), ACTIVATIONS[name]()(torch.tensor(x)).numpy(), atol=1e-5)


def test_unit_rows_of_zeros_stay_zeros() -> None:
    np.testing.assert_array_equal(after.unit_rows(np.zeros((2, 3), np.float32)), np.zeros((2, 3)))


def test_batches_hold_every_row_once_within_the_budget() -> None:
    lengths = np.random.default_rng(0).integers(0, 60, 500).tolist()
    for budget in (1, 100, 1000):
        for padding in (0.0, 0.1, 1.0):
            made = batches(lengths, budget, padding)
            assert sorted(i for batch in made for i in batch) == [i for i, length in enumerate(lengths) if length]
            for batch in made:
                longest = max(lengths[i] for i in batch)
                assert len(batch) == 1 or longest * len(batch) <= budget
                assert padding or len({lengths[i] for i in batch}) == 1
    assert batches([], 10) == []
    assert batches([0, 0], 10) == []


def test_least_cosine() -> None:
    one = np.array([[1.0, 0.0], [0.0, 0.0]])
    assert least_cosine(one, one) == 1
    assert least_cosine(one, np.array([[1.0, 0.0], [0.0, 1.0]])) == 0
    assert least_cosine(one, np.array([[np.nan, 0.0], [0.0, 0.0]])) == -1
    assert least_cosine(one, one[:1]) == -1


# ---- threads, forks, processes


def test_from_several_threads_at_once(model: Callable[[str], Path]) -> None:
    exported(model("bert"), "ctranslate2")
    ours = Encoder.load(model("bert"), engine="ctranslate2", threads=3)
    assert ours.threads == 3
    wanted = ours.encode(ODD)
    found: list[Any] = [None] * 4

    def work(i: int) -> None:
        found[i] = ours.encode(ODD[::-1], batch_tokens=30)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for vectors in found:
        np.testing.assert_allclose(vectors[::-1], wanted, atol=1e-5)


def _in_child(encoder: Encoder, queue: Any) -> None:
    queue.put(encoder.encode(TEXTS, batch_tokens=20))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("engine", ["ctranslate2", "onnx"])
def test_after_a_fork(engine: str, model: Callable[[str], Path]) -> None:
    """The threads of the runtime do not exist in the child; it makes its own instead of waiting for them."""
    exported(model("bert"), engine)
    ours = Encoder.load(model("bert"), engine=engine, threads=2)
    wanted = ours.encode(TEXTS, batch_tokens=20)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(ours, queue))
    child.start()
    np.testing.assert_allclose(queue.get(timeout=30), wanted, atol=1e-6)
    child.join(30)
    assert child.exitcode == 0
    np.testing.assert_allclose(ours.encode(TEXTS), wanted, atol=1e-5)


TORCH_FORK = """
import os, signal, sys
import numpy as np, torch
torch.set_num_threads(2)
from twinvec.model.encoder import Encoder
encoder = Encoder.load(sys.argv[1])
texts = [f"the cat sat on {i} mats and looked at the dog" for i in range(300)]
wanted = encoder.encode(texts)
child = os.fork()
if not child:
    signal.alarm(60)
    os._exit(0 if np.abs(encoder.encode(texts) - wanted).max() < 1e-5 and encoder.threads == 1 else 1)
sys.exit(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_torch_after_a_fork(model: Callable[[str], Path]) -> None:
    """OpenMP's threads are the parent's; a child that counted on them waited for ever."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "2"}
    found = subprocess.run([sys.executable, "-c", TORCH_FORK, str(model("bert"))], capture_output=True, text=True, env=env)
    assert found.returncode == 0, found.stderr


NO_TORCH = """
import os, sys
before = dict(os.environ)
from twinvec.cli.main import app
try:
    app(sys.argv[1:])
except SystemExit as stop:
    assert not stop.code, stop.code
found = {"torch", "transformers"} & set(sys.modules)
assert not found, found
assert dict(os.environ) == before
"""


@pytest.mark.parametrize("engine", ["ctranslate2", "onnx"])
def test_no_torch_is_loaded(engine: str, model: Callable[[str], Path], tmp_path: Path) -> None:
    exported(model("bert"), engine)
    (tmp_path / "texts.txt").write_text("the cat sat\nwhere is my refund\n", encoding="utf-8")
    arguments = ["encode", str(model("bert")), str(tmp_path / "texts.txt"), "-o", str(tmp_path / "out.npy"), "--engine", engine, "--json"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", NO_TORCH, *arguments], capture_output=True, text=True, env=env)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["engine"] == engine
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), Encoder.load(model("bert")).encode(["the cat sat", "where is my refund"]), atol=1e-5)


# ---- vectors that are not finite


def test_not_finite_is_encoded_again_in_float32(model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and only the rows that need it; float32 itself has no second chance."""
    needs("ctranslate2")
    for precision in ("int8", "float32"):
        ours = exported(model("bert"), "ctranslate2", precision)
        forward = ours.engine.forward

        def spoilt(rows: Any, *more: Any, forward: Any = forward) -> Any:
            out = forward(rows, *more)
            out[[i for i, row in enumerate(rows) if len(row) == 5]] = np.nan
            return out

        monkeypatch.setattr(ours.engine, "forward", spoilt)
        torchs = Encoder.load(model("bert"))
        bad = [i for i, tokens in enumerate(torchs.count_tokens(TEXTS)) if tokens == 5]
        assert bad
        if precision == "float32":
            with pytest.raises(EncodeError, match=rf"{len(bad)} of {len(TEXTS)} rows came out as NaN or infinity \(rows, from 0: {bad[0]}"):
                ours.encode(TEXTS)
            continue
        with pytest.warns(TwinvecWarning, match="gave NaN or infinity in int8 and were encoded again in float32"):
            found = ours.encode(TEXTS)
        np.testing.assert_allclose(found[bad], torchs.encode(TEXTS)[bad], atol=1e-6)


# ---- exports


def test_export_leaves_a_whole_model(model: Callable[[str], Path], tmp_path: Path) -> None:
    needs("ctranslate2")
    made = export(model("bert"), engine="ctranslate2", precision="int8", output=tmp_path / "copy")
    shutil.copytree(tmp_path / "copy", tmp_path / "moved")  # other times of change: believed by content
    ours, theirs = Encoder.load(tmp_path / "moved", engine="ctranslate2", precision="int8"), Encoder.load(tmp_path / "moved")
    assert ours.fingerprint == theirs.fingerprint == made.fingerprint == Encoder.load(model("bert")).fingerprint
    assert made.least_cosine >= LEAST_COSINE["int8"]
    assert {"torch", "ctranslate2", "twinvec"} <= set(made.versions)
    with pytest.raises(UsageError, match=r"copy exists already.*--force"):
        export(model("bert"), engine="ctranslate2", output=tmp_path / "copy")


def test_quality_is_measured_and_a_loss_refused(model: Callable[[str], Path], tmp_path: Path) -> None:
    needs("ctranslate2")
    folder = Path(shutil.copytree(model("bert"), tmp_path / "m", ignore=shutil.ignore_patterns("engines")))
    scores = {"torch": 80.0, "ctranslate2": 79.0}
    before = sorted(folder.rglob("*"))
    with pytest.raises(ModelError, match=r"not exported: on your data ctranslate2 in int8 scores 79.00, torch in float32 80.00: a loss of 1.00"):
        export(folder, engine="ctranslate2", precision="int8", measure=lambda encoder: scores[encoder.engine.name])
    assert sorted(folder.rglob("*")) == before
    made = export(folder, engine="ctranslate2", precision="int8", measure=lambda encoder: scores[encoder.engine.name], max_loss=1.0)
    assert made.quality == {"before": 80.0, "after": 79.0, "max_loss": 1.0}


def test_a_bad_export_is_refused_and_leaves_nothing(model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("ctranslate2")
    folder = Path(shutil.copytree(model("bert"), tmp_path / "m", ignore=shutil.ignore_patterns("engines")))
    before = sorted(folder.rglob("*"))
    monkeypatch.setitem(LEAST_COSINE, "float32", 1.1)
    with pytest.raises(ModelError, match=r"not exported: ctranslate2 in float32 gives cosine 1.00000 to torch in float32.*wanted 1.1"):
        export(folder, engine="ctranslate2")
    assert sorted(folder.rglob("*")) == before
    with pytest.raises(ModelError, match="not exported"):
        export(folder, engine="ctranslate2", output=tmp_path / "other")
    assert not (tmp_path / "other").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_second_export_replaces_the_first(model: Callable[[str], Path], tmp_path: Path) -> None:
    needs("ctranslate2")
    folder = Path(shutil.copytree(model("bert"), tmp_path / "m", ignore=shutil.ignore_patterns("engines")))
    export(folder, engine="ctranslate2")
    encoder = Encoder.load(folder)
    encoder.prompts = {"query": "x "}
    assert not (encoder.save(folder) / "engines").exists()  # a model saved anew has no exports of the old one
    export(folder, engine="ctranslate2")
    export(folder, engine="ctranslate2")
    assert Encoder.load(folder, engine="ctranslate2").prompts == {"query": "x "}


# ---- profiles


def profile(folder: Path, **changes: Any) -> Path:
    made = {"model": "x", "machine": describe_machine(), "engine": "ctranslate2", "precision": "int8", "threads": 1, "batch_tokens": 512, **changes}
    Profile(**made).write(folder / "profile.json")
    return folder / "profile.json"


def test_auto_follows_a_profile_of_this_machine_only(model: Callable[[str], Path], tmp_path: Path) -> None:
    needs("ctranslate2")
    folder = Path(shutil.copytree(model("bert"), tmp_path / "m"))
    export(folder, engine="ctranslate2", precision="int8")

    def what(**options: Any) -> tuple[str, str]:
        found = Encoder.load(folder, **options)
        return found.engine.name, found.precision

    assert what(engine="auto") == ("torch", "float32")
    given = profile(folder)
    assert what(engine="auto") == ("ctranslate2", "int8")
    assert what(engine="auto", precision="float32") == ("torch", "float32")  # what is asked for comes first
    assert what(engine="torch") == ("torch", "float32")
    assert what() == ("torch", "float32")  # training loads so
    assert Encoder.load(folder, engine="auto").engine.budget == 512  # type: ignore[attr-defined]
    profile(folder, machine={**describe_machine(), "cpu": "Another 9000"})
    with pytest.warns(TwinvecWarning, match=r"made on another machine \(cpu 'Another 9000' there.*not used, torch computes in float32"):
        assert what(engine="auto") == ("torch", "float32")
    given.rename(tmp_path / "p.json")
    profile(tmp_path)
    assert what(engine="auto", profile=tmp_path / "profile.json") == ("ctranslate2", "int8")


def test_the_processor_has_a_name(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: Some  CPU 1\n")
    assert cpu_model(tmp_path / "cpuinfo") == "Some CPU 1"
    assert cpu_model(tmp_path / "nothing")


def test_a_manifest_survives_a_round_trip(model: Callable[[str], Path]) -> None:
    exported(model("bert"), "ctranslate2")
    place = export_folder(model("bert"), "ctranslate2", "float32")
    first = Manifest.read(place)
    assert first.files.keys() >= {"model.bin", "tokenizer.json"}
    assert (place / NAME).is_file()
    assert first.golden[0]["text"] == "A man is playing a guitar."
