"""The order of training rows: shuffled anew each epoch, equal lengths together, and the same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from twinvec.data.apart import keep_apart
from twinvec.errors import DataError, UsageError, choose

Mixing = Literal["proportional", "even", "temperature", "weights"]
MIXINGS: Final[tuple[Mixing, ...]] = ("proportional", "even", "temperature", "weights")


class Order(Protocol):
    """What gives the batches of one data set: `batches(epoch)` depends on its settings and the epoch alone, and always gives `len()` batches."""

    def __len__(self) -> int: ...
    def batches(self, epoch: int) -> list[list[int]]: ...


class LengthBucketedOrder:
    """Batches of row numbers. `batches(epoch)` depends on lengths, batch size, seed, epoch and keys alone, so a run resumes at (epoch, batch).

    Rows are shuffled, cut into buckets of `bucket_batches` batches, sorted by length inside a bucket and cut into batches, and the batches are
    shuffled. The rows that fill no batch are drawn at random and come last, as one short batch, so that every row is used exactly once.

    keys: for each row the numbers of what no other row of its batch should have (`data.pairs.row_keys`). Rows are swapped between batches
    to that end, where it can be had (`data.apart.keep_apart`); no row is left out for it, so `len()` stays exact.
    """

    def __init__(
        self, lengths: Sequence[int], batch_size: int, seed: int, bucket_batches: int = 50, *, keys: Sequence[Sequence[int]] | None = None
    ) -> None:
        if batch_size < 1 or bucket_batches < 1:
            raise UsageError(f"batch_size = {batch_size}, bucket_batches = {bucket_batches}: wanted 1 or more")
        if keys is not None and len(keys) != len(lengths):
            raise UsageError(f"keys of {len(keys)} rows for lengths of {len(lengths)}: wanted one list of keys a row")
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.batch_size, self.seed, self.bucket_batches, self.keys = batch_size, seed, bucket_batches, keys

    def __len__(self) -> int:
        """Batches an epoch: exactly as many as `batches` gives."""
        return math.ceil(len(self.lengths) / self.batch_size)

    def batches(self, epoch: int) -> list[list[int]]:
        """The batches of one epoch (from 0), each a list of row numbers."""
        rng = np.random.default_rng([self.seed, epoch])
        rows = rng.permutation(len(self.lengths))
        whole = len(rows) - len(rows) % self.batch_size
        full, rest = rows[:whole], rows[whole:]
        made = []
        for start in range(0, whole, self.batch_size * self.bucket_batches):
            bucket = full[start : start + self.batch_size * self.bucket_batches]
            bucket = bucket[np.argsort(self.lengths[bucket], kind="stable")]
            made += [bucket[i : i + self.batch_size].tolist() for i in range(0, len(bucket), self.batch_size)]
        places = rng.permutation(len(made))
        made += [rest.tolist()] if len(rest) else []
        if self.keys is not None:  # before the shuffle, while neighbours have like lengths
            keep_apart(made, self.keys, rng)
        return [*(made[i] for i in places), *made[len(places) :]]


class MixedOrder:
    """Batches of several data sets, each batch from one of them. `batches(epoch)` gives (source, rows) in a random order of the sources.

    An epoch has as many batches as all sources together; n_i is the number of batches of source i, and its share of the epoch is
     * proportional: n_i, so that each of its batches comes exactly once an epoch;
     * even: the same for all;
     * temperature: n_i^(1/T): T = 1 is proportional, a large T nearly even (T5, Raffel et al. 2020, section 3.5.2, without its limit K;
       multilingual BERT's exponent 0.7 is T = 1.43);
     * weights: what `weights` says, whatever n_i.
    Shares become whole numbers of batches by largest remainders, at least one a source.
    A source that needs more batches than it has goes on with its next epoch's shuffle; one that needs fewer continues in the next epoch
    where it stopped, so no row is favoured.
    """

    def __init__(
        self,
        orders: Sequence[Order],
        mixing: Mixing = "proportional",
        *,
        temperature: float = 1.0,
        weights: Sequence[float] | None = None,
        seed: int = 0,
    ) -> None:
        choose("mixing", mixing, MIXINGS)
        self.orders, self.seed = list(orders), seed
        sizes = [len(order) for order in self.orders]
        if not sizes or 0 in sizes:
            raise UsageError(f"mixing: sources of {sizes} batches; wanted one source or more, each with rows")
        if not (math.isfinite(temperature) and temperature > 0):
            raise UsageError(f"temperature = {temperature}: wanted a number above 0; 1 mixes proportionally, larger ones more evenly")
        if (weights is None) == (mixing == "weights"):
            raise UsageError(f"mixing = {mixing!r} with weights = {weights}: weights go with mixing = 'weights', and with no other")
        power = 1.0 / temperature if mixing == "temperature" else float(mixing == "proportional")
        self.counts = _counts(sizes, power, _weights(weights, len(sizes)))

    def __len__(self) -> int:
        """Batches an epoch: exactly as many as `batches` gives."""
        return sum(self.counts)

    def batches(self, epoch: int) -> list[tuple[int, list[int]]]:
        """The batches of one epoch (from 0): number of the source, row numbers there."""
        rng = np.random.default_rng([self.seed, epoch, 0x313])
        turns = rng.permutation(np.repeat(np.arange(len(self.orders)), self.counts))
        streams = [iter(self._stretch(source, epoch)) for source in range(len(self.orders))]
        return [(source, next(streams[source])) for source in turns.tolist()]

    def _stretch(self, source: int, epoch: int) -> list[list[int]]:
        """The batches of a source in an epoch of the mixture: the next `counts[source]` of its own epochs, one after the other."""
        order, count = self.orders[source], self.counts[source]
        size, start = len(order), epoch * count
        found: list[list[int]] = []
        for own in range(start // size, -(-(start + count) // size)):
            batches = order.batches(own)
            found += batches[max(0, start - own * size) : start + count - own * size]
        return found


def _weights(weights: Sequence[float] | None, n: int) -> list[float]:
    if weights is None:
        return [1.0] * n
    if len(weights) != n or not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise UsageError(f"weights = {list(weights)}: wanted {n} numbers above 0, one a source")
    return list(weights)


def _counts(sizes: Sequence[int], power: float, weights: Sequence[float]) -> list[int]:
    """sum(sizes) batches shared out by weight * size^power: largest remainders, ties to the earlier, at least one each."""
    total, largest = sum(sizes), max(sizes)
    shares = np.array([weight * (size / largest) ** power for size, weight in zip(sizes, weights, strict=True)])
    exact = total * shares / shares.sum()
    counts = np.floor(exact + 1e-9).astype(np.int64)  # 7 batches of 10 are 7, not 6.999...
    for i in np.argsort(counts - exact, kind="stable")[: total - int(counts.sum())]:
        counts[i] += 1
    while not counts.all():
        counts[counts.argmin()] += 1
        counts[counts.argmax()] -= 1
    return [int(count) for count in counts]


class ClassOrder:
    """Batches of `per_class` rows of each of some classes: the P x K of Hermans et al. 2017, section 2, for triplets made inside a batch.

    A batch holds batch_size // per_class classes, all different; with fewer classes than that, each gives more rows. A class with fewer rows gives
    all it has, so `batch_size` is the most a batch can hold. Every row comes at least once an epoch; rows of small classes come again
    where a batch has room beside a class too large for the others (no batch is of one class). Rows without a fellow of
    their class, and rows of label -1 (no class), make no triplet and are left out: `left_out` says how many.
    """

    def __init__(self, labels: Sequence[int] | npt.NDArray[np.integer[Any]], batch_size: int, per_class: int = 4, *, seed: int) -> None:
        if per_class < 2 or batch_size < 2 * per_class:
            raise UsageError(
                f"batch_size = {batch_size}, per_class = {per_class}: wanted 2 rows or more a class, and room for two classes in a batch"
            )
        values = np.asarray(labels, dtype=np.int64)
        order = np.argsort(values, kind="stable")
        cuts = np.flatnonzero(np.diff(values[order])) + 1
        members = [rows for rows in np.split(order, cuts) if len(rows) > 1 and values[rows[0]] >= 0]
        if len(members) < 2:
            raise DataError(f"{len(values)} rows with {len(members)} classes of two rows or more: triplets inside a batch need two such classes")
        self.members, self.seed = members, seed
        self.left_out = len(values) - sum(map(len, members))
        per_class = min(per_class, max(map(len, members)))
        self.classes = min(batch_size // per_class, len(members))  # P
        self.per_class = batch_size // self.classes if self.classes == len(members) else per_class  # K
        parts = [math.ceil(len(rows) / self.per_class) for rows in members]
        self._batches = max(math.ceil(sum(parts) / self.classes), max(parts))

    def __len__(self) -> int:
        """Batches an epoch: exactly as many as `batches` gives."""
        return self._batches

    def batches(self, epoch: int) -> list[list[int]]:
        """The batches of one epoch (from 0), each a list of row numbers, the rows of a class together."""
        rng = np.random.default_rng([self.seed, epoch, 0xC1A55])
        parts: list[npt.NDArray[np.int64]] = []
        owner: list[int] = []
        for number, rows in enumerate(self.members):
            rows = rng.permutation(rows)
            missing = -len(rows) % self.per_class if len(rows) > self.per_class else 0
            rows = np.concatenate([rows, rows[:missing]])  # the last part is filled up with rows of the first
            parts += [rows[i : i + self.per_class] for i in range(0, len(rows), self.per_class)]
            owner += [number] * -(-len(rows) // self.per_class)
        return [np.concatenate([*(parts[i] for i in dealt), *self._company(dealt, owner, rng)]).tolist() for dealt in self._deal(owner, rng)]

    def _deal(self, owner: Sequence[int], rng: np.random.Generator) -> list[list[int]]:
        """Parts dealt out over the batches, no class twice in one."""
        n, count = len(owner), len(self)
        shuffled = rng.permutation(n)
        dealt = [shuffled[i::count].tolist() for i in range(count)]
        if keep_apart(dealt, [[number] for number in owner], rng):
            # Dealt in turn, the parts of a class (never more than there are batches) go to different ones; less random, so only where it must be.
            ranks = rng.permutation(len(self.members))
            grouped = sorted(range(n), key=lambda part: (ranks[owner[part]], part))
            dealt = [grouped[i::count] for i in range(count)]
        return [dealt[i] for i in rng.permutation(count)]

    def _company(self, dealt: Sequence[int], owner: Sequence[int], rng: np.random.Generator) -> list[npt.NDArray[np.int64]]:
        """Rows of other classes for a batch that got fewer classes than it has room for."""
        lacking = self.classes - len(dealt)
        if lacking <= 0:
            return []
        there = {owner[part] for part in dealt}
        chosen = [number for number in rng.permutation(len(self.members)).tolist() if number not in there][:lacking]
        return [rng.permutation(self.members[number])[: self.per_class] for number in chosen]


def split_rows(n: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """(kept, held out): row numbers 0..n-1, each list ascending; round(n * share) rows are held out, drawn by the seed."""
    if not 0 <= share <= 1:
        raise UsageError(f"share = {share}: wanted a number from 0 to 1")
    order = np.random.default_rng([seed, 0x5B117]).permutation(n)
    held = round(n * share)
    return sorted(order[held:].tolist()), sorted(order[:held].tolist())
