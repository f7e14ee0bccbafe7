import mlx.core as mx
import numpy as np
import pytest
from isotropic import Row, assert_near, measured

from kvcore.codecs import Side, make_codec
from kvcore.codecs.kivi import Kivi
from kvcore.codes import BLOCK

KEYS, VALUES = Kivi(per_channel=True), Kivi(per_channel=False)
REFERENCE = {
    "KIVI key per-channel g=32 b=2": Row(0.152718, 0.933554, 0.151242, 1.01502),
    "KIVI value per-token g=32 b=2": Row(0.154465, 0.932885, 0.153907, 1.01462),
    "KIVI key per-channel g=32 b=4": Row(0.00605066, 0.997011, 0.00610544, 1.00053),
    "KIVI value per-token g=32 b=4": Row(0.00611493, 0.996979, 0.00603688, 1.00054),
}


def normal(*shape, seed=0):
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("name", REFERENCE)
def test_isotropic_vectors(name):
    bits = int(name[-1])
    codec = make_codec("kivi", Side("keys" if "key" in name else "values", bits))
    assert_near(measured(codec, bits), REFERENCE[name])
    assert codec.token_nbytes(128, bits) * 8 / 128 == bits + 1


def by_hand(x, bits, axis):
    """Rounding to nearest between the least and the largest element along `axis`."""
    lowest = x.min(axis=axis, keepdims=True)
    scale = (x.max(axis=axis, keepdims=True) - lowest) / (2**bits - 1)
    return lowest + scale * np.round((x - lowest) / scale)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_codes_are_those_of_the_formula(bits):
    x = normal(1, 1, BLOCK, 64)
    keys = by_hand(np.array(x).reshape(4, 32, 64), bits, 1).reshape(1, 1, BLOCK, 64)
    values = by_hand(np.array(x).reshape(BLOCK, 2, 32), bits, 2).reshape(1, 1, BLOCK, 64)
    for codec, expected in ((KEYS, keys), (VALUES, values)):
        got = np.array(codec.decode(codec.encode(x, bits)))
        # fp16 scales move levels a little, and now and then an element to the next.
        apart = np.abs(got - expected)
        assert (apart > 6e-3).mean() < 0.06
        assert apart.max() < 1.1 * (x.max() - x.min()).item() / (2**bits - 1)


@pytest.mark.parametrize("codec", [KEYS, VALUES])
def test_groups_of_equal_elements_are_exact(codec):
    x = mx.broadcast_to(mx.array(2.5), (1, 1, BLOCK, 64))
    codes = codec.encode(x, 2)
    assert mx.array_equal(codec.decode(codes), x)
    assert mx.array_equal(codec.decode(codec.lower(codes, 1)), x)


def test_a_strong_channel_of_keys_costs_the_others_nothing():
    x = normal(1, 1, BLOCK, 64)
    strong = mx.array(x)
    strong[..., 5] = 100 + 10 * x[..., 5]
    plain, beside = (KEYS.decode(KEYS.encode(vectors, 2)) for vectors in (x, strong))
    others = mx.arange(64) != 5
    assert mx.array_equal(mx.where(others, plain, 0), mx.where(others, beside, 0))


@pytest.mark.parametrize("codec", [KEYS, VALUES])
def test_lowered_codes_are_between_those_that_merge(codec):
    x = normal(1, 2, BLOCK, 64)
    codes = codec.encode(x, 4)
    fine, coarse = codec.decode(codes), codec.decode(codec.lower(codes, 3))
    held = codes.per_block if codec.per_channel else codes.per_token
    step = held["scale"].max().item()
    assert mx.abs(fine - coarse).max().item() <= 0.5 * step + 2e-3


def test_a_range_that_is_small_beside_its_minimum_survives_bfloat16_models():
    x = (64 + normal(1, 1, BLOCK, 64)).astype(mx.bfloat16)
    error = KEYS.decode(KEYS.encode(x, 4)) - x.astype(mx.float32)
    assert mx.abs(error).max().item() < 0.25


@pytest.mark.parametrize("codec", [KEYS, VALUES])
def test_a_vector_of_nothing_finite_harms_no_other(codec):
    x = normal(1, 1, BLOCK, 64)
    x[0, 0, 9] = float("nan")
    decoded = codec.decode(codec.encode(x, 4))
    rest = mx.arange(BLOCK)[:, None] != 9
    assert mx.isfinite(decoded).all().item()
    assert mx.abs(mx.where(rest, decoded - x, 0)).max().item() < 0.3
