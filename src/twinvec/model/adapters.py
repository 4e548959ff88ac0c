"""Training a part of a model: low-rank adapters (through peft) over any backbone, and layers or embeddings left as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from twinvec.errors import ModelError, TrainingError, UsageError, nearest
from twinvec.files import atomic_folder, write_json
from twinvec.model.fingerprint import weights_hash
from twinvec.model.layout import read_object
from twinvec.model.linear import lora_delta, plain_lora
from twinvec.model.net import Net
from twinvec.model.resolve import first_line

ADAPTER = "default"
"""The one adapter's name, part of its parameters' names; it never changes, so that checkpoints resume."""

_WEIGHTS, _CONFIG, _BASE, _HEADS = "adapter_model.safetensors", "adapter_config.json", "twinvec_base.json", "heads.safetensors"
_PREFIX = "base_model.model."  # what peft writes before each name


def add_lora(net: Net, *, rank: int = 16, alpha: float = 32, dropout: float = 0.05, targets: str | Sequence[str] = "all-linear") -> None:
    """Put low-rank adapters beside linear layers of the backbone and freeze the rest of it; heads after pooling stay trainable.

    W x + b becomes W x + b + alpha / rank * B A dropout(x), A (rank, in) random, B (out, rank) zero, so that nothing changes at first
    (LoRA, Hu et al. 2021, section 4.1). targets: "all-linear" (QLoRA, Dettmers et al. 2023, section 4), or names such as ["q_proj", "v_proj"],
    whole or the end of a layer's name. rank 16, alpha 32 are common usage; dropout 0.05 is QLoRA's for small models.
    A is drawn from torch's global generator: seed it first. Later calls of `freeze` freeze adapters in their layers too.
    """
    _check_options(rank, alpha, dropout)
    if has_lora(net):
        raise UsageError("LoRA: this model wears adapters already; merge_lora(net) first")
    names = _targets(net.backbone, targets)
    peft = _peft()
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=names, bias="none")
    _inject(net, peft, config)


def _inject(net: Net, peft: Any, config: Any) -> None:
    mode = net.training
    peft.inject_adapter_in_model(config, net.backbone, adapter_name=ADAPTER)
    for name, parameter in net.backbone.named_parameters():
        parameter.requires_grad_(_is_adapter(name))
    net.train(mode)  # the new modules come up in training mode
    net.rebuild()


def _is_adapter(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name


def _check_options(rank: int, alpha: float, dropout: float) -> None:
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise UsageError(f"LoRA: rank = {rank!r}: wanted a whole number, 1 or more (usual: 8 to 64)")
    if not 0 < alpha < float("inf"):
        raise UsageError(f"LoRA: alpha = {alpha!r}: wanted a number above 0 (usual: twice the rank)")
    if not 0 <= dropout < 1:
        raise UsageError(f"LoRA: dropout = {dropout!r}: wanted a share from 0 to below 1")


def _peft() -> Any:
    try:
        import peft
    except ImportError as err:
        raise UsageError(f"LoRA needs the package peft ({first_line(err)}); pip install 'twinvec[lora]'") from err
    return peft


def _targets(backbone: nn.Module, asked: str | Sequence[str]) -> list[str]:
    """Full names of the linear layers meant. UsageError for a name that fits none, with those that there are."""
    linear = [name for name, module in backbone.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise UsageError("LoRA: this backbone has no linear layers (nn.Linear) that could be adapted")
    if asked == "all-linear":
        return linear
    names = [asked] if isinstance(asked, str) else list(asked)
    if not names:
        raise UsageError("LoRA: targets is empty; give 'all-linear' or names of linear layers")
    kinds = sorted({name.rsplit(".", 1)[-1] for name in linear})
    found: set[str] = set()
    for want in names:
        fits = [name for name in linear if name == want or name.endswith(f".{want}")]
        if not fits:
            raise UsageError(f"LoRA: targets: no linear layer is called {want!r}; this model has {', '.join(kinds)}{nearest(str(want), kinds)}")
        found.update(fits)
    return sorted(found)


def lora_layers(net: nn.Module) -> dict[str, Any]:
    """Name to layer, of every linear layer that wears a LoRA adapter."""
    return {name: module for name, module in net.named_modules() if plain_lora(module)}


def has_lora(net: nn.Module) -> bool:
    return any(plain_lora(module) for module in net.modules())


def merge_lora(net: Net) -> Net:
    """Add the adapters to the weights (W + alpha / rank * B A) and take them off; the result is an ordinary model, all of it trainable again.

    Returns `net` itself. A model without adapters stays as it is. TrainingError, before anything is changed, when a weight is not finite.
    """
    layers = lora_layers(net.backbone)
    if not layers:
        return net
    merged = {name: _merged(name, layer) for name, layer in layers.items()}
    with torch.no_grad():
        for name, layer in layers.items():
            layer.base_layer.weight.copy_(merged.pop(name))
            _put(net.backbone, name, layer.base_layer)
    del net.backbone.peft_config
    for parameter in net.backbone.parameters():
        parameter.requires_grad_(True)
    net.rebuild()
    return net


def _merged(name: str, layer: Any) -> Tensor:
    with torch.no_grad():
        weight: Tensor = layer.base_layer.weight
        # Added in float32: in bf16 a small delta would be rounded away twice.
        sum_ = weight.float() + lora_delta(layer).float() if weight.dtype != torch.float64 else weight + lora_delta(layer)
        out = sum_.to(weight.dtype)
    if not bool(torch.isfinite(out).all()):
        raise TrainingError(f"LoRA: the merged weight of {name} is not finite; train with a lower learning rate, or go back to an older checkpoint")
    return out


@contextmanager
def merged(net: Net) -> Iterator[Net]:
    """Within the block `net` is the model that its adapters make of it, as plain layers: for saving while training goes on.

    Afterwards it is bit for bit what it was. Costs the memory of the adapted weights once more. Nothing happens without adapters.
    """
    layers = lora_layers(net.backbone)
    if not layers:
        yield net
        return
    plain: dict[str, nn.Linear] = {name: _plain_copy(layer, _merged(name, layer)) for name, layer in layers.items()}
    with _instead(net, layers, plain):
        yield net


@contextmanager
def without_lora(net: Net) -> Iterator[Net]:
    """Within the block `net` is the model below its adapters."""
    layers = lora_layers(net.backbone)
    with _instead(net, layers, {name: layer.base_layer for name, layer in layers.items()}):
        yield net


@contextmanager
def _instead(net: Net, layers: dict[str, Any], others: dict[str, Any]) -> Iterator[None]:
    backbone: Any = net.backbone
    config = backbone.__dict__.pop("peft_config", None)
    packed = net.packed
    try:
        for name, other in others.items():
            _put(backbone, name, other)
        if layers:
            net.rebuild()
        yield
    finally:
        for name, layer in layers.items():
            _put(backbone, name, layer)
        if config is not None:
            backbone.peft_config = config
        net.packed = packed  # it holds the adapted layers still


def _plain_copy(layer: Any, weight: Tensor) -> nn.Linear:
    base: nn.Linear = layer.base_layer
    with torch.device("meta"):
        out = nn.Linear(base.in_features, base.out_features, bias=base.bias is not None)
    out.weight = nn.Parameter(weight, requires_grad=False)
    out.bias = base.bias
    return out.train(base.training)


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


def save_adapter(net: Net, folder: str | Path) -> Path:
    """Write the adapters alone, as peft writes and reads them; an adapter folder there is replaced whole. UsageError when there are none."""
    folder = Path(folder)
    if not has_lora(net):
        raise UsageError(f"{folder}: this model wears no LoRA adapters that could be saved")
    if folder.exists() and not (folder.is_dir() and (not any(folder.iterdir()) or (folder / _CONFIG).is_file())):
        raise ModelError(f"{folder} exists and holds no adapter; choose another place, or remove it")
    backbone: Any = net.backbone
    config = backbone.peft_config[ADAPTER]
    tensors = {_PREFIX + name: p.detach().contiguous() for name, p in _adapter_weights(net).items()}
    if bad := sorted(name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())):
        raise TrainingError(f"{folder}: not written: {len(bad)} adapter weights are not finite (first: {bad[0]}); use a lower learning rate")
    with atomic_folder(folder, replace=True) as place:
        save_file(tensors, place / _WEIGHTS, metadata={"format": "pt"})
        options = {key: sorted(value) if isinstance(value, set) else value for key, value in config.to_dict().items()}
        write_json(place / _CONFIG, {**options, "inference_mode": True, "base_model_name_or_path": None})
        with without_lora(net):
            write_json(place / _BASE, {"format": 1, "weights": weights_hash(net.backbone)})
        if len(net.heads):  # they were trained beside the adapters
            save_file({name: value.contiguous() for name, value in net.heads.state_dict().items()}, place / _HEADS)
    return folder


def _adapter_weights(net: Net) -> dict[str, nn.Parameter]:
    """The adapters' parameters by the names that peft writes: without the adapter's own."""
    return {name.replace(f".{ADAPTER}.", "."): p for name, p in net.backbone.named_parameters() if _is_adapter(name)}


def load_adapter(net: Net, folder: str | Path) -> None:
    """Put saved adapters on the model they were trained on. ModelError when they belong to another one, or cannot be read."""
    folder = Path(folder)
    if has_lora(net):
        raise UsageError("LoRA: this model wears adapters already; merge_lora(net) first")
    for name in (_CONFIG, _WEIGHTS):
        if not (folder / name).is_file():
            raise ModelError(f"{folder} is no adapter folder: {name} is missing")
    options = read_object(folder / _CONFIG)
    if options.get("peft_type") != "LORA" or options.get("use_dora") or options.get("bias", "none") != "none":
        raise ModelError(f"{folder / _CONFIG}: only plain LoRA adapters are known here (peft_type LORA, no DoRA, bias none)")
    tensors = _tensors(folder / _WEIGHTS)
    heads = _tensors(folder / _HEADS) if (folder / _HEADS).is_file() else {}
    if {name: value.shape for name, value in heads.items()} != {name: value.shape for name, value in net.heads.state_dict().items()}:
        raise ModelError(f"{folder}: the heads after pooling that were trained beside these adapters are not those of this model")
    if (folder / _BASE).is_file() and read_object(folder / _BASE).get("weights") != weights_hash(net.backbone):
        raise ModelError(f"{folder}: these adapters were trained on a model with other weights; load that model, then the adapters")
    _wear(net, folder, options, tensors)
    net.heads.load_state_dict(heads)


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as err:
        raise ModelError(f"{path}: cannot be read ({first_line(err)}); the file is damaged or cut short") from err


def _wear(net: Net, folder: Path, options: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    peft = _peft()
    found = {name.removeprefix(_PREFIX): value for name, value in tensors.items()}
    names = sorted({name.rsplit(".lora_", 1)[0] for name in found})
    try:
        _targets(net.backbone, names)
        config = peft.LoraConfig(
            r=options["r"], lora_alpha=options["lora_alpha"], lora_dropout=options.get("lora_dropout", 0.0), target_modules=names, bias="none",
            use_rslora=bool(options.get("use_rslora", False)), rank_pattern=options.get("rank_pattern") or {},
            alpha_pattern=options.get("alpha_pattern") or {},
        )  # fmt: skip
    except (UsageError, KeyError, TypeError, ValueError) as err:
        raise ModelError(f"{folder}: these adapters do not fit this model ({type(err).__name__}: {first_line(err)})") from err
    _inject(net, peft, config)
    own = _adapter_weights(net)
    wrong = sorted(name for name in {*own, *found} if name not in own or name not in found or own[name].shape != found[name].shape)
    if wrong:
        with torch.no_grad():
            for layer in lora_layers(net.backbone).values():
                layer.lora_B[ADAPTER].weight.zero_()
        merge_lora(net)
        raise ModelError(f"{folder}: {len(wrong)} adapter weights are missing, unknown or of another shape (first: {wrong[0]})")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(found[name])


def freeze(net: Net, *, layers: int = 0, embeddings: bool = False) -> int:
    """Leave the first `layers` layers of the backbone, and its embeddings, as they are; returns the number of weights that remain trainable.

    Frozen means no gradient and no memory for one; dropout in a frozen layer stays on. UsageError when the model has fewer layers, shares one
    layer's weights among all (ALBERT), or nothing would be left to train.
    """
    stack = layers_of(net.backbone)
    if isinstance(layers, bool) or not isinstance(layers, int) or not 0 <= layers <= len(stack):
        raise UsageError(f"freeze: layers = {layers!r}: this model has {len(stack)} layers that can be frozen; wanted 0 to {len(stack)}")
    frozen: list[nn.Module] = list(stack[:layers])
    if embeddings:
        whole = getattr(net.backbone, "embeddings", None)
        backbone: Any = net.backbone
        frozen.append(whole if isinstance(whole, nn.Module) else backbone.get_input_embeddings())
    before = [p for p in net.parameters() if p.requires_grad]
    for module in frozen:
        module.requires_grad_(False)
    left = sum(p.numel() for p in net.parameters() if p.requires_grad)
    if not left:
        for p in before:
            p.requires_grad_(True)
        raise UsageError(f"freeze: layers = {layers}, embeddings = {embeddings}: nothing would be left to train; freeze fewer")
    return left


def layers_of(backbone: nn.Module) -> list[nn.Module]:
    """The layers of a backbone, first to last; an empty list where it has no list of its own layers (ALBERT's share their weights)."""
    config: Any = backbone.config
    count = getattr(config, "num_hidden_layers", None) or getattr(config, "num_layers", None)
    for module in backbone.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count and len({id(layer) for layer in module}) == count:
            return list(module)
    return []


def trainable(net: nn.Module) -> tuple[int, int]:
    """(weights that train, all weights)."""
    sizes = [(p.numel(), p.requires_grad) for p in net.parameters()]
    return sum(n for n, on in sizes if on), sum(n for n, _ in sizes)


__all__ = [
    "add_lora", "freeze", "has_lora", "layers_of", "load_adapter", "lora_layers", "merge_lora", "merged", "save_adapter", "trainable", "without_lora",
]  # fmt: skip
