"""`Searcher`: texts in, hits out, with the collection's own model and query prompt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from twinvec.index.checks import SearchError, check_k, is_blank
from twinvec.index.collection import Collection
from twinvec.index.models import AUTO, EncoderLike, check_model, prompt_names
from twinvec.records import EncodeReport, Hit


@dataclass(frozen=True, slots=True)
class Found:
    """Hits of each query, in the order of the queries, and what happened to their texts (`report.prompt` is the prompt put before them)."""

    queries: list[str]
    hits: list[list[Hit]]
    report: EncodeReport


class Searcher:
    """Searches `collection` with `encoder`, which must be the model that the collection was made with (CollectionError if not).

    prompt: name of the prompt for queries; "auto" is the one that the collection names, "" none, None the model's default.
    """

    def __init__(self, encoder: EncoderLike, collection: Collection, *, prompt: str | None = AUTO) -> None:
        settings = collection.settings
        check_model(collection.path, settings, encoder)
        self.encoder, self.collection = encoder, collection
        self.prompt = settings.query_prompt if prompt == AUTO else prompt_names(encoder, "", prompt)[1]

    @staticmethod
    def open(path: str | Path, model: str | Path | None = None, **options: Any) -> Searcher:
        """The collection at `path` with its own model loaded (or `model`); options go to Encoder.load."""
        from twinvec.model.encoder import Encoder

        collection = Collection.open(path)
        encoder = Encoder.load(model if model is not None else collection.model, **options)
        return Searcher(encoder, collection)

    @overload
    def search(self, query: str, k: int = ..., *, kind: str | None = ...) -> list[Hit]: ...  # type: ignore[overload-overlap]

    @overload
    def search(self, query: Iterable[str], k: int = ..., *, kind: str | None = ...) -> list[list[Hit]]: ...

    def search(self, query: str | Iterable[str], k: int = 10, *, kind: str | None = None) -> list[Hit] | list[list[Hit]]:
        """The `k` best documents for a query (a list of hits), or for each of several (a list of such lists).

        A document's score is the cosine of the two vectors (or their inner product), best first, ties by id; fewer than k only when the
        collection holds fewer. SearchError: an empty query, one that is no text, k below 1.
        """
        found = self.search_with_report(query, k, kind=kind)
        return found.hits[0] if isinstance(query, str) else found.hits

    def search_with_report(self, query: str | Iterable[str], k: int = 10, *, kind: str | None = None) -> Found:
        """As `search`, always a list a query, with the encoder's report (cut queries, unknown tokens, the prompt used)."""
        k = check_k(k)
        queries = _as_queries(query)
        encoding = self.encoder.encode_with_report(queries, prompt=self.prompt)
        hits = self.collection.search(encoding.vectors, k, kind=kind) if queries else []
        return Found(queries, hits, encoding.report)


def _as_queries(query: Any) -> list[str]:
    if isinstance(query, str):
        if is_blank(query):
            raise SearchError("the query is empty: there is nothing to search for")
        return [query]
    if isinstance(query, (bytes, Mapping, set, frozenset)) or not isinstance(query, Iterable):
        raise SearchError(f"query: wanted a text or a list of texts, got {type(query).__name__}")
    queries = list(query)
    for row, text in enumerate(queries, start=1):
        if not isinstance(text, str):
            raise SearchError(f"query {row} is {text!r} ({type(text).__name__}); wanted a text")
        if is_blank(text):
            raise SearchError(f"query {row} of {len(queries)} is empty: there is nothing to search for; leave it out")
    return queries
