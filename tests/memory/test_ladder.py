"""The order of the steps, and whether they free what they say."""

from dataclasses import replace
from itertools import pairwise

import pytest
from example_cache import HALF_TOKEN, cache, carried_out, layer, state
from hypothesis import given
from hypothesis import strategies as st

from kvcore.actions import Lower, lowers
from kvcore.ladder import FLOOR, LADDER, bit_cost, by_harm, steps, token_cost


def test_the_ladder_goes_down_one_bit_at_a_time():
    for (keys, values), (next_keys, next_values) in pairwise(LADDER):
        assert (keys - next_keys) + (values - next_values) == 1
    assert FLOOR == (2, 2)


def test_middle_layers_first_and_the_two_at_each_end_last():
    assert by_harm(8) == [3, 4, 2, 5, 1, 6, 0, 7]
    assert by_harm(9)[:2] == [4, 3] and set(by_harm(9)[-4:]) == {0, 1, 7, 8}
    assert by_harm(3) == [1, 0, 2]
    assert by_harm(0) == []


def test_a_rung_is_finished_before_the_next_begins():
    down = list(steps(cache(1000).layers))
    rungs = [step.rung for step in down]
    assert rungs == sorted(rungs)
    assert len(down) == 30 * 6
    assert {step.layer for step in down[:26]} == set(range(2, 28))


def test_a_cache_that_is_half_way_down_goes_on_where_it_is():
    layers = [layer(0, 500, 5, 4), layer(1, 500, 6, 4), layer(2, 500, 3, 4), layer(3, 500, 2, 2)]
    first = list(steps(layers))[:4]
    assert [(step.layer, LADDER[step.rung]) for step in first] == [
        (1, (5, 4)),
        (1, (4, 4)),
        (0, (4, 4)),
        (1, (4, 3)),
    ]


def test_layers_that_are_not_packed_are_left_alone():
    layers = [
        layer(0, 500, None, None, kind="full"),
        layer(1, 500),
        layer(2, 500, 6, 4, kind="sliding"),
        layer(3, 500, None, None),
    ]
    assert {step.layer for step in steps(layers)} == {1}


def test_no_step_goes_below_what_a_method_has():
    fixed = replace(layer(0, 500, 16, 4), fewest_bits=(16, 3))
    assert [(step.layer, LADDER[step.rung]) for step in steps([fixed])] == [(0, (4, 3))]


bits = st.tuples(st.integers(1, 8), st.integers(1, 8))


@given(st.lists(bits, min_size=1, max_size=12), st.integers(0, 2000), st.data())
def test_what_the_steps_say_is_what_they_free(pairs, tokens, data):
    before = state([layer(index, tokens, *pair) for index, pair in enumerate(pairs)])
    down = list(steps(before.layers))
    taken = down[: data.draw(st.integers(0, len(down)))]
    after = carried_out(before, lowers(taken, "test"))
    assert before.nbytes - after.nbytes == sum(step.frees for step in taken)
    assert all(step.frees >= 0 and step.saves >= 0 for step in taken)
    if tokens:
        costs = [sum(token_cost(report) for report in at.layers) for at in (before, after)]
        saves = sum(step.saves for step in taken)
        # A token's bytes are whole numbers in the report.
        assert costs[0] - costs[1] == pytest.approx(saves, abs=len(pairs))


@given(st.lists(bits, min_size=1, max_size=12))
def test_all_steps_together_end_at_the_floor(pairs):
    before = state([layer(index, 900, *pair) for index, pair in enumerate(pairs)])
    after = carried_out(before, lowers(list(steps(before.layers)), "test"))
    assert list(steps(after.layers)) == []
    for was, now in zip(before.layers, after.layers, strict=True):
        assert (now.key_bits, now.value_bits) == (min(was.key_bits, 2), min(was.value_bits, 2))


def test_each_layer_is_in_one_lower_only_at_its_last_rung():
    down = list(steps(cache(1000, count=3).layers))
    assert lowers(down[:4], "why") == (
        Lower((0, 2), 5, 4, "why"),
        Lower((1,), 4, 4, "why"),
    )


def test_a_bit_of_a_token_costs_a_sixteenth_of_its_half_precision_bytes():
    keys, values = bit_cost(layer(0, 1000))
    assert (keys, values) == (HALF_TOKEN / 32, HALF_TOKEN / 32)
    assert bit_cost(layer(0, 0, None, None)) == (0.0, 0.0)


def test_before_the_first_token_a_bits_cost_is_rather_too_low():
    empty = layer(0, 0)
    assert 0.9 * HALF_TOKEN / 32 < bit_cost(empty)[0] <= HALF_TOKEN / 32


def test_a_token_in_a_layer_that_is_not_ours_costs_what_its_tokens_do():
    assert token_cost(layer(0, 100, None, None, kind="full")) == HALF_TOKEN
    assert token_cost(layer(0, 100, None, None, kind="sliding")) == 0.0
    assert token_cost(layer(0, 0, None, None, kind="full")) == 0.0
