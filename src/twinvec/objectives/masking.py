"""Which tokens of a row are hidden or deleted: numpy only, so that a background thread can do it, and the same for the same generator.

Rows lie end to end: ids (T,) with lengths (B,). `allowed` (T,) is True where a token may be chosen (never a special one).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def end_to_end(rows: Sequence[Sequence[int]]) -> tuple[Ids, Ids]:
    """Token rows as ids (T,) and lengths (B,)."""
    lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
    ids = np.fromiter((token for row in rows for token in row), dtype=np.int64, count=int(lengths.sum()))
    return ids, lengths


def apart(flat: Ids, lengths: Ids) -> list[Ids]:
    """The inverse of `end_to_end`, as arrays."""
    return np.split(flat, np.cumsum(lengths)[:-1]) if len(lengths) else []


def how_many(counts: Ids, share: float, *, least: int = 0, keep: int = 0) -> Ids:
    """How many of `counts` (B,) tokens make up the share: rounded, at least `least` where there are any, and `keep` are always left."""
    rounded = np.floor(counts * share + 0.5).astype(np.int64)
    return np.asarray(np.minimum(np.maximum(rounded, least), np.maximum(counts - keep, 0)), dtype=np.int64)


def choose_tokens(allowed: Flags, lengths: Ids, wanted: Ids, rng: np.random.Generator) -> Flags:
    """(T,) True on wanted[i] allowed tokens of row i, drawn without replacement; wanted[i] is at most the number of those."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    keys = rng.random(len(allowed))
    keys[~allowed] = 2.0  # behind every allowed token of its row
    order = np.lexsort((keys, owner))
    rank = np.arange(len(allowed)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    chosen = np.zeros(len(allowed), dtype=np.bool_)
    chosen[order] = rank < wanted[owner]
    return chosen & allowed


def choose_words(ids: Ids, allowed: Flags, lengths: Ids, wanted: Ids, continues: Flags, rng: np.random.Generator, *, least: int = 0) -> Flags:
    """As `choose_tokens`, but whole words: words are taken in random order while they fit into wanted[i] tokens.

    continues (V,): True for tokens that go on with the word before them. A row in which no word fits gives its first drawn word when `least` is
    1 (as its mask must not be empty), else nothing. BERT's create_pretraining_data.py, do_whole_word_mask; there a row may stay without a mask.
    """
    chosen = np.zeros(len(ids), dtype=np.bool_)
    start = 0
    for length, want in zip(lengths.tolist(), wanted.tolist(), strict=True):
        free = np.flatnonzero(allowed[start : start + length]) + start
        start += length
        if not len(free) or not want:
            continue
        begins = ~continues[ids[free]] | (np.diff(free, prepend=-2) != 1)
        begins[0] = True
        words = np.split(free, np.flatnonzero(begins)[1:])
        taken = 0
        order = rng.permutation(len(words))
        for number in order:
            if taken + len(words[number]) <= want:
                chosen[words[number]] = True
                taken += len(words[number])
        if not taken and least:
            chosen[words[order[0]]] = True
    return chosen


def hide(ids: Ids, chosen: Flags, mask_id: int, ordinary: Ids, rng: np.random.Generator) -> Ids:
    """ids with each chosen token replaced: 80 % by the mask token, 10 % by a random one of `ordinary`, 10 % by itself. BERT 2019, section 3.1."""
    out = ids.copy()
    at = np.flatnonzero(chosen)
    dice = rng.random(len(at))
    out[at[dice < 0.8]] = mask_id
    swapped = at[(dice >= 0.8) & (dice < 0.9)]
    out[swapped] = ordinary[rng.integers(0, len(ordinary), len(swapped))]
    return out


def visible_keys(allowed: Flags, share: float, rng: np.random.Generator) -> Flags:
    """(L, L) for one row: may position i look at token j? A fresh sample of the allowed tokens for each i, each seen with probability `share`,
    never i itself. RetroMAE 2022, section 3.3 (the column of the sentence vector, always seen, is added by the decoder)."""
    length = len(allowed)
    seen = (rng.random((length, length), dtype=np.float32) < share) & allowed[None, :]
    np.fill_diagonal(seen, False)
    return seen
