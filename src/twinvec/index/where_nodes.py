"""A filter as a small frozen tree, and what it means: `matches` is the reference that every engine is tested against."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Value = str | int | float | bool
WHOLE = 1 << 63  # whole numbers from -2^63 to 2^63 - 1 are compared as such, larger ones as floats, as SQLite does


@dataclass(frozen=True, slots=True)
class Field:
    """A metadata key, or keys from the outside in for nested objects; no key at all is the document's id."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compare:
    field: Field
    op: str  # = != < <= > >=
    value: Value


@dataclass(frozen=True, slots=True)
class In:
    field: Field
    values: tuple[Value, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Like:
    field: Field
    pattern: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class IsNull:
    field: Field
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Contains:
    field: Field
    value: Value


@dataclass(frozen=True, slots=True)
class And:
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    node: Node


Node = Compare | In | Like | IsNull | Contains | And | Or | Not

_OPS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def kind_of(value: Any) -> str:
    """The JSON type that comparisons go by: 'text', 'number', 'boolean', or '' for null, lists and objects, which equal nothing."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    return "text" if isinstance(value, str) else ""


def matches(node: Node, id: str, metadata: Mapping[str, Any]) -> bool:
    """True when a document with this id and metadata passes the filter.

    A key that is not there is null. Nothing is converted: a comparison (=, !=, <, in, not in, like, not like, contains) with null, or of two
    types, is false; `not` turns false into true, so `not lang = 'zh'` also takes documents without a lang, and `lang != 'zh'` does not.
    Texts are ordered by code point, `like` tells upper from lower case, whole numbers and decimals are one type.
    """
    if isinstance(node, And):
        return all(matches(part, id, metadata) for part in node.nodes)
    if isinstance(node, Or):
        return any(matches(part, id, metadata) for part in node.nodes)
    if isinstance(node, Not):
        return not matches(node.node, id, metadata)
    value = _lookup(node.field, id, metadata)
    if isinstance(node, IsNull):
        return (value is None) != node.negated
    if isinstance(node, Contains):
        return isinstance(value, (list, tuple)) and any(_compare("=", item, node.value) for item in value)
    if isinstance(node, Like):
        return isinstance(value, str) and _like(node.pattern, value) != node.negated
    if isinstance(node, In):
        same = [other for other in node.values if kind_of(other) == kind_of(value)]
        return bool(same) and any(_compare("=", value, other) for other in same) != node.negated
    return _compare(node.op, value, node.value)


def _lookup(field: Field, id: str, metadata: Mapping[str, Any]) -> Any:
    if not field.keys:
        return id
    found: Any = metadata
    for key in field.keys:
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
    return found


def _compare(op: str, left: Any, right: Value) -> bool:
    kind = kind_of(left)
    if not kind or kind != kind_of(right):
        return False
    if kind == "number":
        return _OPS[op](_number(left), _number(right))
    return _OPS[op](left, right)


def _number(value: Any) -> Any:
    if isinstance(value, int) and not -WHOLE <= value < WHOLE:
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    return value


def like_parts(pattern: str) -> list[str]:
    r"""A pattern cut into single characters, of which "%" (any run) and "_" (any one character) are special; escaped ones come as "\%", "\_"."""
    return re.findall(r"\\[%_\\]|.", pattern, re.DOTALL)


def like_literal(part: str) -> str:
    """The character that a part that is neither "%" nor "_" stands for."""
    return part[-1]


def _like(pattern: str, text: str) -> bool:
    """Pieces between "%" are looked for from left to right, each at its first place: no pattern takes more than pattern x text steps."""
    pieces = [""]
    for part in like_parts(pattern):
        if part == "%":
            pieces.append("")
        else:
            pieces[-1] += "." if part == "_" else re.escape(like_literal(part))
    first, *rest = (re.compile(piece, re.DOTALL) for piece in pieces)
    if not rest:
        return first.fullmatch(text) is not None
    start = first.match(text)
    if start is None:
        return False
    at = start.end()
    for piece in rest[:-1]:
        found = piece.search(text, at)
        if found is None:
            return False
        at = found.end()
    last = rest[-1]
    length = sum(part != "%" for part in like_parts(pattern[_after_last_percent(pattern) :]))
    return len(text) - length >= at and last.fullmatch(text, len(text) - length) is not None


def _after_last_percent(pattern: str) -> int:
    at = end = 0
    for part in like_parts(pattern):
        at += len(part)
        if part == "%":
            end = at
    return end
