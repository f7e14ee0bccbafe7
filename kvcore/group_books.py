"""Codes of dimensions that get different numbers of bits, in a stream of bytes.

Dimensions are in groups of eight; each byte of a vector's stream holds one bit of each dimension of
one group, the highest first. The streams of all heads are equally long, though each head has an
order of its own, and the beginning of a stream is a stream of fewer bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import mlx.core as mx
import numpy as np

from kvcore.bitplanes import GROUP
from kvcore.codebooks import codebook


@dataclass(frozen=True)
class GroupBooks:
    """`coded`: whether a dimension has any bits, bool [kv_heads, 1, head_dim]. `quantise`:
    coordinates [batch, kv_heads, tokens, head_dim] of unit variance -> codes, uint32
    [..., groups, 8]. `pack`: codes -> bytes, uint8 [batch, kv_heads, tokens, bytes]. `centroids`:
    bytes -> centroids, float32 [batch, kv_heads, tokens, head_dim], zero where there are no bits.
    """

    coded: mx.array
    quantise: Callable[[mx.array], mx.array]
    pack: Callable[[mx.array], mx.array]
    centroids: Callable[[mx.array], mx.array]


@cache
def group_books(orders: tuple[tuple[int, ...], ...], fine: int, bits: int) -> GroupBooks:
    """`orders`: for each head the group that each byte belongs to, at `fine` bits a dimension on
    average; the codes of `bits` are nested in those, see kvcore.codebooks."""
    groups = len(orders[0]) // fine
    used = [order[: groups * bits] for order in orders]
    depths, fine_depths = _depths(used, groups), _depths(orders, groups)
    coded = mx.repeat(_beside(depths > 0), GROUP, axis=-2)[..., 0]
    mx.eval(coded)
    return GroupBooks(
        coded,
        _quantiser(fine_depths, depths),
        _packer(used, depths),
        _reader(used, fine_depths, depths),
    )


def _depths(orders: Sequence[Sequence[int]], groups: int) -> np.ndarray:
    """Bits of each group, [kv_heads, groups]."""
    return np.stack([np.bincount(order, minlength=groups) for order in orders])


def _levels(order: Sequence[int]) -> np.ndarray:
    """How manieth of its group each byte is."""
    return np.array([order[:i].count(group) for i, group in enumerate(order)])


def _quantiser(fine: np.ndarray, depths: np.ndarray) -> Callable[[mx.array], mx.array]:
    """By bisection: a look-up for each bit, where counting would compare with every threshold."""
    deepest = int(depths.max())
    thresholds: np.ndarray = np.zeros((*depths.shape, 1 << deepest), np.float32)
    for at in np.ndindex(depths.shape):
        if depths[at]:
            inner = codebook(int(fine[at]), int(depths[at])).thresholds
            thresholds[(*at, slice(1, 1 + len(inner)))] = inner
    table = mx.array(thresholds.reshape(-1))
    first = _beside((np.arange(depths.size) << deepest).reshape(depths.shape).astype(np.uint32))
    # Of the bit that is decided at each level; no bit once a group has none left.
    steps = [
        _beside(
            np.where(depths > level, 1 << np.maximum(depths - 1 - level, 0), 0).astype(np.uint32)
        )
        for level in range(deepest)
    ]
    mx.eval(table, first, steps)

    def quantise(coordinates: mx.array) -> mx.array:
        grouped = coordinates.reshape(*coordinates.shape[:-1], -1, GROUP)
        codes = mx.zeros(grouped.shape, mx.uint32)
        for step in steps:
            codes = mx.where(grouped > table[first + codes + step], codes + step, codes)
        return codes

    return quantise


def _packer(orders: Sequence[Sequence[int]], depths: np.ndarray) -> Callable[[mx.array], mx.array]:
    index = mx.array(np.array(orders, np.uint32))[:, None, :, None]
    shifts = [
        depth[list(order)] - 1 - _levels(order) for order, depth in zip(orders, depths, strict=True)
    ]
    shift = mx.array(np.array(shifts, np.uint32))[:, None, :, None]
    mx.eval(index, shift)

    def pack(codes: mx.array) -> mx.array:
        of_bytes = mx.take_along_axis(
            codes, mx.broadcast_to(index, (*codes.shape[:3], *index.shape[2:])), axis=-2
        )
        bit = (of_bytes >> shift) & 1
        return (bit << mx.arange(GROUP, dtype=mx.uint32)).sum(axis=-1).astype(mx.uint8)

    return pack


def _reader(
    orders: Sequence[Sequence[int]], fine: np.ndarray, depths: np.ndarray
) -> Callable[[mx.array], mx.array]:
    deepest = int(depths.max())
    places = np.zeros((*depths.shape[:1], deepest, *depths.shape[1:]), np.uint32)
    for head, order in enumerate(orders):
        places[head, _levels(order), list(order)] = np.arange(len(order))
    coefficients: np.ndarray = np.zeros((6, *depths.shape), np.float32)
    coefficients[3] = 1
    for at in np.ndindex(depths.shape):
        if depths[at]:
            book = codebook(int(fine[at]), int(depths[at]))
            coefficients[(slice(len(book.numerator)), *at)] = book.numerator
            coefficients[(slice(3, 3 + len(book.denominator)), *at)] = book.denominator
    place = mx.array(places.reshape(len(places), 1, -1))
    has = [_beside(depths > level) for level in range(deepest)]
    half = _beside((2.0 ** (depths - 1)).astype(np.float32))
    terms = [_beside(coefficients[i]) for i in range(len(coefficients))]
    mx.eval(place, has, half, terms)

    @mx.compile
    def centroids(packed: mx.array) -> mx.array:
        by_level = mx.take_along_axis(
            packed, mx.broadcast_to(place, (*packed.shape[:3], place.shape[-1])), axis=-1
        )
        codes = mx.array(0, mx.uint32)
        for level, present in zip(mx.split(by_level, deepest, axis=-1), has, strict=True):
            bit = (level[..., None].astype(mx.uint32) >> mx.arange(GROUP, dtype=mx.uint32)) & 1
            codes = mx.where(present, (codes << 1) | bit, codes)
        # The rational function of kvcore.codebooks.centroid, with each group's own coefficients.
        x = (codes.astype(mx.float32) + (0.5 - half)) / half
        square = x * x
        above = (terms[2] * square + terms[1]) * square + terms[0]
        below = (terms[5] * square + terms[4]) * square + terms[3]
        grouped = x * above / below
        return grouped.reshape(*packed.shape[:3], -1)

    return centroids


def _beside(of_groups: np.ndarray) -> mx.array:
    """[kv_heads, groups] as [kv_heads, 1, groups, 1], which goes with codes."""
    return mx.array(of_groups)[:, None, :, None]
