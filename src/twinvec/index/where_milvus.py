"""Filters as Milvus expressions over `key` (the id with other characters than ASCII letters, digits and _.-~ escaped by %) and `fields` (JSON)."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from twinvec.index.where_nodes import And, Compare, Contains, In, Like, Node, Not, Or, Value, like_literal, like_parts

VALUES = 200  # values of one list that are spelled out
_SAFE = re.compile(r"[^\"\\%\x00-\x1f\x7f]*")
_EXACT = 1 << 53  # whole numbers up to here are the same as floats


def to_milvus(node: Node) -> str:
    """An expression that holds for every document that the filter holds for; "" when every document must be looked at.

    It may hold for more: Milvus versions differ in what null, a missing key, true against 1, or an escaped quote mean. So it only thins out what
    the server sends, and `matches` has the last word on each row. Anything that could end a literal early is not sent at all.
    """
    if isinstance(node, Not):
        return to_milvus(node.node.node) if isinstance(node.node, Not) else ""
    if isinstance(node, And):
        return " and ".join(part for part in map(to_milvus, node.nodes) if part)
    if isinstance(node, Or):
        parts = [to_milvus(part) for part in node.nodes]
        return "(" + " or ".join(f"({part})" for part in parts) + ")" if all(parts) else ""
    if not node.field.keys:
        return _id(node)
    if not all(_SAFE.fullmatch(key) for key in node.field.keys):
        return ""
    name = "fields" + "".join(f'["{key}"]' for key in node.field.keys)
    if isinstance(node, Compare) and node.op != "!=":
        value = _literal(node.value)
        return f"{name} {'==' if node.op == '=' else node.op} {value}" if value else ""
    if isinstance(node, In) and not node.negated and len(node.values) <= VALUES:
        values = [_literal(value) for value in node.values]
        return "(" + " or ".join(f"{name} == {value}" for value in values) + ")" if all(values) else ""
    if isinstance(node, Contains):
        value = _literal(node.value)
        if value.startswith("-"):  # Milvus Lite takes no sign there
            return ""
        return f"json_contains({name}, {value})" if value else ""
    if isinstance(node, Like) and not node.negated:
        start = _prefix(node.pattern)
        return f'{name} like "{start}%"' if start else ""
    return ""


def milvus_key(id: str) -> str:
    """An id as it is stored in Milvus: ASCII that stands in any expression as it is."""
    return quote(id, safe="")


def _id(node: Any) -> str:
    values = node.values if isinstance(node, In) else (node.value,) if isinstance(node, Compare) and node.op == "=" else ()
    if not values or getattr(node, "negated", False) or len(values) > VALUES:
        return ""
    listed = ", ".join(f'"{milvus_key(value)}"' for value in values if isinstance(value, str))
    return f"document in [{listed}]" if listed else ""


def _literal(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"' if _SAFE.fullmatch(value) else ""
    return repr(value) if abs(value) <= _EXACT else ""


def _prefix(pattern: str) -> str:
    """The characters before the first wildcard, up to the first one that Milvus might read in its own way."""
    start = ""
    for part in like_parts(pattern):
        if part in "%_" or like_literal(part) == "_" or not _SAFE.fullmatch(like_literal(part)):
            break
        start += like_literal(part)
    return start
