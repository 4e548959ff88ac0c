"""`twinvec index`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinvec.cli import options as opt
from twinvec.cli.collection_lines import added_lines, changed_lines
from twinvec.cli.console import Console
from twinvec.cli.loading import check_inputs, documents_of, load_encoder, texts_of
from twinvec.errors import UsageError

if TYPE_CHECKING:
    from twinvec.records import Document

WHOLE = 256 << 20  # bytes of files that are read and checked before the first document is stored
KINDS = ("auto", "exact", "flat", "ivf", "ivfpq", "hnsw")
STORES = ("float32", "float16", "int8", "binary")
LONG = ("truncate", "error", "split", "passages")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}

Folder = Annotated[
    str, opt.argument("COLLECTION", "folder of the collection, made when it is not there, or its URL (postgresql://..., milvus://...)")
]
Documents = Annotated[
    list[Path] | None,
    opt.argument("[DOCS...]", "files with documents (csv, tsv, jsonl, parquet, txt, each also .gz), BEIR folders, or - for standard input"),
]
Model = Annotated[str | None, opt.value("--model", metavar="MODEL", help="model of a new collection, or to move to; an existing one knows its own")]
Kind = Annotated[
    str | None, opt.choice("--kind", choices=KINDS, help="how a new collection is searched, or what --optimize builds; default: auto, by size")
]
Recall = Annotated[
    float | None, opt.value("--recall", metavar="SHARE", help="share of true neighbours that the approximate index is built for; default: 0.95")
]
Memory = Annotated[str | None, opt.value("--memory", metavar="SIZE", help="memory that the index may take, as 2GB; default: no limit")]
StoreAs = Annotated[str, opt.choice("--store", choices=STORES, help="how a new collection keeps its vectors (binary: with float16 beside)")]
OnLong = Annotated[
    str | None,
    opt.choice(
        "--on-long", choices=LONG, show_default=False, help="a text longer than the window; passages: a vector for each part; default: as last time"
    ),
]
PassageTokens = Annotated[int | None, opt.value("--passage-tokens", metavar="N", min=1, help="longest passage in tokens; default: 200")]
PassageOverlap = Annotated[int | None, opt.value("--passage-overlap", metavar="N", min=0, help="tokens that passages share; default: 40")]
Delete = Annotated[bool, typer.Option("--delete", help="delete the documents that --where allows")]
Where = Annotated[str | None, opt.value("--where", metavar="FILTER", help="with --delete: for example \"lang = 'zh' and year < 2020\"")]
DeleteIds = Annotated[Path | None, opt.value("--delete-ids", metavar="FILE", help="delete the documents whose ids are the lines of a file, or of -")]
Compact = Annotated[bool, typer.Option("--compact", help="drop the rows of replaced and deleted documents and join small files")]
Optimize = Annotated[
    bool | None,
    typer.Option("--optimize/--no-optimize", help="build the approximate index; default: when auto finds it worth while", show_default=False),
]
TuneQueries = Annotated[
    Path | None,
    opt.value(
        "--tune-queries", metavar="FILE", help="50 or more texts as they will be asked, to tune the approximate index on; default: held-out rows"
    ),
]
Reindex = Annotated[bool, typer.Option("--reindex", help="move the collection to --model; it works all the time, and a stopped move goes on")]
IndexField = Annotated[
    list[str] | None, opt.value("--index-field", metavar="FIELD", help="index a metadata field for filters; may be given several times")
]
To = Annotated[str | None, opt.value("--to", metavar="URL", help="copy the collection to a server (postgresql://..., milvus://...)")]
TextMetadata = Annotated[bool, typer.Option("--text-metadata", help="keep columns of numbers in CSV and TSV files as text")]
Prompt = Annotated[
    str | None, opt.value("--prompt", metavar="NAME", help='prompt for documents, "" for none; default: passage or document, where the model has it')
]
QueryPrompt = Annotated[
    str | None, opt.value("--query-prompt", metavar="NAME", help='prompt for queries, "" for none; default: query, where the model has it')
]


def index(
    collection: Folder,
    documents: Documents = None,
    model: Model = None,
    kind: Kind = None,
    recall: Recall = None,
    memory: Memory = None,
    store: StoreAs = "float32",
    on_long: OnLong = None,
    passage_tokens: PassageTokens = None,
    passage_overlap: PassageOverlap = None,
    delete: Delete = False,
    where: Where = None,
    delete_ids: DeleteIds = None,
    compact: Compact = False,
    optimize: Optimize = None,
    tune_queries: TuneQueries = None,
    reindex: Reindex = False,
    index_field: IndexField = None,
    to: To = None,
    prompt: Prompt = None,
    query_prompt: QueryPrompt = None,
    text: opt.TextColumn = None,
    id: opt.IdColumn = None,
    text_metadata: TextMetadata = False,
    encoding: opt.Encoding = "utf-8",
    format: opt.Format = None,
    engine: opt.Engine = "auto",
    precision: opt.Precision = None,
    revision: opt.Revision = None,
    device: opt.Device = None,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Add, replace or delete documents of a collection; tend it.

    Tending it: compact, optimize, index a field, move to another model or to a server.

    Every few thousand documents are one commit; interrupted, the collection stands at the last one, and the same command goes on: documents
    that are there already with the same text are not encoded again.

    \b
    Example:
      twinvec index faq answers.csv --model minilm
      twinvec index faq more.jsonl --id number --text body
      twinvec index books books.jsonl --model minilm --on-long passages --passage-tokens 200 --passage-overlap 40
      twinvec index faq --delete --where "year < 2020"
      twinvec index faq --compact
      twinvec index faq --optimize --kind hnsw --recall 0.98
      twinvec index faq --reindex --model runs/new/best
    """
    out = Console(json, quiet)
    loads = {"engine": engine, "precision": precision, "revision": revision, "device": device}
    files = list(documents or [])
    alone = {"delete": delete, "delete_ids": delete_ids, "reindex": reindex, "to": to}
    _check_actions(files, where, recall, memory, optimize, compact, index_field, alone)
    budget = None if memory is None else size_of("--memory", memory)
    if reindex:
        _reindex(out, collection, model, prompt, query_prompt, loads)
    elif to is not None:
        _copy(out, collection, to)
    elif delete or delete_ids is not None:
        _delete(out, collection, where, delete_ids, encoding)
    elif files:
        check_inputs(files)
        stream = documents_of(files, text=text, id=id, encoding=encoding, format=format, numbers=not text_metadata)
        size = sum(path.stat().st_size for path in files if path.is_file())
        given: list[Document] | Iterator[Document] = list(stream) if size < WHOLE else stream
        target, made = _target(collection, model, kind, prompt, query_prompt, store, loads, free_kind=bool(optimize))
        with target, _removed_if_empty(target, made):
            report = target.add(
                given, on_long=on_long, passage_tokens=passage_tokens, passage_overlap=passage_overlap, progress=out.progress
            )  # fmt: skip
            built = _after(out, target, kind, recall, budget, optimize, compact, index_field, lambda at: _asked(at, tune_queries, encoding, loads))
            info = target.info()
        out.note_all(report.warnings())
        payload = {"collection": str(collection), "total": info["documents"], "model": info["model"], "kind": info["search"], **report.to_dict()}
        out.result({**payload, **built}, added_lines(payload, info, built))
    else:
        with _opened(collection) as target:
            built = _after(out, target, kind, recall, budget, optimize, compact, index_field, lambda at: _asked(at, tune_queries, encoding, loads))
            info = target.info()
        payload = {"collection": str(collection), "total": info["documents"], "kind": info["search"], **built}
        out.result(payload, changed_lines(payload, info))


