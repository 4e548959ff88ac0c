"""What `encode` accepts."""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping, Set
from typing import Any

from twinvec.errors import InputTypeError


def as_texts(texts: Any) -> list[str]:
    """A string, list, tuple, Series, array or generator of strings as a list; InputTypeError names the kind or the row otherwise."""
    if isinstance(texts, str):
        return [texts]
    kind = type(texts).__name__
    if isinstance(texts, Mapping):
        raise InputTypeError(f"encode got a {kind}; give the texts alone, for example list(texts.values())")
    if isinstance(texts, Set) and not isinstance(texts, KeysView):  # the keys of a dict do have an order
        raise InputTypeError(f"encode got a {kind}, which has no order; give a list, for example sorted(texts)")
    if isinstance(texts, (bytes, bytearray)):
        raise InputTypeError(f"encode got {kind}; decode it first, for example texts.decode('utf-8')")
    if isinstance(texts, (list, tuple)):
        rows = list(texts)
    elif getattr(texts, "ndim", 1) != 1 or (hasattr(texts, "columns") and not hasattr(texts, "to_list")):
        raise InputTypeError(f"encode got a {kind}, which is no single column; give one column of texts, for example table['text']")
    elif converter := next((name for name in ("to_list", "tolist", "to_pylist") if hasattr(texts, name)), None):
        rows = list(getattr(texts, converter)())  # pandas, polars, numpy, pyarrow: position decides, never their index
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
    if row is None or (isinstance(row, float) and row != row) or type(row).__name__ in ("NAType", "NaTType"):
        return f"{row} (a missing value)"
    return f"a {type(row).__name__} ({str(row)[:40]!r})"
