import mlx.core as mx
import numpy as np
import pytest

from kvcore.rotation import check_rotation, rotate, rotate_back, rotation_table


@pytest.mark.parametrize("kind", ["hadamard", "haar"])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 112, 128, 192, 256])
def test_the_rotation_keeps_lengths_and_is_undone(head_dim, kind):
    x = mx.array(np.random.default_rng(1).standard_normal((2, 5, head_dim)).astype(np.float32))
    rotated = rotate(x, 3, kind)
    assert mx.allclose(mx.linalg.norm(rotated, axis=-1), mx.linalg.norm(x, axis=-1), rtol=1e-5)
    assert mx.allclose(rotate_back(rotated, 3, kind), x, atol=1e-5)


def test_one_large_coordinate_is_spread():
    spike = mx.zeros((128,))
    spike[7] = 1.0
    assert mx.abs(rotate(spike, seed=0)).max().item() == pytest.approx(128**-0.5)


def test_the_seed_chooses_the_rotation():
    x = mx.ones((64,))
    assert not mx.allclose(rotate(x, seed=0), rotate(x, seed=1))


def test_only_haar_makes_an_axis_look_random():
    axis = mx.zeros((128,))
    axis[7] = 1.0
    hadamard, haar = (np.array(rotate(axis, 0, kind)) for kind in ("hadamard", "haar"))
    assert np.abs(hadamard).std() < 1e-6
    assert np.abs(haar).std() * 128**0.5 == pytest.approx((1 - 2 / np.pi) ** 0.5, rel=0.2)


def test_haar_is_uniform():
    """Each entry's mean is 0 over the seeds; without the sign of R's diagonal, it is not."""
    tables = np.stack([np.array(rotation_table(8, seed, "haar")) for seed in range(400)])
    assert np.abs(tables.mean(axis=0)).max() < 4.5 * 8**-0.5 / 400**0.5


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="'hadamard' or 'haar'"):
        check_rotation("qr")
