from math import sqrt

import mlx.core as mx
import numpy as np
import pytest
from isotropic import Row, assert_near, measured
from unbiased import assert_unbiased

from kvcore.codecs import Side, make_codec
from kvcore.codes import BLOCK
from kvcore.popcount import unpack_planes
from kvcore.rotation import rotate

REFERENCE = {
    1: Row(0.567431, 0.799386, 0.563778, 0.998929),
    2: Row(0.131404, 0.940248, 0.13108, 0.999714),
    3: Row(0.0363494, 0.982325, 0.036632, 0.999856),
    4: Row(0.00997252, 0.995053, 0.00996642, 0.999946),
}


def normal(*shape, seed=0):
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def codec_of(seed=3, **options):
    return make_codec("rabitq", Side("keys", 4, seed, options))


def relative_error(got, want):
    return (mx.square(got - want).sum() / mx.square(want).sum()).item()


def planes_of(codes):
    return [codes.per_token[f"plane{i}"] for i in range(codes.bits)]


def cosine_of_the_papers_queue(vector, bits):
    """The best of all rescalings of a rotated vector, each change of a coordinate in turn."""
    magnitude = np.abs(vector)
    changes = sorted(
        (step / each, index)
        for index, each in enumerate(magnitude)
        for step in range(1, 1 << (bits - 1))
    )
    v = np.full(vector.size, 0.5)
    along, square = v @ magnitude, v @ v
    best = along / sqrt(square)
    for _, index in changes:
        along += magnitude[index]
        square += 2 * v[index] + 1
        v[index] += 1
        best = max(best, along / sqrt(square))
    return best / np.linalg.norm(vector)


@pytest.mark.parametrize("bits", REFERENCE)
@pytest.mark.parametrize("rotation", ["hadamard", "haar"])
def test_isotropic_vectors(bits, rotation):
    assert_near(measured(codec_of(rotation=rotation), bits), REFERENCE[bits])


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_the_sweep_comes_near_the_papers_queue(bits):
    codec, x = codec_of(), normal(1, 1, BLOCK, 64)
    decoded = np.array(codec.decode(codec.encode(x, bits)), np.float64)[0, 0]
    keys = np.array(x, np.float64)[0, 0]
    lengths = np.linalg.norm(decoded, axis=1) * np.linalg.norm(keys, axis=1)
    found = (decoded * keys).sum(1) / lengths
    rotated = np.array(rotate(x, 3), np.float64)[0, 0]
    best = np.array([cosine_of_the_papers_queue(vector, bits) for vector in rotated])
    assert (found <= best + 1e-6).all()
    assert (1 / found**2 - 1).mean() <= 1.002 * (1 / best**2 - 1).mean() + 1e-6


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_scores_are_right_on_average_over_seeds(bits):
    assert_unbiased("rabitq", bits, {"rotation": "haar"})


@pytest.mark.parametrize("bits", [1, 4])
def test_scores_of_rounded_queries_are_right_on_average_too(bits):
    assert_unbiased("rabitq", bits, {"rotation": "haar", "query_bits": 4})


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_along_the_key_the_estimate_is_exact(bits):
    codec, x = codec_of(), normal(1, 2, BLOCK, 64)
    decoded = codec.decode(codec.encode(x, bits))
    assert mx.allclose((decoded * x).sum(-1), mx.square(x).sum(-1), rtol=1e-3)


def test_one_bit_is_the_signs():
    codec, x = codec_of(), normal(1, 1, BLOCK, 64)
    codes = codec.encode(x, 1)
    assert mx.array_equal(unpack_planes(planes_of(codes)), rotate(x, 3) >= 0)
    # As an orthogonal sketch of head_dim rows, but for a gain of each key's own.
    cosine = (codec.decode(codes) * x).sum(-1) / mx.linalg.norm(x, axis=-1)
    cosine = (cosine / mx.linalg.norm(codec.decode(codes), axis=-1)).mean().item()
    assert cosine == pytest.approx(0.80101, abs=0.004)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_errors_exceed_the_bound_as_rarely_as_the_paper_has_it(bits, head_dim):
    """The error over the bound at epsilon 1 is a coordinate of a random vector of norm sqrt(d-1)
    at right angles to the key: at 1.9 the bound misses as a normal variable does 1.9 sigma."""
    codec = codec_of(error_bound=True)
    keys = normal(1, 1, 4 * BLOCK, head_dim)
    queries = np.array(normal(1, 1, 24, head_dim, seed=1))
    queries = mx.array(queries / np.linalg.norm(queries, axis=-1, keepdims=True))
    codes = codec.encode(keys, bits)
    errors = codec.scores(codec.into_basis(queries), codes) - queries @ keys.swapaxes(-1, -2)
    missed = (mx.abs(errors) > codec.error_bound(queries, codes)).astype(mx.float32).mean().item()
    assert 0.04 < missed < 0.07
    deviations = errors / codec.error_bound(queries, codes, epsilon=1.0)
    assert mx.sqrt(mx.square(deviations).mean()).item() == pytest.approx(1, abs=0.03)


