import copy
from math import pi, sqrt

import mlx.core as mx
import numpy as np
import pytest
from isotropic import Row, assert_near
from unbiased import assert_unbiased, measured_over_seeds

from kvcore import storage
from kvcore.cache import PackedKVCache
from kvcore.codecs import Side, make_codec
from kvcore.codes import BLOCK
from kvcore.config import KVCacheConfig
from kvcore.sketch import pack_signs, sketch_table, unpack_signs

REFERENCE = {
    "QJL iid m=128": Row(1.56967, 0.625237, 1.56648, 1.00241),
    "QJL orth m=128": Row(0.567372, 0.79925, 0.570027, 1.00184),
    "QJL iid m=256": Row(0.782359, 0.750094, 0.78149, 1.00143),
    "QJL orth m=256": Row(0.283614, 0.883096, 0.281226, 1.00156),
}


def normal(*shape, seed=0):
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def with_strong_channels(*shape, channels=(3, 40), seed=0):
    x = np.array(normal(*shape, seed=seed))
    x[..., list(channels)] *= 20
    return mx.array(x)


def codec_of(bits=4, seed=3, **options):
    return make_codec("qjl", Side("keys", bits, seed, options))


def relative_error(got, want):
    return (mx.square(got - want).sum() / mx.square(want).sum()).item()


@pytest.mark.parametrize("name", REFERENCE)
def test_isotropic_vectors(name):
    sketch = "iid" if "iid" in name else "orthogonal"
    bits = int(name[-3:]) // 128
    assert_near(measured_over_seeds("qjl", bits, {"sketch": sketch}), REFERENCE[name])


@pytest.mark.parametrize("sketch", ["orthogonal", "iid"])
@pytest.mark.parametrize(
    "options", [{}, {"jl_dim": 32}, {"outlier_channels": 4}], ids=["", "few rows", "outliers"]
)
def test_scores_are_right_on_average_over_seeds(sketch, options):
    assert_unbiased("qjl", 1, {"sketch": sketch} | options)


def test_a_score_is_definition_3_1():
    codec = codec_of(2, sketch="iid")
    x, query = normal(1, 1, BLOCK, 64), normal(1, 1, 1, 64, seed=1)
    got = np.array(codec.scores(codec.into_basis(query), codec.encode(x, 2)))[0, 0, 0]
    table = np.array(sketch_table(64, 128, "iid", 3), np.float64)
    keys, q = np.array(x, np.float64)[0, 0], np.array(query, np.float64)[0, 0, 0]
    norms = np.linalg.norm(keys, axis=1)
    want = sqrt(pi / 2) / 128 * norms * (np.sign(keys @ table.T) @ (table @ q))
    assert np.allclose(got, want, rtol=2e-3, atol=2e-3)


def test_doubling_the_query_doubles_the_score():
    """The estimate from the query's signs would not move."""
    codec, query = codec_of(), normal(1, 1, 1, 64, seed=1)
    codes = codec.encode(normal(1, 1, BLOCK, 64), 4)
    once, twice = (codec.scores(codec.into_basis(q), codes) for q in (query, 2 * query))
    assert mx.allclose(twice, 2 * once, rtol=1e-4, atol=1e-4)


def test_signs_are_packed_lowest_bit_first_and_zero_is_positive():
    projections = mx.array([0.0, -1, 2, -3, -4, -5, -6, 7] + [-1.0] * 7 + [1])
    assert pack_signs(projections).tolist() == [0b10000101, 0b10000000]
    signs = unpack_signs(pack_signs(projections)).tolist()
    assert signs == [1, -1, 1, -1, -1, -1, -1, 1] + [-1] * 7 + [1]


