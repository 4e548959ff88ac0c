"""From ranked passages to hits: each document once, by its best passage, and k documents where there are so many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from twinvec.errors import CollectionError
from twinvec.index import lexical
from twinvec.index.exact import as_queries
from twinvec.index.layout import Layout
from twinvec.index.ranking import Ranked, Rows
from twinvec.index.reading import Reader, first_of_each
from twinvec.index.searching import State, search
from twinvec.index.store import Store
from twinvec.records import Hit

Found = list[tuple[int, float]]


def dense(
    reader: Reader, store: Store, state: State, vectors: Any, k: int, *, kind: str | None, recall: float | None, where: str | None
) -> list[list[Hit]]:  # fmt: skip
    """Hits of query vectors (q, D), inside a snapshot."""
    settings, layout = state.once("settings", store.settings), state.layout
    queries = as_queries(vectors, settings.dimensions)
    numbers = reader.allowed(store, state, where)
    allowed = None if numbers is None else layout.places(numbers)

    def names(rows: Iterable[int]) -> dict[int, str]:
        listed = list(rows)
        wanted = layout.numbers(np.asarray(listed, dtype=np.int64)).tolist()
        found = store.passage_ids(wanted)
        return {row: found.get(number, "") for row, number in zip(listed, wanted, strict=True)}

    def ranked(which: Rows, take: int) -> list[Found]:
        found = search(
            state, queries[which], take, kind=kind or settings.kind, metric=settings.metric, recall=recall, allowed=allowed, ids=names
        )  # fmt: skip
        return _pairs(layout, found)

    return reader.hits(store, state, _documents(store, state, ranked, len(queries), k))


def by_words(reader: Reader, store: Store, state: State, queries: Sequence[str], k: int, *, where: str | None) -> list[list[Hit]]:
    """Hits of BM25, inside a snapshot."""
    if not lexical.exists(store.db):
        raise CollectionError(
            f"{reader.path}: made by an older twinvec, so it has no index of words yet; the next change makes it, "
            f"for example: twinvec index {reader.path} --compact"
        )
    words, allowed = reader.words(store), reader.allowed(store, state, where)

    def ranked(which: Rows, take: int) -> list[Found]:
        return [words.search(queries[i], take, allowed=allowed, ids=store.passage_ids) for i in which.tolist()]

    return reader.hits(store, state, _documents(store, state, ranked, len(queries), k))


def _documents(store: Store, state: State, ranked: Callable[[Rows, int], list[Found]], count: int, k: int) -> list[Found]:
    """The k best documents of each query. ranked(queries, take) gives the `take` best passages, of which one document may have many."""
    todo: Rows = np.arange(count)
    if not state.once("parts", lambda: store.counter("parts")):
        return ranked(todo, k)
    out: list[Found] = [[] for _ in range(count)]
    take = 2 * k + 8
    while len(todo):
        found = ranked(todo, take)
        owners = store.owners({number for row in found for number, _ in row})
        again = []
        for i, row in zip(todo.tolist(), found, strict=True):
            out[i] = first_of_each(row, owners, k)
            if len(out[i]) < k and len(row) == take:
                again.append(i)
        todo, take = np.asarray(again, dtype=np.int64), take * 4
    return out


def _pairs(layout: Layout, ranked: Ranked) -> list[Found]:
    if not ranked.rows.size:
        return [[] for _ in ranked.rows]
    numbers = layout.numbers(ranked.rows.ravel()).reshape(ranked.rows.shape)
    return [list(zip(row, scores, strict=True)) for row, scores in zip(numbers.tolist(), ranked.scores.tolist(), strict=True)]
