"""A task: one objective over one data set. Which texts are encoded, with which prompts, and what the loss is told of each row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from twinvec.data.dataset import Dataset
from twinvec.data.pairs import text_ids
from twinvec.errors import TrainingError, UsageError
from twinvec.model.encoder import Encoder
from twinvec.model.tokens import Prompt
from twinvec.objectives.batch_triplets import batch_triplet_loss
from twinvec.objectives.classification import ClassificationHead, classification_loss
from twinvec.objectives.contrastive import contrastive_loss, online_contrastive_loss
from twinvec.objectives.distillation import margin_mse_loss, vector_distillation_loss
from twinvec.objectives.infonce import Keys, infonce_parts
from twinvec.objectives.matryoshka import check_dimensions, matryoshka_parts
from twinvec.objectives.parts import Part
from twinvec.objectives.ranking import angle_total, cosent_loss
from twinvec.objectives.regression import regression_loss
from twinvec.objectives.rows import cosine
from twinvec.objectives.triplet import triplet_loss
from twinvec.training.fit import LABELLED, settings_of
from twinvec.training.source import FIRST, Source, side_name
from twinvec.training.step import Batch
from twinvec.training.teacher import FrozenVectors

BATCH_TRIPLETS: dict[str, Any] = {
    "batch_hard_triplet": "hard",
    "batch_hard_soft_triplet": "hard_soft",
    "batch_semi_hard_triplet": "semi_hard",
    "batch_all_triplet": "all",
}


def prompt_name(column: str, source: Source) -> str | None:
    """The prompt of a column: its own in column_prompts, that of a column on the same side, or `prompt`."""
    named = source.column_prompts
    for name in (column, side_name(column)):
        if name in named:
            return named[name]
    same_side = [name for key, name in named.items() if (key in FIRST) == (column in FIRST)]
    return same_side[0] if same_side else source.prompt


class Temperature(nn.Module):
    """A learned temperature, as its logarithm so that it stays above 0 (CLIP 2021, section 2.3)."""

    LEAST = 0.01  # CLIP's clip of the scale at 100

    def __init__(self, start: float) -> None:
        super().__init__()
        if start <= self.LEAST:  # there it would have no gradient
            raise UsageError(f"temperature = {start}: a learned one stays above {self.LEAST}; start higher, or set learn_temperature = false")
        self.log = nn.Parameter(torch.tensor(float(np.log(start))))

    def forward(self) -> Tensor:
        return self.log.exp().clamp(min=self.LEAST)


class VectorTask:
    """Texts to vectors to loss. `parts(columns, rows)`: columns holds one (B, D) tensor a text column; the parts add up to the batch's mean loss."""

    of_tokens = False

    def __init__(
        self, source: Source, data: Dataset, encoder: Encoder, folder: Path, *, normalize: bool, device: str | None = None, show: bool = False,
        dry: bool = False,
    ) -> None:  # fmt: skip
        self.source, self.data, self.encoder, self.objective = source, data, encoder, str(source.objective)
        self.twice = self.objective == "simcse" and data.kind == "texts"
        names = list(data.columns) * (2 if self.twice else 1)
        self.texts = [data.columns[name] for name in names]
        self.prompts = [self._prompt(prompt_name(name, source)) for name in names]
        self.normalize = normalize or (self.objective == "distillation" and encoder.normalizes)
        self.dropout = encoder.net.drops()
        if self.twice and not self.dropout:
            raise UsageError("objective = 'simcse' on bare texts needs dropout: it makes the two vectors of a text differ; set dropout = 0.1")
        self.options = settings_of(source)
        self.sizes = self._sizes()
        self.score_range = data.score_range or (0.0, 1.0)
        self.heads: nn.Module | None = self._heads()
        self.labels = self._labels(data)
        self.keys = self._keys(data)
        self._frozen(folder, device, show, dry)

    # ---- made once

    def _prompt(self, name: str | None) -> Prompt:
        tokens = self.encoder.tokens
        return tokens.prompt(tokens.clean(self.encoder.prompt_text(name)))

    def _sizes(self) -> list[int]:
        """The dimensions the loss is computed at: the full size first, unless it stands in the list. Checked here, before anything is trained."""
        whole, source = self.encoder.dimensions, self.source
        if not source.matryoshka:
            if source.matryoshka_weights:
                raise UsageError("matryoshka_weights: there is no matryoshka = [...] that they would weigh")
            return [whole]
        made = list(source.matryoshka) if whole in source.matryoshka else [whole, *source.matryoshka]
        if max(made) > whole:
            raise UsageError(f"matryoshka = {source.matryoshka}: the model has {whole} dimensions; leave out what is above that")
        check_dimensions(made, source.matryoshka_weights or None)
        return made

    def _heads(self) -> nn.Module | None:
        if self.objective == "classification":
            classes = 3 if self.data.kind == "nli" else 2
            return nn.ModuleDict({str(size): ClassificationHead(size, classes, self.source.concatenation) for size in self.sizes})
        if self.objective in ("infonce", "simcse") and self.source.learn_temperature:
            return Temperature(self.source.temperature)
        return None

    def _labels(self, data: Dataset) -> Tensor | None:
        """(n,) or None: class numbers, or scores as they stand (dev may reach over a part of the range only, and its scores mean the same)."""
        if data.labels is None:
            return None
        whole = self.objective == "classification" or self.objective in BATCH_TRIPLETS
        return torch.tensor(data.labels).long() if whole else torch.tensor(data.labels, dtype=torch.float32)

    def _keys(self, data: Dataset) -> Tensor | None:
        """(columns, n) int64: equal texts have equal numbers. None when nothing is to be masked."""
        self.ids: dict[str, npt.NDArray[np.int64]] | None = None
        if self.objective not in ("infonce", "simcse") or not self.source.mask_same:
            return None
        self.ids = text_ids(data)
        return torch.from_numpy(np.stack(list(self.ids.values()) * (2 if self.twice else 1)))

    def _frozen(self, folder: Path, device: str | None, show: bool, dry: bool = False) -> None:
        self.teacher: FrozenVectors | None = None
        source, made = self.source, folder / "teacher"
        if self.objective == "distillation" or (self.objective == "margin_mse" and self.labels is None):
            assert source.teacher is not None
            columns = self.texts[:1] if self.objective == "distillation" else self.texts
            wanted = self.encoder.dimensions if self.objective == "distillation" else None
            self.teacher = FrozenVectors(source.teacher, source.teacher_prompt, columns, made, device, show, dimensions=wanted, dry=dry)
        if self.objective in ("infonce", "simcse") and source.guide:
            if source.false_negative_margin is None:
                raise UsageError("guide: a guide judges false negatives; say from where on with false_negative_margin, e.g. 0")
            self.teacher = FrozenVectors(source.guide, source.teacher_prompt, self.texts, made, device, show, dry=dry)

    def on(self, data: Dataset) -> VectorTask:
        """The same task, heads included, over other data; frozen vectors are not computed for it unless the loss needs them."""
        other = VectorTask.__new__(VectorTask)
        other.__dict__.update(self.__dict__)
        other.data = data
        other.texts = [data.columns[name] for name in data.columns] * (2 if self.twice else 1)
        if len(other.texts) != len(self.texts):
            raise UsageError(
                f"{data.path} has {len(other.texts)} columns of texts, the training data {len(self.texts)}; metric = 'loss' needs the same"
            )
        if self.objective in LABELLED and data.kind != self.data.kind:
            raise UsageError(f"{data.path} holds {data.kind}, the training data {self.data.kind}; metric = 'loss' needs the same, or choose another")
        low, high = self.score_range
        if self.objective == "regression" and data.labels and not low <= min(data.labels) <= max(data.labels) <= high:
            raise UsageError(
                f"{data.path} has scores from {min(data.labels):g} to {max(data.labels):g}, the training data from {low:g} to {high:g}: "
                f"metric = 'loss' needs one scale; give score_range, e.g. '{min(low, *data.labels):g},{max(high, *data.labels):g}'"
            )
        other.labels = self._labels(data)
        other.keys = self._keys(data)
        if self.teacher is not None:
            other._frozen(self.teacher.folder.parent, str(self.encoder.net.device), False)
        return other

    # ---- made for a batch

    @property
    def skips_matter(self) -> bool:
        return not self.encoder.net.include_prompt

    def prepare(self, rows: Sequence[int], rng: np.random.Generator | None = None) -> Batch:
        """Token rows of a batch. Without dropout equal texts are encoded once; with it each has its own mask, so each is encoded."""
        tokens = self.encoder.tokens
        place: dict[tuple[int, str], int] = {}
        index: list[int] = []
        made: list[list[int]] = []
        skips: list[int] = []
        for texts, prompt in zip(self.texts, self.prompts, strict=True):
            skip = prompt.tokens if self.skips_matter else 0
            fresh: list[str] = []
            for row in rows:
                text = prompt.text + texts[row]
                key = (skip, text) if not self.dropout else (len(index), "")
                if key not in place:
                    place[key] = len(made) + len(fresh)
                    fresh.append(text)
                index.append(place[key])
            made += [tokens.cut(content) for content in tokens.content(fresh)]
            skips += [skip] * len(fresh)
        return Batch(list(rows), made, skips, None if self.dropout else torch.tensor(index))

    def parts(self, columns: list[Tensor], rows: Sequence[int]) -> list[Part]:
        if len(self.sizes) == 1 and not self.source.matryoshka_weights:
            return self._at_one_size(columns, rows)
        weights = self.source.matryoshka_weights or None
        return matryoshka_parts(lambda cut: self._at_one_size(cut, rows), columns, self.sizes, weights)

    def _at_one_size(self, columns: list[Tensor], rows: Sequence[int]) -> list[Part]:
        if self.objective in ("infonce", "simcse"):
            return self._infonce(columns, rows)
        return [lambda: self._loss(columns, rows)]

    def _loss(self, columns: list[Tensor], rows: Sequence[int]) -> Tensor:
        source, options, name = self.source, self.options, self.objective
        device = columns[0].device
        labels = self.labels[list(rows)].to(device) if self.labels is not None else None
        if name == "triplet":
            return triplet_loss(columns[0], columns[1], torch.stack(columns[2:], dim=1), options["distance"], options["margin"])
        if name == "distillation":
            return self._distil(columns, rows)
        if name == "margin_mse":
            return self._margins(columns, rows, labels)
        assert labels is not None
        if name in BATCH_TRIPLETS:
            return batch_triplet_loss(columns[0], labels, mining=BATCH_TRIPLETS[name], distance=options["distance"], margin=options["margin"])
        u, v = columns
        if name == "classification":
            assert isinstance(self.heads, nn.ModuleDict)
            return classification_loss(self.heads[str(u.shape[1])](u, v), labels)
        if name == "regression":
            return regression_loss(u, v, labels, *self.score_range, mapping=source.mapping)
        if name in ("cosent", "angle"):
            return (cosent_loss if name == "cosent" else angle_total)(u, v, labels, scale=source.scale)
        if name in ("contrastive", "online_contrastive"):
            return (contrastive_loss if name == "contrastive" else online_contrastive_loss)(u, v, labels, **options)
        raise TrainingError(f"objective {name!r} is no vector task")  # pragma: no cover

    def _infonce(self, columns: list[Tensor], rows: Sequence[int]) -> list[Part]:
        source, numbers = self.source, list(rows)
        device = columns[0].device
        negatives = torch.stack(columns[2:], dim=1) if len(columns) > 2 else None
        keys = None
        if self.keys is not None:
            found = self.keys[:, numbers].to(device)
            groups = self.data.groups
            keys = Keys(
                anchors=found[0], positives=found[1], negatives=found[2:].T if len(columns) > 2 else None,
                groups=torch.tensor([groups[row] for row in numbers], device=device) if groups else None,
            )  # fmt: skip
        guide = None
        if self.teacher is not None:
            one, two, *more = [self.teacher.rows(column, numbers).to(device) for column in range(len(columns))]
            guide = (one, two, torch.stack(more, dim=1) if more else None)
        temperature: Any = self.heads if isinstance(self.heads, Temperature) else source.temperature
        return infonce_parts(
            columns[0], columns[1], negatives, temperature=temperature, similarity=source.similarity, direction=source.direction, keys=keys,
            false_negative_margin=source.false_negative_margin, guide=guide,
        )  # fmt: skip

    def _distil(self, columns: list[Tensor], rows: Sequence[int]) -> Tensor:
        """Mean over the columns: source and target are both drawn to the teacher's vector of the source (Reimers and Gurevych 2020, eq. 1)."""
        assert self.teacher is not None
        wanted = self.teacher.rows(0, rows).to(columns[0].device)[:, : columns[0].shape[1]]
        losses = [vector_distillation_loss(column, wanted, loss=self.source.distill_loss) for column in columns]
        return torch.stack(losses).mean()

    def _margins(self, columns: list[Tensor], rows: Sequence[int], labels: Tensor | None) -> Tensor:
        negatives = torch.stack(columns[2:], dim=1)
        if labels is None:
            assert self.teacher is not None
            one, two, *more = [self.teacher.rows(column, rows).to(columns[0].device) for column in range(len(columns))]
            near = self._alike(one, two)
            labels = torch.stack([near - self._alike(one, other) for other in more], dim=1)
        return margin_mse_loss(columns[0], columns[1], negatives, labels, similarity=self.source.similarity)

    def _alike(self, one: Tensor, two: Tensor) -> Tensor:
        return cosine(one, two) if self.source.similarity == "cosine" else (one * two).sum(-1)

    def chance(self, batch_size: int) -> float | None:
        """The loss of vectors that tell nothing apart, where there is such a figure: ln of the candidates of a row, at each size."""
        batch_size = min(batch_size, len(self.data))
        if self.objective not in ("infonce", "simcse"):
            return None
        forward, backward = batch_size * (len(self.texts) - 1), batch_size
        if self.source.direction == "all":
            forward, backward = batch_size * len(self.texts) - 1, 2 * batch_size - 1
        sides = [forward] if self.source.direction == "one_sided" else [forward, backward]
        return float(np.mean([np.log(max(candidates, 1)) for candidates in sides])) * sum(self.source.matryoshka_weights or [1.0] * len(self.sizes))


