"""Texts with classes: how well simple classifiers on the vectors find the class of new texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from twinvec.data.dataset import Dataset
from twinvec.errors import DataError, UsageError
from twinvec.evaluation.logistic import fit_logistic
from twinvec.evaluation.measured import Measured
from twinvec.evaluation.metrics import Floats
from twinvec.evaluation.mistakes import listed
from twinvec.evaluation.rows import Rows
from twinvec.evaluation.weighted import Figures, Ints, divided, means, together
from twinvec.records import Vectors

FOLDS: Final = 5
Classifier = Callable[[Floats, Ints, Floats, int], Ints]  # training vectors and labels, test vectors, number of classes -> (n,) classes


def nearest_centroid(train: Floats, labels: Ints, test: Floats, classes: int) -> Ints:
    """The class whose mean unit vector has the largest cosine; a class without training rows is never chosen, ties go to the lower number."""
    centroids = np.zeros((classes, train.shape[1]))
    np.add.at(centroids, labels, unit(train))
    counts = np.bincount(labels, minlength=classes)
    scores = unit(test) @ unit(centroids).T
    scores[:, counts == 0] = -np.inf
    return np.asarray(scores.argmax(1), dtype=np.int64)


def logistic(train: Floats, labels: Ints, test: Floats, classes: int) -> Ints:
    """Multinomial logistic regression on the vectors as they are, C = 1 (the setting of MTEB)."""
    present, dense = np.unique(labels, return_inverse=True)  # a class without rows has nothing to learn
    if len(present) < 2:
        return np.full(len(test), present[0], dtype=np.int64)
    return np.asarray(present[fit_logistic(train, dense, len(present)).classes(test)], dtype=np.int64)


CLASSIFIERS: Final[dict[str, Classifier]] = {"nearest": nearest_centroid, "logistic": logistic}


def unit(x: npt.ArrayLike) -> Floats:
    """Rows of length 1; rows of zeros stay zeros."""
    wide = np.asarray(x, dtype=np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    return np.asarray(wide / np.where(norms > 0, norms, 1.0))


def folds_of(labels: Ints, folds: int, seed: int) -> Ints:
    """(n,) the fold of each row, from 0: every class is spread over the folds as evenly as it goes (stratified)."""
    rng = np.random.default_rng([seed, 0xF01D])
    out = np.empty(len(labels), dtype=np.int64)
    start = 0
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        out[rows] = (np.arange(len(rows)) + start) % folds
        start += len(rows)  # the next class goes on where this one ended, so that small classes do not all fall into fold 0
    return out


def measure_classification(rows: Rows) -> Measured:
    """Rows of one text with a class. settings: "train" (Dataset, Vectors) to learn from, else `folds` folds of these rows by `seed`.

    -> "accuracy_X" and "macro_f1_X" for X of nearest (class centroid by cosine) and logistic (regression), "classes", "train_rows".
    """
    labels, names, train = _classes(rows)
    notes: list[str] = []
    x = np.asarray(rows.vectors[next(iter(rows.data.columns))], dtype=np.float64)
    if not np.isfinite(x).all():
        raise DataError(f"{rows.data.path}: the model gives NaN or infinity for some texts; it is broken")
    if train is not None:
        found = {name: learn(train[1], train[0], x, len(names)) for name, learn in CLASSIFIERS.items()}
        unseen = sorted(set(labels.tolist()) - set(train[0].tolist()))
        if unseen:
            notes.append(f"{len(unseen)} classes are not in the training rows (first: {names[unseen[0]]!r}); their rows count as wrong")
        learnt: Any = len(train[0])
    else:
        found, said = _cross_validated(rows, x, labels, len(names))
        notes += said
        learnt = None
    values = {f"accuracy_{name}": (guess == labels).astype(np.float64) for name, guess in found.items()}
    figures = together(means(values), *(macro_f1_of(labels, guess, len(names), f"macro_f1_{name}") for name, guess in found.items()))
    scores: dict[str, Any] = {name: float(value[0]) for name, value in figures(np.ones((1, len(labels)))).items()}
    scores = {key: scores[key] for name in CLASSIFIERS for key in (f"accuracy_{name}", f"macro_f1_{name}")}
    most = max(Counter(labels.tolist()).values())
    scores |= {"accuracy_majority": most / len(labels), "classes": len(set(labels.tolist())), "train_rows": learnt, "notes": notes}
    if train is None:
        del scores["train_rows"]
    best = found["logistic"]

    def mistakes(count: int) -> list[dict[str, Any]]:
        wrong = (best != labels).astype(np.float64) + (found["nearest"] != labels) / 2 * (best != labels)
        return listed(rows, wrong, count, lambda i: {"label": names[labels[i]], "found": names[best[i]]})

    return Measured("classification", "accuracy_logistic", scores, figures, rows.names, rows.texts, values, mistakes)


def macro_f1_of(labels: Ints, found: Ints, classes: int, name: str) -> Figures:
    """Mean F1 over the classes that occur among the labels or the guesses, as sklearn's f1_score(average="macro")."""
    true, guess = np.eye(classes)[labels], np.eye(classes)[found]

    def figures(weights: Floats) -> dict[str, Floats]:
        hits = 2 * (weights @ (true * guess))
        both = weights @ true + weights @ guess
        there = both > 0
        return {name: divided(np.where(there, hits / np.where(there, both, 1.0), 0.0).sum(1), there.sum(1).astype(np.float64))}

    return Figures.of([name], figures)


