"""Folders of static models, written: our own, sentence-transformers', or model2vec's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from twinvec.model.encoder import Encoder
from twinvec.model.layout import NORMALIZE, THEIR_POOLING
from twinvec.model.static import WINDOW, StaticEngine, StaticTokens
from twinvec.model.static_bag import Bag
from twinvec.model.static_folder import OWN
from twinvec.model.static_words import SpacedWords, UnicodeWords


def write_static(encoder: Encoder, place: Path) -> None:
    """Everything but twinvec.json, in the layout of the kind of model it is: our own, sentence-transformers', or model2vec's."""
    engine, tokens = encoder.engine, encoder.tokens
    assert isinstance(engine, StaticEngine)
    assert isinstance(tokens, StaticTokens)
    bag = engine.bag
    if isinstance(tokens.words, UnicodeWords):
        _write_own(bag, tokens, tokens.words, place)
        modules: list[tuple[str, str]] = []
    elif bag.table is None:
        modules = [_write_bow(bag, tokens, place)]
    elif isinstance(tokens.words, SpacedWords):
        modules = _write_words(bag, tokens, tokens.words, place)
    else:
        modules = [_write_tokens(bag, tokens, place)]
    if modules:
        for head in bag.heads:
            modules.append((f"{len(modules)}_Dense", "Dense"))
            _put(place / modules[-1][0] / "config.json", head.config())
            arrays = {"linear.weight": head.weight, **({} if head.bias is None else {"linear.bias": head.bias})}
            save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, place / modules[-1][0] / "model.safetensors")
        listed = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"} for i, (path, kind) in enumerate(modules)]
        if bag.normalize:
            path = f"{len(modules)}_Normalize"
            (place / path).mkdir()
            listed.append({"idx": len(modules), "name": str(len(modules)), "path": path, "type": NORMALIZE})
        _put(place / "modules.json", listed)
    _put(
        place / "config_sentence_transformers.json",
        {"prompts": encoder.prompts, "default_prompt_name": encoder.default_prompt, "similarity_fn_name": "cosine"},
    )


def _write_own(bag: Bag, tokens: StaticTokens, splitter: UnicodeWords, place: Path) -> None:
    assert bag.table is not None
    config = {"model_type": OWN, **splitter.settings(), "nfkc": tokens.nfkc, "pooling": "+".join(bag.pooling), "normalize": bag.normalize}
    _put(place / "config.json", {**config, "max_tokens": tokens.max_tokens})
    (place / "words.txt").write_text("\n".join(splitter.words) + "\n", encoding="utf-8")
    arrays = {"embeddings": bag.table, "weights": bag.weights, "common": bag.common}
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items() if array is not None}, place / "model.safetensors")


def _write_tokens(bag: Bag, tokens: StaticTokens, place: Path) -> tuple[str, str]:
    assert bag.table is not None
    model2vec = bag.skip >= 0 or tokens.max_tokens < WINDOW
    folder = place if model2vec else place / "0_StaticEmbedding"
    folder.mkdir(exist_ok=True)
    tokens.tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    arrays = {"embeddings" if model2vec or bag.mapping is not None or bag.weights is not None else "embedding.weight": bag.table}
    arrays |= {name: array for name, array in (("mapping", bag.mapping), ("weights", bag.weights)) if array is not None}
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / "model.safetensors")
    if model2vec:
        config = {"model_type": "model2vec", "architectures": ["StaticModel"], "hidden_dim": int(bag.table.shape[1]), "normalize": bag.normalize}
        window = tokens.max_tokens if tokens.max_tokens < WINDOW else None
        _put(place / "config.json", {**config, "max_length": window, "embedding_dtype": bag.table.dtype.name})
    return ("" if model2vec else folder.name), "StaticEmbedding"


def _write_words(bag: Bag, tokens: StaticTokens, splitter: SpacedWords, place: Path) -> list[tuple[str, str]]:
    assert bag.table is not None
    folder = place / "0_WordEmbeddings"
    _put(
        folder / "wordembedding_config.json",
        {
            "tokenizer_class": "sentence_transformers.models.tokenizer.WhitespaceTokenizer",
            "update_embeddings": False,
            "max_seq_length": tokens.max_tokens,
        },
    )
    _put(
        folder / "whitespacetokenizer_config.json",
        {"vocab": splitter.words, "stop_words": sorted(splitter.stop_words), "do_lower_case": splitter.lower_case},
    )
    save_file({"emb_layer.weight": np.ascontiguousarray(bag.table)}, folder / "model.safetensors")
    modules = [(folder.name, "WordEmbeddings")]
    if bag.weights is not None:
        path = "1_WordWeights"
        named = {word: float(weight) for word, weight in zip(splitter.words, bag.weights, strict=True)}
        _put(place / path / "config.json", {"vocab": splitter.words, "word_weights": named, "unknown_word_weight": 1})
        save_file({"emb_layer.weight": np.ascontiguousarray(bag.weights[:, None])}, place / path / "model.safetensors")
        modules.append((path, "WordWeights"))
    path = f"{len(modules)}_Pooling"
    flags = {f"pooling_mode_{theirs}": False for theirs in ("cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens")}
    flags |= {f"pooling_mode_{name}_tokens": True for name in bag.pooling}
    order = tuple(name for name in THEIR_POOLING if name in bag.pooling)
    config: dict[str, Any] = flags if order == bag.pooling else {"pooling_mode": [THEIR_POOLING[name] for name in bag.pooling]}
    _put(place / path / "config.json", {"word_embedding_dimension": int(bag.table.shape[1]), **config})
    return [*modules, (path, "Pooling")]


def _write_bow(bag: Bag, tokens: StaticTokens, place: Path) -> tuple[str, str]:
    assert isinstance(tokens.words, SpacedWords)
    assert bag.weights is not None
    named = {word: float(weight) for word, weight in zip(tokens.words.words, bag.weights, strict=True)}
    config = {"vocab": tokens.words.words, "word_weights": named, "unknown_word_weight": 1, "cumulative_term_frequency": not bag.each_once}
    _put(place / "0_BoW" / "config.json", config)
    return "0_BoW", "BoW"


def _put(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
