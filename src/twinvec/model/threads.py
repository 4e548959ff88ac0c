"""How many threads this process may use: the CPU quota of the container, not the cores of the host."""

from __future__ import annotations

import math
import os
from functools import cache
from pathlib import Path


def cpu_quota(root: Path = Path("/sys/fs/cgroup"), cgroup: Path = Path("/proc/self/cgroup")) -> float | None:
    """CPUs that the cgroup (v2, or v1) grants, or None without a limit. The tightest limit on the way up counts."""
    found: list[float] = []
    for folder in _cgroup_folders(root, cgroup):
        v2 = folder / "cpu.max"
        if v2.is_file():
            quota, _, period = v2.read_text().strip().partition(" ")
            if quota != "max":
                found.append(int(quota) / int(period or 100_000))
    for folder in (root / "cpu", root / "cpu,cpuacct"):
        v1 = folder / "cpu.cfs_quota_us"
        if v1.is_file():
            quota_us = int(v1.read_text())
            if quota_us > 0:
                found.append(quota_us / int((folder / "cpu.cfs_period_us").read_text()))
    return min(found) if found else None


def _cgroup_folders(root: Path, cgroup: Path) -> list[Path]:
    folders = [root]
    if cgroup.is_file():
        for line in cgroup.read_text().splitlines():
            if line.startswith("0::"):
                inside = root
                for part in line[3:].strip("/").split("/"):
                    inside = inside / part
                    folders.append(inside)
    return folders


def usable_cpus() -> int:
    """CPUs this process may run on: affinity and cgroup quota, rounded up, at least 1."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    if quota is not None:
        available = min(available, math.ceil(quota))
    return max(1, available)


@cache
def respect_quota() -> int:
    """Lower torch's thread count to the quota, once a process, unless OMP_NUM_THREADS says otherwise. Returns the count in force."""
    import torch

    if not os.environ.get("OMP_NUM_THREADS"):
        limit = usable_cpus()
        if torch.get_num_threads() > limit:
            torch.set_num_threads(limit)
    return torch.get_num_threads()
