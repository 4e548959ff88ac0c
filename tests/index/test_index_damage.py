"""Damaged files: a collection gives right results or names the file; never another document's text, never a wrong score."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from index_fakes import FakeEncoder

from twinvec.errors import CollectionError
from twinvec.index.collection import Collection

TEXTS = {"a": "red apple", "b": "green apple", "c": "old house", "d": "红 苹果", "e": ""}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Five documents (one without text), one replaced, one deleted; closed."""
    with Collection.create(tmp_path / "c", FakeEncoder()) as collection:
        collection.add([(name, "before" if name == "b" else text) for name, text in TEXTS.items()] + [("gone", "gone")])
        collection.add([("b", TEXTS["b"])])
        collection.delete("gone")
    return tmp_path / "c"


def state(collection: Collection) -> dict[str, str]:
    return {name: collection.get(name).text for name in collection.ids()}  # type: ignore[union-attr]


def test_no_flipped_byte_is_believed(place: Path) -> None:
    """Any one byte, anywhere: the results are right, or the file is named. Never another document's text, never a wrong score."""
    encoder, chance = FakeEncoder(), random.Random(2)
    query = encoder.encode(["red apple"])
    with Collection.open(place) as collection:
        truth = collection.search(query, 9)
    said: list[str] = []
    names = ["collection.db"] * 90 + ["segments/00000000.npy"] * 15 + ["segments/00000001.npy"] * 8
    for name in names:
        path = place / name
        content = path.read_bytes()
        at = chance.randrange(len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << chance.randrange(8))]) + content[at + 1 :])
        what = f"{name}, byte {at}"
        try:
            with Collection.open(place) as collection:
                for hit in collection.search(query, 9)[0]:
                    assert TEXTS[hit.id] == hit.text, what
                collection.verify()
                assert collection.search(query, 9) == truth, what
                assert state(collection) == TEXTS, what
        except CollectionError as err:
            said.append(str(err))
        for more in place.glob("collection.db-*"):
            more.unlink()
        path.write_bytes(content)
    assert all(str(place) in message for message in said)
    assert len(said) >= 23  # every vector byte, and what of the database is in use
    with Collection.open(place, verify=True) as collection:
        assert collection.search(query, 9) == truth


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"old house", b"old mouse"), ("苹果".encode(), "苹杲".encode()), ("苹果".encode(), b"\xff" * 6), (b'"metric": "cosine"', b'"metric": "cosjne"'),
     (b'"fingerprint": "', b'"fingerprjnt": "'), (b"00000000.npyvectors", b"00000001.npyvectors")],
)  # fmt: skip
def test_changed_words_in_the_database_are_refused(place: Path, old: bytes, new: bytes) -> None:
    path = place / "collection.db"
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))
    with pytest.raises(CollectionError, match=r"collection.db: damaged .*; restore it from a copy"), Collection.open(place) as collection:
        state(collection)


@pytest.mark.parametrize(
    ("sql", "when", "said"),
    [
        ("DELETE FROM passages", "open", "0 passages and 2 tombstones for 6 vectors"),
        ("DELETE FROM segments", "open", "4 passages and 2 tombstones for 0 vectors"),
        ("DELETE FROM tombstones WHERE number = 1", "open", "4 passages and 1 tombstones for 6 vectors"),
        ("UPDATE tombstones SET number = 77 WHERE number = 1", "open", "a tombstone for a vector that is not there"),
        ("DELETE FROM counters", "open", "no counter commit"),
        ("DELETE FROM settings", "open", "its settings are not what was written"),
        ("DROP TABLE documents", "search", "no such table"),
        ("UPDATE passages SET document = (SELECT max(document) FROM passages)", "search", "passage 0 is not what was written"),
        ("UPDATE documents SET id = id || 'x'", "search", "document 'ax' is not what was written"),
        ("DELETE FROM documents WHERE id = 'a'", "search", "no document for passage 0"),
        ("UPDATE tombstones SET number = 0 WHERE number = 1", "search", "no document for passage 1"),
        ("UPDATE tombstones SET number = 0 WHERE number = 1", "verify", "1 both deleted and not"),
        ("UPDATE counters SET value = 1", "verify", "the counter of passages is behind its segments"),
    ],
)
def test_rows_that_do_not_fit_together_are_refused(place: Path, sql: str, when: str, said: str) -> None:
    with sqlite3.connect(place / "collection.db") as db:
        db.execute(sql)
    db.close()
    work = {"open": len, "search": lambda collection: collection.search(np.ones(32), 9), "verify": Collection.verify}[when]
    remedy = "" if when == "verify" else "restore it from a copy"
    with pytest.raises(CollectionError, match=rf"{said}.*{remedy}"), Collection.open(place) as collection:
        work(collection)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.99])
@pytest.mark.parametrize("name", ["collection.db", "segments/00000000.npy"])
def test_truncated_files_are_refused(place: Path, name: str, share: float) -> None:
    path = place / name
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(CollectionError, match=rf"{path.name}: (damaged|not the database).*(restore|index the documents again)"):
        Collection.open(place)


def test_big_collections_are_checked_by_size_and_hashed_on_request(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinvec.index.reading.HASHED", 10)
    path = place / "segments" / "00000000.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with Collection.open(place) as collection:
        with pytest.raises(CollectionError, match=r"1 faults: .*00000000.npy: damaged, its content is not what was written"):
            collection.verify()
    with pytest.raises(CollectionError, match="SHA-256 differs"):
        Collection.open(place, verify=True)
