"""Which texts are known to belong together, and so can never be each other's negatives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from twinvec.text import same_text_key

Rows = npt.NDArray[np.int64]
NONE: Rows = np.zeros(0, dtype=np.int64)


class Known:
    """The texts of the corpus that are one with an anchor, or related to it by the pairs.

    Texts are compared by `same_text_key`. Related is what one or two steps along the pairs reach, in either direction: the positives of all
    pairs with this anchor, texts of which it is the positive, and texts that share a positive (or an anchor) with it. The second step matters
    for paraphrases: of the pairs (a, b) and (c, b) neither says that a and c are the same, and both together do. Rows of one group are related.
    """

    def __init__(self, corpus: Sequence[str], anchors: Sequence[str], positives: Sequence[str], groups: Sequence[int] | None = None) -> None:
        self._numbers: dict[str, int] = {}
        self._rows: defaultdict[int, list[int]] = defaultdict(list)
        self._partners: defaultdict[int, set[int]] = defaultdict(set)
        self._groups: defaultdict[int, set[int]] = defaultdict(set)
        self._near: dict[int, Rows] = {}
        for row, text in enumerate(corpus):
            self._rows[self._number(text)].append(row)
        for row, (anchor, positive) in enumerate(zip(anchors, positives, strict=True)):
            a, b = self._number(anchor), self._number(positive)
            self._partners[a].add(b)
            self._partners[b].add(a)
            if groups is not None and groups[row] >= 0:
                # A group is one more thing that its texts are paired with: two steps lead from each to all others.
                group = -1 - groups[row]
                for number in (a, b):
                    self._partners[group].add(number)
                    self._partners[number].add(group)

    def _number(self, text: str) -> int:
        return self._numbers.setdefault(same_text_key(text), len(self._numbers))

    def _around(self, number: int) -> Rows:
        """Corpus rows of a text and of its direct partners; kept, since the texts of a large group all ask for the same."""
        if number not in self._near:
            found = [row for other in (number, *self._partners[number]) for row in self._rows.get(other, ())]
            self._near[number] = np.unique(np.asarray(found, dtype=np.int64))
        return self._near[number]

    def rows(self, anchor: str) -> Rows:
        """Rows of the corpus, ascending, that may not be negatives of `anchor`."""
        number = self._number(anchor)
        parts = [self._around(number), *(self._around(other) for other in self._partners[number])]
        return np.unique(np.concatenate(parts)) if parts else NONE
