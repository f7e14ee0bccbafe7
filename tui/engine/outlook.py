"""What a layer's cache will hold, foreseen from what it holds and what its first tokens cost."""

from dataclasses import replace
from typing import Any

from mlx_lm.models.cache import KVCache

from kvcore.cache import BUFFER_STEP, PackedKVCache
from kvcore.codes import BLOCK
from kvcore.ladder import bit_cost, token_cost
from kvcore.report import LayerReport


def foreseen_nbytes(layer: LayerReport, first: LayerReport, cache: Any, tokens: int) -> float:
    """Bytes that `cache` holds once it has come to `tokens`, at its present bits.

    `layer` is its present report, `first` the one from when it held its first tokens.
    """
    if layer.kind == "packed":
        return _packed_nbytes(layer, first, packed_part(cache), tokens)
    if layer.kind == "state":
        return first.nbytes
    # mlx-lm's own caches grow by so many tokens at once; the first already cost them all.
    held = min(tokens, getattr(cache, "max_size", tokens))
    return first.nbytes * -(-held // KVCache.step)


def packed_part(cache: Any) -> PackedKVCache | None:
    """The packed cache that a layer's cache is, or has among its parts."""
    parts = getattr(cache, "caches", [cache])
    return next((part for part in parts if isinstance(part, PackedKVCache)), None)


def at_bits_of(first: LayerReport, layer: LayerReport) -> LayerReport:
    """What the first tokens cost where `layer`, which is empty, has been lowered since."""
    if first.key_bits is None or first.value_bits is None or first.token_nbytes is None:
        return first
    if layer.key_bits is None or layer.value_bits is None:
        return first
    key_cost, value_cost = bit_cost(first)
    saved = (first.key_bits - layer.key_bits) * key_cost
    saved += (first.value_bits - layer.value_bits) * value_cost
    return replace(
        first,
        key_bits=layer.key_bits,
        value_bits=layer.value_bits,
        token_nbytes=round(first.token_nbytes - saved),
    )


def _packed_nbytes(
    layer: LayerReport, first: LayerReport, cache: PackedKVCache | None, tokens: int
) -> float:
    assert cache is not None and first.half_nbytes is not None
    body = sum(segment.tokens for segment in cache.body)
    kept = cache.config.sinks + cache.config.window
    plain = tokens - body
    if plain > kept + BLOCK:
        packed = (plain - kept) // BLOCK * BLOCK
        body, plain = body + packed, plain - packed
    rows = min(-(-plain // BUFFER_STEP) * BUFFER_STEP, kept + BLOCK)
    return rows * first.half_nbytes / first.tokens + body * token_cost(layer)
