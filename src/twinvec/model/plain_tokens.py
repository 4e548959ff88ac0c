"""A tokenizer as its own file holds it: what `Tokens` asks of a transformers tokenizer, without importing transformers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinvec.errors import ModelError
from twinvec.model.resolve import first_line
from twinvec.model.tokens import Tokens


@dataclass
class PlainTokenizer:
    """tokenizer.json and the few facts that stand beside it."""

    backend_tokenizer: Any
    pad_token_id: int
    unk_token_id: int | None
    truncation_side: str
    is_fast: bool = True

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size())

    def get_vocab(self) -> dict[str, int]:
        return dict(self.backend_tokenizer.get_vocab())


def describe_tokens(tokens: Tokens) -> dict[str, Any]:
    """What `open_tokens` needs besides tokenizer.json."""
    return {
        "max_tokens": tokens.max_tokens, "lower_case": tokens.lower_case, "nfkc": tokens.nfkc, "cut_left": tokens.cut_left,
        "pad_id": tokens.pad_id, "unknown_id": tokens.unknown_id,
    }  # fmt: skip


def open_tokens(path: Path, facts: dict[str, Any], max_tokens: int) -> Tokens:
    """The `Tokens` that `describe_tokens` described, from the tokenizer.json at `path`."""
    from tokenizers import Tokenizer

    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as err:  # tokenizers raises plain Exception
        raise ModelError(f"{path}: the tokenizer cannot be read ({first_line(err)}); export the model again") from err
    side = "left" if facts["cut_left"] else "right"
    plain = PlainTokenizer(backend, int(facts["pad_id"]), facts["unknown_id"], side)
    return Tokens(plain, max_tokens, lower_case=bool(facts["lower_case"]), nfkc=bool(facts["nfkc"]))
