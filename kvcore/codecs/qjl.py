"""QJL (arXiv 2406.03482): of a key the signs of a random sketch and the norm, see kvcore.sketch.

`bits` are the sketch's rows for each coordinate, so that at head_dim 128 one bit takes 1.125 and
not 1: 14 times less than fp16, not 32. The sketch has no more than head_dim of the key's directions
to look from, so the error falls with bits as 1 / bits, where that of `turboquant_mse` falls as
1 / 4^bits: more than two bits are better spent there. The paper's "3 bits" mix two and four.

The paper keeps the strongest channels of each group of 32 tokens in a sketch of their own, as one
of them would raise the norm, and so the error, of all; here by option.
"""

from dataclasses import dataclass, replace
from math import sqrt

import mlx.core as mx

from kvcore.bitplanes import pack, unpack
from kvcore.codecs import Side, read_options
from kvcore.codecs.lengths import half_of, normalised, to_half
from kvcore.codes import BLOCK, Codes
from kvcore.sketch import check_rows, check_sketch, gain, pack_signs, sketch_table, unpack_signs

GROUP_TOKENS = 32
"""Tokens that share their choice of outlier channels, as the paper has it."""


def make(side: Side) -> "QJL":
    """Options: `sketch`, "orthogonal" or "iid"; `jl_dim`, its rows at most, head_dim / 2 to
    4 head_dim, or 0 for head_dim a bit; `outlier_channels`, 8 in the paper, or 0 for none."""
    options = read_options(side, sketch="orthogonal", jl_dim=0, outlier_channels=0)
    check_sketch(options["sketch"], options["jl_dim"])
    if options["outlier_channels"] < 0:
        raise ValueError(
            f"option 'outlier_channels' must be 0 or more, not {options['outlier_channels']}."
        )
    return QJL(side.bits, **options, seed=side.seed)


