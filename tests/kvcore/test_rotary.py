import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.rope_utils import initialize_rope

from kvcore.commuting import times_i
from kvcore.rotary import read_rotary

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
ROPES = {
    "halves": nn.RoPE(64),
    "neighbours": nn.RoPE(64, traditional=True),
    "part of the channels": nn.RoPE(32),
    "part, neighbours": nn.RoPE(32, traditional=True),
    "linear scaling": initialize_rope(64, 1e4, False, {"rope_type": "linear", "factor": 4.0}),
    "llama3": initialize_rope(64, 5e5, False, LLAMA3),
    "slow": nn.RoPE(64, base=1e6),
}


def normal(*shape):
    return mx.array(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize("start", [0, 1, 1000, 20000])
def test_it_turns_as_the_model_does(name, start):
    rope, x = ROPES[name], normal(1, 2, 16, 64)
    rotary = read_rotary(rope, 64)
    got = rotary.unpaired(rotary.turn(rotary.paired(x), start))
    # An angle in float32 is off by its own rounding.
    assert mx.allclose(got, rope(x, offset=start), atol=1e-5 + 2e-6 * start)


@pytest.mark.parametrize("start", [0, 8192, 131072, 1 << 20])
def test_turned_back_it_is_what_it_was_at_any_position(start):
    rotary, x = read_rotary(ROPES["llama3"], 64), normal(1, 2, 16, 64)
    assert mx.allclose(rotary.turn(rotary.turn_back(x, start), start), x, atol=2e-6)


def test_what_multiplies_pairs_commutes_with_it():
    """R (theta_A + i theta_B) = R theta_A + i R theta_B, for every pair and position."""
    rotary, one, other = read_rotary(ROPES["halves"], 64), normal(500, 64), normal(500, 64)[::-1]
    for start in (0, 8000, 130000):
        together = rotary.turn(one + times_i(other), start)
        apart = rotary.turn(one, start) + times_i(rotary.turn(other, start))
        assert mx.allclose(together, apart, atol=1e-5)


def test_a_layer_that_leaves_positions_alone():
    rotary = read_rotary(lambda x, offset: x, 64)
    assert not rotary.frequencies.any().item()
    assert mx.array_equal(mx.sort(rotary.order), mx.arange(64))


def test_moments_are_spread_over_positions():
    rotary = read_rotary(ROPES["halves"], 64)
    x = np.array(normal(300, 64)).astype(np.float64) * np.linspace(2, 0.1, 64)
    moment = x.T @ x / 300
    spread = rotary.spread(moment, 100000)
    assert np.allclose(spread, spread.T) and np.isclose(np.trace(spread), np.trace(moment))
    # The fastest pair, channels 0 and 32, points everywhere equally often.
    own = (moment[0, 0] + moment[32, 32]) / 2
    assert np.allclose(spread[[0, 32], [0, 32]], own, rtol=0.15)
    assert abs(spread[0, 32]) < 0.15 * own
    still = rotary.spread(moment, 1)
    assert np.allclose(still, moment)