class TokenTask:
    """Pretraining from bare text: the loss comes from token rows, not from vectors."""

    of_tokens = True
    normalize = False
    ids = None

    def __init__(self, source: Source, data: Dataset, encoder: Encoder, made: Any) -> None:
        self.source, self.data, self.encoder, self.made = source, data, encoder, made
        self.objective = str(source.objective)
        self.heads: nn.Module | None = made.heads
        # Every text of every column is a row of its own.
        self.texts = [[text for column in data.columns.values() for text in column]]
        tokens = encoder.tokens
        self.prompt = tokens.prompt(tokens.clean(encoder.prompt_text(source.prompt)))

    def on(self, data: Dataset) -> TokenTask:
        return TokenTask(self.source, data, self.encoder, self.made)

    def prepare(self, rows: Sequence[int], rng: np.random.Generator) -> Batch:
        tokens = self.encoder.tokens
        found = [tokens.cut(content) for content in tokens.content([self.prompt.text + self.texts[0][row] for row in rows])]
        return Batch(list(rows), found, [0] * len(found), None, self.made.prepare(found, rng))

    def micros(self, prepared: Any, budget: int) -> list[Any]:
        return list(self.made.micros(prepared, budget))

    def micro_loss(self, net: Any, micro: Any) -> Tensor:
        loss: Tensor = self.made.loss(net, micro)
        return loss

    def chance(self, batch_size: int) -> float | None:
        words = float(np.log(len(self.encoder.tokens.tokenizer)))
        return 2 * words if self.objective == "retromae" else words  # RetroMAE adds the encoder's loss to the decoder's


