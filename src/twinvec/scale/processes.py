"""Several processes, each with the model: `with Pool("minilm", processes=2) as pool: vectors = pool.encode(texts)`.

The workers are plain child processes that import twinvec and nothing of the caller's program. So a script needs no `if __name__ == "__main__"`, a
notebook works, and nothing is forked from a process with threads.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet  # another class than TimeoutError before Python 3.11
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np

import twinvec
from twinvec.errors import EncodeError, UsageError
from twinvec.model.inputs import as_texts
from twinvec.model.threads import usable_cpus
from twinvec.records import Vectors
from twinvec.scale.compute import Calls, Computed, Facts, ModelSpec
from twinvec.scale.wire import pack_texts, receive, send, unpack_computed, unpack_error

AHEAD: Final = 2  # blocks a worker: one that it works on, one that waits for it
START_SECONDS: Final = 600.0
_CODE: Final = "import sys; del sys.path[0]; sys.path.append(sys.argv[1]); from twinvec.scale.worker import main; main()"


class WorkerError(EncodeError):
    """A process of a pool has ended, or does not answer."""


class _Worker:
    """A child process, and the thread of ours that talks to it."""

    def __init__(self, number: int, total: int, model: ModelSpec, device: str | None, threads: int, tasks: queue.Queue[Any]) -> None:
        self.name = f"process {number + 1} of {total}"
        self.model, self.device, self.threads, self.tasks = model, device, threads, tasks
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        root = str(Path(twinvec.__file__).resolve().parents[1])
        self.child = subprocess.Popen(
            [sys.executable, "-c", _CODE, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false"},
            start_new_session=True,  # Ctrl-C is for the parent, who ends its workers
        )
        self.ready: Future[Facts] = Future()
        self.thread = threading.Thread(target=self._serve, name=f"twinvec {self.name}", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        try:
            head, _ = self._ask({"model": self.model.name, "options": self.model.options, "device": self.device, "threads": self.threads})
            self.ready.set_result(Facts.from_dict(head["ready"]))
        except BaseException as err:
            self.ready.set_exception(err)
            return
        while (task := self.tasks.get()) is not None:
            future, head, body = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(unpack_computed(*self._ask(head, body)))
            except BaseException as err:
                future.set_exception(err)
                if isinstance(err, WorkerError):
                    return

    def _ask(self, head: dict[str, Any], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        try:
            send(self.child.stdin, head, body)  # type: ignore[arg-type]
            found, answer = receive(self.child.stdout)  # type: ignore[arg-type]
        except (EOFError, OSError, ValueError) as err:
            raise self._died() from err
        if "error" in found:
            raise unpack_error(found, self.name)
        return found, answer

    def _died(self) -> WorkerError:
        with suppress(subprocess.TimeoutExpired):
            self.child.wait(5)
        code = self.child.returncode
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else "a signal"
            how = f"was ended by signal {-code} ({name})" + ("; is there enough memory for so many processes?" if code == -9 else "")
        else:
            how = f"ended with exit status {code}" if code is not None else "does not answer"
        return WorkerError(f"{self.name} (pid {self.child.pid}) {how}{self._last_words()}")

    def _last_words(self) -> str:
        try:
            self.errors.seek(0, os.SEEK_END)
            self.errors.seek(max(self.errors.tell() - 2000, 0))
            lines = self.errors.read().decode("utf-8", "replace").strip().splitlines()
        except (OSError, ValueError):
            return ""
        return f"; its last line: {lines[-1][:200]}" if lines else ""

    def close(self) -> None:
        """End the process; it holds nothing that is not elsewhere."""
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        for stream in (self.child.stdin, self.child.stdout):
            if stream is not None:
                with suppress(OSError, ValueError):
                    stream.close()
        if self.thread is not threading.current_thread():
            self.thread.join(5)
        self.errors.close()


class Pool:
    """Processes that encode with one model; a context manager, which ends them in every case.

    model: a name or folder, as for `Encoder.load`, or an Encoder that was loaded from one. processes: None takes one a device, else 1.
    devices: such as ["cuda:0", "cuda:1"], dealt out in turn. threads: of each process; None divides the CPUs that this process may use.
    options: as for `Encoder.load` (precision, engine, pooling, max_tokens, revision).
    Raises UsageError for numbers below 1, whatever `Encoder.load` raises, and WorkerError (an EncodeError) naming a process that has ended.
    """

    def __init__(
        self, model: Any, *, processes: int | None = None, devices: Sequence[str] = (), threads: int | None = None, **options: Any
    ) -> None:  # fmt: skip
        for name, value in (("processes", processes), ("threads", threads)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise UsageError(f"{name} = {value!r}: wanted a number, 1 or more")
        self.spec = spec_of(model, options)
        self._wanted: str | None = getattr(model, "fingerprint", None)
        self.devices = list(devices)
        self.processes = processes or max(len(self.devices), 1)
        self.threads = threads or max(usable_cpus() // self.processes, 1)
        self._tasks: queue.Queue[Any] = queue.Queue()
        self._workers: list[_Worker] = []
        self._facts: Facts | None = None

    @property
    def facts(self) -> Facts:
        if self._facts is None:
            raise UsageError("this pool is not open; use it as: with Pool(...) as pool: ...")
        return self._facts

    @property
    def pids(self) -> list[int]:
        """Of the workers."""
        return [worker.child.pid for worker in self._workers]

    def notes(self) -> list[str]:
        """When so many processes do not pay."""
        cpus = usable_cpus()
        if self.processes > cpus and not any(device.startswith("cuda") for device in self.devices):
            return [f"{self.processes} processes on {cpus} CPUs stand in each other's way; {cpus} at most are of use"]
        return []

    def __enter__(self) -> Pool:
        try:
            for number in range(self.processes):
                device = self.devices[number % len(self.devices)] if self.devices else None
                self._workers.append(_Worker(number, self.processes, self.spec, device, self.threads, self._tasks))
            deadline = time.monotonic() + START_SECONDS
            for worker in self._workers:
                try:
                    found = worker.ready.result(max(deadline - time.monotonic(), 0.1))
                except NotYet:
                    raise WorkerError(f"{worker.name} (pid {worker.child.pid}) has not loaded the model after {START_SECONDS:.0f} s") from None
                if self._facts is not None and found.fingerprint != self._facts.fingerprint:
                    raise WorkerError(f"{worker.name} has loaded another model than the first: was {self.spec.name} changed just now?")
                if self._wanted not in (None, found.fingerprint):
                    raise UsageError(f"model: this encoder is not the one in {self.spec.name} (any more); save it, and give the folder")
                self._facts = self._facts or found
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            self._tasks.put(None)
            with suppress(OSError):
                worker.child.kill()
        for worker in self._workers:
            worker.close()
        self._workers, self._facts = [], None

    def results(self, blocks: Iterator[list[str]], calls: Calls) -> Iterator[Computed]:
        """Vectors of each block, in order; at most `AHEAD` blocks a process are under way."""
        dimensions = self.facts.dimensions
        waiting: deque[Future[Computed]] = deque()
        try:
            for texts in blocks:
                future: Future[Computed] = Future()
                if texts:
                    self._tasks.put((future, {"texts": len(texts), "calls": asdict(calls)}, pack_texts(texts)))
                else:
                    future.set_result(Computed(np.zeros((0, dimensions), np.float32), np.zeros((0, 5), np.int64)))
                waiting.append(future)
                if len(waiting) >= AHEAD * self.processes:
                    yield self._wait(waiting.popleft())
            while waiting:
                yield self._wait(waiting.popleft())
        finally:
            for future in waiting:
                future.cancel()

    def _wait(self, future: Future[Computed]) -> Computed:
        """The result; an error as soon as any process has ended, since what it took with it may be what is waited for."""
        while True:
            try:
                return future.result(0.5)
            except NotYet:
                for worker in self._workers:
                    if worker.child.poll() is not None and not future.done():
                        raise worker._died() from None

    def encode(self, texts: Any, *, prompt: str | None = None, on_long: str = "truncate", batch_tokens: int | None = None) -> Vectors:
        """As `Encoder.encode`: float32 (n, D), in the order of the texts."""
        listed = as_texts(texts)
        size = max(min(4096, -(-len(listed) // (2 * self.processes))), 64)
        blocks = (listed[at : at + size] for at in range(0, len(listed), size))
        found = [part.vectors for part in self.results(blocks, Calls(prompt, on_long, batch_tokens))]
        return np.concatenate(found) if found else np.zeros((0, self.facts.dimensions), np.float32)


def spec_of(model: Any, options: dict[str, Any]) -> ModelSpec:
    """What other processes load. UsageError for an encoder that lies nowhere, or was changed since it was loaded."""
    if isinstance(model, ModelSpec):
        return model
    if isinstance(model, (str, Path)):
        return ModelSpec(str(model), options)
    source = getattr(model, "source", None)
    if source is None:
        raise UsageError("model: this encoder was not loaded from a folder, so other processes cannot load it; save it, and give the folder")
    engine = getattr(model.engine, "name", model.engine)
    given = {"precision": model.precision, "max_tokens": model.max_tokens, "engine": engine}
    if pooling := getattr(model.engine, "pooling", None):
        given["pooling"] = "+".join(pooling)
    return ModelSpec(str(source), {**given, **options})


__all__ = ["Pool", "WorkerError", "spec_of"]
