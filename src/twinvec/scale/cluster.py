"""Encoding on a Ray cluster: actors that hold the model, and one driver that reads, asks in order, and writes.

Ray Data's pipelines were not taken: they read the input inside the cluster, so every node would need the files, and rows would come in any order
unless kept back. The driver sends texts and gets vectors, so each shard is committed once, by one process, in order.
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from twinvec.errors import UsageError
from twinvec.model.threads import usable_cpus
from twinvec.scale.compute import Calls, Computed, Facts, ModelSpec, encode_block
from twinvec.scale.processes import AHEAD, WorkerError, spec_of
from twinvec.scale.wire import pack_error, unpack_error

LOCAL: Final = "local"
READY_SECONDS: Final = 300.0
_CPUS_EACH: Final = 4  # CPUs for one copy of the model, unless a number of processes is asked for


class _Actor:
    """One copy of the model, somewhere in the cluster."""

    def __init__(self, spec: ModelSpec, device: str | None, threads: int) -> None:
        self.spec, self.device, self.threads = spec, device, threads
        self.encoder: Any = None

    def ready(self) -> dict[str, Any]:
        try:
            self.encoder = self.spec.load(self.device, self.threads)
            return {"ready": Facts.of(self.encoder).to_dict()}
        except Exception as err:
            return pack_error(err)

    def encode(self, texts: list[str], calls: dict[str, Any]) -> Any:
        try:
            found = encode_block(self.encoder, texts, Calls(**calls))
            return found.vectors, found.counts
        except Exception as err:
            return pack_error(err)


@dataclass(frozen=True)
class Share:
    """What is asked of the cluster."""

    actors: int
    cpus: float
    gpus: float
    threads: int


def share(actors: int | None, nodes: list[dict[str, float]], free: dict[str, float], where: str, gpu: bool = False) -> Share:
    """How many actors of which size. `nodes`: the resources of each node; `free`: of all of them, what nobody has.

    One CPU of the cluster stays free, since a Ray cluster without one can stop without an error. UsageError, with what is there and what was wanted,
    where actors would wait for ever.
    """
    total, largest = sum(node.get("CPU", 0) for node in nodes), max((node.get("CPU", 0) for node in nodes), default=0)
    gpus = sum(node.get("GPU", 0) for node in nodes)
    there = f"{where} has {len(nodes)} node{'s' * (len(nodes) != 1)} with {total:g} CPUs ({free.get('CPU', 0):g} free) and {gpus:g} GPUs"
    if total <= 0:
        raise UsageError(f"--ray: {there}; at least one CPU is needed, so wait for its nodes or give another address")
    if gpu and gpus < (actors or 1):
        raise UsageError(f"--ray: {there}; {actors or 1} processes with a GPU each were asked for; leave out --device, or give fewer --processes")
    number = actors or (int(gpus) if gpu else max(len(nodes), math.ceil(total / _CPUS_EACH)))
    if number > total:
        raise UsageError(f"--ray: {there}; {number} processes were asked for; give --processes {max(int(total), 1)} or fewer")
    each = min((total - 1) / number if total > 1 else total / 2 / number, largest)
    cpus = float(int(each)) if each >= 1 else math.floor(each * 100) / 100
    wanted = number * cpus
    if wanted > free.get("CPU", 0) + 1e-9 or (gpu and number > free.get("GPU", 0)):
        raise UsageError(
            f"--ray: {there}; {number} processes of {cpus:g} CPUs{' and a GPU' if gpu else ''} are wanted. "
            "Other work has them: wait for it, or give fewer --processes"
        )
    return Share(number, cpus, 1.0 if gpu else 0.0, max(1, int(total // number)))


class Cluster:
    """A Ray cluster as a `Computer`. address: "local" starts one on this machine and ends it afterwards; "auto", HOST:PORT, ray://HOST:PORT join one.

    processes: copies of the model; None takes one for each 4 CPUs, at least one a node. ready: seconds within which they must have loaded it.
    """

    def __init__(
        self, model: Any, *, address: str = LOCAL, processes: int | None = None, device: str | None = None, ready: float = READY_SECONDS,
        **options: Any,
    ) -> None:  # fmt: skip
        try:
            import ray
        except ImportError as err:
            raise UsageError("--ray needs Ray: pip install 'twinvec[ray]'") from err
        self.ray: Any = ray
        self.spec, self.address, self.device, self.asked, self.ready = spec_of(model, options), address or LOCAL, device, processes, ready
        self.processes = processes or 1
        self._actors: list[Any] = []
        self._facts: Facts | None = None
        self._ours = False
        self._folder: Path | None = None

    @property
    def facts(self) -> Facts:
        assert self._facts is not None
        return self._facts

    def __enter__(self) -> Cluster:
        try:
            self._join()
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _join(self) -> None:
        if self.ray.is_initialized():  # the caller's own
            return
        before = dict(os.environ)
        given: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
        if self.address == LOCAL:
            made = Path(tempfile.mkdtemp(prefix="tv-ray-"))
            self._folder = made
            # A token of this run, which Ray would otherwise make and leave in the user's home.
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            # Sockets lie below, and their names may have 107 characters.
            given |= {"num_cpus": usable_cpus(), "include_dashboard": False, **({"_temp_dir": str(made)} if len(str(made)) < 40 else {})}
        else:
            _knock(self.address)
        try:
            self.ray.init(address=self.address, **given)
        except Exception as err:
            reason = (str(err).strip().splitlines() or [type(err).__name__])[0][:200]
            raise UsageError(f"--ray {self.address}: no cluster could be joined ({reason}); give HOST:PORT of its head, or --ray local") from err
        finally:
            # Ray turns its usage statistics off in the environment of the process that starts it; that is for its own children alone.
            for name in set(os.environ) - set(before):
                del os.environ[name]
        self._ours = True

    def _start(self) -> None:
        ray, where = self.ray, f"the Ray cluster ({self.address})"
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        asked = share(self.asked, nodes, ray.available_resources(), where, gpu=bool(self.device and self.device.startswith("cuda")))
        self.processes = asked.actors
        made = ray.remote(num_cpus=asked.cpus, num_gpus=asked.gpus, max_restarts=0, max_task_retries=0)(_Actor)
        self._actors = [made.remote(self.spec, self.device, asked.threads) for _ in range(asked.actors)]
        waiting = [actor.ready.remote() for actor in self._actors]
        done, late = ray.wait(waiting, num_returns=len(waiting), timeout=self.ready)
        if late:
            raise WorkerError(
                f"--ray: {len(late)} of {len(waiting)} processes of {asked.cpus:g} CPUs were not ready after {self.ready:.0f} s; {where} has "
                f"{_shown(ray.cluster_resources())}, free are {_shown(ray.available_resources())}; give fewer --processes"
            )
        for number, ref in enumerate(done):
            head = self._get(ref, number)
            if "error" in head:
                raise unpack_error(head, f"Ray process {number + 1}")
            found = Facts.from_dict(head["ready"])
            if self._facts is not None and found.fingerprint != self._facts.fingerprint:
                raise WorkerError(f"--ray: the nodes have different models under the name {self.spec.name}; put the same folder on each")
            self._facts = self._facts or found

    def _get(self, ref: Any, number: int) -> Any:
        while not self.ray.wait([ref], timeout=5)[0]:  # in steps, so that Ctrl-C gets through
            pass
        try:
            return self.ray.get(ref)
        except Exception as err:
            if isinstance(err, self.ray.exceptions.RayError):
                reason = " ".join(str(err).split())[:300]
                raise WorkerError(f"Ray process {number + 1} of {self.processes} has ended: {type(err).__name__}: {reason}") from err
            raise

    def results(self, blocks: Iterator[list[str]], calls: Calls) -> Iterator[Computed]:
        """Vectors of each block, in order; at most `AHEAD` blocks an actor are under way."""
        waiting: deque[tuple[Any, int]] = deque()
        loads = [0] * len(self._actors)

        def head() -> Computed:
            ref, number = waiting.popleft()
            found = self._get(ref, number)
            loads[number] -= 1
            if isinstance(found, dict):
                raise unpack_error(found, f"Ray process {number + 1}")
            return Computed(*found)

        for texts in blocks:
            number = loads.index(min(loads))
            waiting.append((self._actors[number].encode.remote(texts, asdict(calls)), number))
            loads[number] += 1
            if len(waiting) >= AHEAD * len(self._actors):
                yield head()
        while waiting:
            yield head()

    def close(self) -> None:
        """End the actors, and the cluster if it was started here."""
        for actor in self._actors:
            with suppress(Exception):
                self.ray.kill(actor)
        self._actors = []
        if self._ours:
            self._ours = False
            with suppress(Exception):
                self.ray.shutdown()
        if self._folder is not None:
            for _ in range(5):  # its processes write their last lines
                shutil.rmtree(self._folder, ignore_errors=True)
                if not self._folder.exists():
                    break
                time.sleep(0.2)
            self._folder = None


def _knock(address: str) -> None:
    """Ray tries for minutes to reach a head that is not there; a socket knows at once."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not colon or not port.isdigit():
        raise UsageError(f"--ray {address!r}: wanted local, auto, HOST:PORT or ray://HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as err:
        raise UsageError(f"--ray {address}: nobody answers there ({err.strerror or err}); is the cluster's head running?") from err


def _shown(resources: dict[str, float]) -> str:
    return f"{resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"
