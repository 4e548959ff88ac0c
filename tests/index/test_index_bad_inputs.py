"""What a collection refuses, and what it says. CASES is the table: name, how it is made, the error, a pattern of its message."""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from index_fakes import FakeEncoder

from twinvec.errors import CollectionError, TwinvecError, UsageError
from twinvec.index.checks import SearchError, VectorError
from twinvec.index.collection import Collection
from twinvec.index.documents import DocumentError


class Place:
    """What the cases work on: `path` a closed collection of three documents made with `encoder`, `root` the folder it lies in."""

    def __init__(self, root: Path) -> None:
        self.root, self.path, self.encoder = root, root / "faq", FakeEncoder()
        with Collection.create(self.path, self.encoder) as collection:
            collection.add([("a", "red apple"), ("b", "green apple"), ("c", "old house")])

    def open(self, encoder: Any = None, **options: Any) -> Collection:
        return Collection.open(self.path, encoder or self.encoder, **options)

    def add(self, documents: Any, vectors: Any = None, **options: Any) -> None:
        with self.open() as collection:
            try:
                collection.add(documents, vectors, **options)
            finally:
                assert collection.ids() == ["a", "b", "c"]  # nothing of it was stored

    def search(self, vectors: Any, k: Any = 3, **options: Any) -> None:
        with self.open() as collection:
            collection.search(vectors, k, **options)

    def sql(self, statement: str) -> None:
        with sqlite3.connect(self.path / "collection.db") as db:
            db.execute(statement)
        db.close()

    def damage(self, name: str, change: Callable[[bytes], bytes]) -> None:
        file = self.path / name
        file.write_bytes(change(file.read_bytes()))
        self.open()

    def remove(self, name: str) -> None:
        (self.path / name).unlink()
        self.open()


def flipped(content: bytes) -> bytes:
    return content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]


def rows(*change: tuple[int, int, float]) -> np.ndarray:
    vectors = np.ones((3, 32))
    for row, column, value in change:
        vectors[row, column] = value
    return vectors


def nan_encoder() -> Any:
    encoder = FakeEncoder()
    encoder.encode = lambda texts, prompt=None: np.full((len(texts), 32), np.nan, dtype=np.float32)  # type: ignore[method-assign]
    return encoder


def short_encoder() -> Any:
    encoder = FakeEncoder()
    encoder.encode = lambda texts, prompt=None: np.ones((1, 32), dtype=np.float32)  # type: ignore[method-assign]
    return encoder


def write_and_open(place: Place, name: str) -> None:
    (place.root / name).write_text("id,text\n")
    Collection.open(place.root / name)


def make_folder(place: Place, name: str) -> None:
    (place.root / name).mkdir()
    (place.root / name / "config.json").write_text("{}")


NEW = [("n1", "one"), ("n2", "two"), ("n3", "three")]
SEGMENT = "segments/00000000.npy"