def _check_actions(
    files: list[Path], where: str | None, recall: float | None, memory: str | None, optimize: bool | None, compact: bool, fields: list[str] | None,
    alone: dict[str, Any],
) -> None:  # fmt: skip
    """UsageError for what does not go together."""
    asked = [f"--{name.replace('_', '-')}" for name, value in alone.items() if value]
    rest = [name for name, value in (("DOCS", files), ("--compact", compact), ("--optimize", optimize), ("--index-field", fields)) if value]
    if "--delete" in asked and where is None:
        raise UsageError('--delete: say what is to go with --where FILTER, for example --where "year < 2020"; or give --delete-ids FILE')
    if where is not None and "--delete" not in asked:
        raise UsageError("--where belongs to --delete here; to search with a filter: twinvec search COLLECTION QUERY --where FILTER")
    if len(asked) > 1 or (asked and rest):
        raise UsageError(f"{asked[0]} and {([*asked, *rest])[1]}: give one at a time")
    if not asked and not rest:
        raise UsageError(
            "nothing to do: give documents to add, or one of --delete, --delete-ids, --compact, --optimize, --reindex, --index-field, --to"
        )
    if (recall is not None or memory is not None) and optimize is False:
        raise UsageError("--recall and --memory are for the approximate index; leave out --no-optimize")


