"""More of how vectors lie: the spectrum of their variance, hubs, and what length does to norm and nearness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from twinvec.errors import DataError
from twinvec.evaluation.classification import unit
from twinvec.evaluation.geometry import ROWS, Pair, geometry
from twinvec.evaluation.metrics import Floats, is_constant, spearman
from twinvec.evaluation.values import defined
from twinvec.evaluation.whitening import what_it_changes

NEIGHBOURS: Final = 10
TOP: Final = (1, 3, 10)
_BLOCK: Final = 1024


def space_of(
    vectors: npt.ArrayLike, pairs: Pair | None = None, lengths: Sequence[int] | None = None,
    gold: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike] | None = None, *, rows: int = ROWS, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """vectors (n, D) of different texts; lengths (n,) of those texts; pairs and gold as in `geometry` and `what_it_changes`.

    What `geometry` gives, and:
     * variance_share: share of the variance (of unit rows, centred) in the first 1, 3 and 10 components; components_90: how many hold 90 % of it.
     * hubness: skewness of how often each row is among the 10 nearest of another (Radovanovic et al. 2010; 0 none, above 1.4 strong); largest_hub:
       the most often, as a share of all rows.
     * norm_mean, norm_spread (standard deviation over mean), and Spearman of length with norm and with the mean cosine to all other rows; None where
       norms or lengths are constant, as norms of a model that normalises are.
     * corrections: `what_it_changes` by whitening and by all-but-the-top.
    More than `rows` vectors are thinned out by `seed`. DataError as in `geometry`.
    """
    x = np.asarray(vectors, dtype=np.float64)
    if lengths is not None and len(lengths) != len(x):
        raise DataError(f"geometry: {len(lengths)} lengths for {len(x)} vectors; wanted one each")
    if x.ndim == 2 and len(x) > rows:
        chosen = np.sort(np.random.default_rng([seed, 0x6E0]).choice(len(x), rows, replace=False))
        x, lengths = x[chosen], None if lengths is None else [lengths[i] for i in chosen]
    found: dict[str, Any] = dict(geometry(x, pairs, rows=rows, seed=seed))
    there = x.any(axis=1)
    x, sizes = x[there], None if lengths is None else np.asarray(lengths, dtype=np.float64)[there]
    normed = unit(x)
    found |= _spectrum(normed) | hubness(normed) | _lengths(x, normed, sizes)
    found["corrections"] = what_it_changes(x, gold, seed)
    return found


def _spectrum(x: Floats) -> dict[str, Any]:
    centred = x - x.mean(0)
    energy = np.linalg.svd(centred, compute_uv=False) ** 2 if min(x.shape) else np.zeros(1)
    total = float(energy.sum())
    if total <= 1e-12 * len(x):
        return {"variance_share": {}, "components_90": None}
    shares = np.cumsum(energy) / total
    return {
        "variance_share": {f"first {k}": float(shares[min(k, len(shares)) - 1]) for k in TOP},
        "components_90": int(np.searchsorted(shares, 0.9) + 1),
    }


def hubness(x: npt.ArrayLike, k: int = NEIGHBOURS) -> dict[str, Any]:
    """x (n, D), unit rows -> hubness and largest_hub (see `space_of`); None with too few rows to have k neighbours and others besides."""
    a = np.asarray(x, dtype=np.float64)
    n = len(a)
    if n < k + 2:
        return {"hubness": None, "largest_hub": None}
    counts = np.zeros(n)
    for at in range(0, n, _BLOCK):
        near = a[at : at + _BLOCK] @ a.T
        near[np.arange(len(near)), np.arange(at, at + len(near))] = -np.inf
        best = np.argpartition(-near, k - 1, axis=1)[:, :k]
        counts += np.bincount(best.ravel(), minlength=n)
    away = counts - counts.mean()
    spread = float(np.sqrt((away**2).mean()))
    return {"hubness": float((away**3).mean() / spread**3) if spread > 0 else 0.0, "largest_hub": float(counts.max() / n)}


def _lengths(x: Floats, normed: Floats, lengths: Floats | None) -> dict[str, Any]:
    norms = np.linalg.norm(x, axis=1)
    mean = float(norms.mean())
    out: dict[str, Any] = {"norm_mean": mean, "norm_spread": float(norms.std() / mean) if mean else None}
    # Norms that differ by float32 rounding only say nothing about length.
    steady = bool(np.ptp(norms) <= 1e-5 * mean)
    out["length_with_norm"] = None if lengths is None or steady else defined(spearman(lengths, norms))
    n = len(x)
    nearness = (normed @ normed.sum(0) - 1) / max(n - 1, 1)
    usable = lengths is not None and n > 2 and not is_constant(lengths)
    out["length_with_mean_cosine"] = defined(spearman(np.asarray(lengths), nearness)) if usable else None
    return out
