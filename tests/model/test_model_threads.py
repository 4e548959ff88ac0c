"""The CPU quota from cgroup trees made by hand; and an import that touches neither torch nor the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from twinvec.model import threads
from twinvec.model.threads import cpu_quota, usable_cpus

TREES: dict[str, tuple[dict[str, str], str, float | None]] = {
    "no cgroups at all": ({}, "", None),
    "v2, no limit": ({"cpu.max": "max 100000\n"}, "0::/\n", None),
    "v2, at the root of a container": ({"cpu.max": "150000 100000\n"}, "0::/\n", 1.5),
    "v2, period left out": ({"cpu.max": "200000"}, "0::/\n", 2.0),
    "v2, nested": ({"kube/pod/cpu.max": "50000 100000\n"}, "0::/kube/pod\n", 0.5),
    "v2, the tightest on the way counts": (
        {"cpu.max": "max 100000\n", "kube/cpu.max": "100000 100000\n", "kube/pod/cpu.max": "400000 100000\n", "other/cpu.max": "1 100000\n"},
        "0::/kube/pod\n",
        1.0,
    ),
    "v2, no file of the process": ({"cpu.max": "300000 100000\n"}, "", 3.0),
    "v1": ({"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"}, "4:cpu:/\n", 2.5),
    "v1, no limit": ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, "4:cpu:/\n", None),
    "v1, joint controller, nested": (
        {
            "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "120000\n",
            "cpu,cpuacct/docker/abc/cpu.cfs_period_us": "60000\n",
        },
        "11:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n",
        2.0,
    ),
    "v1 beside an empty v2": ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n", "unified/x": ""}, "1:cpu:/\n0::/\n", 1.0),
    "v2 beside v1, limited": ({"unified/x/cpu.max": "50000 100000\n"}, "1:cpu:/\n0::/x\n", 0.5),
    "nonsense": ({"cpu.max": "many\n", "cpu/cpu.cfs_quota_us": "5\n"}, "0::/\n??\n", None),
    "a period of zero": ({"cpu.max": "100000 0\n"}, "0::/\n", None),
}


@pytest.mark.parametrize("name", TREES)
def test_quota(name: str, tmp_path: Path) -> None:
    files, process, wanted = TREES[name]
    for path, content in files.items():
        (tmp_path / "cgroup" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / path).write_text(content)
    if process:
        (tmp_path / "self").write_text(process)
    assert cpu_quota(tmp_path / "cgroup", tmp_path / "self") == wanted


@pytest.mark.parametrize(("quota", "wanted"), [(0.2, 1), (1.0, 1), (1.5, 2), (1000.0, None), (None, None)])
def test_usable_cpus_are_rounded_up_and_at_least_one(quota: float | None, wanted: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    monkeypatch.setattr(threads, "cpu_quota", lambda: quota)
    assert usable_cpus() == min(wanted or cores, cores)


def test_import_is_light() -> None:
    """`import twinvec` loads no torch, no transformers, and leaves the environment as it was."""
    code = (
        "import os, sys; before = dict(os.environ)\n"
        "import twinvec\n"
        "assert dict(os.environ) == before, 'environment changed'\n"
        "heavy = {'torch', 'transformers', 'numpy', 'polars'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert twinvec.Encoder.__name__ == 'Encoder' and 'torch' not in sys.modules\n"
        "assert dict(os.environ) == before, 'environment changed'\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(("variable", "wanted"), [({}, "1"), ({"OMP_NUM_THREADS": "2"}, "2")])
def test_threads_follow_the_quota_unless_told(variable: dict[str, str], wanted: str) -> None:
    code = (
        "from twinvec.model import threads\n"
        "threads.cpu_quota = lambda: 0.7\n"
        "print(threads.respect_quota())\n"
    )  # fmt: skip
    env = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**env, **variable, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert found.stdout.strip() == wanted, found.stderr
