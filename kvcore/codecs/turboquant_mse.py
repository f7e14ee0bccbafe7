"""TurboQuant's scalar quantiser (arXiv 2504.19874, Q_mse) with nested codes: the default method.

A vector is rotated and normalised, each coordinate gets its Lloyd-Max code, and one fp16 scale a
vector brings the centroids back. Keys lose the channel mean of their block of 128 tokens first;
the mean is kept, and a score gets it back as one dot product a block.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import mlx.core as mx

from kvcore.bitplanes import GROUP, drop, empty_fields, is_prefix, pack, unpack
from kvcore.codebooks import centroid, codebook, quantise
from kvcore.rotation import rotate, rotate_back, rotation_table

BLOCK = 128
"""Tokens that share a mean; the unit in which tokens are packed."""

_LOWER_TILES = 32
"""Scales are recomputed from so many parts of the codes, to stay below what the codes take."""
_LARGEST_HALF = 65504.0


@dataclass(frozen=True)
class Codes:
    """Packed vectors of one layer, [batch, kv_heads, tokens, head_dim] before packing.

    `fields`: see kvcore.bitplanes, each [batch, kv_heads, tokens, head_dim / 8].
    `scale`: fp16 [batch, kv_heads, tokens, 1]. `mean`: fp16 [batch, kv_heads, blocks, head_dim], in
    the rotated basis, or None. Block i covers tokens i * 128 to (i + 1) * 128; the last may be cut.
    """

    bits: int
    fields: tuple[mx.array, ...]
    scale: mx.array
    mean: mx.array | None

    @property
    def tokens(self) -> int:
        return self.scale.shape[2]

    @property
    def head_dim(self) -> int:
        return self.fields[0].shape[-1] * GROUP

    @property
    def bit_nbytes(self) -> int:
        """Bytes that dropping one bit frees: an eighth of a byte for each element."""
        return self.fields[0].size

    def arrays(self) -> list[mx.array]:
        return [*self.fields, self.scale] + ([] if self.mean is None else [self.mean])

    def cut(self, tokens: int) -> "Codes":
        """The first `tokens` tokens, in arrays of their own."""
        blocks = -(-tokens // BLOCK)
        return Codes(
            self.bits,
            tuple(mx.contiguous(field[:, :, :tokens]) for field in self.fields),
            mx.contiguous(self.scale[:, :, :tokens]),
            None if self.mean is None else mx.contiguous(self.mean[:, :, :blocks]),
        )

    def followed_by(self, other: "Codes") -> "Codes":
        """Both, in order; this one must end with a whole block."""
        mean = self.mean
        if mean is not None and other.mean is not None:
            mean = mx.concatenate([mean, other.mean], axis=2)
        pairs = zip(self.fields, other.fields, strict=True)
        return Codes(
            self.bits,
            tuple(mx.concatenate([mine, others], axis=2) for mine, others in pairs),
            mx.concatenate([self.scale, other.scale], axis=2),
            mean,
        )


@dataclass(frozen=True)
class TurboQuantMSE:
    """One side, keys or values, of one layer.

    `fine`: bits of the codebook that codes are nested in, so `bits` of any codes are at most that.
    `centred`: remove each block's mean. `unbiased`: the scale makes the estimate unbiased, as
    values want it; else it keeps the norm, as keys want it.
    """

    fine: int
    centred: bool
    unbiased: bool
    seed: int = 0

    def tables(self, head_dim: int) -> mx.array:
        return rotation_table(head_dim, self.seed)

    def token_nbytes(self, head_dim: int, bits: int) -> float:
        """Bytes of one vector in a full block: codes, scale and its share of the mean."""
        return head_dim * bits / 8 + 2 + (2 * head_dim / BLOCK if self.centred else 0)

    def into_basis(self, x: mx.array) -> mx.array:
        """Queries [..., head_dim] as `scores` wants them."""
        return rotate(x, self.seed)

    def out_of_basis(self, x: mx.array) -> mx.array:
        """What `weighted_sum` gave, [..., head_dim], as the model wants it."""
        return rotate_back(x, self.seed)

    def encode(self, vectors: mx.array, bits: int) -> Codes:
        """Pack [batch, kv_heads, tokens, head_dim], a whole number of blocks, at `bits` bits."""
        book = codebook(self.fine, bits)
        rotated = rotate(vectors.astype(mx.float32), self.seed)
        mean = None
        if self.centred:
            batch, heads, tokens, head_dim = rotated.shape
            blocks = rotated.reshape(batch, heads, tokens // BLOCK, BLOCK, head_dim)
            mean = blocks.mean(axis=3).astype(mx.float16)
            rotated = (blocks - mean[..., None, :]).reshape(rotated.shape)
        deviation = mx.sqrt((rotated * rotated).mean(axis=-1, keepdims=True))
        codes = quantise(rotated / mx.maximum(deviation, 1e-20), book)
        scale = self._first_scale(rotated, centroid(codes, book))
        scale = mx.minimum(scale, _LARGEST_HALF).astype(mx.float16)
        return Codes(bits, pack(codes, bits), scale, mean)

    def lower(self, codes: Codes, bits: int) -> Codes:
        """The same vectors at fewer bits: low fields go, the scales follow from the codes.

        Evaluates a tile of tokens at a time, so that no more than the result is ever added to
        what is held.
        """
        if bits >= codes.bits:
            return codes
        scale = mx.zeros_like(codes.scale)
        fields = drop(codes.fields, codes.bits, bits) if is_prefix(bits, codes.bits) else None
        repacked = [] if fields else empty_fields(codes.fields[0].shape, bits)
        tile = max(BLOCK, codes.tokens // _LOWER_TILES)
        for start in range(0, codes.tokens, tile):
            stop = start + tile
            part = tuple(field[:, :, start:stop] for field in codes.fields)
            ratio = _scale_ratio(self.fine, codes.bits, bits, self.unbiased)(part)
            scale[:, :, start:stop] = (codes.scale[:, :, start:stop] * ratio).astype(mx.float16)
            mx.eval(scale)
            if not fields:
                for whole, kept in zip(repacked, drop(part, codes.bits, bits), strict=True):
                    whole[:, :, start:stop] = kept
                mx.eval(repacked)
        return Codes(bits, fields or tuple(repacked), scale, codes.mean)

    def centred_vectors(self, codes: Codes, start: int, stop: int) -> mx.array:
        """Float32 [batch, kv_heads, stop - start, head_dim], rotated, without the block means."""
        fields = tuple(field[:, :, start:stop] for field in codes.fields)
        groups = _dequantiser(self.fine, codes.bits)(fields, codes.scale[:, :, start:stop])
        return groups.reshape(*groups.shape[:-2], -1)

    def scores(self, queries: mx.array, codes: Codes, start: int, stop: int) -> mx.array:
        """queries [batch, kv_heads, n, head_dim] . keys -> [batch, kv_heads, n, stop - start].

        `start` must be a multiple of 128.
        """
        scores = queries @ self.centred_vectors(codes, start, stop).swapaxes(-1, -2)
        if codes.mean is None:
            return scores
        mean = codes.mean[:, :, start // BLOCK : -(-stop // BLOCK)].astype(queries.dtype)
        of_block = mx.repeat(queries @ mean.swapaxes(-1, -2), BLOCK, axis=-1)
        return scores + of_block[..., : stop - start]

    def weighted_sum(self, weights: mx.array, codes: Codes, start: int, stop: int) -> mx.array:
        """weights [batch, kv_heads, n, stop - start] . values -> [batch, kv_heads, n, head_dim]."""
        return weights @ self.centred_vectors(codes, start, stop)

    def decode(self, codes: Codes) -> mx.array:
        """All vectors, float32 [batch, kv_heads, tokens, head_dim], in the model's basis."""
        rotated = self.centred_vectors(codes, 0, codes.tokens)
        if codes.mean is not None:
            mean = mx.repeat(codes.mean.astype(mx.float32), BLOCK, axis=2)
            rotated = rotated + mean[:, :, : codes.tokens]
        return rotate_back(rotated, self.seed)

    def _first_scale(self, rotated: mx.array, centroids: mx.array) -> mx.array:
        norm = (rotated * rotated).sum(axis=-1, keepdims=True)
        if self.unbiased:
            return norm / mx.maximum((centroids * rotated).sum(axis=-1, keepdims=True), 1e-20)
        return mx.sqrt(norm / (centroids * centroids).sum(axis=-1, keepdims=True))


