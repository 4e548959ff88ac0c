"""`CrossEncoder`: two texts in one row, one score out. It reads both at once: better than two vectors, and far slower."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from twinvec.errors import EncodeError, InputTypeError, ModelError, UsageError
from twinvec.model.backbone import PRECISIONS, check_weights, load_tokenizer, quiet, window_of
from twinvec.model.engines.torch_engine import check_precision, pick_device
from twinvec.model.layout import read_object
from twinvec.model.resolve import first_line, resolve
from twinvec.model.threads import respect_quota
from twinvec.progress import Progress
from twinvec.records import Vectors
from twinvec.text import without_surrogates

_BLOCK = 8_192  # pairs tokenised and sorted by length together
_CPU_TOKENS, _GPU_TOKENS = 1_024, 32_768  # of a padded batch: on a CPU larger ones fall out of the caches
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"Sigmoid": torch.sigmoid, "Identity": lambda x: x}


@dataclass(frozen=True, slots=True)
class CrossScores:
    """Scores float32 (n,) of the pairs; how many pairs were longer than the window, and how many tokens they lost in all."""

    scores: Vectors
    truncated: int
    truncated_tokens: int
    longest: int
    seconds: float

    def warnings(self) -> list[str]:
        """A sentence when something was lost."""
        if not self.truncated:
            return []
        return [
            f"cross-encoder: {self.truncated} of {len(self.scores)} pairs were longer than its window and lost {self.truncated_tokens} tokens "
            f"in all (longest pair: {self.longest} tokens)"
        ]


class CrossEncoder:
    """Scores pairs of texts with a transformers model for sequence classification. Make one with `CrossEncoder.load`.

    One label: its logit through the activation that the folder names (sentence-transformers writes it), a sigmoid where it names none.
    Two labels: the probability of the second, as in models trained on 0/1 pairs. Larger means that the texts belong together.
    """

    def __init__(
        self, model: nn.Module, tokenizer: Any, *, name: str, max_tokens: int, activation: str = "Sigmoid", precision: str = "float32"
    ) -> None:
        self.model, self.tokenizer, self.name, self.max_tokens = model, tokenizer, name, max_tokens
        self.activation, self.precision = activation, precision
        config: Any = model.config
        self.labels = int(config.num_labels)
        # Tokenizers give token types to models that have a table of one, or none.
        self._types = "token_type_ids" in inspect.signature(model.forward).parameters and getattr(config, "type_vocab_size", 0) > 1
        self.threads = respect_quota()

    @staticmethod
    def load(
        name: str | Path, *, device: str | None = None, precision: str = "float32", revision: str | None = None, max_tokens: int | None = None
    ) -> CrossEncoder:
        """Load a folder (transformers, or what sentence-transformers saves) or a hub id. ModelError when it cannot score pairs."""
        place = pick_device(device)
        check_precision(precision, place)
        folder = resolve(name, revision)
        model, tokenizer = _classifier(folder, precision), load_tokenizer(folder)
        settings = {**_json(folder / "config.json"), **_json(folder / "config_sentence_transformers.json")}
        asked = _json(folder / "sentence_bert_config.json").get("max_seq_length")
        window = window_of(_body(model), tokenizer, asked if isinstance(asked, int) and asked > 0 else None)
        least = tokenizer.num_special_tokens_to_add(pair=True) + 2
        if max_tokens is not None and not least <= max_tokens <= window:
            raise UsageError(f"max_tokens = {max_tokens}: this cross-encoder takes {least} to {window} tokens a pair")
        if window < least:
            raise ModelError(f"{folder}: a window of {window} tokens holds no pair of texts ({least} at least)")
        _settle_padding(folder, model, tokenizer)
        model.to(place)
        activation = _activation(folder, settings)
        return CrossEncoder(model, tokenizer, name=str(name), max_tokens=max_tokens or window, activation=activation, precision=precision)

    def scores(self, pairs: Iterable[Sequence[str]], *, batch_tokens: int | None = None, progress: bool = False) -> Vectors:
        """float32 (n,): the score of each pair (text, text), in their order. A pair longer than the window loses the end of its longer text."""
        return self.scores_with_report(pairs, batch_tokens=batch_tokens, progress=progress).scores

    def scores_with_report(self, pairs: Iterable[Sequence[str]], *, batch_tokens: int | None = None, progress: bool = False) -> CrossScores:
        """As `scores`, with the account of what was cut."""
        start = time.perf_counter()
        if batch_tokens is not None and batch_tokens < 1:
            raise UsageError(f"batch_tokens = {batch_tokens}: wanted a number of tokens, 1 or more")
        listed = _as_pairs(pairs)
        place: dict[tuple[str, str], int] = {}
        which = np.fromiter((place.setdefault(pair, len(place)) for pair in listed), np.int64, len(listed))
        distinct = list(place)
        scores = np.zeros(len(distinct), dtype=np.float32)
        full = np.zeros(len(distinct), dtype=np.int64)
        was_training = self.model.training
        self.model.eval()
        try:
            with Progress(len(distinct), "score pairs", show=progress, unit="pairs") as bar, torch.inference_mode():
                for at in range(0, len(distinct), _BLOCK):
                    block = slice(at, at + _BLOCK)
                    rows, full[block] = self._rows(distinct[block])
                    scores[block] = self._forward(rows, batch_tokens, bar)
        finally:
            self.model.train(was_training)
        bad = np.flatnonzero(~np.isfinite(scores[which]))
        if len(bad):
            raise EncodeError(f"cross-encoder {self.name}: {len(bad)} of {len(listed)} pairs scored NaN or infinity (first: row {bad[0]}, from 0)")
        lost = np.maximum(full[which] - self.max_tokens, 0)
        longest = int(full.max(initial=0))
        return CrossScores(scores[which], int((lost > 0).sum()), int(lost.sum()), longest, time.perf_counter() - start)

    def _rows(self, pairs: Sequence[tuple[str, str]]) -> tuple[list[dict[str, list[int]]], list[int]]:
        """Token rows with special tokens, cut to the window, and the lengths that they had before."""
        rows = self._tokenise(pairs, None)
        lengths = [len(row["input_ids"]) for row in rows]
        long = [i for i, length in enumerate(lengths) if length > self.max_tokens]
        if long:
            for i, row in zip(long, self._tokenise([pairs[i] for i in long], self.max_tokens), strict=True):
                rows[i] = row
        return rows, lengths

    def _tokenise(self, pairs: Sequence[tuple[str, str]], limit: int | None) -> list[dict[str, list[int]]]:
        cut: dict[str, Any] = {"truncation": False} if limit is None else {"truncation": "longest_first", "max_length": limit}
        first, second = [a for a, _ in pairs], [b for _, b in pairs]
        with quiet():  # "sequence longer than the model's maximum": counted here, and cut
            found = self.tokenizer(first, second, padding=False, return_attention_mask=False, **cut)
        return [{key: list(values[i]) for key, values in found.items()} for i in range(len(pairs))]

    def _forward(self, rows: list[dict[str, list[int]]], budget: int | None, bar: Progress) -> Vectors:
        device = next(self.model.parameters()).device
        budget = budget or (_CPU_TOKENS if device.type == "cpu" else _GPU_TOKENS)
        out = np.zeros(len(rows), dtype=np.float32)
        order = sorted(range(len(rows)), key=lambda i: (-len(rows[i]["input_ids"]), i))
        at = 0
        while at < len(order):
            step = max(1, budget // len(rows[order[at]]["input_ids"]))  # the first is the longest
            chunk = order[at : at + step]
            logits = self.model(**self._padded([rows[i] for i in chunk], device)).logits.float()
            out[chunk] = self._score(logits).cpu().numpy()
            bar.advance(len(chunk))
            at += step
        return out

    def _padded(self, rows: list[dict[str, list[int]]], device: torch.device) -> dict[str, torch.Tensor]:
        """Padded on the right; models that read the last token find it by the padding's number."""
        width = max(len(row["input_ids"]) for row in rows)
        fill = {"input_ids": int(self.tokenizer.pad_token_id), "token_type_ids": int(getattr(self.tokenizer, "pad_token_type_id", 0) or 0)}
        wanted = [key for key in rows[0] if key == "input_ids" or (key == "token_type_ids" and self._types)]
        batch = {key: torch.tensor([[*row[key], *[fill[key]] * (width - len(row[key]))] for row in rows], device=device) for key in wanted}
        batch["attention_mask"] = torch.tensor([[1] * len(row["input_ids"]) + [0] * (width - len(row["input_ids"])) for row in rows], device=device)
        return batch

    def _score(self, logits: torch.Tensor) -> torch.Tensor:
        if self.labels == 2:
            return logits.softmax(1)[:, 1]
        return _ACTIVATIONS[self.activation](logits[:, 0])

    def __repr__(self) -> str:
        return f"CrossEncoder({self.name!r}, max_tokens={self.max_tokens}, labels={self.labels}, precision={self.precision!r})"


