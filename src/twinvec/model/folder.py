"""Model folders: read several kinds, write one that all of them open. No torch is imported before a model needs it."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from twinvec import __version__
from twinvec.errors import EncodeError, ModelError, UsageError, choose
from twinvec.files import atomic_folder, write_json
from twinvec.model.encoder import Encoder
from twinvec.model.engines import ENGINES, PRECISIONS
from twinvec.model.engines.choice import Choice, decide
from twinvec.model.fingerprint import GOLDEN_TEXTS, GOLDEN_TOLERANCE, described, fingerprint_of
from twinvec.model.layout import read_layout, write_layout
from twinvec.model.resolve import first_line, resolve
from twinvec.model.static_folder import check_static_options, load_static, static_kind
from twinvec.model.static_write import write_static

FORMAT = 1


def load_encoder(
    name: str | Path,
    *,
    device: str | None = None,
    precision: str | None = None,
    revision: str | None = None,
    pooling: str | None = None,
    max_tokens: int | None = None,
    trust_remote_code: bool = False,
    engine: str | None = None,
    profile: str | Path | None = None,
    threads: int | None = None,
) -> Encoder:
    """See Encoder.load."""
    if engine is not None:
        choose("engine", engine, ENGINES)
    if precision is not None:
        choose("precision", precision, PRECISIONS)
    if threads is not None and threads < 1:
        raise UsageError(f"threads = {threads}: wanted a number, 1 or more")
    static = static_kind(Path(name)) if Path(name).is_file() else None
    folder = resolve(name, revision) if static is None else Path(name)
    if (static := static or static_kind(folder)) is not None:
        check_static_options(name, engine=engine, precision=precision, device=device, revision=revision)
        return load_static(name, folder, static, pooling=pooling, max_tokens=max_tokens)
    if engine == "static":
        raise UsageError(f"engine = 'static': {name} is no static model; twinvec convert {name} --static -o FOLDER makes one of it")
    choice = decide(name, folder, engine=engine, precision=precision, profile=profile, threads=threads, device=device)
    if choice.engine == "torch":
        return _load_torch(name, folder, choice, device=device, pooling=pooling, max_tokens=max_tokens, trust_remote_code=trust_remote_code)
    if device not in (None, "cpu"):
        raise UsageError(f"device = {device!r}: the engine {choice.engine!r} runs on the CPU here; leave the option out, or use engine='torch'")
    from twinvec.model.engines.opening import load_exported

    return load_exported(name, folder, choice, pooling=pooling, max_tokens=max_tokens)


def _load_torch(name: str | Path, folder: Path, choice: Choice, *, pooling: str | None, max_tokens: int | None, **options: Any) -> Encoder:
    layout = read_layout(folder)
    from twinvec.model.engines.torch_load import load_torch

    found, tokens = load_torch(folder, layout, precision=choice.precision, pooling=pooling, max_tokens=max_tokens, **options)
    found.budget = choice.batch_tokens
    if choice.threads is not None:
        found.set_threads(choice.threads)
    encoder = Encoder(found, tokens, name=str(name), prompts=layout.prompts, default_prompt=layout.default_prompt, source=folder)
    if layout.twinvec and pooling is None and max_tokens is None:
        check_saved(folder, encoder, layout.twinvec)
    return encoder


def check_saved(folder: Path, encoder: Encoder, saved: dict[str, Any]) -> None:
    """ModelError unless the folder's model is the one that its twinvec.json tells of."""
    _check_parts(folder, encoder, saved)
    _check_golden(folder, encoder, saved)


def _check_parts(folder: Path, encoder: Encoder, saved: dict[str, Any]) -> None:
    """What twinvec.json says of pooling, prompts, window and the like must be what the other files say; weights are left to the golden vectors."""
    then = saved.get("parts")
    if not isinstance(then, dict):
        return
    now = _told(encoder)
    differ = [name for name in now if name in then and now[name] != then[name]]
    if differ:
        name = differ[0]
        raise ModelError(
            f"{folder}: changed since it was saved: {', '.join(differ)} ({name}: {then[name]!r} in twinvec.json, {now[name]!r} in the folder's other "
            "files). Put the files back; or, if the change is meant, delete twinvec.json, load the folder and save it again"
        )


def _told(encoder: Encoder) -> dict[str, Any]:
    """The parts of the fingerprint that are told, not hashed."""
    if encoder.engine.name == "torch":
        return described(encoder.net, encoder.tokens, encoder.prompts, encoder.default_prompt)
    parts = encoder.engine.parts(encoder.tokens, encoder.prompts, encoder.default_prompt)
    return {name: value for name, value in parts.items() if name not in ("weights", "tokenizer")}


