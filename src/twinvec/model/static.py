"""Static embedding models: the engine, and the tokens that it averages. Computed with numpy; no torch, no transformers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twinvec.errors import ModelError, UsageError
from twinvec.model.engines import Advance, Engine, Rows
from twinvec.model.resolve import first_line
from twinvec.model.static_bag import POOLINGS, Bag
from twinvec.model.static_words import SpacedWords, UnicodeWords
from twinvec.model.tokens import Tokens
from twinvec.records import Vectors

if TYPE_CHECKING:
    from twinvec.model.net import Net

WINDOW = 1_000_000
"""Tokens of a text where the model sets no window of its own: an average has no longest text."""
_ROWS_AT_ONCE = 8192


class StaticEngine(Engine):
    """Averages the vectors of a text's tokens (a `Bag`)."""

    name = "static"
    precision = "float32"
    threads = 1

    def __init__(self, bag: Bag) -> None:
        self.bag = bag

    @property
    def dimensions(self) -> int:
        return self.bag.dimensions

    @property
    def normalizes(self) -> bool:
        return self.bag.normalize

    @property
    def pooling(self) -> tuple[str, ...]:
        return self.bag.pooling

    def forward(self, rows: Rows, prompt_tokens: int, budget: int | None, advance: Advance) -> Vectors:
        """As Engine.forward. A prompt's words count as any others: static models have no notion of leaving them out."""
        out = np.zeros((len(rows), self.dimensions), dtype=np.float32)
        for at in range(0, len(rows), _ROWS_AT_ONCE):
            stop = min(at + _ROWS_AT_ONCE, len(rows))
            out[at:stop] = self.bag.forward(rows[at:stop])
            advance(range(at, stop))
        return out

    def parts(self, tokens: Tokens, prompts: dict[str, str], default_prompt: str | None) -> dict[str, Any]:
        """The parts of the fingerprint, under the names that those of a transformer have."""
        bag = self.bag
        assert isinstance(tokens, StaticTokens)
        return {
            "weights": bag.hash(),
            "tokenizer": tokens.hash(),
            "architecture": {
                "model_type": "static", "unknown": "counted" if bag.skip < 0 else "left out", "divide_by_weights": bag.divide_by_weights,
                "each_once": bag.each_once,
            },
            "pooling": list(bag.pooling) if bag.table is not None else ["count"],
            "include_prompt": True,
            "heads": [head.config() for head in bag.heads],
            "normalize": bag.normalize,
            "dimensions": bag.dimensions,
            "max_tokens": tokens.max_tokens,
            "lower_case": tokens.lower_case,
            "nfkc": tokens.nfkc,
            "cut_left": False,
            "prompts": dict(sorted(prompts.items())),
            "default_prompt": default_prompt,
        }  # fmt: skip

    @property
    def net(self) -> Net:
        raise UsageError(
            "a static model has no layers: it cannot be trained, exported or tuned, and has no need of the last two; "
            "train or export the transformer that it was made of"
        )

    def with_pooling(self, asked: tuple[str, ...]) -> StaticEngine:
        """The same vectors pooled another way. UsageError for what has no meaning here."""
        wrong = [name for name in asked if name not in POOLINGS]
        if wrong or self.bag.table is None:
            known = ", ".join(POOLINGS) if self.bag.table is not None else "none, since it counts words"
            raise UsageError(f"pooling = {'+'.join(asked)!r}: a static model has no token that stands for its text; it can pool by: {known}")
        if self.bag.heads and len(asked) != len(self.bag.pooling):
            raise UsageError(f"pooling = {'+'.join(asked)!r}: the model's Dense head wants the pooling that it was made with")
        return StaticEngine(replace(self.bag, pooling=asked))


class StaticTokens(Tokens):
    """What `Tokens` is to a transformer: content tokens only, no special ones.

    source: a `tokenizers.Tokenizer`, or one of the word splitters. `tokenizer` is it; len() of it would not do, so there is `vocabulary`.
    """

    def __init__(self, source: Any, max_tokens: int | None = None, *, nfkc: bool = False, unknown_id: int | None = None) -> None:
        self.tokenizer, self.nfkc = source, nfkc
        self.words = source if isinstance(source, (UnicodeWords, SpacedWords)) else None
        self.lower_case = False  # a splitter lowers case itself, and looks up what was written first
        self.max_tokens = self.room = max_tokens or WINDOW
        self.prefix, self.suffix = [], []
        self.pad_id, self.cut_left = 0, False
        if self.words is None:
            source.no_truncation()
            source.no_padding()
        self.unknown_id = self.words.unknown if self.words is not None else unknown_id

    @property
    def vocabulary(self) -> int:
        return len(self.words.words) if self.words is not None else int(self.tokenizer.get_vocab_size())

    def _raw(self, texts: Sequence[str], special: bool) -> list[list[int]]:
        if self.words is not None:
            return [self.words.ids(text) for text in texts]
        return [found.ids for found in self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def content(self, texts: Sequence[str]) -> list[list[int]]:
        return self._raw([self.clean(text) for text in texts], False)

    def hash(self) -> str:
        """SHA-256 over all that decides the tokens."""
        if self.words is None:
            content = str(self.tokenizer.to_str())
        else:
            content = json.dumps({**self.words.settings(), "words": self.words.words}, sort_keys=True)
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def open_tokenizer(path: Path) -> tuple[Any, int | None]:
    """A tokenizer.json and the id of its unknown token (None for none). ModelError when it cannot be read."""
    from tokenizers import Tokenizer

    if not path.is_file():
        raise ModelError(f"{path}: this file of the model is missing; fetch the model again")
    try:
        content = path.read_text(encoding="utf-8")
        found = Tokenizer.from_str(content)
    except Exception as err:  # tokenizers raises plain Exception
        raise ModelError(f"{path}: the tokenizer cannot be read ({first_line(err)}); fetch the model again") from err
    return found, unknown_of(found, json.loads(content))


def unknown_of(tokenizer: Any, definition: dict[str, Any]) -> int | None:
    model = definition.get("model") or {}
    if isinstance(model.get("unk_id"), int):  # Unigram
        return int(model["unk_id"])
    token = model.get("unk_token")
    found = tokenizer.token_to_id(token) if token else None
    return None if found is None else int(found)
