from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from learning import HEADS, codec_of, learnt, normal, relative_error, rope, sample, structured

from kvcore.codecs import Side, comm_vq
from kvcore.codecs.comm_vq import learn, make, stage_count
from kvcore.codecs.turboquant_mse import TurboQuantMSE
from kvcore.codes import BLOCK
from kvcore.commuting import ROWS, _least_squares, _shares, nearest_pair, times_i, train
from kvcore.layer_sample import LayerSample


def centroids(theta):
    """All 64 * 64 of them, [heads, 4096, 2 pairs]."""
    both = theta[:, :, None] + times_i(theta)[:, None]
    return both.reshape(len(theta), -1, theta.shape[-1])


def objective(x, theta):
    distance = mx.square(x[:, :, None] - centroids(theta)[:, None]).sum(-1)
    return distance.min(axis=-1).mean().item()


def test_the_nearest_pair_is_the_nearest_of_all_centroids():
    x, theta = normal(2, 50, 16), normal(2, ROWS, 16, seed=1)
    distance = mx.square(x[:, :, None] - centroids(theta)[:, None]).sum(-1)
    assert mx.array_equal(nearest_pair(x, theta), mx.argmin(distance, axis=-1))


def test_each_step_brings_codebooks_nearer():
    x = normal(1, 300, 8)
    theta = normal(1, ROWS, 8, seed=1)
    errors = [objective(x, theta)]
    for _ in range(5):
        theta = _least_squares(x, *_shares(x, theta, None), theta)
        errors.append(objective(x, theta))
    assert all(after < before for before, after in pairwise(errors))


def test_least_squares_is_the_minimum_of_what_was_shared_out():
    x, theta = normal(1, 300, 4), normal(1, ROWS, 4, seed=1)
    shares = _shares(x, theta, mx.array([[[0.3]]]))
    best = _least_squares(x, *shares, theta)
    near = -0.5 * mx.square(x[:, :, None] - centroids(theta)[:, None]).sum(-1) / 0.3
    weight = mx.softmax(near, axis=-1)

    def shared_out(candidate):
        distance = mx.square(x[:, :, None] - centroids(candidate)[:, None]).sum(-1)
        return (weight * distance).sum().item()

    for seed in range(4):
        moved = best + 0.05 * normal(1, ROWS, 4, seed=seed)
        assert shared_out(best) < shared_out(moved)
    assert shared_out(best) < 0.95 * shared_out(theta)


def test_a_rotated_key_has_the_codes_of_the_key():
    """Decoding commutes with the embedding, at any position."""
    codec = codec_of("comm_vq")
    plain = normal(1, HEADS, BLOCK, 64, seed=4)
    embedding = rope(64)
    decoded = []
    for start in (0, 128, 8192, 131072):
        codes = codec.encode(embedding(plain, offset=start), 2, start)
        turned = codec.decode(codes)
        unturned = codec.rotary.turn_back(codec.rotary.paired(turned), start)
        decoded.append(unturned)
        # The model's own embedding, applied to what was decoded without one.
        again = embedding(codec.rotary.unpaired(unturned), offset=start)
        assert mx.allclose(turned, again, atol=1e-4 + 1e-6 * start)
    for other in decoded[1:3]:
        assert relative_error(other, decoded[0]) < 0.02


def test_bits_are_the_stages_and_one_length_a_token():
    codec = codec_of("comm_vq")
    codes = codec.encode(structured(BLOCK, 64), 2, 0)
    assert stage_count(64, 2) == 10 and stage_count(128, 1) == 10 and stage_count(128, 2) == 21
    assert codes.per_token["index"].shape == (1, HEADS, BLOCK, 10)
    assert codes.per_token["length"].shape == (1, 1, BLOCK, 1)
    assert sum(a.nbytes for a in codes.arrays()) == HEADS * BLOCK * 15 + BLOCK * 2


def test_structure_is_worth_bits(monkeypatch):
    """Trained on keys of few directions it beats a scalar code of twice its bits."""
    keys = structured(24 * BLOCK, 64, seed=8)
    few = sample(64)
    whole = LayerSample(
        keys[0], keys[0], tuple(range(0, 24 * BLOCK, BLOCK)), few.query_moment, few.rotary
    )
    monkeypatch.setattr(comm_vq, "stage_count", lambda head_dim, bits: 2 * bits)
    codec = make(Side("keys", 2, learnt=learn(Side("keys", 2), whole)))
    x = structured(4 * BLOCK, 64, seed=9)
    scalar = TurboQuantMSE(2, False, False)
    error = relative_error(codec.decode(codec.encode(x, 2, 0)), x)
    assert error < relative_error(scalar.decode(scalar.encode(x, 2)), x)


def test_more_stages_than_were_learnt_and_no_embedding_are_refused():
    with pytest.raises(ValueError, match="4 bits need 21 stages, and the artefact has 10"):
        make(Side("keys", 4, learnt=learnt("comm_vq", "keys", 2, 64)))
    fewer = make(Side("keys", 1, learnt=learnt("comm_vq", "keys", 2, 64)))
    assert fewer.theta.shape[1] == 5
    few = sample(64, 2)
    without = LayerSample(few.keys, few.values, few.starts, few.query_moment)
    with pytest.raises(ValueError, match="no rotary embedding"):
        learn(Side("keys", 1), without)


def test_training_is_the_same_each_time():
    x = normal(1, 200, 16)
    assert mx.array_equal(train(x, 1), train(x, 1))
    assert np.isfinite(np.array(train(x[:, :3], 1))).all()