def _check_golden(folder: Path, encoder: Encoder, saved: dict[str, Any]) -> None:
    """The folder's golden texts must give the folder's golden vectors; ModelError says which part differs."""
    golden = saved.get("golden") or []
    if not golden:
        return
    try:
        texts = [str(row["text"]) for row in golden]
        wanted = np.asarray([row["vector"] for row in golden], dtype=np.float64)
    except (KeyError, TypeError, ValueError) as err:
        raise ModelError(f"{folder / 'twinvec.json'}: its golden vectors cannot be read ({type(err).__name__}: {first_line(err)})") from err
    try:
        found = encoder.encode(texts, prompt="").astype(np.float64)
    except EncodeError as err:
        raise ModelError(f"{folder}: its golden texts cannot be encoded ({err}); the weights are damaged, fetch the model again") from err
    if wanted.shape != found.shape:
        raise ModelError(
            f"{folder}: its golden vectors have shape {wanted.shape}, the model gives {found.shape}: folder and twinvec.json do not belong together"
        )
    cosine = (found * wanted).sum(1) / np.maximum(np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1), 1e-30)
    cosine[~found.any(axis=1) & ~wanted.any(axis=1)] = 1  # a static model has no vector for a text of which it knows no word
    worst = int(np.argmin(cosine))
    slack = GOLDEN_TOLERANCE if encoder.precision == "float32" else 0.02
    if not cosine[worst] >= 1 - slack:
        now, then = encoder.engine.parts(encoder.tokens, encoder.prompts, encoder.default_prompt), saved.get("parts", {})
        differ = [name for name in now if name in then and now[name] != then[name]] if encoder.precision == "float32" else []
        what = f"changed since it was saved: {', '.join(differ)}" if differ else "its files are as saved, so the libraries compute something else"
        raise ModelError(
            f"{folder}: golden text {golden[worst]['text']!r} gives cosine {cosine[worst]:.4f} to the saved vector, wanted over {1 - slack}; {what}. "
            f"Saved with {saved.get('versions')}"
        )


def versions() -> dict[str, str]:
    """Versions of what decides a vector. twinvec's own is the code's, which also runs from a folder of sources."""
    others = {name: metadata.version(name) for name in ("torch", "transformers", "tokenizers", "numpy")}
    return {"python": platform.python_version(), "twinvec": __version__, **others}


def save_encoder(encoder: Encoder, folder: Path) -> Path:
    """See Encoder.save. The weights are written in float32 master precision (or the precision the model was loaded with), adapters merged."""
    if encoder.engine.name == "static":
        return _save_static(encoder, folder)
    if encoder.precision == "int8":
        raise UsageError("a model in int8 is not saved: its golden vectors would be rounded; load it in float32 and save that")
    from twinvec.model.adapters import merged

    with merged(encoder.net):
        return _save_plain(encoder, folder)


def _save_static(encoder: Encoder, folder: Path) -> Path:
    _refuse_other_folder(folder)
    with atomic_folder(folder, replace=True) as place:
        write_static(encoder, place)
        _write_record(place, encoder, versions())
    encoder.source = folder
    return folder


def _save_plain(encoder: Encoder, folder: Path) -> Path:
    from safetensors.torch import save_file

    from twinvec.model.backbone import quiet

    net, tokens = encoder.net, encoder.tokens
    encoder.__dict__.pop("fingerprint", None)  # weights may have been trained since
    made = versions()
    _refuse_other_folder(folder)
    with atomic_folder(folder, replace=True) as place:
        backbone: Any = net.backbone
        with quiet():
            backbone.save_pretrained(place, safe_serialization=True)
            tokens.tokenizer.model_max_length = tokens.max_tokens
            tokens.tokenizer.save_pretrained(place)
        heads: list[Any] = list(net.heads)
        dense = write_layout(
            place, pooling=net.pooling, token_dimensions=net.token_dimensions, include_prompt=net.include_prompt,
            dense=[head.config() for head in heads], normalize=net.normalize, max_tokens=tokens.max_tokens, lower_case=tokens.lower_case,
            prompts=encoder.prompts, default_prompt=encoder.default_prompt,
            versions={"pytorch": made["torch"], "transformers": made["transformers"], "twinvec": made["twinvec"]},
        )  # fmt: skip
        for path, head in zip(dense, heads, strict=True):
            save_file({key: value.contiguous() for key, value in head.state_dict().items()}, path / "model.safetensors")
        _write_record(place, encoder, made)
    encoder.source = folder
    return folder


def _write_record(place: Path, encoder: Encoder, made: dict[str, str]) -> None:
    """twinvec.json: the fingerprint and its parts, versions, and the golden texts with their vectors."""
    parts = encoder.engine.parts(encoder.tokens, encoder.prompts, encoder.default_prompt)
    vectors = encoder.encode(list(GOLDEN_TEXTS), prompt="")
    golden = [{"text": text, "vector": [float(f"{x:.7g}") for x in row]} for text, row in zip(GOLDEN_TEXTS, vectors.tolist(), strict=True)]
    record = {"format": FORMAT, "fingerprint": fingerprint_of(parts), "parts": parts, "nfkc": encoder.tokens.nfkc, "versions": made, "golden": golden}
    write_json(place / "twinvec.json", record)


def _refuse_other_folder(folder: Path) -> None:
    if folder.exists() and not _is_model_folder(folder):
        raise ModelError(f"{folder} exists and is no model folder; choose another place, or remove it")


def _is_model_folder(folder: Path) -> bool:
    return folder.is_dir() and (not any(folder.iterdir()) or (folder / "modules.json").is_file() or (folder / "config.json").is_file())
