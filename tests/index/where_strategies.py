"""Random metadata, and random filters that have a fair chance to match it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from twinvec.index.where import And, Compare, Contains, Field, In, IsNull, Like, Node, Not, Or

KEYS = ("lang", "year", "价格", "a b", 'q"t', "back\\slash", "it's", "0", "id", "naïve.key", "tags")
TEXTS = (
    "",
    "zh",
    "ZH",
    "en",
    "中文",
    "it's",
    "100%",
    "a_b",
    "*",
    "[x]",
    "back\\slash",
    "1",
    "true",
    "null",
    "2020",
    "é",
    "😀",
    "\uffff",
    "line\nbreak",
)
NUMBERS = (0, 1, -1, 2020, 2021, 1.0, 0.1, -2.5, 1e20, 1e-7, 2**53 + 1, 2**62, -(2**63), 0.30000000000000004)

scalars = st.one_of(st.sampled_from(TEXTS), st.sampled_from(NUMBERS), st.booleans())
leaves = st.one_of(scalars, st.none())
values = st.recursive(
    leaves, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=3)), max_leaves=5
)
documents: st.SearchStrategy[dict[str, Any]] = st.dictionaries(st.sampled_from(KEYS), values, max_size=5)
ids = st.sampled_from(("a", "b", "doc-1", "文档", "it's", "100%", "a_b", "A"))

patterns = st.lists(st.sampled_from(["%", "_", "a", "z", "h", "0", "中", "*", "[", "\\%", "\\_", "\\\\", "e", "2", "\n"]), max_size=5).map("".join)


def fields(draw_id: bool = True) -> st.SearchStrategy[Field]:
    paths = st.lists(st.sampled_from(KEYS), min_size=1, max_size=2).map(lambda keys: Field(tuple(keys)))
    return st.one_of(paths, paths, paths, st.just(Field(()))) if draw_id else paths


def _conditions(field: st.SearchStrategy[Field]) -> st.SearchStrategy[Node]:
    ordered = st.one_of(st.sampled_from(TEXTS), st.sampled_from(NUMBERS))
    return st.one_of(
        st.builds(Compare, field, st.sampled_from(("=", "!=")), scalars),
        st.builds(Compare, field, st.sampled_from(("<", "<=", ">", ">=")), ordered),
        st.builds(In, field, st.lists(scalars, min_size=1, max_size=4).map(tuple), st.booleans()),
        st.builds(Like, field, patterns, st.booleans()),
        st.builds(IsNull, field, st.booleans()),
        st.builds(Contains, field, scalars),
    )


def _grown(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.one_of(st.builds(And, several), st.builds(Or, several), st.builds(Not, inner))


nodes: st.SearchStrategy[Node] = st.recursive(_conditions(fields()), _grown, max_leaves=5)


def written(node: Node) -> str:
    """A filter as a user would write it; parse_where reads it back to the same meaning."""
    if isinstance(node, (And, Or)):
        return "(" + (" and " if isinstance(node, And) else " or ").join(written(part) for part in node.nodes) + ")"
    if isinstance(node, Not):
        return f"not ({written(node.node)})"
    name = ".".join('"' + key.replace('"', '""') + '"' for key in node.field.keys) or "id"
    negated = "not " if getattr(node, "negated", False) else ""
    if isinstance(node, Compare):
        return f"{name} {node.op} {literal(node.value)}"
    if isinstance(node, In):
        return f"{name} {negated}in ({', '.join(map(literal, node.values))})"
    if isinstance(node, Like):
        return f"{name} {negated}like {literal(node.pattern)}"
    if isinstance(node, IsNull):
        return f"{name} is {negated}null"
    return f"{name} contains {literal(node.value)}"


def literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)
