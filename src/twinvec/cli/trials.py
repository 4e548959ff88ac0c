"""Running the measurements of `twinvec tune`, each in a process with a bound on its time."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twinvec.files import write_json


@dataclass(frozen=True)
class Setting:
    """What one measurement tries; None leaves threads or the tokens of a batch to the engine."""

    engine: str
    precision: str
    threads: int | None = None
    batch_tokens: int | None = None

    @property
    def exported(self) -> bool:
        return self.engine in ("ctranslate2", "onnx")

    def __str__(self) -> str:
        return f"{self.engine} {self.precision}"


@dataclass
class Trial:
    """What came of it: a rate in texts a second with the rest, or an error."""

    setting: Setting
    error: str | None = None
    rate: float = 0.0
    threads: int = 0
    memory: int | None = None
    least_cosine: float | None = None
    mean_cosine: float | None = None
    quality: float | None = None

    def to_dict(self) -> dict[str, Any]:
        shown = {"engine": self.setting.engine, "precision": self.setting.precision, "batch_tokens": self.setting.batch_tokens}
        if self.error is not None:
            return {**shown, "error": self.error}
        return {
            **shown, "threads": self.threads, "texts_per_second": round(self.rate, 2), "peak_memory": self.memory,
            "least_cosine": self.least_cosine, "mean_cosine": self.mean_cosine, "quality": self.quality,
        }  # fmt: skip


class Laboratory:
    """Measures settings of one model on one set of texts. The first one measured is the reference of the others' cosines.

    models: the folder to load for torch, and the one that holds the exports. seconds: how long a measurement encodes; bound: when it is given up.
    """

    def __init__(
        self, work: Path, texts: list[str], *, plain: str, exports: Path, prompt: str | None, data: Path | None, reads: dict[str, Any],
        seconds: float, bound: float,
    ) -> None:  # fmt: skip
        self.work, self.plain, self.exports = work, plain, exports
        self.prompt, self.data, self.reads, self.seconds, self.bound = prompt, data, reads, seconds, bound
        self.texts = work / "texts.json"
        write_json(self.texts, texts)
        self.count = 0
        self.reference: Any = None

    def export(self, settings: list[Setting]) -> dict[Setting, str]:
        """Make exports; the errors of those that failed. In one process, or each in its own when that one came to grief."""
        if not settings:
            return {}
        pairs = [[setting.engine, setting.precision] for setting in settings]
        answer = self._run({"what": "export", "model": str(self.exports), "pairs": pairs}, self.bound * len(settings))
        if "errors" in answer:
            return {setting: error for setting, error in zip(settings, answer["errors"], strict=True) if error is not None}
        if len(settings) == 1:
            return {settings[0]: answer["error"]}
        return {one: error for setting in settings for one, error in self.export([setting]).items()}

    def measure(self, setting: Setting) -> Trial:
        vectors = self.work / f"vectors-{self.count}.npy"
        job = {
            "what": "measure", "model": str(self.exports) if setting.exported else self.plain, "engine": setting.engine,
            "precision": setting.precision, "threads": setting.threads, "batch_tokens": setting.batch_tokens, "texts": str(self.texts),
            "prompt": self.prompt, "seconds": self.seconds, "vectors": str(vectors), "data": None if self.data is None else str(self.data),
            "reads": self.reads,
        }  # fmt: skip
        answer = self._run(job)
        if "error" in answer:
            return Trial(setting, error=answer["error"])
        least, mean = self._cosines(np.load(vectors, allow_pickle=False))
        vectors.unlink()
        return Trial(
            setting, rate=answer["rate"], threads=answer["threads"], memory=answer["memory"], least_cosine=least, mean_cosine=mean,
            quality=answer.get("quality"),
        )  # fmt: skip

    def _cosines(self, vectors: Any) -> tuple[float, float]:
        rows = vectors.astype(np.float64)
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        rows /= np.where(length > 0, length, 1)
        if self.reference is None:
            self.reference = rows
        cosine = np.where((rows != 0).any(1) | (self.reference != 0).any(1), (rows * self.reference).sum(1), 1.0)
        return round(float(cosine.min()), 6), round(float(cosine.mean()), 6)

    def _run(self, job: dict[str, Any], bound: float | None = None) -> dict[str, Any]:
        bound = bound or self.bound
        self.count += 1
        path, answer = self.work / f"job-{self.count}.json", self.work / f"answer-{self.count}.json"
        write_json(path, {**job, "answer": str(answer)})
        try:
            found = subprocess.run(
                [sys.executable, "-m", "twinvec.cli.trial", str(path)], capture_output=True, text=True, timeout=bound, errors="replace"
            )
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {bound:.0f} s"}
        if not answer.is_file():
            last = (found.stderr.strip().splitlines() or ["no message"])[-1][:200]
            how = f"signal {-found.returncode}" if found.returncode < 0 else f"exit status {found.returncode}"
            return {"error": f"the process ended with {how} ({last})"}
        told: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return told
