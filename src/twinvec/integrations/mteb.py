"""A twinvec encoder as a model of MTEB (`pip install 'twinvec[mteb]'`; mteb 2): `mteb.evaluate(MtebEncoder("minilm"), tasks=...)`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twinvec.errors import UsageError
from twinvec.integrations.prompts import opened, prompt_for
from twinvec.records import Vectors

if TYPE_CHECKING:
    from twinvec.model.encoder import Encoder


class MtebEncoder:
    """What mteb calls an EncoderProtocol.

    model: an `Encoder`, or what `Encoder.load` takes. Of retrieval and reranking, queries and documents get the model's own two prompts;
    query_prompt, document_prompt name others, "" none. prompt: for all tasks that know no two sides (STS, classification, ...); None is the
    model's default. name: as the results call it, "owner/name".
    """

    def __init__(
        self, model: Encoder | str | Path, revision: str | None = None, *, device: str | None = None, query_prompt: str | None = None,
        document_prompt: str | None = None, prompt: str | None = None, name: str | None = None, **load: Any,
    ) -> None:  # fmt: skip
        given = {key: value for key, value in {"revision": revision, "device": device, **load}.items() if value is not None}
        self.encoder = opened(model, **given)
        offered = self.encoder.prompts
        self._prompts = {
            "query": prompt_for(offered, "query", query_prompt), "document": prompt_for(offered, "document", document_prompt),
            None: prompt,
        }  # fmt: skip
        self.mteb_model_meta = _meta(self.encoder, name)

    def encode(self, inputs: Any, *, task_metadata: Any, hf_split: str, hf_subset: str, prompt_type: Any = None, **options: Any) -> Vectors:
        """inputs: batches (dicts) with a "text" each, as mteb's loaders give them; one array (n, D) comes back."""
        texts: list[str] = []
        for batch in inputs:
            if "text" not in batch:
                raise UsageError(f"{task_metadata.name}: its inputs are {', '.join(map(str, batch))}; wanted text, which is all this model reads")
            texts += list(batch["text"])
        side = None if prompt_type is None else str(getattr(prompt_type, "value", prompt_type))
        return self.encoder.encode(texts, prompt=self._prompts[side])

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """(n, m) cosines, as a tensor, which mteb wants."""
        import torch

        return torch.from_numpy(np.ascontiguousarray(_unit(embeddings1) @ _unit(embeddings2).T))

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """(n,) cosines of rows with rows."""
        import torch

        return torch.from_numpy(np.ascontiguousarray((_unit(embeddings1) * _unit(embeddings2)).sum(axis=1)))


def _unit(vectors: Any) -> Vectors:
    x = np.atleast_2d(np.asarray(vectors, dtype=np.float32))
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x / np.where(norms > 0, norms, 1), dtype=np.float32)


def _meta(encoder: Encoder, name: str | None) -> Any:
    try:
        from mteb.models.model_meta import ModelMeta, ScoringFunction
    except ImportError as err:
        raise UsageError(f"MtebEncoder needs pip install 'twinvec[mteb]' (mteb 2; {err})") from err
    shown = name or f"twinvec/{Path(encoder.name).name or 'model'}"
    if shown.count("/") != 1:
        raise UsageError(f"name = {shown!r}: mteb wants owner/name, such as mine/{shown.rsplit('/', 1)[-1]}")
    # mteb files results under name and revision: the fingerprint keeps those of other weights apart.
    return ModelMeta.create_empty(
        {
            "name": shown, "revision": encoder.fingerprint, "embed_dim": encoder.dimensions, "max_tokens": float(encoder.max_tokens),
            "similarity_fn_name": ScoringFunction.COSINE, "framework": [],
        }
    )  # fmt: skip
