"""Text cut into terms for lexical search. The same cut serves documents and queries, so every character of a query is only text.

The text is normalised first: NFKC (full-width letters, ligatures), then case folding. Then
- a word is a run of letters, digits and marks (near to Unicode's UAX #29); "'s" at its end is left off, other apostrophes divide;
- thousands lose their commas (1,000 is 1000); decimals and versions stay whole (3.14, 2.3.1);
- words joined by . _ @ - + that hold a digit, an underscore, an @ or a dot are codes, names or addresses (ERR-1024, v2.3, a_b,
  me@example.com): they give the whole and its parts. Hyphens between plain words divide;
- scripts without spaces between words (Han, kana, Thai, ...) and Hangul give every character and every pair of neighbours
  (cut "bigrams"), or the words of rjieba (cut "words", for Chinese);
- an emoji is a term of its own, without skin tone and joiners.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

from twinvec.errors import UsageError, choose
from twinvec.index.lexical_stem import stem_word
from twinvec.text import without_surrogates

CUTS = ("bigrams", "words")
STEMS = ("none", "english")
CUT, STEM = "bigrams", "english"  # the defaults: measured, see docs/search.md
VERSION = 1  # of the rules below; an index made by other rules is built anew
LONGEST = 64  # characters of one term; what is longer (base64, DNA) is cut there, on both sides alike

_UNSPACED = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Myanmar, Khmer
    "\u1100-\u11ff\ua960-\ua97f\uac00-\ud7ff"  # Hangul
    "\u3005-\u3007\u3021-\u3029\u3031-\u3035\u303b\u3041-\u3096\u309d-\u309f\u30a1-\u30ff\u3100-\u312f\u31a0-\u31bf\u31f0-\u31ff"  # kana, bopomofo
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
_EMOJI = "\u203c\u2049\u231a-\u23ff\u2600-\u27bf\u2b05-\u2b55\u3030\U0001f000-\U0001f1e5\U0001f200-\U0001f3fa\U0001f400-\U0001faff"
_FLAGS = "\U0001f1e6-\U0001f1ff"  # two of these letters make a flag
_JOINERS = r"[._@+\-]"
_ASCII = re.compile(rf"[a-z0-9]+(?:(?:{_JOINERS}|_+)[a-z0-9]+)*(?:\+\+|\#(?!\w))?")  # the words of _scanner, where nothing else can stand
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_POSSESSIVE = re.compile(r"(?<=\w)['\u2019]s\b")


@lru_cache(maxsize=1)
def _scanner() -> re.Pattern[str]:
    """One pattern for all kinds of terms, told apart by the group that matched: 1 a run without spaces, 2 an emoji, 3 words."""
    # `re` has no class for marks, and \w leaves them out: vowel signs of Hindi or Arabic would break its words.
    marks = "".join(f"{a}-{b}" if a != b else a for a, b in _ranges("M"))
    word = rf"[^\W_{_UNSPACED}](?:[^\W_{_UNSPACED}]|[{marks}])*"
    return re.compile(rf"([{_UNSPACED}][{_UNSPACED}{marks}]*)|([{_FLAGS}]{{2}}|[{_EMOJI}])|({word}(?:(?:{_JOINERS}|_+){word})*(?:\+\+|\#(?!\w))?)")


def _ranges(category: str) -> list[tuple[str, str]]:
    """Ranges of the code points whose category begins so, outside the scripts of _UNSPACED and the variation selectors."""
    apart = re.compile(f"[{_UNSPACED}\ufe00-\ufe0f\u20d0-\u20f0\U000e0100-\U000e01ef]")
    found: list[tuple[str, str]] = []
    for point in range(0x300, min(0x1F000, sys.maxunicode)):
        char = chr(point)
        if unicodedata.category(char).startswith(category) and not apart.match(char):
            if found and ord(found[-1][1]) == point - 1:
                found[-1] = found[-1][0], char
            else:
                found.append((char, char))
    return found


def terms(text: str, *, cut: str = CUT, stem: str = STEM) -> list[str]:
    """The terms of `text`, in its order, repeated as often as they stand there. Empty when nothing but punctuation and spaces is there.

    cut: how scripts without spaces are cut, "bigrams" (characters and pairs) or "words" (rjieba). stem: "none", or "english" (Porter 1980).
    """
    return cutter(cut, stem)(text)


@lru_cache(maxsize=8)
def cutter(cut: str = CUT, stem: str = STEM) -> Callable[[str], list[str]]:
    """`terms` with its options settled. UsageError: an unknown option, or "words" without rjieba."""
    choose("cut", cut, CUTS)
    choose("stem", stem, STEMS)
    unspaced = _pairs if cut == "bigrams" else _chinese_words()
    stemmed = stem == "english"

    def cut_text(text: str) -> list[str]:
        ascii_only = text.isascii()
        if ascii_only:
            text = text.lower()
        else:
            text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", without_surrogates(text)).casefold())
            text = text.replace("\u2019", "'")
        if "'" in text:
            text = _POSSESSIVE.sub("", text)
        if "," in text:
            text = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
        found: list[str] = []
        if ascii_only:
            for word in _ASCII.findall(text):
                _word(word, found, stemmed)
            return found
        for run, emoji, word in _scanner().findall(text):
            if word:
                _word(word, found, stemmed)
            elif run:
                unspaced(run, found)
            else:
                found.append(emoji)
        return found

    return cut_text


_PARTS = re.compile(rf"{_JOINERS}|_+")
_NUMBER = re.compile(r"\d+(?:\.\d+)*\Z")


def _word(word: str, found: list[str], stemmed: bool) -> None:
    """A word, a number, or words joined by punctuation."""
    if word.isalpha():
        word = word[:LONGEST]
        found.append(stem_word(word) if stemmed else word)
        return
    bare = word.rstrip("+#")
    if bare != word:  # c++ is also found by c
        _word(bare, found, stemmed)
        found.append(word[:LONGEST])
        return
    parts = [part for part in _PARTS.split(word) if part]
    if len(parts) == 1 or _NUMBER.match(word):
        found.append(word[:LONGEST])
        return
    if any(mark in word for mark in "_@.") or any(char.isdigit() for char in word):
        found.append(word[:LONGEST])
    for part in parts:
        part = part[:LONGEST]
        found.append(stem_word(part) if stemmed and part.isalpha() else part)


def _pairs(run: str, found: list[str]) -> None:
    found.extend(run)
    found.extend(map("".join, pairwise(run)))


def _chinese_words() -> Callable[[str, list[str]], None]:
    try:
        import rjieba
    except ImportError:
        raise UsageError("cut = 'words' needs pip install 'twinvec[chinese]'; or use 'bigrams', which needs nothing") from None

    def words(run: str, found: list[str]) -> None:
        found.extend(word for word in rjieba.cut_for_search(run) if not word.isspace())

    return words
