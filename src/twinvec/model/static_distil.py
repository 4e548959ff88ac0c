"""A static model out of a transformer: each token of its vocabulary encoded once (the recipe of model2vec, Tulkens and van Dongen 2024)."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from twinvec.errors import ModelError, UsageError
from twinvec.model.encoder import Encoder
from twinvec.model.static import StaticEngine, StaticTokens, unknown_of
from twinvec.model.static_bag import Bag
from twinvec.progress import Progress

Array = npt.NDArray[Any]
DIMENSIONS, SIF = 256, 1e-4
_UNUSED = re.compile(r"\[unused\d+\]|<unused\d+>")


def distil(encoder: Encoder, *, dimensions: int | None = DIMENSIONS, sif: float | None = SIF, progress: bool = False) -> Encoder:
    """The static model of `encoder`: a text's vector is the mean of its tokens' vectors, of length 1.

    A token's vector is what the encoder makes of that token alone (between its special tokens), by its own pooling and heads; then PCA to
    `dimensions` (None: no PCA) and a factor a / (a + p), where p follows Zipf's law over the order of the vocabulary, which is about that of
    frequency (`sif` is a; None: no factor). Special and unused tokens get zeros. Stored as float16, in model2vec's folder layout.
    """
    if sif is not None and not 0 < sif < 1:
        raise UsageError(f"sif = {sif}: wanted a number between 0 and 1, such as {SIF}")
    backend = getattr(encoder.tokens.tokenizer, "backend_tokenizer", None)
    if encoder.engine.name != "torch" or backend is None:
        raise ModelError(f"{encoder.name}: a static model is made of a transformer that has a tokenizer.json, on the engine torch")
    definition = _definition(encoder, json.loads(backend.to_str()))
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(json.dumps(definition, ensure_ascii=False))
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    added = {int(token["id"]) for token in definition.get("added_tokens") or () if token.get("special")}
    unknown = unknown_of(tokenizer, definition)
    ids = sorted(at for piece, at in vocab.items() if at not in added and at != unknown and not _UNUSED.fullmatch(piece))
    if dimensions is not None and not 0 < dimensions <= min(encoder.dimensions, len(ids)):
        raise UsageError(f"dimensions = {dimensions}: this model has {encoder.dimensions} and {len(ids)} tokens; wanted at most that")
    vectors = _encode_tokens(encoder, ids, progress)
    if dimensions is not None:
        vectors = _pca(vectors, dimensions)
    if sif is not None:
        vectors *= _zipf_weights(len(ids), sif)[:, None]
    table = np.zeros((max(vocab.values()) + 1, vectors.shape[1]), dtype=np.float16)
    table[ids] = vectors
    bag = Bag(table=table, normalize=True, skip=-1 if unknown is None else unknown)
    return Encoder(StaticEngine(bag), StaticTokens(tokenizer, unknown_id=unknown), name=f"{encoder.name}-static")


def _definition(encoder: Encoder, definition: dict[str, Any]) -> dict[str, Any]:
    """The tokenizer without special tokens around a text; what the model's own settings do to a text becomes part of it."""
    before = [{"type": "NFKC"}] * encoder.tokens.nfkc + [{"type": "Lowercase"}] * encoder.tokens.lower_case
    own = definition.get("normalizer")
    normalizer = {"type": "Sequence", "normalizers": [*before, *([own] if own else [])]} if before else own
    return {**definition, "normalizer": normalizer, "post_processor": None, "truncation": None, "padding": None}


def _encode_tokens(encoder: Encoder, ids: list[int], progress: bool) -> Array:
    """Vectors (n, D) of rows of one token each, before normalising: their lengths carry weight."""
    import torch

    rows = [[*encoder.tokens.prefix, at, *encoder.tokens.suffix] for at in ids]
    out = np.zeros((len(rows), encoder.dimensions), dtype=np.float32)
    with torch.inference_mode(), Progress(len(rows), "distil", show=progress, unit="tokens") as bar:
        for chunk in encoder.net.chunked([len(row) for row in rows], None):
            out[chunk] = encoder.net([rows[i] for i in chunk], normalize=False).float().cpu().numpy()
            bar.advance(len(chunk))
    if not np.isfinite(out).all():
        raise ModelError(f"{encoder.name}: the vectors of {int((~np.isfinite(out).all(axis=1)).sum())} tokens are NaN or infinity")
    return out


def _pca(x: Array, dimensions: int) -> Array:
    """x (n, D) centred and turned onto its `dimensions` directions of largest variance; the sign of each makes its largest number positive."""
    centred = x.astype(np.float64) - x.mean(axis=0, dtype=np.float64)
    _, directions = np.linalg.eigh(centred.T @ centred)
    found = centred @ directions[:, ::-1][:, :dimensions]
    found *= np.sign(found[np.abs(found).argmax(axis=0), np.arange(dimensions)])
    return np.asarray(found, dtype=np.float32)


def _zipf_weights(n: int, a: float) -> Array:
    """a / (a + p) for ranks 1 to n, p in proportion to 1 / (rank + 1)."""
    inverse = 1 / np.arange(2, n + 2)
    return np.asarray(a / (a + inverse / inverse.sum()), dtype=np.float32)
