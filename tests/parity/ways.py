"""The ways to encode: each takes an encoder loaded from its folder, and texts, and must give the same vectors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinvec.errors import UsageError
from twinvec.model.encoder import Encoder
from twinvec.records import Vectors

Way = Callable[[Encoder, list[str], Path], Vectors]


def alone(encoder: Encoder, texts: list[str], place: Path) -> Vectors:
    return np.concatenate([encoder.encode(text) for text in texts])


def shuffled(encoder: Encoder, texts: list[str], place: Path) -> Vectors:
    order = np.random.default_rng(7).permutation(len(texts))
    back = np.empty((len(texts), encoder.dimensions), dtype=np.float32)
    back[order] = encoder.encode([texts[i] for i in order])
    return back


def one_token_a_pass(encoder: Encoder, texts: list[str], place: Path) -> Vectors:
    return encoder.encode(texts, batch_tokens=1)


def many_tokens_a_pass(encoder: Encoder, texts: list[str], place: Path) -> Vectors:
    return encoder.encode(texts, batch_tokens=1 << 20)


def among_others(encoder: Encoder, texts: list[str], place: Path) -> Vectors:
    return encoder.encode([*(f"{text} and more" for text in texts[::-1]), *texts, "x " * 50])[len(texts) : -1]


def generator(encoder: Encoder, texts: list[str], place: Path) -> Vectors:
    return encoder.encode(text for text in texts)


def padded(left: bool) -> Way:
    """One rectangle of all rows, through the backbone of transformers itself."""

    def way(encoder: Encoder, texts: list[str], place: Path) -> Vectors:
        import torch

        if encoder.engine.name != "torch":
            pytest.skip("a static model has no padding")
        if left and encoder.net.backbone.config.model_type in ("mpnet", "distilbert"):  # type: ignore[union-attr]
            pytest.skip("its positions count from the first column, and transformers gives no way to say others")
        from twinvec.model.heads import unit_rows

        tokens = encoder.tokens
        rows = [tokens.cut(row) for row in tokens.content(texts)]
        with torch.inference_mode():
            return unit_rows(encoder.net._pool_padded(rows, 0, left=left)).numpy()

    return way


def threads(encoder: Encoder, texts: list[str], place: Path) -> Vectors:
    """Three threads at once on one encoder."""
    found: list[Any] = [None] * 3
    workers = [threading.Thread(target=lambda i=i: found.__setitem__(i, encoder.encode(texts))) for i in range(3)]  # type: ignore[misc]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    np.testing.assert_allclose(found[1], found[0], atol=1e-6)
    np.testing.assert_allclose(found[2], found[0], atol=1e-6)
    vectors: Vectors = found[0]
    return vectors


def saved(encoder: Encoder, texts: list[str], place: Path) -> Vectors:
    return Encoder.load(encoder.save(place / "again")).encode(texts)


def streamed(encoder: Encoder, texts: list[str], place: Path) -> Vectors:
    """From a file to a file, in shards of seven rows."""
    import json

    from twinvec.scale.bulk import encode_files

    whole = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]  # a file has no lone surrogates
    (place / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in whole), encoding="utf-8")
    encode_files(encoder, place / "texts.jsonl", place / "vectors.npy", shard_rows=7)
    found: Vectors = np.load(place / "vectors.npy")
    return found


def processes(encoder: Encoder, texts: list[str], place: Path) -> Vectors:
    from twinvec.scale.processes import Pool

    with Pool(encoder, processes=2) as pool:
        return pool.encode(texts)


def exported(engine: str) -> Way:
    def way(encoder: Encoder, texts: list[str], place: Path) -> Vectors:
        pytest.importorskip({"onnx": "onnxruntime"}.get(engine, engine))
        from twinvec.model.engines.export import export

        if encoder.engine.name != "torch":
            pytest.skip("a static model is not exported")
        assert encoder.source is not None
        try:
            export(encoder.source, engine=engine, output=place / "exported")
        except UsageError as err:
            if "cannot" not in str(err):
                raise
            pytest.skip(str(err)[:90])
        found = Encoder.load(place / "exported", engine=engine, threads=1)
        assert found.fingerprint == encoder.fingerprint
        return found.encode(texts)

    return way


WAYS: dict[str, Way] = {
    "alone": alone, "shuffled": shuffled, "one token a pass": one_token_a_pass, "many tokens a pass": many_tokens_a_pass,
    "among others": among_others, "generator": generator, "padded": padded(left=False), "left-padded": padded(left=True), "threads": threads,
    "saved": saved, "streamed": streamed, "ctranslate2": exported("ctranslate2"), "onnx": exported("onnx"),
}  # fmt: skip
SLOW_WAYS: dict[str, Way] = {"processes": processes}
"""Ways that start other programs: run on two kinds of model instead of all."""
