"""A transformers folder as a `Net` with its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from twinvec.errors import ModelError, UsageError
from twinvec.model.backbone import PRECISIONS, check_weights, is_decoder_only, load_backbone, load_tokenizer, window_of
from twinvec.model.encoder import warn
from twinvec.model.engines.sample import sample_texts
from twinvec.model.engines.torch_engine import TorchEngine, check_precision, pick_device
from twinvec.model.heads import Dense
from twinvec.model.layout import Layout, parse_pooling, read_object
from twinvec.model.net import Net
from twinvec.model.resolve import first_line
from twinvec.model.tokens import Tokens


def load_torch(
    folder: Path, layout: Layout, *, device: str | None, precision: str, pooling: str | None, max_tokens: int | None, trust_remote_code: bool
) -> tuple[TorchEngine, Tokens]:
    """The torch engine of a model folder and its tokenizer; the golden vectors are left to the caller."""
    place = pick_device(device)
    check_precision(precision, place)
    stored = "float32" if precision == "int8" else precision  # int8 is made of the float32 weights, which stay
    backbone = load_backbone(layout.transformer, stored, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(layout.transformer, trust_remote_code=trust_remote_code)
    window = smaller_window(window_of(backbone, tokenizer, layout.max_tokens), max_tokens)
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
    net.heads.to(PRECISIONS[stored])
    net.to(place).eval()
    if precision == "int8":
        from twinvec.model.quantized import quantize

        quantize(net, [tokens.cut(row) for row in tokens.content(sample_texts())])
    return TorchEngine(net, precision), tokens


def smaller_window(window: int, asked: int | None) -> int:
    """The window that was asked for, which may not be larger than the model's."""
    if asked is None:
        return window
    if not 0 < asked <= window:
        raise UsageError(f"max_tokens = {asked}: this model's window is 1 to {window} tokens")
    return asked


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
