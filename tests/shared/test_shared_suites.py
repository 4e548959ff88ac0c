"""The published STS table, on the data beside the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

import twinvec as tv
from twinvec.evaluation.suite import measure_suite
from twinvec.evaluation.suites import read_suite

SHARED = Path(__file__).resolve().parents[3] / "shared"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="../shared is not here")


@pytest.mark.parametrize("suite", ["sts-en", "sts-zh"])
@pytest.mark.parametrize("split", ["test", "dev"])
def test_every_set_is_there_in_its_published_size(suite: str, split: str) -> None:
    sets, notes = read_suite(suite, SHARED / "data", split)
    assert [data.name for data in sets if len(data.gold) != data.expected] == []
    assert [note for note in notes if "has no dev split" not in note] == []
    assert len(sets) == (7 if suite == "sts-zh" or split == "test" else 2)


def test_minilm_on_sts16_by_both_aggregations() -> None:
    """The whole table takes minutes (docs/evaluation.md has it); one year shows that both aggregations are the published ones."""
    sets = [data for data in read_suite("sts-en", SHARED / "data")[0] if data.name == "STS16"]
    (row,) = measure_suite(tv.Encoder.load("minilm"), sets)["sets"]
    assert row["spearman"]["all"] * 100 == pytest.approx(78.99, abs=0.02)
    assert row["spearman"]["mean"] * 100 == pytest.approx(81.32, abs=0.02)
