"""From a path to what is measured on it: rows of a file, a retrieval folder, or reranking lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from twinvec.data.beir import RetrievalSet, read_retrieval
from twinvec.data.dataset import Dataset, read_data
from twinvec.errors import DataError, choose
from twinvec.evaluation.reranking import RerankingSet, has_lists, is_reranking_file, read_reranking, reranking_of

Held = Dataset | RetrievalSet | RerankingSet
TASKS: Final = ("sts", "pairs", "nli", "triplets", "parallel", "classification", "clustering", "reranking", "retrieval")
# What a kind of file is measured as when nothing else is asked, and what else it can be.
TASKS_OF: Final[dict[str, tuple[str, ...]]] = {
    "scores": ("sts",), "pairs": ("pairs", "reranking"), "nli": ("nli",), "triplets": ("triplets",), "parallel": ("parallel",),
    "labelled": ("classification", "clustering"),
}  # fmt: skip
_WANTED: Final = "needs pairs with scores or 0/1, NLI, triplets, parallel texts, texts with classes, reranking lists, or a retrieval folder"


def read_held(path: str | Path, *, task: str | None = None, split: str = "test", limit: int | None = None, **reads: Any) -> Held:
    """A folder as a retrieval set, a file by its columns. task: one of TASKS, None for what the file is. reads: as `read_data` takes them."""
    path = Path(path)
    if task is not None:
        choose("task", task, TASKS)
    if path.is_dir():
        if task not in (None, "retrieval"):
            raise DataError(f"{path}: a folder is measured as retrieval, not as {task}; give a file")
        return read_retrieval(path, split=split)
    format, encoding = reads.get("format"), str(reads.get("encoding") or "utf-8")
    asked = reads.get("kind") is not None or reads.get("columns") is not None
    looks_like_lists = {"reranking": has_lists, None: is_reranking_file}.get(task)
    if not asked and looks_like_lists is not None and looks_like_lists(path, format, encoding):
        return read_reranking(path, format, encoding)
    data = read_data(path, limit=limit, **reads)
    return reranking_of(data) if task == "reranking" else data


def task_of(data: Dataset, task: str | None = None) -> str:
    """The task of a data set; DataError when nothing can be measured on it, or not what was asked for."""
    possible = TASKS_OF.get(data.kind)
    if possible is None:
        raise DataError(f"{data.path}: nothing to measure in a file of kind {data.kind!r}; {_WANTED} (see --kind and --columns)")
    # Pairs without labels are partners, as translations are: each should find its own.
    if data.kind == "pairs" and data.labels is None:
        possible = ("parallel",)
    if task is not None and task not in possible:
        raise DataError(
            f"{data.path}: {task} cannot be measured in a file of kind {data.kind!r}, only {' or '.join(possible)} (see --kind and --columns)"
        )
    return task or possible[0]
