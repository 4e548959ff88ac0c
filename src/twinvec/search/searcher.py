"""`Searcher`: texts in, hits out, by meaning (the collection's own model), by words, or by both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, overload

from twinvec.errors import CollectionError, UsageError, choose
from twinvec.index.checks import SearchError, check_k, is_blank
from twinvec.index.collection import Collection
from twinvec.index.models import AUTO, EncoderLike, check_model, prompt_names
from twinvec.records import EncodeReport, Hit
from twinvec.search import reranking
from twinvec.search.fusion import DEPTH, Fusion
from twinvec.search.tuning import Tuned, choose_fusion
from twinvec.text import without_surrogates

MODES: Final = ("dense", "lexical", "hybrid")
SETTING: Final = "hybrid"  # under this name a collection keeps its tuned fusion


@dataclass(frozen=True, slots=True)
class Found:
    """Hits of each query, in the order of the queries, and what happened to their texts.

    `report`: the encoder's (`report.prompt` is the prompt put before the queries); None when nothing was encoded. `notes`: sentences worth
    showing to a user, the report's among them.
    """

    queries: list[str]
    hits: list[list[Hit]]
    report: EncodeReport | None
    notes: list[str] = field(default_factory=list)


class Searcher:
    """Searches `collection` with `encoder`, which must be the model that the collection was made with (CollectionError if not).

    encoder: None when only words are searched (mode "lexical"). collection: a Collection, or a remote one with the same methods.
    prompt: name of the prompt for queries; "auto" is the one that the collection names, "" none, None the model's default.
    """

    def __init__(self, encoder: EncoderLike | None, collection: Any, *, prompt: str | None = AUTO) -> None:
        settings = collection.settings
        if encoder is not None:
            check_model(collection.path, settings, encoder)
        self.encoder, self.collection = encoder, collection
        self.prompt: str | None = settings.query_prompt
        if prompt != AUTO and encoder is not None:
            self.prompt = prompt_names(encoder, "", prompt)[1]

    @staticmethod
    def open(path: str | Path, model: str | Path | None = None, **options: Any) -> Searcher:
        """The collection at `path` with its own model loaded (or `model`); options go to Encoder.load."""
        from twinvec.index.remote import open_collection
        from twinvec.model.encoder import Encoder

        collection = open_collection(path)
        encoder = Encoder.load(model if model is not None else collection.model, **options)
        return Searcher(encoder, collection)

    @overload
    def search(self, query: str, k: int = ..., **options: Any) -> list[Hit]: ...

    @overload
    def search(self, query: Iterable[str], k: int = ..., **options: Any) -> list[list[Hit]]: ...

    def search(self, query: str | Iterable[str], k: int = 10, **options: Any) -> list[Hit] | list[list[Hit]]:
        """The `k` best documents for a query (a list of hits), or for each of several (a list of such lists), best first, ties by id.

        Options, all by name:
        mode: "dense" (default; the score is the cosine of the two vectors, or their inner product), "lexical" (BM25 over words; only documents
        that hold a word of the query) or "hybrid" (both, fused). where: a filter over ids and metadata, "lang = 'zh' and year >= 2020". recall,
        kind: how the dense search is done (see Collection.search). rerank: a CrossEncoder, an Encoder or the name of a model folder that
        scores the best `rerank_depth` hits (50, at least k) again. fusion: a Fusion for this search; else the one that `tune` stored, else
        reciprocal ranks. explain: each hit carries `parts` (dense and lexical score and rank, score before reranking).
        SearchError: an empty query, one that is no text, k below 1. UsageError: an unknown mode, a filter that cannot be read.
        """
        found = self.search_with_report(query, k, **options)
        return found.hits[0] if isinstance(query, str) else found.hits

    def search_with_report(
        self, query: str | Iterable[str], k: int = 10, *, mode: str = "dense", where: str | None = None, recall: float | None = None,
        kind: str | None = None, rerank: Any = None, rerank_depth: int = reranking.DEPTH, fusion: Fusion | None = None, explain: bool = False,
    ) -> Found:  # fmt: skip
        """As `search`, always a list a query, with the encoder's report (cut queries, unknown tokens, the prompt used)."""
        k, depth = check_k(k), check_k(rerank_depth)
        choose("mode", mode, MODES)
        queries = _as_queries(query)
        fetch = max(k, depth) if rerank is not None else k
        dense: list[list[Hit]] = []
        words: list[list[Hit]] = []
        report: EncodeReport | None = None
        if mode == "hybrid":
            fusion = fusion or self.fusion()
        if mode != "lexical":
            dense, report = self._dense(queries, max(fetch, fusion.depth) if fusion and mode == "hybrid" else fetch, where, recall, kind)
        if mode != "dense":
            words = self._words(queries, max(fetch, fusion.depth) if fusion and mode == "hybrid" else fetch, where)
        if mode == "hybrid":
            assert fusion is not None
            hits = [_fused(fusion, by_meaning, by_words, fetch, explain) for by_meaning, by_words in zip(dense, words, strict=True)]
        else:
            hits = [_explained(found, mode) for found in dense or words] if explain else dense or words
        notes = report.warnings() if report is not None else []
        if rerank is not None and queries:
            model = reranking.load_reranker(rerank) if isinstance(rerank, (str, Path)) else rerank
            hits, more = reranking.rerank(model, queries, hits)
            hits, notes = [found[:k] for found in hits], notes + more
        return Found(queries, hits, report, notes)

    def fusion(self) -> Fusion:
        """How this collection fuses: what `tune` stored, else reciprocal ranks with equal weights."""
        setting = getattr(self.collection, "setting", None)
        stored = setting(SETTING) if setting is not None else None
        return Fusion() if stored is None else Fusion.from_dict(stored)

    def tune(
        self, queries: Mapping[str, str], qrels: Mapping[str, Mapping[str, float]], *, depth: int = DEPTH, where: str | None = None, save: bool = True
    ) -> Tuned:
        """Choose how to fuse by nDCG@10 on half of the labelled queries, and measure on the other half.

        queries: id -> text; qrels: query id -> document id -> grade (above 0 is relevant). save: the choice is stored in the collection, for
        every later hybrid search. DataError: fewer than ten queries with a relevant document.
        """
        fusion = Fusion(depth=depth)
        listed = dict(queries)
        texts = _as_queries(list(listed.values()))
        dense, _ = self._dense(texts, fusion.depth, where, None, None)
        words = self._words(texts, fusion.depth, where)
        by_meaning, by_words = (dict(zip(listed, map(_ranking, hits), strict=True)) for hits in (dense, words))
        tuned = choose_fusion(by_meaning, by_words, qrels, depth)
        if save:
            store = getattr(self.collection, "put_setting", None)
            if store is None:
                raise CollectionError(f"{self.collection.path}: this kind of collection keeps no settings; give save=False and the fusion to search")
            store(SETTING, tuned.fusion.to_dict())
        return tuned

    def _dense(
        self, queries: Sequence[str], k: int, where: str | None, recall: float | None, kind: str | None
    ) -> tuple[list[list[Hit]], EncodeReport]:  # fmt: skip
        if self.encoder is None:
            raise UsageError("this searcher has no model, so it can only search with mode = 'lexical'; make it with Searcher(encoder, collection)")
        encoding = self.encoder.encode_with_report(queries, prompt=self.prompt)
        options: dict[str, Any] = {"kind": kind, "recall": recall, "where": where}
        if isinstance(self.collection, Collection):
            options["fingerprint"] = self.encoder.fingerprint  # the collection may have moved to another model since
        given = {name: value for name, value in options.items() if value is not None}
        return (self.collection.search(encoding.vectors, k, **given) if queries else []), encoding.report

    def _words(self, queries: Sequence[str], k: int, where: str | None) -> list[list[Hit]]:
        found: list[list[Hit]] = self.collection.lexical([without_surrogates(query) for query in queries], k, where=where) if queries else []
        return found


