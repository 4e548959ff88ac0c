"""The ONNX Runtime of an exported model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.errors import ModelError, UsageError
from twinvec.model.engines.exported import Runtime
from twinvec.model.resolve import first_line

Array = npt.NDArray[Any]
MODEL = "model.onnx"


class OnnxRuntime(Runtime):
    """A session without threads of its own: batches run side by side on the caller's."""

    def __init__(self, folder: Path, precision: str, threads: int, settings: dict[str, Any]) -> None:
        ort = library()
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Patterns of all lengths come by, so remembering buffers by shape only fills memory.
        options.enable_mem_pattern = False
        try:
            self._session = ort.InferenceSession(str(folder / MODEL), options, providers=["CPUExecutionProvider"])
        except Exception as err:  # onnxruntime raises its own classes, which differ by release
            raise ModelError(f"{folder}: onnxruntime cannot load it ({first_line(err)}); export the model again") from err

    def states(self, ids: Array, lengths: Array) -> Array:
        mask = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
        found: Array = self._session.run(None, {"input_ids": ids.astype(np.int64, copy=False), "attention_mask": mask})[0]
        return found


def library() -> Any:
    try:
        import onnxruntime
    except ImportError as err:
        raise UsageError("engine = 'onnx' needs pip install 'twinvec[onnx]'") from err
    return onnxruntime
