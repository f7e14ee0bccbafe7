"""Outlier channels and key conditioning, each around codecs and both around one."""

import copy

import mlx.core as mx
import numpy as np
import pytest

from kvcore import storage
from kvcore.cache import PackedKVCache
from kvcore.codecs import Side, make_codec
from kvcore.codecs.conditioning import BlockMean
from kvcore.codecs.outliers import Outliers
from kvcore.codecs.turboquant_mse import TurboQuantMSE
from kvcore.codes import BLOCK
from kvcore.config import KVCacheConfig
from kvcore.methods import METHODS

PLAIN = TurboQuantMSE(4, centred=False, unbiased=False)
CODECS = {
    "outliers": Outliers(PLAIN, 4),
    "block_mean": BlockMean(PLAIN),
    "both": BlockMean(Outliers(PLAIN, 4)),
}
each_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)


def normal(*shape, seed=0):
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def relative_error(got, want):
    return (mx.square(got - want).sum() / mx.square(want).sum()).item()


def channel_factors(head_dim, strong):
    """1, but 20 in the channels `strong`."""
    factors = np.ones(head_dim, np.float32)
    factors[list(strong)] = 20
    return mx.array(factors)


@each_codec
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_scores_and_weighted_sums_are_those_of_the_decoded_vectors(codec, head_dim):
    factors = channel_factors(head_dim, (3, 17, 40, head_dim - 1))
    x = normal(2, 2, 3 * BLOCK, head_dim) * factors + normal(head_dim, seed=3)
    queries = normal(2, 2, 5, head_dim, seed=1)
    codes = codec.encode(x, 4, 0)
    decoded = codec.decode(codes)
    assert relative_error(decoded, x) < 0.02
    for start, stop in ((0, 3 * BLOCK), (BLOCK, 2 * BLOCK + 17)):
        tile, part = codes.tile(start, stop), decoded[:, :, start:stop]
        assert mx.allclose(codec.decode(tile), part, atol=1e-4)
        got = codec.scores(codec.into_basis(queries), tile)
        assert mx.allclose(got, queries @ part.swapaxes(-1, -2), atol=5e-3)
        weights = mx.softmax(normal(2, 2, 5, stop - start, seed=2), axis=-1)
        got = codec.out_of_basis(codec.weighted_sum(weights, tile))
        assert mx.allclose(got, weights @ part, atol=1e-3)


def test_the_strongest_channels_are_kept_as_int8_and_leave_the_norm():
    strong = (0, 9, 30, 63)
    x = normal(1, 1, 20 * BLOCK, 64)
    outlying = x * channel_factors(64, strong)
    codec = CODECS["outliers"]
    codes = codec.encode(outlying, 4, 0)
    decoded = codec.decode(codes)
    error = mx.square(decoded - outlying).mean((0, 1, 2))
    # The others keep the error they have without strong channels beside them.
    plain = mx.square(PLAIN.decode(PLAIN.encode(x, 4)) - x).mean().item()
    others = mx.array([i for i in range(64) if i not in strong])
    assert error[others].mean().item() == pytest.approx(plain * 60 / 64, rel=0.02)
    # A strong one adds the rounding of 127 steps to its largest of 128 values, some 55 sigma.
    assert error[mx.array(strong)].mean().item() == pytest.approx(plain + 0.0157, rel=0.2)
    # Without, all channels share the error of the strong ones: 26 times the energy.
    shared = mx.square(PLAIN.decode(PLAIN.encode(outlying, 4)) - outlying).mean((0, 1, 2))
    assert shared[5].item() > 10 * error[5].item()


def test_hand_case_of_one_channel():
    """Steps of 127 in the largest, the bit of channel 10 alone."""
    x = np.full((1, 1, BLOCK, 16), 0.5, np.float32)
    x[..., 10] = np.linspace(-127, 127, BLOCK)
    codes = Outliers(PLAIN, 1).encode(mx.array(x), 4, 0)
    assert codes.per_block["outlier_mask"].tolist() == [[[[0, 0b100]]]]
    assert codes.per_block["outlier_scale"].item() == 1
    steps = codes.per_token["outliers"].reshape(-1).tolist()
    assert (steps[0], steps[1], steps[-1]) == (-127, -125, 127)


