"""What became of the documents that were given to a collection."""

from __future__ import annotations

from collections.abc import Collection as Known
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from twinvec.records import Document, EncodeReport, unknown_note


@dataclass(frozen=True, slots=True)
class AddReport:
    """What became of the documents of one `add`: every one is counted in `added`, `replaced` or `unchanged`.

    `unchanged`: id, text and metadata were stored already. `without_vector`: texts without a character to read, or zero vectors: stored,
    reported, never found. `passages`: vectors that were stored. The rest sums the encoder's reports over the texts that were encoded.
    """

    documents: int = 0
    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    without_vector: int = 0
    passages: int = 0
    encoded: int = 0
    tokens: int = 0
    truncated: int = 0
    truncated_tokens: int = 0
    unknown_rate: float = 0.0
    prompt: str = ""
    commits: int = 0
    seconds: float = 0.0
    first_without_vector: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def warnings(self) -> list[str]:
        """Sentences worth showing to a user; empty when nothing was lost."""
        notes = []
        if self.without_vector:
            shown = ", ".join(map(repr, self.first_without_vector))
            notes.append(
                f"{self.without_vector} of {self.documents} documents have no text: they are stored, but no search finds them (ids: {shown})"
            )
        if self.truncated:
            notes.append(
                f"{self.truncated} of {self.encoded} texts were longer than the model's window and lost {self.truncated_tokens} tokens in all"
            )
        return notes + unknown_note(self.unknown_rate)


def summed(
    report: AddReport, documents: Sequence[Document], known: Known[str], unchanged: set[str], vectorless: list[str], reports: list[EncodeReport],
    stored: int,
    committed: bool,
) -> AddReport:  # fmt: skip
    """`report` and what one more batch did; unchanged, vectorless: ids; stored: vectors."""
    names = {document.id for document in documents}
    added = len(names - set(known))
    tokens = report.tokens + sum(part.tokens for part in reports)
    unknown = report.unknown_rate * report.tokens + sum(part.unknown_rate * part.tokens for part in reports)
    return replace(
        report,
        documents=report.documents + len(documents),
        added=report.added + added,
        unchanged=report.unchanged + len(unchanged),
        replaced=report.replaced + len(documents) - added - len(unchanged),
        without_vector=report.without_vector + len(vectorless),
        passages=report.passages + stored,
        encoded=report.encoded + sum(part.rows for part in reports),
        tokens=tokens,
        truncated=report.truncated + sum(part.truncated for part in reports),
        truncated_tokens=report.truncated_tokens + sum(part.truncated_tokens for part in reports),
        unknown_rate=unknown / tokens if tokens else 0.0,
        prompt=reports[0].prompt if reports else report.prompt,
        commits=report.commits + committed,
        first_without_vector=(report.first_without_vector + vectorless)[:5],
    )
