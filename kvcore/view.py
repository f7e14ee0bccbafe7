"""The cache as one call of attention sees it, and the handles that carry it there."""

from dataclasses import dataclass, replace

import mlx.core as mx

from kvcore.attention import PlainPart, absorb, empty_partial, merge, part_mask, sink_partial
from kvcore.codecs.turboquant_mse import TurboQuantMSE
from kvcore.segment import Segment


@dataclass(frozen=True)
class PackedPart:
    """A segment as attention reads it, in the codecs' basis."""

    segment: Segment
    key_codec: TurboQuantMSE
    value_codec: TurboQuantMSE

    @property
    def tokens(self) -> int:
        return self.segment.tokens

    def scores(self, queries: mx.array, start: int, stop: int) -> mx.array:
        return self.key_codec.scores(queries, self.segment.keys, start, stop)

    def weighted_sum(self, weights: mx.array, start: int, stop: int) -> mx.array:
        return self.value_codec.weighted_sum(weights, self.segment.values, start, stop)

    def after(self, first: mx.array) -> "PackedPart":
        keys, values = self.segment.keys, self.segment.values
        keys = replace(keys, scale=mx.depends(keys.scale, first))
        values = replace(values, scale=mx.depends(values.scale, first))
        return replace(self, segment=Segment(keys, values))


@dataclass(frozen=True)
class View:
    """The cache as one call of attention sees it: every token, the newest in full.

    `keys`, `values`: [batch, kv_heads, sinks + recent, head_dim]; `body` lies after the sinks.
    """

    keys: mx.array
    values: mx.array
    sinks: int
    body: tuple[Segment, ...]
    key_codec: TurboQuantMSE
    value_codec: TurboQuantMSE

    @property
    def body_tokens(self) -> int:
        return sum(segment.tokens for segment in self.body)

    @property
    def tokens(self) -> int:
        return self.keys.shape[2] + self.body_tokens

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

        def mask_of(columns: mx.array | slice):
            return part_mask(mask, columns, length, self.tokens, kv_heads)

        partial = empty_partial(scaled) if sinks is None else sink_partial(sinks, scaled)
        body_end = self.sinks + self.body_tokens
        columns = mx.concatenate([mx.arange(self.sinks), mx.arange(body_end, self.tokens)])
        plain = PlainPart(self.keys, self.values)
        partial = absorb(partial, scaled, plain, mask_of(columns))
        if self.body:
            packed = empty_partial(scaled)
            rotated = self.key_codec.into_basis(scaled)
            start = self.sinks
            for segment in self.body:
                stop = start + segment.tokens
                part = PackedPart(segment, self.key_codec, self.value_codec)
                packed = absorb(packed, rotated, part, mask_of(slice(start, stop)))
                start = stop
            weighted = self.value_codec.out_of_basis(packed.weighted)
            partial = merge(partial, replace(packed, weighted=weighted))
        output = partial.weighted / partial.total
        return output.reshape(batch, query_heads, length, -1).astype(queries.dtype)

    def dequantised(self) -> tuple[mx.array, mx.array]:
        """All keys and values in half precision, for code that cannot read the parts. Lazy."""

        def whole(plain: mx.array, codec: TurboQuantMSE, side: str) -> mx.array:
            body = [codec.decode(getattr(segment, side)) for segment in self.body]
            parts = [plain[:, :, : self.sinks], *body, plain[:, :, self.sinks :]]
            return mx.concatenate([part.astype(plain.dtype) for part in parts], axis=2)

        return (
            whole(self.keys, self.key_codec, "keys"),
            whole(self.values, self.value_codec, "values"),
        )


class KVHandle(mx.array):
    """Keys or values as `update_and_fetch` returns them.

    To code that knows it, a way to `whole`, which attends on the packed codes; to all other code
    an array of the right values, computed only if it is touched.
    """

    def __init__(self, payload: mx.array, view: View, readers: set[bool]):
        super().__init__(payload)
        self.whole = view
        self.readers = readers
