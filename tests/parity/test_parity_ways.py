"""The same text has the same vector: alone, batched, shuffled, padded, streamed, exported, in threads and in processes, for every kind of model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hard_texts import HARD, HUGE
from ways import SLOW_WAYS, WAYS

from twinvec.errors import EncodeError, ModelError, TwinvecWarning
from twinvec.model.encoder import Encoder

torch.set_num_threads(1)
TOLERANCE = 1e-5  # of numbers of vectors of length 1, in float32
TEXTS = list(HARD.values())


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_vectors(way: str, kind: str, encoder: Encoder, tmp_path: Path) -> None:
    wanted = encoder.encode(TEXTS)
    found = WAYS[way](encoder, TEXTS, tmp_path)
    assert found.shape == wanted.shape
    assert found.dtype == np.float32
    for name, row, other in zip(HARD, found, wanted, strict=True):
        assert np.abs(row - other).max() < TOLERANCE, f"{kind}, {way}: the text {name!r} has another vector"


@pytest.mark.parametrize("kind", ["bert", "static words"])
@pytest.mark.parametrize("way", SLOW_WAYS)
def test_other_programs_give_the_same_vectors(way: str, kind: str, encoder: Encoder, tmp_path: Path) -> None:
    wanted = encoder.encode(TEXTS)
    np.testing.assert_allclose(SLOW_WAYS[way](encoder, TEXTS, tmp_path), wanted, atol=TOLERANCE)


def test_every_hard_text_gives_a_finite_vector_and_a_true_report(encoder: Encoder) -> None:
    found = encoder.encode_with_report(TEXTS)
    assert np.isfinite(found.vectors).all()
    lengths = np.linalg.norm(found.vectors, axis=1)
    assert ((np.abs(lengths - 1) < 1e-5) | (lengths == 0)).all()
    if encoder.engine.name == "torch":
        assert lengths.all() or not encoder.tokens.prefix + encoder.tokens.suffix
    by_name = dict(zip(HARD, found.vectors, strict=True))
    np.testing.assert_array_equal(by_name["English"], by_name["what was before"])
    np.testing.assert_allclose(encoder.encode("🙂"), by_name["two halves that belong together"][None], atol=TOLERANCE)
    np.testing.assert_allclose(encoder.encode("cat \ufffd dog"), by_name["a lone high surrogate"][None], atol=TOLERANCE)
    names = list(HARD)
    assert [names[i] for i in found.report.empty] == ["empty", "a space", "white space of all kinds"]
    assert 0 <= found.report.unknown_rate <= 1
    counts = encoder.count_tokens(TEXTS)
    assert found.report.longest == max(counts)
    assert found.report.truncated == sum(count > encoder.max_tokens for count in counts)
    assert found.report.truncated_tokens == sum(max(count - encoder.max_tokens, 0) for count in counts)


@pytest.mark.parametrize("way", ["alone", "shuffled", "padded", "one token a pass", "saved", "onnx"])
def test_a_padding_token_as_text(way: str, encoder: Encoder, tmp_path: Path) -> None:
    """RoBERTa and its kin give the padding token a position of its own, in a text as well; CTranslate2 does not, so it is not among these ways."""
    texts = ["a cat <pad> and [PAD] a dog <|endoftext|> more", "<pad>", "[PAD] [PAD]", "a cat"]
    np.testing.assert_allclose(WAYS[way](encoder, texts, tmp_path), encoder.encode(texts), atol=TOLERANCE)


@pytest.mark.parametrize("on_long", ["truncate", "split"])
def test_prompts_and_long_texts_do_not_depend_on_the_batch(on_long: str, encoder: Encoder) -> None:
    wanted = encoder.encode(TEXTS, prompt="query", on_long=on_long)
    found = np.concatenate([encoder.encode(text, prompt="query", on_long=on_long) for text in TEXTS])
    np.testing.assert_allclose(found, wanted, atol=TOLERANCE)
    assert np.isfinite(wanted).all()


def rss() -> float:
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux's /proc")
def test_a_hundred_thousand_characters_without_a_space(encoder: Encoder) -> None:
    """Memory stays bounded. What takes time that grows with the square would take minutes here."""
    encoder.encode("warm up")
    before = rss()
    found = encoder.encode_with_report(list(HUGE.values()))
    assert np.isfinite(found.vectors).all()
    for name, text in HUGE.items():
        np.testing.assert_allclose(encoder.encode(text)[0], found.vectors[list(HUGE).index(name)], atol=TOLERANCE, err_msg=name)
    assert rss() - before < 400


def test_golden_vectors_guard_every_kind(kind: str, folder: Path, tmp_path: Path) -> None:
    """The folder carries three texts with their vectors; other vectors are refused."""
    import shutil

    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    record = json.loads((copy / "twinvec.json").read_text(encoding="utf-8"))
    assert len(record["golden"]) == 3
    np.testing.assert_allclose(
        Encoder.load(copy).encode([row["text"] for row in record["golden"]]), [row["vector"] for row in record["golden"]], atol=1e-5
    )
    record["golden"][0]["vector"] = record["golden"][0]["vector"][::-1]
    (copy / "twinvec.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(ModelError, match=r"golden text 'A man is playing a guitar.' gives cosine"):
        Encoder.load(copy)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "mpnet", "distilbert", "modernbert", "deberta-v2", "qwen2"])
def test_nan_and_infinity_are_named_by_row(value: float, kind: str, encoder: Encoder) -> None:
    row = encoder.tokens.content(["guitar"])[0][0]
    with torch.no_grad():
        encoder.net.backbone.get_input_embeddings().weight[row] = value  # type: ignore[operator]
    clean = [text for text in TEXTS if row not in encoder.tokens.content([text])[0]][:5]
    texts = [*clean, "guitar", clean[0], "guitar guitar"]
    rows = f"{len(clean)}, {len(clean) + 2}"
    with pytest.raises(EncodeError, match=rf"2 of {len(texts)} rows came out as NaN or infinity \(rows, from 0: {rows}\)"):
        encoder.encode(texts)
    assert np.isfinite(encoder.encode(clean)).all()  # and it lives on


@pytest.mark.parametrize("kind", ["bert", "deberta-v2"])
def test_a_row_that_overflows_in_half_precision_is_done_again_in_float32(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder.load(folder, precision="bf16")
    wide = Encoder.load(folder)
    engine = encoder.engine
    real = engine.forward

    def overflowing(rows: object, *rest: object) -> object:
        out = real(rows, *rest)  # type: ignore[arg-type]
        out[0] = np.nan
        return out

    monkeypatch.setattr(engine, "forward", overflowing)
    texts = ["a man is playing a guitar", "the cat sat"]
    with pytest.warns(TwinvecWarning, match="1 texts gave NaN or infinity in bf16 and were encoded again in float32"):
        found = encoder.encode(texts)
    np.testing.assert_allclose(found[0], wide.encode(texts)[0], atol=1e-5)
    assert np.isfinite(found).all()


def test_unknown_words_are_counted_and_said(subject: Callable[[str], Path]) -> None:
    for kind in ("bert", "static words"):
        report = Encoder.load(subject(kind)).encode_with_report(["龘 靐 齉", "the cat"]).report
        assert report.unknown_rate == pytest.approx(3 / 5), kind
        assert any("does not know this language or script" in note for note in report.warnings()), kind
        report = Encoder.load(subject(kind)).encode_with_report(["the cat sat on the mat", "the dog 龘"]).report
        assert 0 < report.unknown_rate < 0.2, kind
        assert report.warnings() == [], kind
