"""The short form of benchmarks/kills.py: a writer killed at random moments of all its kinds of work, readers beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import script

pytestmark = [pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"), pytest.mark.filterwarnings("ignore:.*leaked.*:ResourceWarning")]


def test_twenty_kills_with_readers_beside(tmp_path: Path) -> None:
    found = script("benchmarks/kills.py").run(tmp_path, 20, seed=3, readers=1)
    assert found["kills"] == 20
    assert found["looks"] > 20
    assert len(found["cut"]) >= 4  # several kinds of work were cut off in the middle


def test_the_kill_test_can_fail(tmp_path: Path) -> None:
    kills = script("benchmarks/kills.py")
    with kills.Collection.create(tmp_path / "collection", kills.HashEncoder("one")) as collection:
        collection.add([("s1", kills.text_of("s1", 0), kills.metadata_of(0, "s1"))])
    with pytest.raises(AssertionError, match="after nothing: 1 documents, allowed"):
        kills.check(tmp_path / "collection", {"s1": (0, 0), "s2": (0, 0)}, tmp_path / "journal")


def test_a_short_churn(tmp_path: Path) -> None:
    found = script("benchmarks/churn.py").run(tmp_path, adds=400, updates=200, deletes=200, batch=16)
    assert found["documents"] == found["expected"]
    assert found["bytes"] < 3 * found["fresh_bytes"]
