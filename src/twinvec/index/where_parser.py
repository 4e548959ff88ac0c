"""From the text of a filter to its tree. A small grammar of its own: nothing of the text ever becomes SQL.

filter    = and ("or" and)*
and       = not ("and" not)*
not       = "not" not | "(" filter ")" | condition
condition = field ("=" | "!=" | "<" | "<=" | ">" | ">=") value
          | field ["not"] "in" "(" value ("," value)* ")"
          | field ["not"] "like" text
          | field "is" ["not"] "null"
          | field "contains" value
field     = name ("." name)*        name = letters, digits and "_", or "anything in double quotes"
value     = 'text' | number | true | false
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NoReturn

from twinvec.errors import UsageError
from twinvec.index.where_nodes import WHOLE, And, Compare, Contains, Field, In, IsNull, Like, Node, Not, Or, Value, like_parts

LENGTH = 20_000  # characters of a filter
DEPTH = 40  # parentheses and "not" inside one another
CONDITIONS = 200  # SQLite refuses expressions deeper than 1,000; long lists belong into in (...)
WILDCARDS = 20  # "%" in one pattern
EXAMPLE = "lang = 'zh' and year >= 2020"

_WORDS = {"and", "or", "not", "in", "like", "is", "null", "true", "false", "contains"}
_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<text>'(?:[^']|'')*')|(?P<quoted>\"(?:[^\"]|\"\")*\")|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.]))"
    r"|(?P<op><=|>=|!=|=|<|>)|(?P<mark>[(),.])|(?P<name>[^\W\d]\w*)"
)
_STRAIGHT = "texts stand in straight quotes: 'zh'"
_OPEN = "this quote is never closed"
_HINTS = {
    "==": "write = for equal", "<>": "write != for not equal", "&&": "write and", "||": "write or", "!": "write not, or !=",
    "'": _OPEN, '"': _OPEN, "‘": _STRAIGHT, "’": _STRAIGHT, "“": _STRAIGHT, "”": _STRAIGHT, "＝": "write =", "（": "write (", "，": "write ,",
    "-": 'a name with a hyphen stands in double quotes: "my-key"', ";": "only one filter, without ;",
}  # fmt: skip


class WhereError(UsageError, ValueError):
    """A filter that cannot be read."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # text quoted number op mark name word end
    text: str
    at: int


