"""The CTranslate2 runtime of an exported model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.errors import ModelError, UsageError
from twinvec.model.engines.exported import Runtime
from twinvec.model.resolve import first_line

Array = npt.NDArray[Any]
COMPUTE = {"float32": "float32", "int8": "int8_float32"}


class CTranslate2Runtime(Runtime):
    """One worker of one core for each thread: batches side by side are faster than several cores in one batch."""

    threaded = True

    def __init__(self, folder: Path, precision: str, threads: int, settings: dict[str, Any]) -> None:
        self._library = library()
        self._position_ids = bool(settings.get("position_ids"))
        try:
            self._model = self._library.Encoder(str(folder), device="cpu", compute_type=COMPUTE[precision], inter_threads=threads, intra_threads=1)
        except (RuntimeError, ValueError) as err:
            raise ModelError(f"{folder}: ctranslate2 cannot load it ({first_line(err)}); export the model again on this machine") from err

    def states(self, ids: Array, lengths: Array) -> Array:
        view = self._library.StorageView.from_array
        narrow = np.ascontiguousarray(ids, dtype=np.int32)
        sizes = np.ascontiguousarray(lengths, dtype=np.int32)
        if self._position_ids:  # the export keeps the positions in the table of token types
            places = [list(range(ids.shape[1]))] * len(ids)
            found = self._model.forward_batch(view(narrow), lengths=view(sizes), token_type_ids=places)
        else:
            found = self._model.forward_batch(view(narrow), lengths=view(sizes))
        return np.asarray(found.last_hidden_state)


def library() -> Any:
    try:
        import ctranslate2
    except ImportError as err:
        raise UsageError("engine = 'ctranslate2' needs pip install 'twinvec[ctranslate2]'") from err
    return ctranslate2
