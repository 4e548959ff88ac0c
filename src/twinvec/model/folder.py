"""Model folders: read three kinds, write one that all of them open."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from twinvec import __version__
from twinvec.errors import EncodeError, ModelError, UsageError
from twinvec.files import atomic_folder, write_json
from twinvec.model.adapters import merged
from twinvec.model.backbone import PRECISIONS, check_weights, is_decoder_only, load_backbone, load_tokenizer, quiet, window_of
from twinvec.model.encoder import Encoder, check_precision, pick_device, warn
from twinvec.model.fingerprint import GOLDEN_TEXTS, GOLDEN_TOLERANCE, described, fingerprint_of, parts_of
from twinvec.model.heads import Dense
from twinvec.model.layout import Layout, parse_pooling, read_layout, read_object, write_layout
from twinvec.model.net import Net
from twinvec.model.resolve import first_line, resolve
from twinvec.model.tokens import Tokens

FORMAT = 1


def load_encoder(
    name: str | Path,
    *,
    device: str | None,
    precision: str,
    revision: str | None,
    pooling: str | None,
    max_tokens: int | None,
    trust_remote_code: bool,
) -> Encoder:
    """See Encoder.load."""
    place = pick_device(device)
    check_precision(precision, place)
    folder = resolve(name, revision)
    layout = read_layout(folder)
    backbone = load_backbone(layout.transformer, precision, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(layout.transformer, trust_remote_code=trust_remote_code)
    window = window_of(backbone, tokenizer, layout.max_tokens)
    if max_tokens is not None:
        if not 0 < max_tokens <= window:
            raise UsageError(f"max_tokens = {max_tokens}: this model's window is 1 to {window} tokens")
        window = max_tokens
    try:
        tokens = Tokens(tokenizer, window, lower_case=layout.lower_case, nfkc=layout.nfkc)
    except ModelError as err:
        raise ModelError(f"{folder}: {err}") from err
    modes = _pooling(folder, layout, pooling, backbone)
    net = Net(
        backbone,
        modes,
        [_dense(path) for path in layout.dense],
        normalize=layout.normalize,
        include_prompt=layout.include_prompt,
        pad_id=tokens.pad_id,
    )
    _check_shapes(folder, net)
    net.heads.to(PRECISIONS[precision])
    net.to(place).eval()
    encoder = Encoder(net, tokens, name=str(name), prompts=layout.prompts, default_prompt=layout.default_prompt, precision=precision, source=folder)
    if layout.twinvec and pooling is None and max_tokens is None:
        _check_parts(folder, encoder, layout.twinvec)
        _check_golden(folder, encoder, layout.twinvec)
    return encoder


def _pooling(folder: Path, layout: Layout, asked: str | None, backbone: Any) -> tuple[str, ...]:
    if asked is not None:
        return parse_pooling(asked)
    if layout.pooling is not None:
        return layout.pooling
    guess = "last_token" if is_decoder_only(backbone) else "mean"
    warn(
        f"{folder} does not say how it pools: {guess} pooling is a guess, and a backbone that was not trained for sentence embeddings gives poor "
        "ones. Choose with --pooling, and train or measure it before use"
    )
    return (guess,)


def _dense(path: Path) -> Dense:
    try:
        head = Dense.from_config(read_object(path / "config.json"))
    except ModelError as err:
        raise ModelError(f"{path / 'config.json'}: {err}") from err
    weights = path / "model.safetensors"
    check_weights(path)
    try:
        found = load_file(weights)
    except SafetensorError as err:
        raise ModelError(f"{weights}: cannot be read ({first_line(err)}); the file is damaged or cut short, fetch it again") from err
    shapes, wanted = ({name: tuple(value.shape) for name, value in state.items()} for state in (found, head.state_dict()))
    if shapes != wanted:
        raise ModelError(f"{weights}: holds {shapes}, its config.json wants {wanted}; the two are of different models")
    head.load_state_dict(found)
    return head


def _check_shapes(folder: Path, net: Net) -> None:
    width = net.token_dimensions * len(net.pooling)
    for i, head in enumerate(net.heads):
        linear: Any = head.linear
        if linear.in_features != width:
            raise ModelError(f"{folder}: Dense head {i} wants vectors of {linear.in_features}, what comes before it gives {width}")
        width = linear.out_features


def _check_parts(folder: Path, encoder: Encoder, saved: dict[str, Any]) -> None:
    """What twinvec.json says of pooling, prompts, window and the like must be what the other files say; weights are left to the golden vectors."""
    then = saved.get("parts")
    if not isinstance(then, dict):
        return
    now = described(encoder.net, encoder.tokens, encoder.prompts, encoder.default_prompt)
    differ = [name for name in now if name in then and now[name] != then[name]]
    if differ:
        name = differ[0]
        raise ModelError(
            f"{folder}: changed since it was saved: {', '.join(differ)} ({name}: {then[name]!r} in twinvec.json, {now[name]!r} in the folder's other "
            "files). Put the files back; or, if the change is meant, delete twinvec.json, load the folder and save it again"
        )


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
    worst = int(np.argmin(cosine))
    slack = GOLDEN_TOLERANCE if encoder.precision == "float32" else 0.02
    if not cosine[worst] >= 1 - slack:
        now, then = parts_of(encoder.net, encoder.tokens, encoder.prompts, encoder.default_prompt), saved.get("parts", {})
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
    with merged(encoder.net):
        return _save_plain(encoder, folder)


def _save_plain(encoder: Encoder, folder: Path) -> Path:
    net, tokens = encoder.net, encoder.tokens
    encoder.__dict__.pop("fingerprint", None)  # weights may have been trained since
    parts = parts_of(net, tokens, encoder.prompts, encoder.default_prompt)
    vectors = encoder.encode(list(GOLDEN_TEXTS), prompt="")
    made = versions()
    if folder.exists() and not _is_model_folder(folder):
        raise ModelError(f"{folder} exists and is no model folder; choose another place, or remove it")
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
        golden = [{"text": text, "vector": [float(f"{x:.7g}") for x in row]} for text, row in zip(GOLDEN_TEXTS, vectors.tolist(), strict=True)]
        write_json(
            place / "twinvec.json",
            {"format": FORMAT, "fingerprint": fingerprint_of(parts), "parts": parts, "nfkc": tokens.nfkc, "versions": made, "golden": golden},
        )
    encoder.source = folder
    return folder


def _is_model_folder(folder: Path) -> bool:
    return folder.is_dir() and (not any(folder.iterdir()) or (folder / "modules.json").is_file() or (folder / "config.json").is_file())
