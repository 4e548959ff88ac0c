"""Folders and files of static models: model2vec's, sentence-transformers' StaticEmbedding, WordEmbeddings and BoW, our own, and bare text files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from twinvec.errors import ModelError, UsageError, choose
from twinvec.model.encoder import Encoder
from twinvec.model.layout import Layout as Settings
from twinvec.model.layout import _read_pooling, _read_settings, parse_pooling, read_json, read_object
from twinvec.model.resolve import first_line
from twinvec.model.static import WINDOW, StaticEngine, StaticTokens, open_tokenizer
from twinvec.model.static_bag import POOLINGS, Bag, NumpyDense
from twinvec.model.static_text import idf_weights, is_vector_text, read_vectors, read_weights, sif_weights
from twinvec.model.static_words import SpacedWords, UnicodeWords

Array = npt.NDArray[Any]
OWN = "twinvec-words"
_MODULES = {"StaticEmbedding": "static", "WordEmbeddings": "words", "BoW": "bow"}
_MODEL2VEC_WINDOW = 512  # model2vec's own, where its config names none
_LONGEST_WINDOW = 1 << 31


def kind_of(folder: Path) -> str | None:
    """Which kind of static model the folder holds: "own", "model2vec", "static", "words" or "bow"; None for another model."""
    config = _quietly(folder / "config.json")
    if isinstance(config, dict):
        if config.get("model_type") == OWN:
            return "own"
        if config.get("model_type") == "model2vec" or ("model_type" not in config and _holds_embeddings(folder)):
            return "model2vec"
    modules = _quietly(folder / "modules.json")
    if isinstance(modules, list) and modules and isinstance(modules[0], dict):
        package, _, name = str(modules[0].get("type")).rpartition(".")
        if package.split(".")[0] == "sentence_transformers":
            return _MODULES.get(name)
    return None


def _quietly(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _holds_embeddings(folder: Path) -> bool:
    from safetensors import safe_open

    try:
        with safe_open(folder / "model.safetensors", framework="numpy") as found:
            names = set(found.keys())
            return "embeddings" in names and names <= {"embeddings", "weights", "mapping"}
    except (OSError, SafetensorError):
        return False


def load_static(name: str | Path, path: Path, kind: str, *, pooling: str | None, max_tokens: int | None) -> Encoder:
    """The static model of a folder (its kind from `kind_of`), or of a text file of word vectors ("text")."""
    if kind == "text":
        return encoder_of_words(path, pooling=pooling, max_tokens=max_tokens)
    readers = {"own": _read_own, "model2vec": _read_model2vec, "static": _read_static, "words": _read_words, "bow": _read_bow}
    bag, tokens = readers[kind](path)
    settings = Settings(path)
    _read_settings(path, settings)
    engine = StaticEngine(bag)
    if pooling is not None:
        engine = engine.with_pooling(parse_pooling(pooling))
    _shrink_window(tokens, max_tokens)
    encoder = Encoder(engine, tokens, name=str(name), prompts=settings.prompts, default_prompt=settings.default_prompt, source=path)
    if settings.twinvec and pooling is None and max_tokens is None:
        from twinvec.model.folder import check_saved

        check_saved(path, encoder, settings.twinvec)
    return encoder


# ---- text files and our own folder of words


def encoder_of_words(
    path: Path, *, pooling: str | None = None, max_tokens: int | None = None, limit: int | None = None, lower_case: bool | None = None,
    nfkc: bool = True, normalize: bool = True, idf: Path | None = None, sif: Path | None = None, common: Sequence[str] | None = None,
) -> Encoder:  # fmt: skip
    """The encoder that averages the word vectors of a text file.

    lower_case: None lowers case when no word of the file has a capital letter. idf: file of weights. sif: file of counts, which give the weights
    of Arora et al. 2017. common: texts whose first singular vector is taken out of every vector (the same paper, step 2). limit: first words only.
    """
    words, table = read_vectors(path, limit)
    if lower_case is None:
        lower_case = not any(word != word.lower() for word in words)
    splitter = UnicodeWords(words, lower_case=lower_case)
    weights = idf_weights(words, read_weights(idf, "idf weights")) if idf is not None else None
    if sif is not None:
        weights = sif_weights(words, read_weights(sif, "SIF"))
    bag = Bag(table=table, weights=weights, divide_by_weights=weights is not None, normalize=normalize, skip=splitter.unknown)
    tokens = StaticTokens(splitter, nfkc=nfkc)
    if pooling is not None:
        bag = StaticEngine(bag).with_pooling(parse_pooling(pooling)).bag
    if common is not None:
        bag = replace(bag, common=_common(replace(bag, normalize=False).forward(tokens.content(common)), path))
    _shrink_window(tokens, max_tokens)
    return Encoder(StaticEngine(bag), tokens, name=str(path), source=path)


def _shrink_window(tokens: StaticTokens, asked: int | None) -> None:
    if asked is not None:
        if not 0 < asked <= tokens.max_tokens:
            raise UsageError(f"max_tokens = {asked}: this model's window is 1 to {tokens.max_tokens} tokens")
        tokens.max_tokens = tokens.room = asked


def _common(vectors: Array, path: Path) -> Array:
    """The first right singular vector of vectors (n, D), float32 (D,)."""
    rows = vectors[vectors.any(axis=1)].astype(np.float64)
    if len(rows) < 2:
        raise UsageError(f"{path}: the texts whose common direction was wanted have hardly a known word; give texts in the language of the vectors")
    _, directions = np.linalg.eigh(rows.T @ rows)
    return np.asarray(directions[:, -1], dtype=np.float32)


def _read_own(folder: Path) -> tuple[Bag, StaticTokens]:
    config = read_object(folder / "config.json")
    choose(f"{folder / 'config.json'}: split", str(config.get("split")), [UnicodeWords.kind], ModelError)
    arrays = tensors(folder / "model.safetensors")
    try:
        words = (folder / "words.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as err:
        raise ModelError(f"{folder / 'words.txt'}: cannot be read ({first_line(err)}); fetch the model again") from err
    splitter = UnicodeWords(words, lower_case=bool(config.get("lower_case")))
    table = _named(folder, arrays, "embeddings", len(words))
    weights = _vector(folder, arrays, "weights", len(words))
    pooling = _known_pooling(folder, parse_pooling(str(config.get("pooling", "mean"))))
    bag = Bag(
        table=table, weights=weights, divide_by_weights=weights is not None, common=_vector(folder, arrays, "common", table.shape[1]),
        pooling=pooling, normalize=bool(config.get("normalize")), skip=splitter.unknown,
    )  # fmt: skip
    return bag, StaticTokens(splitter, _window(folder, config.get("max_tokens")), nfkc=bool(config.get("nfkc")))


# ---- model2vec and sentence-transformers


def _read_model2vec(folder: Path) -> tuple[Bag, StaticTokens]:
    config = read_object(folder / "config.json")
    modules = _modules(folder) if (folder / "modules.json").is_file() else _Modules()
    tokenizer, unknown = open_tokenizer(folder / "tokenizer.json")
    arrays = tensors(folder / "model.safetensors")
    bag = _token_bag(folder, arrays, tokenizer.get_vocab_size(), skip=-1 if unknown is None else unknown)
    window = config.get("max_length", _MODEL2VEC_WINDOW)
    bag = _finished(folder, bag, modules, normalize=bool(config.get("normalize")) or modules.normalize)
    return bag, StaticTokens(tokenizer, _window(folder, window), unknown_id=unknown)


def _read_static(folder: Path) -> tuple[Bag, StaticTokens]:
    """sentence-transformers averages the unknown token's vector with the rest, and knows no window."""
    modules = _modules(folder)
    place = modules.first
    tokenizer, unknown = open_tokenizer(place / "tokenizer.json")
    bag = _token_bag(place, tensors(place / "model.safetensors"), tokenizer.get_vocab_size(), skip=-1)
    return _finished(folder, bag, modules, normalize=modules.normalize), StaticTokens(tokenizer, unknown_id=unknown)


