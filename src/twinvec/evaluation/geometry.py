"""How vectors lie in space, without labels: whether they crowd into a cone, and how many directions they use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from twinvec.errors import DataError, UsageError
from twinvec.evaluation.encoding import EncoderLike
from twinvec.evaluation.metrics import Floats

Geometry = dict[str, float | int | None]
Pair = tuple[npt.ArrayLike, npt.ArrayLike]
TEMPERATURE: Final = 2.0  # t of uniformity; Wang and Isola 2020, section 4.1
ROWS: Final = 5000  # rows for which all pairs are taken: 12.5 million pairs, two seconds a core
BLOCK: Final = 1024


def geometry(vectors: npt.ArrayLike, pairs: Pair | None = None, *, rows: int = ROWS, seed: int = 0) -> Geometry:
    """vectors (n, D) of different texts, any length; pairs: (u, v), each (m, D), of texts that mean the same. Everything on unit rows x, float64.

     * mean_random_cosine: mean of x_i . x_j over i != j; near 0 is isotropic, near 1 a narrow cone (Ethayarajh 2019, "anisotropy").
     * uniformity: log of the mean of exp(-2 |x_i - x_j|^2) over i < j; lower is better, 0 when all are equal, -4 for many random directions
       (Wang and Isola 2020, eq. 5).
     * alignment: mean of |u_i - v_i|^2 over the pairs; lower is better (the same paper, eq. 4); None without pairs.
     * effective_rank: exp of the entropy of s_k / sum(s), s the singular values of x, not centred; 1 to min(n, D) (Roy and Vetterli 2007; RankMe,
       Garrido et al. 2023).
     * top_share: s_1^2 / sum(s^2): how much of all vectors lies along one direction.
    rows, zero_rows, dimensions: rows used, rows of zeros (they have no direction, so they are left out), and D.

    More than `rows` vectors are thinned out to so many by `seed`. DataError: NaN or infinity, wrong shapes, fewer than two rows that are not zero.
    """
    if rows < 2:
        raise UsageError(f"rows = {rows}: wanted 2 or more, since geometry compares two vectors")
    given = _finite(vectors, "vectors")
    chosen = given if len(given) <= rows else given[np.sort(np.random.default_rng([seed, 0x6E0]).choice(len(given), rows, replace=False))]
    x, there = _unit(chosen)
    if len(x) < 2:
        raise DataError(f"geometry: {len(x)} of {len(given)} vectors are not zero; wanted two or more")
    energy = np.linalg.eigvalsh(x.T @ x if x.shape[0] > x.shape[1] else x @ x.T).clip(min=0)
    cosine, spread = _over_pairs(x)
    return {
        "rows": len(x),
        "zero_rows": int((~there).sum()),
        "dimensions": x.shape[1],
        "mean_random_cosine": cosine,
        "uniformity": spread,
        "alignment": None if pairs is None else _alignment(*pairs),
        "effective_rank": _effective_rank(np.sqrt(energy)),
        "top_share": float(energy[-1] / energy.sum()),
    }


def geometry_of(
    encoder: EncoderLike,
    texts: Sequence[str],
    pairs: tuple[Sequence[str], Sequence[str]] | None = None,
    *,
    prompt: str | None = None,
    rows: int = ROWS,
    seed: int = 0,
) -> Geometry:
    """`geometry` of an encoder on texts; a text that comes twice counts once. pairs: two lists, text i of one belonging to text i of the other.

    prompt: as in `Encoder.encode`, for all texts.
    """
    distinct = list(dict.fromkeys(texts))
    if rows >= 2 and len(distinct) > rows:  # here already, so that no text is encoded in vain
        distinct = [distinct[i] for i in np.sort(np.random.default_rng([seed, 0x6E0]).choice(len(distinct), rows, replace=False))]
    sides = None
    if pairs is not None:
        if len(pairs[0]) != len(pairs[1]):
            raise DataError(f"geometry: pairs of {len(pairs[0])} and {len(pairs[1])} texts; wanted as many on both sides")
        place = {text: i for i, text in enumerate(dict.fromkeys([*pairs[0], *pairs[1]]))}
        vectors = encoder.encode_with_report(list(place), prompt=prompt).vectors
        sides = (vectors[[place[text] for text in pairs[0]]], vectors[[place[text] for text in pairs[1]]])
    return geometry(encoder.encode_with_report(distinct, prompt=prompt).vectors, sides, rows=rows, seed=seed)


def _finite(vectors: npt.ArrayLike, what: str) -> Floats:
    x = np.asarray(vectors, dtype=np.float64)
    if x.ndim != 2 or not x.shape[1]:
        raise DataError(f"geometry: {what} of shape {x.shape}; wanted one row a text, (n, D)")
    bad = np.flatnonzero(~np.isfinite(x).all(axis=1))
    if bad.size:
        raise DataError(f"geometry: {bad.size} of {len(x)} rows of {what} hold NaN or infinity (first: row {bad[0] + 1}); the model is broken")
    return x


def _unit(x: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """The rows that are not zero at length 1, and which those are. Divided by the largest entry first, so that no square leaves float64."""
    largest = np.abs(x).max(axis=1, initial=0.0)
    there = largest > 0
    x = x[there] / largest[there, None]
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True)), there


def _over_pairs(x: Floats) -> tuple[float, float]:
    """(mean cosine, uniformity) over the pairs i < j, in blocks of rows."""
    n = len(x)
    cosines = kernels = 0.0
    for start in range(0, n, BLOCK):
        block = x[start : start + BLOCK]
        near = np.clip(block @ x[start:].T, -1.0, 1.0)
        near = near[np.triu(np.ones(near.shape, dtype=bool), 1)]  # each pair once, none with itself
        cosines += float(near.sum())
        kernels += float(np.exp(TEMPERATURE * (2.0 * near - 2.0)).sum())  # |x - y|^2 = 2 - 2 x . y
    count = n * (n - 1) // 2
    return cosines / count, math.log(kernels / count)


def _alignment(first: npt.ArrayLike, second: npt.ArrayLike) -> float | None:
    """Mean squared distance of the unit rows; pairs with a row of zeros are left out, None when none is left."""
    u, v = _finite(first, "pairs"), _finite(second, "pairs")
    if u.shape != v.shape:
        raise DataError(f"geometry: pairs of shapes {u.shape} and {v.shape}; wanted two blocks of one shape (m, D)")
    both = np.abs(u).any(axis=1) & np.abs(v).any(axis=1)
    if not both.any():
        return None
    return float(((_unit(u[both])[0] - _unit(v[both])[0]) ** 2).sum(axis=1).mean())


def _effective_rank(values: Floats) -> float:
    shares = values / values.sum()
    shares = shares[shares > 0]
    return float(np.exp(-(shares * np.log(shares)).sum()))