def test_channels_are_chosen_for_each_block_and_head():
    x = np.array(normal(2, 2, 2 * BLOCK, 64))
    places = {}
    for batch, head, block in np.ndindex(2, 2, 2):
        places[batch, head, block] = 8 * (4 * batch + 2 * head + block)
        x[batch, head, block * BLOCK : (block + 1) * BLOCK, places[batch, head, block]] *= 50
    codes = Outliers(PLAIN, 1).encode(mx.array(x), 4, 0)
    mask = np.array(codes.per_block["outlier_mask"])
    for place, channel in places.items():
        assert mask[place].tolist() == [int(i == channel // 8) for i in range(8)]
    assert relative_error(Outliers(PLAIN, 1).decode(codes), mx.array(x)) < 0.001


def test_a_common_offset_costs_nothing_around_any_codec():
    x, offset = normal(1, 2, 2 * BLOCK, 64), 50 * normal(64, seed=2)
    for name in ("block_mean", "both"):
        codec = CODECS[name]
        plain = relative_error(codec.decode(codec.encode(x, 4, 0)), x)
        moved = codec.decode(codec.encode(x + offset, 4, 0)) - offset
        assert relative_error(moved, x) < 1.5 * plain + 1e-3


def score_error(codec, bits, x, queries):
    got = codec.scores(codec.into_basis(queries), codec.encode(x, bits, 0))
    return mx.square(got - queries @ x.swapaxes(-1, -2)).mean().item()


@pytest.mark.parametrize(
    "method", [m.name for m in METHODS.values() if m.key_bits and not m.calibrated]
)
def test_offsets_and_strong_channels_cost_no_method_anything(method):
    low, high = METHODS[method].key_bits
    bits = min(max(4, low), high)
    x, queries = normal(1, 2, 2 * BLOCK, 64), normal(1, 2, 8, 64, seed=1)
    plain = score_error(make_codec(method, Side("keys", bits)), bits, x, queries)
    moved, strong = x + 10 * normal(64, seed=2), x * channel_factors(64, (3, 40))
    codec = make_codec(method, Side("keys", bits, conditioning="block_mean"))
    assert score_error(codec, bits, moved, queries) < 1.3 * plain + 1e-3
    codec = make_codec(method, Side("keys", bits, outliers=2))
    # The two channels' own rounding, 55 sigma / 127, comes on top.
    assert score_error(codec, bits, strong, queries) < 1.3 * plain + 0.05


@each_codec
@pytest.mark.parametrize("factor", [0.0, 1e-7, 1e-3, 1e3])
def test_extreme_norms_stay_finite(codec, factor):
    x = normal(1, 1, BLOCK, 64) * factor
    decoded = codec.decode(codec.encode(x, 4, 0))
    assert mx.isfinite(decoded).all().item()
    assert mx.abs(decoded - x).max().item() <= 0.8 * factor + 1e-7


def test_bfloat16_keeps_its_range():
    """Means and outliers far beyond what fp16 holds, in a channel each."""
    x = np.array(normal(1, 1, BLOCK, 64))
    x[..., 3] += 1e6
    x[..., 9] *= 1e7
    decoded = CODECS["both"].decode(CODECS["both"].encode(mx.array(x).astype(mx.bfloat16), 4, 0))
    assert decoded[..., 3].mean().item() == pytest.approx(1e6, rel=0.01)
    assert relative_error(decoded[..., 9], mx.array(x[..., 9])) < 1e-3


@each_codec
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("channel", [slice(None), 7])
def test_what_is_not_finite_stays_within_its_own_vector(codec, bad, channel):
    x = np.array(normal(1, 2, 2 * BLOCK, 64))
    x[..., 7] *= 10
    x[0, 1, 5, channel] = bad
    queries = normal(1, 2, 3, 64, seed=1)
    codes = codec.encode(mx.array(x), 4, 0)
    scores = codec.scores(codec.into_basis(queries), codes)
    others = [i for i in range(2 * BLOCK) if i != 5]
    reference = queries @ mx.array(x[..., others, :]).swapaxes(-1, -2)
    assert relative_error(scores[..., mx.array(others)], reference) < 0.02


@each_codec
def test_lowering_passes_through(codec):
    x = normal(1, 2, 2 * BLOCK, 64) + 3
    codes = codec.encode(x, 4, 0)
    assert codec.lower(codes, 4) is codes
    lowered = codec.lower(codes, 2)
    assert lowered.bits == 2
    assert codec.bit_nbytes(lowered) == 2 * 2 * BLOCK * 64 // 8 // 2 * 2
    direct = relative_error(codec.decode(codec.encode(x, 2, 0)), x)
    assert relative_error(codec.decode(lowered), x) == pytest.approx(direct, rel=0.05)


@pytest.mark.parametrize(
    ("name", "extra"), [("outliers", 4 + 16 / 128 + 0.125), ("block_mean", 2), ("both", 6.25)]
)
def test_bytes_are_what_the_arrays_hold(name, extra):
    codec = CODECS[name]
    codes = codec.encode(normal(1, 2, 3 * BLOCK, 128), 4, 0)
    held = sum(array.nbytes for array in codes.arrays())
    assert held == 2 * 3 * BLOCK * (64 + 2 + extra)
    assert held == 2 * 3 * BLOCK * codec.token_nbytes(128, 4)
    assert codec.tables(128) == PLAIN.tables(128)


def test_a_method_that_centres_does_so_itself_unless_outliers_go_between():
    keys = Side("keys", 4, conditioning="block_mean")
    assert make_codec("turboquant_mse", keys) == TurboQuantMSE(4, True, False)
    assert make_codec("turboquant_mse", Side("keys", 4)) == PLAIN
    both = Side("keys", 4, conditioning="block_mean", outliers=4)
    assert make_codec("turboquant_mse", both) == CODECS["both"]
    assert make_codec("turboquant_mse", Side("keys", 4, outliers=4)) == CODECS["outliers"]


@pytest.mark.parametrize("conditioning", ["block_mean", "none"])
def test_a_cache_with_outliers_through_its_whole_life(conditioning, tmp_path):
    config = KVCacheConfig(outliers=4, conditioning=conditioning, key_bits=6, window=16)
    cache = PackedKVCache(config)
    keys, values = normal(2, 2, 700, 64), normal(2, 2, 700, 64, seed=1)
    keys = keys * channel_factors(64, (5, 6, 50, 51))
    for start in range(0, 700, 350):
        part = slice(start, start + 350)
        cache.update_and_fetch(keys[:, :, part], values[:, :, part])
    cache.trim(130)
    other = copy.deepcopy(cache)
    other.lower(4, 4)
    storage.save(tmp_path / "cache.safetensors", [cache])
    (loaded,), _ = storage.load(tmp_path / "cache.safetensors")
    queries = normal(2, 4, 1, 64, seed=2) / 20
    want = mx.fast.scaled_dot_product_attention(
        queries, keys[:, :, :570], values[:, :, :570], scale=1.0
    )
    for held, tolerance in ((cache, 0.02), (loaded, 0.02), (other, 0.04)):
        assert held.config == config
        assert held.offset == 570
        handle, _ = held.keys_and_values()
        assert relative_error(handle.whole.attend(queries, 1.0), want) < tolerance
    assert loaded.nbytes == cache.nbytes > other.nbytes


@pytest.mark.parametrize(("field", "value"), [("outliers", 65), ("conditioning", "mean")])
def test_a_bad_field_is_named(field, value):
    with pytest.raises(ValueError, match=field):
        KVCacheConfig(**{field: value})


def test_more_outliers_than_channels_are_refused():
    with pytest.raises(ValueError, match="outliers=64"):
        Outliers(PLAIN, 64).encode(normal(1, 1, BLOCK, 64), 4, 0)
