import mlx.core as mx
import numpy as np
import pytest

from kvcore import KVCacheBuilder

TURBO = KVCacheBuilder().with_method("turboquant_mse").with_bit_width(inlier=4).with_seed(1)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def filled(cache, tokens, head_dim=128):
    keys, values = normal(tokens, head_dim), normal(tokens, head_dim, seed=1)
    for key, value in zip(keys, values, strict=True):
        cache.append(mx.array(key), mx.array(value))
    return keys.astype(np.float64), values.astype(np.float64)


def attention(query, keys, values):
    scores = keys @ query / keys.shape[1] ** 0.5
    weights = np.exp(scores - scores.max())
    return weights / weights.sum() @ values


def cosine(one, other):
    return one @ other / np.linalg.norm(one) / np.linalg.norm(other)


@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_it_attends_near_the_reference(head_dim):
    cache = TURBO.with_head_dim(head_dim).with_bit_width(6, value=4).build()
    keys, values = filled(cache, 400, head_dim)
    query = normal(head_dim, seed=2)
    output = np.array(cache.attend(mx.array(query)), np.float64)
    assert output.shape == (head_dim,)
    assert cosine(output, attention(query.astype(np.float64), keys, values)) > 0.99
    assert len(cache) == 400


def test_bytes_are_packed_codes_scales_means_and_the_rotation():
    cache = TURBO.build()
    filled(cache, 1024)
    codes, scales, means = 1024 * 64, 1024 * 2, 8 * 128 * 2
    assert cache.memory_bytes() == 2 * (codes + scales) + means + 128 * 4
    assert 1024 * 128 * 4 / cache.memory_bytes() > 3.6


def test_tokens_that_wait_for_a_block_count_and_are_attended_to():
    cache = TURBO.build()
    keys, values = filled(cache, 130)
    assert len(cache) == 130
    query = normal(128, seed=2)
    exact = attention(query.astype(np.float64), keys, values)
    assert cosine(np.array(cache.attend(query), np.float64), exact) > 0.97
    held = cache.memory_bytes()
    cache.append(keys[0], values[0])
    assert len(cache) == 131
    assert cache.memory_bytes() == held  # within the room that is there


def test_window_and_sinks_stay_exact():
    cache = TURBO.with_window(200).with_sinks(4).build()
    keys, values = filled(cache, 200)
    query = normal(128, seed=2)
    exact = attention(query.astype(np.float64), keys, values)
    assert np.allclose(np.array(cache.attend(query)), exact, atol=2e-3)


def test_outliers_help_keys_that_have_them():
    errors = {}
    factors = np.ones(64)
    factors[[3, 40]] = 30
    query = normal(64, seed=2).astype(np.float64) / factors
    for channels in (0, 2):
        cache = TURBO.with_head_dim(64).with_outliers(channels).build()
        keys, values = normal(256, 64) * factors, normal(256, 64, seed=1)
        for key, value in zip(keys, values, strict=True):
            cache.append(key, value)
        exact = attention(query, keys, values.astype(np.float64))
        errors[channels] = 1 - cosine(np.array(cache.attend(query), np.float64), exact)
    assert errors[2] < errors[0] / 3


def test_bfloat16_comes_back_as_bfloat16():
    cache = TURBO.build()
    for key in normal(130, 128):
        cache.append(mx.array(key).astype(mx.bfloat16), mx.array(key).astype(mx.bfloat16))
    output = cache.attend(mx.ones(128, mx.bfloat16))
    assert output.dtype == mx.bfloat16
    assert mx.isfinite(output).all().item()


def test_a_builder_is_not_changed_by_what_follows():
    assert KVCacheBuilder().with_seed(3).fields["seed"] == 3
    assert "seed" not in KVCacheBuilder().fields


def test_bad_input_gets_a_sentence():
    cache = TURBO.with_head_dim(64).build()
    with pytest.raises(ValueError, match="nothing to attend to"):
        cache.attend(mx.zeros(64))
    with pytest.raises(ValueError, match=r"a value must be \[64\], not \[63\]"):
        cache.append(mx.zeros(64), mx.zeros(63))
    assert len(cache) == 0
    with pytest.raises(ValueError, match="head_dim"):
        KVCacheBuilder().with_head_dim(100)
    with pytest.raises(ValueError, match="did you mean 'turboquant_mse'"):
        KVCacheBuilder().with_method("turboquant_mes").build()
    with pytest.raises(ValueError, match="jl_dim"):
        TURBO.with_jl_dim(64).build()
