"""Dense, lexical and hybrid search, filters, reranking, tuning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from search_fakes import CommonWords, Letters

from twinvec.errors import UsageError
from twinvec.index.collection import Collection
from twinvec.search.fusion import Fusion
from twinvec.search.searcher import Searcher

TEXTS = {
    "cat": "the cat sat on the mat", "act": "act tact cat", "dog": "a dog in the fog", "code": "error ERR-1024 in the log",
    "poem1": "床前明月光", "poem2": "疑是地上霜", "poem3": "举头望明月", "poem4": "低头思故乡",
}  # fmt: skip


@pytest.fixture
def faq(tmp_path: Path) -> Iterator[Collection]:
    with Collection.create(tmp_path / "faq", Letters()) as collection:
        collection.add([(name, text, {"lang": "zh" if name.startswith("poem") else "en", "n": i}) for i, (name, text) in enumerate(TEXTS.items())])
        yield collection


@pytest.fixture
def searcher(faq: Collection) -> Searcher:
    return Searcher(Letters(), faq)


def ids(hits: Any) -> list[str]:
    return [hit.id for hit in hits]


def test_words_find_what_the_vectors_miss(searcher: Searcher) -> None:
    hits = searcher.search("故乡", 4, mode="lexical")
    assert ids(hits) == ["poem4"]
    assert hits[0].score > 0
    assert ids(searcher.search("故乡", 4, mode="hybrid"))[0] == "poem4"
    assert ids(searcher.search("err-1024?", 3, mode="lexical")) == ["code"]


def test_words_need_no_model(faq: Collection) -> None:
    searcher = Searcher(None, faq)
    found = searcher.search_with_report(["cat", "dog"], 3, mode="lexical")
    assert [ids(hits) for hits in found.hits] == [["act", "cat"], ["dog"]]
    assert (found.report, found.notes) == (None, [])
    with pytest.raises(UsageError, match=r"no model, so it can only search with mode = 'lexical'"):
        searcher.search("cat")


@pytest.mark.parametrize("fusion", [None, Fusion("weighted", 0.3), Fusion("rrf", 0.8, depth=2)])
def test_hybrid_is_the_fusion_of_both(searcher: Searcher, fusion: Fusion | None) -> None:
    for query in ("cat in the fog", "明月", "???!", "zzz"):
        dense, words = searcher.search(query, 100), searcher.search(query, 100, mode="lexical")
        wanted = (fusion or Fusion()).fuse([(hit.id, hit.score) for hit in dense], [(hit.id, hit.score) for hit in words], 8)
        hits = searcher.search(query, 8, mode="hybrid", fusion=fusion)
        assert [(hit.id, hit.score) for hit in hits] == wanted
        assert [(hit.text, hit.metadata["lang"]) for hit in hits] == [(TEXTS[i], "zh" if "poem" in i else "en") for i, _ in wanted]
        assert len({*ids(hits)}) == len(hits) == 8
        for k in (1, 3):
            assert searcher.search(query, k, mode="hybrid", fusion=fusion) == hits[:k]
        assert searcher.search(["dog", query], 8, mode="hybrid", fusion=fusion)[1] == hits


def test_filters_hold_in_every_mode(searcher: Searcher) -> None:
    for mode in ("dense", "lexical", "hybrid"):
        hits = searcher.search("the cat 明月", 10, mode=mode, where="lang = 'zh' and n >= 5")
        assert ids(hits)
        assert {*ids(hits)} <= {"poem2", "poem3", "poem4"}
        assert searcher.search("cat", 10, mode=mode, where="lang = 'fr'") == []
    assert searcher.search("cat", 5, kind="exact", recall=0.9) == searcher.search("cat", 5)


def test_explain_says_what_a_score_is_made_of(searcher: Searcher) -> None:
    hits = searcher.search("dog", 3, mode="hybrid", explain=True)
    words, dense = searcher.search("dog", 9, mode="lexical"), searcher.search("dog", 9)
    top = hits[0]
    assert top.parts == {"dense_score": dense[0].score, "dense_rank": 1, "lexical_score": words[0].score, "lexical_rank": 1}
    assert hits[1].parts is not None
    assert hits[1].parts["lexical_rank"] is None
    assert top.to_dict()["parts"] == top.parts
    assert searcher.search("dog", 1, explain=True)[0].parts == {"dense_score": dense[0].score, "dense_rank": 1}
    assert searcher.search("dog", 1, mode="lexical", explain=True)[0].parts == {"lexical_score": words[0].score, "lexical_rank": 1}
    assert "parts" not in searcher.search("dog", 1)[0].to_dict()


def test_reranking_orders_the_best_again(searcher: Searcher) -> None:
    model = CommonWords()
    found = searcher.search_with_report("cat tact", 2, rerank=model, explain=True)
    assert ids(found.hits[0]) == ["act", "cat"]
    assert [hit.score for hit in found.hits[0]] == [1.0, 0.5]
    assert len(model.pairs) == len(TEXTS)  # the best 50, which is all
    parts = found.hits[0][0].parts
    assert parts is not None
    assert parts == {"dense_score": parts["first_score"], "dense_rank": 1, "first_score": parts["first_score"], "rerank_score": 1.0}
    assert "rerank: 1 of 4 pairs were longer" in found.notes
    narrow = CommonWords()
    hits = searcher.search("the cat", 3, rerank=narrow, rerank_depth=2)
    assert (len(narrow.pairs), len(hits)) == (3, 3)  # at least k
    assert ids(hits) == sorted(ids(hits), key=lambda name: (-len({"the", "cat"} & set(TEXTS[name].split())), name))
    assert ids(searcher.search("故乡", 1, mode="lexical", rerank=CommonWords())) == ["poem4"]
    assert searcher.search(["!!!"], 3, mode="lexical", rerank=CommonWords()) == [[]]


def test_reranking_by_another_encoder_is_its_cosine(searcher: Searcher) -> None:
    other = Letters("other", prompts={"query": "xx", "passage": "yy"})
    hits = searcher.search("cat", 3, rerank=other)
    query = other.encode_with_report(["cat"], prompt="query").vectors[0].astype(np.float64)
    texts = other.encode_with_report(list(TEXTS.values()), prompt="passage").vectors.astype(np.float64)
    wanted = sorted(zip(TEXTS, (texts @ query).tolist(), strict=True), key=lambda pair: -pair[1])[:3]
    assert ids(hits) == [name for name, _ in wanted]
    assert [hit.score for hit in hits] == pytest.approx([score for _, score in wanted], abs=1e-6)


def test_of_a_long_document_the_best_passage_is_reranked(tmp_path: Path) -> None:
    filler = "words about nothing at all. " * 60
    with Collection.create(tmp_path / "c", Letters()) as faq:
        faq.add([("long", f"{filler}The zebra stands here. {filler}")], on_long="passages")
        model = CommonWords()
        for mode in ("dense", "lexical", "hybrid"):
            hits = Searcher(Letters(), faq).search("zebra", 3, mode=mode, rerank=model)
            assert ids(hits) == ["long"]
        assert "zebra" in model.pairs[-1][1]
        assert all(len(text) < len(filler) for _, text in model.pairs)


def test_documents_added_and_deleted_change_both_sides_at_once(searcher: Searcher, faq: Collection) -> None:
    with Collection.open(faq.path, Letters()) as writer:
        writer.add([("new", "jukebox jukebox"), ("dog", "now a jukebox")])
        for mode in ("dense", "lexical", "hybrid"):
            assert ids(searcher.search("jukebox", 2, mode=mode))[0] == "new"
        assert ids(searcher.search("fog", 5, mode="lexical")) == []
        writer.delete("new")
    for mode in ("dense", "lexical", "hybrid"):
        assert "new" not in ids(searcher.search("jukebox", 99, mode=mode))


def test_tuning_is_stored_and_used(searcher: Searcher, faq: Collection) -> None:
    faq.add([(f"d{i}", f"word{i} common text") for i in range(30)])
    queries = {f"q{i}": f"word{i}" for i in range(30)}
    qrels = {f"q{i}": {f"d{i}": 1.0} for i in range(30)}
    assert searcher.fusion() == Fusion()
    tuned = searcher.tune(queries, qrels, save=False)
    assert searcher.fusion() == Fusion()
    assert searcher.tune(queries, qrels) == tuned
    assert tuned.held_out["lexical"] == tuned.held_out["tuned"] == 1.0
    with Collection.open(faq.path) as other:
        assert Searcher(Letters(), other).fusion() == tuned.fusion
        wanted = searcher.search("word7", 5, mode="hybrid", fusion=tuned.fusion)
        assert Searcher(Letters(), other).search("word7", 5, mode="hybrid") == wanted


def test_an_empty_collection_finds_nothing(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", Letters()) as faq:
        for mode in ("dense", "lexical", "hybrid"):
            assert Searcher(Letters(), faq).search("cat", 3, mode=mode) == []
            assert Searcher(Letters(), faq).search([], 3, mode=mode) == []
