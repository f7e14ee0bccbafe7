import mlx.core as mx
import numpy as np
import pytest

from kvcore.rotation import rotate, rotate_back


@pytest.mark.parametrize("head_dim", [64, 80, 96, 112, 128, 192, 256])
def test_the_rotation_keeps_lengths_and_is_undone(head_dim):
    x = mx.array(np.random.default_rng(1).standard_normal((2, 5, head_dim)).astype(np.float32))
    rotated = rotate(x, seed=3)
    assert mx.allclose(mx.linalg.norm(rotated, axis=-1), mx.linalg.norm(x, axis=-1), rtol=1e-5)
    assert mx.allclose(rotate_back(rotated, seed=3), x, atol=1e-5)


def test_one_large_coordinate_is_spread():
    spike = mx.zeros((128,))
    spike[7] = 1.0
    assert mx.abs(rotate(spike, seed=0)).max().item() == pytest.approx(128**-0.5)


def test_the_seed_chooses_the_rotation():
    x = mx.ones((64,))
    assert not mx.allclose(rotate(x, seed=0), rotate(x, seed=1))
