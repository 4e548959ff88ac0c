"""A twinvec encoder as an embedding model of LlamaIndex (`pip install 'twinvec[llama-index]'`)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinvec.errors import UsageError
from twinvec.integrations.prompts import opened, prompt_for

if TYPE_CHECKING:
    from twinvec.model.encoder import Encoder

try:
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from pydantic import PrivateAttr
except ImportError as err:
    raise UsageError(f"twinvec.integrations.llamaindex needs pip install 'twinvec[llama-index]' ({err})") from err


class TwinvecEmbedding(BaseEmbedding):  # type: ignore[misc, unused-ignore]
    """`Settings.embed_model = TwinvecEmbedding("models/e5")`: texts of nodes and queries each under the model's own prompt.

    model: an `Encoder`, or what `Encoder.load` takes, with its options in `load`. query_prompt, document_prompt: names of other prompts, "" for
    none. Further keywords are LlamaIndex's own, such as embed_batch_size.
    """

    _encoder: Any = PrivateAttr()
    _query_prompt: str | None = PrivateAttr()
    _document_prompt: str | None = PrivateAttr()

    def __init__(
        self, model: Encoder | str | Path = "minilm", *, query_prompt: str | None = None, document_prompt: str | None = None,
        load: dict[str, Any] | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        encoder = opened(model, **(load or {}))
        # Large batches: twinvec sorts by length inside a call, which pays off only with texts to sort.
        super().__init__(**{"model_name": encoder.name, "embed_batch_size": 512, **settings})
        self._encoder = encoder
        self._query_prompt = prompt_for(encoder.prompts, "query", query_prompt)
        self._document_prompt = prompt_for(encoder.prompts, "document", document_prompt)

    @classmethod
    def class_name(cls) -> str:
        return "TwinvecEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        found: list[float] = self._encoder.encode([query], prompt=self._query_prompt)[0].tolist()
        return found

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        found: list[list[float]] = self._encoder.encode(list(texts), prompt=self._document_prompt).tolist()
        return found

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)
