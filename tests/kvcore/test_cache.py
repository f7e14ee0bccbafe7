"""The packed cache against a plain reference that keeps every key and value."""

import copy
import gc
import tempfile
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcore import storage
from kvcore.cache import PackedKVCache
from kvcore.config import KVCacheConfig

KV_HEADS, GROUP, HEAD_DIM = 2, 3, 64
SCALE = HEAD_DIM**-0.5
# Squared error over squared norm that the codebook of each width has on normal vectors.
ERROR = {6: 0.0006, 5: 0.0025, 4: 0.0097, 3: 0.036, 2: 0.14}


def normal(rng, *shape):
    return mx.array(rng.standard_normal(shape).astype(np.float32))


class Reference:
    """Every key and value ever kept, in full."""

    def __init__(self):
        self.keys = mx.zeros((1, KV_HEADS, 0, HEAD_DIM))
        self.values = mx.zeros((1, KV_HEADS, 0, HEAD_DIM))

    def append(self, keys, values):
        self.keys = mx.concatenate([self.keys, keys], axis=2)
        self.values = mx.concatenate([self.values, values], axis=2)

    def trim(self, n):
        kept = self.keys.shape[2] - n
        self.keys, self.values = self.keys[:, :, :kept], self.values[:, :, :kept]


def append(rng, cache, reference, n):
    keys, values = (normal(rng, 1, KV_HEADS, n, HEAD_DIM) for _ in range(2))
    reference.append(keys, values)
    queries = normal(rng, 1, KV_HEADS * GROUP, n, HEAD_DIM)
    mask = cache.make_mask(n)
    handles = cache.update_and_fetch(keys, values)
    return queries, mask, handles


def sdpa(queries, keys, values, mask):
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=SCALE, mask=mask)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from([1, 1, 3, 60, 129, 300])),
        st.tuples(st.just("trim"), st.integers(0, 400)),
        st.tuples(st.just("lower"), st.sampled_from([(5, 4), (4, 4), (4, 3), (3, 2), (2, 2)])),
        st.tuples(st.just("deepcopy"), st.none()),
        st.tuples(st.just("reload"), st.none()),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(OPERATIONS, st.sampled_from([(0, 0), (4, 128), (4, 7), (1, 32)]), st.integers(0, 99))
def test_any_history_leaves_the_reference(operations, kept, seed):
    sinks, window = kept
    rng = np.random.default_rng(seed)
    cache, reference = PackedKVCache(KVCacheConfig(sinks=sinks, window=window)), Reference()
    left_behind = []
    for name, argument in operations:
        if name == "append":
            queries, mask, (keys, values) = append(rng, cache, reference, argument)
            mx.eval(cache.state)
            attended = keys.whole.attend(queries, SCALE, mask)
            assert mx.allclose(attended, sdpa(queries, keys, values, mask), atol=2e-3)
        elif name == "trim":
            taken = cache.trim(argument)
            assert taken == min(argument, reference.keys.shape[2])
            reference.trim(taken)
        elif name == "lower":
            before = cache.nbytes
            assert cache.lower(*argument) == before - cache.nbytes >= 0
        elif name == "deepcopy":
            left_behind.append((cache, cache.offset, cache.nbytes))
            cache = copy.deepcopy(cache)
        elif name == "reload" and not cache.empty():
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "cache.safetensors"
                storage.save(path, [cache], {"model": "none"})
                (cache,), metadata = storage.load(path)
                mx.eval(cache.arrays())
            assert metadata == {"model": "none"}
        check(cache, reference)
    for other, offset, nbytes in left_behind:
        assert (other.offset, other.nbytes) == (offset, nbytes)


def check(cache, reference):
    assert cache.offset == cache.size() == reference.keys.shape[2]
    assert cache.nbytes == sum(array.nbytes for array in cache.arrays())
    if not cache.offset:
        return
    keys, values = cache.keys_and_values()
    assert keys.shape == reference.keys.shape
    body = slice(cache.sinks, cache.sinks + sum(segment.tokens for segment in cache.body))
    for got, want, bits in ((keys, reference.keys, "keys"), (values, reference.values, "values")):
        got = got.astype(mx.float32)
        for plain in (slice(0, body.start), slice(body.stop, None)):
            assert mx.allclose(got[:, :, plain], want[:, :, plain], rtol=1e-3, atol=1e-6)
        start = body.start
        for segment in cache.body:
            stop = start + segment.tokens
            error = mx.square(got[:, :, start:stop] - want[:, :, start:stop]).sum(-1)
            error = error / mx.square(want[:, :, start:stop]).sum(-1)
            expected = ERROR[getattr(segment, bits).bits]
            assert error.mean().item() < 1.6 * expected
            start = stop


def filled(tokens, **config):
    rng = np.random.default_rng(0)
    cache, reference = PackedKVCache(KVCacheConfig(**config)), Reference()
    while cache.offset < tokens:
        append(rng, cache, reference, min(512, tokens - cache.offset))
        mx.eval(cache.state)
    return cache, reference, rng


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_models_keep_their_type(dtype):
    rng = np.random.default_rng(0)
    cache = PackedKVCache(KVCacheConfig())
    for n in (400, 1):
        keys, values = (normal(rng, 1, KV_HEADS, n, HEAD_DIM).astype(dtype) for _ in range(2))
        queries = normal(rng, 1, KV_HEADS * GROUP, n, HEAD_DIM).astype(dtype)
        mask = cache.make_mask(n)
        keys, values = cache.update_and_fetch(keys, values)
        assert keys.dtype == dtype
        attended = keys.whole.attend(queries, SCALE, mask)
        assert attended.dtype == dtype
        want = sdpa(queries, mx.array(keys), mx.array(values), mask)
        assert mx.allclose(attended, want, atol=0.02)


