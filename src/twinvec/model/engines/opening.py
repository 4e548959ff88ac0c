"""From the folder of an export to an `Encoder`. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from twinvec.errors import EncodeError, ModelError, UsageError
from twinvec.model.encoder import Encoder
from twinvec.model.engines import EXPORTED
from twinvec.model.engines.after import Head
from twinvec.model.engines.choice import Choice
from twinvec.model.engines.exported import ExportedEngine, Runtime
from twinvec.model.engines.manifest import LEAST_COSINE, NAME, Manifest, export_folder, missing_export
from twinvec.model.layout import parse_pooling
from twinvec.model.plain_tokens import open_tokens
from twinvec.model.resolve import first_line
from twinvec.model.threads import default_threads

HEADS, TOKENIZER = "heads.safetensors", "tokenizer.json"


def load_exported(name: str | Path, model: Path, choice: Choice, *, pooling: str | None, max_tokens: int | None) -> Encoder:
    """The export of `model` that `choice` names, checked against its own record and against the model that it was made of."""
    if choice.precision not in LEAST_COSINE:
        known = ", ".join(LEAST_COSINE)
        raise UsageError(f"precision = {choice.precision!r}: the engine {choice.engine!r} computes in {known}; for others use engine='torch'")
    folder = export_folder(choice.exports or model, choice.engine, choice.precision)
    if not (folder / NAME).is_file():
        raise missing_export(str(name), choice.engine, choice.precision, model)
    manifest = Manifest.read(folder)
    if (manifest.engine, manifest.precision) != (choice.engine, choice.precision):
        raise ModelError(
            f"{folder / NAME}: says {manifest.engine} {manifest.precision}, which is not what its folder is named; export the model again"
        )
    manifest.check_files(folder)
    manifest.check_sources(model, folder)
    encoder = open_export(folder, manifest, name=str(name), threads=choice.threads, budget=choice.batch_tokens)
    encoder.source = choice.exports or model
    check_golden(encoder, folder, manifest)
    if pooling is not None:
        engine = encoder.engine
        assert isinstance(engine, ExportedEngine)
        engine.set_pooling(parse_pooling(pooling))
    if max_tokens is not None:
        window = encoder.max_tokens
        if not 0 < max_tokens <= window:
            raise UsageError(f"max_tokens = {max_tokens}: this model's window is 1 to {window} tokens")
        encoder.tokens = open_tokens(folder / TOKENIZER, manifest.tokens, max_tokens)
    return encoder


def open_export(folder: Path, manifest: Manifest, *, name: str, threads: int | None = None, budget: int | None = None) -> Encoder:
    """An encoder over the files of an export; nothing is checked."""
    count = threads or default_threads()
    parts, tokens = manifest.parts, open_tokens(folder / TOKENIZER, manifest.tokens, int(manifest.tokens["max_tokens"]))
    engine = ExportedEngine(
        manifest.engine, manifest.precision, count, _opener(folder, manifest, count), parts=parts, heads=_heads(folder, parts["heads"]),
        width=manifest.width, vocabulary=int(manifest.runtime["vocabulary"]), positions=int(manifest.runtime["positions"]), budget=budget,
        mixes_lengths=bool(manifest.runtime.get("mixes_lengths", True)),
    )  # fmt: skip
    return Encoder(engine, tokens, name=name, prompts=parts["prompts"], default_prompt=parts["default_prompt"])


def _opener(folder: Path, manifest: Manifest, threads: int) -> Callable[[], Runtime]:
    if manifest.engine not in EXPORTED:
        raise ModelError(f"{folder / NAME}: engine {manifest.engine!r} is not known here; update twinvec")
    place = folder.absolute()  # a later fork may stand in another working folder

    def make() -> Runtime:
        if manifest.engine == "ctranslate2":
            from twinvec.model.engines.ctranslate2_engine import CTranslate2Runtime

            return CTranslate2Runtime(place, manifest.precision, threads, manifest.runtime)
        from twinvec.model.engines.onnx_engine import OnnxRuntime

        return OnnxRuntime(place, manifest.precision, threads, manifest.runtime)

    return make


def _heads(folder: Path, configs: list[dict[str, Any]]) -> list[Head]:
    if not configs:
        return []
    from safetensors.numpy import load_file

    try:
        found = load_file(folder / HEADS)
        each = [{key.partition(".")[2]: value for key, value in found.items() if key.startswith(f"{i}.")} for i in range(len(configs))]
        return [Head.of(config, arrays) for config, arrays in zip(configs, each, strict=True)]
    except (OSError, KeyError, ValueError) as err:
        raise ModelError(f"{folder / HEADS}: cannot be read ({first_line(err)}); export the model again") from err


def check_golden(encoder: Encoder, folder: Path, manifest: Manifest) -> None:
    """The golden texts must give here what torch in float32 gave; ModelError otherwise."""
    texts = [str(row["text"]) for row in manifest.golden]
    try:
        cosine = manifest.golden_cosine(encoder.encode(texts, prompt=""))
    except EncodeError as err:
        raise ModelError(f"{folder}: its golden texts cannot be encoded ({err}); export the model again") from err
    if not cosine >= LEAST_COSINE[manifest.precision]:
        raise ModelError(
            f"{folder}: its golden texts give cosine {cosine:.5f} to the vectors of torch in float32, wanted {LEAST_COSINE[manifest.precision]} or "
            f"more; when it was exported it was {manifest.least_cosine:.5f} (with {manifest.versions}). Export the model again on this machine"
        )
