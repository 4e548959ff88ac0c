"""The published figures, on the data and models beside the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

import twinvec as tv

SHARED = Path(__file__).resolve().parents[3] / "shared"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="../shared is not here")
E5 = SHARED / "models" / "e5-small-zh-en"


def test_minilm_on_stsb() -> None:
    result = tv.evaluate(tv.Encoder.load("minilm"), SHARED / "data/sts/en/stsb.test.csv", progress=False)
    assert result["rows"] == 1379
    assert result["spearman_cosine"] == pytest.approx(0.8203, abs=0.0003)


@pytest.mark.parametrize(("file", "value", "slack"), [("zh/stsb-mt.test.csv", 0.7825, 0.0005), ("en/stsb.test.csv", 0.8397, 0.0005)])
def test_e5_on_stsb_with_its_prompt(file: str, value: float, slack: float) -> None:
    result = tv.evaluate(tv.Encoder.load(E5), SHARED / "data/sts" / file, prompt="query", progress=False)
    assert result["spearman_cosine"] == pytest.approx(value, abs=slack)
    assert not any("prompt" in note for note in result["notes"])


def test_a_forgotten_prompt_is_said() -> None:
    encoder = tv.Encoder.load(E5)
    result = tv.evaluate(encoder, SHARED / "data/sts/zh/stsb-mt.test.csv", limit=50, progress=False)
    assert any("query" in note and "passage" in note for note in result["notes"])


def test_minilm_says_that_it_does_not_know_chinese() -> None:
    report = tv.Encoder.load("minilm").encode_with_report(["如何关闭支付宝免密支付", "没网的时候支付宝能够支付吗"]).report
    assert report.unknown_rate > 0.2
    assert any("does not know this language" in note for note in report.warnings())


def test_e5_finds_chinese_answers(tmp_path: Path) -> None:
    from twinvec.data.sample import DEMO_QUERIES, faq_documents

    encoder = tv.Encoder.load(E5)
    collection = tv.Collection.create(tmp_path / "faq", encoder)
    collection.add(faq_documents("zh"))
    hits = tv.Searcher(encoder, collection).search(DEMO_QUERIES["zh"], k=5)
    wanted = ["order-change-address", "refund-time", "pay-offline"]
    assert all(answer in {hit.id for hit in found} for answer, found in zip(wanted, hits, strict=True))
