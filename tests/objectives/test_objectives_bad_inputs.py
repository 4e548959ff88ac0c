"""Tensors and options that the objectives cannot use: what each is answered with. The list is the table of docs/errors.md."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from twinvec.errors import TrainingError, TwinvecError, UsageError
from twinvec.objectives.batch_triplets import batch_triplet_loss
from twinvec.objectives.contrastive import contrastive_loss, online_contrastive_loss
from twinvec.objectives.distillation import margin_mse_loss, score_distillation, vector_distillation_loss
from twinvec.objectives.infonce import Keys, infonce_loss
from twinvec.objectives.matryoshka import matryoshka_parts
from twinvec.objectives.parts import total
from twinvec.objectives.ranking import angle_loss, angle_total, cosent_loss

Case = tuple[str, Callable[[], Any], type[TwinvecError], str]
X, N = torch.ones(4, 6), torch.ones(4, 2, 6)
EMPTY = torch.ones(0, 6)
IDS = torch.arange(4)
ZERO_ONE = torch.tensor([0, 1, 0, 1])


def infonce(*tensors: torch.Tensor, **options: Any) -> Callable[[], Any]:
    return lambda: infonce_loss(*(tensors or (X, X)), **options)


def matryoshka(dimensions: Any, weights: Any = None, vectors: Any = None) -> Callable[[], Any]:
    return lambda: matryoshka_parts(lambda x: [], [X, X] if vectors is None else vectors, dimensions, weights)


CASES: list[Case] = [
    # --- InfoNCE
    ("InfoNCE of no rows", infonce(EMPTY, EMPTY), TrainingError, r"a batch without rows has no loss; drop empty batches"),
    ("InfoNCE of unequal columns", infonce(X, X[:3]), TrainingError, r"equal shapes \(B, D\), got \(4, 6\) and \(3, 6\)"),
    ("flat hard negatives", infonce(X, X, X), TrainingError, r"negatives need shape \(4, n, 6\), got \(4, 6\)"),
    ("hard negatives of another size", infonce(X, X, N[:, :, :5]), TrainingError, r"negatives need shape \(4, n, 6\), got \(4, 2, 5\)"),
    ("vectors of two types", infonce(X, X.double()), TrainingError, r"one floating-point type, got torch\.float32, torch\.float64"),
    ("vectors of whole numbers", infonce(X.long(), X.long()), TrainingError, r"one floating-point type, got torch\.int64"),
    ("temperature 0", infonce(temperature=0.0), UsageError, r"temperature = 0\.0: needs a finite number above 0, such as 0\.05"),
    ("temperature nan", infonce(temperature=math.nan), UsageError, r"temperature = nan: needs a finite number"),
    ("temperature a row", infonce(temperature=torch.ones(4)), UsageError, r"shape \(\), got torch\.float32 of \(4,\)"),
    (
        "learned temperature below 0",
        infonce(temperature=torch.tensor(-0.1)),
        TrainingError,
        r"learned temperature became -0\.1\d*; learn its logarithm, or lower the learning rate",
    ),
    ("made temperature nan", infonce(temperature=lambda: torch.tensor(math.nan)), TrainingError, r"learned temperature became nan"),
    ("misspelt similarity", infonce(similarity="cosin"), UsageError, r"similarity = 'cosin': choose one of cosine, dot; did you mean 'cosine'\?"),
    ("misspelt direction", infonce(direction="symetric"), UsageError, r"one_sided, symmetric, all; did you mean 'symmetric'\?"),
    ("infinite false-negative margin", infonce(false_negative_margin=math.inf), UsageError, r"false_negative_margin = inf: needs a finite number"),
    ("blocks of no rows", infonce(block_rows=0), UsageError, r"block_rows = 0: needs a whole number of 1 or more"),
    ("guide of other rows", infonce(guide=(X[:3], X[:3], None)), TrainingError, r"guide's anchors and positives need equal shapes \(4, D\)"),
    ("guide without hard negatives", infonce(X, X, N, guide=(X, X, None)), TrainingError, r"guide's negatives need shape \(4, 2, 6\).*got None"),
    ("guide with too much", infonce(guide=(X, X, N)), TrainingError, r"guide's negatives need shape None.*got \(4, 2, 6\)"),
    (
        "keys of other rows",
        infonce(keys=Keys(IDS[:3], IDS)),
        TrainingError,
        r"keys\.anchors needs torch\.int64 of shape \(4,\), got torch\.int64 of .*\(3,\)",
    ),
    ("keys that are no int64", infonce(keys=Keys(IDS, IDS.float())), TrainingError, r"keys\.positives needs torch\.int64 .*got torch\.float32"),
    ("keys of absent negatives", infonce(keys=Keys(IDS, IDS, IDS[:, None])), TrainingError, r"keys\.negatives needs torch\.int64 of shape None"),
    ("groups a column too many", infonce(keys=Keys(IDS, IDS, None, IDS[:, None])), TrainingError, r"keys\.groups needs .*\(4,\), got .*\(4, 1\)"),
    ("no parts", lambda: total([]), TrainingError, r"a list without parts has no sum"),
    # --- labelled and scored pairs
    ("contrastive labels that are scores", lambda: contrastive_loss(X, X, IDS), TrainingError, r"0 \(unlike\) or 1 \(alike\), got 2; for scores"),
    ("contrastive label nan", lambda: contrastive_loss(X, X, ZERO_ONE / 0), TrainingError, r"must be 0 \(unlike\) or 1 \(alike\), got nan"),
    ("contrastive labels too few", lambda: contrastive_loss(X, X, IDS[:3]), TrainingError, r"one label a pair, shape \(4,\), got \(3,\)"),
    ("contrastive loss of no rows", lambda: online_contrastive_loss(EMPTY, EMPTY, IDS[:0]), TrainingError, r"a batch without rows has no loss"),
    ("contrastive margin 0", lambda: contrastive_loss(X, X, ZERO_ONE, margin=0), UsageError, r"margin = 0: .*unlike pairs teach nothing"),
    (
        "contrastive distance misspelt",
        lambda: contrastive_loss(X, X, ZERO_ONE, distance="cos"),
        UsageError,
        r"choose one of euclidean, cosine, manhattan",
    ),
    ("ranking labels too few", lambda: cosent_loss(X, X, IDS[:3]), TrainingError, r"CoSENT loss: needs one label a pair, shape \(4,\), got \(3,\)"),
    ("ranking label nan", lambda: cosent_loss(X, X, torch.tensor([0, 1, math.nan, 2])), TrainingError, r"1 labels are not finite numbers"),
    ("ranking of no rows", lambda: angle_loss(EMPTY, EMPTY, IDS[:0]), TrainingError, r"AnglE loss: a batch without rows"),
    ("ranking scale 0", lambda: cosent_loss(X, X, IDS, scale=0), UsageError, r"scale = 0: needs a finite number above 0, such as 20"),
    ("angle of an odd number of dimensions", lambda: angle_loss(X[:, :5], X[:, :5], IDS), TrainingError, r"an even number of dimensions, got 5"),
    ("angle weight below 0", lambda: angle_total(X, X, IDS, angle_weight=-1), UsageError, r"angle_weight = -1: needs a finite number of 0 or more"),
    # --- triplets of a batch
    ("batch triplets without classes", lambda: batch_triplet_loss(X, IDS / 2), TrainingError, r"integers \(class numbers\), got torch\.float32"),
    (
        "batch triplets, labels too few",
        lambda: batch_triplet_loss(X, IDS[:3]),
        TrainingError,
        r"vectors \(B, D\) and labels \(B,\), got \(4, 6\) and \(3,\)",
    ),
    ("batch triplets of no rows", lambda: batch_triplet_loss(EMPTY, IDS[:0]), TrainingError, r"batch triplets: a batch without rows"),
    ("batch triplets, margin below 0", lambda: batch_triplet_loss(X, IDS, margin=-1), UsageError, r"margin = -1: needs a finite number of 0 or more"),
    ("mining misspelt", lambda: batch_triplet_loss(X, IDS, mining="semihard"), UsageError, r"mining = 'semihard': .*did you mean 'semi_hard'\?"),  # type: ignore[arg-type]
    # --- distillation
    (
        "teacher of another size",
        lambda: vector_distillation_loss(X, torch.ones(4, 8)),
        TrainingError,
        r"student's vectors have 6 dimensions, the teacher's 8; give the student a Dense layer",
    ),
    ("teacher of other rows", lambda: vector_distillation_loss(X, X[:3]), TrainingError, r"equal shapes \(B, D\), got \(4, 6\) and \(3, 6\)"),
    ("teacher vectors nan", lambda: vector_distillation_loss(X, X / 0), TrainingError, r"24 of the teacher's vectors are not finite numbers; mend"),
    ("distillation loss misspelt", lambda: vector_distillation_loss(X, X, loss="l2"), UsageError, r"loss = 'l2': choose one of mse, cosine"),  # type: ignore[arg-type]
    ("margins too few", lambda: margin_mse_loss(X, X, N, torch.ones(4)), TrainingError, r"a margin for each negative, shape \(4, 2\), got \(4, 1\)"),
    ("margins without negatives", lambda: margin_mse_loss(X, X, N[:, :0], torch.ones(4, 0)), TrainingError, r"n at least 1, got \(4, 0, 6\)"),
    ("margin nan", lambda: margin_mse_loss(X, X, X, torch.full((4,), math.nan)), TrainingError, r"4 of the teacher's margins are not finite"),
    ("a list of one", lambda: score_distillation(X, N[:, :1], torch.ones(4, 1)), TrainingError, r"\(4, n, 6\), n at least 2, got \(4, 1, 6\)"),
    (
        "scores too few",
        lambda: score_distillation(X, N, torch.ones(4, 3)),
        TrainingError,
        r"a score for each candidate, shape \(4, 2\), got \(4, 3\)",
    ),
    ("list temperature 0", lambda: score_distillation(X, N, torch.ones(4, 2), temperature=0), UsageError, r"temperature = 0: needs a finite number"),
    ("lists of no rows", lambda: score_distillation(EMPTY, N[:0], torch.ones(0, 2)), TrainingError, r"at least one row, got \(0, 6\)"),
    # --- Matryoshka
    ("Matryoshka without dimensions", matryoshka([]), UsageError, r"dimensions = \[\]: needs whole numbers of 1 or more"),
    ("Matryoshka dimension 0", matryoshka([6, 0]), UsageError, r"dimensions = \[6, 0\]: needs whole numbers of 1 or more"),
    ("Matryoshka dimension 1.5", matryoshka([1.5]), UsageError, r"dimensions = \[1\.5\]: needs whole numbers"),
    ("Matryoshka dimension twice", matryoshka([6, 2, 6]), UsageError, r"each may stand once; give it a larger weight instead"),
    ("Matryoshka dimension above the model's", matryoshka([12, 6]), UsageError, r"the vectors have 6; leave out what is above that"),
    ("Matryoshka weights too few", matryoshka([6, 2], [1.0]), UsageError, r"1 weights for 2 dimensions: give one each, or none"),
    ("Matryoshka weight 0", matryoshka([6, 2], [1.0, 0.0]), UsageError, r"weights = \[1\.0, 0\.0\]: needs finite numbers above 0"),
    ("Matryoshka of nothing", matryoshka([2], None, []), TrainingError, r"needs at least one tensor of vectors, got none"),
    ("Matryoshka of two sizes", matryoshka([2], None, [X, X[:, :4]]), TrainingError, r"one number of dimensions, got 4, 6"),
]


@pytest.mark.parametrize(("name", "run", "error", "message"), CASES, ids=[case[0] for case in CASES])
def test_bad_input(
    name: str, run: Callable[[], Any], error: type[TwinvecError], message: str, record_property: Callable[[str, object], None]
) -> None:
    with pytest.raises(error, match=message) as caught:
        run()
    record_property("message", str(caught.value))
    assert type(caught.value) is error
    assert len(str(caught.value)) < 400, "a message is read by a person"


def test_names_are_unique_and_many() -> None:
    names = [case[0] for case in CASES]
    assert len(names) == len(set(names)) >= 50
