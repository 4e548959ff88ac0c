"""Filters as SQL for SQLite and PostgreSQL. Values travel as parameters; every condition is true or false, never NULL, so that `not` is plain."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from twinvec.index.where_nodes import And, Compare, Contains, Field, In, IsNull, Like, Node, Not, Or, Value, kind_of, like_literal, like_parts

Sql = tuple[str, list[Any]]
_PLAIN = re.compile(r"[^\"\\\x00-\x1f]+")


def to_sqlite(node: Node) -> Sql:
    """(condition, parameters) over a table with the alias `d`: id TEXT, metadata TEXT as `documents.to_json` writes it. SQLite 3.9 and newer."""
    return _walk(node, _sqlite)


def to_postgres(node: Node) -> Sql:
    """(condition with %s, parameters) over a table with the alias `d`: id text, fields jsonb."""
    return _walk(node, _postgres)


def sqlite_value(field: Field) -> str:
    """The expression that to_sqlite compares for a plain field, for CREATE INDEX ... ON documents (expression); without the alias."""
    return f"json_extract(metadata, {_path(field)})"


def _walk(node: Node, leaf: Callable[[Any], Sql]) -> Sql:
    if isinstance(node, Not):
        sql, values = _walk(node.node, leaf)
        return f"(NOT {sql})", values
    if isinstance(node, (And, Or)):
        return _joined([_walk(part, leaf) for part in node.nodes], "AND" if isinstance(node, And) else "OR")
    return leaf(node)


def _joined(parts: Sequence[Sql], word: str) -> Sql:
    """Halves of halves: two hundred conditions nest eight deep."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    left, right = _joined(parts[:half], word), _joined(parts[half:], word)
    return f"({left[0]} {word} {right[0]})", left[1] + right[1]


# SQLite


def _path(field: Field) -> str:
    """The path of a plain field as a SQL literal. As text in the statement, not a parameter, so that an index on the expression can serve.

    Keys are compared with the stored JSON as it is written, so they stand in its ASCII escapes.
    """
    path = "$" + "".join(f'."{json.dumps(key)[1:-1]}"' for key in field.keys)
    return "'" + path.replace("'", "''") + "'"


def _is_plain(field: Field) -> bool:
    """SQLite's paths have no escape for a quote or a backslash inside a key; those go through json_each."""
    return all(_PLAIN.fullmatch(key) for key in field.keys)


def _sqlite(node: Any) -> Sql:
    field: Field = node.field
    if not field.keys:
        return _sqlite_test(node, "'text'", "d.id", "NULL", [])
    if _is_plain(field):
        path = _path(field)
        kind, value, source = f"ifnull(json_type(d.metadata, {path}), 'null')", f"json_extract(d.metadata, {path})", f"d.metadata, {path}"
        return _sqlite_test(node, kind, value, source, [])
    levels = [f"json_each({'d.metadata' if i == 0 else f'j{i - 1}.value'}) j{i}" for i in range(len(field.keys))]
    keys = " AND ".join(f"j{i}.key = ?" for i in range(len(field.keys)))
    # A level that is no object would be read as JSON, and a text is none: only objects are gone into. (Lists have numbers for keys.)
    inner = "".join(f" AND j{i}.type = 'object'" for i in range(len(field.keys) - 1))
    last = f"j{len(field.keys) - 1}"
    if len(levels) > 1:
        levels = [levels[0], *(f"json_each(CASE j{i}.type WHEN 'object' THEN j{i}.value ELSE '{{}}' END) j{i + 1}" for i in range(len(levels) - 1))]
    absent = isinstance(node, IsNull) and not node.negated
    if absent:
        node = IsNull(field, negated=True)
    sql, values = _sqlite_test(node, f"{last}.type", f"{last}.value", f"{last}.value", [])
    found = f"EXISTS (SELECT 1 FROM {', '.join(levels)} WHERE {keys}{inner} AND {sql})"
    return (f"(NOT {found})" if absent else found), [*field.keys, *values]


def _sqlite_test(node: Any, kind: str, value: str, source: str, values: list[Any]) -> Sql:
    if isinstance(node, IsNull):
        return f"({kind} {'!=' if node.negated else '='} 'null')", values
    if isinstance(node, Contains):
        one, more = _sqlite_equal("e.type", "e.value", [node.value])
        return f"({kind} = 'array' AND EXISTS (SELECT 1 FROM json_each({_guarded(source, kind)}) e WHERE {one}))", values + more
    if isinstance(node, Like):
        glob = "".join({"%": "*", "_": "?"}.get(part) or _glob(like_literal(part)) for part in like_parts(node.pattern))
        return f"({kind} = 'text' AND {value} {'NOT ' if node.negated else ''}GLOB ?)", [*values, glob]
    if isinstance(node, In):
        sql, more = _sqlite_equal(kind, value, node.values)
        if not node.negated:
            return sql, values + more
        kinds = sorted({name for other in node.values for name in _SQLITE_KINDS[kind_of(other)]})
        listed = ", ".join(f"'{name}'" for name in kinds)
        return f"({kind} IN ({listed}) AND NOT {sql})", values + more
    if isinstance(node.value, bool):
        return f"({kind} = '{_boolean(node.value == (node.op == '='))}')", values
    mark, bound = _sqlite_mark(node.value)
    return f"({_sqlite_kind(kind, node.value)} AND {value} {node.op} {mark})", [*values, bound]