def size_of(option: str, text: str) -> int:
    """'2GB', '500 MB', '1e9' as a number of bytes (units of 1,000); UsageError else."""
    found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?)i?b?\s*", text.lower())
    try:
        count = int(float(found[1]) * _UNITS[found[2]]) if found else 0
    except ValueError:
        count = 0
    if count < 1:
        raise UsageError(f"{option} {text!r}: wanted a size, for example 2GB or 500MB")
    return count


def _after(
    out: Console, target: Any, kind: str | None, recall: float | None, memory: int | None, optimize: bool | None, compact: bool,
    fields: list[str] | None, asked: Callable[[Any], Any],
) -> dict[str, Any]:  # fmt: skip
    """What is done to a collection once its documents are there; what came of it, by name."""
    done: dict[str, Any] = {}
    for name in fields or []:
        target.index_field(name)
        done["fields"] = [*done.get("fields", []), name]
    if compact:
        done["compacted"] = _plain(target.compact())
    queries = asked(target)
    if optimize or queries is not None or (optimize is None and not compact and (recall is not None or memory is not None or _worth_while(target))):
        out.note("building the approximate index ...")
        more = {} if queries is None else {"queries": queries}
        done["optimized"] = _plain(target.optimize(kind, recall, memory, **more))
    return done


def _asked(target: Any, file: Path | None, encoding: str, loads: dict[str, Any]) -> Any:
    """Vectors of the queries that an index is to be tuned on."""
    if file is None:
        return None
    from twinvec.index.collection import Collection

    if not isinstance(target, Collection):
        raise UsageError("--tune-queries: servers tune their indexes by themselves; it is for a collection in a folder")
    check_inputs([file])
    texts = [text for text in texts_of(file, text=None, encoding=encoding, format=None) if text.strip()]
    encoder = target.encoder if target.encoder is not None else load_encoder(target.model, **loads)
    return encoder.encode_with_report(texts, prompt=target.settings.query_prompt).vectors


def _worth_while(target: Any) -> bool:
    """True when the collection asks for an approximate index by its kind or its size, and has none, or an old one."""
    info = target.info()
    if "unindexed" not in info or info["kind"] in ("exact", "flat"):
        return False
    from twinvec.index.ann.plan import EXACT_BELOW, FEWEST

    rows, fresh = info["passages"], info["unindexed"]
    least = EXACT_BELOW if info["kind"] == "auto" else FEWEST
    return bool(rows >= least and fresh > 0.3 * rows)


def _plain(found: Any) -> Any:
    return found if isinstance(found, dict) else found.to_dict()


def _opened(place: str, encoder: Any = None) -> Any:
    from twinvec.index.remote import open_collection

    return open_collection(place, encoder)


