"""Encoding the columns of an evaluation set: every distinct text once, and one account of it all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from twinvec.records import EncodeReport, Encoding, Vectors


class EncoderLike(Protocol):
    """What evaluation needs of an encoder; `twinvec.Encoder` has it, and so has a small fake in a test."""

    @property
    def prompts(self) -> dict[str, str]: ...

    def encode_with_report(self, texts: Any, *, prompt: str | None = None) -> Encoding: ...


@dataclass(frozen=True)
class EncodedColumns:
    """Vectors (n, D) of each column, the joined report (of the distinct texts), and notes worth showing."""

    vectors: dict[str, Vectors]
    report: dict[str, Any]
    notes: list[str]


def encode_columns(encoder: EncoderLike, columns: Mapping[str, Sequence[str]], prompts: Mapping[str, str | None], **options: Any) -> EncodedColumns:
    """Encode columns of texts; those with the same prompt go in one call.

    prompts: the prompt's name for each column, None for the model's default. options: passed to `encode_with_report` as they are.
    The report's "rows" counts distinct texts encoded, "texts" all of them; its "prompts" says which text was put before which column.
    """
    vectors: dict[str, Vectors] = {}
    reports: list[EncodeReport] = []
    used: dict[str, str] = {}
    for prompt in dict.fromkeys(prompts[name] for name in columns):
        names = [name for name in columns if prompts[name] == prompt]
        place: dict[str, int] = {}
        for name in names:
            for text in columns[name]:
                place.setdefault(text, len(place))
        encoding = encoder.encode_with_report(list(place), prompt=prompt, **options)
        reports.append(encoding.report)
        for name in names:
            vectors[name] = encoding.vectors[np.fromiter((place[text] for text in columns[name]), np.int64, len(columns[name]))]
            used[name] = encoding.report.prompt
    joined = join_reports(reports)
    report = joined.to_dict()
    del report["empty_rows"]  # numbers of distinct texts: of no use to the owner of the file; the notes give its rows
    report.update(texts=sum(map(len, columns.values())), prompts={name: used[name] for name in columns})
    notes = [*replace(joined, empty=[]).warnings(), *_empty(columns), *_no_prompt(encoder, prompts, used)]
    return EncodedColumns({name: vectors[name] for name in columns}, report, notes)


def join_reports(reports: Sequence[EncodeReport]) -> EncodeReport:
    """One report over several calls: counts added up, the unknown rate weighted by tokens, `empty` numbered through."""
    first, *others = reports
    for other in others:
        tokens = first.tokens + other.tokens
        first = replace(
            first,
            rows=first.rows + other.rows,
            tokens=tokens,
            truncated=first.truncated + other.truncated,
            truncated_tokens=first.truncated_tokens + other.truncated_tokens,
            split=first.split + other.split,
            longest=max(first.longest, other.longest),
            empty=[*first.empty, *(first.rows + row for row in other.empty)],
            unknown_rate=(first.unknown_rate * first.tokens + other.unknown_rate * other.tokens) / max(tokens, 1),
            prompt=first.prompt if first.prompt == other.prompt else "",
            seconds=first.seconds + other.seconds,
        )
    return first


def _empty(columns: Mapping[str, Sequence[str]]) -> list[str]:
    notes = []
    for name, texts in columns.items():
        rows = [row for row, text in enumerate(texts, start=1) if not text.strip()]
        if rows:
            shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
            notes.append(f"{name}: {len(rows)} of {len(texts)} texts are empty (rows {shown})")
    return notes


def _no_prompt(encoder: EncoderLike, prompts: Mapping[str, str | None], used: Mapping[str, str]) -> list[str]:
    """A model trained with "query: " and measured without it loses up to half its score, and nothing else shows it."""
    offered = [name for name, text in encoder.prompts.items() if text]
    bare = [name for name in used if not used[name] and prompts[name] is None]
    if not offered or not bare:
        return []
    columns = "" if len(bare) == len(used) else f" for {', '.join(bare)}"
    return [f"this model has prompts ({', '.join(offered)}) and none was used{columns}: its scores may be far too low; see --prompt"]
