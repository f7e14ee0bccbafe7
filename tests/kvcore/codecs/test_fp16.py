import mlx.core as mx
import numpy as np
import pytest

from kvcore.attach import layer_reports
from kvcore.cache import PackedKVCache
from kvcore.codecs import Side, make_codec
from kvcore.codes import BLOCK
from kvcore.config import KVCacheConfig


def normal(*shape, seed=0):
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_what_goes_in_comes_out(dtype):
    codec = make_codec("fp16", Side("keys", 16))
    x = normal(1, 2, BLOCK, 80).astype(dtype)
    codes = codec.encode(x, 16, 0)
    assert codes.per_token["vectors"].dtype == dtype
    assert mx.array_equal(codec.decode(codes), x.astype(mx.float32))


def test_naming_it_is_enough_and_other_bits_are_refused():
    config = KVCacheConfig(method="fp16")
    assert (config.key_bits, config.value_bits) == (16, 16)
    with pytest.raises(ValueError, match="key_bits must be a whole number, 16, not 6"):
        KVCacheConfig(method="fp16", key_bits=6)


def test_a_cache_of_it_takes_what_half_precision_takes_and_cannot_be_lowered():
    cache = PackedKVCache(KVCacheConfig(method="fp16", window=0, sinks=0))
    x = normal(1, 2, 4 * BLOCK, 64).astype(mx.float16)
    cache.update_and_fetch(x, x)
    assert cache.token_nbytes == 2 * 2 * 64 * 2
    assert cache.lower(2, 2) == 0
    (report,) = layer_reports([cache])
    assert (report.key_bits, report.value_bits, report.fewest_bits) == (16, 16, (16, 16))
    assert report.nbytes - report.half_nbytes < 2 * BLOCK * 2 * 64 * 2


def test_keys_in_half_precision_go_with_packed_values():
    config = KVCacheConfig(method="fp16", value_method="kivi")
    assert (config.key_bits, config.value_bits) == (16, 4)
