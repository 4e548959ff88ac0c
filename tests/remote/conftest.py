"""The servers, once a session, and a place for each kind of collection."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "index"))

import remote_servers as servers
from index_fakes import FakeEncoder
from remote_places import Place, place_of


def _session(start: Callable[[Path], tuple[servers.Server, str]]) -> Iterator[str]:
    # Not in pytest's own folder: that is closed to the unprivileged user that PostgreSQL runs as.
    folder = Path(tempfile.mkdtemp(prefix="twinvec-server-"))
    folder.chmod(0o755)
    server = None
    try:
        try:
            server, url = start(folder)
        except servers.CannotStartError as err:
            if os.environ.get("TWINVEC_NEED_SERVERS"):
                raise
            pytest.skip(f"no server: {err}")
        yield url
    finally:
        if server is not None:
            server.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    yield from _session(servers.postgres)


@pytest.fixture(scope="session")
def milvus_url() -> Iterator[str]:
    yield from _session(servers.milvus)


@pytest.fixture
def encoder() -> FakeEncoder:
    return FakeEncoder()


@pytest.fixture(params=["local", "postgres", "milvus"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = place_of(request.param, request, tmp_path)
    yield made
    made.clear()


@pytest.fixture(params=["postgres", "milvus"])
def server_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = place_of(request.param, request, tmp_path)
    yield made
    made.clear()


@pytest.fixture
def postgres_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = place_of("postgres", request, tmp_path)
    yield made
    made.clear()


@pytest.fixture
def milvus_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = place_of("milvus", request, tmp_path)
    yield made
    made.clear()


@pytest.fixture
def local_place(tmp_path: Path) -> Iterator[Place]:
    made = Place("local", str(tmp_path / "local"))
    yield made
    made.clear()
