"""What the benchmarks share: sentences of a known length mix, peak memory of a child process, a line for RESULTS.md."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
import time
from importlib import metadata
from pathlib import Path

import numpy as np

from twinvec.data.sample import load_faq
from twinvec.model.encoder import Encoder

HERE = Path(__file__).resolve().parent


def mixed_sentences(encoder: Encoder, n: int = 2000, seed: int = 0) -> list[str]:
    """n texts of 8-256 tokens whose lengths are log-normal: median 16, 95th percentile 146. Words from the sample FAQ."""
    rng = np.random.default_rng(seed)
    words = [word for entry in load_faq("en") for text in (entry.answer, *entry.train) for word in text.split() if word.isalpha()]
    sigma = np.log(146 / 16) / 1.645  # the normal deviate of the 95th percentile
    lengths = np.clip(np.exp(rng.normal(np.log(16), sigma, n)), 8, 256).astype(int)
    special = len(encoder.tokens.prefix) + len(encoder.tokens.suffix)
    texts = []
    for length in lengths:
        content = encoder.tokens.content([" ".join(rng.choice(words, length))])[0][: length - special]
        texts.append(encoder.tokens.tokenizer.decode(content))
    return texts


def in_child(script: str, *arguments: str) -> dict:
    """Run a benchmark part in its own process; its last line of output is JSON. Adds peak_rss_mb of that process."""
    command = [sys.executable, script, *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
    ) as child:
        peak = [0]
        watcher = threading.Thread(target=_watch, args=(child.pid, peak), daemon=True)
        watcher.start()
        out, _ = child.communicate()
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
    return {**json.loads(out.strip().splitlines()[-1]), "peak_rss_mb": peak[0] // 1024}


def _watch(pid: int, peak: list[int]) -> None:
    status = Path(f"/proc/{pid}/status")
    while status.exists():
        try:
            for line in status.read_text().splitlines():
                if line.startswith("VmHWM:"):
                    peak[0] = max(peak[0], int(line.split()[1]))
        except OSError:
            return
        time.sleep(0.2)


def versions(*names: str) -> str:
    return ", ".join(f"{name} {metadata.version(name)}" for name in names)


def machine() -> str:
    model = next(
        (line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")),
        platform.processor(),
    )
    return f"{model}, {len(os.sched_getaffinity(0))} CPUs"
