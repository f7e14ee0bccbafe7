import mlx.core as mx
import numpy as np
import pytest

from kvcore.popcount import dot, pack_planes, total, unpack_planes


def numbers(*shape, bits, seed=0):
    return np.random.default_rng(seed).integers(0, 1 << bits, shape)


@pytest.mark.parametrize("size", [8, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("bits", [1, 3, 4])
def test_counted_products_are_the_products(size, bits):
    one, other = numbers(2, 3, 5, size, bits=4), numbers(2, 3, 7, size, bits=bits, seed=1)
    planes = pack_planes(mx.array(other.astype(np.uint32)), bits)
    assert [plane.shape for plane in planes] == [(2, 3, 7, size // 8)] * bits
    counted = dot(pack_planes(mx.array(one.astype(np.uint32)), 4), planes)
    assert np.array_equal(np.array(counted), one @ other.swapaxes(-1, -2))
    assert np.array_equal(np.array(total(planes)), other.sum(-1))
    assert np.array_equal(np.array(unpack_planes(planes)), other)


def test_the_largest_sums_do_not_overflow():
    ones = pack_planes(mx.full((1, 256), 15, dtype=mx.uint32), 4)
    assert dot(ones, ones).item() == 256 * 15 * 15
    assert total(ones).item() == 256 * 15


def test_hand_case():
    """1 + 2 * 3 + 3 * 1, planes with the first number in the lowest bit."""
    one, other = [1, 2, 3, 0, 0, 0, 0, 0], [1, 3, 1, 2, 0, 0, 0, 0]
    planes = pack_planes(mx.array([one], mx.uint32), 2)
    assert [plane.item() for plane in planes] == [0b110, 0b101]
    assert dot(planes, pack_planes(mx.array([other], mx.uint32), 2)).item() == 10