def test_the_bound_follows_when_bits_are_dropped():
    codec, keys = codec_of(error_bound=True), normal(1, 1, 8 * BLOCK, 64)
    queries = normal(1, 1, 24, 64, seed=1)
    lowered = codec.lower(codec.encode(keys, 4), 2)
    errors = codec.scores(codec.into_basis(queries), lowered) - queries @ keys.swapaxes(-1, -2)
    missed = (mx.abs(errors) > codec.error_bound(queries, lowered)).astype(mx.float32).mean()
    assert 0.04 < missed.item() < 0.07


def test_no_bound_without_the_option():
    codec = codec_of()
    with pytest.raises(ValueError, match="error_bound"):
        codec.error_bound(normal(1, 1, 1, 64), codec.encode(normal(1, 1, BLOCK, 64), 2))


@pytest.mark.parametrize("bits", [1, 3, 4])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_counted_scores_are_those_of_the_rounded_query(bits, head_dim):
    codec, plain = codec_of(query_bits=4), codec_of()
    x, queries = normal(2, 2, BLOCK, head_dim), normal(2, 2, 5, head_dim, seed=1)
    codes = codec.encode(x, bits)
    basis = codec.into_basis(queries)
    steps, low, step = mx.split(basis, [head_dim, head_dim + 1], axis=-1)
    assert mx.array_equal(steps, mx.round(steps))
    assert (steps.min().item(), steps.max().item()) == (0, 15)
    rounded = low + step * steps
    assert mx.abs(rounded - rotate(queries, 3)).max().item() <= step.max().item() * 1.001
    tile = codes.tile(0, 77)
    want = plain.scores(rounded, tile)
    assert mx.allclose(codec.scores(basis, tile), want, atol=1e-3)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize("error", [False, True])
def test_bytes_are_those_of_planes_and_scales(bits, error):
    codec = codec_of(error_bound=error)
    codes = codec.encode(normal(1, 2, BLOCK, 80), bits)
    each = 10 * bits + (4 if error else 2)
    assert sum(array.nbytes for array in codes.arrays()) == 2 * BLOCK * each
    assert codec.token_nbytes(80, bits) == each
    assert codec.bit_nbytes(codes) == 2 * BLOCK * 10


def test_dropped_bits_cost_what_the_docstring_says():
    """Of all steps of one bit, that from 2 to 1 leaves the most bias."""
    x = normal(1, 2, 8 * BLOCK, 128)
    codec = codec_of()
    for bits, kept, short in ((4, 3, 0.002), (3, 2, 0.006), (2, 1, 0.027)):
        lowered = codec.lower(codec.encode(x, bits), kept)
        assert len(planes_of(lowered)) == kept
        decoded = codec.decode(lowered)
        slope = ((decoded * x).sum() / mx.square(x).sum()).item()
        assert 1 - short < slope < 1.0005
    walked = codec.encode(x, 4)
    for kept in (3, 2, 1):
        walked = codec.lower(walked, kept)
    decoded = codec.decode(walked)
    assert 0.97 < ((decoded * x).sum() / mx.square(x).sum()).item() < 1.005
    direct = codec.encode(x, 1)
    assert mx.array_equal(planes_of(walked)[0], planes_of(direct)[0])


@pytest.mark.parametrize(
    "options", [{"query_bits": 1}, {"error_bound": 1}, {"rotation": "qr"}, {"bits": 4}]
)
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        codec_of(**options)
