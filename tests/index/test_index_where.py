"""The grammar of filters, their meaning, and that SQLite understands them the same way."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from where_strategies import documents, ids, nodes, written

from twinvec.index.documents import to_json
from twinvec.index.where import (
    And,
    Compare,
    Contains,
    Field,
    In,
    IsNull,
    Like,
    Node,
    Not,
    Or,
    WhereError,
    matches,
    parse_where,
    sqlite_value,
    to_sqlite,
)

LANG, YEAR = Field(("lang",)), Field(("year",))
PARSED = [
    ("lang = 'zh'", Compare(LANG, "=", "zh")),
    ("LANG = 'zh'", Compare(Field(("LANG",)), "=", "zh")),
    ("year>=2020", Compare(YEAR, ">=", 2020)),
    ("year != -1.5e3", Compare(YEAR, "!=", -1500.0)),
    ("ok = TRUE", Compare(Field(("ok",)), "=", True)),
    ("name = 'it''s'", Compare(Field(("name",)), "=", "it's")),
    ("name = ''", Compare(Field(("name",)), "=", "")),
    ("价格 < 10", Compare(Field(("价格",)), "<", 10)),
    ("作者.名字 = '鲁迅'", Compare(Field(("作者", "名字")), "=", "鲁迅")),
    ('"a b"."c""d".e = 1', Compare(Field(("a b", 'c"d', "e")), "=", 1)),
    ('"a.b" = 1', Compare(Field(("a.b",)), "=", 1)),
    ('"and" = 1', Compare(Field(("and",)), "=", 1)),
    ("id = 'x'", Compare(Field(()), "=", "x")),
    ("\"id\" = 'x'", Compare(Field(("id",)), "=", "x")),
    ("id.x = 'x'", Compare(Field(("id", "x")), "=", "x")),
    ("lang in ('zh', 'en', 1, true)", In(LANG, ("zh", "en", 1, True))),
    ("lang NOT IN ('zh')", In(LANG, ("zh",), True)),
    ("lang like 'z%'", Like(LANG, "z%")),
    ("lang not like 'z%'", Like(LANG, "z%", True)),
    ("lang is null", IsNull(LANG)),
    ("lang is not null", IsNull(LANG, True)),
    ("lang contains 'zh'", Contains(LANG, "zh")),
    ("not not lang is null", Not(Not(IsNull(LANG)))),
    ("lang is null or lang is null and year = 1", Or((IsNull(LANG), And((IsNull(LANG), Compare(YEAR, "=", 1)))))),
    ("(lang is null or lang is null) and not year = 1", And((Or((IsNull(LANG), IsNull(LANG))), Not(Compare(YEAR, "=", 1))))),
    ("\n lang\t=\u3000'zh' ", Compare(LANG, "=", "zh")),
]


@pytest.mark.parametrize(("text", "node"), PARSED, ids=[text for text, _ in PARSED])
def test_parse(text: str, node: Node) -> None:
    assert parse_where(text) == node
    assert hash(parse_where(text)) == hash(node)


META: dict[str, Any] = {"lang": "zh", "year": 2020, "score": 1.0, "new": True, "tags": ["x", 1, None], "author": {"name": "鲁迅"}, "none": None}
MEANING = [
    ("lang = 'zh'", True),
    ("lang = 'ZH'", False),
    ("year = '2020'", False),
    ("year != '2020'", False),
    ("year != 2021", True),
    ("year = 2020.0", True),
    ("score = 1", True),
    ("new = true", True),
    ("new = 1", False),
    ("score = true", False),
    ("new != false", True),
    ("missing = 'x'", False),
    ("missing != 'x'", False),
    ("not missing = 'x'", True),
    ("missing is null", True),
    ("none is null", True),
    ("none = 'null'", False),
    ("tags is not null", True),
    ("lang not in ('en', 'de')", True),
    ("lang not in ('en', 1)", True),
    ("year not in ('en')", False),
    ("missing not in ('en')", False),
    ("tags contains 'x'", True),
    ("tags contains 1", True),
    ("tags contains true", False),
    ("lang contains 'z'", False),
    ("tags = 'x'", False),
    ("author.name = '鲁迅'", True),
    ("author.name.x is null", True),
    ("lang.x is null", True),
    ("author like '%'", False),
    ("lang like 'z_'", True),
    ("lang like '_'", False),
    ("lang like 'Z%'", False),
    ("year like '2%'", False),
    ("year not like '2%'", False),
    ("lang not like 'e%'", True),
    ("lang > 'en'", True),
    ("year > 'en'", False),
    ("id = 'doc'", True),
    ("id in ('a', 'doc')", True),
    ("id like 'd%c'", True),
    ("id is null", False),
    ("id > 5", False),
    ("not (lang = 'zh' and year = 2020)", False),
]


@pytest.mark.parametrize(("text", "wanted"), MEANING, ids=[text for text, _ in MEANING])
def test_meaning(text: str, wanted: bool) -> None:
    node = parse_where(text)
    assert matches(node, "doc", META) is wanted
    assert in_sqlite(node, "doc", META) is wanted


def database(id: str, metadata: dict[str, Any]) -> sqlite3.Connection:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE documents (id TEXT, text TEXT, metadata TEXT)")
    db.execute("INSERT INTO documents VALUES (?, '', ?)", (id, to_json(metadata)))
    return db


def in_sqlite(node: Node, id: str, metadata: dict[str, Any]) -> bool:
    """What the database says; never NULL, so that `not` can be trusted."""
    db = database(id, metadata)
    try:
        sql, values = to_sqlite(node)
        found = db.execute(f"SELECT {sql} FROM documents d", values).fetchone()[0]
        assert found in (0, 1)
        return bool(found)
    finally:
        db.close()


@settings(max_examples=400, deadline=None)
@given(nodes, ids, documents)
def test_sqlite_equals_the_reference(node: Node, id: str, metadata: dict[str, Any]) -> None:
    assert in_sqlite(node, id, metadata) is matches(node, id, metadata)


@settings(max_examples=200, deadline=None)
@given(nodes, ids, documents)
def test_what_is_written_is_read_back(node: Node, id: str, metadata: dict[str, Any]) -> None:
    again = parse_where(written(node))
    assert matches(again, id, metadata) is matches(node, id, metadata)
    assert parse_where(written(again)) == again


@settings(max_examples=200, deadline=None)
@given(st.text("%_ab\\", max_size=8), st.text("ab%_\\", max_size=8))
def test_like_equals_a_plain_definition(pattern: str, text: str) -> None:
    def same(p: str, t: str) -> bool:
        if not p:
            return not t
        if p[0] == "%":
            return any(same(p[1:], t[i:]) for i in range(len(t) + 1))
        if p[0] == "\\" and p[1:2] in ("%", "_", "\\") and len(p) > 1:
            return t[:1] == p[1] and same(p[2:], t[1:])
        return bool(t) and (p[0] == "_" or p[0] == t[0]) and same(p[1:], t[1:])

    node = Like(LANG, pattern)
    assert matches(node, "x", {"lang": text}) is same(pattern, text)
    assert in_sqlite(node, "x", {"lang": text}) is same(pattern, text)


@given(st.text(max_size=60))
def test_any_text_is_a_tree_or_a_clear_error(text: str) -> None:
    with suppress(WhereError):
        parse_where(text)


def test_values_never_become_sql() -> None:
    evil = "x'); DROP TABLE documents; --"
    for node in (
        Compare(LANG, "=", evil),
        Compare(Field((evil,)), "=", 1),
        Compare(Field(('"' + evil,)), "=", 1),
        Like(LANG, evil),
        Contains(LANG, evil),
    ):
        assert in_sqlite(node, "a", {"lang": "x"}) is False
        assert in_sqlite(node, "a", {"lang": evil, evil: 1, '"' + evil: 1}) is (not isinstance(node, Contains))


def test_two_hundred_conditions_and_long_lists_fit_sqlite() -> None:
    many = parse_where(" or ".join(f"year = {i}" for i in range(200)))
    assert in_sqlite(many, "a", {"year": 199})
    deep = parse_where("(not " * 20 + " and ".join(f"year != {i}" for i in range(200)) + ")" * 20)
    assert in_sqlite(deep, "a", {"year": 200})
    listed = parse_where("year in (" + ", ".join(map(str, range(3500))) + ")")
    assert in_sqlite(listed, "a", {"year": 3499})


def test_many_wildcards_stay_cheap() -> None:
    node = parse_where("lang like '" + "%a" * 19 + "%b'")
    assert matches(node, "x", {"lang": "a" * 5000}) is False


def test_an_index_on_a_field_is_used() -> None:
    db = database("a", {"lang": "zh"})
    try:
        db.execute(f"CREATE INDEX documents_lang ON documents ({sqlite_value(LANG)})")
        sql, values = to_sqlite(parse_where("lang = 'zh'"))
        plan = " ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN SELECT id FROM documents d WHERE {sql}", values))
        assert "documents_lang" in plan
    finally:
        db.close()
