"""`Encoder`: texts in, vectors out, with an account of what happened to each text."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from twinvec.errors import EncodeError, ModelError, TwinvecWarning, UsageError, choose, nearest
from twinvec.model.engines import Engine
from twinvec.model.fingerprint import fingerprint_of
from twinvec.model.inputs import as_texts
from twinvec.model.tokens import Prompt, Tokens
from twinvec.progress import Progress
from twinvec.records import EncodeReport, Encoding, Vectors

if TYPE_CHECKING:
    from twinvec.model.net import Net

Numbers = npt.NDArray[np.int64]
ON_LONG = ("truncate", "error", "split")
_BLOCK_TEXTS, _BLOCK_CHARACTERS = 16_384, 1 << 20
"""Distinct texts tokenised and sorted together: enough to fill length groups, little enough to stay small in memory (a token costs 0.1 KB here)."""


@dataclass
class _Rows:
    """Token rows of a block of texts: rows[i] belongs to text owner[i]; a text split in pieces owns several."""

    rows: list[list[int]]
    owner: list[int]
    full: list[int]
    unknown: list[int]


class Encoder:
    """A sentence encoder. Make one with `Encoder.load`. `.engine` computes, `.tokens` tokenises; `.net` is the torch engine's module.

    engine: an `Engine`, or a `Net`, which then runs on torch in `precision`. One encoder may be used from several threads at once.
    """

    def __init__(
        self, engine: Engine | Net, tokens: Tokens, *, name: str, prompts: dict[str, str] | None = None, default_prompt: str | None = None,
        precision: str = "float32", source: Path | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(engine, Engine):
            from twinvec.model.engines.torch_engine import TorchEngine

            engine = TorchEngine(engine, precision)
        self.engine: Engine = engine
        self.tokens, self.name, self.source = tokens, name, source
        self.prompts, self.default_prompt = dict(prompts or {}), default_prompt
        self._wide: Encoder | None = None  # the same in float32, made when a lower precision gives a vector that is not finite

    @staticmethod
    def load(
        name: str | Path, *, device: str | None = None, precision: str | None = None, revision: str | None = None, pooling: str | None = None,
        max_tokens: int | None = None, trust_remote_code: bool = False, engine: str | None = None, profile: str | Path | None = None,
        threads: int | None = None,
    ) -> Encoder:  # fmt: skip
        """Load "minilm", a model folder (twinvec, sentence-transformers, bare transformers, static) or a hub id at a revision.

        engine: "torch"; "ctranslate2" or "onnx" (made by `twinvec export`, no torch is imported); "static" for static embeddings; "auto" takes
        what `twinvec tune` has chosen on this machine, if it has. None is torch, or static where the model is static. profile: the file with
        tune's choice, where it does not lie in the model folder. precision: "float32" (also None), "bf16", "int8", or "float16" (GPU only).
        threads: how many it computes with; None is what the container grants. pooling: overrides the folder, for example "cls" or "cls+mean".
        max_tokens: a smaller window.
        Raises ModelError when the model is not what it says, UsageError for a wrong option.
        """
        from twinvec.model.folder import load_encoder

        return load_encoder(
            name, device=device, precision=precision, revision=revision, pooling=pooling, max_tokens=max_tokens,
            trust_remote_code=trust_remote_code, engine=engine, profile=profile, threads=threads,
        )  # fmt: skip

    def save(self, folder: str | Path) -> Path:
        """Write a folder that works alone, here, in sentence-transformers and in transformers. An existing folder is replaced whole."""
        from twinvec.model.folder import save_encoder

        return save_encoder(self, Path(folder))

    @property
    def net(self) -> Net:
        """The torch module. UsageError where the engine is another than torch."""
        return self.engine.net

    @property
    def precision(self) -> str:
        return self.engine.precision

    @property
    def threads(self) -> int:
        return self.engine.threads

    @property
    def dimensions(self) -> int:
        return self.engine.dimensions

    @property
    def normalizes(self) -> bool:
        return self.engine.normalizes

    @property
    def max_tokens(self) -> int:
        return self.tokens.max_tokens

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits over weights, tokenizer, pooling, heads, prompts and window. Computed once; a model in training has none to rely on.

        The precision it runs in does not count: a model loaded in bf16 searches the collection that its float32 self has filled.
        """
        if self.engine.name == "torch" and self.precision in ("bf16", "float16") and self.source is not None:
            # The weights here are rounded, so the folder is read once more.
            return self._in_float32("cpu").fingerprint
        return fingerprint_of(self.engine.parts(self.tokens, self.prompts, self.default_prompt))

    def _in_float32(self, device: str | None = None) -> Encoder:
        """The same model on torch in float32, from its folder."""
        assert self.source is not None
        found = Encoder.load(self.source, device=device, engine="torch", pooling="+".join(self.engine.pooling), max_tokens=self.max_tokens)
        found.prompts, found.default_prompt = dict(self.prompts), self.default_prompt
        return found

    def prompt_text(self, prompt: str | None) -> str:
        """The text of a prompt by its name; None means the model's default prompt, "" none at all. UsageError for an unknown name."""
        if prompt is None:
            return self.prompts[self.default_prompt] if self.default_prompt else ""
        if prompt == "":
            return ""
        if prompt not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise UsageError(f"prompt = {prompt!r}: this model ({self.name}) knows these prompts: {known}{nearest(prompt, self.prompts)}")
        return self.prompts[prompt]

    def count_tokens(self, texts: Any) -> list[int]:
        """Tokens of each text, special tokens included, before any cutting."""
        return self.tokens.count(as_texts(texts))

    def encode(
        self, texts: Any, *, prompt: str | None = None, batch_tokens: int | None = None, on_long: str = "truncate", progress: bool = False
    ) -> Vectors:
        """Vectors float32 (n, D) for a string, list, tuple, Series, array or generator of strings; one string gives (1, D).

        prompt: a name from `.prompts`, put before each text; None takes the model's default. on_long: "truncate" cuts a text to the window,
        "error" refuses it with its row, "split" encodes it in pieces and takes their mean weighted by tokens.
        A row's vector does not depend on its neighbours (float32: within 1e-5); an empty text gives the same finite vector every time.
        """
        return self.encode_with_report(texts, prompt=prompt, batch_tokens=batch_tokens, on_long=on_long, progress=progress).vectors

    def encode_with_report(
        self, texts: Any, *, prompt: str | None = None, batch_tokens: int | None = None, on_long: str = "truncate", progress: bool = False
    ) -> Encoding:
        """As `encode`, with the account of what was cut, empty or unknown."""
        start = time.perf_counter()
        choose("on_long", on_long, ON_LONG)
        if batch_tokens is not None and batch_tokens < 1:
            raise UsageError(f"batch_tokens = {batch_tokens}: wanted a number of tokens, 1 or more")
        listed = as_texts(texts)
        lead = self.tokens.prompt(self.tokens.clean(self.prompt_text(prompt)))
        place: dict[str, int] = {}
        which = np.fromiter((place.setdefault(text, len(place)) for text in listed), dtype=np.int64, count=len(listed))
        distinct = list(place)
        vectors = np.zeros((len(distinct), self.dimensions), dtype=np.float32)
        counts = np.zeros((len(distinct), 5), dtype=np.int64)  # tokens used, tokens in full, unknown, content, pieces
        with Progress(len(distinct), "encode", show=progress, unit="texts") as bar:
            for at, stop in _blocks(distinct):
                block = distinct[at:stop]
                rows = self._rows(block, lead, on_long)
                self._account(rows, counts[at:stop], lead)
                if on_long == "error":
                    self._refuse_long(counts[at:stop], block, which, at)
                vectors[at:stop] = self._forward(rows, len(block), lead, batch_tokens, bar)
                self._redo(vectors[at:stop], rows, lead, batch_tokens)
        self._require_finite(vectors, which)
        report = self._report(listed, which, counts, lead, time.perf_counter() - start)
        several = len(distinct) < len(listed)
        return Encoding(vectors[which] if several else vectors, report, counts[which] if several else counts)

    def _rows(self, texts: Sequence[str], prompt: Prompt, on_long: str) -> _Rows:
        """Tokenise; a prompt is text before the text, as it was in training."""
        content = self.tokens.content([prompt.text + text for text in texts] if prompt.text else texts)
        unknown_id = self.tokens.unknown_id
        asked = max(prompt.tokens - len(self.tokens.prefix), 0)  # a long prompt must not hide that the text itself is unknown
        unknown = [row[asked:].count(unknown_id) if unknown_id is not None else 0 for row in content]
        full = [len(row) for row in content]
        if on_long != "split":
            return _Rows([self.tokens.cut(row) for row in content], list(range(len(texts))), full, unknown)
        rows, owner = [], []
        for i, row in enumerate(content):
            pieces = self.tokens.pieces(row, prompt) if len(row) > self.tokens.room else [self.tokens.cut(row)]
            rows += pieces
            owner += [i] * len(pieces)
        return _Rows(rows, owner, full, unknown)

    def _account(self, rows: _Rows, counts: Numbers, prompt: Prompt) -> None:
        extra = len(self.tokens.prefix) + len(self.tokens.suffix)
        np.add.at(counts[:, 0], rows.owner, [len(row) for row in rows.rows])
        counts[:, 1] = np.asarray(rows.full) + extra
        counts[:, 2] = rows.unknown
        counts[:, 3] = np.maximum(np.asarray(rows.full) - max(prompt.tokens - len(self.tokens.prefix), 0), 0)
        np.add.at(counts[:, 4], rows.owner, 1)

    def _refuse_long(self, counts: Numbers, block: list[str], which: Numbers, at: int) -> None:
        for i in np.flatnonzero(counts[:, 1] > self.max_tokens):
            row = int(np.flatnonzero(which == at + i)[0])
            raise EncodeError(
                f"row {row} has {counts[i, 1]} tokens, the model's window is {self.max_tokens} ({block[i][:40]!r}...); "
                "use on_long='truncate' to cut it or on_long='split' to encode it in pieces"
            )

    def _forward(self, rows: _Rows, n: int, prompt: Prompt, budget: int | None, bar: Progress) -> Vectors:
        lengths = [len(row) for row in rows.rows]
        first = np.diff(rows.owner, prepend=-1) > 0  # the bar counts texts, not their pieces
        try:
            pieces = self.engine.forward(rows.rows, prompt.tokens, budget, lambda chunk: bar.advance(int(first[list(chunk)].sum())))
        except IndexError as err:
            highest = max(max(row, default=0) for row in rows.rows)
            raise ModelError(
                f"{self.name}: {err}: the tokenizer gives tokens up to {highest} and rows up to {max(lengths)} tokens, "
                "more than the model has embeddings for; tokenizer and weights do not belong together"
            ) from err
        if len(lengths) == n:
            return pieces
        weight = np.asarray([max(length - prompt.tokens, 1) for length in lengths], dtype=np.float32)[:, None]
        out, total = np.zeros((n, self.dimensions), dtype=np.float32), np.zeros((n, 1), dtype=np.float32)
        np.add.at(out, rows.owner, pieces * weight)
        np.add.at(total, rows.owner, weight)
        out /= total
        several = np.bincount(rows.owner, minlength=n) > 1
        out[~several] = pieces[np.isin(rows.owner, np.flatnonzero(~several))]
        if self.normalizes:
            norms = np.linalg.norm(out[several], axis=1, keepdims=True)
            out[several] /= np.where(norms > 0, norms, 1)
        return out

    def _redo(self, vectors: Vectors, rows: _Rows, prompt: Prompt, budget: int | None) -> None:
        """Encode texts with a NaN or infinity once more, in float32, where this is a lower precision and the model's folder is there."""
        bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if not len(bad) or self.precision == "float32" or self.source is None:
            return
        if self._wide is None:
            self._wide = self._in_float32()
        place = {text: i for i, text in enumerate(bad.tolist())}
        members = [i for i, text in enumerate(rows.owner) if text in place]
        again = _Rows([rows.rows[i] for i in members], [place[rows.owner[i]] for i in members], [], [])
        vectors[bad] = self._wide._forward(again, len(bad), prompt, budget, Progress(None, "encode", show=False))
        warn(f"{len(bad)} texts gave NaN or infinity in {self.precision} and were encoded again in float32")

    def _require_finite(self, vectors: Vectors, which: Numbers) -> None:
        bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(bad):
            rows = np.flatnonzero(np.isin(which, bad))
            shown = ", ".join(str(i) for i in rows[:10])
            remedy = "load the model with precision='float32'" if self.precision != "float32" else "the model's weights overflow on this text"
            raise EncodeError(f"{len(rows)} of {len(which)} rows came out as NaN or infinity (rows, from 0: {shown}): {remedy}")

    def _report(self, texts: list[str], which: Numbers, counts: Numbers, prompt: Prompt, seconds: float) -> EncodeReport:
        each = counts[which]
        long = each[:, 1] > self.max_tokens
        cut = long & (each[:, 4] == 1)
        content = int(each[:, 3].sum())
        return EncodeReport(
            rows=len(texts),
            dimensions=self.dimensions,
            tokens=int(each[:, 0].sum()),
            truncated=int(cut.sum()),
            truncated_tokens=int((each[cut, 1] - self.max_tokens).sum()),
            split=int((each[:, 4] > 1).sum()),
            longest=int(each[:, 1].max()) if len(each) else 0,
            empty=[i for i, text in enumerate(texts) if not text or text.isspace()],
            unknown_rate=int(each[:, 2].sum()) / content if content else 0.0,
            prompt=prompt.text,
            engine=self.engine.name,
            precision=self.precision,
            threads=self.threads,
            seconds=seconds,
        )

    def __repr__(self) -> str:
        engine = "" if self.engine.name == "torch" else f"engine={self.engine.name!r}, "
        return (
            f"Encoder({self.name!r}, {engine}dimensions={self.dimensions}, max_tokens={self.max_tokens}, "
            f"pooling={'+'.join(self.engine.pooling)!r}, precision={self.precision!r})"
        )


def _blocks(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Bounds [at, stop) of runs of texts that are few and short enough to be tokenised together."""
    at = characters = 0
    for i, text in enumerate(texts):
        if i > at and (i - at == _BLOCK_TEXTS or characters + len(text) > _BLOCK_CHARACTERS):
            yield at, i
            at, characters = i, 0
        characters += len(text)
    if at < len(texts):
        yield at, len(texts)


def warn(message: str) -> None:
    warnings.warn(message, TwinvecWarning, stacklevel=3)


__all__ = ["Encoder", "warn"]