@pytest.mark.parametrize(
    ("jl_dim", "rows"), [(0, (64, 128, 192, 256)), (32, (32,) * 4), (96, (64, 96, 96, 96))]
)
def test_rows_and_bytes(jl_dim, rows):
    codec = codec_of(jl_dim=jl_dim)
    for bits, count in zip((1, 2, 3, 4), rows, strict=True):
        codes = codec.encode(normal(1, 2, BLOCK, 64), bits)
        assert codes.bits == -(-count // 64)
        assert sum(array.nbytes for array in codes.arrays()) == 2 * BLOCK * (count / 8 + 2)
        assert codec.token_nbytes(64, bits) == count / 8 + 2
    assert codec.tables(64)[0].shape == (rows[-1], 64)


def test_dropped_bits_leave_the_codes_of_fewer_rows():
    codec = codec_of(4)
    x, query = normal(1, 2, BLOCK, 80), normal(1, 2, 3, 80, seed=1)
    codes = codec.encode(x, 4)
    for bits in (3, 2, 1):
        freed = codec.bit_nbytes(codes)
        lowered = codec.lower(codes, bits)
        assert freed == sum(a.nbytes for a in codes.arrays()) - sum(
            a.nbytes for a in lowered.arrays()
        )
        codes, direct = lowered, codec.encode(x, bits)
        assert mx.array_equal(codec.decode(codes), codec.decode(direct))
        scores = codec.scores(codec.into_basis(query), codes)
        assert mx.allclose(scores, query @ codec.decode(codes).swapaxes(-1, -2), atol=1e-3)
    assert codec.bit_nbytes(codes) == 0


def test_outlier_channels_take_their_norm_with_them():
    x, query = with_strong_channels(1, 2, 4 * BLOCK, 64), normal(1, 2, 16, 64, seed=1)
    exact = query @ x.swapaxes(-1, -2)
    plain, apart = codec_of(1), codec_of(1, outlier_channels=2)
    errors = []
    for codec in (plain, apart):
        codes = codec.encode(x, 1)
        scores = codec.scores(codec.into_basis(query), codes)
        assert mx.allclose(scores, query @ codec.decode(codes).swapaxes(-1, -2), atol=0.05)
        errors.append(relative_error(scores, exact))
    assert errors[1] < 0.2 * errors[0]
    assert apart.token_nbytes(64, 1) == 8 + 2 + 8 + 2 + 8 / 32
    nbytes = sum(array.nbytes for array in apart.encode(x, 1).arrays())
    assert nbytes == 2 * 4 * BLOCK * apart.token_nbytes(64, 1)


def test_outlier_channels_are_those_of_each_group_of_32_tokens():
    x = np.array(normal(1, 1, BLOCK, 64))
    for group, channel in enumerate((5, 17, 30, 63)):
        x[:, :, 32 * group : 32 * group + 32, channel] *= 30
    codec = codec_of(4, outlier_channels=1)
    codes = codec.encode(mx.array(x), 4)
    mask = np.unpackbits(
        np.array(codes.per_block["outlier_mask"])[0, 0, 0], axis=-1, bitorder="little"
    )
    assert [np.flatnonzero(row).tolist() for row in mask] == [[5], [17], [30], [63]]
    tail = codes.cut(70)
    assert mx.array_equal(codec.decode(tail), codec.decode(codes)[:, :, :70])


@pytest.mark.parametrize("options", [{}, {"outlier_channels": 4}, {"jl_dim": 32}])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_within_its_vector(options, bad):
    codec, x = codec_of(2, **options), with_strong_channels(1, 1, BLOCK, 64)
    spoilt, without = mx.array(x), mx.array(x)
    spoilt[0, 0, 40, 3] = bad
    without[0, 0, 40] = 0
    queries = codec.into_basis(normal(1, 1, 3, 64, seed=1))
    got, want = (codec.scores(queries, codec.encode(v, 2)) for v in (spoilt, without))
    assert mx.array_equal(got, want)
    assert not mx.abs(got[..., 40]).max().item()


@pytest.mark.parametrize("options", [{}, {"outlier_channels": 4}, {"jl_dim": 32}])
def test_a_cache_keeps_its_tokens_through_its_life(options, tmp_path):
    config = KVCacheConfig(method="qjl", key_bits=4, value_bits=4, window=32, options=options)
    assert config.value_method == "turboquant_mse"
    cache = PackedKVCache(config)
    keys, values = (normal(2, 2, 600, 64, seed=s).astype(mx.float16) for s in (1, 2))
    for start, stop in ((0, 300), (300, 600)):
        cache.update_and_fetch(keys[:, :, start:stop], values[:, :, start:stop])
    cache.trim(230)
    other = copy.deepcopy(cache)
    other.lower(1, 4)
    storage.save(tmp_path / "cache.safetensors", [cache, other], {})
    loaded, _ = storage.load(tmp_path / "cache.safetensors")
    queries = normal(2, 4, 7, 64, seed=3).astype(mx.float16)
    for before, after in zip((cache, other), loaded, strict=True):
        assert after.nbytes == before.nbytes and after.offset == 370
        one, two = (each.keys_and_values() for each in (before, after))
        assert mx.array_equal(one[0], two[0])
        got = two[0].whole.attend(queries, 0.125)
        want = mx.fast.scaled_dot_product_attention(queries, *two, scale=0.125, mask=None)
        assert mx.allclose(got, want, atol=0.02)
    smallest = options.get("jl_dim", 64) == 32
    assert (other.nbytes < cache.nbytes) != smallest


@pytest.mark.parametrize("options", [{"sketch": "signs"}, {"jl_dim": 20}, {"outlier_channels": -1}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        codec_of(**options)


@pytest.mark.parametrize("options", [{"jl_dim": 24}, {"jl_dim": 264}, {"outlier_channels": 64}])
def test_options_that_do_not_go_with_the_head_dim_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}.* head_dim of 64"):
        codec_of(**options).encode(normal(1, 1, BLOCK, 64), 4)
