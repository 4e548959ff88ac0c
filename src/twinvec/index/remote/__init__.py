"""Collections beyond one machine: PostgreSQL with pgvector, and Milvus, with the methods of `Collection`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinvec.errors import UsageError
from twinvec.index.remote.address import is_remote, parse_address

if TYPE_CHECKING:
    from twinvec.index.collection import Collection
    from twinvec.index.models import EncoderLike
    from twinvec.index.remote.base import RemoteCollection


def open_collection(
    place: str | os.PathLike[str], encoder: EncoderLike | str | None = None, *, create: bool = False, **options: Any
) -> Collection | RemoteCollection:  # fmt: skip
    """The collection at a folder or a URL (postgresql://user@host/database?collection=faq, milvus://host:19530/faq).

    encoder: its model, to add texts with; another model is refused. create: make it when it is not there, which needs `encoder`; `options` then
    go to its making (metric, prompts, dimensions, ...: see Collection.create), otherwise to its opening. CollectionError, UsageError.
    """
    if create and encoder is None:
        raise UsageError("create: a new collection needs the model of its documents; give encoder=Encoder.load(...)")
    if not is_remote(place):
        from twinvec.index.collection import Collection

        if create and encoder is not None and not _is_there(Path(place)):
            return Collection.create(Path(place), encoder, **options)
        return Collection.open(Path(place), encoder, **({} if create else options))
    kind, address = _engine(place)
    if create and encoder is not None and not _remote_exists(kind, address):
        made: RemoteCollection = kind.create(address, encoder, **options)
        return made
    found: RemoteCollection = kind.open(address, encoder, **({} if create else options))
    return found


def collection_exists(place: str | os.PathLike[str]) -> bool:
    """True when `open_collection(place)` has something to open, damaged or not."""
    if not is_remote(place):
        return _is_there(Path(place))
    return _remote_exists(*_engine(place))


def _is_there(path: Path) -> bool:
    return (path / "collection.db").exists() or (path / "segments").is_dir()


def _engine(place: str | os.PathLike[str]) -> tuple[Any, Any]:
    address = parse_address(place)
    if address.engine == "postgresql":
        from twinvec.index.remote.postgres import PostgresCollection

        return PostgresCollection, address
    from twinvec.index.remote.milvus import MilvusCollection

    return MilvusCollection, address


def _remote_exists(kind: Any, address: Any) -> bool:
    found = kind(address)
    try:
        return bool(found.exists())
    finally:
        found.close()


__all__ = ["collection_exists", "is_remote", "open_collection", "parse_address"]
