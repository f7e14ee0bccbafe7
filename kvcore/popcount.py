"""Inner products of small whole numbers by AND and popcount over their bit planes.

sum_i a_i b_i is, over the planes A_j of a and B_k of b, sum_jk 2^(j + k) popcount(A_j & B_k). MLX
has no popcount, so bits are summed up in the bytes of a word, and these once for all words.
"""

from collections.abc import Sequence
from functools import reduce

import mlx.core as mx

from kvcore.bitplanes import pack, unpack

Planes = Sequence[mx.array]
"""uint8 [..., n, size / 8], the highest bit's first."""


def pack_planes(numbers: mx.array, bits: int) -> list[mx.array]:
    """Planes of uint32 [..., size]; `size` must be a multiple of 8, and below 1,000 for `dot`."""
    return [pack((numbers >> place) & 1, 1)[0] for place in reversed(range(bits))]


def unpack_planes(planes: Planes) -> mx.array:
    """uint32 [..., size]."""
    numbers = reduce(lambda high, plane: (high << 1) | unpack((plane,), 1), planes, mx.array(0))
    return numbers.astype(mx.uint32).reshape(*numbers.shape[:-2], -1)


def dot(one: Planes, other: Planes) -> mx.array:
    """[..., n, size] . [..., m, size] -> uint32 [..., n, m]."""
    return _dot([_words(plane) for plane in one], [_words(plane) for plane in other])


def total(planes: Planes) -> mx.array:
    """Sum of the numbers: uint32 [..., n]."""
    counts = (_sum_of_bytes(_bits_in_bytes(_words(plane)).sum(axis=-1)) for plane in planes)
    return reduce(lambda high, count: (high << 1) + count, counts)


def _words(plane: mx.array) -> mx.array:
    padding = [(0, 0)] * (plane.ndim - 1) + [(0, -plane.shape[-1] % 4)]
    return mx.pad(plane, padding).view(mx.uint32)


def _dot(one: list[mx.array], other: list[mx.array]) -> mx.array:
    # Word by word, so that nothing of [..., n, m, words] ever exists. All of it under mx.compile
    # would take its compiler many seconds.
    words = range(one[0].shape[-1])
    sums = []
    for j, high in enumerate(reversed(one)):
        for k, low in enumerate(reversed(other)):
            pairs = ((high[..., :, None, w], low[..., None, :, w]) for w in words)
            counts = reduce(mx.add, (_common_bits_in_bytes(*pair) for pair in pairs))
            sums.append(_sum_of_bytes(counts) << (j + k))
    return reduce(mx.add, sums)


def _bits_in_bytes(words: mx.array) -> mx.array:
    """How many bits are set in each byte, in that byte."""
    words = words - ((words >> 1) & 0x55555555)
    words = (words & 0x33333333) + ((words >> 2) & 0x33333333)
    return (words + (words >> 4)) & 0x0F0F0F0F


@mx.compile
def _common_bits_in_bytes(one: mx.array, other: mx.array) -> mx.array:
    return _bits_in_bytes(one & other)


@mx.compile
def _sum_of_bytes(words: mx.array) -> mx.array:
    pairs = (words & 0x00FF00FF) + ((words >> 8) & 0x00FF00FF)
    return (pairs + (pairs >> 16)) & 0xFFFF
