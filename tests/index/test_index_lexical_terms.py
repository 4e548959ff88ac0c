"""How text is cut into terms: the same for documents and queries, in every script."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinvec.errors import UsageError
from twinvec.index.lexical_stem import stem_word
from twinvec.index.lexical_terms import LONGEST, cutter, terms

CASES = {
    "words": ("The cat, the CAT!", ["the", "cat", "the", "cat"]),
    "apostrophes": ("Patient's don't l'eau", ["patient", "don", "t", "l", "eau"]),
    "curly apostrophes": ("patient\u2019s don\u2019t", ["patient", "don", "t"]),
    "numbers": ("1,000 genomes, 3.14 and 2.3.1; 1,23", ["1000", "genomes", "3.14", "and", "2.3.1", "1", "23"]),
    "codes": ("ERR-1024 v2.3 B_12", ["err-1024", "err", "1024", "v2.3", "v2", "3", "b_12", "b", "12"]),
    "hyphens between words": ("state-of-the-art", ["state", "of", "the", "art"]),
    "addresses": ("me@example.com", ["me@example.com", "me", "example", "com"]),
    "urls": ("https://example.com/a?b=1", ["https", "example.com", "example", "com", "a", "b", "1"]),
    "programming languages": ("C++ and C#.", ["c", "c++", "and", "c", "c#"]),
    "full width": ("ＡＢＣ　１２３", ["abc", "123"]),
    "ligatures and sharp s": ("ﬁne Straße", ["fine", "strasse"]),
    "composed and decomposed": ("cafe\u0301", ["caf\u00e9"]),
    "Greek sigma": ("ΣΊΣΥΦΟΣ", ["σίσυφοσ"]),
    "Hindi keeps its vowel signs": ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
    "Arabic keeps its marks": ("كِتاب جديد", ["كِتاب", "جديد"]),
    "Chinese": ("打开花呗", ["打", "开", "花", "呗", "打开", "开花", "花呗"]),
    "Chinese with numbers": ("第5章Python", ["第", "5", "章", "python"]),
    "Japanese": ("食べる", ["食", "べ", "る", "食べ", "べる"]),
    "Korean": ("서울에", ["서", "울", "에", "서울", "울에"]),
    "one character": ("猫", ["猫"]),
    "emoji": ("👍🏽 ok ❤️", ["👍", "ok", "❤"]),
    "joined emoji": ("👨\u200d👩", ["👨", "👩"]),
    "flags": ("🇨🇳🇫🇷", ["🇨🇳", "🇫🇷"]),
    "operators of other query languages": ("\"quoted\" NEAR(a b) x* -y ^z (AND OR)", ["quoted", "near", "a", "b", "x", "y", "z", "and", "or"]),
    "nothing": ("?!... \u200b\n\t", []),
    "lone surrogates": ("a \ud800 b", ["a", "b"]),
    "a null character": ("a\x00b", ["a", "b"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_cut(name: str) -> None:
    text, wanted = CASES[name]
    assert terms(text, stem="none") == wanted


def test_long_runs_are_cut_on_both_sides_alike() -> None:
    assert terms("x" * 12_345) == ["x" * LONGEST]
    assert terms("ab12" * 5_000, stem="english") == [("ab12" * 16)[:LONGEST]]
    assert len(terms("中" * 10_000)) == 19_999


@given(st.text(alphabet="abzAZ09 ._@+-#',_%", max_size=40))
def test_ascii_is_cut_the_same_beside_other_scripts(text: str) -> None:
    # Plain ASCII has a way of its own, for speed.
    assert terms(f"é {text}") == ["é", *terms(text)]


@given(st.text(max_size=60))
def test_any_text_has_clean_terms_and_none_is_cut_further(text: str) -> None:
    for term in terms(text, stem="none"):
        assert term
        assert not any(char.isspace() for char in term)
        assert term in terms(term, stem="none") or len(term) == LONGEST


def test_case_and_width_do_not_matter() -> None:
    assert terms("Ｅrr-１０２４ 故乡") == terms("ERR-1024 故乡")


def test_chinese_words_of_rjieba() -> None:
    pytest.importorskip("rjieba")
    found = terms("我来到北京清华大学 in 2023", cut="words")
    assert {"北京", "清华大学", "in", "2023"} <= set(found)


def test_words_without_rjieba_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    cutter.cache_clear()
    monkeypatch.setitem(sys.modules, "rjieba", None)
    with pytest.raises(UsageError, match=r"cut = 'words' needs pip install 'twinvec\[chinese\]'"):
        terms("北京", cut="words")


@pytest.mark.parametrize("options", [{"cut": "bigram"}, {"stem": "porter"}])
def test_unknown_options(options: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="choose one of"):
        terms("x", **options)


# From the examples of Porter's paper, rule by rule.
PORTER = """
caresses caress ponies poni ties ti caress caress cats cat feed feed agreed agre plastered plaster bled bled motoring motor sing sing conflated
conflat troubled troubl sized size hopping hop tanned tan falling fall hissing hiss fizzed fizz failing fail filing file happy happi sky sky
relational relat conditional condit rational ration valenci valenc hesitanci hesit digitizer digit radicalli radic differentli differ vileli vile
analogousli analog vietnamization vietnam predication predic operator oper feudalism feudal decisiveness decis hopefulness hope callousness
callous formaliti formal sensitiviti sensit sensibiliti sensibl triplicate triplic formative form formalize formal electriciti electr electrical
electr hopeful hope goodness good revival reviv allowance allow inference infer airliner airlin gyroscopic gyroscop adjustable adjust defensible
defens irritant irrit replacement replac adjustment adjust dependent depend adoption adopt homologou homolog communism commun activate activ
angulariti angular homologous homolog effective effect bowdlerize bowdler probate probat rate rate cease ceas controll control roll roll
""".split()  # noqa: SIM905


@pytest.mark.parametrize(("word", "stem"), list(zip(PORTER[::2], PORTER[1::2], strict=True)))
def test_stems_of_porters_paper(word: str, stem: str) -> None:
    assert stem_word(word) == stem


def test_only_english_letters_are_stemmed() -> None:
    assert [stem_word(word) for word in ("as", "naïves", "日本", "b12s", "yes")] == ["as", "naïves", "日本", "b12s", "ye"]
    assert terms("running runs ERR-1024 sp-runs1", stem="english")[:2] == ["run", "run"]


def test_stems_equal_sqlites_porter() -> None:
    import sqlite3

    from twinvec.data.sample import load_faq

    text = " ".join(text for entry in load_faq("en") for text in (entry.answer, *entry.train))
    words = sorted({word for word in terms(text, stem="none") if word.isascii() and word.isalpha()})
    db = sqlite3.connect(":memory:")
    try:
        db.execute("CREATE VIRTUAL TABLE t USING fts5(word, tokenize = 'porter ascii')")
    except sqlite3.OperationalError:
        pytest.skip("this SQLite has no FTS5")
    db.execute("CREATE VIRTUAL TABLE v USING fts5vocab(t, 'instance')")
    db.executemany("INSERT INTO t (rowid, word) VALUES (?, ?)", enumerate(words))
    assert len(words) > 300
    assert {words[row]: term for row, term in db.execute("SELECT doc, term FROM v")} == {word: stem_word(word) for word in words}
    db.close()
