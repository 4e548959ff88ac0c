"""Who turns blocks of texts into vectors: this process here, several of them (`processes`), or a cluster (`cluster`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from twinvec.errors import EncodeError, UsageError, nearest
from twinvec.records import Encoding, Vectors

if TYPE_CHECKING:
    from twinvec.model.encoder import Encoder

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Calls:
    """How each text is encoded: the options of `Encoder.encode`."""

    prompt: str | None = None
    on_long: str = "truncate"
    batch_tokens: int | None = None


@dataclass(frozen=True)
class ModelSpec:
    """A model that several processes can load: what `Encoder.load` takes, None left out."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def load(self, device: str | None = None, threads: int | None = None) -> Encoder:
        from twinvec.model.encoder import Encoder

        given = {"threads": threads, **self.options, **({"device": device} if device else {})}
        return Encoder.load(self.name, **{key: value for key, value in given.items() if value is not None})


@dataclass(frozen=True)
class Facts:
    """What the rest of a job must know of the model, whoever has it loaded."""

    name: str
    fingerprint: str
    dimensions: int
    max_tokens: int
    prompts: dict[str, str]
    default_prompt: str | None
    engine: str
    precision: str
    threads: int
    source: str | None
    matryoshka: tuple[int, ...] = ()

    @staticmethod
    def of(encoder: Encoder) -> Facts:
        engine = getattr(encoder.engine, "name", encoder.engine)
        return Facts(
            name=str(encoder.name),
            fingerprint=encoder.fingerprint,
            dimensions=int(encoder.dimensions),
            max_tokens=int(encoder.max_tokens),
            prompts=dict(encoder.prompts),
            default_prompt=encoder.default_prompt,
            engine=str(engine),
            precision=encoder.precision,
            threads=int(encoder.threads),
            source=str(encoder.source) if encoder.source else None,
            matryoshka=_nested(encoder.source),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(found: dict[str, Any]) -> Facts:
        return Facts(**{**found, "matryoshka": tuple(found["matryoshka"])})

    def prompt_text(self, prompt: str | None) -> str:
        """As `Encoder.prompt_text`."""
        if prompt is None:
            return self.prompts[self.default_prompt] if self.default_prompt else ""
        if prompt and prompt not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise UsageError(f"prompt = {prompt!r}: this model ({self.name}) knows these prompts: {known}{nearest(prompt, self.prompts)}")
        return self.prompts[prompt] if prompt else ""

    def encode_with_report(self, texts: Any, **options: Any) -> Encoding:
        """A collection asks that its model has this; it is given vectors and never calls it."""
        raise EncodeError("this stands for a model that is loaded elsewhere; give vectors, not texts")


def _nested(source: Path | None) -> tuple[int, ...]:
    """The dimensions that a model was trained to be cut to: `matryoshka` in the recipe of the run whose `best/` it is."""
    if source is None:
        return ()
    try:
        recipe = json.loads((source.parent / "run.json").read_text(encoding="utf-8"))["recipe"]
        parts = [recipe, *recipe.get("source", []), *(part for stage in recipe.get("stage", []) for part in (stage, *stage.get("source", [])))]
        return tuple(sorted({int(size) for part in parts for size in part.get("matryoshka") or ()}, reverse=True))
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return ()


@dataclass(frozen=True)
class Computed:
    """Vectors float32 (n, D) of n texts, and the counts (n, 5) of `records.Encoding`."""

    vectors: Vectors
    counts: Counts


@runtime_checkable
class Computer(Protocol):
    """A context manager. `results` asks its iterator for no more than a few blocks ahead, and answers in order."""

    processes: int

    @property
    def facts(self) -> Facts: ...

    def results(self, blocks: Iterator[list[str]], calls: Calls) -> Iterator[Computed]: ...

    def __enter__(self) -> Computer: ...

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None: ...


def encode_block(encoder: Encoder, texts: list[str], calls: Calls) -> Computed:
    """One block by one encoder."""
    if not texts:
        return Computed(np.zeros((0, encoder.dimensions), np.float32), np.zeros((0, 5), np.int64))
    found = encoder.encode_with_report(texts, **asdict(calls))
    if found.counts is None:
        raise EncodeError(f"the encoder {encoder.name} gives no counts for each row; encode with a twinvec Encoder")
    return Computed(found.vectors, found.counts)


class Here:
    """The encoder of this process."""

    processes = 1

    def __init__(self, model: ModelSpec | Encoder, device: str | None = None) -> None:
        self.encoder = model.load(device) if isinstance(model, ModelSpec) else model
        self.facts = Facts.of(self.encoder)

    def results(self, blocks: Iterator[list[str]], calls: Calls) -> Iterator[Computed]:
        for texts in blocks:
            yield encode_block(self.encoder, texts, calls)

    def __enter__(self) -> Here:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        pass
