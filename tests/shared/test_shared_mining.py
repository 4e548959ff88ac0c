"""Hard negatives on real texts: Banking77, where the intents tell which mined negatives are none, and questions of a payment service."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import twinvec as tv
from twinvec.data.dataset import Dataset, read_data
from twinvec.mining.negatives import mine_negatives
from twinvec.mining.rules import Rules
from twinvec.records import Encoding
from twinvec.text import same_text_key

SHARED = Path(__file__).resolve().parents[3] / "shared"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="../shared is not here")


class EncodedOnce:
    """MiniLM, each list of texts encoded once for all the rules."""

    def __init__(self) -> None:
        self.encoder = tv.Encoder.load("minilm")
        self.known: dict[tuple[str, ...], Encoding] = {}

    def encode_with_report(self, texts: Any, *, prompt: str | None = None, progress: bool = False) -> Encoding:
        key = tuple(texts)
        if key not in self.known:
            self.known[key] = self.encoder.encode_with_report(texts, prompt=prompt)
        return self.known[key]


@pytest.fixture(scope="module")
def intents() -> tuple[Dataset, list[str], dict[str, str]]:
    """Pairs of messages of one intent (4 an intent), all messages, and the intent of each."""
    by_intent: defaultdict[str, list[str]] = defaultdict(list)
    with open(SHARED / "data/classification/banking77.test.csv", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            by_intent[row["label"]].append(row["text"])
    chosen = {name: texts[:20] for name, texts in by_intent.items()}
    first = [texts[i] for texts in chosen.values() for i in (0, 2, 4, 6)]
    second = [texts[i + 1] for texts in chosen.values() for i in (0, 2, 4, 6)]
    pairs = Dataset(kind="pairs", columns={"sentence1": first, "sentence2": second})
    return pairs, [text for texts in chosen.values() for text in texts], {same_text_key(t): name for name, texts in chosen.items() for t in texts}


def test_rules_leave_out_positives_that_nobody_labelled(intents: tuple[Dataset, list[str], dict[str, str]]) -> None:
    """The nearest texts are mostly of the anchor's own intent; a relative margin, and more so a later window, leave most of them out."""
    pairs, corpus, intent_of = intents
    encoder, shares = EncodedOnce(), []
    for rules in (Rules(), Rules(relative_margin=0.95), Rules(rank_from=20, rank_to=60, sample="random")):
        mined = mine_negatives(encoder, pairs, corpus, rules)
        same = [
            intent_of[same_text_key(a)] == intent_of[same_text_key(n)]
            for a, n in zip(mined.data.columns["anchor"], mined.data.columns["negative"], strict=True)
        ]
        shares.append(float(np.mean(same)))
        assert len(mined) > 100
    assert shares[0] > 0.7
    assert shares[1] < 0.6
    assert shares[2] < 0.2


def test_chinese_questions() -> None:
    pairs = read_data(SHARED / "data/pairs/zh/finance-union.train.csv.gz", limit=600)
    mined = mine_negatives(tv.Encoder.load(SHARED / "models/e5-small-zh-en"), pairs, rules=Rules(negatives=2, margin=0.005), query_prompt="query",
                           document_prompt="query")  # fmt: skip
    assert mined.counts["label_0"] + mined.counts["none"] + mined.counts["too_few"] + len(mined) == 600
    assert len(mined) > 50
    assert mined.background > 0.8  # the narrow cone of e5
    assert (mined.negative_scores <= mined.positive_scores[:, None] - 0.005).all()
    known = defaultdict(set)
    for a, b, label in zip(*pairs.columns.values(), pairs.labels or [], strict=True):
        if label:
            known[same_text_key(a)].add(same_text_key(b))
    for i in range(len(mined)):
        anchor, positive, *negatives = map(same_text_key, mined.data.texts(i))
        assert not known[anchor] & set(negatives)
        assert len({anchor, positive, *negatives}) == 4
