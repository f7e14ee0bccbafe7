import mlx.core as mx
import numpy as np
import pytest

from kvcore.codecs.turboquant_mse import TurboQuantMSE, fields_of
from kvcore.codes import BLOCK
from kvcore.rotation import rotate_back

KEYS = TurboQuantMSE(6, centred=True, unbiased=False)
VALUES = TurboQuantMSE(6, centred=False, unbiased=True)

# Distortion of a unit vector's rotated coordinates at head_dim 128, from the exact law on the
# sphere, for codes of that width alone; per-vector scales change it by less than the tolerance.
SPHERE_MSE = {1: 0.36089, 2: 0.11600, 3: 0.03397, 4: 0.00932}


def normal(*shape, seed=0):
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def relative_error(got, want):
    return (mx.square(got - want).sum() / mx.square(want).sum()).item()


@pytest.mark.parametrize("rotation", ["hadamard", "haar"])
@pytest.mark.parametrize("bits", SPHERE_MSE)
def test_distortion_on_isotropic_vectors_is_the_papers(bits, rotation):
    x = normal(1, 1, 40 * BLOCK, 128)
    codec = TurboQuantMSE(bits, centred=False, unbiased=False, rotation=rotation)
    codes = codec.encode(x, bits)
    rotated = codec.into_basis(x)
    unit = rotated / mx.linalg.norm(rotated, axis=-1, keepdims=True)
    # The paper's book scales by the norm alone; take the centroids at that scale.
    centroids = codec.centred_vectors(codes) / codes.per_token["scale"] / 128**0.5
    assert mx.square(centroids - unit).sum(-1).mean().item() == pytest.approx(
        SPHERE_MSE[bits], rel=0.02
    )


@pytest.mark.parametrize("codec", [KEYS, VALUES])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_lowering_equals_encoding_at_fewer_bits(codec, head_dim):
    x = 3 * normal(1, 2, 2 * BLOCK, head_dim) + 2 * normal(head_dim, seed=1)
    codes = codec.encode(x, 6)
    for bits in (5, 4, 3, 2, 1):
        codes = codec.lower(codes, bits)
        direct = codec.encode(x, bits)
        assert all(
            mx.array_equal(a, b) for a, b in zip(fields_of(codes), fields_of(direct), strict=True)
        )
        lowered_error = relative_error(codec.decode(codes), x)
        assert lowered_error == pytest.approx(relative_error(codec.decode(direct), x), rel=0.01)


def test_keys_keep_their_norm_and_values_their_direction():
    x = normal(1, 1, BLOCK, 64)
    for bits in (6, 2):
        values = VALUES.decode(VALUES.encode(x, bits))
        along = (values * x).sum(-1) / (x * x).sum(-1)
        assert mx.allclose(along, mx.ones_like(along), atol=2e-3)
        codec = TurboQuantMSE(6, centred=False, unbiased=False)
        keys = codec.decode(codec.encode(x, bits))
        assert mx.allclose(mx.linalg.norm(keys, axis=-1), mx.linalg.norm(x, axis=-1), rtol=2e-3)


def test_a_common_offset_costs_keys_nothing():
    x = normal(1, 1, BLOCK, 64)
    offset = 50 * normal(64, seed=2)
    plain = relative_error(KEYS.decode(KEYS.encode(x, 4)), x)
    moved = KEYS.decode(KEYS.encode(x + offset, 4)) - offset
    assert relative_error(moved, x) < 1.5 * plain + 1e-3


@pytest.mark.parametrize("codec", [KEYS, VALUES])
@pytest.mark.parametrize("factor", [0.0, 1e-7, 1e-3, 1e4])
def test_extreme_norms_stay_finite(codec, factor):
    x = normal(1, 1, BLOCK, 64) * factor
    decoded = codec.decode(codec.encode(x, 6))
    assert mx.isfinite(decoded).all().item()
    assert mx.abs(decoded - x).max().item() <= 0.2 * factor + 1e-7


def test_scores_and_weighted_sums_are_those_of_the_decoded_vectors():
    x, queries = normal(1, 2, 3 * BLOCK, 64), normal(1, 2, 5, 64, seed=1)
    codes = KEYS.encode(x, 4)
    decoded = KEYS.decode(codes)
    for start, stop in ((0, 3 * BLOCK), (BLOCK, 2 * BLOCK + 17)):
        got = KEYS.scores(KEYS.into_basis(queries), codes.tile(start, stop))
        assert mx.allclose(got, queries @ decoded[:, :, start:stop].swapaxes(-1, -2), atol=1e-3)
    weights = mx.softmax(normal(1, 2, 5, 3 * BLOCK, seed=2), axis=-1)
    codes = VALUES.encode(x, 4)
    got = VALUES.out_of_basis(VALUES.weighted_sum(weights, codes))
    assert mx.allclose(got, weights @ VALUES.decode(codes), atol=1e-3)


def test_bytes_are_the_bits_the_scales_and_the_means():
    codes = KEYS.encode(normal(1, 2, 2 * BLOCK, 128), 4)
    assert sum(a.nbytes for a in codes.arrays()) == 2 * (256 * (128 // 2 + 2) + 2 * 128 * 2)


@pytest.mark.parametrize("codec", [KEYS, VALUES], ids=["keys", "values"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", [3, slice(None)], ids=["one channel", "all"])
def test_what_is_not_finite_stays_alone(codec, bad, where):
    """The rest comes back as if that vector were not there, and that one as the block's mean."""
    x = np.array(normal(1, 2, 2 * BLOCK, 64) + 50 * normal(64, seed=2))
    x[0, 1, 40, where] = bad
    finite = mx.array(np.delete(x[0, 1, :BLOCK], 40, axis=0))
    decoded = codec.decode(codec.encode(mx.array(x), 6))
    assert mx.isfinite(decoded).all().item()
    want = finite.mean(axis=0) if codec.centred else mx.zeros(64)
    assert mx.allclose(decoded[0, 1, 40], want, atol=0.1)
    others = mx.array(np.delete(np.array(decoded[0, 1, :BLOCK]), 40, axis=0))
    offset = 50 * normal(64, seed=2)
    error = relative_error(others - offset, finite - offset)
    clean = np.where(np.isfinite(x), x, 0)
    clean[0, 1, 40] = clean[0, 1, 39]
    reference = codec.decode(codec.encode(mx.array(clean), 6))[0, 1, :40] - offset
    assert error < 1.3 * relative_error(reference, mx.array(clean)[0, 1, :40] - offset)


@pytest.mark.parametrize("codec", [KEYS, VALUES], ids=["keys", "values"])
@pytest.mark.parametrize("factor", [1e-30, 1.0, 1e30])
def test_bfloat16_keeps_its_range(codec, factor):
    x = (normal(1, 1, BLOCK, 64) + 3 * normal(64, seed=1)) * factor
    codes = codec.lower(codec.encode(x.astype(mx.bfloat16), 6), 5)
    scale = codes.per_token["scale"]
    assert scale.dtype == mx.bfloat16 and mx.isfinite(scale).all().item()
    assert relative_error(codec.decode(codes) / factor, x / factor) < 0.005


def test_means_beyond_half_precision_are_held_as_far_as_it_goes():
    """A rotation can gather what all keys share into one channel, sqrt(head_dim) times as large."""
    sign = mx.array(np.sign(np.array(rotate_back(mx.eye(64)[5], 0))))
    x = normal(1, 1, BLOCK, 64) + 2e4 * sign
    decoded = KEYS.decode(KEYS.encode(x.astype(mx.float16), 6))
    assert mx.isfinite(decoded).all().item()
    assert relative_error(decoded, x) < 0.01
