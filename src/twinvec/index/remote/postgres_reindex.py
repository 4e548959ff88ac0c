"""New vectors for every passage of a collection in PostgreSQL, in a column beside the old ones."""

from __future__ import annotations

import time
from dataclasses import replace

from twinvec.index.checks import normalised
from twinvec.index.entries import Settings
from twinvec.index.models import EncoderLike, identity, prompt_names
from twinvec.index.remote import postgres_sql as tables
from twinvec.index.remote.planning import ENCODE, encoded
from twinvec.index.remote.postgres_link import Link
from twinvec.index.report import AddReport


def reindex(link: Link, old: Settings, encoder: EncoderLike, document: str | None, query: str | None) -> tuple[AddReport, Settings]:
    """Fill the column `staged` with the vectors of `encoder`, a block a transaction; the settings that then hold. The caller swaps columns."""
    fingerprint, name, place, size = identity(encoder, None, None)
    prompts = prompt_names(encoder, document, query)
    new = replace(old, fingerprint=fingerprint, model=name, model_path=place, dimensions=size, document_prompt=prompts[0], query_prompt=prompts[1])
    s, kind, start = link.schema, tables.vector_type(size, old.store == "float16"), time.perf_counter()
    link.run(f"ALTER TABLE {s}.passages DROP COLUMN IF EXISTS staged")  # of a re-index that was killed
    link.run(f"ALTER TABLE {s}.passages ADD COLUMN staged {kind}")
    last, done, tokens = -1, 0, 0
    while rows := link.rows(
        f"SELECT p.number, d.id, CASE WHEN p.start IS NULL THEN d.text ELSE substr(d.text, p.start + 1, p.stop - p.start) END "
        f"FROM {s}.passages p JOIN {s}.documents d ON d.number = p.document WHERE p.number > %s ORDER BY p.number LIMIT %s",
        [last, ENCODE],
    ):
        matrix, report = encoded(encoder, [row[2] for row in rows], [row[1] for row in rows], new, {})
        vectors, _ = normalised(matrix, old.metric)
        link.run(
            f"UPDATE {s}.passages p SET staged = n.vector::{kind} FROM unnest(%s::bigint[], %s::text[]) n (number, vector) WHERE p.number = n.number",
            [[row[0] for row in rows], [tables.to_text(vector) for vector in vectors]],
        )
        last, done, tokens = rows[-1][0], done + len(rows), tokens + report.tokens
    return AddReport(documents=done, replaced=done, passages=done, encoded=done, tokens=tokens, seconds=time.perf_counter() - start), new
