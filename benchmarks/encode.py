"""Encoding: twinvec against sentence-transformers on the same 2,000 sentences, turn by turn in one process.

    .venv/bin/python benchmarks/encode.py [--model minilm] [--rounds 5] [--precision float32|bf16]

Prints the best and the median time of each, the ratio of the best times, and the least cosine between their vectors.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
from common import machine, mixed_sentences, versions
from sentence_transformers import SentenceTransformer

import twinvec as tv


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", default="float32", choices=["float32", "bf16"])
    options = parser.parse_args()
    encoder = tv.Encoder.load(options.model, precision=options.precision)
    peer = SentenceTransformer(str(encoder.source), device="cpu")
    texts = mixed_sentences(encoder)
    tokens = np.asarray(encoder.count_tokens(texts))
    print(f"{machine()}; {versions('twinvec', 'sentence-transformers', 'torch', 'transformers')}; {encoder.threads} threads")
    middle, long = np.median(tokens), np.percentile(tokens, 95)
    print(f"{len(texts)} sentences, {tokens.min()}-{tokens.max()} tokens, median {middle:.0f}, 95th percentile {long:.0f}")
    ours, theirs = [], []
    encoder.encode(texts[:64])
    peer.encode(texts[:64], batch_size=32)
    for _ in range(options.rounds):  # turn by turn, so that a busy neighbour slows both
        start = time.perf_counter()
        reference = peer.encode(texts, batch_size=32, show_progress_bar=False)
        theirs.append(time.perf_counter() - start)
        start = time.perf_counter()
        vectors = encoder.encode(texts)
        ours.append(time.perf_counter() - start)
    cosine = (vectors * reference).sum(1) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(reference, axis=1)
    pairs = [peer_time / our_time for peer_time, our_time in zip(theirs, ours, strict=True)]
    result = {
        "sentences_per_second": round(len(texts) / min(ours), 1),
        "peer_sentences_per_second": round(len(texts) / min(theirs), 1),
        "ratio_of_best": round(min(theirs) / min(ours), 2),
        "ratio_median": round(statistics.median(pairs), 2),
        "least_cosine": float(cosine.min()),
        "precision": options.precision,
        "rounds": options.rounds,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