CASES: list[tuple[str, Callable[[Place], Any], type[TwinvecError], str]] = [
    # opening and creating
    (
        "open a path that is not there",
        lambda p: Collection.open(p.root / "no"),
        CollectionError,
        r"no: not there; make a collection with: twinvec index",
    ),
    ("open a file", lambda p: write_and_open(p, "x.csv"), CollectionError, r"x.csv: a file; make a collection with"),
    ("open another kind of folder", lambda p: Collection.open(p.root), CollectionError, r"a folder, but no collection; make"),
    (
        "create over a collection",
        lambda p: Collection.create(p.path, p.encoder),
        CollectionError,
        r"a collection is there already; .*Collection.open\(",
    ),
    (
        "create over a folder with files",
        lambda p: (make_folder(p, "m"), Collection.create(p.root / "m", p.encoder)),
        CollectionError,
        r"m: the path is taken; .*choose another",
    ),
    ("create below a file", lambda p: Collection.create(p.path / "lock" / "x", p.encoder), CollectionError, r"cannot be made \("),
    (
        "create with an unknown kind",
        lambda p: Collection.create(p.root / "n", p.encoder, kind="flatt"),
        UsageError,
        r"auto, exact, flat, ivf, ivfpq, hnsw; did you mean 'flat'",
    ),
    ("create with an unknown metric", lambda p: Collection.create(p.root / "n", p.encoder, metric="l2"), UsageError, r"choose one of cosine, dot"),
    (
        "create with something that does not encode",
        lambda p: Collection.create(p.root / "n", 3),
        CollectionError,
        r"wanted an Encoder .*got int, which has no fi",
    ),  # type: ignore[arg-type]
    ("create with an empty fingerprint", lambda p: Collection.create(p.root / "n", " "), CollectionError, r"fingerprint is empty; give the encoder"),
    (
        "create with dimensions that differ",
        lambda p: Collection.create(p.root / "n", p.encoder, dimensions=7),
        CollectionError,
        r"dimensions = 7, but .* gives 32",
    ),
    (
        "create with no dimensions",
        lambda p: Collection.create(p.root / "n", "f", dimensions=0),
        CollectionError,
        r"dimensions = 0: wanted a whole number",
    ),
    (
        "create with an unknown prompt",
        lambda p: Collection.create(p.root / "n", FakeEncoder(prompts={"passage": "p: "}), document_prompt="pasage"),
        UsageError,
        r"document_prompt = 'pasage': .*knows these prompts: passage; did you mean",
    ),
    (
        "open with another model",
        lambda p: p.open(FakeEncoder("other")),
        CollectionError,
        r"made with the model fake .*this is other .*use fake, or move .*twinvec index .* --reindex --model other",
    ),
    (
        "open with a model that was trained since",
        lambda p: p.open(FakeEncoder("fake", 16)),
        CollectionError,
        r"made with the model fake .*The model in that folder was changed since",
    ),
    ("open with another fingerprint", lambda p: p.open("0123456789abcdef"), CollectionError, r"this is a model \(0123456789ab\)"),
    ("open with no encoder at all", lambda p: p.open(object()), CollectionError, r"got object, which has no fingerprint"),
    (
        "a newer format",
        lambda p: (p.sql("PRAGMA user_version = 3"), p.open()),
        CollectionError,
        r"newer twinvec \(collection format 3, .* up to 2\): upgrade",
    ),
    (
        "another program's database",
        lambda p: (p.sql("PRAGMA application_id = 9"), p.open()),
        CollectionError,
        r"collection.db: not the database of a coll",
    ),
    (
        "a database that is text",
        lambda p: p.damage("collection.db", lambda b: b"id,text\n" * 99),
        CollectionError,
        r"collection.db: damaged \(file is not a data",
    ),
    (
        "an emptied database",
        lambda p: p.damage("collection.db", lambda b: b""),
        CollectionError,
        r"collection.db: not the database .*was emptied; restore",
    ),
    (
        "a database cut short",
        lambda p: p.damage("collection.db", lambda b: b[: len(b) // 2]),
        CollectionError,
        r"collection.db: damaged .*restore it from a copy",
    ),
    ("no database", lambda p: p.remove("collection.db"), CollectionError, r"collection.db: missing, and with it every text"),
    ("a missing vector file", lambda p: p.remove(SEGMENT), CollectionError, r"00000000.npy: missing \(3 vectors\); restore it from a copy, or index"),
    (
        "a vector file cut short",
        lambda p: p.damage(SEGMENT, lambda b: b[:-1]),
        CollectionError,
        r"00000000.npy: damaged, 511 bytes where 512 were written",
    ),
    (
        "a vector file grown",
        lambda p: p.damage(SEGMENT, lambda b: b + b"x"),
        CollectionError,
        r"00000000.npy: damaged, 513 bytes where 512 were written",
    ),
    (
        "one flipped bit in a vector",
        lambda p: p.damage(SEGMENT, flipped),
        CollectionError,
        r"00000000.npy: damaged, its content is not what .*SHA-256",
    ),
    (
        "another program writes",
        lambda p: p.open(wait=0.01).add(d for d in [("x", "y")] if p.open(wait=0.01).add([d])),
        CollectionError,
        r"another process \(pid \d+\) is writing to it",
    ),
    # documents
    (
        "add without a model",
        lambda p: Collection.open(p.path).add(NEW),
        CollectionError,
        r"opened without a model, .*Collection.open\(path, encoder\)",
    ),
    ("add one text", lambda p: p.add("hello"), DocumentError, r"wanted documents, got one str; give a list"),
    ("add one dict", lambda p: p.add({"id": "x", "text": "y"}), DocumentError, r"wanted documents, got one dict"),
    ("add nothing that is a document", lambda p: p.add(None), DocumentError, r"wanted documents, got one NoneType"),
    ("add bare texts", lambda p: p.add([("n", "fine"), "text"]), DocumentError, r"document 2: wanted a Document, a dict .* got str"),
    ("add a tuple of four", lambda p: p.add([("n", "x", {}, 1)]), DocumentError, r"document 1: .*got tuple of 4 items"),
    (
        "an id that is a number",
        lambda p: p.add([("n", "x"), (7, "y")]),
        DocumentError,
        r"document 2: its id is 7 \(int\); ids are strings, so give str\(id\)",
    ),
    ("an id that is None", lambda p: p.add([{"id": None, "text": "y"}]), DocumentError, r"document 1: its id is None"),
    ("an empty id", lambda p: p.add([("", "y")]), DocumentError, r"document 1: its id is empty"),
    ("an id that is not text", lambda p: p.add([("\ud800", "y")]), DocumentError, r"document 1: its id '\\ud800' holds characters"),
    ("a dict without text", lambda p: p.add([{"id": "x", "txt": "y"}]), DocumentError, r"document 1: no 'text' among its keys 'id', 'txt'"),
    ("a text that is None", lambda p: p.add([("x", None)]), DocumentError, r"document 1 \(id 'x'\): its text is None"),
    ("metadata that is a list", lambda p: p.add([("x", "y", [1])]), DocumentError, r"\(id 'x'\): its metadata is a list; wanted a dict"),
    ("metadata with NaN", lambda p: p.add([{"id": "x", "text": "y", "n": float("nan")}]), DocumentError, r"metadata 'n' = nan is no JSON value"),
    (
        "metadata with a date",
        lambda p: p.add([("x", "y", {"d": datetime.date(2020, 1, 1)})]),
        DocumentError,
        r"metadata 'd' = datetime.date.*no JSON value",
    ),
    ("metadata with a numeric key", lambda p: p.add([("x", "y", {1: 2})]), DocumentError, r"metadata key 1 is no string"),
    (
        "metadata given twice",
        lambda p: p.add([{"id": "x", "text": "y", "n": 1, "metadata": {"n": 2}}]),
        DocumentError,
        r"'n' is both a key of the doc",
    ),
    ("a batch of nothing", lambda p: p.add(NEW, batch=0), UsageError, r"batch = 0: wanted a number of documents"),
    ("update what is not there", lambda p: p.open().update("z", "x"), DocumentError, r"update: no document has the id 'z'; add it with"),
    ("update with a number", lambda p: p.open().update("a", 5), DocumentError, r"\(id 'a'\): its text is 5 \(int\)"),  # type: ignore[arg-type]
    ("update with a list", lambda p: p.open().update("a", metadata=[1]), DocumentError, r"its metadata is a list; wanted a dict"),  # type: ignore[arg-type]
    (
        "update of a text without a model",
        lambda p: Collection.open(p.path).update("a", "new"),
        CollectionError,
        r"opened without a model, so texts cannot be encoded",
    ),
    ("delete nothing in particular", lambda p: p.open().delete(), UsageError, r"delete: give either ids or where=, the filter of what is to go"),
    ("delete by ids and a filter", lambda p: p.open().delete(["a"], where="n = 1"), UsageError, r"delete: give either ids or where="),
    ("delete by half a filter", lambda p: p.open().delete(where="n ="), UsageError, r"where"),
    (
        "an unknown way with long texts",
        lambda p: p.add(NEW, on_long="split up"),
        UsageError,
        r"on_long = 'split up': choose one of truncate, error, split, passages",
    ),
    ("passages of no tokens", lambda p: p.add(NEW, on_long="passages", passage_tokens=0), UsageError, r"passage_tokens = 0: wanted a whole number"),
    (
        "more overlap than passage",
        lambda p: p.add(NEW, on_long="passages", passage_tokens=9, passage_overlap=9),
        UsageError,
        r"passage_overlap = 9: must be smaller than passage_tokens = 9",
    ),
    ("overlap without passages", lambda p: p.add(NEW, passage_overlap=9), UsageError, r"passage_overlap: they need on_long = 'passages'"),
    (
        "passages of given vectors",
        lambda p: p.add(NEW, rows(), on_long="passages"),
        UsageError,
        r"on_long = 'passages': given vectors belong to whole documents",
    ),
    ("an index on no field", lambda p: p.open().index_field(" "), UsageError, r"index_field: wanted the name of a metadata field, got ' '"),
    ("an index on the id", lambda p: p.open().index_field("id"), UsageError, r"index_field: 'id' is no plain metadata field"),
    ("reindex with a fingerprint", lambda p: p.open().reindex("abc"), CollectionError, r"give that model's encoder, got str"),  # type: ignore[arg-type]
    ("an unknown number type", lambda p: Collection.create(p.root / "n", "f", store="int4"), UsageError, r"store = 'int4': choose one of float32"),
    ("an index of an unknown kind", lambda p: p.open().optimize("lsh"), UsageError, r"kind = 'lsh': choose one of auto, exact, flat"),
    ("an index for a recall of 95", lambda p: p.open().optimize("ivf", 95), UsageError, r"recall = 95: wanted a share of the true"),
    ("an index in no memory", lambda p: p.open().optimize("ivf", 0.9, 0), UsageError, r"memory = 0: wanted a number of bytes"),
    ("delete a number", lambda p: p.open().delete([3]), CollectionError, r"delete: id 3 \(int\) is no string"),  # type: ignore[list-item]
    # vectors
    ("fewer vectors than documents", lambda p: p.add(NEW, rows()[:2]), VectorError, r"3 documents need 3 rows, got 2 \(shape \(2, 32\)\)"),
    ("vectors of other dimensions", lambda p: p.add(NEW, np.ones((3, 31))), VectorError, r"wanted 32 dimensions, got 31 .*use the model"),
    ("a NaN in the vectors", lambda p: p.add(NEW, rows((1, 4, np.nan))), VectorError, r"row 1 from 0 \(id 'n2'\) holds NaN or infinity"),
    ("infinity in the vectors", lambda p: p.add(NEW, rows((2, 0, -np.inf), (1, 0, np.inf))), VectorError, r"row 1 .*; 2 such rows"),
    ("vectors too long for float32", lambda p: p.add(NEW, rows((0, 0, 1e30))), VectorError, r"row 0 from 0 \(id 'n1'\) has a norm above 1e\+18"),
    ("vectors that are text", lambda p: p.add(NEW, [["a"] * 32] * 3), VectorError, r"wanted numbers, got an array of type <U1"),
    ("vectors of unequal lengths", lambda p: p.add(NEW, [[1.0], [1.0, 2.0], [1.0]]), VectorError, r"cannot be read as one array"),
    ("vectors with an axis too many", lambda p: p.add(NEW, np.ones((3, 1, 32))), VectorError, r"wanted shape \(n, 32\), got \(3, 1, 32\)"),
    ("an encoder that gives NaN", lambda p: p.open(nan_encoder()).add(NEW), VectorError, r"vectors of fake: row 0 from 0 \(id 'n1'\) holds NaN"),
    ("an encoder that loses rows", lambda p: p.open(short_encoder()).add(NEW), VectorError, r"3 texts gave 1 vectors; this encoder cannot be used"),
    # searching
    ("half a filter", lambda p: p.search(np.ones(32), 3, where="lang = "), UsageError, r"where"),
    ("a filter that is no text", lambda p: p.search(np.ones(32), 3, where=5), UsageError, r"where|filter"),
    (
        "queries of another model",
        lambda p: p.search(np.ones(32), 3, fingerprint="0123456789ab"),
        CollectionError,
        r"made with the model fake .*move the collection to the other model: twinvec index .* --reindex",
    ),
    ("words that are a number", lambda p: p.open().lexical([3], 3), SearchError, r"query 1 is 3 \(int\); wanted a text"),  # type: ignore[list-item]
    ("no hits wanted", lambda p: p.search(np.ones(32), 0), SearchError, r"k = 0: wanted 1 hit or more"),
    ("half a hit wanted", lambda p: p.search(np.ones(32), 1.5), SearchError, r"k = 1.5: wanted a whole number"),
    ("a query of other dimensions", lambda p: p.search(np.ones(8)), VectorError, r"queries: wanted 32 dimensions, got 8"),
    ("a query of zeros", lambda p: p.search(np.zeros(32)), SearchError, r"row 0 from 0 is all zeros, .*was its text empty"),
    ("a query with NaN", lambda p: p.search(rows((2, 1, np.nan))), VectorError, r"queries: row 2 from 0 holds NaN"),
    ("a query that is text", lambda p: p.search("red apple"), VectorError, r"queries: wanted numbers, got an array of type <U9"),
    ("an unknown kind of search", lambda p: p.search(np.ones(32), kind="lsh"), UsageError, r"kind = 'lsh': choose one of auto, exact, flat"),
]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(("name", "make", "error", "pattern"), CASES, ids=[case[0] for case in CASES])
def test_bad_input(
    place: Place, name: str, make: Callable[[Place], Any], error: type[TwinvecError], pattern: str, record_property: Callable[[str, object], None]
) -> None:
    with pytest.raises(error, match=pattern) as caught:
        make(place)
    record_property("message", str(caught.value))
    assert "\n" not in str(caught.value)


def test_the_table_has_no_name_twice() -> None:
    assert len({case[0] for case in CASES}) == len(CASES) >= 15
