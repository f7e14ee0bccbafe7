"""What the methods that learn owe the cache, as all do."""

import copy

import mlx.core as mx
import pytest
from learning import (
    HEADS,
    codec_of,
    learnt,
    normal,
    relative_error,
    structured,
)

from kvcore import artefact, storage
from kvcore.artefact import ArtefactError
from kvcore.cache import PackedKVCache
from kvcore.codes import BLOCK
from kvcore.config import KVCacheConfig

KINDS = [
    ("spectral", "keys"),
    ("spectral", "values"),
    ("vecinfer", "keys"),
    ("vecinfer", "values"),
    ("comm_vq", "keys"),
]
each_kind = pytest.mark.parametrize(("method", "side"), KINDS)
NESTED = [("spectral", "keys"), ("spectral", "values"), ("comm_vq", "keys")]


def vectors(side, tokens=2 * BLOCK, head_dim=64, start=0):
    if side == "values":
        return normal(1, HEADS, tokens, head_dim, seed=5)
    return structured(tokens, head_dim, start, seed=5)


def nbytes(codes):
    return sum(array.nbytes for array in codes.arrays())


@each_kind
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_scores_and_weighted_sums_are_those_of_the_decoded_vectors(method, side, head_dim):
    bits = 1 if head_dim > 64 and method == "comm_vq" else 2
    codec = codec_of(method, side, bits, head_dim)
    x = mx.concatenate([vectors(side, head_dim=head_dim, start=s) for s in (128, 128)])
    queries = normal(2, HEADS, 5, head_dim, seed=1)
    codes = codec.encode(x, bits, 128)
    assert nbytes(codes) == 2 * HEADS * 2 * BLOCK * codec.token_nbytes(head_dim, bits)
    decoded = codec.decode(codes)
    assert decoded.dtype == mx.float32 and decoded.shape == x.shape
    assert relative_error(decoded, x) < 0.35
    for start, stop in ((0, 2 * BLOCK), (BLOCK, BLOCK + 17)):
        tile, part = codes.tile(start, stop), decoded[:, :, start:stop]
        assert mx.allclose(codec.decode(tile), part, atol=1e-4)
        scores = codec.scores(codec.into_basis(queries), tile)
        assert mx.allclose(scores, queries @ part.swapaxes(-1, -2), atol=2e-3)
        weights = mx.softmax(normal(2, HEADS, 5, stop - start, seed=2), axis=-1)
        summed = codec.out_of_basis(codec.weighted_sum(weights, tile))
        assert mx.allclose(summed, weights @ part, atol=1e-3)


@each_kind
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_within_its_vector(method, side, bad):
    codec = codec_of(method, side)
    x = vectors(side)
    spoilt = mx.array(x)
    spoilt[0, 1, 40, 7] = bad
    queries = codec.into_basis(normal(1, HEADS, 3, 64, seed=1))
    got, expected = (codec.scores(queries, codec.encode(v, 2, 0)) for v in (spoilt, x))
    assert mx.isfinite(got).all().item()
    # comm_vq has one length for all heads of a token.
    others = (
        (mx.arange(2 * BLOCK) != 40) if method == "comm_vq" else mx.array([[[True]], [[False]]])
    )
    others = mx.broadcast_to(others, got.shape) | (mx.arange(2 * BLOCK) != 40)
    assert mx.array_equal(mx.where(others, got, 0), mx.where(others, expected, 0))


@each_kind
def test_extreme_vectors_stay_finite(method, side):
    codec = codec_of(method, side)
    for factor in (0.0, 1e-7, 1e4):
        decoded = codec.decode(codec.encode(vectors(side) * factor, 2, 0))
        assert mx.isfinite(decoded).all().item()


@pytest.mark.parametrize(("method", "side"), NESTED)
def test_length_is_kept_apart_from_direction(method, side):
    codec = codec_of(method, side)
    plain = relative_error(codec.decode(codec.encode(vectors(side), 2, 0)), vectors(side))
    for factor, dtype in ((1e3, mx.float16), (1e25, mx.bfloat16)):
        x = (vectors(side) * factor).astype(dtype)
        decoded = codec.decode(codec.encode(x, 2, 0))
        # spectral takes a mean away that is of the text's size.
        limit = 1.05 * plain if method == "comm_vq" else 4 * plain
        assert relative_error(decoded / factor, x.astype(mx.float32) / factor) < limit