def _ranking(hits: Sequence[Hit]) -> list[tuple[str, float]]:
    return [(hit.id, hit.score) for hit in hits]


def _fused(fusion: Fusion, dense: Sequence[Hit], words: Sequence[Hit], k: int, explain: bool) -> list[Hit]:
    """Each document once; one that was cut with the passage of the list that has it further up."""
    places = [{hit.id: (rank, hit) for rank, hit in enumerate(found, start=1)} for found in (dense, words)]
    out = []
    for name, score in fusion.fuse(_ranking(dense), _ranking(words), k):
        sides = [place.get(name) for place in places]
        hit = min((side for side in sides if side is not None), key=lambda side: side[0])[1]
        parts: dict[str, float | int | None] | None = None
        if explain:
            parts = {}
            for label, side in zip(("dense", "lexical"), sides, strict=True):
                parts[f"{label}_score"], parts[f"{label}_rank"] = (side[1].score, side[0]) if side is not None else (None, None)
        out.append(replace(hit, score=score, parts=parts))
    return out


def _explained(hits: Sequence[Hit], mode: str) -> list[Hit]:
    return [replace(hit, parts={f"{mode}_score": hit.score, f"{mode}_rank": rank}) for rank, hit in enumerate(hits, start=1)]


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
            which, advice = ("the query", "") if len(queries) == 1 else (f"query {row} of {len(queries)}", "; leave it out")
            raise SearchError(f"{which} is empty: there is nothing to search for{advice}")
    return queries
