"""Sign sketches (QJL, arXiv 2406.03482): of a key only the signs of S k and its norm are kept.

E[<s, q> sign<s, k>] is <q, k> / (gain |k|) for a random row s, so gain / rows |k| <S q, sign(S k)>
is an unbiased estimate of <q, k>, as long as S q keeps its full precision. With the query's signs
too it would estimate |k| arcsin of the cosine, whatever the query's norm: biased, although that
form is in circulation, often as XOR and popcount.

Rows are independent normal variables ("iid"), or orthogonal in chunks of head_dim, each of norm
sqrt(head_dim) ("orthogonal", as the authors' code has it): at head_dim rows that has 2.75 times
less variance.
"""

from functools import cache
from math import exp, lgamma, pi, sqrt

import mlx.core as mx
import numpy as np

from kvcore.bitplanes import GROUP, pack, unpack
from kvcore.rotation import haar

SKETCHES = ("orthogonal", "iid")


@cache
def sketch_table(head_dim: int, rows: int, kind: str, seed: int) -> mx.array:
    """S, float32 [rows, head_dim], evaluated; fewer rows are the first of more."""
    # Rotations are drawn from `seed` alone; S must not be one of them.
    random = np.random.default_rng((seed, 1))
    chunks = [_chunk(head_dim, kind, random) for _ in range(-(-rows // head_dim))]
    table = mx.array(np.concatenate(chunks)[:rows].astype(np.float32))
    mx.eval(table)  # another thread may read it
    return table


@cache
def gain(head_dim: int, kind: str) -> float:
    """|x| / E|<s, x>| for a row s: sqrt(pi / 2), or slightly less for one of a fixed norm."""
    if kind == "iid":
        return sqrt(pi / 2)
    half = head_dim / 2
    return sqrt(pi / head_dim) * exp(lgamma(half + 0.5) - lgamma(half))


def pack_signs(projections: mx.array) -> mx.array:
    """Eight a byte, the first in the lowest bit, set where not negative: uint8 [..., rows / 8]."""
    return pack((projections >= 0).astype(mx.uint32), 1)[0]


def unpack_signs(packed: mx.array) -> mx.array:
    """1 and -1, float32 [..., rows]."""
    bits = unpack((packed,), 1)
    return bits.reshape(*bits.shape[:-2], -1).astype(mx.float32) * 2 - 1


def check_sketch(kind: str, jl_dim: int) -> None:
    """Raises ValueError unless `kind` is one of SKETCHES and `jl_dim` a multiple of 8, or 0."""
    if kind not in SKETCHES:
        known = " or ".join(map(repr, SKETCHES))
        raise ValueError(f"option 'sketch' must be {known}, not {kind!r}.")
    if jl_dim < 0 or jl_dim % GROUP:
        raise ValueError(
            f"option 'jl_dim' must be a multiple of {GROUP}, or 0 for the default, not {jl_dim}."
        )


def check_rows(rows: int, head_dim: int) -> int:
    """`rows`; raises ValueError unless it is half of head_dim to four times as many."""
    if not head_dim / 2 <= rows <= 4 * head_dim:
        raise ValueError(
            f"option 'jl_dim' must be {head_dim // 2} to {4 * head_dim} at a head_dim of"
            f" {head_dim}, not {rows}."
        )
    return rows


def _chunk(head_dim: int, kind: str, random: np.random.Generator) -> np.ndarray:
    if kind == "iid":
        return random.standard_normal((head_dim, head_dim))
    return sqrt(head_dim) * haar(head_dim, random)
