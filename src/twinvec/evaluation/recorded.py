"""What one encoder gave on some data, kept: so that a comparison encodes once, and again only when model, data or options have changed."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from twinvec.data.beir import RetrievalSet
from twinvec.errors import DataError
from twinvec.evaluation.encoding import EncoderLike
from twinvec.evaluation.evaluate import measure
from twinvec.evaluation.reading import Held
from twinvec.evaluation.reranking import RerankingSet
from twinvec.files import atomic_folder, sha256_file, write_json
from twinvec.records import EncodeReport, Encoding, Vectors

FORMAT: Final = 1
_META: Final = "recording.json"
RATE_TEXTS: Final = 512  # enough to fill batches of every length, few enough for several passes


def hash_of(value: Any) -> str:
    """32 hex digits over the canonical JSON of a value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=True).encode()).hexdigest()[:32]


def data_hash(data: Held) -> str:
    """A hash over everything that is measured: texts, labels, judgements."""
    if isinstance(data, RetrievalSet):
        return hash_of(["retrieval", data.split, [[d.id, d.text] for d in data.corpus], data.queries, data.qrels])
    if isinstance(data, RerankingSet):
        return hash_of(["reranking", data.queries, data.candidates, data.relevant])
    labels = None if data.labels is None else [float(x) for x in data.labels]
    return hash_of([data.kind, data.columns, labels, data.label_names, data.groups])


@dataclass
class Call:
    """One call of `encode_with_report`: what it was asked, and what it gave."""

    prompt: str | None
    texts: str
    count: int
    vectors: Vectors
    report: EncodeReport


@dataclass
class Recording:
    """facts: name, fingerprint, prompts, cost and whatever else is known of the model; JSON-safe."""

    calls: list[Call] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


class Recorder:
    """An encoder that remembers each call, and how long it took."""

    def __init__(self, inner: EncoderLike) -> None:
        self.inner = inner
        self.recording = Recording()
        self.texts: list[tuple[str | None, list[str]]] = []
        self.seconds = 0.0

    @property
    def prompts(self) -> dict[str, str]:
        return dict(self.inner.prompts)

    def encode_with_report(self, texts: Any, *, prompt: str | None = None, **options: Any) -> Encoding:
        listed = list(texts)
        start = time.perf_counter()
        found = self.inner.encode_with_report(listed, prompt=prompt, **options)
        self.seconds += time.perf_counter() - start
        self.texts.append((prompt, listed))
        self.recording.calls.append(Call(prompt, hash_of(listed), len(listed), found.vectors, found.report))
        return found


class Replayed:
    """The encoder of a recording: the same texts under the same prompt give the recorded vectors."""

    def __init__(self, recording: Recording) -> None:
        facts = recording.facts
        self.recording, self.name, self.fingerprint = recording, str(facts.get("name", "")), facts.get("fingerprint")
        self.prompts: dict[str, str] = dict(facts.get("prompts") or {})
        self.source = Path(facts["source"]) if facts.get("source") else None
        self.knows_tokens = bool(facts.get("knows_tokens", True))

    def encode_with_report(self, texts: Any, *, prompt: str | None = None, **_: Any) -> Encoding:
        wanted = hash_of(list(texts))
        for call in self.recording.calls:
            if call.prompt == prompt and call.texts == wanted:
                return Encoding(call.vectors, call.report)
        raise DataError(f"{self.name}: these texts were not recorded under the prompt {prompt!r}; measure again without the cache (--no-cache)")


def save_recording(folder: Path, recording: Recording) -> None:
    """Write a folder whole or not at all; one that is there is replaced."""
    with atomic_folder(folder, replace=True) as place:
        calls = []
        for number, call in enumerate(recording.calls):
            path = place / f"vectors-{number}.npy"
            np.save(path, call.vectors, allow_pickle=False)
            calls.append(
                {"prompt": call.prompt, "texts": call.texts, "count": call.count, "report": asdict(call.report), "sha256": sha256_file(path)}
            )
        write_json(place / _META, {"format": FORMAT, "facts": recording.facts, "calls": calls})


