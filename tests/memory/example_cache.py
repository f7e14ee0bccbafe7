"""A cache to decide about: the sizes of a packed one, worked out from its bits and nothing else."""

from collections.abc import Sequence

from kvcore.actions import Action, Lower
from kvcore.budget import CacheState
from kvcore.report import Kind, LayerReport

KV_HEADS, HEAD_DIM, BLOCK, PLAIN = 3, 64, 128, 132
ELEMENTS = KV_HEADS * HEAD_DIM
HALF_TOKEN = 2 * 2 * ELEMENTS
TOKEN_EXTRA = KV_HEADS * (2 + 2 + 1)
"""Two scales and a share of the block's mean, for each head of a packed token."""


def layer(
    index: int,
    tokens: int,
    key_bits: int | None = 6,
    value_bits: int | None = 4,
    kind: Kind = "packed",
) -> LayerReport:
    if kind != "packed" or key_bits is None or value_bits is None:
        return LayerReport(index, kind, tokens, tokens * HALF_TOKEN)
    body = max(0, tokens - PLAIN) // BLOCK * BLOCK
    bit = body * ELEMENTS // 8
    nbytes = bit * (key_bits + value_bits) + body * TOKEN_EXTRA + (tokens - body) * HALF_TOKEN
    return LayerReport(
        index,
        "packed",
        tokens,
        nbytes,
        half_nbytes=tokens * HALF_TOKEN,
        key_bits=key_bits,
        value_bits=value_bits,
        key_bit_nbytes=bit,
        value_bit_nbytes=bit,
        token_nbytes=ELEMENTS * (key_bits + value_bits) // 8 + TOKEN_EXTRA,
    )


def state(layers: Sequence[LayerReport]) -> CacheState:
    tokens = max((report.tokens for report in layers), default=0)
    return CacheState(tuple(layers), tokens, sum(report.nbytes for report in layers))


def cache(tokens: int, count: int = 30, key_bits: int = 6, value_bits: int = 4) -> CacheState:
    return state([layer(index, tokens, key_bits, value_bits) for index in range(count)])


def carried_out(before: CacheState, actions: Sequence[Action], tokens: int = 0) -> CacheState:
    """The cache after the Lowers among `actions`, `tokens` tokens later."""
    bits = {report.index: (report.key_bits, report.value_bits) for report in before.layers}
    for action in actions:
        if isinstance(action, Lower):
            for index in action.layers:
                keys, values = bits[index]
                assert keys is not None and values is not None, "a layer that is not ours"
                bits[index] = (min(keys, action.key_bits), min(values, action.value_bits))
    return state(
        [
            layer(report.index, report.tokens + tokens, *bits[report.index], kind=report.kind)
            for report in before.layers
        ]
    )
