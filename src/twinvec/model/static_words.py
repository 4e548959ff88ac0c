"""Texts cut into known words, for models of word vectors."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterable, Sequence

# Scripts that are written without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, kana, Han (with its extensions and compatibility forms).
_UNSPACED = (
    "\u0e00-\u0e7f\u0e80-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3021-\u3029\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_PIECES = re.compile(
    rf"(?P<unspaced>[{_UNSPACED}]+)"
    rf"|(?P<word>(?:(?![{_UNSPACED}])[^\W_]|(?<=\w)[\u0300-\u036f])+(?:['’.\-_&/](?:(?![{_UNSPACED}])[^\W_])+)*\.?)"
    r"|(?P<other>\S)"
)
_INNER = re.compile(r"['’.\-_&/]")
_CLITIC = re.compile(r"(?i)(n['’]t|['’](?:s|re|ve|ll|d|m))$")
LONGEST = 16  # characters of a word in an unspaced script; longer entries of a vocabulary are titles and noise


class UnicodeWords:
    """Words by Unicode: runs of letters and digits; where a script has no spaces, the longest known word at each place, else one character.

    A word with an inner apostrophe, hyphen, dot or slash is looked up whole first, then in parts ("don't": do, n't, as GloVe's own splitter has
    it). Each is tried as it stands, then in lower case. Punctuation and white space never count; symbols and emoji do. What is not known gives
    `unknown`.
    """

    kind = "unicode"

    def __init__(self, words: Sequence[str], *, lower_case: bool) -> None:
        self.words, self.lower_case = list(words), lower_case
        self.place = {word: i for i, word in enumerate(self.words)}
        self.unknown = len(self.words)
        unspaced = re.compile(rf"[{_UNSPACED}]+")
        self._lengths = sorted({len(word) for word in self.place if 1 < len(word) <= LONGEST and unspaced.fullmatch(word)}, reverse=True)

    def ids(self, text: str) -> list[int]:
        found: list[int] = []
        for piece in _PIECES.finditer(text.lower() if self.lower_case else text):
            chars = piece.group()
            if piece.lastgroup == "unspaced":
                found += self._unspaced(chars)
            elif piece.lastgroup == "word":
                found += self._word(chars)
            elif (at := self._known(chars)) is not None and _is_symbol(chars):
                found.append(at)
            elif _is_symbol(chars):
                found.append(self.unknown)
        return found

    def _known(self, word: str) -> int | None:
        at = self.place.get(word)
        return at if at is not None else self.place.get(word.lower())

    def _word(self, word: str) -> list[int]:
        at = self._known(word)
        if at is None and word.endswith("."):  # an abbreviation keeps its dot, the last word of a sentence does not
            word = word[:-1]
            at = self._known(word)
        if at is not None:
            return [at]
        if not _INNER.search(word):
            return [self.unknown]
        if clitic := _CLITIC.search(word):
            head, tail = word[: clitic.start()], clitic.group().replace("’", "'")
            return [*self._word(head), *([at] if (at := self._known(tail)) is not None else [])] if head else [self.unknown]
        return [at if (at := self._known(part)) is not None else self.unknown for part in _INNER.split(word) if part]

    def _unspaced(self, run: str) -> list[int]:
        found, at = [], 0
        while at < len(run):
            for length in self._lengths:
                known = self.place.get(run[at : at + length]) if at + length <= len(run) else None
                if known is not None:
                    found.append(known)
                    at += length
                    break
            else:
                found.append(self.place.get(run[at], self.unknown))
                at += 1
        return found

    def settings(self) -> dict[str, object]:
        return {"split": self.kind, "lower_case": self.lower_case}


class SpacedWords:
    """Words as sentence-transformers' WhitespaceTokenizer cuts them: at white space; as it stands, without punctuation, then in lower case.

    Stop words are left out, and so is what is punctuation only. What is not known gives `unknown`, so that it can be counted.
    """

    kind = "spaces"

    def __init__(self, words: Sequence[str], *, lower_case: bool, stop_words: Iterable[str] = ()) -> None:
        self.words, self.lower_case, self.stop_words = list(words), lower_case, frozenset(stop_words)
        self.place = {word: i for i, word in enumerate(self.words)}
        self.unknown = len(self.words)

    def ids(self, text: str) -> list[int]:
        found = []
        for token in (text.lower() if self.lower_case else text).split():
            bare = token.strip(string.punctuation)
            for form in (token, bare, bare.lower()):
                if form in self.stop_words or not form:
                    break
                if form in self.place:
                    found.append(self.place[form])
                    break
            else:
                found.append(self.unknown)
        return found

    def settings(self) -> dict[str, object]:
        return {"split": self.kind, "lower_case": self.lower_case, "stop_words": sorted(self.stop_words)}


def _is_symbol(char: str) -> bool:
    """Emoji and symbols bear meaning; punctuation, ASCII signs, marks and format characters do not."""
    return not char.isascii() and unicodedata.category(char) in ("So", "Sc", "Sm", "No", "Nl", "Lo", "Lm", "Ll", "Lu", "Lt", "Nd")
