"""`twinvec trim` on a real multilingual model: a Unigram vocabulary of 51,091 pieces cut to one language."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from twinvec.model.encoder import Encoder
from twinvec.model.trim import trim

SHARED = Path(__file__).resolve().parents[3] / "shared"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="../shared is not here")
E5 = SHARED / "models" / "e5-small-zh-en"


def lines(name: str, count: int, start: int = 0) -> Iterator[str]:
    with gzip.open(SHARED / "data/text" / name, "rt", encoding="utf-8") as stream:
        for line in islice(stream, start, start + count):
            yield line.rstrip("\n")


@pytest.mark.parametrize(("language", "name", "largest"), [("zh", "wikipedia-zh.txt.gz", 20_000), ("en", "wikisplit-en.txt.gz", 20_000)])
def test_one_language_of_a_multilingual_model(language: str, name: str, largest: int, tmp_path: Path) -> None:
    """The segmentation is compared with that of the whole vocabulary by an independent reading of both tokenizer files."""
    from tokenizers import Tokenizer

    encoder = Encoder.load(E5)
    found = trim(encoder, lambda: lines(name, 2000), tmp_path / "small", vectors=20, check=lambda: lines(name, 500, 20_000))
    assert found.vocabulary_before == 51_091
    assert 2000 < found.vocabulary_after < largest
    assert found.parameters_before - found.parameters_after == (51_091 - found.vocabulary_after) * 384
    assert found.bytes_after < 0.8 * found.bytes_before
    assert (found.texts, found.changed_texts, found.verified_vectors) == (2000, 0, 20)
    assert found.largest_difference <= 1e-6
    assert found.check is not None
    assert found.check.changed_share < 0.35
    whole, small = (Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in (E5, tmp_path / "small"))
    for text in lines(name, 2000):
        assert small.encode(f"query: {text}").tokens == whole.encode(f"query: {text}").tokens
    loaded = Encoder.load(tmp_path / "small")
    texts = list(lines(name, 20, 100))
    np.testing.assert_allclose(loaded.encode(texts, prompt="passage"), encoder.encode(texts, prompt="passage"), atol=1e-6)
    assert json.loads((tmp_path / "small" / "config.json").read_text())["vocab_size"] == found.vocabulary_after
