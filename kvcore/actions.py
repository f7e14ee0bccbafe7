"""What can be done about memory, in the order of what it costs the user."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvcore.ladder import LADDER, Step


@dataclass(frozen=True)
class ClearPool:
    """Give MLX's pool of freed buffers back to the system."""

    reason: str


@dataclass(frozen=True)
class Lower:
    """Drop bits of these layers, down to at most `key_bits` and `value_bits`; never up."""

    layers: tuple[int, ...]
    key_bits: int
    value_bits: int
    reason: str


@dataclass(frozen=True)
class SmallerChunk:
    """Compute at most `tokens` of the prompt at once."""

    tokens: int
    reason: str


@dataclass(frozen=True)
class Refuse:
    """Go no further, and keep everything; `sentence` is for the user."""

    sentence: str


Action = ClearPool | Lower | SmallerChunk | Refuse


def lowers(taken: Sequence[Step], reason: str) -> tuple[Lower, ...]:
    """The steps as acts: each layer once, at the lowest rung that it goes down to."""
    last = {step.layer: step.rung for step in taken}
    return tuple(
        Lower(tuple(layer for layer in last if last[layer] == rung), *LADDER[rung], reason)
        for rung in sorted(set(last.values()))
    )
