"""`twinvec index`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from twinvec.cli import options as opt
from twinvec.cli.console import Console, bytes_text, pairs
from twinvec.cli.loading import check_inputs, documents_of, load_encoder
from twinvec.errors import UsageError

if TYPE_CHECKING:
    from twinvec.index.collection import Collection
    from twinvec.records import Document

WHOLE = 256 << 20  # bytes of files that are read and checked before the first document is stored


Folder = Annotated[Path, opt.argument("COLLECTION", "folder of the collection, made when it is not there")]
Documents = Annotated[
    list[Path], opt.argument("DOCS...", "files with documents (csv, tsv, jsonl, parquet, txt, each also .gz), BEIR folders, or - for standard input")
]
Model = Annotated[str | None, opt.value("--model", metavar="MODEL", help="model of a new collection; an existing one knows its own")]
Kind = Annotated[
    str | None, opt.choice("--kind", choices=opt.INDEX_KINDS, help="how a new collection is searched; flat: FAISS IndexFlatIP; default: auto")
]
Prompt = Annotated[
    str | None, opt.value("--prompt", metavar="NAME", help='prompt for documents, "" for none; default: passage or document, where the model has it')
]
QueryPrompt = Annotated[
    str | None, opt.value("--query-prompt", metavar="NAME", help='prompt for queries, "" for none; default: query, where the model has it')
]


def index(
    collection: Folder,
    documents: Documents,
    model: Model = None,
    kind: Kind = None,
    prompt: Prompt = None,
    query_prompt: QueryPrompt = None,
    text: opt.TextColumn = None,
    id: opt.IdColumn = None,
    encoding: opt.Encoding = "utf-8",
    format: opt.Format = None,
    on_long: opt.OnLong = "truncate",
    precision: opt.Precision = "float32",
    revision: opt.Revision = None,
    device: opt.Device = None,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Add documents to a collection, or replace them by their id.

    Every few thousand documents are one commit; interrupted, the collection stands at the last one, and the same command goes on.

    \b
    Example:
      twinvec index faq answers.csv --model minilm
      twinvec index faq more.jsonl --id number --text body
    """
    out = Console(json, quiet)
    check_inputs(documents)
    stream = documents_of(documents, text=text, id=id, encoding=encoding, format=format)
    size = sum(path.stat().st_size for path in documents if path.is_file())
    given: list[Document] | Iterator[Document] = list(stream) if size < WHOLE else stream
    loads = {"precision": precision, "revision": revision, "device": device}
    made = not _is_collection(collection)
    if made:
        target = _create(collection, model, kind, prompt, query_prompt, loads)
    else:
        target = _open(collection, model, kind, prompt, query_prompt, loads)
    with target, _removed_if_empty(target, made):
        report = target.add(given, on_long=None if on_long == "truncate" else on_long, progress=out.progress)
        info = target.info()
    out.note_all(report.warnings())
    payload = {"collection": str(collection), "total": info["documents"], "model": info["model"], "kind": info["search"], **report.to_dict()}
    out.result(payload, _lines(payload, info))


def _create(path: Path, model: str | None, kind: str | None, prompt: str | None, query_prompt: str | None, loads: dict[str, Any]) -> Collection:
    from twinvec.index.collection import AUTO, Collection

    if model is None:
        raise UsageError(f"{path} is a new collection: say with which model, for example --model minilm")
    document_prompt, query_prompt = (AUTO if name is None else name for name in (prompt, query_prompt))
    encoder = load_encoder(model, **loads)
    return Collection.create(path, encoder, kind=kind or "auto", document_prompt=document_prompt, query_prompt=query_prompt)


def _open(path: Path, model: str | None, kind: str | None, prompt: str | None, query_prompt: str | None, loads: dict[str, Any]) -> Collection:
    from twinvec.index.collection import Collection

    with Collection.open(path) as found:
        _check_settings(found, kind, prompt, query_prompt)
        name = model if model is not None else found.model
    return Collection.open(path, load_encoder(name, **loads))


def _lines(payload: dict[str, Any], info: dict[str, Any]) -> list[str]:
    prompts = {name: info[f"{name}_prompt"] for name in ("document", "query") if info[f"{name}_prompt"]}
    counts = f"{payload['added']:,} added, {payload['replaced']:,} replaced, {payload['unchanged']:,} unchanged, {payload['without_vector']:,} empty"
    rate = f", {payload['encoded'] / payload['seconds']:.0f} texts/s" if payload["encoded"] and payload["seconds"] else ""
    return [
        f"{payload['collection']}: {counts} ({payload['seconds']:.1f} s{rate})",
        *pairs(
            [
                ("documents", f"{payload['total']:,}"),
                ("model", f"{info['model']} ({info['dimensions']} dimensions)"),
                ("prompts", ", ".join(f"{name} {value!r}" for name, value in prompts.items()) or None),
                ("search", info["search"]),
                ("on disk", bytes_text(info["vector_bytes"] + info["database_bytes"])),
            ]
        ),
    ]


def _is_collection(path: Path) -> bool:
    """True when the path is for Collection.open to judge: a collection, damaged or not."""
    from twinvec.index.segments import FOLDER
    from twinvec.index.store import NAME

    return (path / NAME).exists() or (path / FOLDER).is_dir()


def _check_settings(collection: Collection, kind: str | None, prompt: str | None, query_prompt: str | None) -> None:
    """Settings of a collection are made with it; an option that says otherwise is refused rather than passed over."""
    settings = collection.settings
    asked = (("--kind", kind, settings.kind), ("--prompt", prompt, settings.document_prompt), ("--query-prompt", query_prompt, settings.query_prompt))
    for option, wanted, stored in asked:
        if wanted is not None and wanted != (stored or ""):
            raise UsageError(
                f"{option} {wanted!r}: {collection.path} was made with {stored or 'none'!r}, which stays for its life; "
                "leave the option out, or index into a new collection"
            )


@contextmanager
def _removed_if_empty(collection: Collection, made: bool) -> Iterator[None]:
    """A new collection that failed before its first commit leaves no folder behind."""
    try:
        yield
    except BaseException:
        if made and not len(collection):
            collection.close()
            shutil.rmtree(collection.path, ignore_errors=True)
        raise
