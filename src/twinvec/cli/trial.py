"""One measurement of `twinvec tune`, in a process of its own: `python -m twinvec.cli.trial JOB.json`, whose answer is left in a file.

So a measurement that hangs, crashes or takes all memory ends alone, memory is counted afresh, and no torch is loaded where none is used.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from twinvec.errors import TwinvecError
from twinvec.files import write_json


def main(path: str) -> int:
    job: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    warnings.simplefilter("ignore")
    try:
        answer = {"ok": True, **{"export": run_export, "measure": run_measure}[job["what"]](job)}
    except Exception as err:  # what an engine raises is an answer too
        answer = {"ok": False, "error": said(err)}
    write_json(job["answer"], answer)
    return 0


def said(err: Exception) -> str:
    if isinstance(err, TwinvecError):
        return str(err)
    return "out of memory" if isinstance(err, MemoryError) else f"{type(err).__name__}: {(str(err).splitlines() or [''])[0][:300]}"


def run_export(job: dict[str, Any]) -> dict[str, Any]:
    """The error of each (engine, precision), or None."""
    from twinvec.model.engines.export import export

    errors: list[str | None] = []
    for engine, precision in job["pairs"]:
        try:
            export(job["model"], engine=engine, precision=precision)
            errors.append(None)
        except Exception as err:  # what one engine cannot do, another may
            errors.append(said(err))
    return {"errors": errors}


def run_measure(job: dict[str, Any]) -> dict[str, Any]:
    """Encode the texts again and again for `seconds`; the rate of the best pass, the peak of memory, the vectors, and the quality on `data`."""
    import numpy as np

    from twinvec.model.encoder import Encoder

    texts: list[str] = json.loads(Path(job["texts"]).read_text(encoding="utf-8"))
    encoder = Encoder.load(job["model"], engine=job["engine"], precision=job["precision"], threads=job["threads"], device="cpu")
    calls = {"prompt": job["prompt"], "batch_tokens": job["batch_tokens"]}
    start = time.perf_counter()
    vectors = encoder.encode(texts, **calls)  # warms up, and is the reference of nothing yet
    times = [time.perf_counter() - start]
    while time.perf_counter() - start < job["seconds"]:
        before = time.perf_counter()
        encoder.encode(texts, **calls)
        times.append(time.perf_counter() - before)
    answer: dict[str, Any] = {"rate": len(texts) / min(times), "passes": len(times), "threads": encoder.threads, "memory": peak_memory()}
    np.save(job["vectors"], vectors)
    if job["data"] is not None:
        from twinvec.cli.console import Console
        from twinvec.cli.export import quality_of

        answer["quality"] = quality_of(Console(quiet=True), Path(job["data"]), job["prompt"], job["reads"])(encoder)
    return answer


def peak_memory() -> int | None:
    """The most bytes that this process has held; None where the system does not say."""
    try:
        # getrusage would give the larger of this and the parent's, which is kept through fork and exec.
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
