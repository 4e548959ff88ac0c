"""What training makes of the shared files: NLI as triplets, and pairs that the published tests hold too."""

from __future__ import annotations

from pathlib import Path

import pytest

from twinvec.data.dataset import read_data
from twinvec.data.nli import nli_triplets
from twinvec.data.pairs import positives, row_keys, without_pairs_of, without_repeats
from twinvec.data.sampling import LengthBucketedOrder
from twinvec.text import same_text_key

ROOT = Path(__file__).resolve().parents[3] / "shared" / "data"

pytestmark = pytest.mark.skipif(not (ROOT / "README.md").is_file(), reason="the shared data are not beside the repository")


@pytest.mark.parametrize(
    ("name", "triplets", "alone"), [("zh/xnli-zh.test", 1670, 0), ("zh/cnsd-snli.dev", 2900, 259), ("en/cad-snli.train", 1674, 1093)]
)
def test_nli_as_triplets(name: str, triplets: int, alone: int) -> None:
    """XNLI has one hypothesis of each class for every premise: exactly a third of its rows."""
    data = read_data(ROOT / "nli" / f"{name}.csv.gz")
    found = nli_triplets(data)
    assert (len(found), len(nli_triplets(data, without="pair"))) == (triplets, triplets + alone)
    said = {(same_text_key(p), same_text_key(h), label) for p, h, label in zip(*data.columns.values(), data.labels or [], strict=True)}
    for anchor, positive, negative in (map(same_text_key, found.texts(row)) for row in range(len(found))):
        assert {(anchor, positive, 0), (anchor, negative, 2)} <= said
        assert not {(anchor, positive, 2), (anchor, negative, 0)} & said


def test_leaks_of_the_published_files() -> None:
    """AFQMC's training file holds a third of ATEC's test pairs; the file made here for training holds none of any test."""
    tests = [read_data(path) for name in ("atec", "bq", "lcqmc") for path in sorted((ROOT / "pairs" / "zh").glob(f"{name}.test.csv.gz"))]
    afqmc = without_pairs_of(read_data(ROOT / "pairs" / "zh" / "afqmc.train.csv.gz"), tests)
    assert len(afqmc) == 34334 - 6720
    union = read_data(ROOT / "pairs" / "zh" / "finance-union.train.csv.gz")
    assert without_pairs_of(union, tests) is union
    assert without_repeats(union) is union


def test_a_batch_of_real_pairs_without_repeats() -> None:
    pairs = positives(read_data(ROOT / "pairs" / "zh" / "finance-union.train.csv.gz"))
    keys = row_keys(pairs)
    lengths = [max(map(len, pairs.texts(row))) for row in range(len(pairs))]
    for keep, found in ((None, False), (keys, True)):
        batches = LengthBucketedOrder(lengths, 256, 0, keys=keep).batches(0)
        clean = all(len({key for row in batch for key in keys[row]}) == sum(len(set(keys[row])) for row in batch) for batch in batches)
        assert clean is found
