"""What only Milvus has: expressions that thin out, limits, its BM25."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from index_fakes import FakeEncoder
from remote_places import Place
from where_strategies import nodes

from twinvec.errors import CollectionError, UsageError
from twinvec.index.documents import DocumentError
from twinvec.index.lexical import terms
from twinvec.index.where import parse_where, to_milvus


def ids_of(hits: list[Any]) -> list[str]:
    return [hit.id for hit in hits]


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("lang = 'zh'", 'fields["lang"] == "zh"'),
        ("a.b >= 2.5", 'fields["a"]["b"] >= 2.5'),
        ("lang = 'zh' and not year = 1", 'fields["lang"] == "zh"'),
        ("lang = 'zh' or not year = 1", ""),
        ("lang in ('a', 1)", '(fields["lang"] == "a" or fields["lang"] == 1)'),
        ("id in ('a b', 'it''s')", 'document in ["a%20b", "it%27s"]'),
        ("lang like '中文%x'", 'fields["lang"] like "中文%"'),
        ("lang like '%x'", ""),
        ("tags contains true", 'json_contains(fields["tags"], true)'),
        ("tags contains -1", ""),
        ("n >= -1", 'fields["n"] >= -1'),
        ("name = 'a\"b'", ""),
        ('"q""t" = 1', ""),
        ("n = 9007199254740993", ""),
    ],
)
def test_expressions(text: str, expression: str) -> None:
    assert to_milvus(parse_where(text)) == expression


@settings(max_examples=200, deadline=None)
@given(nodes)
def test_no_value_ends_its_quotes(node: Any) -> None:
    expression = to_milvus(node)
    assert expression.count('"') % 2 == 0
    assert "\\" not in expression
    assert "\n" not in expression


def test_words_score_by_bm25(milvus_place: Place, encoder: FakeEncoder) -> None:
    rng = np.random.default_rng(3)
    documents = [
        (f"{i:03}", " ".join(rng.choice(["apple", "house", "running", "苹果", "v2.3", "the"], size=rng.integers(1, 12)))) for i in range(100)
    ]
    collection = milvus_place.make(encoder)
    collection.add(documents)
    words = {name: Counter(terms(text)) for name, text in documents}
    mean = sum(sum(found.values()) for found in words.values()) / (len(words) + 1)  # the row of settings counts as a text without words
    for query in ("apple", "苹果", "running v2.3"):
        wanted: dict[str, float] = {}
        for term in terms(query):
            holders = sum(term in found for found in words.values())
            idf = math.log(1 + (len(words) + 1 - holders + 0.5) / (holders + 0.5))
            for name, found in words.items():
                if found[term]:
                    tf, held = found[term], 1.2 * (0.25 + 0.75 * sum(found.values()) / mean)
                    wanted[name] = wanted.get(name, 0.0) + idf * tf * 2.2 / (tf + held)
        # Milvus Lite leaves K1 and B at its own values and counts rows that were replaced, so scores are near only.
        hits = collection.lexical(query, 100)[0]
        assert {hit.id for hit in hits} == set(wanted)
        np.testing.assert_allclose([hit.score for hit in hits], sorted(wanted.values(), reverse=True), rtol=0.15)


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_an_index_never_gives_fewer_than_k(milvus_place: Place, kind: str) -> None:
    rows = np.random.default_rng(0).standard_normal((400, 16)).astype(np.float32)
    collection = milvus_place.make("print", dimensions=16)
    collection.add([(f"{i:04}", f"t{i}", {"n": i}) for i in range(400)], rows)
    detail = collection.optimize(kind, recall=0.9)
    assert detail["kind"] == collection.info()["search"] == kind
    assert max(row["recall"] for row in detail["measured"]) >= 0.9
    exact, found = collection.search(rows[:10], 10, kind="exact"), collection.search(rows[:10], 10, recall=0.99)
    assert np.mean([len({*ids_of(a)} & {*ids_of(b)}) / 10 for a, b in zip(exact, found, strict=True)]) >= 0.9
    for where, matching in (("n = 300", 1), ("not n < 385", 15), ("n < 200", 200)):
        assert len(collection.search(rows[5], 20, where=where)[0]) == min(20, matching)


def test_what_milvus_cannot_store(milvus_place: Place, encoder: FakeEncoder) -> None:
    collection = milvus_place.make(encoder)
    with pytest.raises(DocumentError, match=r"document 2 \(id 'y'\): its text has 70,000 bytes; Milvus holds up to 65,535"):
        collection.add([("x", "fine"), ("y", "z" * 70_000)])
    with pytest.raises(DocumentError, match=r"a text of 10,000 words, of which Milvus holds 7,281; cut it"):
        collection.add([("y", "word " * 10_000)])
    assert collection.ids() == []
    with pytest.raises(CollectionError, match="cannot swap a collection's vectors"):
        collection.reindex(encoder)
    with pytest.raises(CollectionError, match="a collection is there already"):
        type(collection).create(collection.address, encoder)
    collection.drop()
    with pytest.raises(UsageError, match="must know the dimensions"):
        milvus_place.make("print")


def test_a_collection_of_someone_else_is_left_alone(milvus_place: Place, encoder: FakeEncoder) -> None:
    collection = milvus_place.make(encoder)
    collection.link.delete(["!settings"])
    with pytest.raises(CollectionError, match=r"not made by twinvec \(it has no settings\)"):
        milvus_place.open()
