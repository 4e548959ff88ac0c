"""The client of a Milvus server, and its errors as a user can act on them."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from twinvec.errors import CollectionError, UsageError
from twinvec.index.remote.address import Address

LIMIT = 16_384  # rows that Milvus gives for one search or query
TIMEOUT = 60.0


class Link:
    """Calls on one collection; reads are strongly consistent, so that a row is found the moment it is stored."""

    def __init__(self, address: Address) -> None:
        self.address, self.name, self.pid = address, address.collection, os.getpid()
        self._client: Any = None
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", self.name):
            raise UsageError(f"collection {self.name!r}: Milvus takes names of letters, digits and _ (no digit first), up to 255")

    @property
    def client(self) -> Any:
        if self._client is None or self.pid != os.getpid():
            self._client, self.pid = self._connect(), os.getpid()
        return self._client

    def _connect(self) -> Any:
        pymilvus = load()
        a = self.address
        scheme = "https" if a.options.get("secure") == "true" else "http"
        secrets = {"user": a.user or "", "password": a.password or "", "token": a.options.get("token") or os.environ.get("MILVUS_TOKEN", "")}
        # pymilvus pings every 10 seconds, also when nothing is asked; servers with gRPC's own limits then close the connection ("too_many_pings").
        quiet = {"grpc.keepalive_time_ms": 300_000}
        uri = f"{scheme}://{a.host}:{a.port or 19530}"

        def connected() -> Any:
            return pymilvus.MilvusClient(uri=uri, db_name=a.database or "", timeout=10, grpc_options=quiet, **secrets)

        try:
            try:
                return connected()
            except Exception:
                # A server that is there but did not answer in time is asked once more: it may have just closed the channel, or be busy.
                if not _listens(a.host, a.port or 19530):
                    raise
                return connected()
        except Exception as err:
            said = a.hide(" ".join(str(err).split()))[:300]
            raise CollectionError(f"{a.shown}: cannot connect ({said}); is the server up, and are user and password right?") from None

    def close(self) -> None:
        if self._client is not None and self.pid == os.getpid():
            with suppress(Exception):
                self._client.close()
        self._client = None

    @contextmanager
    def errors(self) -> Iterator[Any]:
        """The client; what the server refuses comes out as CollectionError, without the password."""
        pymilvus = load()
        try:
            yield self.client
        except pymilvus.MilvusException as err:
            said = self.address.hide(" ".join(str(getattr(err, "message", err)).split()))[:300]
            missing = getattr(err, "code", 0) == 100 or ("not found" in said and self.name in said)
            if missing:
                raise CollectionError(
                    f"{self.address.shown}: no collection of that name; make it with: twinvec index URL DOCUMENTS --model MODEL"
                ) from None
            raise CollectionError(f"{self.address.shown}: the server refused ({said})") from None

    def exists(self) -> bool:
        with self.errors() as client:
            return bool(client.has_collection(self.name, timeout=TIMEOUT))

    def query(self, expression: str, columns: list[str], limit: int = LIMIT) -> list[dict[str, Any]]:
        with self.errors() as client:
            found = client.query(self.name, filter=expression, output_fields=columns, limit=limit, consistency_level="Strong", timeout=TIMEOUT)
            return [dict(row) for row in found]

    def count(self, expression: str) -> int:
        with self.errors() as client:
            found = client.query(self.name, filter=expression, output_fields=["count(*)"], consistency_level="Strong", timeout=TIMEOUT)
            return int(found[0]["count(*)"])

    def scan(self, expression: str, columns: list[str], batch: int = 1000) -> Iterator[list[dict[str, Any]]]:
        """All rows that an expression holds for, in blocks."""
        with self.errors() as client:
            rows = client.query_iterator(self.name, filter=expression, output_fields=columns, batch_size=batch, consistency_level="Strong")
            try:
                while block := rows.next():
                    yield [dict(row) for row in block]
            finally:
                rows.close()

    def upsert(self, rows: list[dict[str, Any]]) -> None:
        with self.errors() as client:
            client.upsert(self.name, rows, timeout=TIMEOUT)

    def delete(self, keys: list[str]) -> None:
        with self.errors() as client:
            for at in range(0, len(keys), 500):
                client.delete(self.name, ids=keys[at : at + 500], timeout=TIMEOUT)

    def search(self, data: Any, field: str, expression: str, columns: list[str], limit: int, **parameters: Any) -> list[Any]:
        with self.errors() as client:
            found = client.search(
                self.name, data=[data], anns_field=field, filter=expression, output_fields=columns, limit=limit, search_params=parameters,
                consistency_level="Strong", timeout=TIMEOUT,
            )  # fmt: skip
            return list(found[0])


def _listens(host: str, port: int) -> bool:
    """True when something takes connections there."""
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False


def load() -> Any:
    try:
        import pymilvus
    except ImportError:
        raise UsageError("a collection in Milvus needs pip install 'twinvec[milvus]'") from None
    logger = logging.getLogger("pymilvus")
    if logger.level < logging.CRITICAL:  # it logs every error that it also raises, with a traceback
        logger.setLevel(logging.CRITICAL)
    return pymilvus
