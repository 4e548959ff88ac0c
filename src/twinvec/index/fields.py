"""Indexes on metadata fields, so that a filter on them need not read every document."""

from __future__ import annotations

from twinvec.errors import UsageError
from twinvec.index.store import Store, seal
from twinvec.index.where import parse_where, sqlite_value


def index_field(store: Store, name: str) -> None:
    """One commit: an index on the very expression that filters compare (where.sqlite_value). A second time changes nothing."""
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f"index_field: wanted the name of a metadata field, got {name!r}")
    node = parse_where(f"{name} is not null")
    field = getattr(node, "field", None)
    if field is None or not field.keys or any(char in key for key in field.keys for char in '"\\'):
        raise UsageError(f'index_field: {name!r} is no plain metadata field; wanted a name such as year, author.name or "due date"')
    with store.read():
        known = store.setting("fields") or []
    if name in known:
        return
    with store.write():
        number = seal(*field.keys)
        store.db.execute(f"CREATE INDEX IF NOT EXISTS documents_field_{number} ON documents ({sqlite_value(field)})")
        store.set_setting("fields", [*known, name])
