"""FAISS threads: together no more than torch may use, however many callers there are.

FAISS asks OpenMP for all cores of the host, also inside a container that was granted two, and each calling thread of a service gets a team of its
own. Here a call takes as many of the granted cores as it has work for, and waits for them: a batch takes all, single queries run side by side. The
number of OpenMP threads is the calling thread's own, so callers do not change each other's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Cores:
    """Who may run: calls are let in one after the other, each as soon as there are cores for it, so that a large one is not passed by small ones."""

    def __init__(self) -> None:
        self.turn, self.change, self.used = threading.Lock(), threading.Condition(), 0

    def take(self, cores: int, granted: int) -> None:
        with self.turn, self.change:
            self.change.wait_for(lambda: not self.used or self.used + cores <= granted)
            self.used += cores

    def give(self, cores: int) -> None:
        with self.change:
            self.used -= cores
            self.change.notify_all()


_cores = _Cores()
_own = threading.local()  # `inside`: this thread holds cores already


def _forget() -> None:
    global _cores
    _cores = _Cores()
    _own.inside = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)  # what another thread of the parent held would never be given back


@contextmanager
def bounded(threads: int | None = None, *, pieces: int | None = None) -> Iterator[None]:
    """FAISS runs with `threads` (torch's number by default) inside, with fewer where the call has fewer `pieces` that can run apart."""
    import faiss
    import torch

    granted = torch.get_num_threads()
    wanted = threads or granted
    if pieces is not None:
        wanted = max(1, min(wanted, pieces))
    outer, cores = not getattr(_own, "inside", False), _cores
    if outer:
        cores.take(wanted, granted)
    before = faiss.omp_get_max_threads()
    try:
        _own.inside = True
        faiss.omp_set_num_threads(wanted)
        yield
    finally:
        faiss.omp_set_num_threads(before)
        if outer:
            _own.inside = False
            cores.give(wanted)
