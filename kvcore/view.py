"""The cache as one call of attention sees it, and the handles that carry it there."""

from dataclasses import dataclass, replace
from functools import reduce
from types import ModuleType
from typing import Protocol

import mlx.core as mx

from kvcore.attention import (
    Partial,
    PlainPart,
    absorb,
    empty_partial,
    merge,
    part_mask,
    sink_partial,
)
from kvcore.codec import Codec
from kvcore.codecs.turboquant_mse import TurboQuantMSE
from kvcore.kernels import decode_kernel
from kvcore.segment import Segment


@dataclass(frozen=True)
class PackedPart:
    """A segment as attention reads it, in the codecs' basis."""

    segment: Segment
    key_codec: Codec
    value_codec: Codec

    @property
    def tokens(self) -> int:
        return self.segment.tokens

    def scores(self, queries: mx.array, start: int, stop: int) -> mx.array:
        return self.key_codec.scores(queries, self.segment.keys.tile(start, stop))

    def weighted_sum(self, weights: mx.array, start: int, stop: int) -> mx.array:
        return self.value_codec.weighted_sum(weights, self.segment.values.tile(start, stop))

    def after(self, first: mx.array) -> "PackedPart":
        segment = Segment(self.segment.keys.after(first), self.segment.values.after(first))
        return replace(self, segment=segment)


@dataclass(frozen=True)
class View:
    """Every token of a layer, the newest in full.

    `keys`, `values`: buffers [batch, kv_heads, n, head_dim] whose first `plain_tokens` are the
    sinks, then the recent tokens; `body` lies between the two.
    """

    keys: mx.array
    values: mx.array
    plain_tokens: int
    sinks: int
    body: tuple[Segment, ...]
    key_codec: Codec
    value_codec: Codec

    @property
    def body_tokens(self) -> int:
        return sum(segment.tokens for segment in self.body)

    @property
    def tokens(self) -> int:
        return self.plain_tokens + self.body_tokens

    def attend(
        self,
        queries: mx.array,
        scale: float,
        mask: mx.array | str | None = None,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """softmax(scale queries . keys^T + mask) values -> [batch, query_heads, length, head_dim].

        `queries`: [batch, query_heads, length, head_dim], the last `length` tokens of the view.
        `mask`: as for mx.fast.scaled_dot_product_attention. `sinks`: learned logits [query_heads].
        """
        batch, query_heads, length, head_dim = queries.shape
        kv_heads = self.keys.shape[1]
        rows = query_heads // kv_heads * length
        scaled = (queries.astype(mx.float32) * scale).reshape(batch, kv_heads, rows, head_dim)
        all_visible = length == 1 and (mask is None or isinstance(mask, str))
        kernel = decode_kernel() if all_visible and self.keys.dtype == mx.float16 else None
        if kernel is not None:
            plain = kernel.attend_plain(scaled, self.keys, self.values, self.plain_tokens)
        else:
            plain = self._attend_plain(scaled, mask, length)
        if sinks is not None:
            plain = merge(sink_partial(sinks, scaled), plain)
        if self.body:
            rotated = self.key_codec.into_basis(scaled)
            packed = self._attend_body_by(kernel, rotated)
            if packed is None:
                packed = self._attend_body(rotated, mask, length)
            weighted = self.value_codec.out_of_basis(packed.weighted)
            plain = merge(plain, replace(packed, weighted=weighted))
        output = plain.weighted / plain.total
        return output.reshape(batch, query_heads, length, -1).astype(queries.dtype)

    def dequantised(self) -> tuple[mx.array, mx.array]:
        """All keys and values in half precision, for code that cannot read the parts. Lazy."""

        def whole(plain: mx.array, codec: Codec, side: str) -> mx.array:
            body = [codec.decode(getattr(segment, side)) for segment in self.body]
            recent = plain[:, :, self.sinks : self.plain_tokens]
            parts = [plain[:, :, : self.sinks], *body, recent]
            return mx.concatenate([part.astype(plain.dtype) for part in parts], axis=2)

        return (
            whole(self.keys, self.key_codec, "keys"),
            whole(self.values, self.value_codec, "values"),
        )

    def _attend_plain(self, queries: mx.array, mask: mx.array | str | None, length: int) -> Partial:
        body_end = self.sinks + self.body_tokens
        columns = mx.concatenate([mx.arange(self.sinks), mx.arange(body_end, self.tokens)])
        part = PlainPart(
            self.keys[:, :, : self.plain_tokens], self.values[:, :, : self.plain_tokens]
        )
        own = part_mask(mask, columns, length, self.tokens, self.keys.shape[1])
        return absorb(empty_partial(queries), queries, part, own)

    def _attend_body(self, queries: mx.array, mask: mx.array | str | None, length: int) -> Partial:
        partial = empty_partial(queries)
        start = self.sinks
        for segment in self.body:
            columns = slice(start, start + segment.tokens)
            own = part_mask(mask, columns, length, self.tokens, self.keys.shape[1])
            part = PackedPart(segment, self.key_codec, self.value_codec)
            partial = absorb(partial, queries, part, own)
            start += segment.tokens
        return partial

    def _attend_body_by(self, kernel: ModuleType | None, queries: mx.array) -> Partial | None:
        """By the kernel, where there is one for these codecs."""
        keys, values = self.key_codec, self.value_codec
        if kernel is None:
            return None
        if not isinstance(keys, TurboQuantMSE) or not isinstance(values, TurboQuantMSE):
            return None
        fine = (keys.fine, values.fine)
        partials = (
            kernel.attend_packed(queries, segment.keys, segment.values, *fine)
            for segment in self.body
        )
        return reduce(merge, partials)


class Attends(Protocol):
    def attend(
        self,
        queries: mx.array,
        scale: float,
        mask: mx.array | str | None = None,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """As View.attend."""
        ...


class KVHandle(mx.array):
    """Keys or values as `update_and_fetch` returns them.

    To code that knows it, a way to `whole`, which attends on the packed codes; to all other code
    an array of the right values, computed only if it is touched.
    """

    def __init__(self, payload: mx.array, view: Attends, readers: set[bool]):
        super().__init__(payload)
        self.whole = view
        self.readers = readers
