import mlx.core as mx
import numpy as np
import pytest

from kvcore.clustering import k_means, nearest
from kvcore.indices import pack_indices, packed_nbytes, unpack_indices


@pytest.mark.parametrize("bits", [8, 12])
@pytest.mark.parametrize("count", [1, 2, 7, 10])
def test_indices_come_back_and_fewer_are_a_prefix(bits, count):
    rng = np.random.default_rng(0)
    indices = mx.array(rng.integers(0, 1 << bits, (3, 5, count)).astype(np.uint32))
    packed = pack_indices(indices, bits)
    assert mx.array_equal(unpack_indices(packed, bits), indices)
    assert sum(array.nbytes for array in packed.values()) == 15 * packed_nbytes(count, bits)
    first = pack_indices(indices[..., :1], bits)
    assert mx.array_equal(first["index"], packed["index"][..., :1])
    if bits == 12:
        assert mx.array_equal(first["index_low"] & 15, packed["index_low"][..., :1] & 15)


def test_twelve_bits_by_hand():
    packed = pack_indices(mx.array([0xABC, 0x123, 0xFFF], mx.uint32), 12)
    assert packed["index"].tolist() == [0xAB, 0x12, 0xFF]
    assert packed["index_low"].tolist() == [0x3C, 0x0F]


def test_clusters_that_lie_apart_are_found(monkeypatch):
    monkeypatch.setattr("kvcore.clustering.DISTANCES", 1 << 10)  # several parts
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((4, 3)).astype(np.float32) * 20
    points = centres[rng.integers(4, size=500)] + rng.standard_normal((500, 3)).astype(np.float32)
    points[7] = np.nan
    found = np.array(k_means(mx.array(points), 8, 20, 0))
    distance = np.linalg.norm(found[:, None] - centres, axis=-1)
    assert (distance.min(axis=0) < 2).all() and np.isfinite(found).all()
    clean = np.delete(points, 7, axis=0)
    index = np.array(nearest(mx.array(clean), mx.array(found)))
    by_hand = np.linalg.norm(clean[:, None] - found, axis=-1).argmin(axis=-1)
    assert (index == by_hand).all()


def test_points_may_be_fewer_than_clusters():
    points = mx.array([[0.0, 0.0], [1.0, 1.0]])
    found = k_means(points, 4, 3, 0)
    assert mx.array_equal(mx.sort(found[nearest(points, found)][:, 0]), mx.array([0.0, 1.0]))
