"""Full text in PostgreSQL: the words that twinvec cuts, in arrays with a GIN index, scored by BM25 in SQL.

PostgreSQL has no BM25 of its own: ts_rank knows no document frequencies, and its parsers do not cut Chinese. The formula and the words are those
of lexical_reader.py: sum of ln(1 + (N - n + 0.5) / (n + 0.5)) * tf / (tf + K1 (1 - B + B length / mean)), over all passages of the collection.
Every passage that holds a word of the query is read, so words that stand in most passages make a query slow at millions of them.
"""

from __future__ import annotations

from collections import Counter

from twinvec.index.lexical import K1, B
from twinvec.index.remote.postgres_link import Link
from twinvec.index.remote.scoring import Best
from twinvec.index.where import Node, to_postgres

LONGEST_QUERY = 512  # distinct words of a query that are used


def counted(words: list[str]) -> tuple[list[str], list[int], int]:
    """Each word once, how often it stands there, and their number."""
    found = Counter(words)
    return list(found), list(found.values()), sum(found.values())


def search(link: Link, words: list[str], k: int, where: Node | None) -> list[Best]:
    """The k best documents for the words of a query, each by its best passage, by (-score, id)."""
    asked = Counter(words)
    if not asked:
        return []
    s = link.schema
    names = sorted(asked)[:LONGEST_QUERY]
    # A word's frequency is counted through the index, whose answers are exact inside this transaction.
    weights = link.rows(
        f"SELECT w.term, w.times * ln(1 + (c.passages - n.n + 0.5) / (n.n + 0.5))::float8 FROM unnest(%s::text[], %s::int[]) w (term, times), "
        f"{s}.counters c, LATERAL (SELECT count(*)::float8 AS n FROM {s}.passages p WHERE p.words @> ARRAY[w.term]) n WHERE n.n > 0 ORDER BY w.term",
        [names, [asked[name] for name in names]],
    )
    if not weights:
        return []
    condition, values = to_postgres(where) if where is not None else ("true", [])
    sql = f"""
        WITH mean AS (SELECT words::float8 / greatest(passages, 1) AS mean FROM {s}.counters),
        scored AS (
            SELECT p.number, p.document, p.part, sum(w.weight * h.tf / (h.tf + {K1} * (1 - {B} + {B} * p.length / m.mean)) ORDER BY w.term) AS score
            FROM unnest(%s::text[], %s::float8[]) w (term, weight) JOIN {s}.passages p ON p.words @> ARRAY[w.term], mean m,
                LATERAL (SELECT p.counts[array_position(p.words, w.term)]::float8 AS tf) h
            GROUP BY p.number, p.document, p.part
        ),
        best AS (SELECT DISTINCT ON (document) document, part, score FROM scored ORDER BY document, score DESC, part)
        SELECT d.id, b.part, b.score FROM best b JOIN {s}.documents d ON d.number = b.document WHERE {condition}
        ORDER BY b.score DESC, d.id LIMIT %s"""
    rows = link.rows(sql, [[term for term, _ in weights], [weight for _, weight in weights], *values, k])
    return [Best(name, part, score) for name, part, score in rows]
