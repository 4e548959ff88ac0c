"""A collection in Milvus."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np

from twinvec.errors import CollectionError, UsageError, choose
from twinvec.index.entries import Settings
from twinvec.index.lexical_terms import CUT, STEM, cutter
from twinvec.index.models import AUTO, EncoderLike
from twinvec.index.remote import milvus_index as approximate
from twinvec.index.remote import milvus_rows as layout
from twinvec.index.remote.address import Address
from twinvec.index.remote.base import WAIT, RemoteCollection, StoredText
from twinvec.index.remote.inputs import new_settings
from twinvec.index.remote.milvus_link import LIMIT, TIMEOUT, Link
from twinvec.index.remote.planning import Entry, Known
from twinvec.index.remote.scoring import Best, Found
from twinvec.index.report import AddReport
from twinvec.index.where import Node, matches
from twinvec.index.where_milvus import to_milvus
from twinvec.records import Document, Vectors

FORMAT = 1
_IDS = 100  # documents asked for at once
_ROW = ["document", "part", "start", "stop", "text", "metadata"]


class MilvusCollection(RemoteCollection):
    """See RemoteCollection. Milvus has no transactions: a batch is one request, and two writers at once may mix their batches."""

    engine = "milvus"

    def __init__(self, address: Address, *, wait: float = WAIT) -> None:
        super().__init__(address, wait=wait)
        self.link = Link(address)

    @staticmethod
    def create(
        address: Address, encoder: EncoderLike | str, *, kind: str = "auto", cut: str = CUT, stem: str = STEM, wait: float = WAIT, **options: Any
    ) -> MilvusCollection:  # fmt: skip
        """A new, empty collection; options as in Collection.create, but Milvus must know the dimensions now."""
        choose("kind", kind, MilvusCollection.kinds)
        settings = new_settings(encoder, kind=kind, metric=options.pop("metric", "cosine"), **options)
        return MilvusCollection.create_like(address, settings, cut=cut, stem=stem, wait=wait, encoder=encoder)

    @staticmethod
    def create_like(
        address: Address, settings: Settings, *, cut: str, stem: str, wait: float = WAIT, encoder: EncoderLike | str | None = None
    ) -> MilvusCollection:  # fmt: skip
        """As `create`, with settings that are there already (of a collection that is copied)."""
        cutter(cut, stem)
        made = MilvusCollection(address, wait=wait)
        return made._begun(encoder, lambda: made._make(replace(settings, store="float32"), {"cut": cut, "stem": stem}))

    @staticmethod
    def open(address: Address, encoder: EncoderLike | str | None = None, *, wait: float = WAIT) -> MilvusCollection:
        """An existing collection; a model that is not its own is refused."""
        return MilvusCollection(address, wait=wait)._begun(encoder)

    def exists(self) -> bool:
        return self.link.exists()

    def _make(self, settings: Settings, words: dict[str, str]) -> None:
        if settings.dimensions is None:
            raise UsageError(f"{self.path}: Milvus must know the dimensions when a collection is made; give dimensions=, or an encoder")
        if self.exists():
            raise CollectionError(f"{self.path}: a collection is there already; open it with open_collection(url, encoder), or choose another name")
        lexical = True
        try:
            self._create(settings.dimensions, lexical)
        except CollectionError as err:
            if not any(word in str(err).lower() for word in ("function", "analyzer", "bm25")):
                raise
            lexical = False
            self._create(settings.dimensions, lexical)
        self._save({**asdict(settings), **words, "format": FORMAT, "lexical": lexical, "max_norm": 0.0, "index": None, "user": {}})

    def _create(self, dimensions: int, lexical: bool) -> None:
        with self.link.errors() as client:
            schema, indexes = layout.schema(self.link, dimensions, lexical)
            client.create_collection(self.link.name, schema=schema, index_params=indexes, consistency_level="Strong", timeout=TIMEOUT)

    # settings

    def _load(self) -> dict[str, Any]:
        if self._seen:
            return self._seen
        found = self.link.query(f'key in ["{layout.SETTINGS}"]', ["metadata"], 1)
        if not found:
            raise CollectionError(f"{self.path}: not made by twinvec (it has no settings); choose another name")
        values: dict[str, Any] = json.loads(found[0]["metadata"])
        if values["format"] > FORMAT:
            raise CollectionError(f"{self.path}: written by a newer twinvec (format {values['format']}, this one reads up to {FORMAT}): upgrade")
        if self._seen is not None:
            self._seen.update(values)
        return values

    def _save(self, values: dict[str, Any]) -> None:
        row = {**layout.blank(values["dimensions"], values["lexical"]), "key": layout.SETTINGS, "part": -2, "metadata": json.dumps(values)}
        self.link.upsert([row])

    def _settings(self) -> Settings:
        values = self._load()
        return Settings(**{field.name: values[field.name] for field in fields(Settings) if field.name in values})

    def _words_cut(self) -> tuple[str, str]:
        values = self._load()
        return values["cut"], values["stem"]

    def setting(self, name: str) -> Any:
        with self._lock:
            return self._load()["user"].get(name)

    def put_setting(self, name: str, value: Any) -> None:
        with self._lock:
            values = self._load()
            kept = {**values["user"], name: value}
            self._save({**values, "user": {key: item for key, item in kept.items() if item is not None}})

    def _reading(self) -> AbstractContextManager[None]:
        return self._once()

    def _writing(self) -> AbstractContextManager[None]:
        return nullcontext()

    # changing

    def _check_document(self, document: Document, row: int) -> None:
        layout.check(document, row)

    def _rows(self, ids: Sequence[str], columns: list[str]) -> Iterator[dict[str, Any]]:
        """The rows of these documents, in the order of their passages. Only documents that were cut are looked for by more than their keys."""
        asked = list(dict.fromkeys([*columns, "key", "document", "part", "start"]))
        for at in range(0, len(ids), _IDS):
            found = self.link.query(layout.first_two(ids[at : at + _IDS]), asked)
            several = {row["document"] for row in found if row["start"] >= 0 or row["key"].endswith("#1")}
            if several:
                found = [row for row in found if row["document"] not in several]
                found += self.link.query(layout.any_of(map(layout.id_of, several)), asked)
            yield from sorted(found, key=lambda row: (row["document"], row["part"]))

    def _known(self, ids: Sequence[str]) -> dict[str, Known]:
        found: dict[str, Known] = {}
        for row in self._rows(ids, _ROW):
            known = found.setdefault(layout.id_of(row["document"]), Known(row["text"], row["metadata"], []))
            if row["part"] >= 0:
                known.spans.append(_span(row))
        return found

    def _write(self, entries: Sequence[Entry], settings: Settings) -> None:
        values = self._load()
        size, cut = int(values["dimensions"]), cutter(values["cut"], values["stem"]) if values["lexical"] else None
        changed = [entry for entry in entries if entry.pieces is None]
        kept: dict[str, list[dict[str, Any]]] = {}
        columns = ["key", *_ROW, "vector", *(["words"] if cut else [])]
        for row in self._rows([entry.document.id for entry in changed], columns):
            kept.setdefault(row["document"], []).append(row)
        rows: list[dict[str, Any]] = []
        for entry in entries:
            made = layout.rows_of(entry, size, cut)
            if entry.pieces is None:
                told = {"metadata": entry.metadata, "fields": made[0]["fields"]}
                made = [{**row, **told, "vector": np.asarray(row["vector"], dtype=np.float32).tolist()} for row in kept[made[0]["document"]]]
            rows += made
        old = {row["key"] for row in self._rows([entry.document.id for entry in entries], ["key", "document", "part"])}
        self.link.upsert(rows)
        # The second passage goes last: it is what _rows knows a document of several passages by.
        self.link.delete(sorted(old - {row["key"] for row in rows}, key=lambda key: -int(key.rpartition("#")[2])))
        new = {**values, **asdict(settings)}
        if settings.metric == "dot":
            longest = max((float(np.linalg.norm(piece.vector.astype(np.float64))) for entry in entries for piece in entry.pieces or []), default=0.0)
            new["max_norm"] = max(values["max_norm"], longest * 1.001)
        if new != values:
            self._save(new)

    def _remove(self, ids: Sequence[str]) -> int:
        rows = list(self._rows(ids, ["key", "document", "part"]))
        self.link.delete([row["key"] for row in reversed(rows)])
        return len({row["document"] for row in rows})

    # reading

    def _ids(self, where: Node | None) -> list[str]:
        expression = _both(layout.FIRST, where)
        found = []
        for block in self.link.scan(expression, ["document", "metadata"]):
            found += [row["document"] for row in block if _passes(row, where)]
        return sorted(map(layout.id_of, found))

    def count(self, where: str | Node | None = None) -> int:
        if where is not None:
            return super().count(where)
        with self._lock:
            return self.link.count(layout.FIRST)

    def _stored(self, ids: Sequence[str]) -> dict[str, StoredText]:
        found: dict[str, StoredText] = {}
        spans: dict[str, dict[int, Any]] = {}
        for row in self._rows(ids, _ROW):
            name = layout.id_of(row["document"])
            if row["part"] >= 0:
                spans.setdefault(name, {})[row["part"]] = _span(row)
            if row["part"] <= 0:
                found[name] = StoredText(row["text"], row["metadata"], spans.setdefault(name, {}))
        return found

    def _vectors(self, ids: Sequence[str]) -> dict[str, list[Vectors]]:
        found: dict[str, list[Vectors]] = {}
        for row in self._rows(ids, ["document", "part", "vector"]):
            if row["part"] >= 0:
                found.setdefault(layout.id_of(row["document"]), []).append(np.asarray(row["vector"], dtype=np.float32))
        return found

    def _longest(self) -> float:
        values = self._load()
        return float(values["max_norm"]) if values["metric"] == "dot" else 1.0 + 1e-6

    def _most(self) -> int | None:
        return LIMIT

    def _candidates(self, query: Vectors, where: Node | None, kind: str, recall: float | None, k: int, take: int) -> Found:
        index = self._load()["index"]
        if kind in approximate.KINDS and (index is None or index["kind"] != kind):
            raise UsageError(f"kind = {kind!r}: {self.path} has no such index; build it with optimize(kind={kind!r}), or leave the option out")
        if kind == "exact" and index is not None:
            return approximate.scanned(self.link, query, where, take)
        found = approximate.candidates(self.link, index, query, where, recall, take)
        return approximate.scanned(self.link, query, where, take) if found is None else found

    def _words(self, query: str, k: int, where: Node | None) -> list[Best]:
        values = self._load()
        if not values["lexical"]:
            raise layout.no_lexical(self.path)
        asked, take = layout.words(cutter(values["cut"], values["stem"])(query)), k + 16
        if not asked:
            return []
        while True:
            rows = self.link.search(
                asked, "bm25", _both(layout.FOUND, where), ["document", "part", "metadata"], take, metric_type="BM25"
            )  # fmt: skip
            seen: dict[str, Best] = {}
            # Milvus Lite gives BM25 scores with a minus sign, the standalone server without.
            for score, row in sorted(((abs(hit["distance"]), hit["entity"]) for hit in rows), key=lambda pair: (-pair[0], pair[1]["part"])):
                name = layout.id_of(row["document"])
                if score > 0 and name not in seen and _passes(row, where):
                    seen[name] = Best(name, int(row["part"]), float(score))
            if len(seen) >= k or len(rows) < take or take == LIMIT:
                return sorted(seen.values(), key=lambda item: (-item.score, item.id))[:k]
            take = min(take * 4, LIMIT)

    # the whole

    def info(self) -> dict[str, Any]:
        with self._lock:
            values = self._load()
            documents, vectorless = self.link.count(layout.FIRST), self.link.count("part == -1")
            passages = self.link.count(layout.FOUND)
            with self.link.errors() as client:
                version = client.get_server_version()
            index = values["index"]
            shown = {key: item for key, item in values.items() if key not in ("user", "max_norm")}
            return {
                "path": self.path, "documents": documents, "searchable": documents - vectorless, "passages": passages, "without_vector": vectorless,
                "tombstones": 0, "segments": 1, "vector_bytes": 4 * passages * values["dimensions"], "database_bytes": 0, "format": FORMAT,
                "server": f"Milvus {version}", "search": index["kind"] if index else "exact", **shown,
            }  # fmt: skip

    def verify(self) -> dict[str, Any]:
        with self._lock:
            values = self._load()
            parts: dict[str, list[int]] = {}
            for block in self.link.scan("part >= -1", ["key", "document", "part"]):
                for row in block:
                    parts.setdefault(row["document"], []).append(row["part"])
            faults = [f"document {layout.id_of(name)!r} has the passages {sorted(found)}" for name, found in parts.items() if not _whole(found)]
            if faults:
                more = f" (and {len(faults) - 5} more)" if len(faults) > 5 else ""
                raise CollectionError(f"{self.path}: {len(faults)} faults: {'; '.join(faults[:5])}{more}; add these documents again")
            vectors = sum(part >= 0 for found in parts.values() for part in found)
            return {"documents": len(parts), "vectors": vectors, "dimensions": values["dimensions"]}

    def compact(self) -> dict[str, Any]:
        with self._lock, self.link.errors() as client:
            client.flush(self.link.name, timeout=TIMEOUT)
            return {"documents": self.link.count(layout.FIRST)}

    def optimize(self, kind: str | None = None, recall: float | None = None, memory: int | None = None) -> dict[str, Any]:
        """Build the approximate index over all rows and measure what it reaches. kind: "hnsw" (default), "ivf", or "exact" for none."""
        with self._lock:
            values = self._load()
            detail = approximate.build(self.link, int(values["dimensions"]), kind or ("hnsw" if values["kind"] == "auto" else values["kind"]), recall)
            self._save({**values, "index": detail})
            return detail or {"kind": "exact"}

    def reindex(self, encoder: EncoderLike, *, document_prompt: str | None = AUTO, query_prompt: str | None = AUTO) -> AddReport:
        raise CollectionError(
            f"{self.path}: Milvus cannot swap a collection's vectors in one step; re-index a local copy "
            "(twinvec index LOCAL --reindex --model MODEL) and copy it up under a new name (twinvec index LOCAL --to URL)"
        )

    def index_field(self, name: str) -> None:
        raise UsageError(f"{name}: Milvus reads the metadata of what it finds; it has no index of single fields here. Leave the option out")

    def drop(self) -> None:
        with self._lock, self.link.errors() as client:
            client.drop_collection(self.link.name, timeout=TIMEOUT)

    def close(self) -> None:
        self.link.close()


def _span(row: dict[str, Any]) -> tuple[int, int] | None:
    return None if row["start"] < 0 else (int(row["start"]), int(row["stop"]))


def _both(expression: str, where: Node | None) -> str:
    more = to_milvus(where) if where is not None else ""
    return f"{expression} and ({more})" if more else expression


def _passes(row: Any, where: Node | None) -> bool:
    return where is None or matches(where, layout.id_of(row["document"]), json.loads(row["metadata"]))


def _whole(parts: list[int]) -> bool:
    return parts == [-1] or sorted(parts) == list(range(len(parts)))
