"""Dense, lexical and hybrid search on labelled retrieval sets, through real collections.

    python benchmarks/retrieval.py --data ../shared/data/retrieval                                  # MiniLM on all seven sets
    python benchmarks/retrieval.py --data ../shared/data/retrieval --model ../shared/models/e5-small-zh-en
    python benchmarks/retrieval.py --data ../shared/data/retrieval --lexical                        # words only: no model, a minute

Prints Markdown tables: nDCG@10, recall@10 and MRR@10 of dense, lexical and hybrid (reciprocal ranks) over all queries; BM25 beside bm25s's on the
same terms and beside the plain reference run in the README of the data; then what `Searcher.tune` chooses on half of the queries, with nDCG@10 on
the other half. Vectors of documents are kept in benchmarks/cache/ (which git ignores), so that a second run takes minutes instead of hours.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from common import HERE, machine, versions

from twinvec.data.beir import RetrievalSet, read_retrieval
from twinvec.evaluation.retrieval import score_retrieval
from twinvec.index.collection import Collection
from twinvec.index.lexical import K1, B, terms
from twinvec.model.encoder import Encoder
from twinvec.records import Hit, Vectors
from twinvec.search.searcher import Searcher

# nDCG@10 of the plain BM25 in the README of the data (k1 0.9, b 0.4, no stemming, gain 2^grade - 1, up to 1,500 queries).
REFERENCE = {
    "scifact": 0.661, "cranfield": 0.316, "npl": 0.370, "xquad-en": 0.961, "xquad-zh": 0.968, "cmrc2018-zh": 0.985, "drcd-zh": 0.961,
}  # fmt: skip
SETS = tuple(REFERENCE)
FIGURES = ("ndcg@10", "recall@10", "mrr@10")


def measured(hits: Sequence[Sequence[str]], labelled: RetrievalSet) -> dict[str, float]:
    return score_retrieval(dict(zip(labelled.queries, hits, strict=True)), labelled.qrels, (10,))


def ids(hits: Sequence[Sequence[Hit]]) -> list[list[str]]:
    return [[hit.id for hit in found] for found in hits]


def by_bm25s(labelled: RetrievalSet) -> list[list[str]]:
    """The ten best of bm25s (method "lucene", the same k1 and b) over the same terms; ties by row."""
    import bm25s

    peer = bm25s.BM25(method="lucene", k1=K1, b=B)
    peer.index([terms(document.text) for document in labelled.corpus], show_progress=False)
    out = []
    for query in labelled.queries.values():
        known = [term for term in terms(query) if term in peer.vocab_dict]
        scores = peer.get_scores(known) if known else np.zeros(len(labelled.corpus))
        order = np.lexsort((np.arange(len(scores)), -scores))[:10]
        out.append([labelled.corpus[row].id for row in order if scores[row] > 0])
    return out


def vectors_of(encoder: Encoder, labelled: RetrievalSet, prompt: str | None) -> Vectors:
    """Vectors of the documents, from the cache when they are there."""
    place = HERE / "cache" / f"{encoder.fingerprint[:12]}-{labelled.path.name}.npy"
    if not place.exists():
        place.parent.mkdir(exist_ok=True)
        start = time.perf_counter()
        vectors = encoder.encode([document.text for document in labelled.corpus], prompt=prompt, progress=True)
        print(f"<!-- {labelled.path.name}: {len(vectors)} documents encoded in {time.perf_counter() - start:.0f} s -->", flush=True)
        np.save(place, vectors)
    found: Vectors = np.load(place)
    return found


def run(labelled: RetrievalSet, encoder: Encoder | None) -> tuple[list[list[str]], list[str] | None]:
    """Rows of the first table, and the row of the second."""
    queries = list(labelled.queries.values())
    name = labelled.path.name
    rows = []

    def add(mode: str, found: dict[str, float], beside: str = "") -> None:
        rows.append([name, mode, *(f"{found[figure]:.4f}" for figure in FIGURES), beside])

    with tempfile.TemporaryDirectory() as folder:
        made = Collection.create(Path(folder) / "c", encoder if encoder is not None else "words only", dimensions=None if encoder else 2)
        with made as collection:
            settings = collection.settings
            given = np.ones((len(labelled.corpus), 2)) if encoder is None else vectors_of(encoder, labelled, settings.document_prompt)
            collection.add(labelled.corpus, given)
            searcher = Searcher(encoder, collection)
            start = time.perf_counter()
            words = searcher.search(queries, 10, mode="lexical")
            rate = len(queries) / (time.perf_counter() - start)
            peer = measured(by_bm25s(labelled), labelled)["ndcg@10"]
            beside = f"bm25s {peer:.4f}, reference {REFERENCE.get(name, float('nan')):.3f}; {rate:.0f} queries/s"
            add("lexical", measured(ids(words), labelled), beside)
            if encoder is None:
                return rows, None
            add("dense", measured(ids(searcher.search(queries, 10)), labelled))
            add("hybrid (rrf)", measured(ids(searcher.search(queries, 10, mode="hybrid")), labelled))
            tuned = searcher.tune(labelled.queries, labelled.qrels, save=False)
    fusion = tuned.fusion
    kept = [f"{tuned.held_out[side]:.4f}" for side in ("dense", "lexical", "rrf", "tuned")]
    return rows, [name, f"{fusion.method} {fusion.dense:g}", *kept, f"{tuned.chosen_on['tuned']:.4f}", f"{tuned.queries[0]} / {tuned.queries[1]}"]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the retrieval sets")
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--precision", default="float32", help="float32 or bf16; vectors that are kept from an earlier run count as they are")
    parser.add_argument("--lexical", action="store_true", help="only words: no model is loaded")
    parser.add_argument("--queries", type=int, help="only the first so many queries of each set")
    options = parser.parse_args()
    encoder = None if options.lexical else Encoder.load(options.model, precision=options.precision)
    rows, tuned = [], []
    for name in options.sets:
        labelled = read_retrieval(options.data / name)
        if options.queries:
            kept = dict(list(labelled.queries.items())[: options.queries])
            labelled = RetrievalSet(labelled.corpus, kept, {query: labelled.qrels[query] for query in kept}, labelled.path)
        more, row = run(labelled, encoder)
        rows += more
        tuned += [row] if row else []
        print(f"<!-- {name} done -->", flush=True)
    print(f"\n{'words only' if encoder is None else options.model}; {machine()}; {versions('twinvec', 'torch', 'bm25s')}\n")
    print(table(["set", "mode", "nDCG@10", "recall@10", "MRR@10", ""], rows))
    if tuned:
        print("\nnDCG@10 on the half of the queries that the choice did not see:\n")
        print(table(["set", "chosen (weight of dense)", "dense", "lexical", "rrf", "tuned", "tuned, on the half it was chosen on", "queries"], tuned))


if __name__ == "__main__":
    main()
