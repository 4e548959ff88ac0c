"""What a profile and an export remember of the machine they were made on."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import Any

from twinvec.model.threads import usable_cpus


@cache
def cpu_model(info: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, such as 'AMD EPYC 9R14'; its architecture where nothing says more."""
    try:
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip().lower() in ("model name", "hardware", "cpu model") and value.strip():
                return " ".join(value.split())
    except OSError:
        pass
    return platform.processor() or platform.machine()


def describe_machine() -> dict[str, Any]:
    """Processor, architecture and the CPUs that may be used: what decides which engine is fastest."""
    return {"cpu": cpu_model(), "architecture": platform.machine(), "cpus": usable_cpus(), "system": platform.system()}
