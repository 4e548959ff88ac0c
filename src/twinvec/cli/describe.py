"""What `twinvec inspect` says of each kind of thing."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinvec.cli.collection_lines import passages_text, recall_text, search_text
from twinvec.cli.console import aligned, bytes_text, one_line, pairs, without_notes
from twinvec.cli.loading import load_encoder
from twinvec.errors import DataError, ModelError

if TYPE_CHECKING:
    from twinvec.model.encoder import Encoder


@dataclass(frozen=True)
class Description:
    """The JSON form, the lines for a human, and notes."""

    payload: dict[str, Any]
    lines: list[str]
    notes: list[str] = field(default_factory=list)


def describe_model(name: str, verify: bool) -> Description:
    """Load it (which compares its golden vectors) and say what it is. With `verify`, the saved fingerprint must be the one computed."""
    encoder = load_encoder(name)
    folder = encoder.source
    assert folder is not None
    saved = _saved(folder)
    anatomy = _anatomy(encoder)
    parameters = anatomy.parameters
    inside = sorted(folder.rglob("*")) if folder.is_dir() else [folder]  # a file of word vectors is a model, too
    files = {str(path.relative_to(folder)): path.stat().st_size for path in inside if path.is_file() and ".git" not in path.parts}
    as_saved = None if not saved.get("fingerprint") else saved["fingerprint"] == encoder.fingerprint
    if verify and as_saved is False:
        raise ModelError(
            f"{folder}: its fingerprint is {encoder.fingerprint}, saved was {saved['fingerprint']}: its files were changed since; "
            "if the change is meant, delete twinvec.json, load the folder and save it again"
        )
    golden = len(saved.get("golden") or [])
    payload = {
        "type": "model",
        "name": encoder.name,
        "path": str(folder),
        "fingerprint": encoder.fingerprint,
        "fingerprint_as_saved": as_saved,
        "architecture": anatomy.kind,
        "parameters": parameters,
        "dimensions": encoder.dimensions,
        "max_tokens": encoder.max_tokens,
        "pooling": list(encoder.engine.pooling),
        "heads": anatomy.heads,
        "normalizes": encoder.normalizes,
        "vocabulary": anatomy.vocabulary,
        "prompts": encoder.prompts,
        "default_prompt": encoder.default_prompt,
        "golden": golden,
        "versions": saved.get("versions"),
        "files": files,
        "bytes": sum(files.values()),
    }
    checked = f"{golden} texts give the saved vectors" if golden else "none in this folder (twinvec.json); saving it with twinvec adds them"
    fingerprint = encoder.fingerprint + {None: "", True: " (as saved)", False: " (NOT as saved)"}[as_saved]
    heads = f", {anatomy.heads} dense" if anatomy.heads else ""
    lines = [
        f"{name}: a model of {parameters / 1e6:.1f}M parameters",
        *pairs(
            [
                ("folder", folder),
                ("fingerprint", fingerprint),
                ("architecture", f"{anatomy.kind}{anatomy.layers}, vocabulary {anatomy.vocabulary:,}"),
                ("pooling", "+".join(encoder.engine.pooling) + heads + (", normalised" if encoder.normalizes else ", not normalised")),
                ("dimensions", encoder.dimensions),
                ("window", f"{encoder.max_tokens} tokens"),
                ("prompts", _prompts(encoder.prompts, encoder.default_prompt)),
                ("golden vectors", checked),
                ("saved with", ", ".join(f"{key} {value}" for key, value in (saved.get("versions") or {}).items()) or None),
                ("size", f"{bytes_text(sum(files.values()))} in {len(files)} files"),
            ]
        ),
        *aligned([[key, bytes_text(size)] for key, size in files.items()], right=(1,), indent="    "),
    ]
    return Description(payload, lines)


@dataclass(frozen=True)
class _Anatomy:
    kind: str
    layers: str
    parameters: int
    heads: int
    vocabulary: int


def _anatomy(encoder: Encoder) -> _Anatomy:
    """What a model is made of: a transformer, or a table of static vectors."""
    from twinvec.model.static import StaticEngine, StaticTokens

    if isinstance(encoder.engine, StaticEngine) and isinstance(encoder.tokens, StaticTokens):
        bag = encoder.engine.bag
        return _Anatomy("static", "", bag.parameters, len(bag.heads), encoder.tokens.vocabulary)
    config: Any = encoder.net.backbone.config
    parameters = sum(parameter.numel() for parameter in encoder.net.parameters())
    layers = f", {config.num_hidden_layers} layers"
    return _Anatomy(str(config.model_type), layers, parameters, len(encoder.net.heads), len(encoder.tokens.tokenizer))


def _saved(folder: Path) -> dict[str, Any]:
    path = folder / "twinvec.json"
    if not path.is_file():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}


def _prompts(prompts: dict[str, str], default: str | None) -> str:
    return ", ".join(f"{name} {text!r}" + (" (default)" if name == default else "") for name, text in prompts.items()) or "none"


def describe_collection(path: Path, verify: bool) -> Description:
    """Its counts, sizes, settings and advice; with `verify` every row and every file is read and checked."""
    from twinvec.index.collection import Collection

    with Collection.open(path, verify=True if verify else None) as collection:
        info = collection.info()
        checked = collection.verify() if verify else None
        first = [document for id in collection.ids()[:3] if (document := collection.get(id)) is not None]
    prompts = {name: info[f"{name}_prompt"] for name in ("document", "query") if info[f"{name}_prompt"]}
    dead = f", {info['tombstones']:,} replaced or deleted rows in them ({info['dead_share']:.0%})" if info["tombstones"] else ""
    lines = [
        f"{path}: a collection of {info['documents']:,} documents{passages_text(info)}",
        *pairs(
            [
                ("model", info["model"]),
                ("fingerprint", info["fingerprint"]),
                ("prompts", ", ".join(f"{name} {value!r}" for name, value in prompts.items()) or "none"),
                ("dimensions", f"{info['dimensions']}, {info['store']}"),
                ("search", f"{search_text(info)}, {info['metric']}"),
                *((f"index {item['kind']}", f"{item['rows']:,} rows, {bytes_text(item['bytes'])}{recall_text(item)}") for item in info["indexes"]),
                ("searchable", f"{info['searchable']:,} of {info['documents']:,} documents ({info['without_vector']:,} have no text)"),
                ("segments", f"{info['segments']}{dead}"),
                ("indexed fields", ", ".join(info["fields"]) or None),
                ("on disk", _sizes(info)),
                ("created", f"{info['created']} by twinvec {info['twinvec']}, format {info['format']}"),
                ("verified", None if checked is None else f"all checksums fit: {checked['documents']:,} documents, {checked['vectors']:,} vectors"),
            ]
        ),
        *(f"    {document.id}: {one_line(document.text, 90)}" for document in first),
        *(f"  advice: {line}" for line in info["advice"]),
    ]
    return Description({"type": "collection", **info, "verified": checked}, lines)


def _sizes(info: dict[str, Any]) -> str:
    index = f", index {bytes_text(info['index_bytes'])}" if info["index_bytes"] else ""
    return f"vectors {bytes_text(info['vector_bytes'])}{index}, database {bytes_text(info['database_bytes'])}"


def describe_data(path: Path, reads: dict[str, Any], test: Path | None, model: str | None) -> Description:
    """How the file is read, and what is wrong with it."""
    from twinvec.data.check import check_data
    from twinvec.data.dataset import read_data

    data = read_data(path, **reads)
    other = read_data(test, **reads) if test is not None else None
    encoder = load_encoder(model) if model is not None else None
    counting: dict[str, Any] = {"count_tokens": encoder.count_tokens, "window": encoder.max_tokens} if encoder is not None else {}
    report = check_data(data, test=other, **counting)
    rows = [
        {**{name: texts[i] for name, texts in data.columns.items()}, **({"label": data.labels[i]} if data.labels else {})}
        for i in range(min(3, len(data)))
    ]
    payload = {
        "type": "data",
        "path": str(path),
        "kind": data.kind,
        "rows": len(data),
        "columns": data.mapping,
        "unused": data.unused,
        "labels": data.label_counts(),
        "score_range": list(data.score_range) if data.score_range else None,
        "sha256": data.sha256,
        "sample": rows,
        "test": str(test) if test is not None else None,
        "model": model,
        "check": report.to_dict(),
    }
    asked = ["duplicates, contradictions, empty texts"]
    asked += [f"texts over {encoder.max_tokens} tokens"] if encoder is not None else []
    asked += [f"overlap with {test}"] if test is not None else []
    found = [finding.line() for finding in report.findings]
    longest = [f"longest text: {report.longest} tokens"] if report.longest is not None else []
    lines = [
        *without_notes(data.describe()),
        f"  checked for {', '.join(asked)}:",
        *(f"    {line}" for line in [*(found or ["nothing found"]), *longest]),
    ]
    return Description(payload, lines, data.notes)


def describe_retrieval(path: Path, split: str) -> Description:
    """Sizes of a BEIR folder and three of its queries."""
    from twinvec.data.beir import read_retrieval

    found = read_retrieval(path, split=split)
    judged = sum(len(grades) for grades in found.qrels.values())
    empty = sum(not document.text.strip() for document in found.corpus)
    payload = {
        "type": "retrieval",
        "path": str(path),
        "split": split,
        "documents": len(found.corpus),
        "empty_documents": empty,
        "queries": len(found.queries),
        "judgements": judged,
    }
    return Description(payload, without_notes(found.describe()), found.notes)


def describe_run(path: Path) -> Description:
    """What a training run was, and how it ended."""
    file = path / "run.json"
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        recipe = record["recipe"]
    except FileNotFoundError:
        raise DataError(f"{file}: missing; a run has it from its first second, so this is no whole run") from None
    except (ValueError, KeyError, TypeError) as err:
        raise DataError(f"{file}: cannot be read as the record of a run ({type(err).__name__}: {err})") from err
    result = record.get("result")
    checkpoints = sorted(child.name for child in (path / "checkpoints").glob("*")) if (path / "checkpoints").is_dir() else []
    left = {name: (path / name).exists() for name in ("log.jsonl", "best", "report.html")}
    payload = {"type": "run", "path": str(path), "finished": result is not None, **record, "checkpoints": checkpoints, "leaves": left}
    unfinished = f"no; go on with --resume from {checkpoints[-1]}" if checkpoints else "no, and it has no checkpoint to go on from"
    lines = [
        f"{path}: a training run",
        *pairs(
            [
                ("model", f"{recipe.get('model')} -> {path / 'best'}" if left["best"] else recipe.get("model")),
                ("data", recipe.get("data")),
                ("objective", recipe.get("objective")),
                (
                    "settings",
                    ", ".join(
                        f"{key} {recipe[key]:g}" for key in ("epochs", "batch_size", "lr", "seed") if isinstance(recipe.get(key), (int, float))
                    ),
                ),
                ("started", record.get("started")),
                (
                    "finished",
                    unfinished if result is None else f"yes, {result.get('steps')} steps in {result.get('seconds')} s ({result.get('stopped')})",
                ),
                *(_result(result) if result else []),
                ("versions", ", ".join(f"{key} {value}" for key, value in (record.get("versions") or {}).items()) or None),
                ("leaves", ", ".join(name for name, there in left.items() if there) or "nothing"),
            ]
        ),
    ]
    return Description(payload, lines, list((result or {}).get("notes") or []))


def _result(result: dict[str, Any]) -> list[tuple[str, Any]]:
    best, baseline = result.get("best_metric"), result.get("baseline_metric")
    if best is None:
        return [("best step", result.get("best_step"))]
    before = f", before training {baseline:.4f}" if isinstance(baseline, float) else ""
    return [("best step", f"{result.get('best_step')}: {result.get('metric')} {best:.4f}{before}")]
