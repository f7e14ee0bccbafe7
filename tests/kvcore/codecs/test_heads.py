"""Heads of different bits side by side: each as its own codec alone would have it."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from kvcore.codecs import Side, make_codec
from kvcore.codecs.heads import Heads, make_codec_by_head
from kvcore.codes import BLOCK

HEAD_BITS = (2, 5, 3, 2)
HEAD_DIM = 64


def normal(*shape, seed=0):
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def side(bits, name: Any = "keys"):
    conditioning = "block_mean" if name == "keys" else "none"
    return Side(name, bits, conditioning=conditioning)


@pytest.fixture(params=["keys", "values"])
def name(request):
    return request.param


@pytest.mark.parametrize("method", ["turboquant_mse", "kivi"])
def test_a_head_is_packed_as_alone(method, name):
    x, queries = normal(2, 4, 2 * BLOCK, HEAD_DIM), normal(2, 4, 3, HEAD_DIM, seed=1)
    weights = mx.softmax(normal(2, 4, 3, 2 * BLOCK, seed=2), axis=-1)
    codec = make_codec_by_head(method, side(9, name), HEAD_BITS)
    codes = codec.encode(x, 5, 0)
    for head, bits in enumerate(HEAD_BITS):
        own = slice(head, head + 1)
        alone = make_codec(method, side(bits, name))
        packed = alone.encode(x[:, own], bits, 0)
        assert mx.allclose(codec.decode(codes)[:, own], alone.decode(packed), atol=1e-5)
        scores = codec.scores(codec.into_basis(queries), codes)[:, own]
        assert mx.allclose(
            scores, alone.scores(alone.into_basis(queries[:, own]), packed), atol=1e-4
        )
        summed = codec.out_of_basis(codec.weighted_sum(weights, codes))[:, own]
        want = alone.out_of_basis(alone.weighted_sum(weights[:, own], packed))
        assert mx.allclose(summed, want, atol=1e-5)


def test_bytes_are_those_of_the_heads(name):
    codec = make_codec_by_head("turboquant_mse", side(9, name), HEAD_BITS)
    codes = codec.encode(normal(1, 4, 2 * BLOCK, HEAD_DIM), 5, 0)
    held = sum(array.nbytes for array in codes.arrays())
    assert held == codec.token_nbytes(HEAD_DIM, 5) * 4 * 2 * BLOCK
    lowered, freed = codes, []
    for bits in (4, 3, 2, 1):
        foreseen = codec.bit_nbytes(lowered)
        before = sum(array.nbytes for array in lowered.arrays())
        lowered = codec.lower(lowered, bits)
        freed.append(before - sum(array.nbytes for array in lowered.arrays()))
        assert freed[-1] == foreseen
    a_bit_of_a_head = 2 * BLOCK * HEAD_DIM // 8
    assert freed == [count * a_bit_of_a_head for count in (1, 1, 2, 4)]


def test_lowered_heads_are_as_if_packed_so(name):
    x = normal(1, 4, BLOCK, HEAD_DIM)
    codec = make_codec_by_head("turboquant_mse", side(9, name), HEAD_BITS)
    lowered = codec.lower(codec.encode(x, 5, 0), 3)
    packed = codec.encode(x, 3, 0)
    assert lowered.bits == packed.bits == 3
    # The scales of values differ a little: they follow from the finer codes.
    assert mx.allclose(codec.decode(lowered), codec.decode(packed), atol=0.05)
    joined = lowered.followed_by(packed).cut(BLOCK + 5)
    assert joined.tokens == BLOCK + 5
    assert mx.allclose(codec.decode(joined)[:, :, :BLOCK], codec.decode(lowered), atol=1e-6)


def test_equal_bits_need_no_groups():
    assert make_codec_by_head("turboquant_mse", side(9), (3, 3)) == make_codec(
        "turboquant_mse", side(3)
    )
    assert isinstance(make_codec_by_head("turboquant_mse", side(9), (3, 2)), Heads)
