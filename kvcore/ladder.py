"""The way down: which layer loses bits next, and what that frees."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvcore.report import LayerReport

LADDER = ((6, 4), (5, 4), (4, 4), (4, 3), (3, 3), (3, 2), (2, 2))
"""Bits of keys and values, from the most precise to the floor."""

FLOOR = LADDER[-1]


@dataclass(frozen=True)
class Step:
    """One layer down to one rung: `frees` bytes at once, `saves` on each token to come."""

    layer: int
    rung: int
    frees: int
    saves: float


def steps(layers: Sequence[LayerReport]) -> Iterator[Step]:
    """Every step from where the layers are to the floor, in the order they are to be taken:
    rung by rung, and inside a rung the layers that mind least first.

    Layers that are not packed, and those whose bits cannot be dropped, are never in it.
    """
    bits = {
        place: (layer.key_bits, layer.value_bits)
        for place, layer in enumerate(layers)
        if layer.kind == "packed" and layer.key_bits is not None and layer.value_bits is not None
    }
    places = [place for place in by_harm(len(layers)) if place in bits]
    costs = {place: bit_cost(layers[place]) for place in places}
    for rung, (key_bits, value_bits) in enumerate(LADDER):
        for place in places:
            held_keys, held_values = bits[place]
            fewest_keys, fewest_values = layers[place].fewest_bits
            keys = max(0, held_keys - max(key_bits, fewest_keys))
            values = max(0, held_values - max(value_bits, fewest_values))
            if not keys and not values:
                continue
            bits[place] = (held_keys - keys, held_values - values)
            layer, (key_cost, value_cost) = layers[place], costs[place]
            yield Step(
                layer=layer.index,
                rung=rung,
                frees=keys * layer.key_bit_nbytes + values * layer.value_bit_nbytes,
                saves=keys * key_cost + values * value_cost,
            )


def by_harm(count: int) -> list[int]:
    """Layers from the middle outwards; the first two and the last two, which the rest of the
    model builds on and reads from, at the very end."""

    def harm(place: int) -> tuple[bool, int, int]:
        edge = place < 2 or place >= count - 2
        return edge, abs(2 * place - (count - 1)), place

    return sorted(range(count), key=harm)


def bit_cost(layer: LayerReport) -> tuple[float, float]:
    """Bytes that one bit of the keys, and one of the values, costs for each token to come.

    Sixteen bits of both make a token in fp16, so a bit of both is a sixteenth; keys and values
    share it as their packed bytes do. Without a token to judge by, the packed token's own size
    is divided, scales and means counted as one more bit: rather too little than too much.
    """
    packed = layer.key_bit_nbytes + layer.value_bit_nbytes
    keys_share = layer.key_bit_nbytes / packed if packed else 0.5
    if layer.half_nbytes and layer.tokens:
        both = layer.half_nbytes / layer.tokens / 16
    elif layer.token_nbytes and layer.key_bits is not None and layer.value_bits is not None:
        both = 2 * layer.token_nbytes / (layer.key_bits + layer.value_bits + 1)
    else:
        return 0.0, 0.0
    return both * keys_share, both * (1 - keys_share)


def token_cost(layer: LayerReport) -> float:
    """Bytes that one more token costs in this layer, at its present bits."""
    if layer.token_nbytes is not None:
        return float(layer.token_nbytes)
    if layer.kind in ("full", "latent") and layer.tokens:
        return layer.nbytes / layer.tokens
    return 0.0
