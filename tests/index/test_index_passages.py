"""Long documents in several passages: where they are cut, and that hits name each document once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_fakes import FakeEncoder

from twinvec.errors import UsageError
from twinvec.index.collection import Collection
from twinvec.index.passages import Cut, Cutter
from twinvec.model.encoder import Encoder

ENGLISH = "One two three four. Five six seven eight! Nine ten eleven? "
CHINESE = "今天天气很好。我们去公园散步，好吗？花儿都开了！"


def cut(text: str, tokens: int, overlap: int = 0, encoder: Any = None) -> list[tuple[int, int] | None]:
    return Cutter(encoder or object(), Cut(tokens, overlap), None).spans([text])[0]


def words(text: str) -> int:
    return Cutter(object(), Cut(5, 0), None).count([text])[0]


def test_a_short_text_is_one_passage() -> None:
    assert cut("short enough", 10) == [None]
    assert cut("", 10) == [None]


def test_passages_end_with_sentences_of_both_languages() -> None:
    text = ENGLISH * 3
    assert [text[span[0] : span[1]] for span in cut(text, 10)][:2] == [
        "One two three four. Five six seven eight!",
        "Nine ten eleven? One two three four.",
    ]  # type: ignore[index]
    text = CHINESE * 3
    for span in cut(text, 20):
        assert span is not None
        assert text[span[1] - 1] in "。？！"
        assert words(text[span[0] : span[1]]) <= 20


def test_overlap_is_whole_sentences_or_else_words() -> None:
    text = "Aa bb. " + "cc dd ee. " * 3 + "ff " * 8 + "end. gg hh ii."
    spans = [text[span[0] : span[1]] for span in cut(text, 12, 4)]  # type: ignore[index]
    assert spans[0].endswith("cc dd ee.")
    assert spans[1].startswith("cc dd ee.")
    assert spans[-1].startswith("ff ff end. gg")  # the sentence before is too long to be repeated; its last words are


def test_a_paragraph_is_kept_together_when_the_passage_stays_half_full() -> None:
    text = "One two three. Four five six.\n\nSeven eight nine. Ten eleven twelve. Thirteen."
    spans = [text[span[0] : span[1]] for span in cut(text, 13)]  # type: ignore[index]
    assert spans[0] == "One two three. Four five six."


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([*"ab. !?\n", "\n\n", "word ", "。", "你好", "！", "longer sentence here. ", "x" * 40, " "]), max_size=60).map("".join),
    st.integers(1, 12), st.integers(0, 11),
)  # fmt: skip
def test_passages_cover_every_character_in_order(text: str, tokens: int, overlap: int) -> None:
    spans = cut(text, tokens, min(overlap, tokens - 1))
    if spans == [None]:
        return
    covered = set()
    before = (-1, -1)
    for span in spans:
        assert span is not None
        assert span[0] < span[1] <= len(text)
        assert span[0] >= before[0]
        assert span[1] > before[1]
        before = span
        covered |= set(range(*span))
    assert all(text[i].isspace() for i in set(range(len(text))) - covered)
    if overlap == 0:
        assert all(words(text[low:high]) <= tokens for low, high in spans)  # type: ignore[misc]


def test_tokens_are_the_models_own(bare_model: Any) -> None:
    encoder = Encoder.load(bare_model("bert"), pooling="mean")
    text = "the cat sat on the mat. the dog looked at the cat. " * 6
    spans = cut(text, 14, 0, encoder)
    assert len(spans) > 3
    special = encoder.count_tokens([""])[0]
    for low, high in spans:  # type: ignore[misc]
        assert encoder.count_tokens([text[low:high]])[0] - special <= 14
    with pytest.raises(UsageError, match=r"passage_tokens = 5000: the window of .* holds \d+ tokens, which leaves \d+ for a passage; give at most"):
        cut(text, 5000, 0, encoder)


# in a collection


@pytest.fixture
def books(tmp_path: Path) -> Any:
    chance = random.Random(1)
    texts = {
        f"b{i}": " ".join(" ".join(chance.choice(["red", "old", "sea", "house", "apple", f"w{i}"]) for _ in range(6)) + "." for _ in range(1 + 3 * i))
        for i in range(8)
    }
    with Collection.create(tmp_path / "c", FakeEncoder()) as collection:
        report = collection.add(list(texts.items()), on_long="passages", passage_tokens=14, passage_overlap=7)
        assert (report.documents, report.added, report.passages > 20) == (8, 8, True)
        yield collection, texts


def test_each_document_is_named_once_by_its_best_passage(books: Any) -> None:
    collection, texts = books
    encoder = FakeEncoder()
    queries = ["red house", "w7 sea", "w0", "apple apple apple"]
    hits = collection.search(encoder.encode(queries), 5)
    for query, row in zip(encoder.encode(queries), hits, strict=True):
        assert len(row) == len({hit.id for hit in row}) == 5  # five documents, though one of them has most of the passages
        best = {}
        for name, text in texts.items():
            spans = Cutter(encoder, Cut(14, 7), None).spans([text])[0]
            parts = [text if span is None else text[span[0] : span[1]] for span in spans]
            best[name] = max(float(query.astype(np.float64) @ vector) for vector in encoder.encode(parts))
        wanted = sorted(best, key=lambda name: (-round(best[name], 6), name))[:5]
        assert [hit.id for hit in row] == wanted
        for hit in row:
            assert hit.score == pytest.approx(best[hit.id], abs=1e-6)
            assert hit.text == texts[hit.id]
            if hit.passage is not None:
                assert hit.passage.text == hit.text[hit.passage.start : hit.passage.stop]
    assert collection.search(encoder.encode(queries), 99) and all(len(row) == 8 for row in collection.search(encoder.encode(queries), 99))  # noqa: PT018
    assert hits == [row[:5] for row in collection.search(encoder.encode(queries), 8)]
    long = next(hit for hit in collection.search(encoder.encode(["w7"]), 8)[0] if hit.id == "b7")
    assert list(long.to_dict()) == ["id", "score", "text", "metadata", "passage"]
    assert {hit.id for hit in collection.lexical("w7", 8)[0]} == {"b7"}


def test_passages_go_with_their_document(books: Any) -> None:
    collection, texts = books
    encoder, info = collection.encoder, collection.info()
    assert info["passages"] > info["searchable"] == 8
    encoder.calls.clear()
    report = collection.add(list(texts.items()))  # the setting is remembered, so nothing changes
    assert (report.unchanged, report.encoded) == (8, 0)
    assert encoder.calls == []
    collection.update("b7", metadata={"k": 1})
    assert encoder.calls == []
    collection.update("b7", text=texts["b7"] + " And one more sentence of words.")
    assert collection.info()["passages"] >= info["passages"]
    report = collection.add([("b6", texts["b6"])], on_long="truncate")  # said otherwise: one vector again
    assert (report.replaced, report.passages) == (1, 1)
    collection.delete(["b7", "b6"])
    assert sorted(hit.id for hit in collection.search(FakeEncoder().encode(["red"]), 99)[0]) == [f"b{i}" for i in range(6)]
    collection.compact()
    assert collection.verify()["documents"] == 6
    assert collection.verify()["vectors"] == collection.info()["passages"]
    moved = collection.reindex(FakeEncoder("other", 8))
    assert moved["passages"] == collection.info()["passages"]
    hit = collection.search(FakeEncoder("other", 8).encode(["w5"]), 1)[0][0]
    assert hit.passage.text == hit.text[hit.passage.start : hit.passage.stop]
