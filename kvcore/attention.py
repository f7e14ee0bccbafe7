"""Attention over a cache in parts: an online softmax over tiles, merged by log-sum-exp.

Softmax over a union of parts needs from each part only its maximum score m, its sum of exponentials
l = sum e^(s - m) and its weighted values a = sum e^(s - m) v (FlashAttention, arXiv 2205.14135,
section 3.1). So a packed part is read a tile at a time and never exists in full precision, and it
can stay in the codec's own basis: the queries are rotated once, the weighted values back once.
"""

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

TILE_ELEMENTS = 1 << 20
"""Dequantised key or value elements alive at a time."""
SCORE_ELEMENTS = 1 << 22
"""Scores alive at a time."""
TILE_MULTIPLE = 128
LOWEST = -1e30
"""A masked score; finite, so that a part with nothing visible merges with weight zero."""


class Part(Protocol):
    """Some of the cached tokens, readable in tiles that start at multiples of 128."""

    @property
    def tokens(self) -> int: ...

    def scores(self, queries: mx.array, start: int, stop: int) -> mx.array:
        """queries [batch, kv_heads, n, head_dim] -> [batch, kv_heads, n, stop - start]."""
        ...

    def weighted_sum(self, weights: mx.array, start: int, stop: int) -> mx.array:
        """weights [batch, kv_heads, n, stop - start] -> [batch, kv_heads, n, head_dim]."""
        ...

    def after(self, first: mx.array) -> "Part":
        """The same part, not read before `first` is computed."""
        ...


@dataclass(frozen=True)
class PlainPart:
    """Keys and values [batch, kv_heads, tokens, head_dim] as they are."""

    keys: mx.array
    values: mx.array

    @property
    def tokens(self) -> int:
        return self.keys.shape[2]

    def scores(self, queries: mx.array, start: int, stop: int) -> mx.array:
        return queries @ self.keys[:, :, start:stop].astype(queries.dtype).swapaxes(-1, -2)

    def weighted_sum(self, weights: mx.array, start: int, stop: int) -> mx.array:
        return weights @ self.values[:, :, start:stop].astype(weights.dtype)

    def after(self, first: mx.array) -> "PlainPart":
        return PlainPart(mx.depends(self.keys, first), self.values)


@dataclass(frozen=True)
class Partial:
    """m and l: [batch, kv_heads, n, 1]; a: [batch, kv_heads, n, head_dim], or zeros [..., 1]."""

    maximum: mx.array
    total: mx.array
    weighted: mx.array


def empty_partial(queries: mx.array) -> Partial:
    shape = (*queries.shape[:-1], 1)
    nothing = mx.zeros(shape, queries.dtype)
    return Partial(mx.full(shape, LOWEST, queries.dtype), nothing, nothing)


def sink_partial(sinks: mx.array, queries: mx.array) -> Partial:
    """Where each head's learned sink logit, [query_heads], takes part with no value of its own.

    `queries`: [batch, kv_heads, group * length, head_dim].
    """
    batch, kv_heads, rows, _ = queries.shape
    group = sinks.size // kv_heads
    logits = sinks.astype(queries.dtype).reshape(1, kv_heads, group, 1)
    logits = mx.broadcast_to(logits, (batch, kv_heads, group, rows // group))
    logits = logits.reshape(batch, kv_heads, rows, 1)
    return Partial(logits, mx.ones_like(logits), mx.zeros_like(logits))


def absorb(partial: Partial, queries: mx.array, part: Part, mask: "PartMask") -> Partial:
    """`partial` and all of `part`; queries float32 [batch, kv_heads, n, head_dim], scaled."""
    batch, kv_heads, rows, head_dim = queries.shape
    tile = min(
        TILE_ELEMENTS // (batch * kv_heads * head_dim), SCORE_ELEMENTS // (batch * kv_heads * rows)
    )
    tile = max(TILE_MULTIPLE, tile // TILE_MULTIPLE * TILE_MULTIPLE)
    for start in range(0, part.tokens, tile):
        stop = min(start + tile, part.tokens)
        if start:
            # Else MLX may dequantise many tiles before it sums up the first.
            part = part.after(partial.weighted)
        scores = mask.apply(part.scores(queries, start, stop), start, stop)
        maximum = mx.maximum(partial.maximum, scores.max(axis=-1, keepdims=True))
        shrink = mx.exp(partial.maximum - maximum)
        weights = mx.exp(scores - maximum)
        total = partial.total * shrink + weights.sum(axis=-1, keepdims=True)
        weighted = partial.weighted * shrink + part.weighted_sum(weights, start, stop)
        partial = Partial(maximum, total, weighted)
    return partial


def merge(one: Partial, other: Partial) -> Partial:
    """Both, with their weighted values in the same basis."""
    maximum = mx.maximum(one.maximum, other.maximum)
    shrink, other_shrink = mx.exp(one.maximum - maximum), mx.exp(other.maximum - maximum)
    return Partial(
        maximum,
        one.total * shrink + other.total * other_shrink,
        one.weighted * shrink + other.weighted * other_shrink,
    )


@dataclass(frozen=True)
class PartMask:
    """What of a mask concerns one part: `allowed` or `added`, broadcastable to
    [batch, kv_heads, group, length, tokens of the part]; both None when all is visible."""

    length: int
    allowed: mx.array | None = None
    added: mx.array | None = None

    def apply(self, scores: mx.array, start: int, stop: int) -> mx.array:
        """Scores [batch, kv_heads, group * length, stop - start], masked."""
        if self.allowed is None and self.added is None:
            return scores
        batch, kv_heads, rows, tokens = scores.shape
        split = scores.reshape(batch, kv_heads, rows // self.length, self.length, tokens)
        if self.allowed is not None:
            split = mx.where(self.allowed[..., start:stop], split, LOWEST)
        if self.added is not None:
            split = mx.maximum(split + self.added[..., start:stop], LOWEST)
        return split.reshape(scores.shape)


def part_mask(
    mask: mx.array | str | None, columns: mx.array | slice, length: int, total: int, kv_heads: int
) -> PartMask:
    """The columns of `mask` that belong to one part.

    `mask`: None, "causal", or boolean or additive [length, total], [batch, 1, length, total] or
    [batch, query_heads, length, total]. `columns`: the part's positions among the `total` tokens.
    """
    if mask is None or (isinstance(mask, str) and length == 1):
        return PartMask(length)
    if isinstance(mask, str):
        last = total - length
        if isinstance(columns, slice) and columns.stop <= last:
            return PartMask(length)
        positions = mx.arange(total)[columns]
        return PartMask(length, allowed=mx.arange(last, total)[:, None] >= positions)
    mask = mask[..., columns]
    if mask.ndim == 3:
        mask = mask[:, None]
    if mask.ndim == 4 and mask.shape[1] == 1:
        mask = mask[:, :, None]
    elif mask.ndim == 4:
        mask = mask.reshape(mask.shape[0], kv_heads, -1, *mask.shape[2:])
    if mask.dtype == mx.bool_:
        return PartMask(length, allowed=mask)
    return PartMask(length, added=mask.astype(mx.float32))
