"""From a text to hits, with a fake encoder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from search_fakes import Letters

from twinvec.errors import CollectionError, UsageError
from twinvec.index.collection import Collection
from twinvec.search.searcher import Searcher


@pytest.fixture
def encoder() -> Letters:
    return Letters(prompts={"query": "zzzz", "passage": "qq"})


@pytest.fixture
def faq(tmp_path: Path, encoder: Letters) -> Iterator[Collection]:
    with Collection.create(tmp_path / "faq", encoder) as collection:
        collection.add([("1", "abba", {"n": 1}), ("2", "cello"), ("3", "zebra zzz"), ("4", "")])
        yield collection


def test_one_query_gives_hits_and_several_give_lists(faq: Collection, encoder: Letters) -> None:
    searcher = Searcher(encoder, faq, prompt="")
    hits = searcher.search("baba", 2)
    assert hits[0].id == "1"
    assert (hits[0].text, hits[0].metadata) == ("abba", {"n": 1})
    assert len(hits) == 2
    assert searcher.search(["baba"], 2) == [hits]
    assert [row[0].id for row in searcher.search(iter(["baba", "cello"]), 1)] == ["1", "2"]
    assert searcher.search(("baba", "cello"), 99)[1] == searcher.search("cello", k=99)
    assert [len(row) for row in searcher.search(["baba"], 99)] == [3]  # the empty document is no hit
    assert searcher.search([]) == []
    assert searcher.search("baba", kind="flat") == searcher.search("baba")


def test_the_query_prompt_of_the_collection_is_used_and_reported(faq: Collection, encoder: Letters) -> None:
    found = Searcher(encoder, faq).search_with_report("baba", 1)
    assert (found.report.prompt, found.queries) == ("zzzz", ["baba"])
    assert found.hits[0][0].id == "3"  # the prompt's letters count: it was put before the query
    assert Searcher(encoder, faq, prompt="").search("baba", 1)[0].id == "1"
    assert Searcher(encoder, faq, prompt="passage").search_with_report("baba", 1).report.prompt == "qq"


def test_a_document_is_found_the_moment_it_is_added(faq: Collection, encoder: Letters) -> None:
    searcher = Searcher(encoder, faq, prompt="")
    with Collection.open(faq.path, encoder) as writer:
        writer.add([("5", "jukebox jj")])
        assert searcher.search("jukebox jj", 1)[0].id == "5"
        writer.delete("5")
    assert "5" not in [hit.id for hit in searcher.search("jukebox jj", 9)]


@pytest.mark.parametrize("text", ["", "  ", "\u3000", "\u200b"])
def test_an_empty_query_is_refused(faq: Collection, encoder: Letters, text: str) -> None:
    with pytest.raises(UsageError, match="the query is empty"):
        Searcher(encoder, faq).search(text)
    with pytest.raises(ValueError, match="query 2 of 2 is empty"):
        Searcher(encoder, faq).search(["fine", text])


@pytest.mark.parametrize("query", [None, 3, {"q": "a"}, {"a"}, b"a", ["a", None], [["a", "b"]], [("a", "b")]])
def test_what_is_no_text_is_refused(faq: Collection, encoder: Letters, query: Any) -> None:
    with pytest.raises(UsageError, match=r"wanted a text"):
        Searcher(encoder, faq).search(query)


@pytest.mark.parametrize("k", [0, -3, 1.5, None])
def test_k_is_checked_before_anything_is_encoded(faq: Collection, encoder: Letters, k: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "encode_with_report", None)
    with pytest.raises(ValueError, match="k = "):
        Searcher(encoder, faq).search("baba", k)


def test_another_model_is_refused(faq: Collection) -> None:
    with pytest.raises(CollectionError, match=r"made with the model letters .*this is numbers .*--reindex --model numbers"):
        Searcher(Letters("numbers"), faq)


def test_an_unknown_prompt_is_refused(faq: Collection, encoder: Letters) -> None:
    with pytest.raises(UsageError, match=r"query_prompt = 'qery': .*knows these prompts: query, passage; did you mean 'query'"):
        Searcher(encoder, faq, prompt="qery")


def test_a_searcher_opens_with_the_model_that_the_collection_names(faq: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    from twinvec.model.encoder import Encoder

    asked: list[tuple[str, dict[str, Any]]] = []

    def load(name: str, **options: Any) -> Letters:
        asked.append((name, options))
        return Letters(prompts={"query": "zzzz", "passage": "qq"})

    monkeypatch.setattr(Encoder, "load", staticmethod(load))
    searcher = Searcher.open(faq.path, device="cpu")
    assert searcher.search("baba", 1)[0].id == "3"
    assert asked == [("letters", {"device": "cpu"})]
    searcher.collection.close()