def _token_bag(folder: Path, arrays: dict[str, Array], vocabulary: int, skip: int) -> Bag:
    name = "embedding.weight" if "embedding.weight" in arrays else "embeddings"
    mapping = _vector(folder, arrays, "mapping", None)
    weights = _vector(folder, arrays, "weights", None)
    table = _named(folder, arrays, name, None if mapping is not None else vocabulary, or_more=True)
    for what, array in (("mapping", mapping), ("weights", weights)):
        if array is not None and len(array) < vocabulary:
            raise ModelError(
                f"{folder / 'model.safetensors'}: {what!r} has {len(array)} rows, the tokenizer {vocabulary} tokens; they do not belong together"
            )
    if mapping is not None:
        mapping = mapping.astype(np.int64)
        if len(mapping) and not 0 <= int(mapping.min()) <= int(mapping.max()) < len(table):
            raise ModelError(f"{folder / 'model.safetensors'}: 'mapping' points outside the {len(table)} rows of {name!r}; fetch the model again")
    return Bag(table=table, mapping=mapping, weights=weights, skip=skip)


def _read_words(folder: Path) -> tuple[Bag, StaticTokens]:
    """WordEmbeddings, perhaps WordWeights, then Pooling."""
    modules = _modules(folder)
    place = modules.first
    config = read_object(place / "wordembedding_config.json")
    splitter = _whitespace(place, str(config.get("tokenizer_class", "")))
    table = _named(place, tensors(place / "model.safetensors"), "emb_layer.weight", len(splitter.words))
    weights = None
    if modules.weights is not None:
        found = tensors(modules.weights / "model.safetensors")
        weights = _named(modules.weights, found, "emb_layer.weight", len(splitter.words))[:, 0]
    if modules.pooling is None:
        raise ModelError(f"{folder / 'modules.json'}: wanted a Pooling module after WordEmbeddings")
    bag = Bag(
        table=table, weights=weights, divide_by_weights=weights is not None, pooling=_known_pooling(folder, modules.pooling), skip=splitter.unknown
    )
    window = _window(folder, config.get("max_seq_length"))
    return _finished(folder, bag, modules, normalize=modules.normalize), StaticTokens(splitter, window)


