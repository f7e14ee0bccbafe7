"""TurboQuant's unbiased quantiser (arXiv 2504.19874, Q_prod): codes of one bit less, and a sketch.

A rotated and normalised vector gets Lloyd-Max codes of bits - 1 bits, and what they leave, r, the
signs of a sketch and its norm, see kvcore.sketch: <q, k> is estimated by |k| (<q, c> + |r| gain /
rows <S q, sign(S r)>), with S q in full precision. At one bit there are no codes, and it is QJL.

It takes b + .25 bits at head_dim 128, not b, for the two scales; some copies count b + 1. It has
more variance than `turboquant_mse` or `rabitq` at as many bits: the one scale that makes an
estimate unbiased costs nothing beside the norm that it replaces. The orthogonal sketch has 2.75
times less than that of independent rows, which the paper has.
"""

from dataclasses import dataclass
from math import sqrt

import mlx.core as mx

from kvcore.bitplanes import field_widths, pack, unpack
from kvcore.codebooks import centroid, codebook, quantise
from kvcore.codecs import Side, read_options
from kvcore.codecs.lengths import half_of, normalised, to_half
from kvcore.codes import Codes
from kvcore.rotation import check_rotation, rotate, rotate_back, rotation_table
from kvcore.sketch import check_rows, check_sketch, gain, pack_signs, sketch_table, unpack_signs


def make(side: Side) -> "TurboQuantProd":
    """Options: `sketch`, "orthogonal" or "iid"; `jl_dim`, its rows, head_dim / 2 to 4 head_dim, or
    0 for head_dim; `rotation`, "hadamard" or "haar"."""
    options = read_options(side, sketch="orthogonal", jl_dim=0, rotation="hadamard")
    check_sketch(options["sketch"], options["jl_dim"])
    check_rotation(options["rotation"])
    return TurboQuantProd(**options, seed=side.seed)


@dataclass(frozen=True)
class TurboQuantProd:
    """Keeps bit fields, named field0, ..., of bits - 1 bits; `signs`, uint8 [batch, kv_heads,
    tokens, rows / 8]; `scale`, half precision [batch, kv_heads, tokens, 1], the root mean square of
    a vector's coordinates; `residual`, the same of what the codes leave, in units of the scale. At
    one bit there are neither fields nor `residual`.

    The basis is the rotated vector and its sketch, side by side. Bits cannot be dropped: the sketch
    is of what just these codes leave.
    """

    sketch: str = "orthogonal"
    jl_dim: int = 0
    rotation: str = "hadamard"
    seed: int = 0

    def tables(self, head_dim: int) -> list[mx.array]:
        return [rotation_table(head_dim, self.seed, self.rotation), self._sketch(head_dim)]

    def token_nbytes(self, head_dim: int, bits: int) -> float:
        scales = 4 if bits > 1 else 2
        return (head_dim * (bits - 1) + self._rows(head_dim)) / 8 + scales

    def bit_nbytes(self, codes: Codes) -> int:
        return 0

    def into_basis(self, queries: mx.array) -> mx.array:
        head_dim = queries.shape[-1]
        rotated = rotate(queries, self.seed, self.rotation)
        sketched = rotated @ self._sketch(head_dim).T * self._factor(head_dim)
        return mx.concatenate([rotated, sketched], axis=-1)

    def out_of_basis(self, values: mx.array) -> mx.array:
        width = values.shape[-1]
        head_dim = width - self.jl_dim if self.jl_dim else width // 2
        rotated, sketched = mx.split(values, [head_dim], axis=-1)
        rotated = rotated + sketched @ self._sketch(head_dim) * self._factor(head_dim)
        return rotate_back(rotated, self.seed, self.rotation)

    def encode(self, vectors: mx.array, bits: int, start: int = 0) -> Codes:
        """Raises ValueError where `jl_dim` is out of range for the vectors' head_dim."""
        half, head_dim = half_of(vectors), vectors.shape[-1]
        vectors, deviation = normalised(vectors)
        held = {"scale": to_half(deviation, half)}
        residual = rotate(vectors, self.seed, self.rotation)
        if bits > 1:
            book = codebook(bits - 1, bits - 1)
            codes = quantise(residual, book)
            residual = residual - centroid(codes, book)
            left = mx.sqrt(mx.square(residual).mean(axis=-1, keepdims=True))
            held["residual"] = left.astype(half)
            held |= {f"field{i}": field for i, field in enumerate(pack(codes, bits - 1))}
        held["signs"] = pack_signs(residual @ self._sketch(head_dim).T)
        return Codes(bits, start, held, {}, head_dim)

    def lower(self, codes: Codes, bits: int) -> Codes:
        return codes

    def decode(self, codes: Codes) -> mx.array:
        return self.out_of_basis(_vectors(codes) * _scale(codes))

    def scores(self, queries: mx.array, tile: Codes) -> mx.array:
        return queries @ _vectors(tile).swapaxes(-1, -2) * _scale(tile).swapaxes(-1, -2)

    def weighted_sum(self, weights: mx.array, tile: Codes) -> mx.array:
        return weights * _scale(tile).swapaxes(-1, -2) @ _vectors(tile)

    def _rows(self, head_dim: int) -> int:
        return check_rows(self.jl_dim or head_dim, head_dim)

    def _sketch(self, head_dim: int) -> mx.array:
        return sketch_table(head_dim, self._rows(head_dim), self.sketch, self.seed)

    def _factor(self, head_dim: int) -> float:
        return sqrt(head_dim) * gain(head_dim, self.sketch) / self._rows(head_dim)


def _scale(codes: Codes) -> mx.array:
    return codes.per_token["scale"].astype(mx.float32)


def _vectors(codes: Codes) -> mx.array:
    """Float32 [batch, kv_heads, tokens, head_dim + rows], without the scale."""
    held, bits = codes.per_token, codes.bits - 1
    signs = unpack_signs(held["signs"])
    if not bits:
        nothing = mx.zeros((*signs.shape[:-1], codes.head_dim))
        return mx.concatenate([nothing, signs], axis=-1)
    fields = tuple(held[f"field{i}"] for i in range(len(field_widths(bits))))
    centroids = centroid(unpack(fields, bits), codebook(bits, bits))
    centroids = centroids.reshape(*centroids.shape[:-2], -1)
    return mx.concatenate([centroids, signs * held["residual"].astype(mx.float32)], axis=-1)