@dataclass(frozen=True)
class QJL:
    """Keeps, for each head_dim rows of the sketch, `signs0`, ..., uint8 [batch, kv_heads, tokens,
    head_dim / 8], so that bits are dropped by dropping arrays, and `scale`, half precision [batch,
    kv_heads, tokens, 1], the root mean square of a key's coordinates.

    With outlier channels, `signs` and `scale` are those of the others, `outlier_signs` (head_dim
    rows) and `outlier_scale` those of these, and `outlier_mask` has a bit for each channel of each
    group of tokens, uint8 [batch, kv_heads, blocks, 128 / 32, head_dim / 8]. Each sketch is asked
    with the query's own channels alone, so the basis is the plain one and scores are those of
    `decode`; without outlier channels the basis is the sketch.

    `bits`: the most that codes have.
    """

    bits: int
    sketch: str = "orthogonal"
    jl_dim: int = 0
    outlier_channels: int = 0
    seed: int = 0

    def tables(self, head_dim: int) -> list[mx.array]:
        return [self._sketch(head_dim)]

    def token_nbytes(self, head_dim: int, bits: int) -> float:
        sketch = self._rows(head_dim, bits) / 8 + 2
        if not self.outlier_channels:
            return sketch
        return sketch + head_dim / 8 + 2 + head_dim / 8 / GROUP_TOKENS

    def bit_nbytes(self, codes: Codes) -> int:
        return codes.per_token[f"signs{codes.bits - 1}"].size if codes.bits > 1 else 0

    def into_basis(self, queries: mx.array) -> mx.array:
        if self.outlier_channels:
            return queries
        return queries @ self._sketch(queries.shape[-1]).T

    def out_of_basis(self, values: mx.array) -> mx.array:
        return values

    def encode(self, vectors: mx.array, bits: int, start: int = 0) -> Codes:
        """Raises ValueError where `jl_dim` or `outlier_channels` do not go with the head_dim."""
        half, head_dim = half_of(vectors), vectors.shape[-1]
        table = self._sketch(head_dim)[: self._rows(head_dim, bits)]
        vectors, deviation = normalised(vectors)
        held, per_block = {}, {}
        if self.outlier_channels:
            chosen = self._outliers(vectors * deviation)
            per_block["outlier_mask"] = pack(chosen.astype(mx.uint32), 1)[0]
            chosen = spread(chosen, vectors.shape[2])
            outliers, share = normalised(mx.where(chosen, vectors, 0))
            held["outlier_signs"] = pack_signs(outliers @ table[:head_dim].T)
            held["outlier_scale"] = to_half(share * deviation, half)
            vectors, share = normalised(mx.where(chosen, 0, vectors))
            deviation = share * deviation
        held["scale"] = to_half(deviation, half)
        for i, first in enumerate(range(0, table.shape[0], head_dim)):
            held[f"signs{i}"] = pack_signs(vectors @ table[first : first + head_dim].T)
        return Codes(-(-table.shape[0] // head_dim), start, held, per_block, head_dim)

    def lower(self, codes: Codes, bits: int) -> Codes:
        if bits >= codes.bits:
            return codes
        dropped = {f"signs{i}" for i in range(bits, codes.bits)}
        held = {name: array for name, array in codes.per_token.items() if name not in dropped}
        return replace(codes, bits=bits, per_token=held)

    def decode(self, codes: Codes) -> mx.array:
        held = codes.per_token
        signs = _signs(codes)
        keys = self._estimate(signs, held["scale"], codes.head_dim)
        if not self.outlier_channels:
            return keys
        outliers = self._estimate(
            unpack_signs(held["outlier_signs"]), held["outlier_scale"], codes.head_dim
        )
        chosen = unpack((codes.per_block["outlier_mask"],), 1) > 0
        chosen = chosen.reshape(*chosen.shape[:-2], -1)
        return mx.where(spread(chosen, codes.tokens), outliers, keys)

    def scores(self, queries: mx.array, tile: Codes) -> mx.array:
        if self.outlier_channels:
            return queries @ self.decode(tile).swapaxes(-1, -2)
        signs = _signs(tile)
        rows = signs.shape[-1]
        scale = tile.per_token["scale"].astype(mx.float32) * self._factor(tile.head_dim, rows)
        return queries[..., :rows] @ signs.swapaxes(-1, -2) * scale.swapaxes(-1, -2)

    def weighted_sum(self, weights: mx.array, tile: Codes) -> mx.array:
        return weights @ self.decode(tile)

    def _rows(self, head_dim: int, bits: int) -> int:
        most = check_rows(self.jl_dim or 4 * head_dim, head_dim)
        return min(most, head_dim * min(bits, self.bits))

    def _sketch(self, head_dim: int) -> mx.array:
        return sketch_table(head_dim, self._rows(head_dim, self.bits), self.sketch, self.seed)

    def _factor(self, head_dim: int, rows: int) -> float:
        return sqrt(head_dim) * gain(head_dim, self.sketch) / rows

    def _estimate(self, signs: mx.array, scale: mx.array, head_dim: int) -> mx.array:
        """The vectors that have these signs, float32 [batch, kv_heads, tokens, head_dim]."""
        rows = signs.shape[-1]
        table = self._sketch(head_dim)[:rows]
        return signs @ table * (scale.astype(mx.float32) * self._factor(head_dim, rows))

    def _outliers(self, vectors: mx.array) -> mx.array:
        """Whether a channel is among the strongest of its group: [batch, kv_heads, blocks, groups,
        head_dim]."""
        batch, heads, _, head_dim = vectors.shape
        if self.outlier_channels >= head_dim:
            raise ValueError(
                f"option 'outlier_channels' must be below the head_dim of {head_dim}, not"
                f" {self.outlier_channels}."
            )
        groups = vectors.reshape(batch, heads, -1, BLOCK // GROUP_TOKENS, GROUP_TOKENS, head_dim)
        largest = mx.maximum(mx.abs(groups).max(axis=(4, 5), keepdims=True), 1e-37)
        energy = mx.square(groups / largest).sum(axis=4)
        index = mx.argsort(energy, axis=-1)[..., -self.outlier_channels :]
        return (mx.arange(head_dim) == index[..., None]).any(axis=-2)


def spread(chosen: mx.array, tokens: int) -> mx.array:
    """Each token's channels, [batch, kv_heads, tokens, head_dim], of those of the groups."""
    batch, heads, _, _, head_dim = chosen.shape
    each = mx.repeat(chosen.reshape(batch, heads, -1, head_dim), GROUP_TOKENS, axis=2)
    return each[:, :, :tokens]


def _signs(codes: Codes) -> mx.array:
    """Float32 [batch, kv_heads, tokens, rows]."""
    parts = [unpack_signs(codes.per_token[f"signs{i}"]) for i in range(codes.bits)]
    return mx.concatenate(parts, axis=-1)
