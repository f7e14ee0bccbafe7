from math import pi

import mlx.core as mx
import numpy as np
import pytest
from isotropic import Row, assert_near, measured

from kvcore.codecs import Side, make_codec
from kvcore.codecs.polarquant import _angle_codes, _centroids, from_polar, to_polar

REFERENCE = {
    "PolarQuant L=4 bits 4/2/2/2 (paper)": (3.875, Row(0.0321046, 0.983948, 0.0317242, 0.983932)),
    "PolarQuant L=4 bits 4/3/3/3": (4.3125, Row(0.0181304, 0.990935, 0.0181679, 0.990944)),
    "PolarQuant full 7 levels b=3": (3.125, Row(0.0570567, 0.971472, 0.0574633, 0.971457)),
}
ANGLE_BITS = dict(zip(REFERENCE, ("4/2/2/2", "4/3/3/3", "3/3/3/3/3/3/3"), strict=True))


def normal(*shape, seed=0):
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("name", REFERENCE)
def test_isotropic_vectors(name):
    bits, row = REFERENCE[name]
    codec = make_codec("polarquant", Side("keys", 4, 7, {"angle_bits": ANGLE_BITS[name]}))
    assert_near(measured(codec, 4), row)
    # 127 angles of 3 bits take 48 bytes, not 47.6, or the whole were 3.1016 bits.
    assert codec.token_nbytes(128, 4) * 8 / 128 == bits


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_the_transform_is_exact_without_codes(head_dim):
    x = normal(2, 3, head_dim)
    radii, angles = to_polar(x, 4)
    assert radii.shape == (2, 3, head_dim // 16)
    assert all((angle >= 0).all() and (angle <= pi / 2 + 1e-6).all() for angle in angles[1:])
    back = from_polar(radii, [mx.cos(a) for a in angles], [mx.sin(a) for a in angles])
    assert mx.allclose(back, x, atol=1e-5)


def test_angles_on_both_sides_of_the_turns_ends_are_neighbours():
    angles = mx.array([-pi, -pi + 0.01, pi - 0.01, pi, -0.01, 0.0, 0.01])
    assert _angle_codes(angles, 1, 4).tolist()[1:] == [8, 7, 8, 15, 0, 0]
    centroids = np.array(_centroids(1, 4))
    for angle in np.linspace(-pi, pi, 999):
        code = _angle_codes(mx.array([angle]), 1, 4).item()
        off = abs((angle - centroids[code] + pi) % (2 * pi) - pi)
        assert off <= pi / 16 + 1e-5


@pytest.mark.parametrize("level", [2, 3, 4])
def test_angles_of_a_normal_vector_have_the_density_that_books_are_made_for(level):
    angles = np.array(to_polar(normal(4000, 16), 4)[1][level - 1]).ravel()
    grid = np.linspace(0, pi / 2, 2001)
    density = np.sin(2 * grid) ** (2 ** (level - 1) - 1)
    cumulative = np.cumsum(density) / density.sum()
    share = np.searchsorted(np.sort(angles), grid) / angles.size
    assert np.abs(share - cumulative).max() < 2.2 / np.sqrt(angles.size)


@pytest.mark.parametrize("text", ["", "4/2/", "9", "0/2", "4,2", "2/2/2/2/2/2/2/2/2", "four"])
def test_bad_angle_bits_are_refused(text):
    with pytest.raises(ValueError, match="angle_bits"):
        make_codec("polarquant", Side("keys", 4, options={"angle_bits": text}))


def test_a_head_dim_that_the_levels_do_not_divide_is_refused():
    codec = make_codec("polarquant", Side("keys", 4))
    with pytest.raises(ValueError, match="multiple of 16, not 72"):
        codec.encode(normal(1, 1, 128, 72), 4, 0)
