"""The sample data: a customer-service FAQ of an invented shop, written for twinvec, in English and Chinese with the same ids."""

from __future__ import annotations

import csv
import io
import json
import random
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from twinvec.errors import choose
from twinvec.files import write_text
from twinvec.records import Document

LANGUAGES = ("en", "zh")
DEMO_QUERIES = {
    "en": ["I typed the wrong street on my parcel", "how long until I get my money back?", "can I pay when there is no signal in the shop"],
    "zh": ["收货地址写错了怎么办", "退的钱什么时候能到", "没信号的时候能付款吗"],
}


@dataclass(frozen=True)
class FaqEntry:
    """One answer with ten questions to learn from and two held out."""

    id: str
    answer: str
    train: list[str]
    test: list[str]


@dataclass(frozen=True)
class SampleFiles:
    """The files that `write_sample` made."""

    documents: Path
    train: Path
    dev: Path
    test: Path
    questions: Path


def load_faq(language: str = "en") -> list[FaqEntry]:
    """All entries of the packaged FAQ, in a fixed order."""
    choose("language", language, LANGUAGES)
    text = resources.files("twinvec.data").joinpath("faq", f"faq.{language}.jsonl").read_text(encoding="utf-8")
    return [FaqEntry(**json.loads(line)) for line in text.splitlines()]


def faq_documents(language: str = "en") -> list[Document]:
    """The answers as documents; the topic (the first word of the id) as metadata."""
    return [Document(entry.id, entry.answer, {"topic": entry.id.split("-")[0], "language": language}) for entry in load_faq(language)]


def write_sample(folder: str | Path, language: str = "en", *, seed: int = 42) -> SampleFiles:
    """Write the sample as a user would have it: documents.csv, pairs in train.csv, dev.csv and test.csv, and the held-out questions in BEIR layout.

    Each pair is a question and an answer with label 1 (they belong together) or 0. A question comes with its own answer and with
    three others, two of them of a neighbouring topic where there are such. Nine questions an answer train, the tenth is dev, two are test;
    no question is in two files.
    """
    folder = Path(folder)
    faq = load_faq(language)
    write_text(folder / "documents.csv", _csv(["id", "text", "topic"], [[d.id, d.text, d.metadata["topic"]] for d in faq_documents(language)]))
    parts = {"train": [entry.train[:-1] for entry in faq], "dev": [entry.train[-1:] for entry in faq], "test": [entry.test for entry in faq]}
    for name, questions in parts.items():
        rows = _pairs(faq, questions, random.Random(f"{seed} {name}"))
        write_text(folder / f"{name}.csv", _csv(["sentence1", "sentence2", "label"], rows))
    place = folder / "questions"
    write_text(place / "corpus.jsonl", _jsonl([{"_id": entry.id, "title": "", "text": entry.answer} for entry in faq]))
    held_out = [(f"{entry.id}-{i + 1}", question, entry.id) for entry in faq for i, question in enumerate(entry.test)]
    write_text(place / "queries.jsonl", _jsonl([{"_id": number, "text": question} for number, question, _ in held_out]))
    write_text(place / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore\n" + "".join(f"{number}\t{answer}\t1\n" for number, _, answer in held_out))
    return SampleFiles(folder / "documents.csv", folder / "train.csv", folder / "dev.csv", folder / "test.csv", place)


def _pairs(faq: list[FaqEntry], questions: list[list[str]], chance: random.Random) -> list[list[str | int]]:
    rows: list[list[str | int]] = []
    for entry, asked in zip(faq, questions, strict=True):
        near = [other for other in faq if other.id != entry.id and other.id.split("-")[0] == entry.id.split("-")[0]]
        far = [other for other in faq if other.id.split("-")[0] != entry.id.split("-")[0]]
        for question in asked:
            neighbours = chance.sample(near, min(2, len(near)))
            strangers = chance.sample(far, 3 - len(neighbours))
            rows.append([question, entry.answer, 1])
            rows += [[question, other.answer, 0] for other in (*neighbours, *strangers)]
    return rows


def _csv(header: list[str], rows: list[list[str | int]] | list[list[str]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def _jsonl(rows: list[dict[str, str]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