def _whitespace(place: Path, tokenizer: str) -> SpacedWords:
    if not tokenizer.endswith("WhitespaceTokenizer"):
        raise ModelError(f"{place / 'wordembedding_config.json'}: tokenizer_class {tokenizer!r} is not known here; known: WhitespaceTokenizer")
    config = read_object(place / "whitespacetokenizer_config.json")
    words = config.get("vocab")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ModelError(f"{place / 'whitespacetokenizer_config.json'}: 'vocab' is no list of words; fetch the model again")
    return SpacedWords(words, lower_case=bool(config.get("do_lower_case")), stop_words=config.get("stop_words") or ())


def _read_bow(folder: Path) -> tuple[Bag, StaticTokens]:
    modules = _modules(folder)
    config = read_object(modules.first / "config.json")
    words = config.get("vocab")
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise ModelError(f"{modules.first / 'config.json'}: 'vocab' is no list of words; fetch the model again")
    words = list(dict.fromkeys(words))
    known, other = config.get("word_weights") or {}, float(config.get("unknown_word_weight", 1))
    weights = np.asarray([known.get(word, known.get(word.lower(), other)) for word in words], dtype=np.float32)
    splitter = SpacedWords(words, lower_case=False)
    bag = Bag(table=None, counted=len(words), weights=weights, each_once=not config.get("cumulative_term_frequency", True), skip=splitter.unknown)
    return _finished(folder, bag, modules, normalize=modules.normalize), StaticTokens(splitter)


# ---- modules


@dataclass
class _Modules:
    """What modules.json lists after the first module."""

    first: Path = Path()
    weights: Path | None = None
    pooling: tuple[str, ...] | None = None
    dense: list[Path] = field(default_factory=list)
    normalize: bool = False


def _modules(folder: Path) -> _Modules:
    listed = read_json(folder / "modules.json")
    if not isinstance(listed, list) or not all(isinstance(module, dict) and "type" in module for module in listed):
        raise ModelError(f"{folder / 'modules.json'}: wanted a list of modules with 'type' and 'path'")
    found = _Modules(first=folder / str(listed[0].get("path", "")))
    for module in listed[1:]:
        kind, place = str(module["type"]).rpartition(".")[2], folder / str(module.get("path", ""))
        if kind == "WordWeights" and found.pooling is None:
            found.weights = place
        elif kind == "Pooling":
            found.pooling = _read_pooling(place / "config.json")[0]
        elif kind == "Dense" and not found.normalize:
            found.dense.append(place)
        elif kind == "Normalize":
            found.normalize = True
        elif kind != "Dropout":
            raise ModelError(f"{folder / 'modules.json'}: module {module['type']} at this place is not known after a static model")
    return found


