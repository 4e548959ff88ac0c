"""Retrieval folders in BEIR layout: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv, each also gzipped."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twinvec.data.labels import as_number
from twinvec.data.tables import place, stream_rows
from twinvec.errors import DataError, nearest
from twinvec.records import Document
from twinvec.text import without_surrogates

QRELS_HEADER = ("query-id", "corpus-id", "score")


@dataclass(frozen=True)
class RetrievalSet:
    """corpus in the file's order; queries with their judgements only: query id -> document id -> grade. `notes` count what was left out."""

    corpus: list[Document]
    queries: dict[str, str]
    qrels: dict[str, dict[str, float]]
    path: Path
    notes: list[str] = field(default_factory=list)
    split: str = "test"

    def describe(self) -> list[str]:
        """Lines for a human: sizes, notes, three queries with their documents."""
        judged = sum(len(grades) for grades in self.qrels.values())
        lines = [f"{self.path}: {len(self.corpus)} documents, {len(self.queries)} queries, {judged} judgements ({self.split})"]
        lines += [f"  note: {note}" for note in self.notes]
        texts = {document.id: document.text for document in self.corpus}
        for query, text in list(self.queries.items())[:3]:
            first = next(iter(self.qrels[query]))
            lines.append(f"  {query}: {text[:60]} -> {first} ({self.qrels[query][first]:g}): {texts.get(first, '(not in the corpus)')[:60]}")
        return lines


def read_retrieval(folder: str | Path, split: str = "test") -> RetrievalSet:
    """Read a folder. A document's text is "title text", as BEIR joins them. queries.SPLIT.jsonl is taken before queries.jsonl where it is there.

    Judged documents that the corpus lacks stay in the qrels (they count as not found, as in trec_eval) and are counted in the notes;
    so are queries without a judgement and judgements of unknown queries, which are left out.
    DataError: no such folder, file or split; a line that is no object; an id twice; a grade that is no number; ids that do not fit at all.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(
            f"{folder} is {'a file' if folder.exists() else 'not there'}; wanted a folder in BEIR layout (corpus.jsonl, queries.jsonl, qrels/)"
        )
    corpus_file = _find(folder, "corpus.jsonl")
    queries_file = _find(folder, f"queries.{split}.jsonl", "queries.jsonl")
    qrels_file = _qrels_file(folder, split)
    corpus = [document for document, _ in _documents(corpus_file)]
    texts = {document.id: document.text for document, _ in _documents(queries_file)}
    notes: list[str] = []
    grades = _read_qrels(qrels_file, notes)
    known = dict.fromkeys(document.id for document in corpus)  # in their order, so that the first of them is the first
    qrels = {query: found for query, found in grades.items() if query in texts}
    if not qrels:
        raise DataError(f"{qrels_file}: none of its query ids is in {queries_file.name}; the first here {_first(grades)}, there {_first(texts)}")
    if not any(document in known for found in qrels.values() for document in found):
        judged = next(iter(qrels.values()))
        raise DataError(f"{qrels_file}: none of its document ids is in {corpus_file.name}; the first here {_first(judged)}, there {_first(known)}")
    _count_unknown(notes, grades, texts, qrels, known)
    queries = {query: text for query, text in texts.items() if query in qrels}
    return RetrievalSet(corpus, queries, {query: qrels[query] for query in queries}, folder, notes, split)


def read_qrels(path: str | Path) -> tuple[dict[str, dict[str, float]], list[str]]:
    """A file of judgements (query id, document id, grade, separated by tabs): query id -> document id -> grade, and what is worth telling."""
    notes: list[str] = []
    return _read_qrels(Path(path), notes), notes


def is_retrieval_folder(path: str | Path) -> bool:
    path = Path(path)
    return any((path / name).is_file() for name in ("corpus.jsonl", "corpus.jsonl.gz"))


def corpus_documents(folder: Path) -> Iterator[tuple[Document, int]]:
    """The documents of a folder, each with its line."""
    return _documents(_find(folder, "corpus.jsonl"))


def _first(ids: Any) -> str:
    return repr(next(iter(ids)))


def _find(folder: Path, *names: str) -> Path:
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    there = ", ".join(sorted(path.name for path in folder.iterdir())[:10]) or "nothing"
    raise DataError(f"{folder}: no {' or '.join(names)} (nor .gz) there, only {there}; wanted the BEIR layout")


def _qrels_file(folder: Path, split: str) -> Path:
    for path in (folder / "qrels" / f"{split}.tsv", folder / "qrels" / f"{split}.tsv.gz"):
        if path.is_file():
            return path
    place = folder / "qrels"
    splits = sorted(path.name.split(".tsv")[0] for path in place.glob("*.tsv*")) if place.is_dir() else []
    if not splits:
        raise DataError(f"{folder}: no judgements, wanted qrels/{split}.tsv with the columns {', '.join(QRELS_HEADER)}")
    raise DataError(f"{folder}: no qrels/{split}.tsv; choose --split {'|'.join(splits)}{nearest(split, splits)}")


def _documents(path: Path) -> Iterator[tuple[Document, int]]:
    """The objects of corpus.jsonl or queries.jsonl, ids checked; title and other keys as metadata."""
    seen: dict[str, int] = {}
    for number, (line, row) in enumerate(stream_rows(path, format="jsonl"), start=1):
        at = line or number
        identity = document_id(row.get("_id", row.get("id")), f"{path}, line {at}", "_id")
        if identity in seen:
            raise DataError(f"{path}, line {at}: the id {identity!r} was on line {seen[identity]} already; ids must differ")
        seen[identity] = at
        text, title = row.get("text"), row.get("title") or ""
        if not isinstance(text, str) or not isinstance(title, str):
            wrong = "text" if not isinstance(text, str) else "title"
            raise DataError(f"{path}, line {at} (id {identity!r}): {wrong} is {row.get(wrong)!r:.60}; wanted a string")
        extra = row.get("metadata")
        metadata = dict(extra) if isinstance(extra, dict) else {}
        metadata |= {key: value for key, value in row.items() if key not in ("_id", "id", "text", "metadata") and value not in ("", None)}
        yield Document(identity, without_surrogates(f"{title} {text}".strip() if title else text), metadata), at


def document_id(value: Any, where: str, name: str) -> str:
    """An id as a string; whole numbers are taken, anything else is an error."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise DataError(f"{where}: its id ({name}) is {'missing' if value is None else repr(value)[:60]}; wanted a string or a whole number")
    if not value.strip():
        raise DataError(f"{where}: its id ({name}) is empty; every text needs an id of its own")
    return without_surrogates(value)


