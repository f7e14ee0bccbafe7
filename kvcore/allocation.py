"""Bits for each unit of a cache so that the whole loss is least within a budget of bytes.

A unit is whatever has bits of its own: the keys or values of a layer, or of one of its KV heads.
RateQuant (arXiv 2605.06675) models a unit's loss as w beta^-b and shares the bits out by reverse
water-filling, which needs one beta for all bits. Here losses come from measured tables of any
form and costs in bytes, so it is a knapsack with one choice a unit, solved exactly by dynamic
programming; on convex tables and equal costs that is what greedy steps find.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

_PER_BYTE = 1024
"""Costs are counted in such parts of a byte; a block's share of 128 tokens is a whole number."""


@dataclass(frozen=True)
class Unit:
    """`losses`: expected loss at each number of bits that can be chosen. `nbytes`: bytes of a token
    at the same."""

    losses: Mapping[int, float]
    nbytes: Mapping[int, float]


def allocate(units: Sequence[Unit], budget: float) -> tuple[int, ...]:
    """Bits of each unit, with the least sum of losses whose bytes are at most `budget` together.

    Of equal losses the fewer bytes are taken, then the fewer bits for later units. Raises
    ValueError where even the fewest bytes are too many.
    """
    costs = [{bits: round(size * _PER_BYTE) for bits, size in u.nbytes.items()} for u in units]
    least = [min(of_unit.values()) for of_unit in costs]
    spare = int(budget * _PER_BYTE + 0.5) - sum(least)
    if spare < 0:
        raise ValueError(
            f"{budget:,.1f} bytes a token are too few: at the fewest bits it takes"
            f" {sum(least) / _PER_BYTE:,.1f}."
        )
    more = [
        {bits: cost - low for bits, cost in sorted(of_unit.items())}
        for of_unit, low in zip(costs, least, strict=True)
    ]
    most = sum(max(of_unit.values()) for of_unit in more)
    step = gcd(*(cost for of_unit in more for cost in of_unit.values())) or 1
    room = min(spare, most) // step

    # loss[j]: the least of the units so far with exactly j steps of bytes above the fewest.
    loss = np.full(room + 1, np.inf)
    loss[0] = 0.0
    taken: list[np.ndarray] = []
    for unit, of_unit in zip(units, more, strict=True):
        trials = np.full((len(of_unit), room + 1), np.inf)
        for trial, (bits, cost) in zip(trials, of_unit.items(), strict=True):
            shift = cost // step
            if shift <= room:
                trial[shift:] = loss[: room + 1 - shift] + unit.losses[bits]
        taken.append(trials.argmin(axis=0))
        loss = trials.min(axis=0)

    at = int(loss.argmin())
    chosen: list[int] = []
    for of_unit, of_room in zip(reversed(more), reversed(taken), strict=True):
        bits = list(of_unit)[of_room[at]]
        chosen.append(bits)
        at -= of_unit[bits] // step
    return tuple(reversed(chosen))
