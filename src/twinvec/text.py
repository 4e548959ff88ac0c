"""What makes two texts the same text."""

from __future__ import annotations

import unicodedata


def same_text_key(text: str) -> str:
    """NFKC, lower case, runs of white space as one space: two texts with equal keys count as one text."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def without_surrogates(text: str) -> str:
    """Lone surrogates (which cannot be UTF-8) become U+FFFD; every other text comes back as it is."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