def _as_pairs(pairs: Any) -> list[tuple[str, str]]:
    if isinstance(pairs, (str, bytes, dict)):
        raise InputTypeError(f"scores got a {type(pairs).__name__}; give a list of pairs of texts")
    found = []
    for i, pair in enumerate(pairs):
        if isinstance(pair, str) or not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise InputTypeError(f"scores: row {i} is {str(pair)[:60]!r} ({type(pair).__name__}), wanted a pair of texts")
        found.append((without_surrogates(pair[0]), without_surrogates(pair[1])))
    return found


def _classifier(folder: Path, precision: str) -> nn.Module:
    """The model with its head, every weight found in the file."""
    from safetensors import SafetensorError
    from transformers import AutoModelForSequenceClassification

    check_weights(folder)
    try:
        with quiet():
            model, report = AutoModelForSequenceClassification.from_pretrained(
                folder, dtype=PRECISIONS[precision], use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True
            )
    except SafetensorError as err:
        raise ModelError(f"{folder}: the weights cannot be read ({err}); the file is damaged or cut short, fetch it again") from err
    except Exception as err:  # transformers raises whatever a config or a modelling file raises
        raise ModelError(f"{folder}: transformers cannot load this as a cross-encoder ({type(err).__name__}: {first_line(err)})") from err
    if mismatched := sorted(report["mismatched_keys"]):
        key, stored, wanted = mismatched[0]
        raise ModelError(f"{folder}: {key} is {tuple(stored)} in the file, {tuple(wanted)} by config.json; the two are of different models")
    missing = sorted(key for key in report["missing_keys"] if "position_ids" not in key)
    if missing:
        raise ModelError(
            f"{folder}: no head that scores pairs ({missing[0]} is not in the file, it would be random): this is an encoder, or a folder that "
            "was never trained on pairs; give a cross-encoder (a model for sequence classification)"
        )
    labels = int(model.config.num_labels)
    if labels > 2:
        raise ModelError(f"{folder}: {labels} labels: a cross-encoder has one score, or two labels (different, same)")
    found: nn.Module = model.eval()
    return found


