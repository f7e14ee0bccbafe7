"""What every method owes the cache, whatever it makes of the vectors."""

import copy

import mlx.core as mx
import numpy as np
import pytest

from kvcore import storage
from kvcore.cache import PackedKVCache
from kvcore.codecs import Side, make_codec
from kvcore.codes import BLOCK
from kvcore.config import KVCacheConfig

# Bits, options, and the share of its energy that a normal vector may lose.
METHODS = {
    "turboquant_prod": (4, {}, 0.022),
    "qjl": (4, {}, 0.16),
    "rabitq": (4, {}, 0.011),
    "turboquant_rvq": (4, {}, 0.02),
    "turboquant_rvq fresh": (4, {"fresh_rotation": True}, 0.015),
    "polarquant": (4, {}, 0.034),
    "kivi": (4, {}, 0.007),
    "affine": (4, {}, 0.01),
    "affine rotated": (4, {"rotation": "hadamard", "group_size": 32}, 0.01),
    "fp16": (16, {}, 1e-6),
}
NESTED = ("qjl", "rabitq", "turboquant_rvq", "turboquant_rvq fresh", "kivi")
WIDE_RANGE = [name for name in METHODS if name != "kivi"]

each_method = pytest.mark.parametrize("name", METHODS)
each_side = pytest.mark.parametrize("side", ["keys", "values"])


def normal(*shape, seed=0):
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def codec_of(name, side="keys"):
    bits, options, _ = METHODS[name]
    return make_codec(name.split()[0], Side(side, bits, 3, options)), bits


def relative_error(got, want):
    return (mx.square(got - want).sum() / mx.square(want).sum()).item()


def nbytes(codes):
    return sum(array.nbytes for array in codes.arrays())


@each_method
@each_side
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_scores_and_weighted_sums_are_those_of_the_decoded_vectors(name, side, head_dim):
    codec, bits = codec_of(name, side)
    x, queries = normal(2, 2, 2 * BLOCK, head_dim), normal(2, 2, 5, head_dim, seed=1)
    codes = codec.encode(x, bits, 0)
    assert nbytes(codes) == 2 * 2 * 2 * BLOCK * codec.token_nbytes(head_dim, bits)
    decoded = codec.decode(codes)
    assert decoded.dtype == mx.float32 and decoded.shape == x.shape
    assert relative_error(decoded, x) < METHODS[name][2]
    for start, stop in ((0, 2 * BLOCK), (BLOCK, BLOCK + 17)):
        tile, part = codes.tile(start, stop), decoded[:, :, start:stop]
        assert mx.allclose(codec.decode(tile), part, atol=1e-5)
        scores = codec.scores(codec.into_basis(queries), tile)
        assert mx.allclose(scores, queries @ part.swapaxes(-1, -2), atol=1e-3)
        weights = mx.softmax(normal(2, 2, 5, stop - start, seed=2), axis=-1)
        summed = codec.out_of_basis(codec.weighted_sum(weights, tile))
        assert mx.allclose(summed, weights @ part, atol=1e-4)


@each_method
@each_side
@pytest.mark.parametrize("factor", [0.0, 1e-7, 1e-3, 1e4])
def test_extreme_norms_come_back(name, side, factor):
    codec, bits = codec_of(name, side)
    x = normal(1, 1, BLOCK, 64) * factor
    decoded = codec.decode(codec.encode(x, bits, 0))
    assert mx.isfinite(decoded).all().item()
    # Half precision's smallest steps are 6e-8; a group's range may vanish below them.
    largest = max(0.8, 4.5 * METHODS[name][2] ** 0.5) * factor + 1e-6
    assert mx.abs(decoded - x).max().item() <= (largest if factor else 0)


@pytest.mark.parametrize("name", WIDE_RANGE)
def test_bfloat16_keeps_its_range(name):
    codec, bits = codec_of(name)
    x = (normal(1, 1, BLOCK, 64) * 1e25).astype(mx.bfloat16)
    decoded = codec.decode(codec.encode(x, bits, 0))
    scaled = x.astype(mx.float32) * 1e-25
    assert relative_error(decoded * 1e-25, scaled) < METHODS[name][2] + 1e-4


