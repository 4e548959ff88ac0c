"""The order of training rows: shuffled anew each epoch, equal lengths together, and the same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from twinvec.errors import UsageError


class LengthBucketedOrder:
    """Batches of row numbers. `batches(epoch)` depends on lengths, batch size, seed and epoch alone, so a run resumes at (epoch, batch).

    Rows are shuffled, cut into buckets of `bucket_batches` batches, sorted by length inside a bucket and cut into batches, and the batches are
    shuffled. The rows that fill no batch are drawn at random and come last, as one short batch, so that every row is used exactly once.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int, bucket_batches: int = 50) -> None:
        if batch_size < 1 or bucket_batches < 1:
            raise UsageError(f"batch_size = {batch_size}, bucket_batches = {bucket_batches}: wanted 1 or more")
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.batch_size, self.seed, self.bucket_batches = batch_size, seed, bucket_batches

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
        made = [made[i] for i in rng.permutation(len(made))]
        return [*made, rest.tolist()] if len(rest) else made


def split_rows(n: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """(kept, held out): row numbers 0..n-1, each list ascending; round(n * share) rows are held out, drawn by the seed."""
    if not 0 <= share <= 1:
        raise UsageError(f"share = {share}: wanted a number from 0 to 1")
    order = np.random.default_rng([seed, 0x5B117]).permutation(n)
    held = round(n * share)
    return sorted(order[held:].tolist()), sorted(order[:held].tolist())