@pytest.mark.parametrize("length", [1, 5])
def test_masks_and_learned_sinks(length):
    cache, _, rng = filled(600)
    queries, _, (keys, values) = append(rng, cache, Reference(), length)
    total = cache.offset
    whole = keys.whole
    allowed = mx.array(rng.random((length, total)) < 0.5)
    per_head = normal(rng, 1, KV_HEADS * GROUP, length, total)
    logits = normal(rng, KV_HEADS * GROUP)
    for mask in (None, allowed, allowed[None, None], per_head, per_head[:, :1]):
        got = whole.attend(queries, SCALE, mask)
        assert mx.allclose(got, sdpa(queries, keys, values, mask), atol=2e-3)
        got = whole.attend(queries, SCALE, mask, sinks=logits)
        want = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=SCALE, mask=mask, sinks=logits
        )
        assert mx.allclose(got, want, atol=2e-3)


def test_a_window_mask_reaches_into_the_body():
    cache, _, rng = filled(600)
    mask = cache.make_mask(3, window_size=300)
    queries, _, (keys, values) = append(rng, cache, Reference(), 3)
    assert mx.allclose(
        keys.whole.attend(queries, SCALE, mask), sdpa(queries, keys, values, mask), atol=2e-3
    )


def test_several_sequences_at_once():
    rng = np.random.default_rng(0)
    cache = PackedKVCache(KVCacheConfig())
    for n in (300, 1):
        keys, values = (normal(rng, 3, KV_HEADS, n, HEAD_DIM) for _ in range(2))
        queries = normal(rng, 3, KV_HEADS * GROUP, n, HEAD_DIM)
        mask = cache.make_mask(n)
        keys, values = cache.update_and_fetch(keys, values)
        got = keys.whole.attend(queries, SCALE, mask)
        assert mx.allclose(got, sdpa(queries, keys, values, mask), atol=2e-3)


def test_keys_and_values_may_differ_in_size():
    rng = np.random.default_rng(0)
    cache = PackedKVCache(KVCacheConfig())
    for n in (300, 1):
        keys, values = normal(rng, 1, 2, n, 96), normal(rng, 1, 2, n, 64)
        queries = normal(rng, 1, 4, n, 96)
        mask = cache.make_mask(n)
        keys, values = cache.update_and_fetch(keys, values)
        got = keys.whole.attend(queries, SCALE, mask)
        assert mx.allclose(got, sdpa(queries, keys, values, mask), atol=2e-3)


def test_many_tiles_give_what_one_does(monkeypatch):
    cache, _, rng = filled(1500)
    queries, mask, (keys, _) = append(rng, cache, Reference(), 64)
    want = keys.whole.attend(queries, SCALE, mask)
    monkeypatch.setattr("kvcore.attention.TILE_ELEMENTS", 1)
    assert mx.allclose(keys.whole.attend(queries, SCALE, mask), want, atol=1e-5)


def test_the_body_goes_on_in_a_new_segment_when_one_is_full(monkeypatch):
    monkeypatch.setattr("kvcore.segment.SEGMENT_TOKENS", 512)
    cache, reference, _ = filled(1500)
    assert [segment.tokens for segment in cache.body] == [256, 512, 512]
    check(cache, reference)


def test_a_lowered_cache_packs_new_tokens_at_its_bits():
    cache, reference, rng = filled(600)
    cache.lower(3, 2)
    append(rng, cache, reference, 300)
    assert {(s.keys.bits, s.values.bits) for s in cache.body} == {(3, 2)}
    assert cache.lower(5, 4) == 0
    assert (cache.key_bits, cache.value_bits) == (3, 2)


def test_lowering_frees_what_it_says_and_never_needs_more_than_a_layer():
    cache, _, _ = filled(4000)
    gc.collect()  # what earlier tests left must not be freed within the measurement
    for bits in ((5, 4), (4, 4), (4, 3), (3, 3), (3, 2), (2, 2)):
        codes = sum(a.nbytes for s in cache.body for a in s.arrays())
        mx.synchronize()  # tasks that have run may hold their arrays a little longer
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        freed = cache.lower(*bits)
        assert freed > 0
        assert mx.get_peak_memory() - before <= codes
        mx.synchronize()
        # Small arrays of earlier computations go at a time of their own.
        assert before - mx.get_active_memory() == pytest.approx(freed, abs=16 << 10)


def test_trimming_gives_memory_back():
    cache, _, _ = filled(2000)
    before, held = cache.nbytes, mx.get_active_memory()
    cache.trim(1500)
    assert held - mx.get_active_memory() == pytest.approx(before - cache.nbytes, rel=0.1)


def test_unhooked_code_may_touch_the_handles():
    cache, reference, rng = filled(300)
    _, _, (keys, _) = append(rng, cache, reference, 1)
    assert mx.allclose(keys.swapaxes(-1, -2).swapaxes(-1, -2), reference.keys, atol=0.2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("method", "turbokwant"),
        ("key_bits", 17),
        ("value_bits", 0),
        ("window", -1),
        ("sinks", "4"),
        ("key_bits", True),
    ],
)
def test_a_bad_configuration_says_which_field(field, value):
    with pytest.raises(ValueError, match=field):
        KVCacheConfig(**{field: value})
