"""Texts that the tests of this room share."""

from __future__ import annotations

TEXTS = [f"the cat number {i % 41} sat on mat {i % 7}" if i % 13 else "" for i in range(230)]


class BrokenOffError(Exception):
    """The power went off."""
