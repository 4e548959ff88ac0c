"""What a filter must not look like, and what is said then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from twinvec.errors import UsageError
from twinvec.index.where import parse_where

CASES: list[tuple[str, Any, str]] = [
    ("an empty filter", "  ", r"the filter is empty\. Example: lang = 'zh'"),
    ("a filter that is no text", 7, r"wanted a text such as .* got int"),
    ("a value in double quotes", 'lang = "zh"', r"at character 8 .*a text stands in single quotes: 'zh'"),
    ("a value without quotes", "lang = zh", r"at character 8 .*a text stands in single quotes: 'zh'"),
    ("a field in single quotes", "'lang' = 'zh'", r"at character 1 .*single quotes are for values"),
    ("a double equals sign", "lang == 'zh'", r"write = for equal"),
    ("a filter with <>", "lang <> 'zh'", r"write != for not equal"),
    ("a filter with &&", "a = 1 && b = 2", r"at character 7 .*write and"),
    ("a filter with an open quote", "lang = 'zh", r"at character 8 .*this quote is never closed"),
    ("a filter with curly quotes", "lang = ‘zh’", r"straight quotes"),
    ("a filter with a full-width comma", "lang in ('a'，'b')", r"write ,"),
    ("a comparison with null", "lang = null", r"write is null or is not null"),
    ("is without null", "lang is 'zh'", r"null was wanted"),
    ("an order of booleans", "new > true", r"true and false have no order"),
    ("a field alone", "new", r"at its end: one of =, !=, .* was wanted"),
    ("a value missing", "year >=", r"at its end: a value was wanted"),
    ("a list without parentheses", "lang in 'zh'", r"a list in parentheses was wanted"),
    ("an empty list", "lang in ()", r"a value was wanted"),
    ("a list with a comma too many", "lang in ('zh',)", r"a value was wanted"),
    ("a pattern that is a number", "lang like 5", r"a pattern in single quotes"),
    ("a pattern with many wildcards", "lang like '" + "%a" * 21 + "'", r"more than 20 %"),
    ("a parenthesis never closed", "(lang = 'zh'", r"for the \( at character 1 was wanted"),
    ("a parenthesis too many", "lang = 'zh')", r"at character 12 .*a \) too many"),
    ("two filters in one", "lang = 'zh' year = 2", r"at character 13 .*and, or, or the end"),
    ("a statement instead of a filter", "lang = 'zh'; DROP TABLE documents", r"only one filter, without ;"),
    ("a name with a hyphen", "my-key = 1", r'stands in double quotes: "my-key"'),
    ("a name that begins with a digit", "2nd = 1", r"a name that begins with a digit"),
    ("a word of the grammar as a field", "like = 1", r'is written "like"'),
    ("a whole number beyond 64 bits", "n = 99999999999999999999", r"beyond 64 bits"),
    ("a number beyond floats", "n = 1e999", r"too large for a float"),
    ("ten thousand parentheses", "(" * 10_000, r"more than 40 parentheses"),
    ("thousands of nots", "not " * 4_000 + "a = 1", r"more than 40 parentheses"),
    ("a thousand conditions", " or ".join(["a = 1"] * 1000), r"more than 200 conditions; put many values into one list"),
    ("a very long filter", "a = '" + "x" * 30_000 + "'", r"30,006 characters; 20,000 are the most"),
    ("a character that is no text", "a = '\ud800'", r"characters that are no text"),
]


@pytest.mark.parametrize(("name", "text", "pattern"), CASES, ids=[case[0] for case in CASES])
def test_bad_input(name: str, text: Any, pattern: str, record_property: Callable[[str, object], None]) -> None:
    with pytest.raises(UsageError, match=pattern) as caught:
        parse_where(text)
    record_property("message", str(caught.value))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
