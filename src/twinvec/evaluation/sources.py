"""Encoders that are no models of ours: a file of vectors, a service with the OpenAI embeddings API, and the first dimensions of another."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np

from twinvec.data.beir import RetrievalSet
from twinvec.errors import DataError, ModelError, UsageError
from twinvec.evaluation.encoding import EncoderLike
from twinvec.evaluation.reading import Held
from twinvec.evaluation.reranking import RerankingSet
from twinvec.records import EncodeReport, Encoding, Vectors

PASSING: Final = (408, 409, 425, 429, 500, 502, 503, 504)  # states of a service that another try may find gone
LONGEST_WAIT: Final = 30.0  # seconds between two tries at most, whatever the service asks for
_SECRET_SHOWN: Final = "***"


class Shortened:
    """The first `dimensions` numbers of another encoder's vectors, at length 1 again (Matryoshka representation learning 2022, section 3)."""

    def __init__(self, inner: EncoderLike, dimensions: int) -> None:
        self.inner, self.dimensions = inner, dimensions
        self.prompts = inner.prompts
        self.source = getattr(inner, "source", None)
        if callable(getattr(inner, "count_tokens", None)):
            self.count_tokens = inner.count_tokens  # type: ignore[attr-defined]

    def encode_with_report(self, texts: Any, *, prompt: str | None = None, **options: Any) -> Encoding:
        found = self.inner.encode_with_report(texts, prompt=prompt, **options)
        have = found.vectors.shape[1]
        if not 1 <= self.dimensions <= have:
            raise UsageError(f"dimensions = {self.dimensions}: this model has {have}; wanted 1 to {have}")
        cut = found.vectors[:, : self.dimensions]
        norms = np.linalg.norm(cut, axis=1, keepdims=True)
        vectors: Vectors = (cut / np.where(norms > 0, norms, 1)).astype(np.float32)
        return Encoding(vectors, replace(found.report, dimensions=self.dimensions), found.counts)


def plain_report(texts: Sequence[str], dimensions: int, engine: str, *, tokens: int = 0, seconds: float = 0.0) -> EncodeReport:
    """The report of a source that does not say what it did to the texts."""
    return EncodeReport(
        rows=len(texts), dimensions=dimensions, tokens=tokens, truncated=0, truncated_tokens=0, split=0, longest=0,
        empty=[i for i, text in enumerate(texts) if not text.strip()], unknown_rate=0.0, prompt="", engine=engine, precision="float32", threads=0,
        seconds=seconds,
    )  # fmt: skip


# --- a file of vectors


class VectorsEncoder:
    """Vectors (n, D) that lie in a file. `texts` or `ids` say whose each row is; without them `bind` goes by the order of rows."""

    knows_tokens = False

    def __init__(self, vectors: Vectors, *, name: str, texts: Sequence[str] | None = None, ids: Sequence[str] | None = None) -> None:
        if vectors.ndim != 2 or not np.isfinite(vectors).all():
            raise DataError(f"{name}: vectors of shape {vectors.shape} with NaN or infinity, or no rows of numbers; encode again")
        self.name, self.vectors, self.ids = name, vectors, ids
        self.prompts: dict[str, str] = {}
        self.place: dict[str, int] | None = None
        if texts is not None:
            self.place = {}
            for row, text in enumerate(texts):
                self.place.setdefault(text, row)

    def bind(self, data: Held) -> VectorsEncoder:
        """The same with each text of `data` at its row: by text where the file has texts, else by id (retrieval folders), else by order.

        By order: a row for each text, one column after the other (documents before queries), or a row for each distinct text in that order.
        DataError when the numbers do not fit.
        """
        if self.place is not None:
            return self
        listed = texts_in_order(data)
        bound = VectorsEncoder(self.vectors, name=self.name)
        if self.ids is not None and isinstance(data, RetrievalSet):
            row_of = {str(id): row for row, id in enumerate(self.ids)}
            named = [*((d.id, d.text) for d in data.corpus), *data.queries.items()]
            missing = [id for id, _ in named if id not in row_of]
            if missing:
                raise DataError(f"{self.name}: no row with the id {missing[0]!r}, nor for {len(missing) - 1} more of {data.path}")
            bound.place = {text: row_of[id] for id, text in reversed(named)}
            return bound
        distinct = list(dict.fromkeys(listed))
        if len(self.vectors) == len(listed):
            bound.place = {text: row for row, text in reversed(list(enumerate(listed)))}
        elif len(self.vectors) == len(distinct):
            bound.place = {text: row for row, text in enumerate(distinct)}
        else:
            raise DataError(
                f"{self.name}: {len(self.vectors)} rows without texts; {data.path} has {len(listed)} texts, {len(distinct)} of them distinct; wanted "
                "one row each, column after column, or a .parquet with the texts, as twinvec encode writes it"
            )
        return bound

    def encode_with_report(self, texts: Any, *, prompt: str | None = None, **_: Any) -> Encoding:
        listed = list(texts)
        if prompt:
            raise UsageError(f"prompt = {prompt!r}: {self.name} holds vectors that are made already; give the prompt to twinvec encode")
        place = self.place
        if place is None:
            raise DataError(f"{self.name}: its rows carry no texts; bind it to the data first")
        missing = [text for text in listed if text not in place]
        if missing:
            raise DataError(
                f"{self.name}: no vector for {missing[0][:60]!r}, nor for {len(missing) - 1} more of {len(listed)} texts; encode all texts"
            )
        vectors = self.vectors[np.fromiter((place[text] for text in listed), np.int64, len(listed))]
        return Encoding(np.asarray(vectors, dtype=np.float32), plain_report(listed, vectors.shape[1], "vectors"))