def load_recording(folder: Path) -> Recording | None:
    """None when there is none, or one that is not whole: then it is measured again."""
    try:
        found = json.loads((folder / _META).read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            return None
        calls = []
        for number, entry in enumerate(found["calls"]):
            path = folder / f"vectors-{number}.npy"
            if sha256_file(path) != entry["sha256"]:
                return None
            vectors = np.load(path, allow_pickle=False)
            if vectors.shape[0] != entry["count"]:
                return None
            calls.append(Call(entry["prompt"], entry["texts"], entry["count"], vectors, EncodeReport(**entry["report"])))
        return Recording(calls, dict(found["facts"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


# --- what it costs


def record(encoder: EncoderLike, data: Sequence[Held], prompt: str | None, *, seconds: float = 2.0, **options: Any) -> Recording:
    """Encode all that a measurement of `data` needs, and measure the cost on the way. options: as `evaluate.measure` takes them.

    seconds: how long at least the rate is measured, and how long at most the latency.
    """
    calls = {name: options[name] for name in ("on_long", "batch_tokens") if options.get(name) not in (None, "truncate")}
    recorder = Recorder(encoder)
    encoder.encode_with_report(_first_texts(data), prompt="" if not encoder.prompts else None, **calls)  # the first call pays for what comes later
    for held in data:
        measure(recorder, held, prompt=prompt, **options)
    recording = recorder.recording
    # Two files may share a call: each is kept once.
    recording.calls = list({(call.prompt, call.texts): call for call in recording.calls}.values())
    recording.facts = {
        "name": getattr(encoder, "name", ""), "prompts": dict(encoder.prompts), "knows_tokens": getattr(encoder, "knows_tokens", True),
        "dimensions": int(recording.calls[0].vectors.shape[1]),
        "cost": rate_and_latency(encoder, recorder.texts, seconds, first=recorder.seconds, **calls),
    }  # fmt: skip
    return recording


def _first_texts(data: Sequence[Held]) -> list[str]:
    held = data[0]
    if isinstance(held, RetrievalSet):
        found = [document.text for document in held.corpus[:16]]
    elif isinstance(held, RerankingSet):
        found = held.queries[:16]
    else:
        found = next(iter(held.columns.values()))[:16]
    return [text for text in found if text.strip()] or ["a"]


def rate_and_latency(
    encoder: EncoderLike, done: Sequence[tuple[str | None, list[str]]], seconds: float, *, first: float, **options: Any
) -> dict[str, Any]:
    """Texts a second (the best of the pass that took `first` seconds and of further ones over up to 512 texts), and the time of one text alone.

    latency_p50_ms, latency_p95_ms: of up to 50 texts, one a call. seconds: how long each of the two is measured.
    """
    count = sum(len(texts) for _, texts in done)
    rate = count / first if first > 0 else 0.0
    sample = [
        (prompt, [texts[i] for i in np.unique(np.linspace(0, len(texts) - 1, min(RATE_TEXTS, len(texts))).astype(int))]) for prompt, texts in done
    ]
    start, passes = time.perf_counter(), 0
    # The best of several passes: on a busy machine a single one says as much about the neighbours as about the model.
    while (spent := time.perf_counter() - start) < seconds or (passes < 3 and spent < 4 * seconds):
        before = time.perf_counter()
        for prompt, texts in sample:
            encoder.encode_with_report(texts, prompt=prompt, **options)
        rate = max(rate, sum(len(texts) for _, texts in sample) / (time.perf_counter() - before))
        passes += 1
    listed = [(prompt, text) for prompt, texts in done for text in texts if text.strip()]
    chosen = [listed[i] for i in np.linspace(0, len(listed) - 1, min(50, len(listed))).astype(int)] if listed else []
    times: list[float] = []
    until = time.perf_counter() + seconds
    for prompt, text in chosen:
        start = time.perf_counter()
        encoder.encode_with_report([text], prompt=prompt, **options)
        times.append(time.perf_counter() - start)
        if time.perf_counter() > until and len(times) >= 3:
            break
    middle, slow = (float(np.quantile(times, q)) * 1000 for q in (0.5, 0.95)) if times else (None, None)
    return {"texts_per_second": rate or None, "latency_p50_ms": middle, "latency_p95_ms": slow}
