"""Filters on metadata: `parse_where("lang = 'zh' and year >= 2020")`, what they mean (`matches`), and the same as SQL or as a Milvus expression."""

from __future__ import annotations

from twinvec.index.where_milvus import to_milvus
from twinvec.index.where_nodes import And, Compare, Contains, Field, In, IsNull, Like, Node, Not, Or, Value, matches
from twinvec.index.where_parser import WhereError, parse_where
from twinvec.index.where_sql import sqlite_value, to_postgres, to_sqlite

__all__ = [
    "And", "Compare", "Contains", "Field", "In", "IsNull", "Like", "Node", "Not", "Or", "Value", "WhereError", "matches", "parse_where",
    "sqlite_value", "to_milvus", "to_postgres", "to_sqlite",
]  # fmt: skip
