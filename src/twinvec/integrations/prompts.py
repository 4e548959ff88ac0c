"""Which of a model's prompts is for queries and which for documents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twinvec.errors import UsageError, nearest

if TYPE_CHECKING:
    from twinvec.model.encoder import Encoder

# The names under which published models keep the two prompts of retrieval.
QUERY: Final = ("query", "s2p_query", "search_query")
DOCUMENT: Final = ("passage", "document", "corpus", "search_document")


def prompt_for(offered: Mapping[str, str], side: str, asked: str | None) -> str | None:
    """The prompt's name for one side, "query" or "document"; `asked` is taken as it is ("" for none), and checked.

    None, the model's default, where it has no prompt under a known name. UsageError: a name that the model does not have.
    """
    if asked is not None:
        if asked and asked not in offered:
            raise UsageError(f"{side}_prompt = {asked!r}: this model has {', '.join(offered) or 'no prompts'}{nearest(asked, offered)}; '' for none")
        return asked
    return next((name for name in (QUERY if side == "query" else DOCUMENT) if name in offered), None)


def opened(model: Encoder | str | Path, **load: object) -> Encoder:
    """The encoder itself, or the one of that name or folder. UsageError for options that come too late."""
    from twinvec.model.encoder import Encoder

    if isinstance(model, (str, Path)):
        return Encoder.load(model, **load)  # type: ignore[arg-type]
    if load:
        raise UsageError(f"{', '.join(load)}: options of loading, but the model is loaded already; give its name or folder instead")
    return model
