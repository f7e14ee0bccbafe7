"""KIVI (arXiv 2402.02750): asymmetric rounding to nearest, x = scale q + minimum, with no rotation.

Keys have strong channels, so each channel has a scale and a minimum of its own, over groups of 32
tokens; values have none, so each token has them, over groups of 32 channels. Either way these cost
one bit an element: two bits are three, four are five.

The paper keeps the last 128 keys and values in half precision, as the cache's window does, and
contexts shorter than that are not compressed. It drops no bits later; here that is possible, as two
neighbouring codes merge into their middle.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from kvcore.bitplanes import drop_in_tiles, field_widths, pack, unpack
from kvcore.codecs import Side, read_options
from kvcore.codes import BLOCK, Codes

GROUP = 32
_LARGEST_HALF = 65504.0


def make(side: Side) -> "Kivi":
    read_options(side)
    return Kivi(per_channel=side.name == "keys")


@dataclass(frozen=True)
class Kivi:
    """Keeps bit fields, and `scale` and `minimum` of each group: [batch, kv_heads, blocks, 4,
    head_dim] per channel, [batch, kv_heads, tokens, groups] per token, the last group being smaller
    where head_dim is no multiple of 32. Both are fp16 even for bfloat16 models: bfloat16 would lose
    a range that is small beside its minimum.

    Groups of equal elements have scale zero and are exact within fp16. Elements that are not finite
    count in no group's range and come back within it; those beyond fp16's range come back at its
    end.
    """

    per_channel: bool

    def tables(self, head_dim: int) -> list[mx.array]:
        return []

    def token_nbytes(self, head_dim: int, bits: int) -> float:
        groups = head_dim / GROUP if self.per_channel else -(-head_dim // GROUP)
        return head_dim * bits / 8 + 4 * groups

    def bit_nbytes(self, codes: Codes) -> int:
        return codes.per_token["field0"].size

    def into_basis(self, queries: mx.array) -> mx.array:
        return queries

    def out_of_basis(self, values: mx.array) -> mx.array:
        return values

    def encode(self, vectors: mx.array, bits: int, start: int = 0) -> Codes:
        vectors = vectors.astype(mx.float32)
        lowest, highest = self._ranges(vectors)
        minimum = lowest.astype(mx.float16)
        top = (1 << bits) - 1
        scale = mx.clip((highest - minimum) / top, 0, _LARGEST_HALF).astype(mx.float16)
        steps = (vectors - self._spread(minimum, vectors)) / self._spread(
            mx.where(scale > 0, scale, 1), vectors
        )
        codes = mx.clip(mx.where(mx.isnan(steps), 0, mx.round(steps)), 0, top)
        fields = pack(codes.astype(mx.uint32), bits)
        return self._codes(bits, start, fields, scale, minimum)

    def lower(self, codes: Codes, bits: int) -> Codes:
        if bits >= codes.bits:
            return codes
        fields = drop_in_tiles(_fields(codes), codes.bits, bits)
        merged = 1 << (codes.bits - bits)
        scale, minimum = self._scales(codes)
        wide = scale.astype(mx.float32)
        minimum = (minimum + wide * ((merged - 1) / 2)).astype(mx.float16)
        scale = mx.minimum(wide * merged, _LARGEST_HALF).astype(mx.float16)
        lowered = self._codes(bits, codes.start, fields, scale, minimum)
        mx.eval(lowered.arrays())
        return lowered

    def decode(self, codes: Codes) -> mx.array:
        steps = unpack(_fields(codes), codes.bits).astype(mx.float32)
        steps = steps.reshape(*steps.shape[:-2], -1)
        scale, minimum = self._scales(codes)
        return steps * self._spread(scale, steps) + self._spread(minimum, steps)

    def scores(self, queries: mx.array, tile: Codes) -> mx.array:
        return queries @ self.decode(tile).swapaxes(-1, -2)

    def weighted_sum(self, weights: mx.array, tile: Codes) -> mx.array:
        return weights @ self.decode(tile)

    def _ranges(self, vectors: mx.array) -> tuple[mx.array, mx.array]:
        """Lowest and highest element of each group."""
        batch, heads, tokens, head_dim = vectors.shape
        if self.per_channel:
            shape = (batch, heads, tokens // BLOCK, BLOCK // GROUP, GROUP, head_dim)
        else:
            vectors = mx.pad(vectors, [(0, 0)] * 3 + [(0, -head_dim % GROUP)], mode="edge")
            shape = (batch, heads, tokens, -1, GROUP)
        groups = vectors.reshape(shape)
        counted = mx.isfinite(groups)
        some = counted.any(axis=4)
        groups = mx.clip(groups, -_LARGEST_HALF, _LARGEST_HALF)
        lowest = mx.where(counted, groups, _LARGEST_HALF).min(axis=4)
        highest = mx.where(counted, groups, -_LARGEST_HALF).max(axis=4)
        return mx.where(some, lowest, 0), mx.where(some, highest, 0)

    def _spread(self, of_groups: mx.array, like: mx.array) -> mx.array:
        """For each element of `like`, what its group has, float32."""
        of_groups = of_groups.astype(mx.float32)
        if not self.per_channel:
            return mx.repeat(of_groups, GROUP, axis=-1)[..., : like.shape[-1]]
        batch, heads, _, _, head_dim = of_groups.shape
        of_groups = of_groups.reshape(batch, heads, -1, head_dim)
        return mx.repeat(of_groups, GROUP, axis=2)[:, :, : like.shape[2]]

    def _codes(
        self, bits: int, start: int, fields: Sequence[mx.array], scale: mx.array, minimum: mx.array
    ) -> Codes:
        scales = {"scale": scale, "minimum": minimum}
        per_token = {f"field{i}": field for i, field in enumerate(fields)}
        codes = Codes(bits, start, per_token, {})
        if self.per_channel:
            return replace(codes, per_block=scales)
        return replace(codes, per_token=per_token | scales)

    def _scales(self, codes: Codes) -> tuple[mx.array, mx.array]:
        held = codes.per_block if self.per_channel else codes.per_token
        return held["scale"], held["minimum"]


def _fields(codes: Codes) -> tuple[mx.array, ...]:
    return tuple(codes.per_token[f"field{i}"] for i in range(len(field_widths(codes.bits))))
