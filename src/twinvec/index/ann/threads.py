"""FAISS threads: as many as torch may use, for every caller together.

FAISS asks OpenMP for all cores of the host, also inside a container that was granted two, and each calling thread of a service gets a team of its
own. Here one call runs at a time with a bounded team; others wait, which is no slower: the cores are the same.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.RLock()


@contextmanager
def bounded(threads: int | None = None) -> Iterator[None]:
    """FAISS runs with `threads` (torch's number by default) inside; one caller at a time."""
    import faiss
    import torch

    wanted = threads or torch.get_num_threads()
    with _LOCK:
        before = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(wanted)
        try:
            yield
        finally:
            faiss.omp_set_num_threads(before)
