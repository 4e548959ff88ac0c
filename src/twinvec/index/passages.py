"""Long texts cut into passages: at most so many tokens each, at ends of paragraphs and sentences where possible, with some overlap."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from twinvec.errors import UsageError, choose
from twinvec.index.entries import Settings

Span = tuple[int, int]
TOKENS, OVERLAP = 200, 40
ON_LONG = ("truncate", "error", "split", "passages")
_ENDS = re.compile(
    r"\n\s*|[。！？；…]+[”’」』）】》]*\s*|[.!?]+[\"'”’)\]]*\s+"
)  # a line's end; an end mark of Chinese; one of English before a space
_WORDS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]\s*|[^\s\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]+\s*|\s+")
_ROUGH = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]|\w+|[^\w\s]")
_PARAGRAPH = 0.5  # a paragraph's end is taken when the passage is at least this full


@dataclass(frozen=True, slots=True)
class Cut:
    """How long texts are cut: `tokens` a passage at most (without special tokens and prompt), of which `overlap` repeat the passage before."""

    tokens: int = TOKENS
    overlap: int = OVERLAP

    def __post_init__(self) -> None:
        for name, value, least in (("passage_tokens", self.tokens, 1), ("passage_overlap", self.overlap, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(f"{name} = {value!r}: wanted a whole number of tokens, {least} or more")
        if self.overlap >= self.tokens:
            raise UsageError(f"passage_overlap = {self.overlap}: must be smaller than passage_tokens = {self.tokens}")


def cut_of(on_long: str | None, tokens: int | None, overlap: int | None, vectors: Any) -> Cut | None:
    """How long texts are cut, by the options of `add`; None: not, or as the collection remembers."""
    if on_long is not None:
        choose("on_long", on_long, ON_LONG)
    if on_long == "passages" or (on_long is None and tokens is not None):
        if vectors is not None:
            raise UsageError("on_long = 'passages': given vectors belong to whole documents; leave out one of the two")
        return Cut(TOKENS if tokens is None else tokens, OVERLAP if overlap is None else overlap)
    if tokens is not None or overlap is not None:
        raise UsageError("passage_tokens, passage_overlap: they need on_long = 'passages'")
    return None


def asked(settings: Settings, on_long: str | None, cut: Cut | None) -> Settings:
    """The settings with what was asked for long texts this time, which the next time remembers; as they are when nothing was asked."""
    if cut is not None:
        return replace(settings, passage_tokens=cut.tokens, passage_overlap=cut.overlap, on_long=None)
    if on_long is not None:
        return replace(settings, passage_tokens=None, passage_overlap=None, on_long=on_long)
    return settings


def treatment(settings: Settings) -> tuple[Cut | None, dict[str, Any]]:
    """How long texts are treated: cut into passages, or by an option of the encoder; neither: as the encoder does by itself."""
    if settings.passage_tokens is not None:
        return Cut(settings.passage_tokens, settings.passage_overlap or 0), {}
    return None, {} if settings.on_long is None else {"on_long": settings.on_long}


class Cutter:
    """Cuts texts for one encoder, with its own tokens where it can count them (`count_tokens`), else with words and Chinese characters."""

    def __init__(self, encoder: Any, cut: Cut, prompt: str | None) -> None:
        count: Callable[[list[str]], list[int]] | None = getattr(encoder, "count_tokens", None)
        self.cut, self.count = cut, count or (lambda texts: [len(_ROUGH.findall(text)) for text in texts])
        self.special = self.count([""])[0] if count else 0
        window = getattr(encoder, "max_tokens", None)
        if count is not None and isinstance(window, int):
            text = (getattr(encoder, "prompts", None) or {}).get(prompt or getattr(encoder, "default_prompt", None) or "", "")
            room = window - self.special - (self.count([text])[0] - self.special)
            if cut.tokens > room:
                raise UsageError(
                    f"passage_tokens = {cut.tokens}: the window of {getattr(encoder, 'name', 'this model')} holds {window} tokens, "
                    f"which leaves {room} for a passage; give at most {room}"
                )

    def spans(self, texts: Sequence[str]) -> list[list[Span | None]]:
        """For each text its passages as (start, stop) characters, in order; [None] when the whole text is one passage."""
        whole = self._counts(texts)
        out: list[list[Span | None]] = [[None] for _ in texts]
        long = [i for i, tokens in enumerate(whole) if tokens > self.cut.tokens]
        units = [_pieces(_ENDS, texts[i]) for i in long]
        counts = self._counts([texts[i][low:high] for i, spans in zip(long, units, strict=True) for low, high in spans])
        at = 0
        for i, spans in zip(long, units, strict=True):
            out[i] = list(self._packed(texts[i], spans, counts[at : at + len(spans)]))
            at += len(spans)
        return out

    def _counts(self, texts: Sequence[str]) -> list[int]:
        return [max(tokens - self.special, 0) for tokens in self.count(list(texts))] if texts else []

    def _packed(self, text: str, spans: list[Span], counts: list[int]) -> list[Span]:
        """Whole units into passages, one after another."""
        units = [unit for span, count in zip(spans, counts, strict=True) for unit in self._small(text, span, count)]
        room, found, first = self.cut.tokens, [], 0
        lead: Span | None = None  # the end of the passage before, when no whole sentence of it fits into the overlap
        taken = 0
        while first < len(units):
            total, last = taken, first
            while last < len(units) and (last == first or total + units[last][1] <= room):
                total += units[last][1]
                last += 1
            if last < len(units):
                last = _at_paragraph(text, units, first, last)
            start = lead[0] if lead is not None else units[first][0][0]
            found.append(_trimmed(text, start, units[last - 1][0][1]))
            if last == len(units):
                break
            following = units[last][1]
            back = last
            while back - 1 > first and sum(count for _, count in units[back - 1 : last]) <= min(self.cut.overlap, room - following):
                back -= 1
            lead, taken = (None, 0) if back < last else self._tail(text, units[last - 1][0], room - following)
            first = back
        out: list[Span] = []
        for span in found:  # one that adds nothing but white space is none
            if span[0] < span[1] and (not out or span[1] > out[-1][1]):
                out.append(span)
        return out

    def _tail(self, text: str, span: Span, room: int) -> tuple[Span | None, int]:
        """The last words of a sentence that fit into the overlap."""
        words = [(low + span[0], high + span[0]) for low, high in _pieces(_WORDS, text[span[0] : span[1]])][1:]
        counts = self._counts([text[low:high] for low, high in words])
        allowed, taken, start = min(self.cut.overlap, room), 0, None
        for (low, _), count in zip(reversed(words), reversed(counts), strict=True):
            if taken + count > allowed:
                break
            taken, start = taken + count, low
        return (None, 0) if start is None else ((start, span[1]), taken)

    def _small(self, text: str, span: Span, count: int) -> list[tuple[Span, int]]:
        """A unit, or its words joined up to the limit when it is too long; a word that is too long itself is cut between characters."""
        if count <= self.cut.tokens:
            return [(span, count)]
        words = [(low + span[0], high + span[0]) for low, high in _pieces(_WORDS, text[span[0] : span[1]])]
        counts = self._counts([text[low:high] for low, high in words])
        out: list[tuple[Span, int]] = []
        for word, tokens in zip(words, counts, strict=True):
            out += [(word, tokens)] if tokens <= self.cut.tokens else self._halves(text, word, tokens)
        return out

    def _halves(self, text: str, span: Span, count: int) -> list[tuple[Span, int]]:
        parts = [(span, count)]
        while any(tokens > self.cut.tokens and high - low > 1 for (low, high), tokens in parts):
            cut: list[Span] = []
            for (low, high), tokens in parts:
                middle = (low + high) // 2
                cut += [(low, middle), (middle, high)] if tokens > self.cut.tokens and high - low > 1 else [(low, high)]
            parts = list(zip(cut, self._counts([text[low:high] for low, high in cut]), strict=True))
        return parts


def _pieces(pattern: re.Pattern[str], text: str) -> list[Span]:
    """The text from end to end, each piece up to the end of a match."""
    ends = [match.end() for match in pattern.finditer(text)]
    stops = sorted({*ends, len(text)} - {0})
    return list(zip([0, *stops[:-1]], stops, strict=True))


def _at_paragraph(text: str, units: list[tuple[Span, int]], first: int, last: int) -> int:
    """`last`, or an earlier end that is a paragraph's (a blank line), when the passage stays at least half full."""
    totals = list(accumulate(count for _, count in units[first:last]))
    for end in range(last, first, -1):
        if totals[end - first - 1] < _PARAGRAPH * totals[-1]:
            return last
        low, high = units[end - 1][0]
        if re.search(r"\n[ \t\r]*\n\s*$", text[low:high]):
            return end
    return last


def _trimmed(text: str, start: int, stop: int) -> Span:
    piece = text[start:stop]
    return start + len(piece) - len(piece.lstrip()), stop - (len(piece) - len(piece.rstrip()))
