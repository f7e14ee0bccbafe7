import mlx.core as mx
import numpy as np
import pytest
from isotropic import HEAD_DIM, Row, assert_near, measured
from learning import codec_of, learnt, normal, structured

from kvcore.codecs import Side, vecinfer
from kvcore.codecs.vecinfer import learn, make
from kvcore.codes import BLOCK
from kvcore.layer_sample import LayerSample

# Rows "Product VQ" of the reference table, on unit vectors of head_dim 128.
REFERENCE = {
    1: Row(0.325294, 0.821687, 0.320581, 0.683005),
    2: Row(0.0983333, 0.949925, 0.0991524, 0.903825),
}


def isotropic_sample(tokens=8 * BLOCK, head_dim=HEAD_DIM):
    x = normal(1, tokens, head_dim, seed=9)
    x = x / mx.linalg.norm(x, axis=-1, keepdims=True)
    return LayerSample(x, x, (0,) * (tokens // BLOCK), mx.eye(head_dim)[None])


@pytest.mark.parametrize("bits", REFERENCE)
def test_isotropic_vectors(bits):
    side = Side("values", bits)
    codec = make(Side("values", bits, learnt=learn(side, isotropic_sample(32 * BLOCK))))
    assert_near(measured(codec, bits, 4096), REFERENCE[bits])


def test_made_even_and_rotated_the_scores_are_what_they_were():
    codec = codec_of("vecinfer", head_dim=80)
    keys, queries = structured(BLOCK, 80, seed=4), normal(1, 2, 5, 80)
    even = vecinfer.rotate(keys / codec.smooth[:, None], codec.seed)
    got = codec.into_basis(queries) @ even.swapaxes(-1, -2)
    want = queries @ keys.swapaxes(-1, -2)
    assert mx.allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_silent_channel_is_not_enlarged_without_bound():
    x = normal(1, 2 * BLOCK, 64)
    x[..., 5] = 0
    sample = LayerSample(x, x, (0, BLOCK), mx.eye(64)[None])
    smooth = learn(Side("keys", 1), sample)["smooth"]
    assert smooth.min().item() >= 0.009 * smooth.max().item()
    assert mx.allclose(mx.square(smooth[0, 0]), mx.abs(x[0, :, 0]).max())


def test_looked_up_scores_are_those_of_codewords(monkeypatch):
    codec = codec_of("vecinfer")
    codes = codec.encode(structured(2 * BLOCK, 64, seed=4), 2, 0)
    queries = codec.into_basis(normal(1, 2, 9, 64))
    looked_up = codec.scores(queries, codes)
    # No codeword is touched.
    monkeypatch.setattr(vecinfer.VecInfer, "codewords", lambda *_: pytest.fail("decoded"))
    assert mx.array_equal(codec.scores(queries, codes), looked_up)
    monkeypatch.undo()
    monkeypatch.setattr(vecinfer, "LOOKUP_ROWS", 0)
    assert mx.allclose(codec.scores(queries, codes), looked_up, atol=1e-4)


def test_twelve_bits_over_eight_dimensions_are_one_and_a_half(monkeypatch):
    monkeypatch.setattr(vecinfer, "STEPS", {12: 1})
    side = Side("values", 1, options={"index_bits": 12})
    codec = make(Side("values", 1, learnt=learn(side, isotropic_sample(2 * BLOCK))))
    assert codec.token_nbytes(HEAD_DIM, 1) * 8 / HEAD_DIM == 1.5
    codes = codec.encode(normal(1, 1, BLOCK, HEAD_DIM), 1, 0)
    assert sum(array.nbytes for array in codes.arrays()) == BLOCK * HEAD_DIM * 1.5 / 8


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ValueError, match="codebook has 2 bits a dimension, not 4"):
        make(Side("keys", 4, learnt=learnt("vecinfer", "keys", 2, 64)))
    with pytest.raises(ValueError, match="index_bits must be 8 or 12, not 9"):
        learn(Side("keys", 1, options={"index_bits": 9}), isotropic_sample())
    with pytest.raises(ValueError, match="2 bits a dimension need no indices of 12 bits"):
        learn(Side("keys", 2, options={"index_bits": 12}), isotropic_sample())
    with pytest.raises(ValueError, match="sub-vectors of 8 do not divide a head_dim of 100"):
        learn(Side("keys", 1), isotropic_sample(head_dim=100))


def test_bytes_are_the_indices_and_nothing_else():
    codes = codec_of("vecinfer", "values").encode(normal(1, 2, BLOCK, 64), 2, 0)
    assert sum(array.nbytes for array in codes.arrays()) == 2 * BLOCK * 64 * 2 // 8
    assert np.array(codes.per_token["index"]).dtype == np.uint8