def texts_in_order(data: Held) -> list[str]:
    """Every text that is encoded, one column after the other; documents before queries, queries before what is ranked for them."""
    if isinstance(data, RetrievalSet):
        return [*(document.text for document in data.corpus), *data.queries.values()]
    if isinstance(data, RerankingSet):
        return [*data.queries, *(text for found in data.candidates for text in found)]
    return [text for column in data.columns.values() for text in column]


# --- a service


def split_endpoint(name: str) -> tuple[str, str]:
    """'http://host:8000/v1::model' -> (URL, model). UsageError for anything else."""
    url, mark, model = name.rpartition("::")
    try:
        parts = urlsplit(url)
        good = bool(mark and model.strip() and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0)
    except ValueError:  # of urlsplit, or of a port that is no number
        good = False
    if not good:
        raise UsageError(f"{name!r}: wanted the service's URL and the model's name there, as in http://localhost:8000/v1::all-MiniLM-L6-v2")
    if parts.username or parts.password:
        raise UsageError("a URL with a password in it: put the key into an environment variable and name that (--api-key-env NAME)")
    return url.rstrip("/").removesuffix("/embeddings"), model.strip()


def is_endpoint(name: str) -> bool:
    return re.match(r"https?://", name) is not None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the texts, and the key, to a place that nobody named."""

    def redirect_request(self, *_: Any) -> None:
        return None


class EndpointEncoder:
    """A model behind the OpenAI embeddings API: POST URL/embeddings {"model", "input"}.

    key_variable: name of the environment variable with the API key; the key itself is never shown. batch: texts a request; timeout: seconds a
    request; retries: further tries after a passing fault (429, 5xx, no connection), with growing waits. Texts without a character are not
    sent (services refuse them): their vector is zeros. Texts too long are cut or refused by the service; what it cuts is not known here.
    """

    knows_tokens = False

    def __init__(
        self, url: str, model: str, *, key_variable: str | None = None, batch: int = 64, timeout: float = 60.0, retries: int = 4, wait: float = 0.5
    ) -> None:
        if batch < 1 or retries < 0 or timeout <= 0:
            raise UsageError(f"batch = {batch}, retries = {retries}, timeout = {timeout}: wanted 1 or more, 0 or more, and above 0")
        self.url, self.model, self.name = url, model, f"{url}::{model}"
        self.batch, self.timeout, self.retries, self.wait = batch, timeout, retries, wait
        self.prompts: dict[str, str] = {}
        self._key = ""
        self.key_variable = key_variable
        if key_variable is not None:
            self._key = os.environ.get(key_variable, "").strip()
            if not self._key:
                raise UsageError(f"--api-key-env {key_variable}: that environment variable is empty or not set")
        self._opener = urllib.request.build_opener(_NoRedirect)

    def encode_with_report(self, texts: Any, *, prompt: str | None = None, **_: Any) -> Encoding:
        listed = list(texts)
        if prompt:
            raise UsageError(f"prompt = {prompt!r}: a service has no prompts by name; put it into the texts, or set it at the service")
        start = time.perf_counter()
        sent = [i for i, text in enumerate(listed) if text.strip()]
        parts, tokens = [], 0
        for at in range(0, len(sent), self.batch):
            rows, used = self._ask([listed[i] for i in sent[at : at + self.batch]])
            parts.append(rows)
            tokens += used
        sizes = {part.shape[1] for part in parts}
        if len(sizes) > 1:
            raise ModelError(f"{self.name}: vectors of {' and '.join(map(str, sorted(sizes)))} numbers in one run; wanted one size")
        vectors = np.zeros((len(listed), sizes.pop() if sizes else 1), dtype=np.float32)
        if parts:
            vectors[sent] = np.concatenate(parts)
        return Encoding(vectors, plain_report(listed, vectors.shape[1], "endpoint", tokens=tokens, seconds=time.perf_counter() - start))

    def _ask(self, texts: list[str]) -> tuple[Vectors, int]:
        body = json.dumps({"model": self.model, "input": texts, "encoding_format": "float"}).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        said = ""
        for attempt in range(self.retries + 1):
            request = urllib.request.Request(f"{self.url}/embeddings", data=body, headers=headers, method="POST")
            try:
                with self._opener.open(request, timeout=self.timeout) as answer:
                    return self._read(answer.read(), len(texts))
            except urllib.error.HTTPError as err:
                said = self._said(err)
                if err.code not in PASSING:
                    raise ModelError(self._refused(err.code, said)) from None
                pause = _asked_wait(err.headers.get("Retry-After"))
            except (OSError, TimeoutError) as err:  # URLError is an OSError
                said, pause = self._hidden(str(getattr(err, "reason", err)) or type(err).__name__), None
            if attempt < self.retries:
                time.sleep(min(LONGEST_WAIT, pause if pause is not None else self.wait * 2**attempt))
        raise ModelError(f"{self.name}: no answer after {self.retries + 1} tries ({said}); check that the service runs and the URL is right")

    def _refused(self, code: int, said: str) -> str:
        if code in (401, 403):
            hint = "the key was refused" if self._key else "it wants a key; put it into an environment variable and give --api-key-env NAME"
            return f"{self.name}: HTTP {code} ({said}): {hint}"
        if code == 404:
            return f"{self.name}: HTTP 404 ({said}): no {self.url}/embeddings there, or no model of that name; URLs often end in /v1"
        if code in (301, 302, 303, 307, 308):
            return f"{self.name}: HTTP {code}: it points elsewhere, which is not followed; give the final URL"
        return f"{self.name}: HTTP {code} ({said})"

    def _said(self, err: urllib.error.HTTPError) -> str:
        try:
            text = err.read(4096).decode("utf-8", "replace")
        except OSError:
            text = ""
        try:
            found = json.loads(text)
            inner = found.get("error", found) if isinstance(found, dict) else found
            text = str(inner.get("message", inner.get("detail", inner)) if isinstance(inner, dict) else inner)
        except ValueError:
            pass
        return self._hidden(" ".join(text.split())[:200]) or str(err.reason)

    def _hidden(self, text: str) -> str:
        return text.replace(self._key, _SECRET_SHOWN) if self._key else text

    def _read(self, body: bytes, count: int) -> tuple[Vectors, int]:
        try:
            found = json.loads(body)
            rows = sorted(found["data"], key=lambda row: int(row.get("index", 0))) if count > 1 else list(found["data"])
            vectors = np.asarray([row["embedding"] for row in rows], dtype=np.float32)
            tokens = int((found.get("usage") or {}).get("prompt_tokens") or 0)
            places = [int(row.get("index", at)) for at, row in enumerate(rows)]
        except (ValueError, TypeError, KeyError, AttributeError) as err:
            raise ModelError(
                f'{self.name}: the answer is not of the OpenAI embeddings API ({type(err).__name__}); wanted {{"data": [{{"embedding": [...]}}]}}'
            ) from err
        if vectors.ndim != 2 or len(vectors) != count or places != list(range(count)) or not vectors.shape[1]:
            raise ModelError(f"{self.name}: {len(rows)} vectors for {count} texts, or of unequal lengths; wanted one each")
        if not np.isfinite(vectors).all():
            raise ModelError(f"{self.name}: the service gives NaN or infinity for some texts; its model is broken")
        return vectors, tokens


def _asked_wait(header: str | None) -> float | None:
    try:
        return max(0.0, float(header)) if header else None
    except ValueError:  # a date
        return None
