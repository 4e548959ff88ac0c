"""What `encode` accepts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

from twinvec.errors import InputTypeError


def as_texts(texts: Any) -> list[str]:
    """A string, list, tuple, Series, array or generator of strings as a list; InputTypeError names the kind or the row otherwise."""
    if isinstance(texts, str):
        return [texts]
    kind = type(texts).__name__
    if isinstance(texts, Mapping):
        raise InputTypeError(f"encode got a {kind}; give the texts alone, for example list(texts.values())")
    if isinstance(texts, (Set, frozenset)):
        raise InputTypeError(f"encode got a {kind}, which has no order; give a list, for example sorted(texts)")
    if isinstance(texts, (bytes, bytearray)):
        raise InputTypeError(f"encode got {kind}; decode it first, for example texts.decode('utf-8')")
    if isinstance(texts, (list, tuple)):
        rows = list(texts)
    elif hasattr(texts, "to_list") or hasattr(texts, "tolist"):  # pandas, polars, numpy, pyarrow: position decides, never their index
        if getattr(texts, "ndim", 1) != 1:
            raise InputTypeError(f"encode got a {kind} of {texts.ndim} dimensions; give one column of texts")
        rows = list(texts.to_list() if hasattr(texts, "to_list") else texts.tolist())
    elif isinstance(texts, Iterator) or (hasattr(texts, "__iter__") and hasattr(texts, "__len__")):
        rows = list(texts)
    else:
        raise InputTypeError(f"encode got a {kind}; give a string, or a list, tuple, Series, array or generator of strings")
    for i, row in enumerate(rows):
        if type(row) is not str and not isinstance(row, str):
            hint = "; a pair is two texts: give them as two rows" if isinstance(row, (list, tuple)) else ""
            raise InputTypeError(f"encode: row {i} is {_shown(row)}, wanted a string{hint}")
    return rows


def _shown(row: Any) -> str:
    if row is None or (isinstance(row, float) and row != row):
        return f"{row} (a missing value)"
    return f"a {type(row).__name__} ({str(row)[:40]!r})"
