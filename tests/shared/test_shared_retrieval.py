"""BM25 on the labelled retrieval sets beside the repository: the figures of docs/search.md."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from twinvec.data.beir import read_retrieval
from twinvec.evaluation.retrieval import score_retrieval
from twinvec.index import lexical

SHARED = Path(__file__).resolve().parents[3] / "shared"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="../shared is not here")


@pytest.mark.parametrize(
    ("name", "ndcg", "reference"),
    [("scifact", 0.6887, 0.661), ("cranfield", 0.3701, 0.316), ("xquad-en", 0.9676, 0.961), ("xquad-zh", 0.9645, 0.968)],
)
def test_bm25_on_real_sets(name: str, ndcg: float, reference: float) -> None:
    labelled = read_retrieval(SHARED / "data" / "retrieval" / name)
    db = sqlite3.connect(":memory:", isolation_level=None)
    lexical.create(db)
    lexical.put(db, ((number, document.text) for number, document in enumerate(labelled.corpus)))
    reader = lexical.Lexical(db)
    ranked = {query: [labelled.corpus[number].id for number, _ in reader.search(text, 10)] for query, text in labelled.queries.items()}
    found = score_retrieval(ranked, labelled.qrels, (10,))["ndcg@10"]
    assert found == pytest.approx(ndcg, abs=0.002)
    assert found > reference - 0.01
    db.close()
