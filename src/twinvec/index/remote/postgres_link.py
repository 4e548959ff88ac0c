"""One connection to PostgreSQL: opened when it is needed, in transactions that nest, with errors a user can act on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from twinvec.errors import CollectionError, UsageError
from twinvec.index.remote.address import Address


class Link:
    """Used by one thread at a time; a process that was forked from this one gets a connection of its own."""

    def __init__(self, address: Address) -> None:
        self.address, self.pid = address, os.getpid()
        self.schema = f'"{address.collection}"'
        self._connection: Any = None
        self._depth = 0
        name = address.collection
        if re.fullmatch(r"[^\W\d][\w .-]*", name) is None or len(name.encode()) > 63 or name.lower().startswith("pg_"):
            raise UsageError(
                f"collection {name!r}: in PostgreSQL names have letters, digits, spaces and _ . - (a letter first), up to 63 bytes, "
                "and do not begin with pg_"
            )

    @property
    def connection(self) -> Any:
        if self._connection is not None and self.pid != os.getpid():
            self._connection, self._depth = None, 0  # the other process goes on using it
        if self._connection is None or (self._connection.closed and not self._depth):
            self._connection, self.pid = self._connect(), os.getpid()
        return self._connection

    def _connect(self) -> Any:
        psycopg = load()
        a = self.address
        given = {"host": a.host, "port": a.port, "user": a.user, "password": a.password, "dbname": a.database}
        options = {"application_name": "twinvec", "connect_timeout": "10", **a.options, **{name: value for name, value in given.items() if value}}
        try:
            return psycopg.connect(**options, autocommit=True)
        except psycopg.Error as err:
            said = a.hide(" ".join(str(err).split()))
            raise CollectionError(f"{a.shown}: cannot connect ({said}); is the server up, and are user and password right?") from None

    def close(self) -> None:
        if self._connection is not None and self.pid == os.getpid():
            with suppress(Exception):
                self._connection.close()
        self._connection, self._depth = None, 0

    # statements

    def rows(self, sql: str, values: Sequence[Any] = (), *, binary: bool = False) -> list[Any]:
        with self._errors(), self.connection.cursor(binary=binary) as cursor:
            cursor.execute(sql, list(values) or None)
            return list(cursor.fetchall())

    def value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        return self.rows(sql, values)[0][0]

    def run(self, sql: str, values: Sequence[Any] = ()) -> None:
        with self._errors(), self.connection.cursor() as cursor:
            cursor.execute(sql, list(values) or None)

    def copy(self, target: str, rows: Sequence[tuple[Any, ...]], types: str) -> None:
        """COPY in the binary form; `types` of the columns, where bytea stands for bytes that are in their binary form already."""
        if not rows:
            return
        with self._errors(), self.connection.cursor() as cursor, cursor.copy(f"COPY {target} FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(types.split())
            for row in rows:
                copy.write_row(row)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing; inside another one a part of that."""
        with self._errors(), self.connection.transaction():
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Reads that see one commit."""
        if self._depth:
            yield
            return
        with self.transaction():
            self.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            yield

    def unlock(self, key: str) -> None:
        with suppress(CollectionError):  # a lost connection has let go of its locks
            self.run("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", [key])

    @contextmanager
    def _errors(self) -> Iterator[None]:
        psycopg = load()
        try:
            yield
        except psycopg.Error as err:
            raise self._clear(psycopg, err) from None

    def _clear(self, psycopg: Any, err: Any) -> CollectionError:
        said, shown = self.address.hide(" ".join(str(err).split("\n")[0].split())), self.address.shown
        problems = psycopg.errors
        if isinstance(err, problems.UndefinedTable):
            return CollectionError(f"{shown}: no collection of that name; make it with: twinvec index URL DOCUMENTS --model MODEL")
        if isinstance(err, (problems.UndefinedFile, problems.FeatureNotSupported)) and "vector" in said:
            return CollectionError(f"{shown}: the server has no pgvector ({said}); install the extension there (package postgresql-NN-pgvector)")
        if isinstance(err, problems.InsufficientPrivilege):
            return CollectionError(f"{shown}: not allowed ({said}); ask the database's owner for the right, or to run CREATE EXTENSION vector once")
        if isinstance(err, (problems.DiskFull, problems.OutOfMemory)):
            return CollectionError(f"{shown}: the server has no room left ({said}); nothing of this batch was stored")
        if isinstance(err, (problems.AdminShutdown, psycopg.OperationalError)):
            return CollectionError(f"{shown}: the connection was lost ({said}); nothing of this batch was stored. Try again when the server is up")
        return CollectionError(f"{shown}: the server refused ({said})")


def load() -> Any:
    try:
        import psycopg
    except ImportError:
        raise UsageError("a collection in PostgreSQL needs pip install 'twinvec[postgres]'") from None
    return psycopg