def _body(model: Any) -> nn.Module:
    """The backbone inside, whose embeddings tell the window."""
    found: nn.Module = getattr(model, model.base_model_prefix, model)
    return found


def _settle_padding(folder: Path, model: Any, tokenizer: Any) -> None:
    """Tokenizer and model must agree on the padding token: decoders with a head find the last token of a row by it."""
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ModelError(f"{folder}: the tokenizer has neither a padding nor an end token, so pairs cannot share a batch")
        tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = tokenizer.pad_token_id


def _activation(folder: Path, settings: dict[str, Any]) -> str:
    """ "Sigmoid" or "Identity", by any of the three places where sentence-transformers has written it. Nothing is imported by that name."""
    nested = settings.get("sentence_transformers")
    inner = nested.get("activation_fn") if isinstance(nested, dict) else None
    named = settings.get("activation_fn") or inner or settings.get("sbert_ce_default_activation_function") or "torch.nn.modules.activation.Sigmoid"
    short = str(named).rpartition(".")[2]
    if short not in _ACTIVATIONS or not str(named).startswith("torch.nn."):
        raise ModelError(f"{folder}: activation {named!r}: wanted one of {', '.join(f'torch.nn.{name}' for name in _ACTIVATIONS)}")
    return short


def _json(path: Path) -> dict[str, Any]:
    """An object of JSON; empty when the file is not there."""
    return read_object(path) if path.is_file() else {}