@each_method
@each_side
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_within_its_vector(name, side, bad):
    codec, bits = codec_of(name, side)
    x = normal(1, 1, BLOCK, 64)
    spoilt = mx.array(x)
    spoilt[0, 0, 40, 7] = bad
    others = mx.arange(BLOCK) != 40
    queries = codec.into_basis(normal(1, 1, 3, 64, seed=1))
    scores, expected = (
        mx.where(others, codec.scores(queries, codec.encode(vectors, bits, 0)), 0)
        for vectors in (spoilt, x)
    )
    # The ranges of a group may be those without the element.
    assert relative_error(scores, expected) < 1e-3


@pytest.mark.parametrize("name", NESTED)
@each_side
def test_bits_can_be_dropped_in_place(name, side):
    codec, bits = codec_of(name, side)
    x = normal(2, 2, 2 * BLOCK, 64)
    codes = codec.encode(x, bits, 0)
    error = relative_error(codec.decode(codes), x)
    for fewer in (3, 2, 1):
        lowered = codec.lower(codes, fewer)
        assert lowered.bits == fewer
        assert nbytes(codes) - nbytes(lowered) == codec.bit_nbytes(codes)
        assert nbytes(lowered) == 2 * 2 * 2 * BLOCK * codec.token_nbytes(64, fewer)
        codes, before = lowered, error
        error = relative_error(codec.decode(codes), x)
        assert before < error < 6 * before
    assert codec.lower(codes, 3) is codes


@pytest.mark.parametrize("name", [name for name in METHODS if name not in NESTED])
def test_other_codes_stay_as_they_are(name):
    codec, bits = codec_of(name)
    codes = codec.encode(normal(1, 1, BLOCK, 64), bits, 0)
    assert codec.lower(codes, 2) is codes
    assert codec.bit_nbytes(codes) == 0


@each_method
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_a_cache_keeps_its_tokens_through_its_life(name, dtype, tmp_path):
    bits, options, loss = METHODS[name]
    config = KVCacheConfig(
        method=name.split()[0],
        key_bits=bits,
        value_bits=bits,
        window=32,
        options=options,
        value_options=options,
    )
    cache = PackedKVCache(config)
    keys, values = (normal(2, 2, 600, 64, seed=seed).astype(dtype) for seed in (1, 2))
    for start, stop in ((0, 300), (300, 599), (599, 600)):
        cache.update_and_fetch(keys[:, :, start:stop], values[:, :, start:stop])
    twin = copy.deepcopy(cache)
    assert cache.trim(230) == 230
    assert twin.offset == 600 and cache.offset == 370
    storage.save(tmp_path / "cache.safetensors", [cache, twin], {})
    (cache, twin), _ = storage.load(tmp_path / "cache.safetensors")
    cache.update_and_fetch(keys[:, :, 370:], values[:, :, 370:])
    queries = normal(2, 4, 7, 64, seed=3).astype(dtype)
    for each in (cache, twin):
        assert each.nbytes == sum(array.nbytes for array in each.arrays())
        handles = each.keys_and_values()
        for handle, whole in zip(handles, (keys, values), strict=True):
            assert relative_error(handle.astype(mx.float32), whole.astype(mx.float32)) < loss + 1e-5
        got = handles[0].whole.attend(queries, 0.125)
        by_hand = mx.fast.scaled_dot_product_attention(queries, *handles, scale=0.125, mask=None)
        assert mx.allclose(got, by_hand, atol=0.02)


@each_method
def test_lowering_a_cache_goes_as_far_as_the_method_has_bits(name):
    config = KVCacheConfig(method=name.split()[0], options=METHODS[name][1], window=0, sinks=0)
    cache = PackedKVCache(config)
    x = normal(1, 2, 2 * BLOCK, 64)
    cache.update_and_fetch(x, x)
    freed = cache.lower(2, 1)
    fewest_keys, fewest_values = cache.fewest_bits
    assert (cache.key_bits, cache.value_bits) == (max(2, fewest_keys), max(1, fewest_values))
    assert (freed > 0) == (name in NESTED)
    assert cache.update_and_fetch(x, x)[0].shape[2] == 4 * BLOCK
    for segment in cache.body:
        assert name not in NESTED or segment.keys.bits == cache.key_bits == 2