@pytest.mark.parametrize(("method", "side"), NESTED)
def test_bits_can_be_dropped_in_place(method, side):
    codec = codec_of(method, side, 4)
    x = vectors(side)
    codes = codec.encode(x, 4, 0)
    error = relative_error(codec.decode(codes), x)
    for fewer in (3, 2, 1):
        lowered = codec.lower(codes, fewer)
        assert lowered.bits == fewer
        assert nbytes(codes) - nbytes(lowered) == codec.bit_nbytes(codes)
        assert nbytes(lowered) == HEADS * 2 * BLOCK * codec.token_nbytes(64, fewer)
        codes, before = lowered, error
        error = relative_error(codec.decode(codes), x)
        assert before < error < 8 * before
        direct = relative_error(codec.decode(codec.encode(x, fewer, 0)), x)
        assert error < 1.1 * direct
    assert codec.lower(codes, 3) is codes
    assert codec.bit_nbytes(codes) == 0


def test_other_codes_stay_as_they_are():
    codec = codec_of("vecinfer")
    codes = codec.encode(vectors("keys"), 2, 0)
    assert codec.lower(codes, 1) is codes
    assert codec.bit_nbytes(codes) == 0


def write_artefact(folder, method, bits):
    sides = ["keys"] if method == "comm_vq" else ["keys", "values"]
    arrays = {
        f"layers.0.{side}.{name}": array
        for side in sides
        for name, array in learnt(method, side, bits, 64).items()
    }
    record = artefact.Artefact(
        "none", method, bits, bits, "none", {}, {}, 3, 1024, 1024, "float32", {}
    )
    artefact.save(folder, record, arrays)


@pytest.mark.parametrize("method", ["spectral", "vecinfer", "comm_vq"])
def test_a_cache_keeps_its_tokens_through_its_life(method, tmp_path):
    folder = tmp_path / "artefact"
    write_artefact(folder, method, 2)
    bits = {} if method == "comm_vq" else {"value_bits": 2}
    config = KVCacheConfig(
        method=method,
        key_bits=2,
        window=32,
        conditioning="none",
        artefact=str(folder),
        seed=3,
        **bits,
    )
    cache = PackedKVCache(config)
    keys, values = structured(600, 64, seed=6), normal(1, HEADS, 600, 64, seed=6)
    for start, stop in ((0, 300), (300, 599), (599, 600)):
        cache.update_and_fetch(keys[:, :, start:stop], values[:, :, start:stop])
    twin = copy.deepcopy(cache)
    held = mx.get_active_memory()
    assert twin.key_codec is cache.key_codec and held
    assert cache.trim(230) == 230
    storage.save(tmp_path / "cache.safetensors", [cache, twin], {})
    (cache, twin), _ = storage.load(tmp_path / "cache.safetensors")
    cache.update_and_fetch(keys[:, :, 370:], values[:, :, 370:])
    queries = normal(1, 2 * HEADS, 7, 64, seed=3)
    for each in (cache, twin):
        assert each.offset == 600 and each.nbytes == sum(array.nbytes for array in each.arrays())
        handles = each.keys_and_values()
        for handle, whole in zip(handles, (keys, values), strict=True):
            assert relative_error(handle.astype(mx.float32), whole) < 0.2
        got = handles[0].whole.attend(queries, 0.125)
        by_hand = mx.fast.scaled_dot_product_attention(queries, *handles, scale=0.125, mask=None)
        assert mx.allclose(got, by_hand, atol=0.02)
    if method != "vecinfer":
        assert cache.lower(1, 1) > 0
    # Another calibration in the same folder is not what these codes were made with.
    arrays = {f"layers.0.keys.{k}": 2 * x for k, x in learnt(method, "keys", 2, 64).items()}
    artefact.save(folder, artefact.read(folder), arrays)
    with pytest.raises(ArtefactError, match="was made anew since"):
        storage.load(tmp_path / "cache.safetensors")
