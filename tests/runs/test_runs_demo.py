"""The demo on a tiny model, and the sample data it ships."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import twinvec as tv
from twinvec.data.beir import read_retrieval
from twinvec.data.check import check_data
from twinvec.data.sample import DEMO_QUERIES, LANGUAGES, faq_documents, load_faq, write_sample
from twinvec.errors import UsageError
from twinvec.runs.demo import demo
from twinvec.text import same_text_key


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_sample_is_as_large_as_promised_and_says_nothing_twice(language: str) -> None:
    faq = load_faq(language)
    assert len(faq) >= 60
    train, test = [q for entry in faq for q in entry.train], [q for entry in faq for q in entry.test]
    assert len(train) >= 600
    assert len(test) >= 120
    keys = [same_text_key(text) for text in (*train, *test, *(entry.answer for entry in faq))]
    assert len(set(keys)) == len(keys)
    chinese = sum("\u4e00" <= c <= "\u9fff" for text in train for c in text)
    assert (chinese > len(train)) == (language == "zh")


def test_both_languages_have_the_same_ids() -> None:
    one, two = ([entry.id for entry in load_faq(language)] for language in LANGUAGES)
    assert one == two
    assert len(set(one)) == len(one)
    assert [document.id for document in faq_documents("en")] == one


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_written_sample_reads_back_without_leaks(language: str, tmp_path: Path) -> None:
    files = write_sample(tmp_path, language)
    train, dev, test = (tv.read_data(path) for path in (files.train, files.dev, files.test))
    assert {data.kind for data in (train, dev, test)} == {"pairs"}
    assert len(train) == 4 * sum(len(entry.train) - 1 for entry in load_faq(language))
    for one, two in ((train, dev), (train, test), (dev, test)):
        assert not set(one.columns["sentence1"]) & set(two.columns["sentence1"])
        assert check_data(one, test=two)["shared_pairs"] == 0
    folder = read_retrieval(files.questions)
    assert len(folder.queries) == sum(len(entry.test) for entry in load_faq(language))
    assert all(sum(gains.values()) == 1 for gains in folder.qrels.values())
    again = write_sample(tmp_path / "again", language)
    assert again.train.read_bytes() == files.train.read_bytes()


@pytest.mark.filterwarnings("ignore:the best step:twinvec.errors.TwinvecWarning")
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_demo_goes_the_whole_way(language: str, bare_model: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tv.Encoder.load(bare_model("bert"), pooling="mean").save(tmp_path / "model")
    out = demo(tmp_path / "demo", model=str(tmp_path / "model"), language=language, epochs=0.1)
    said = capsys.readouterr().err
    assert [answer["query"] for answer in out["answers"]] == DEMO_QUERIES[language]
    assert all(len(answer["hits"]) == 3 for answer in out["answers"])
    assert 0 <= out["before"]["accuracy@1"] <= 1
    assert {"accuracy@1", "mrr@10"} <= out["after"].keys()
    assert Path(out["report"]).is_file()
    assert out["report"] in said
    assert "accuracy@1" in said
    assert json.loads((tmp_path / "demo" / "demo.json").read_text())["language"] == language
    assert len(tv.Collection.open(tmp_path / "demo" / "faq")) == len(load_faq(language))
    demo(tmp_path / "demo", model=str(tmp_path / "model"), language=language, epochs=0.05, progress=False)  # a demo may be run again over itself


def test_the_demo_does_not_replace_what_is_not_a_demo(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds something that is not a demo"):
        demo(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    with pytest.raises(UsageError, match="choose one of en, zh"):
        demo(tmp_path / "x", language="fr")
