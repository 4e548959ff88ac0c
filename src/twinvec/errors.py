"""Errors that a user can act on: what came, what was wanted, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TwinvecError(Exception):
    """Base of every error that twinvec raises on purpose. The command line prints it without a traceback."""

    exit_code = 1


class UsageError(TwinvecError):
    """An option, a recipe key or an argument is wrong (exit status 2 at the command line)."""

    exit_code = 2


class DataError(TwinvecError):
    """A file or a row cannot be used."""


class ModelError(TwinvecError):
    """A model folder cannot be loaded, or is not what it says it is."""


class EncodeError(TwinvecError):
    """A text cannot be encoded."""


class InputTypeError(EncodeError, TypeError):
    """What was given to encode is not a text or a row of texts."""


class TwinvecWarning(UserWarning):
    """Something a user should know, that does not stop the work. The command line prints it as a note."""


class TrainingError(TwinvecError):
    """A training run cannot go on."""


class CollectionError(TwinvecError):
    """A collection cannot be opened, read or changed."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """'; did you mean NAME?' for the closest choice, or '' when none is close."""
    found = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


def choose(what: str, name: str, choices: Iterable[str], error: type[TwinvecError] = UsageError) -> str:
    """Return `name` if it is one of `choices`, else raise `error` with the whole list."""
    listed = list(choices)
    if name not in listed:
        raise error(f"{what} = {name!r}: choose one of {', '.join(listed)}{nearest(name, listed)}")
    return name
