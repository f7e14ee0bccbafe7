"""TurboQuant's scalar quantiser (arXiv 2504.19874, Q_mse) with nested codes: the default method.

A vector is rotated and normalised, each coordinate gets its Lloyd-Max code, and one fp16 scale a
vector brings the centroids back. Keys lose the channel mean of their block of 128 tokens first;
the mean is kept, and a score gets it back as one dot product a block.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import mlx.core as mx

from kvcore.bitplanes import drop, empty_fields, field_widths, is_prefix, pack, unpack
from kvcore.codebooks import centroid, codebook, quantise
from kvcore.codecs import Side, read_options
from kvcore.codecs.conditioning import scores_of_means, spread, without_means
from kvcore.codecs.lengths import half_of, normalised, to_half
from kvcore.codes import BLOCK, Codes
from kvcore.rotation import check_rotation, rotate, rotate_back, rotation_table

_LOWER_TILES = 32
"""Scales are recomputed from so many parts of the codes, to stay below what the codes take."""


def make(side: Side) -> "TurboQuantMSE":
    """Option: `rotation`, "hadamard" or "haar"."""
    rotation = check_rotation(read_options(side, rotation="hadamard")["rotation"])
    return TurboQuantMSE(
        side.bits,
        centred=side.conditioning == "block_mean",
        unbiased=side.name == "values",
        seed=side.seed,
        rotation=rotation,
    )


def fields_of(codes: Codes) -> tuple[mx.array, ...]:
    """The codes' bit fields, see kvcore.bitplanes: [batch, kv_heads, tokens, head_dim / 8] each."""
    return tuple(codes.per_token[f"field{i}"] for i in range(len(field_widths(codes.bits))))


@dataclass(frozen=True)
class TurboQuantMSE:
    """Keeps bit fields and a scale, [batch, kv_heads, tokens, 1], for each vector, and the mean of
    each block of centred ones, [batch, kv_heads, blocks, head_dim], rotated; scales and means in
    the vectors' own half precision, so that bfloat16 keeps its range.

    A vector that is not finite becomes its block's mean, or zero where none is removed.

    `fine`: bits of the codebook that codes are nested in, so `bits` of any codes are at most that.
    `centred`: remove each block's mean. `unbiased`: the scale makes the estimate unbiased, as
    values want it; else it keeps the norm, as keys want it.
    """

    fine: int
    centred: bool
    unbiased: bool
    seed: int = 0
    rotation: str = "hadamard"

    def tables(self, head_dim: int) -> list[mx.array]:
        return [rotation_table(head_dim, self.seed, self.rotation)]

    def token_nbytes(self, head_dim: int, bits: int) -> float:
        return head_dim * bits / 8 + 2 + (2 * head_dim / BLOCK if self.centred else 0)

    def bit_nbytes(self, codes: Codes) -> int:
        return codes.per_token["field0"].size

    def into_basis(self, queries: mx.array) -> mx.array:
        return rotate(queries, self.seed, self.rotation)

    def out_of_basis(self, values: mx.array) -> mx.array:
        return rotate_back(values, self.seed, self.rotation)

    def encode(self, vectors: mx.array, bits: int, start: int = 0) -> Codes:
        book, half = codebook(self.fine, bits), half_of(vectors)
        rotated = rotate(vectors.astype(mx.float32), self.seed, self.rotation)
        per_block = {}
        if self.centred:
            rotated, per_block["mean"] = without_means(rotated, half)
        rotated, deviation = normalised(rotated)
        codes = quantise(rotated, book)
        scale = to_half(deviation * self._first_scale(rotated, centroid(codes, book)), half)
        return Codes(bits, start, _named(pack(codes, bits)) | {"scale": scale}, per_block)

    def lower(self, codes: Codes, bits: int) -> Codes:
        """Low fields go, the scales follow from the codes, a tile of tokens at a time.

        So no more than the codes' own size is ever added to what is held.
        """
        if bits >= codes.bits:
            return codes
        old_fields, old_scale = fields_of(codes), codes.per_token["scale"]
        scale = mx.zeros_like(old_scale)
        kept = is_prefix(bits, codes.bits)
        fields = (
            list(drop(old_fields, codes.bits, bits))
            if kept
            else empty_fields(old_fields[0].shape, bits)
        )
        tile = max(BLOCK, codes.tokens // _LOWER_TILES)
        for start in range(0, codes.tokens, tile):
            stop = start + tile
            part = tuple(field[:, :, start:stop] for field in old_fields)
            ratio = _scale_ratio(self.fine, codes.bits, bits, self.unbiased)(part)
            scale[:, :, start:stop] = to_half(old_scale[:, :, start:stop] * ratio, old_scale.dtype)
            mx.eval(scale)
            if not kept:
                for whole, repacked in zip(fields, drop(part, codes.bits, bits), strict=True):
                    whole[:, :, start:stop] = repacked
                mx.eval(fields)
        return replace(codes, bits=bits, per_token=_named(fields) | {"scale": scale})

    def centred_vectors(self, tile: Codes) -> mx.array:
        """Float32 [batch, kv_heads, tokens, head_dim], rotated, without the block means."""
        groups = _dequantiser(self.fine, tile.bits)(fields_of(tile), tile.per_token["scale"])
        return groups.reshape(*groups.shape[:-2], -1)

    def scores(self, queries: mx.array, tile: Codes) -> mx.array:
        scores = queries @ self.centred_vectors(tile).swapaxes(-1, -2)
        if "mean" not in tile.per_block:
            return scores
        return scores + scores_of_means(queries, tile.per_block["mean"], tile.tokens)

    def weighted_sum(self, weights: mx.array, tile: Codes) -> mx.array:
        return weights @ self.centred_vectors(tile)

    def decode(self, codes: Codes) -> mx.array:
        rotated = self.centred_vectors(codes)
        if "mean" in codes.per_block:
            rotated = rotated + spread(codes.per_block["mean"], codes.tokens)
        return rotate_back(rotated, self.seed, self.rotation)

    def _first_scale(self, rotated: mx.array, centroids: mx.array) -> mx.array:
        norm = (rotated * rotated).sum(axis=-1, keepdims=True)
        if self.unbiased:
            return norm / mx.maximum((centroids * rotated).sum(axis=-1, keepdims=True), 1e-20)
        return mx.sqrt(norm / (centroids * centroids).sum(axis=-1, keepdims=True))


def _named(fields: Sequence[mx.array]) -> dict[str, mx.array]:
    return {f"field{i}": field for i, field in enumerate(fields)}


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
