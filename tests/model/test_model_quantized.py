"""8-bit inference in torch: the arithmetic against float64, and what must hold for every row."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import twinvec.model.quantized as quantized
from tiny_models import TEXTS
from twinvec.errors import UsageError
from twinvec.model.encoder import Encoder
from twinvec.model.quantized import ByteLinear, QuantizedPostNorm, Range, int8_works

needs_bytes = pytest.mark.skipif(not int8_works(), reason="this processor, or this build of torch, has no fast 8-bit products")
BERT_KIND = ("bert", "roberta", "xlm-roberta", "mpnet", "distilbert")


def load(folder: Path, precision: str) -> Encoder:
    return Encoder.load(folder, pooling="mean", engine="torch", precision=precision)


@needs_bytes
def test_a_byte_product_is_that_of_its_rounded_parts() -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight, bias = torch.randn(50, 48, generator=generator) * 3 + 1, torch.randn(24, 48, generator=generator), torch.randn(24, generator=generator)
    reach = Range.of(x, weight)
    layer = ByteLinear(weight, bias, reach)
    q = layer.bytes_of(x).numpy().astype(np.float64)
    folded = weight.double() * reach.scale.double()
    steps = (folded.abs().amax(1) / 127).numpy()
    rounded = np.round(folded.numpy() / steps[:, None])
    wanted = (q - 128) @ rounded.T * steps + (bias.double() + weight.double() @ reach.centre.double()).numpy()
    np.testing.assert_allclose(layer(layer.bytes_of(x)).numpy(), wanted, rtol=1e-4, atol=1e-4)
    exact = (x @ weight.T + bias).numpy()
    assert np.abs(wanted - exact).max() < 0.03 * np.abs(exact).max()


@needs_bytes
def test_values_beyond_the_range_are_clipped_not_wrapped() -> None:
    x = torch.linspace(-1, 1, 64).reshape(2, 32).repeat(4, 1)
    layer = ByteLinear(torch.eye(32), None, Range.of(x, torch.eye(32)))
    far = layer.bytes_of(torch.tensor([[1000.0] * 16 + [-1000.0] * 16]))
    assert far[0, :16].tolist() == [255] * 16
    assert far[0, 16:].tolist() == [0] * 16


@needs_bytes
@pytest.mark.parametrize("family", BERT_KIND)
def test_bytes_follow_float32_and_a_row_ignores_its_neighbours(family: str, bare_model: Callable[[str], Path]) -> None:
    plain, small = load(bare_model(family), "float32"), load(bare_model(family), "int8")
    assert isinstance(small.net.packed, QuantizedPostNorm)
    texts = [text for text in TEXTS if text]
    wanted, found = plain.encode(texts), small.encode(texts)
    cosine = (wanted * found).sum(1) / np.linalg.norm(wanted, axis=1) / np.linalg.norm(found, axis=1)
    assert cosine.min() > 0.98
    alone = np.concatenate([small.encode([text]) for text in texts])
    np.testing.assert_array_equal(small.encode(texts[::-1])[::-1], found)
    np.testing.assert_allclose(alone, found, atol=1e-6)
    assert small.encode_with_report(texts).report.precision == "int8"
    assert small.fingerprint == plain.fingerprint


@needs_bytes
def test_a_copy_stays_in_bytes(bare_model: Callable[[str], Path]) -> None:
    small = load(bare_model("bert"), "int8")
    twin = copy.deepcopy(small.net)
    assert isinstance(twin.packed, QuantizedPostNorm)
    with torch.inference_mode():
        torch.testing.assert_close(twin([[2, 5, 6, 3]]), small.net([[2, 5, 6, 3]]))


@needs_bytes
def test_bytes_are_not_trained(bare_model: Callable[[str], Path]) -> None:
    small = load(bare_model("bert"), "int8")
    with pytest.raises(UsageError, match="bytes have no gradient"):
        small.net([[2, 5, 6, 3]])


@pytest.mark.parametrize("family", ["modernbert", "qwen2", "deberta-v2"])
def test_other_architectures_are_refused(family: str, bare_model: Callable[[str], Path]) -> None:
    with pytest.raises(UsageError, match=r"precision = 'int8': the torch engine knows it for encoders of the BERT kind"):
        load(bare_model(family), "int8")


def test_a_machine_without_byte_kernels_is_told(bare_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized, "int8_works", lambda: False)
    with pytest.raises(UsageError, match=r"no fast 8-bit products"):
        load(bare_model("bert"), "int8")


@needs_bytes
def test_minilm_in_bytes_ranks_as_in_float32() -> None:
    plain, small = Encoder.load("minilm"), Encoder.load("minilm", engine="torch", precision="int8")
    texts = [f"{who} {what} {where}" for who in ("A man", "Two dogs", "The bank") for what in ("plays in", "closes", "is asked about") for where in
             ("the garden", "an account", "a long contract that was signed by both sides last year")]  # fmt: skip
    wanted, found = plain.encode(texts), small.encode(texts)
    assert ((wanted * found).sum(1)).min() > 0.985
    upper = np.triu_indices(len(texts), 1)
    assert spearmanr((wanted @ wanted.T)[upper], (found @ found.T)[upper]).statistic > 0.99
