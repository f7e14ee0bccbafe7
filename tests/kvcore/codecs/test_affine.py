import mlx.core as mx
import numpy as np
import pytest

from kvcore.cache import PackedKVCache
from kvcore.codecs import Side, make_codec
from kvcore.codes import BLOCK
from kvcore.config import KVCacheConfig


def normal(*shape, seed=0):
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def affine(bits=4, **options):
    return make_codec("affine", Side("keys", bits, 0, options))


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group", [32, 64])
def test_codes_and_scales_are_mlxs_own(bits, group):
    x = normal(1, 2, BLOCK, 128).astype(mx.float16)
    codes = affine(bits, group_size=group).encode(x, bits, 0)
    packed, scale, bias = mx.quantize(x, group, bits)
    assert mx.array_equal(codes.per_token["codes"], packed)
    assert mx.array_equal(codes.per_token["scale"], scale)
    assert mx.array_equal(codes.per_token["bias"], bias)


def test_rotation_spreads_a_strong_channel():
    x = normal(1, 1, BLOCK, 64)
    x[..., 5] = 30 * x[..., 5]
    others = mx.arange(64) != 5

    def error(codec):
        return mx.where(others, codec.decode(codec.encode(x, 4, 0)) - x, 0).square().mean().item()

    assert error(affine(rotation="hadamard")) < 0.5 * error(affine())


def test_groups_are_halved_where_head_dim_wants_it():
    assert affine().token_nbytes(128, 4) == 128 // 2 + 4 * 2
    assert affine().token_nbytes(96, 4) == 96 // 2 + 4 * 3
    assert affine(group_size=32).token_nbytes(128, 4) == 128 // 2 + 4 * 4
    assert affine().token_nbytes(80, 4) == 96 // 2 + 4 * 3


def test_a_width_that_mlx_has_not_is_refused():
    with pytest.raises(ValueError, match="not 7"):
        PackedKVCache(KVCacheConfig(method="affine", key_bits=7))
    with pytest.raises(ValueError, match="64 or 32, not 16"):
        affine(group_size=16)
    with pytest.raises(ValueError, match="'qr'"):
        affine(rotation="qr")


def test_between_its_widths_it_packs_at_the_next_below():
    assert affine(8).encode(normal(1, 1, BLOCK, 64), 7, 0).bits == 6


def test_huge_vectors_do_not_overflow_their_scales():
    x = mx.clip(normal(1, 1, BLOCK, 64) * 6e4, -6e4, 6e4).astype(mx.float16)
    for rotation in ("none", "hadamard", "haar"):
        codec = affine(rotation=rotation)
        assert mx.isfinite(codec.decode(codec.encode(x, 4, 0))).all().item()