def _target(
    place: str, model: str | None, kind: str | None, prompt: str | None, query_prompt: str | None, store: str, loads: dict[str, Any], *,
    free_kind: bool,
) -> tuple[Any, bool]:  # fmt: skip
    """The collection that documents go to, and whether it was made for that."""
    from twinvec.index.models import AUTO
    from twinvec.index.remote import collection_exists, open_collection

    if not collection_exists(place):
        if model is None:
            raise UsageError(f"{place} is a new collection: say with which model, for example --model minilm")
        document_prompt, query_prompt = (AUTO if name is None else name for name in (prompt, query_prompt))
        settings: dict[str, Any] = {"kind": kind or "auto", "document_prompt": document_prompt, "query_prompt": query_prompt}
        if store != "float32":
            settings["store"] = store
        return open_collection(place, load_encoder(model, **loads), create=True, **settings), True
    with _opened(place) as found:
        _check_settings(found, None if free_kind else kind, prompt, query_prompt, store)
        name = model if model is not None else found.model
    return _opened(place, load_encoder(name, **loads)), False


def _check_settings(collection: Any, kind: str | None, prompt: str | None, query_prompt: str | None, store: str) -> None:
    """Settings of a collection are made with it; an option that says otherwise is refused rather than passed over."""
    settings = collection.settings
    asked = (
        ("--kind", kind, settings.kind),
        ("--prompt", prompt, settings.document_prompt),
        ("--query-prompt", query_prompt, settings.query_prompt),
        ("--store", None if store == "float32" else store, settings.store),
    )
    for option, wanted, stored in asked:
        if wanted is not None and wanted != (stored or ""):
            change = "give --optimize to change it" if option == "--kind" else "leave the option out, or index into a new collection"
            stays = "" if option == "--kind" else ", which stays for its life"
            raise UsageError(f"{option} {wanted!r}: {collection.path} was made with {stored or 'none'!r}{stays}; {change}")


@contextmanager
def _removed_if_empty(collection: Any, made: bool) -> Iterator[None]:
    """A new collection that failed before its first commit leaves no folder behind."""
    try:
        yield
    except BaseException:
        if made and not len(collection):
            collection.close()
            if isinstance(collection.path, Path):
                shutil.rmtree(collection.path, ignore_errors=True)
        raise


def _delete(out: Console, place: str, where: str | None, file: Path | None, encoding: str) -> None:
    from twinvec.data.textfile import standard_input

    with _opened(place) as target:
        if file is not None:
            check_inputs([file])
            lines = standard_input(encoding) if str(file) == "-" else iter(file.read_text(encoding=encoding).splitlines())
            ids = [line for line in lines if line.strip()]
            gone = target.delete(ids)
            asked: int | None = len(set(ids))
        else:
            gone, asked = target.delete(where=where), None
        info = target.info()
    payload = {"collection": str(place), "deleted": gone, "asked": asked, "total": info["documents"]}
    out.result(payload, changed_lines(payload, info))


def _reindex(out: Console, place: str, model: str | None, prompt: str | None, query_prompt: str | None, loads: dict[str, Any]) -> None:
    from twinvec.index.models import AUTO

    if model is None:
        raise UsageError("--reindex: say to which model, for example --model minilm")
    with _opened(place) as target:
        encoder = load_encoder(model, **loads)
        prompts = {name: value for name, value in (("document_prompt", prompt), ("query_prompt", query_prompt)) if value is not None}
        options: dict[str, Any] = {"progress": out.progress} if isinstance(target.path, Path) else {}
        found = _plain(target.reindex(encoder, **({name: value for name, value in prompts.items() if value != AUTO}), **options))
        info = target.info()
    payload = {"collection": str(place), "total": info["documents"], "model": info["model"], "kind": info["search"], "reindexed": found}
    out.result(payload, changed_lines(payload, info))


def _copy(out: Console, place: str, url: str) -> None:
    """Copy up to a server; the counts and a sample are compared."""
    from twinvec.index.remote import copying

    with _opened(place) as source:
        found = copying.copy_to(source, url, progress=out.progress)
    payload = {"collection": str(place), "to": found.get("to", url), **found}
    out.result(payload, copying.lines(place, found))
