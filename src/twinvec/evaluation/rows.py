"""Rows of a file with the vectors of their texts: what each task measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from twinvec.data.dataset import Dataset
from twinvec.evaluation.metrics import Floats
from twinvec.evaluation.weighted import Ints
from twinvec.records import Vectors


@dataclass(frozen=True)
class Rows:
    """A data set and vectors (n, D) of each of its columns. settings: options of the task, such as the training rows of a classifier."""

    data: Dataset
    vectors: Mapping[str, Vectors]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.data)

    @property
    def sides(self) -> tuple[Vectors, Vectors]:
        """Vectors of the first two columns."""
        first, second, *_ = self.data.columns
        return self.vectors[first], self.vectors[second]

    @cached_property
    def labels(self) -> Floats:
        """(n,), empty where the file has none."""
        return np.asarray(self.data.labels if self.data.labels is not None else [], dtype=np.float64)

    @property
    def names(self) -> list[Any]:
        """The numbers of the rows in the file, from 1."""
        return list(self.data.numbers)

    @cached_property
    def texts(self) -> list[dict[str, str]]:
        return [dict(zip(self.data.columns, cells, strict=True)) for cells in zip(*self.data.columns.values(), strict=True)]

    @cached_property
    def clusters(self) -> Ints | None:
        """Numbers of the rows' groups (a row without one stands alone), for rows that chance draws together; None without groups."""
        if self.data.groups is None:
            return None
        return np.asarray([group if group >= 0 else -1 - row for row, group in enumerate(self.data.groups)], dtype=np.int64)
