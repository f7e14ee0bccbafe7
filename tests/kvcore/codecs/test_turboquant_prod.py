from math import gamma, pi, sqrt

import mlx.core as mx
import numpy as np
import pytest
from isotropic import Row, assert_near
from unbiased import assert_unbiased, measured_over_seeds

from kvcore import KVCacheBuilder
from kvcore.codecs import Side, make_codec
from kvcore.codes import BLOCK
from kvcore.rotation import rotate
from kvcore.sketch import gain, sketch_table

REFERENCE = {
    "TQ_prod iid-S b=1": Row(1.56967, 0.625237, 1.56648, 1.00241),
    "TQ_prod orth-S b=1": Row(0.567372, 0.79925, 0.570027, 1.00184),
    "TQ_prod iid-S b=2": Row(0.566424, 0.799988, 0.559852, 1.00051),
    "TQ_prod orth-S b=2": Row(0.204813, 0.911427, 0.203444, 1.00004),
    "TQ_prod iid-S b=3": Row(0.182304, 0.920201, 0.181116, 0.999949),
    "TQ_prod orth-S b=3": Row(0.0657648, 0.968857, 0.0649986, 1.0004),
    "TQ_prod iid-S b=4": Row(0.0533059, 0.974576, 0.0540678, 1.00017),
    "TQ_prod orth-S b=4": Row(0.0192499, 0.990585, 0.0192927, 1.00016),
}


def normal(*shape, seed=0):
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def codec_of(bits=4, seed=3, **options):
    return make_codec("turboquant_prod", Side("keys", bits, seed, options))


@pytest.mark.parametrize("name", REFERENCE)
def test_isotropic_vectors(name):
    sketch = "iid" if "iid" in name else "orthogonal"
    row = measured_over_seeds("turboquant_prod", int(name[-1]), {"sketch": sketch})
    assert_near(row, REFERENCE[name])


@pytest.mark.parametrize("sketch", ["orthogonal", "iid"])
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_scores_are_right_on_average_over_seeds(sketch, bits):
    assert_unbiased("turboquant_prod", bits, {"sketch": sketch})


@pytest.mark.parametrize("rotation", ["hadamard", "haar"])
def test_a_score_is_the_papers_formula(rotation):
    codec = codec_of(3, sketch="iid", rotation=rotation)
    x, query = normal(1, 1, BLOCK, 64), normal(1, 1, 1, 64, seed=1)
    got = np.array(codec.scores(codec.into_basis(query), codec.encode(x, 3)))[0, 0, 0]
    keys, q = (np.array(rotate(v, 3, rotation), np.float64)[0, 0] for v in (x, query))
    norms = np.linalg.norm(keys, axis=1, keepdims=True)
    unit = keys / norms * sqrt(64)
    book = np.array([-1.5104176, -0.4527800, 0.4527800, 1.5104176])
    coarse = book[np.abs(unit[..., None] - book).argmin(-1)]
    residual = (unit - coarse) / sqrt(64)
    table = np.array(sketch_table(64, 64, "iid", 3), np.float64)
    signs = np.where(residual @ table.T >= 0, 1, -1)
    length = np.linalg.norm(residual, axis=1, keepdims=True)
    fine = length * sqrt(pi / 2) / 64 * (signs @ table)
    want = (norms * (coarse / sqrt(64) + fine)) @ q[0]
    assert np.allclose(got, want, atol=0.02, rtol=1e-3)


@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_the_gain_of_a_row_of_fixed_norm_is_exact(head_dim):
    """E|u_1| on the unit sphere is Gamma(d/2) / (sqrt(pi) Gamma((d+1)/2))."""
    mean = gamma(head_dim / 2) / (sqrt(pi) * gamma((head_dim + 1) / 2))
    assert gain(head_dim, "orthogonal") == pytest.approx(1 / (sqrt(head_dim) * mean))
    assert gain(head_dim, "orthogonal") < gain(head_dim, "iid") == sqrt(pi / 2)


def test_a_sketch_is_no_rotation_of_the_same_seed():
    table = np.array(sketch_table(80, 80, "orthogonal", 3)) / sqrt(80)
    turned = np.array(rotate(mx.array(table.astype(np.float32)), 3, "haar"))
    assert np.abs(turned).max() < 0.7
    assert np.allclose(table @ table.T, np.eye(80), atol=1e-5)


@pytest.mark.parametrize("factor", [2.0, -3.0])
def test_scores_are_linear_in_the_query(factor):
    """The estimate from the query's signs is not."""
    codec, query = codec_of(2), normal(1, 1, 1, 64, seed=1)
    codes = codec.encode(normal(1, 1, BLOCK, 64), 2)
    once, more = (codec.scores(codec.into_basis(q), codes) for q in (query, factor * query))
    assert mx.allclose(more, factor * once, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", [1, 2, 4, 5])
@pytest.mark.parametrize("jl_dim", [0, 64, 256])
def test_bytes_are_those_of_codes_signs_and_two_scales(bits, jl_dim):
    codec = codec_of(jl_dim=jl_dim)
    x = normal(1, 2, 2 * BLOCK, 128)
    codes = codec.encode(x, bits)
    each = 16 * (bits - 1) + (jl_dim or 128) / 8 + (2 if bits == 1 else 4)
    assert sum(array.nbytes for array in codes.arrays()) == 2 * 2 * BLOCK * each
    assert codec.token_nbytes(128, bits) == each
    assert codec.decode(codes).shape == x.shape
    assert sum(table.nbytes for table in codec.tables(128)) == 4 * (128 + 128 * (jl_dim or 128))


def test_more_rows_have_less_variance():
    x = normal(1, 1, 8 * BLOCK, 64)
    errors = []
    for jl_dim in (32, 64, 128, 256):
        codec = codec_of(jl_dim=jl_dim)
        decoded = codec.decode(codec.encode(x, 3))
        errors.append((mx.square(decoded - x).sum() / mx.square(x).sum()).item())
    ratios = np.array(errors[:-1]) / np.array(errors[1:])
    # Half the rows of one orthogonal chunk lose more than half of it.
    assert ratios[0] > 2 and np.allclose(ratios[1:], 2, rtol=0.05)


def test_a_single_head_with_a_sketch_of_128_rows():
    builder = KVCacheBuilder().with_method("turboquant_prod").with_head_dim(128)
    cache = builder.with_bit_width(inlier=4).with_jl_dim(128).with_seed(42).build()
    keys, values = np.array(normal(256, 128)), np.array(normal(256, 128, seed=1))
    for key, value in zip(keys, values, strict=True):
        cache.append(key, value)
    query = np.array(normal(128, seed=2))
    weights = np.exp(keys @ query / sqrt(128))
    want = weights @ values / weights.sum()
    got = np.array(cache.attend(query)).astype(np.float64)
    assert got @ want / np.linalg.norm(got) / np.linalg.norm(want) > 0.95


@pytest.mark.parametrize(
    "options", [{"sketch": "signs"}, {"jl_dim": 20}, {"jl_dim": -8}, {"rotation": "none"}]
)
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        codec_of(**options)


@pytest.mark.parametrize("jl_dim", [24, 264])
def test_a_sketch_out_of_range_for_the_head_dim_is_refused(jl_dim):
    with pytest.raises(ValueError, match="must be 32 to 256 at a head_dim of 64"):
        codec_of(jl_dim=jl_dim).encode(normal(1, 1, BLOCK, 64), 4)
