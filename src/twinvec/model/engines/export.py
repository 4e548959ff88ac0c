"""Making an export: write, measure, and keep it only when it is good."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from twinvec import __version__
from twinvec.errors import EncodeError, ModelError, UsageError, choose
from twinvec.files import atomic_folder, sha256_file, write_text
from twinvec.model.encoder import Encoder
from twinvec.model.engines import EXPORTED
from twinvec.model.engines.manifest import LEAST_COSINE, MAX_LOSS, Manifest, describe_sources, export_folder, exports_of, source_files
from twinvec.model.engines.opening import HEADS, TOKENIZER, open_export
from twinvec.model.fingerprint import GOLDEN_TEXTS, fingerprint_of
from twinvec.model.machine import describe_machine
from twinvec.model.plain_tokens import describe_tokens

Measure = Callable[[Encoder], float]
"""Quality of an encoder on the user's data, from 0 to 100."""

LIBRARIES = {"ctranslate2": ("ctranslate2",), "onnx": ("onnx", "onnxruntime")}


def export(
    name: str | Path, *, engine: str, precision: str = "float32", output: Path | None = None, force: bool = False, revision: str | None = None,
    measure: Measure | None = None, max_loss: float = MAX_LOSS,
) -> Manifest:  # fmt: skip
    """Export a model for an engine, beside the model or (output) with a copy of it in a new folder.

    Checked on the golden texts, and with `measure` on the user's data, against torch in float32; ModelError says what was too bad, and nothing is
    left behind. UsageError for what the engine cannot compute, and where the model's own folder is none to write into and no output was given.
    """
    choose("engine", engine, EXPORTED)
    choose("precision", precision, LEAST_COSINE)
    require(engine)
    reference = Encoder.load(name, engine="torch", device="cpu", revision=revision)
    assert reference.source is not None
    target = output or reference.source
    if output is None and Path(name).expanduser() != reference.source:
        raise UsageError(f"{name} is no folder of yours to write into; give --output FOLDER for a copy of the model with its export")
    if output is not None and output.exists() and not force:
        raise UsageError(f"--output {output} exists already; give another name, --force to replace it, or {output} as the model to export beside it")
    with _place(reference.source, target, engine, precision, copy=output is not None) as (model, place):
        return _make(reference, model, place, engine, precision, measure, max_loss)


def require(engine: str) -> None:
    """UsageError when what an export for `engine` needs is not installed."""
    from twinvec.model.engines import ctranslate2_engine, onnx_engine

    if engine == "ctranslate2":
        ctranslate2_engine.library()
    elif engine == "onnx":
        from twinvec.model.engines.onnx_graph import needs

        onnx_engine.library()
        needs("onnx")


@contextmanager
def _place(source: Path, target: Path, engine: str, precision: str, *, copy: bool) -> Iterator[tuple[Path, Path]]:
    """(model folder, empty folder for the export); both become what they are called when the block ends well, and vanish when it does not."""
    if copy:
        with atomic_folder(target, replace=True) as model:
            copy_model(source, model)
            place = export_folder(model, engine, precision)
            place.mkdir(parents=True)
            yield model, place
        return
    before = exports_of(target).exists()
    try:
        with atomic_folder(export_folder(target, engine, precision), replace=True) as place:
            yield target, place
    except BaseException:
        if not before and exports_of(target).is_dir() and not any(exports_of(target).iterdir()):
            exports_of(target).rmdir()
        raise


def copy_model(source: Path, target: Path) -> None:
    """The files of a model, byte for byte, with its twinvec.json; no exports and no other files."""
    files = source_files(source)
    if (source / "twinvec.json").is_file():
        files["twinvec.json"] = source / "twinvec.json"
    for name, path in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / name)


