"""The sentence-transformers folder layout, old and new spellings, read and written as plain data (no weights here)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twinvec.errors import ModelError, choose

# twinvec's names against those of sentence-transformers, whose order a concatenation follows.
THEIR_POOLING = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len": "mean_sqrt_len_tokens",
    "weighted_mean": "weightedmean",
    "last_token": "lasttoken",
}
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
    "pooling_mode_lasttoken": "last_token",
}
TRANSFORMER, POOLING, DENSE, NORMALIZE = (
    "sentence_transformers.models.Transformer",
    "sentence_transformers.models.Pooling",
    "sentence_transformers.models.Dense",
    "sentence_transformers.models.Normalize",
)


@dataclass
class Layout:
    """What a model folder says of itself. `pooling` None means that it does not say."""

    transformer: Path
    pooling: tuple[str, ...] | None = None
    include_prompt: bool = True
    dense: list[Path] = field(default_factory=list)
    normalize: bool = False
    max_tokens: int | None = None
    lower_case: bool = False
    nfkc: bool = False
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    twinvec: dict[str, Any] | None = None


def read_json(path: Path) -> Any:
    """ModelError with the file named when it is no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as err:
        raise ModelError(f"{path}: this file of the model is missing; fetch the model again") from err
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as err:
        raise ModelError(f"{path}: cannot be read as JSON ({err}); fetch the model again") from err


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object; ModelError for anything else."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise ModelError(f"{path}: wanted a JSON object, found a {type(found).__name__}; fetch the model again")
    return found


def parse_pooling(text: str | Sequence[str]) -> tuple[str, ...]:
    """'mean' or 'cls+mean' (or a list) as a tuple of known names, in the order in which sentence-transformers joins them when saved by flags."""
    names = [part.strip() for part in text.split("+")] if isinstance(text, str) else list(text)
    return tuple(choose("pooling", name, THEIR_POOLING) for name in names)


def read_layout(folder: Path) -> Layout:
    """Read modules.json and its friends, or take the folder as a bare transformers model."""
    modules = folder / "modules.json"
    if modules.is_file():
        layout = _read_modules(folder, read_json(modules))
    elif (folder / "config.json").is_file():
        layout = Layout(folder)
        if (folder / "1_Pooling" / "config.json").is_file():
            layout.pooling, layout.include_prompt = _read_pooling(folder / "1_Pooling" / "config.json")
    else:
        inside = ", ".join(sorted(path.name for path in folder.iterdir())[:6]) or "nothing"
        raise ModelError(f"{folder} is no model folder: it has neither modules.json nor config.json (it holds {inside})")
    _read_settings(folder, layout)
    return layout


def _read_modules(folder: Path, modules: Any) -> Layout:
    layout = Layout(folder)
    if not isinstance(modules, list) or not all(isinstance(m, dict) and "type" in m for m in modules):
        raise ModelError(f"{folder / 'modules.json'}: wanted a list of modules with 'type' and 'path'")
    seen_transformer = False
    for module in modules:
        package, _, kind = str(module["type"]).rpartition(".")
        place = folder / str(module.get("path", ""))
        if package.split(".")[0] != "sentence_transformers":
            kind = ""  # a class of somebody's own, whatever it is called
        if kind == "Transformer" and not seen_transformer:
            layout.transformer, seen_transformer = place, True
        elif kind == "Pooling":
            layout.pooling, layout.include_prompt = _read_pooling(place / "config.json")
        elif kind == "Dense" and layout.pooling is not None and not layout.normalize:
            layout.dense.append(place)
        elif kind == "Normalize":
            layout.normalize = True
        elif kind != "Dropout":  # dropout does nothing when a model encodes
            raise ModelError(
                f"{folder / 'modules.json'}: module {module['type']} at this place is not known here; "
                "known: one Transformer, Pooling, any number of Dense, then Normalize"
            )
    if not seen_transformer or layout.pooling is None:
        raise ModelError(f"{folder / 'modules.json'}: wanted a Transformer and a Pooling module, found {[m['type'] for m in modules]}")
    return layout


