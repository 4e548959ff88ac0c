"""What computes the vectors: one interface over torch, CTranslate2, ONNX Runtime and static embeddings. No torch here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from twinvec.errors import UsageError
from twinvec.records import Vectors

if TYPE_CHECKING:
    from twinvec.model.net import Net
    from twinvec.model.tokens import Tokens

Rows = Sequence[Sequence[int]]
Advance = Callable[[Sequence[int]], None]
"""Called with the numbers of the rows that are done, for a progress bar."""

ENGINES = ("auto", "torch", "ctranslate2", "onnx", "static")
EXPORTED = ("ctranslate2", "onnx")
PRECISIONS = ("float32", "bf16", "float16", "int8")


class Engine(ABC):
    """Token rows in, vectors out. `Encoder` does the rest: texts, prompts, windows, the report.

    name and precision go into the report; threads is the number it computes with. dimensions: D of its vectors. normalizes: rows have length 1.
    pooling: the names of its modes, () where nothing is pooled by mode.
    """

    name: str
    precision: str
    threads: int

    @property
    @abstractmethod
    def dimensions(self) -> int: ...

    @property
    @abstractmethod
    def normalizes(self) -> bool: ...

    @property
    def pooling(self) -> tuple[str, ...]:
        return ()

    @abstractmethod
    def forward(self, rows: Rows, prompt_tokens: int, budget: int | None, advance: Advance) -> Vectors:
        """rows: n token rows, special tokens included, in any order and of any length (a row may be empty: zeros before heads).

        prompt_tokens: first tokens of each row that belong to the prompt; pooling leaves them out where the model says so. budget: tokens of one
        pass, None for what is fastest. Returns float32 (n, D) in the order of the rows. A row's vector does not depend on the other rows.
        Raises IndexError for a token or a length that the model has no embedding for.
        """

    @abstractmethod
    def parts(self, tokens: Tokens, prompts: dict[str, str], default_prompt: str | None) -> dict[str, Any]:
        """The named parts that the fingerprint covers (see fingerprint.py): those of the float32 model that this engine computes."""

    @property
    def net(self) -> Net:
        """The torch module. UsageError for an engine that has none."""
        raise UsageError(
            f"this model runs on the engine {self.name!r}, which cannot be trained, saved or taken apart; load it with engine='torch' for that"
        )