_SQLITE_KINDS = {"text": ("text",), "number": ("integer", "real"), "boolean": ("true", "false")}


def _guarded(source: str, kind: str) -> str:
    # json_each over a text that is no JSON raises an error; AND does not promise its order.
    return source if source.startswith("d.metadata") else f"CASE {kind} WHEN 'array' THEN {source} ELSE '[]' END"


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _sqlite_kind(kind: str, value: Value) -> str:
    names = _SQLITE_KINDS[kind_of(value)]
    return f"{kind} = '{names[0]}'" if len(names) == 1 else f"{kind} IN ({', '.join(map(repr, names))})"


def _sqlite_mark(value: Value) -> tuple[str, Any]:
    # A decimal is bound as text: SQLite then reads it as it reads the stored JSON, and both round alike.
    return ("CAST(? AS REAL)", repr(value)) if isinstance(value, float) else ("?", value)


def _sqlite_equal(kind: str, value: str, wanted: Sequence[Value]) -> Sql:
    """Equal to one of the values, type by type."""
    parts: list[Sql] = []
    for name in ("text", "number"):
        mine = [other for other in wanted if kind_of(other) == name]
        if mine:
            marks = [_sqlite_mark(other) for other in mine]
            parts.append((f"({_sqlite_kind(kind, mine[0])} AND {value} IN ({', '.join(mark for mark, _ in marks)}))", [bound for _, bound in marks]))
    flags = sorted({_boolean(other) for other in wanted if isinstance(other, bool)})
    if flags:
        parts.append((f"({kind} IN ({', '.join(map(repr, flags))}))", []))
    return _joined(parts, "OR")


def _glob(char: str) -> str:
    return f"[{char}]" if char in "*?[" else char


# PostgreSQL


def _postgres(node: Any) -> Sql:
    field: Field = node.field
    if not field.keys:
        return _postgres_id(node)
    if isinstance(node, Compare) and (node.op == "=" or isinstance(node.value, bool)):
        return _holds(field, node.value if node.op == "=" else not node.value)
    if isinstance(node, In) and not node.negated:
        return _joined([_holds(field, value) for value in node.values], "OR")
    if isinstance(node, Contains):
        return _holds(field, [node.value])
    value, keys = "d.fields" + " -> %s::text" * len(field.keys), list(field.keys)
    kind = f"jsonb_typeof({value})"
    if isinstance(node, IsNull):
        return f"(coalesce({kind}, 'null') {'<>' if node.negated else '='} 'null')", keys
    if isinstance(node, In):
        kinds = sorted({_POSTGRES_KINDS[kind_of(other)] for other in node.values})
        sql, more = _joined([_holds(field, other) for other in node.values], "OR")
        return f"(coalesce({kind}, 'null') = ANY (%s::text[]) AND NOT {sql})", [*keys, kinds, *more]
    if isinstance(node, Like):
        word = "NOT LIKE" if node.negated else "LIKE"
        text = f"(({value}) #>> '{{}}') COLLATE \"C\" {word} %s"
        return f"(CASE {kind} WHEN 'string' THEN {text} ELSE false END)", [*keys, *keys, _postgres_pattern(node.pattern)]
    op = "<>" if node.op == "!=" else node.op
    if isinstance(node.value, str):
        text = f"(({value}) #>> '{{}}') COLLATE \"C\" {op} %s"
        return f"(CASE {kind} WHEN 'string' THEN {text} ELSE false END)", [*keys, *keys, node.value]
    return f"(CASE {kind} WHEN 'number' THEN ({value})::numeric {op} %s::numeric ELSE false END)", [*keys, *keys, repr(node.value)]


_POSTGRES_KINDS = {"text": "string", "number": "number", "boolean": "boolean"}


def _holds(field: Field, value: Any) -> Sql:
    """fields @> {"key": value}: strict about types, blind to how a number is written, and served by a GIN index."""
    for key in reversed(field.keys):
        value = {key: value}
    return "(d.fields @> %s::jsonb)", [json.dumps(value)]


def _postgres_id(node: Any) -> Sql:
    if isinstance(node, IsNull):
        return ("true" if node.negated else "false"), []
    if isinstance(node, Contains):
        return "false", []
    if isinstance(node, Like):
        return f"(d.id {'NOT LIKE' if node.negated else 'LIKE'} %s)", [_postgres_pattern(node.pattern)]
    wanted = node.values if isinstance(node, In) else (node.value,)
    texts = [value for value in wanted if isinstance(value, str)]
    if not texts:
        return "false", []
    if isinstance(node, In):
        return f"({'NOT ' if node.negated else ''}d.id = ANY (%s::text[]))", [texts]
    return f"(d.id {'<>' if node.op == '!=' else node.op} %s)", texts


def _postgres_pattern(pattern: str) -> str:
    return "".join(part if part in "%_" else ("\\" if like_literal(part) in "%_\\" else "") + like_literal(part) for part in like_parts(pattern))
