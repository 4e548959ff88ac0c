"""How many threads this process may use: the CPU quota of the container, not the cores of the host."""

from __future__ import annotations

import math
import os
from functools import cache
from pathlib import Path


def cpu_quota(root: Path = Path("/sys/fs/cgroup"), cgroup: Path = Path("/proc/self/cgroup")) -> float | None:
    """CPUs that the cgroup (v2, or v1) grants, or None without a limit. The tightest limit on the way up counts."""
    found = [limit for folder in _cgroup_folders(root, cgroup) if (limit := _limit(folder)) is not None]
    return min(found) if found else None


def _limit(folder: Path) -> float | None:
    """The limit that one cgroup folder states, in CPUs; None when it states none, or nothing that can be read."""
    try:
        if (folder / "cpu.max").is_file():
            quota, _, period = (folder / "cpu.max").read_text().strip().partition(" ")
            return None if quota == "max" else int(quota) / int(period or 100_000)
        if (folder / "cpu.cfs_quota_us").is_file():
            quota_us = int((folder / "cpu.cfs_quota_us").read_text())
            return quota_us / int((folder / "cpu.cfs_period_us").read_text()) if quota_us > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        pass  # a thread count is no reason to fail
    return None


def _cgroup_folders(root: Path, cgroup: Path) -> list[Path]:
    """Where limits may stand: the root of each hierarchy, and every folder from there down to this process's own."""
    v1 = [root / name for name in ("cpu", "cpu,cpuacct")]
    folders = [root, *v1]
    try:
        lines = cgroup.read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        parts = path.strip("/").split("/")
        if number == "0" and not controllers:  # v2, alone or beside v1
            tops = [root, root / "unified"]
        else:
            tops = v1 if "cpu" in controllers.split(",") else []
        folders += [top.joinpath(*parts[: depth + 1]) for top in tops for depth in range(len(parts))]
    return folders


def usable_cpus() -> int:
    """CPUs this process may run on: affinity and cgroup quota, rounded up, at least 1."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    if quota is not None:
        available = min(available, math.ceil(quota))
    return max(1, available)


def default_threads() -> int:
    """Threads of an engine other than torch: what OMP_NUM_THREADS says (which those libraries know too), else the CPUs that may be used."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return int(told) if told.isdigit() and int(told) > 0 else usable_cpus()


@cache
def respect_quota() -> int:
    """Lower torch's thread count to the quota, once a process, unless OMP_NUM_THREADS says otherwise. Returns the count in force."""
    import torch

    if not os.environ.get("OMP_NUM_THREADS"):
        limit = usable_cpus()
        if torch.get_num_threads() > limit:
            torch.set_num_threads(limit)
    return torch.get_num_threads()