def parse_where(text: str) -> Node:
    """The tree of a filter such as  lang = 'zh' and (year >= 2020 or tags contains 'new').

    WhereError (a UsageError) names the place, what was wanted there, and an example.
    """
    if not isinstance(text, str):
        raise WhereError(f'where: wanted a text such as "{EXAMPLE}", got {type(text).__name__}')
    if len(text) > LENGTH:
        raise WhereError(f"where: the filter has {len(text):,} characters; {LENGTH:,} are the most. Ask in several searches, or mark the documents")
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.depth, self.conditions, self.at = text, 0, 0, 0
        self.tokens = self._cut(text)

    # tokens

    def _cut(self, text: str) -> list[_Token]:
        tokens, at = [], 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                self._fail(at, _hint(text, at))
            kind, word = str(found.lastgroup), found.group()
            if kind == "name" and word.lower() in _WORDS:
                kind, word = "word", word.lower()
            if any(char == "\x00" or 0xD800 <= ord(char) < 0xE000 for char in word):
                self._fail(at, "characters that are no text")
            if kind != "space":
                tokens.append(_Token(kind, word, at))
            at = found.end()
        return [*tokens, _Token("end", "", len(text))]

    @property
    def now(self) -> _Token:
        return self.tokens[self.at]

    def _next(self) -> _Token:
        token = self.now
        self.at += token.kind != "end"
        return token

    def _take(self, kind: str, *texts: str) -> bool:
        found = self.now.kind == kind and self.now.text in texts
        self.at += found
        return found

    def _fail(self, at: int, what: str) -> NoReturn:
        here = self.text[at : at + 20].split("\n")[0]
        place = f"at character {at + 1} ({here!r})" if here else "at its end"
        raise WhereError(f"where: {place}: {what}. Example: {EXAMPLE}")

    # grammar

    def whole(self) -> Node:
        if self.now.kind == "end":
            self._fail(0, "the filter is empty")
        node = self._or()
        token = self.now
        if token.kind != "end":
            wanted = "and, or, or the end was wanted"
            if token.kind == "op" and self.text[token.at - 1 : token.at + 1] in _HINTS:
                wanted = _HINTS[self.text[token.at - 1 : token.at + 1]]
            self._fail(token.at, "a ) too many" if token.text == ")" else wanted)
        return node

    def _or(self) -> Node:
        nodes = [self._and()]
        while self._take("word", "or"):
            nodes.append(self._and())
        return nodes[0] if len(nodes) == 1 else Or(tuple(nodes))

    def _and(self) -> Node:
        nodes = [self._not()]
        while self._take("word", "and"):
            nodes.append(self._not())
        return nodes[0] if len(nodes) == 1 else And(tuple(nodes))

    def _not(self) -> Node:
        token = self.now
        if not (self._take("word", "not") or self._take("mark", "(")):
            return self._condition()
        self.depth += 1
        if self.depth > DEPTH:
            self._fail(token.at, f"more than {DEPTH} parentheses inside one another")
        if token.text == "not":
            node: Node = Not(self._not())
        else:
            node = self._or()
            if not self._take("mark", ")"):
                self._fail(self.now.at, f"and, or, or a ) for the ( at character {token.at + 1} was wanted")
        self.depth -= 1
        return node

    def _condition(self) -> Node:
        self.conditions += 1
        if self.conditions > CONDITIONS:
            self._fail(self.now.at, f"more than {CONDITIONS} conditions; put many values into one list: id in ('a', 'b')")
        field = self._field()
        token = self._next()
        if token.kind == "op":
            return self._comparison(field, token)
        negated = token == _Token("word", "not", token.at)
        if negated:
            token = self._next()
        if token.kind == "word" and token.text == "in":
            return In(field, self._values(), negated)
        if token.kind == "word" and token.text == "like":
            return Like(field, self._pattern(), negated)
        if token.kind == "word" and token.text == "is" and not negated:
            negated = self._take("word", "not")
            if not self._take("word", "null"):
                self._fail(self.now.at, "null was wanted (is null, is not null); compare values with =")
            return IsNull(field, negated)
        if token.kind == "word" and token.text == "contains" and not negated:
            return Contains(field, self._value())
        if negated:
            self._fail(token.at, "in or like was wanted after not; for others put not before the field")
        self._fail(token.at, "one of =, !=, <, <=, >, >=, in, not in, like, contains, is null was wanted")

    def _comparison(self, field: Field, token: _Token) -> Compare:
        if self.now.kind == "op":
            two = token.text + self.now.text
            self._fail(token.at, _HINTS.get(two, "two operators in a row"))
        value = self._value()
        if isinstance(value, bool) and token.text not in ("=", "!="):
            self._fail(token.at, "true and false have no order; use = or !=")
        return Compare(field, token.text, value)

    def _field(self) -> Field:
        start = self.now
        keys = [self._name()]
        while self._take("mark", "."):
            keys.append(self._name())
        if start.kind == "name" and keys == ["id"]:
            return Field(())  # "id" in quotes is a metadata key of that name
        return Field(tuple(keys))

    def _name(self) -> str:
        token = self._next()
        if token.kind == "name":
            return token.text
        if token.kind == "quoted":
            return token.text[1:-1].replace('""', '"')
        if token.kind == "word":
            self._fail(token.at, f'a field was wanted; {token.text} is a word of the grammar, so a field of that name is written "{token.text}"')
        if token.kind == "text":
            self._fail(token.at, "a field was wanted, and single quotes are for values; a field may stand in double quotes")
        self._fail(token.at, "a field was wanted (a key of the metadata, or id)")

    def _values(self) -> tuple[Value, ...]:
        if not self._take("mark", "("):
            self._fail(self.now.at, "a list in parentheses was wanted, such as in ('zh', 'en')")
        values = [self._value()]
        while self._take("mark", ","):
            values.append(self._value())
        if not self._take("mark", ")"):
            self._fail(self.now.at, "a comma or a ) was wanted in the list")
        return tuple(values)

    def _pattern(self) -> str:
        token = self.now
        value = self._value()
        if not isinstance(value, str):
            self._fail(token.at, "a pattern in single quotes was wanted, such as like '2024-%'")
        if like_parts(value).count("%") > WILDCARDS:
            self._fail(token.at, f"more than {WILDCARDS} % in one pattern")
        return value

    def _value(self) -> Value:
        token = self._next()
        if token.kind == "text":
            return token.text[1:-1].replace("''", "'")
        if token.kind == "word" and token.text in ("true", "false"):
            return token.text == "true"
        if token.kind == "number":
            return self._number(token)
        if token.kind == "word" and token.text == "null":
            self._fail(token.at, "nothing compares with null; write is null or is not null")
        if token.kind in ("name", "quoted"):
            inner = token.text.strip('"')
            self._fail(token.at, f"a value was wanted; a text stands in single quotes: '{inner}'")
        self._fail(token.at, "a value was wanted: 'text', a number, true or false")

    def _number(self, token: _Token) -> float:
        if re.fullmatch(r"-?[0-9]+", token.text):
            if len(token.text) > 20 or not -WHOLE <= (whole := int(token.text)) < WHOLE:
                self._fail(token.at, "a whole number beyond 64 bits; write it as a decimal, such as 1e20")
            return whole
        value = float(token.text)
        if not math.isfinite(value):
            self._fail(token.at, "a number too large for a float")
        return value


def _hint(text: str, at: int) -> str:
    if text[at].isdigit() or (text[at] == "-" and text[at + 1 : at + 2].isdigit()):
        return "no number; a name that begins with a digit stands in double quotes"
    return _HINTS.get(text[at : at + 2]) or _HINTS.get(text[at]) or "this character has no meaning here"