def _cross_validated(rows: Rows, x: Floats, labels: Ints, classes: int) -> tuple[dict[str, Ints], list[str]]:
    folds = int(rows.settings.get("folds", FOLDS))
    if folds < 2:
        raise UsageError(f"folds = {folds}: wanted 2 or more, or training rows of their own (--train FILE)")
    if len(labels) < folds:
        raise DataError(f"{rows.data.path}: {len(labels)} rows for {folds} folds; give more rows, fewer folds, or training rows (--train FILE)")
    fold = folds_of(labels, folds, int(rows.settings.get("seed", 0)))
    found: dict[str, Ints] = {name: np.zeros(len(labels), dtype=np.int64) for name in CLASSIFIERS}
    for number in range(folds):
        test = fold == number
        for name, learn in CLASSIFIERS.items():
            found[name][test] = learn(x[~test], labels[~test], x[test], classes)
    notes = [
        f"no training file: each row is classified by what {folds} - 1 of {folds} parts of this file teach (--train FILE for the usual protocol)"
    ]
    alone = sum(count == 1 for count in Counter(labels.tolist()).values())
    if alone:
        notes.append(f"{alone} classes have one row only, which nothing teaches: they count as wrong")
    return found, notes


def _classes(rows: Rows) -> tuple[Ints, list[str], tuple[Ints, Floats] | None]:
    """Labels of the rows and of the training rows by one list of names."""
    data: Dataset = rows.data
    given: tuple[Dataset, Vectors] | None = rows.settings.get("train")
    own = data.label_names or []
    names = list(dict.fromkeys([*own, *((given[0].label_names or []) if given else [])]))
    labels = np.asarray([names.index(own[int(label)]) for label in data.labels or []], dtype=np.int64)
    if given is not None:
        theirs = given[0].label_names or []
        taught = np.asarray([names.index(theirs[int(label)]) for label in given[0].labels or []], dtype=np.int64)
        if not set(taught.tolist()) & set(labels.tolist()):
            raise DataError(f"{data.path}: none of its classes is in {given[0].path}; its first class is {own[0]!r}, there {theirs[0]!r}")
        return labels, names, (taught, np.asarray(given[1], dtype=np.float64))
    if len(set(labels.tolist())) < 2:
        raise DataError(f"{data.path}: every row is of the class {own[int(labels[0])]!r}; wanted two classes or more")
    return labels, names, None