Task = VectorTask | TokenTask


def make_task(
    source: Source,
    data: Dataset,
    encoder: Encoder,
    folder: Path,
    *,
    normalize: bool,
    device: str | None = None,
    show: bool = False,
    dry: bool = False,
) -> Task:
    """The task of a source; `data` as `fit.as_wanted` gives it. dry: to measure steps only, so that no teacher is asked and nothing is written."""
    share = source.mask_share
    if source.objective == "mlm":
        from twinvec.training.pretraining.mlm import MaskedLanguageModel

        return TokenTask(source, data, encoder, MaskedLanguageModel(encoder, mask_share=share or 0.15, whole_word=source.whole_words))
    if source.objective == "retromae":
        from twinvec.training.pretraining.retromae import RetroMAE

        return TokenTask(
            source,
            data,
            encoder,
            RetroMAE(encoder, encoder_share=share or 0.3, decoder_share=source.decoder_mask_share, whole_word=source.whole_words),
        )
    if source.objective == "tsdae":
        from twinvec.training.pretraining.tsdae import TSDAE

        return TokenTask(source, data, encoder, TSDAE(encoder, share=share or 0.6, whole_word=source.whole_words))
    return VectorTask(source, data, encoder, folder, normalize=normalize, device=device, show=show, dry=dry)


def share_heads(tasks: Sequence[Task]) -> None:
    """Tasks of one objective and the same settings train one head: the classifier of two NLI files, the word layer of two text files."""
    known: dict[tuple[Any, ...], Task] = {}
    for task in tasks:
        if task.heads is None or isinstance(task.heads, Temperature):
            continue
        source = task.source
        if isinstance(task, VectorTask):
            key: tuple[Any, ...] = (task.objective, source.concatenation, task.data.kind == "nli", tuple(task.sizes))
        else:
            key = (task.objective, source.mask_share, source.decoder_mask_share, source.whole_words)
        first = known.setdefault(key, task)
        task.heads = first.heads
        if isinstance(task, TokenTask) and isinstance(first, TokenTask):
            task.made = first.made
