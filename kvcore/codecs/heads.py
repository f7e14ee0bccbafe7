"""Bits of their own for each KV head, around a method: a codec for each group of heads of equal
bits, whose arrays lie side by side, named for their group ("heads0_field0")."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import mlx.core as mx

from kvcore.codec import Codec
from kvcore.codecs import Side, make_codec
from kvcore.codes import Codes


@dataclass(frozen=True)
class HeadGroup:
    """Heads that `codec` packs at `bits`, or at fewer where that is asked for."""

    heads: tuple[int, ...]
    bits: int
    codec: Codec


@dataclass(frozen=True)
class Heads:
    """Codes of n bits here are those whose heads have at most n; `groups` hold every head once."""

    groups: tuple[HeadGroup, ...]

    def encode(self, vectors: mx.array, bits: int, start: int = 0) -> Codes:
        return _side_by_side(
            [
                group.codec.encode(_of(group, vectors), min(bits, group.bits), start)
                for group in self.groups
            ],
            bits,
        )

    def lower(self, codes: Codes, bits: int) -> Codes:
        if bits >= codes.bits:
            return codes
        return _side_by_side(
            [g.codec.lower(part, min(bits, part.bits)) for g, part in self._parts(codes)], bits
        )

    def decode(self, codes: Codes) -> mx.array:
        return self._joined([group.codec.decode(part) for group, part in self._parts(codes)])

    def into_basis(self, queries: mx.array) -> mx.array:
        return self._joined([g.codec.into_basis(_of(g, queries)) for g in self.groups])

    def scores(self, queries: mx.array, tile: Codes) -> mx.array:
        return self._joined(
            [g.codec.scores(_of(g, queries), part) for g, part in self._parts(tile)]
        )

    def weighted_sum(self, weights: mx.array, tile: Codes) -> mx.array:
        return self._joined(
            [g.codec.weighted_sum(_of(g, weights), part) for g, part in self._parts(tile)]
        )

    def out_of_basis(self, values: mx.array) -> mx.array:
        return self._joined([g.codec.out_of_basis(_of(g, values)) for g in self.groups])

    def token_nbytes(self, head_dim: int, bits: int) -> float:
        """Mean over the heads."""
        nbytes = [
            len(group.heads) * group.codec.token_nbytes(head_dim, min(bits, group.bits))
            for group in self.groups
        ]
        return sum(nbytes) / sum(len(group.heads) for group in self.groups)

    def bit_nbytes(self, codes: Codes) -> int:
        """Of the heads that have the most bits: the others have none to drop yet."""
        most = max(min(codes.bits, group.bits) for group in self.groups)
        parts = self._parts(codes)
        return sum(g.codec.bit_nbytes(part) for g, part in parts if part.bits == most)

    def tables(self, head_dim: int) -> list[mx.array]:
        tables = [table for group in self.groups for table in group.codec.tables(head_dim)]
        return list({id(table): table for table in tables}.values())

    def _parts(self, codes: Codes) -> list[tuple[HeadGroup, Codes]]:
        return [
            (
                group,
                replace(
                    codes,
                    bits=min(codes.bits, group.bits),
                    per_token=_named(codes.per_token, number),
                    per_block=_named(codes.per_block, number),
                ),
            )
            for number, group in enumerate(self.groups)
        ]

    def _joined(self, parts: Sequence[mx.array]) -> mx.array:
        """[batch, kv_heads, ...] of those of the groups, in the order of the heads."""
        order = [head for group in self.groups for head in group.heads]
        joined = mx.concatenate(list(parts), axis=1)
        if all(one < other for one, other in pairwise(order)):
            return joined
        return joined[:, mx.array([order.index(head) for head in range(len(order))])]


def _of(group: HeadGroup, x: mx.array) -> mx.array:
    return x[:, mx.array(group.heads)]


def _side_by_side(parts: Sequence[Codes], bits: int) -> Codes:
    def named(kind: str) -> dict[str, mx.array]:
        return {
            f"heads{number}_{name}": array
            for number, part in enumerate(parts)
            for name, array in getattr(part, kind).items()
        }

    return replace(parts[0], bits=bits, per_token=named("per_token"), per_block=named("per_block"))


def _named(arrays: dict[str, mx.array], number: int) -> dict[str, mx.array]:
    prefix = f"heads{number}_"
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def make_codec_by_head(method: str, side: Side, head_bits: Sequence[int]) -> Codec:
    """`head_bits`: of each KV head; `side`'s own are not read."""
    widths = sorted(set(head_bits), reverse=True)
    codecs = [make_codec(method, replace(side, bits=bits)) for bits in widths]
    if len(codecs) == 1:
        return codecs[0]
    return Heads(
        tuple(
            HeadGroup(tuple(h for h, own in enumerate(head_bits) if own == bits), bits, codec)
            for bits, codec in zip(widths, codecs, strict=True)
        )
    )
