"""Everything in a collection's database that is not as it was written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from twinvec.errors import CollectionError
from twinvec.index import lexical
from twinvec.index.segments import Segment
from twinvec.index.store import Store, passage_seal, seal


def faults(store: Store) -> list[str]:
    """Sentences that begin with the file; empty when all is well. Reads the whole database, inside a snapshot."""
    db, path = store.db, store.path
    found = [f"{path}: {row[0]}" for row in db.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
    if found:
        return found
    documents = db.execute("SELECT number, id, text, metadata, seal FROM documents")
    found += [f"{path}: document {row[1]!r} is not what was written" for row in documents if seal(*row[:4]) != row[4]]
    span = "start, stop" if store.version > 1 else "NULL, NULL"
    passages = db.execute(f"SELECT number, document, part, {span}, seal FROM passages")
    found += [f"{path}: passage {row[0]} is not what was written" for row in passages if passage_seal(*row[:5]) != row[5]]
    lost = db.execute("SELECT count(*) FROM passages WHERE document NOT IN (SELECT number FROM documents)").fetchone()[0]
    both = db.execute("SELECT count(*) FROM passages WHERE number IN (SELECT number FROM tombstones)").fetchone()[0]
    if lost or both:
        found.append(f"{path}: {lost} passages without a document, {both} both deleted and not")
    return found + words(store) + miscounts(store, store.segments())


def words(store: Store) -> list[str]:
    """The lexical index is as it was written, and of just the living passages."""
    try:
        if not lexical.exists(store.db):
            return []  # of an older format: the next writer makes it
        found = lexical.faults(store.db)
        if not found and not np.array_equal(
            lexical.numbers(store.db),
            np.asarray([number for (number,) in store.db.execute("SELECT number FROM passages ORDER BY number")], dtype=np.int64),
        ):
            found = [f"{store.path}: the lexical index is not of the passages that are there"]
    except CollectionError as err:
        found = [str(err)]
    return [fault if fault.startswith(str(store.path)) else f"{store.path}: {fault}" for fault in found]


def miscounts(store: Store, segments: Sequence[Segment]) -> list[str]:
    """Each vector belongs to a living passage or to a tombstone; segments do not overlap."""
    vectors = sum(segment.rows for segment in segments)
    living, dead = store.count("passages"), store.count("tombstones")
    found = []
    if living + dead != vectors:
        found.append(f"{store.path}: {living} passages and {dead} tombstones for {vectors} vectors")
    end = 0
    for segment in segments:
        if segment.first < end:
            found.append(f"{store.path}: segment {segment.file} overlaps the one before it")
        end = segment.last + 1
    if end > store.counter("next_passage"):
        found.append(f"{store.path}: the counter of passages is behind its segments")
    return found