def _finished(folder: Path, bag: Bag, modules: _Modules, *, normalize: bool) -> Bag:
    """The bag with its heads."""
    heads: list[NumpyDense] = []
    width = bag.width
    for place in modules.dense:
        config = read_object(place / "config.json")
        arrays = tensors(place / "model.safetensors")
        weight = _named(place, arrays, "linear.weight", None)
        name = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
        name = {"Identity": "torch.nn.modules.linear.Identity"}.get(name.rpartition(".")[2], f"torch.nn.modules.activation.{name.rpartition('.')[2]}")
        if weight.shape[1] != width or config.get("use_residual"):
            raise ModelError(
                f"{folder}: the Dense head in {place.name} wants vectors of {weight.shape[1]} (residual: {bool(config.get('use_residual'))}), "
                f"what comes before it gives {width}; only plain heads are known after a static model"
            )
        heads.append(NumpyDense(weight, _vector(place, arrays, "linear.bias", weight.shape[0]), name))
        width = weight.shape[0]
    return replace(bag, heads=tuple(heads), normalize=normalize)


# ---- arrays


def tensors(path: Path) -> dict[str, Array]:
    """The arrays of a safetensors file; ModelError when it is none."""
    try:
        return load_file(path)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as err:  # KeyError: bfloat16, which numpy has not
        from twinvec.model.backbone import check_weights

        check_weights(path.parent)
        raise ModelError(f"{path}: the weights cannot be read ({first_line(err)}); the file is damaged or cut short, fetch it again") from err


def _named(folder: Path, arrays: Mapping[str, Array], name: str, rows: int | None, *, or_more: bool = False) -> Array:
    found = arrays.get(name)
    file = folder / "model.safetensors"
    if found is None or found.ndim != 2 or not found.size:
        raise ModelError(f"{file}: wanted an array {name!r} of two dimensions, the file holds {_shapes(arrays)}")
    if rows is not None and (len(found) < rows if or_more else len(found) != rows):
        raise ModelError(f"{file}: {name!r} has {len(found)} rows, the tokenizer {rows} tokens; they do not belong together")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise ModelError(f"{file}: {name!r} holds NaN or infinity; the weights are damaged, fetch the model again")
    return found


def _vector(folder: Path, arrays: Mapping[str, Array], name: str, rows: int | None) -> Array | None:
    found = arrays.get(name)
    if found is None:
        return None
    if found.ndim != 1 or (rows is not None and len(found) != rows) or (found.dtype.kind == "f" and not np.isfinite(found).all()):
        wanted = "finite numbers in one dimension" if rows is None else f"{rows} finite numbers"
        raise ModelError(f"{folder / 'model.safetensors'}: {name!r} wants {wanted}, the file holds {_shapes(arrays)}")
    return found


def _shapes(arrays: Mapping[str, Array]) -> str:
    return ", ".join(f"{key} {array.shape}" for key, array in arrays.items()) or "nothing"


def _known_pooling(folder: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    wrong = [name for name in names if name not in POOLINGS]
    if wrong:
        raise ModelError(f"{folder}: pooling {wrong[0]!r} has no meaning for a static model; known: {', '.join(POOLINGS)}")
    return names


def _window(folder: Path, asked: Any) -> int | None:
    if asked is None:
        return None
    if not isinstance(asked, int) or isinstance(asked, bool) or not 0 < asked < _LONGEST_WINDOW:
        raise ModelError(f"{folder}: the model's window is {asked!r}, wanted a number of tokens")
    return min(asked, WINDOW)


def static_kind(path: Path) -> str | None:
    """The kind of static model that `path`, a folder or a file, holds; None for none."""
    if path.is_file():
        return "text" if is_vector_text(path) else None
    return kind_of(path) if path.is_dir() else None


def check_static_options(name: str | Path, *, engine: str | None, precision: str | None, device: str | None, revision: str | None) -> None:
    """UsageError for what a static model cannot do."""
    if revision is not None and Path(name).is_file():
        raise UsageError(f"revision = {revision!r}: {name} is a file on this disk, which has no revisions; leave the option out")
    if engine not in (None, "auto", "static"):
        raise UsageError(
            f"engine = {engine!r}: {name} is a static model, which runs on its own engine and is neither trained nor exported; leave the option out"
        )
    if precision not in (None, "float32"):
        raise UsageError(f"precision = {precision!r}: {name} is a static model, which computes in float32; leave the option out")
    if device not in (None, "cpu"):
        raise UsageError(f"device = {device!r}: {name} is a static model, which runs on the CPU; leave the option out")
