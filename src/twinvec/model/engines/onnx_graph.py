"""A `Net`'s backbone as an ONNX graph. Imported only to export; needs torch, onnx and onnxruntime."""

from __future__ import annotations

import importlib.util
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from twinvec.errors import UsageError
from twinvec.model.engines.onnx_engine import MODEL, library
from twinvec.model.resolve import first_line

INPUTS, OUTPUT = ("input_ids", "attention_mask"), "states"
OPSET = 17
TOLERANCE = 1e-3  # of the largest number; a graph that was traced wrong is off by far more
_TWO_GB = 2_000_000_000


class _Backbone(nn.Module):
    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.backbone = backbone
        self.more = {"use_cache": False} if hasattr(backbone.config, "use_cache") else {}

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        found: Tensor = self.backbone(input_ids=ids, attention_mask=mask, **self.more).last_hidden_state
        return found


def write_model(backbone: Any, folder: Path, precision: str, max_tokens: int) -> dict[str, Any]:
    """Write model.onnx into `folder`; returns the settings that the runtime needs beside it."""
    needs("onnx")
    library()
    size = int(backbone.get_input_embeddings().weight.shape[0])
    with _quietly(), tempfile.TemporaryDirectory(dir=folder.parent, prefix=".onnx.") as work:
        plain = _traced(backbone, Path(work), size, max_tokens)
        if precision == "int8":
            _quantize(plain, folder / MODEL)
        else:
            _copy(plain, folder / MODEL)
    return {"vocabulary": size, "positions": max_tokens}


def needs(*modules: str) -> None:
    for name in modules:
        if importlib.util.find_spec(name) is None:
            raise UsageError("engine = 'onnx' needs pip install 'twinvec[onnx]'")


@contextmanager
def _quietly() -> Iterator[None]:
    """The exporters warn of their own age and print their progress; the checks below say what matters."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _traced(backbone: Any, work: Path, size: int, max_tokens: int) -> Path:
    """The graph by the first exporter whose graph computes what torch computes, at other shapes than it was traced with."""
    module = _Backbone(backbone).eval()
    attention = getattr(backbone.config, "_attn_implementation", None)
    said = []
    try:
        if hasattr(backbone, "set_attn_implementation"):
            backbone.set_attn_implementation("eager")  # plain products; onnxruntime's own fusing of them was no faster (MiniLM, float32)
        for name, export in (("trace", _by_trace), ("dynamo", _by_dynamo)):
            path = work / f"{name}.onnx"
            try:
                export(module, path, size, max_tokens)
                wrong = _worst(module, path, size, max_tokens)
            except Exception as err:  # the exporters raise whatever a model's code makes them raise
                said.append(f"{name}: {type(err).__name__}: {first_line(err)[:120]}")
                continue
            if wrong <= TOLERANCE:
                return path
            said.append(f"{name}: the graph is off by {wrong:.2g}")
    finally:
        if attention and hasattr(backbone, "set_attn_implementation"):
            backbone.set_attn_implementation(attention)
    family = str(backbone.config.model_type)
    raise UsageError(f"onnx cannot compute this model (family {family!r}; {'; '.join(said)}); use the engine torch, which can")


def _sample(rows: int, length: int, size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(min(5, size - 1), size, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    if rows > 1 and length > 2:
        mask[1, length // 2 + 1 :] = 0
    return ids, mask


def _by_trace(module: nn.Module, path: Path, size: int, max_tokens: int) -> None:
    axes = {name: {0: "rows", 1: "length"} for name in (*INPUTS, OUTPUT)}
    torch.onnx.export(
        module, _sample(3, min(7, max_tokens), size), str(path), input_names=list(INPUTS), output_names=[OUTPUT], dynamic_axes=axes,
        opset_version=OPSET, dynamo=False,
    )  # fmt: skip


def _by_dynamo(module: nn.Module, path: Path, size: int, max_tokens: int) -> None:
    needs("onnxscript")
    rows, length = torch.export.Dim("rows", min=1, max=1 << 16), torch.export.Dim("length", min=2, max=max_tokens)
    shapes = ({0: rows, 1: length}, {0: rows, 1: length})
    torch.onnx.export(
        module, _sample(3, min(7, max_tokens), size), str(path), input_names=list(INPUTS), output_names=[OUTPUT], dynamic_shapes=shapes,
        dynamo=True, external_data=False, verbose=False,
    )  # fmt: skip


def _worst(module: nn.Module, path: Path, size: int, max_tokens: int) -> float:
    """The largest difference to torch on real tokens, as a share of the largest number there."""
    session = library().InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for rows, length in ((1, 2), (2, min(11, max_tokens)), (2, max_tokens)):
        ids, mask = _sample(rows, min(length, max_tokens), size)
        with torch.no_grad():
            wanted = module(ids, mask).numpy()
        found = session.run(None, dict(zip(INPUTS, (ids.numpy(), mask.numpy()), strict=True)))[0]
        real = mask.numpy().astype(bool)
        difference = float(np.abs(found - wanted)[real].max() / np.abs(wanted)[real].max())
        if not difference <= worst:
            worst = difference
    return worst if worst == worst else float("inf")


def _quantize(path: Path, target: Path) -> None:
    """Linear layers in int8, weights in blocks of 128 inputs, activations as they come, each token by itself; the rest stays in float32.

    onnxruntime's usual dynamic quantisation takes one scale for a whole batch, so that a vector depends on the texts beside it, by up to 0.01 of
    its length; it is faster by a third (MiniLM) and its least cosine to float32 was 0.981, against 0.997 here.
    """
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(str(path)), bits=8, block_size=128, is_symmetric=True, accuracy_level=4)
    quantizer.process()
    quantizer.model.save_model_to_file(str(target), path.stat().st_size > _TWO_GB)


def _copy(path: Path, target: Path) -> None:
    """As one file, or with its weights beside it where one file cannot hold them."""
    import onnx

    model = onnx.load(str(path))
    large = sum(tensor.ByteSize() for tensor in model.graph.initializer) > _TWO_GB
    onnx.save(model, str(target), save_as_external_data=large, all_tensors_to_one_file=True, location=f"{target.name}.data")
