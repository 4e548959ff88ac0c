"""Vectors of a frozen model (a teacher, a guide) for the texts of a data set: computed once, kept in a file that is mapped."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from twinvec.errors import TrainingError, UsageError
from twinvec.files import atomic_file
from twinvec.model.encoder import Encoder
from twinvec.progress import Progress

BLOCK = 8192  # texts encoded between two writes


class FrozenVectors:
    """`rows(column, numbers) -> (n, D)` for the columns it was made with.

    dimensions: what the vectors must have, where the student is to give the same; UsageError before anything is encoded. dry: vectors of chance,
    and no file, for a run of which only the time is wanted.
    """

    def __init__(
        self, name: str, prompt: str | None, columns: Sequence[Sequence[str]], folder: Path, device: str | None, show: bool, *,
        dimensions: int | None = None, dry: bool = False,
    ) -> None:  # fmt: skip
        encoder = Encoder.load(name, device=device)
        encoder.prompt_text(prompt)
        self.name, self.dimensions, self.normalizes = name, encoder.dimensions, encoder.normalizes
        if dimensions is not None and dimensions != self.dimensions:
            raise UsageError(
                f"teacher = {name!r} has {self.dimensions} dimensions, the model {dimensions}: the model cannot give the teacher's vectors; "
                "set fit_dense = true, which adds a layer to the teacher's size, or choose a teacher of the same size"
            )
        place: dict[str, int] = {}
        self._index = [np.fromiter((place.setdefault(text, len(place)) for text in column), np.int64, len(column)) for column in columns]
        texts = list(place)
        self.folder = folder
        if dry:
            self._vectors: npt.NDArray[np.float32] = np.random.default_rng(0).standard_normal((1024, self.dimensions), dtype=np.float32)
            self._index = [index % 1024 for index in self._index]
            return
        digest = hashlib.sha256(f"{encoder.fingerprint}\0{prompt}\0".encode())
        for text in texts:
            digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        self.path = folder / f"{digest.hexdigest()[:16]}.npy"
        if not self.path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            _encode(encoder, texts, prompt, self.path, show)
        self._vectors = np.load(self.path, mmap_mode="r", allow_pickle=False)
        if self._vectors.shape != (len(texts), self.dimensions):
            raise TrainingError(f"{self.path}: holds {self._vectors.shape}, wanted ({len(texts)}, {self.dimensions}); remove the file and run again")

    def rows(self, column: int, numbers: Sequence[int]) -> Tensor:
        """(len(numbers), D) float32 of one column's rows."""
        return torch.from_numpy(np.array(self._vectors[self._index[column][list(numbers)]]))


def _encode(encoder: Encoder, texts: Sequence[str], prompt: str | None, path: Path, show: bool) -> None:
    head = {"descr": "<f4", "fortran_order": False, "shape": (len(texts), encoder.dimensions)}
    shown = f"encode with {Path(encoder.name).name}"
    with atomic_file(path) as stream, Progress(len(texts), shown, show=show, unit="texts") as bar:
        np.lib.format.write_array_header_1_0(stream, head)  # type: ignore[no-untyped-call]
        for start in range(0, len(texts), BLOCK):
            block = texts[start : start + BLOCK]
            stream.write(np.ascontiguousarray(encoder.encode(block, prompt=prompt), dtype="<f4").tobytes())
            bar.advance(len(block))
