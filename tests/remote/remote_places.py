"""A place for a collection in a test, whatever it lies in."""

from __future__ import annotations

import itertools
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from twinvec.index.remote import open_collection

_numbers = itertools.count()


class Place:
    """Where one test keeps its collection: `url` (a folder or a URL); `make` and `open` go through open_collection."""

    def __init__(self, engine: str, url: str) -> None:
        self.engine, self.url = engine, url
        self._opened: list[Any] = []

    def make(self, encoder: Any, **options: Any) -> Any:
        return self._kept(open_collection(self.url, encoder, create=True, **options))

    def open(self, encoder: Any = None) -> Any:
        return self._kept(open_collection(self.url, encoder))

    def _kept(self, collection: Any) -> Any:
        self._opened.append(collection)
        return collection

    def clear(self) -> None:
        for collection in self._opened:
            if self.engine != "local":
                with suppress(Exception):
                    collection.drop()
            collection.close()


def place_of(engine: str, request: pytest.FixtureRequest, folder: Path) -> Place:
    if engine == "local":
        return Place(engine, str(folder / "faq"))
    url = request.getfixturevalue(f"{engine}_url")
    name = f"faq_{next(_numbers)}"
    return Place(engine, f"{url}?collection={name}" if engine == "postgres" else f"{url}/{name}")
