"""Where a remote collection lives: one URL, of which the password is never shown again."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from twinvec.errors import UsageError

POSTGRES = ("postgresql", "postgres")
MILVUS = ("milvus",)
_SCHEME = re.compile(r"(postgresql|postgres|milvus):/+", re.IGNORECASE)
EXAMPLES = {
    "postgresql": "postgresql://user:password@host:5432/database?collection=faq",
    "milvus": "milvus://user:password@host:19530/faq",
}


@dataclass(frozen=True, slots=True)
class Address:
    """engine: "postgresql" or "milvus". `shown` is the URL without its password, for messages; `options` what the URL says after the "?"."""

    engine: str
    shown: str
    host: str
    port: int | None
    user: str | None
    database: str
    collection: str
    options: dict[str, str]
    password: str | None = field(default=None, repr=False)

    def hide(self, text: str) -> str:
        """`text` without the password, should a library have put it there."""
        for secret in {self.password, self.options.get("password"), self.options.get("token")} - {None, ""}:
            text = text.replace(str(secret), "***")
        return text


def is_remote(place: str | os.PathLike[str]) -> bool:
    """True for a URL of a server, False for what can only be a folder."""
    return _SCHEME.match(str(place)) is not None


def parse_address(place: str | os.PathLike[str]) -> Address:
    """The parts of a URL; UsageError says which part is missing, never what the password is."""
    text = str(place)
    if isinstance(place, Path):
        text = re.sub(r"^([a-zA-Z]+):/+", r"\1://", text)  # a Path folds slashes
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as err:
        raise UsageError(f"this URL cannot be read ({err}); wanted for example {EXAMPLES['postgresql']}") from None
    engine = "postgresql" if parts.scheme.lower() in POSTGRES else "milvus"
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    path = [unquote(piece) for piece in parts.path.split("/") if piece]
    if engine == "postgresql":
        collection = options.pop("collection", "") or unquote(parts.fragment)
        database = path[0] if path else ""
    else:
        collection = path[0] if path else ""
        database = options.pop("db", "")
    user = unquote(parts.username) if parts.username else None
    where = f"{user + '@' if user else ''}{parts.hostname or ''}{f':{port}' if port else ''}"
    asked = urlencode({name: value for name, value in options.items() if name not in ("password", "token")})
    if engine == "postgresql":
        shown = f"postgresql://{where}/{database}?" + (f"{asked}&" if asked else "") + f"collection={collection}"
    else:
        shown = f"milvus://{where}/{collection}" + (f"?db={database}" if database else "")
    if len(path) > 1:
        raise UsageError(f"{shown}: more than one name in the path; wanted for example {EXAMPLES[engine]}")
    if not collection:
        raise UsageError(f"{shown}: names no collection; wanted for example {EXAMPLES[engine]}")
    password = unquote(parts.password) if parts.password else None
    return Address(engine, shown, parts.hostname or "", port, user, database, collection, options, password)
