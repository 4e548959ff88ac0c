"""A twinvec encoder as LangChain embeddings (`pip install 'twinvec[langchain]'`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinvec.errors import UsageError
from twinvec.integrations.prompts import opened, prompt_for

if TYPE_CHECKING:
    from twinvec.model.encoder import Encoder

try:
    from langchain_core.embeddings import Embeddings
except ImportError as err:
    raise UsageError(f"twinvec.integrations.langchain needs pip install 'twinvec[langchain]' ({err})") from err


class TwinvecEmbeddings(Embeddings):  # type: ignore[misc, unused-ignore]
    """`FAISS.from_texts(texts, TwinvecEmbeddings("models/e5"))`: documents and queries each under the model's own prompt.

    model: an `Encoder`, or what `Encoder.load` takes, with its options. query_prompt, document_prompt: names of other prompts, "" for none.
    """

    def __init__(
        self, model: Encoder | str | Path = "minilm", *, query_prompt: str | None = None, document_prompt: str | None = None, **load: Any
    ) -> None:
        self.encoder = opened(model, **load)
        self.query_prompt = prompt_for(self.encoder.prompts, "query", query_prompt)
        self.document_prompt = prompt_for(self.encoder.prompts, "document", document_prompt)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A row of D numbers for each text."""
        found: list[list[float]] = self.encoder.encode(list(texts), prompt=self.document_prompt).tolist()
        return found

    def embed_query(self, text: str) -> list[float]:
        """The D numbers of one query."""
        found: list[float] = self.encoder.encode([text], prompt=self.query_prompt)[0].tolist()
        return found
