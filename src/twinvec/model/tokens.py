"""Texts to token rows: what was cut, what was unknown, what the prompt took."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from twinvec.errors import EncodeError, ModelError
from twinvec.text import without_surrogates


@dataclass(frozen=True)
class Prompt:
    """A prompt's text, and how many tokens of each row (special tokens in front included) it takes."""

    text: str = ""
    tokens: int = 0


class Tokens:
    """A tokenizer of transformers, asked for content only: special tokens, prompt and window are added here, so that each loss is counted.

    `max_tokens` is the model's window, special tokens included.
    """

    def __init__(self, tokenizer: Any, max_tokens: int, *, lower_case: bool = False, nfkc: bool = False) -> None:
        self.tokenizer, self.max_tokens, self.lower_case, self.nfkc = tokenizer, max_tokens, lower_case, nfkc
        self._backend = getattr(tokenizer, "backend_tokenizer", None) if getattr(tokenizer, "is_fast", False) else None
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()
        self.prefix, self.suffix, self._whole = self._template()
        self.pad_id = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0)
        self.unknown_id = tokenizer.unk_token_id
        self.room = max_tokens - len(self.prefix) - len(self.suffix)
        if self.room < 1:
            raise ModelError(
                f"a window of {max_tokens} tokens holds no text: {max_tokens - self.room} of them are special tokens; set max_tokens higher"
            )
        self.cut_left = getattr(tokenizer, "truncation_side", "right") == "left"

    def _raw(self, texts: Sequence[str], special: bool) -> list[list[int]]:
        if self._backend is not None:
            return [found.ids for found in self._backend.encode_batch_fast(list(texts), add_special_tokens=special)]
        out = self.tokenizer(list(texts), add_special_tokens=special, truncation=False, padding=False, verbose=False)["input_ids"]
        return [list(row) for row in out]

    def _template(self) -> tuple[list[int], list[int], bool]:
        """Special tokens before and after the content of a single text; the flag says that no such frame was found."""
        for probe in ("a b", "1 2", "你好"):
            plain, full = self._raw([probe], False)[0], self._raw([probe], True)[0]
            for at in range(len(full) - len(plain) + 1):
                if plain and full[at : at + len(plain)] == plain:
                    return full[:at], full[at + len(plain) :], False
        return [], [], True

    def clean(self, text: str) -> str:
        """The text as the tokenizer will see it: lone surrogates replaced, NFKC and lower case where the model asks for them."""
        text = without_surrogates(text)
        if self.nfkc:
            text = unicodedata.normalize("NFKC", text)
        return text.lower() if self.lower_case else text

    def content(self, texts: Sequence[str]) -> list[list[int]]:
        """Content tokens of each text, uncut, without special tokens."""
        return self._raw([self.clean(text) for text in texts], self._whole)

    def prompt(self, text: str) -> Prompt:
        """Measure a prompt. EncodeError when it leaves no room for a text."""
        if not text:
            return Prompt()
        taken = len(self.content([text])[0])
        if taken >= self.room:
            raise EncodeError(
                f"the prompt {text[:40]!r} takes {taken} of the {self.room} tokens that the model's window of {self.max_tokens} leaves: "
                "0 tokens remain for a text; use a shorter prompt"
            )
        return Prompt(text, len(self.prefix) + taken)

    def cut(self, content: list[int]) -> list[int]:
        """One row: special tokens around the content, cut to the window."""
        if len(content) > self.room:
            content = content[len(content) - self.room :] if self.cut_left else content[: self.room]
        return [*self.prefix, *content, *self.suffix]

    def pieces(self, content: list[int], prompt: Prompt) -> list[list[int]]:
        """Rows that together hold the whole content; each carries the prompt."""
        lead = max(prompt.tokens - len(self.prefix), 0)
        step = self.room - lead
        body = content[lead:]
        return [[*self.prefix, *content[:lead], *body[at : at + step], *self.suffix] for at in range(0, max(len(body), 1), step)]

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text with special tokens, before any cutting."""
        extra = len(self.prefix) + len(self.suffix)
        return [len(row) + extra for row in self.content(texts)]