@cache
def _dequantiser(fine: int, bits: int) -> Callable[..., mx.array]:
    """(fields, scale) -> scaled centroids, float32 [batch, kv_heads, tokens, head_dim / 8, 8]."""
    book = codebook(fine, bits)

    def dequantise(fields: tuple[mx.array, ...], scale: mx.array) -> mx.array:
        return centroid(unpack(fields, bits), book) * scale.astype(mx.float32)[..., None]

    return mx.compile(dequantise)


@cache
def _scale_ratio(fine: int, bits: int, kept: int, unbiased: bool) -> Callable[..., mx.array]:
    """fields -> what the scale is multiplied by when only `kept` bits stay: [..., tokens, 1].

    Coarser centroids are shorter: ||c|| / ||c'|| keeps the norm, ||c||^2 / <c, c'> the estimate.
    """
    before, after = codebook(fine, bits), codebook(fine, kept)

    def ratio(fields: tuple[mx.array, ...]) -> mx.array:
        codes = unpack(fields, bits)
        old, new = centroid(codes, before), centroid(codes >> (bits - kept), after)
        energy = (old * old).sum(axis=(-1, -2))
        if unbiased:
            return (energy / (old * new).sum(axis=(-1, -2)))[..., None]
        return mx.sqrt(energy / (new * new).sum(axis=(-1, -2)))[..., None]

    return mx.compile(ratio)