def _make(reference: Encoder, model: Path, place: Path, engine: str, precision: str, measure: Measure | None, max_loss: float) -> Manifest:
    texts = golden_texts(reference)
    wanted = reference.encode(texts, prompt="")
    manifest = _write(reference, model, place, engine, precision)
    golden = [{"text": text, "vector": [float(f"{x:.7g}") for x in row]} for text, row in zip(texts, wanted.tolist(), strict=True)]
    manifest = replace(manifest, golden=golden)
    made = open_export(place, manifest, name=reference.name)
    made.source = reference.source
    try:
        cosine = manifest.golden_cosine(made.encode(texts, prompt=""))
    except EncodeError as err:
        raise ModelError(f"not exported: {engine} in {precision} cannot encode the golden texts ({err})") from err
    least = LEAST_COSINE[precision]
    if not cosine >= least:
        raise ModelError(
            f"not exported: {engine} in {precision} gives cosine {cosine:.5f} to torch in float32 on the golden texts, wanted {least} or more; "
            "take --precision float32, or the engine torch"
        )
    quality = _quality(reference, made, measure, max_loss, f"{engine} in {precision}")
    manifest = replace(manifest, least_cosine=round(cosine, 6), quality=quality)
    manifest.write(place)
    return manifest


def golden_texts(encoder: Encoder) -> list[str]:
    """The three of the fingerprint, a single token, and one that fills the window."""
    long = " ".join(GOLDEN_TEXTS) + " "
    times = encoder.max_tokens // max(encoder.count_tokens(long)[0] - 2, 1) + 1
    return [*GOLDEN_TEXTS, "a", (long * min(times, 64)).strip()]


def _quality(reference: Encoder, made: Encoder, measure: Measure | None, max_loss: float, what: str) -> dict[str, Any] | None:
    if measure is None:
        return None
    before, after = measure(reference), measure(made)
    if not before - after <= max_loss:
        raise ModelError(
            f"not exported: on your data {what} scores {after:.2f}, torch in float32 {before:.2f}: a loss of {before - after:.2f} points, "
            f"{max_loss} allowed; take --precision float32, or accept it with --max-loss {max(before - after, 0):.1f}"
        )
    return {"before": round(before, 4), "after": round(after, 4), "max_loss": max_loss}


def _write(reference: Encoder, model: Path, place: Path, engine: str, precision: str) -> Manifest:
    """The files of the export, and its record without golden texts."""
    from safetensors.numpy import save_file

    from twinvec.model.adapters import merged

    net, tokens = reference.net, reference.tokens
    backend = getattr(tokens.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UsageError(f"{engine} cannot serve this model: its tokenizer has no tokenizer.json; use the engine torch, which can")
    write_text(place / TOKENIZER, backend.to_str())
    with merged(net):
        parts = reference.engine.parts(tokens, reference.prompts, reference.default_prompt)
        if engine == "ctranslate2":
            from twinvec.model.engines import ctranslate2_spec

            settings = ctranslate2_spec.write_model(net.backbone, place, precision)
        else:
            from twinvec.model.engines import onnx_graph

            settings = onnx_graph.write_model(net.backbone, place, precision, tokens.max_tokens)
    settings["mixes_lengths"] = net.packed is not None or not _leaks(reference)
    arrays = {f"{i}.{key}": value.numpy().copy() for i, head in enumerate(net.heads) for key, value in head.state_dict().items()}
    if arrays:
        save_file(arrays, place / HEADS)
    files = {path.relative_to(place).as_posix(): sha256_file(path) for path in sorted(place.rglob("*")) if path.is_file()}
    return Manifest(
        engine=engine, precision=precision, files=files, sources=describe_sources(model), fingerprint=fingerprint_of(parts), parts=parts,
        tokens=describe_tokens(tokens), width=net.token_dimensions, runtime=settings, golden=[], least_cosine=1.0, versions=_versions(engine),
        machine=describe_machine(),
    )  # fmt: skip


def _leaks(encoder: Encoder) -> bool:
    """Does padding change the tokens beside it? Then only rows of one length may travel together."""
    rows = [encoder.tokens.cut(row) for row in encoder.tokens.content([GOLDEN_TEXTS[0], " ".join(GOLDEN_TEXTS)])]
    return len({len(row) for row in rows}) > 1 and encoder.net._padding_leaks(rows)


def _versions(engine: str) -> dict[str, str]:
    named = ("torch", "transformers", "tokenizers", *LIBRARIES[engine])
    return {"python": platform.python_version(), "twinvec": __version__, **{name: metadata.version(name) for name in named}}
