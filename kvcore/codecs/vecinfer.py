"""VecInfer (arXiv 2510.06175): product vector quantisation whose scores are read from a table.

Keys are made even before they are cut into sub-vectors: each channel over the root of its largest
magnitude in the calibration text, then a rotation; queries get the inverse, so scores stay what
they were. Values are cut as they are. Each sub-vector is replaced by the nearest of one codebook
that all heads of the layer share. A query's products with the codebook make a table, and a score
is the sum of its entries at a key's codes: no key is decoded.

As in the paper there is no norm beside the codes: keys must be alike in length. Two things said in
circulation: "always 16 times smaller", which counts 1-bit codes alone and no window, and head_dim a
power of two, which only the codebook's sub-vectors must divide.
"""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from kvcore.clustering import k_means, nearest
from kvcore.codecs import Side, read_options
from kvcore.codes import Codes
from kvcore.indices import pack_indices, packed_nbytes, unpack_indices
from kvcore.layer_sample import LayerSample
from kvcore.rotation import rotate, rotate_back, rotation_table

LAYOUTS = {1: (8, 8), 2: (4, 8), 3: (4, 12), 4: (2, 8)}
"""Dimensions of a sub-vector and bits of its index, for each number of bits a dimension."""
TRAINING_POINTS = {8: 1 << 15, 12: 1 << 16}
STEPS = {8: 20, 12: 5}
LOOKUP_ROWS = 32
"""For more queries at once, decoding a tile costs less than looking up their products with it."""
_SMALLEST_CHANNEL = 1e-4
"""Of the largest, lest a channel that was silent in the text is enlarged without bound."""


def learn(side: Side, sample: LayerSample) -> dict[str, mx.array]:
    """ "codebook", fp16 [2**index_bits, dimensions], and for keys "smooth", [kv_heads, head_dim].

    Option `index_bits`: 12 makes indices of 12 bits; with 1 bit that is 1.5, "d8b12" in the paper.
    Raises ValueError where sub-vectors do not divide head_dim.
    """
    dimensions, index_bits = _layout(side)
    vectors = sample.vectors(side.name, side.conditioning)
    head_dim = vectors.shape[-1]
    if head_dim % dimensions:
        raise ValueError(f"sub-vectors of {dimensions} do not divide a head_dim of {head_dim}.")
    learnt = {}
    if side.name == "keys":
        largest = mx.where(mx.isfinite(vectors), mx.abs(vectors), 0).max(axis=1)
        floor = mx.maximum(_SMALLEST_CHANNEL * largest.max(axis=-1, keepdims=True), 1e-20)
        learnt["smooth"] = mx.sqrt(mx.maximum(largest, floor))
        vectors = rotate(vectors / learnt["smooth"][:, None], side.seed)
    points = vectors.reshape(-1, dimensions)
    chosen = np.random.default_rng(side.seed).permutation(len(points))
    points = points[mx.array(chosen[: TRAINING_POINTS[index_bits]])]
    codebook = k_means(points, 1 << index_bits, STEPS[index_bits], side.seed)
    return learnt | {"codebook": codebook.astype(mx.float16)}


def make(side: Side) -> "VecInfer":
    """Raises ValueError where the codebook is not one for these bits."""
    read_options(side, index_bits=0)
    codebook = side.learnt["codebook"]
    index_bits = len(codebook).bit_length() - 1
    if index_bits // codebook.shape[1] != side.bits:
        raise ValueError(
            f"the {side.name}' codebook has {index_bits / codebook.shape[1]:g} bits a dimension,"
            f" not {side.bits}: calibrate for those."
        )
    return VecInfer(codebook, index_bits, side.learnt.get("smooth"), side.seed)


def _layout(side: Side) -> tuple[int, int]:
    index_bits = read_options(side, index_bits=0)["index_bits"]
    if index_bits not in (0, 8, 12):
        raise ValueError(f"index_bits must be 8 or 12, not {index_bits}.")
    dimensions, usual = LAYOUTS[side.bits]
    index_bits = index_bits or usual
    if index_bits // dimensions != side.bits:
        raise ValueError(f"{side.bits} bits a dimension need no indices of {index_bits} bits.")
    return dimensions, index_bits


@dataclass(frozen=True, eq=False)
class VecInfer:
    """Keeps the indices of each vector, see kvcore.indices, and nothing beside them.

    `codebook`: [2**index_bits, dimensions of a sub-vector]. `smooth`: [kv_heads, head_dim], for
    keys. A component that is not finite gives some codeword; the others stay as they are.
    """

    codebook: mx.array
    index_bits: int
    smooth: mx.array | None
    seed: int = 0

    def __deepcopy__(self, memo: Any) -> "VecInfer":
        return self  # nothing in it changes, and a copy would hold its arrays twice

    def tables(self, head_dim: int) -> list[mx.array]:
        if self.smooth is None:
            return [self.codebook]
        return [self.codebook, self.smooth, rotation_table(head_dim, self.seed)]

    def token_nbytes(self, head_dim: int, bits: int) -> float:
        return packed_nbytes(head_dim // self.codebook.shape[1], self.index_bits)

    def bit_nbytes(self, codes: Codes) -> int:
        return 0

    def lower(self, codes: Codes, bits: int) -> Codes:
        return codes

    def into_basis(self, queries: mx.array) -> mx.array:
        if self.smooth is None:
            return queries
        return rotate(queries * self.smooth[:, None], self.seed)

    def out_of_basis(self, values: mx.array) -> mx.array:
        if self.smooth is None:
            return values
        return rotate_back(values, self.seed) * self.smooth[:, None]

    def encode(self, vectors: mx.array, bits: int, start: int = 0) -> Codes:
        x = vectors.astype(mx.float32)
        if self.smooth is not None:
            x = rotate(x / self.smooth[:, None], self.seed)
        book = self.codebook.astype(mx.float32)
        index = nearest(x.reshape(-1, book.shape[1]), book).reshape(*x.shape[:-1], -1)
        return Codes(bits, start, pack_indices(index, self.index_bits), {})

    def decode(self, codes: Codes) -> mx.array:
        return self.out_of_basis(self.codewords(codes))

    def codewords(self, tile: Codes) -> mx.array:
        """Float32 [batch, kv_heads, tokens, head_dim], in the basis."""
        index = unpack_indices(tile.per_token, self.index_bits)
        return self.codebook[index].reshape(*index.shape[:-1], -1).astype(mx.float32)

    def scores(self, queries: mx.array, tile: Codes) -> mx.array:
        batch, heads, rows, _ = queries.shape
        if rows > LOOKUP_ROWS:
            return queries @ self.codewords(tile).swapaxes(-1, -2)
        book = self.codebook.astype(mx.float32)
        table = queries.reshape(batch, heads, rows, -1, book.shape[1]) @ book.T
        index = unpack_indices(tile.per_token, self.index_bits).swapaxes(-1, -2)
        products = mx.take_along_axis(table, index[:, :, None], axis=-1)
        return products.sum(axis=-2)

    def weighted_sum(self, weights: mx.array, tile: Codes) -> mx.array:
        return weights @ self.codewords(tile)
