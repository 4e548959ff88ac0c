"""English words to their stems, by Porter's rules (M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980).

Two departures, which Porter's own later program makes too: words of one or two letters stay, and -logi becomes -log (step 2), -bli becomes -ble.
"""

from __future__ import annotations

import re
from functools import lru_cache

_CONSONANT, _VOWEL = "[^aeiou]", "[aeiouy]"
_C, _V = f"{_CONSONANT}[^aeiouy]*", f"{_VOWEL}[aeiou]*"  # runs of consonants and of vowels; y after a consonant is a vowel
_M0 = re.compile(f"^(?:{_C})?{_V}{_C}")  # measure m > 0
_M1 = re.compile(f"^(?:{_C})?{_V}{_C}(?:{_V})?$")  # m = 1
_M2 = re.compile(f"^(?:{_C})?{_V}{_C}{_V}{_C}")  # m > 1
_HAS_VOWEL = re.compile(f"^(?:{_C})?{_VOWEL}")
_CVC = re.compile(f"^{_C}{_VOWEL}[^aeiouwxy]$")  # *o of the paper, for a whole short stem

_STEP2 = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble", "alli": "al", "entli": "ent", "eli": "e",
    "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al", "iveness": "ive", "fulness": "ful", "ousness": "ous",
    "aliti": "al", "iviti": "ive", "biliti": "ble", "logi": "log",
}  # fmt: skip
_STEP3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_STEP4 = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ou", "ism", "ate", "iti", "ous", "ive", "ize",
)  # fmt: skip


def _longest(endings: object) -> re.Pattern[str]:
    listed = sorted(endings, key=len, reverse=True)  # type: ignore[call-overload]
    return re.compile(f"^(.+?)({'|'.join(listed)})$")


_ENDS2, _ENDS3, _ENDS4 = _longest(_STEP2), _longest(_STEP3), _longest(_STEP4)


@lru_cache(maxsize=1 << 16)
def stem_word(word: str) -> str:
    """The stem of a lower-case word; words that are not made of a-z come back as they are."""
    if len(word) < 3 or not word.isascii() or not word.isalpha():
        return word
    word = ("Y" + word[1:]) if word[0] == "y" else word  # a first y is a consonant
    word = _step1(word)
    for ends, table in ((_ENDS2, _STEP2), (_ENDS3, _STEP3)):
        if (match := ends.match(word)) and _M0.match(match[1]):
            word = match[1] + table[match[2]]
    return _steps4and5(word).lower()


def _step1(word: str) -> str:
    """Plurals, -ed, -ing, and y to i."""
    if word.endswith(("sses", "ies")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if word.endswith("eed"):
        if _M0.match(word[:-3]):
            word = word[:-1]
    elif (match := re.match(r"^(.+?)(ed|ing)$", word)) and _HAS_VOWEL.match(match[1]):
        word = match[1]
        if word.endswith(("at", "bl", "iz")):
            word += "e"
        elif re.search(r"([^aeiouylsz])\1$", word):
            word = word[:-1]
        elif _M1.match(word) and _CVC.match(word):
            word += "e"
    if word.endswith("y") and _HAS_VOWEL.match(word[:-1]):
        word = word[:-1] + "i"
    return word


def _steps4and5(word: str) -> str:
    """Longer suffixes, then a last e and a double l."""
    if match := _ENDS4.match(word):
        if _M2.match(match[1]):
            word = match[1]
    elif (match := re.match(r"^(.+?[st])ion$", word)) and _M2.match(match[1]):
        word = match[1]
    if word.endswith("e"):
        rest = word[:-1]
        if _M2.match(rest) or (_M1.match(rest) and not _CVC.match(rest)):
            word = rest
    if word.endswith("ll") and _M2.match(word):
        word = word[:-1]
    return word