def _read_pooling(path: Path) -> tuple[tuple[str, ...], bool]:
    config = read_object(path)
    if "pooling_mode" in config:
        given = config["pooling_mode"]
        ours = {theirs: name for name, theirs in THEIR_POOLING.items()}
        theirs = [given] if isinstance(given, str) else list(given)
        unknown = [mode for mode in theirs if mode not in ours]
        if unknown:
            raise ModelError(f"{path}: pooling_mode {unknown[0]!r} is not known; known: {', '.join(ours)}")
        names = tuple(ours[mode] for mode in theirs)
    else:
        names = tuple(name for flag, name in _FLAGS.items() if config.get(flag))
        if not names:
            raise ModelError(f"{path}: no pooling mode is set; wanted one of {', '.join(_FLAGS)}")
    return names, bool(config.get("include_prompt", True))


def _read_settings(folder: Path, layout: Layout) -> None:
    for name in ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_xlm-roberta_config.json", "sentence_distilbert_config.json"):
        path = layout.transformer / name
        if path.is_file():
            config = read_object(path)
            window = config.get("max_seq_length")
            if window is not None and (not isinstance(window, int) or window < 1):
                raise ModelError(f"{path}: max_seq_length = {window!r}, wanted a number of tokens")
            layout.max_tokens = window
            layout.lower_case = bool(config.get("do_lower_case", False))
            break
    path = folder / "config_sentence_transformers.json"
    if path.is_file():
        config = read_object(path)
        # sentence-transformers 6 writes empty prompts for query and document into every model; those are no prompts.
        layout.prompts = {str(name): str(text) for name, text in (config.get("prompts") or {}).items() if text}
        default = config.get("default_prompt_name")
        if default and default not in layout.prompts:
            if default not in (config.get("prompts") or {}):
                known = ", ".join(layout.prompts) or "none"
                raise ModelError(f"{path}: default_prompt_name {default!r} is not among its prompts ({known})")
            default = None
        layout.default_prompt = default
    path = folder / "twinvec.json"
    if path.is_file():
        layout.twinvec = read_object(path)
        made = layout.twinvec.get("format")
        if not isinstance(made, int):
            raise ModelError(f"{path}: format = {made!r}, wanted a number; fetch the model again")
        if made > 1:
            raise ModelError(f"{path}: format {made} is newer than this twinvec knows (1); update twinvec")
        layout.nfkc = bool(layout.twinvec.get("nfkc", False))


def write_layout(
    folder: Path, *, pooling: Sequence[str], token_dimensions: int, include_prompt: bool, dense: Sequence[dict[str, Any]], normalize: bool,
    max_tokens: int, lower_case: bool, prompts: dict[str, str], default_prompt: str | None, versions: dict[str, str],
) -> list[Path]:  # fmt: skip
    """Write everything but weights and tokenizer, in the old spelling that all releases of sentence-transformers read. Returns the Dense folders."""

    def put(name: str, content: Any) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    modules = [("", TRANSFORMER), ("1_Pooling", POOLING)]
    heads = [f"{i}_Dense" for i in range(2, 2 + len(dense))]
    modules += [(name, DENSE) for name in heads]
    if normalize:
        modules.append((f"{2 + len(dense)}_Normalize", NORMALIZE))
        (folder / modules[-1][0]).mkdir(parents=True)
    put("modules.json", [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(modules)])
    pooling_config: dict[str, Any] = {"word_embedding_dimension": token_dimensions}
    if tuple(pooling) == tuple(name for name in THEIR_POOLING if name in pooling):
        pooling_config.update({flag: name in pooling for flag, name in _FLAGS.items()})
    else:  # another order than the flags can say: only the new spelling holds it
        pooling_config["pooling_mode"] = [THEIR_POOLING[name] for name in pooling]
    put("1_Pooling/config.json", {**pooling_config, "include_prompt": include_prompt})
    for name, config in zip(heads, dense, strict=True):
        put(f"{name}/config.json", config)
    put("sentence_bert_config.json", {"max_seq_length": max_tokens, "do_lower_case": lower_case})
    put(
        "config_sentence_transformers.json",
        {"__version__": versions, "prompts": prompts, "default_prompt_name": default_prompt, "similarity_fn_name": "cosine"},
    )
    return [folder / name for name in heads]
