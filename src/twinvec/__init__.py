"""twinvec: sentence embeddings whole. `import twinvec as tv` loads no torch; names are imported on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from twinvec.data.check import check_data
    from twinvec.data.dataset import read_data
    from twinvec.evaluation.evaluate import evaluate
    from twinvec.index.collection import Collection
    from twinvec.model.encoder import Encoder
    from twinvec.records import Document, EncodeReport, Encoding, Hit
    from twinvec.runs.train import train
    from twinvec.scale.bulk import encode_files
    from twinvec.scale.processes import Pool
    from twinvec.scale.read import read_vectors
    from twinvec.search.searcher import Searcher
    from twinvec.training.recipe import Recipe

_HOMES = {
    "Collection": "twinvec.index.collection",
    "Document": "twinvec.records",
    "EncodeReport": "twinvec.records",
    "Encoder": "twinvec.model.encoder",
    "Encoding": "twinvec.records",
    "Hit": "twinvec.records",
    "Pool": "twinvec.scale.processes",
    "Recipe": "twinvec.training.recipe",
    "Searcher": "twinvec.search.searcher",
    "check_data": "twinvec.data.check",
    "encode_files": "twinvec.scale.bulk",
    "evaluate": "twinvec.evaluation.evaluate",
    "read_data": "twinvec.data.dataset",
    "read_vectors": "twinvec.scale.read",
    "train": "twinvec.runs.train",
}

__all__ = [
    "Collection",
    "Document",
    "EncodeReport",
    "Encoder",
    "Encoding",
    "Hit",
    "Pool",
    "Recipe",
    "Searcher",
    "__version__",
    "check_data",
    "encode_files",
    "evaluate",
    "read_data",
    "read_vectors",
    "train",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'twinvec' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
