"""Bits for a budget: by hand, against every choice there is, and against greedy steps."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcore.allocation import Unit, allocate


def modelled(weight, beta=4.0, bits=range(1, 9), size=1.0):
    """A unit of loss weight * beta^-bits, whose bits cost `size` each."""
    return Unit({b: weight * beta**-b for b in bits}, {b: b * size for b in bits})


def test_the_weightier_of_two_gets_log_beta_of_the_ratio_more():
    # b_i = 2 + log_4(w_i / 4): 1 and 3.
    assert allocate([modelled(1), modelled(16)], 4) == (1, 3)
    assert allocate([modelled(16), modelled(1)], 4) == (3, 1)


def test_one_beta_for_all_would_invert_an_order_that_the_tables_have():
    steep, flat = modelled(1, beta=7), modelled(1, beta=3)
    assert allocate([steep, flat], 6) == (2, 4)
    # The same first step, but nothing more to gain from the third bit on.
    ends = Unit({1: 1.0, 2: 0.1, 3: 0.1, 4: 0.1}, {1: 1, 2: 2, 3: 3, 4: 4})
    assert allocate([ends, modelled(1, beta=3)], 6) == (2, 4)


@pytest.mark.parametrize("budget", range(5, 41))
def test_the_budget_is_met_exactly_where_every_bit_helps(budget):
    units = [modelled(weight) for weight in (1, 3, 0.2, 50, 7)]
    assert sum(allocate(units, budget)) == budget


def test_ties_are_broken_the_same_way_each_time():
    equal = [modelled(1)] * 4
    assert allocate(equal, 10) == (3, 3, 2, 2)


def test_bytes_that_gain_nothing_are_not_spent():
    useless = Unit({1: 0.5, 2: 0.5}, {1: 1, 2: 2})
    assert allocate([useless, useless], 4) == (1, 1)


def test_a_budget_below_the_fewest_bytes_is_refused():
    with pytest.raises(ValueError, match=r"1\.5 bytes a token are too few.* takes 2\.0"):
        allocate([modelled(1), modelled(1)], 1.5)


any_unit = st.dictionaries(
    st.integers(0, 6), st.tuples(st.integers(0, 30), st.integers(1, 20)), min_size=1, max_size=4
).map(
    lambda table: Unit(
        {bits: float(loss) for bits, (loss, _) in table.items()},
        {bits: size / 4 for bits, (_, size) in table.items()},
    )
)


@settings(max_examples=150, deadline=None)
@given(units=st.lists(any_unit, min_size=1, max_size=4), spare=st.integers(0, 40))
def test_no_other_choice_within_the_budget_loses_less(units, spare):
    """Tables that are not convex, sizes that differ, bits that cost less than fewer do."""
    budget = sum(min(unit.nbytes.values()) for unit in units) + spare / 4

    def loss(bits):
        return sum(unit.losses[b] for unit, b in zip(units, bits, strict=True))

    def size(bits):
        return sum(unit.nbytes[b] for unit, b in zip(units, bits, strict=True))

    choices = product(*(unit.losses for unit in units))
    best = min((loss(bits), size(bits)) for bits in choices if size(bits) <= budget)
    chosen = allocate(units, budget)
    assert (loss(chosen), size(chosen)) == best


@given(weights=st.lists(st.floats(0.01, 1000), min_size=1, max_size=6), budget=st.integers(6, 48))
@settings(max_examples=60, deadline=None)
def test_on_convex_tables_it_is_what_greedy_steps_find(weights, budget):
    units = [modelled(weight) for weight in weights]
    bits = [1] * len(units)
    while sum(bits) < min(budget, 8 * len(units)):
        gains = [
            unit.losses[b] - unit.losses[b + 1] if b < 8 else -1.0
            for unit, b in zip(units, bits, strict=True)
        ]
        bits[gains.index(max(gains))] += 1
    greedy = sum(unit.losses[b] for unit, b in zip(units, bits, strict=True))
    chosen = allocate(units, budget)
    got = sum(unit.losses[b] for unit, b in zip(units, chosen, strict=True))
    assert got == pytest.approx(greedy, rel=1e-9)