def _read_qrels(path: Path, notes: list[str]) -> dict[str, dict[str, float]]:
    grades: dict[str, dict[str, float]] = {}
    repeated = number = 0
    for line, cells in stream_rows(path, format="tsv", header=False):
        fields = [cell.strip() for cell in cells.values()]
        if line == 1 and (tuple(fields) == QRELS_HEADER or as_number(fields[-1]) is None):
            if len(fields) != 3:
                raise DataError(f"{path}, line 1: {len(fields)} columns ({', '.join(fields)[:60]}); wanted {', '.join(QRELS_HEADER)}, tab-separated")
            continue
        number += 1
        if len(fields) != 3:
            advice = "; a TREC file has an idle second column: take it out" if len(fields) == 4 else ""
            raise DataError(f"{path}, {place(number, line)}: {len(fields)} fields; wanted query id, document id and grade, separated by tabs{advice}")
        query, document, grade = fields
        value = as_number(grade)
        if value is None:
            raise DataError(f"{path}, {place(number, line)}: grade {grade!r} is no number; 0 is irrelevant, 1 and more relevant")
        found = grades.setdefault(query, {})
        if document in found and found[document] != value:
            raise DataError(
                f"{path}, {place(number, line)}: document {document!r} has two grades for query {query!r}, {found[document]:g} and {value:g}"
            )
        repeated += document in found
        found[document] = value
    if not grades:
        raise DataError(f"{path}: no judgements in it; wanted lines of query id, document id and grade, separated by tabs")
    if repeated:
        notes.append(f"{repeated} judgements stand there twice with the same grade and count once")
    return grades


def _count_unknown(
    notes: list[str], grades: dict[str, dict[str, float]], texts: dict[str, str], qrels: dict[str, dict[str, float]], known: Container[str]
) -> None:
    lost = [query for query in grades if query not in texts]
    if lost:
        count = sum(len(grades[query]) for query in lost)
        notes.append(f"{count} judgements belong to {len(lost)} queries that are not there and are left out (first: {lost[0]!r})")
    missing = [document for found in qrels.values() for document in found if document not in known]
    if missing:
        notes.append(f"{len(missing)} judgements name documents that the corpus lacks; they count as not found (first: {missing[0]!r})")
    idle = len(texts) - len(qrels)
    if idle:
        notes.append(f"{idle} of {len(texts)} queries have no judgement and are left out")
