"""Two passes of scalar quantisation: rotated and normalised coordinates get a code, and what that
leaves gets another. `bits` are those of both, half each: 4 are 2 + 2.

One pass is better. At equal bits `turboquant_mse` has 11 % less error than 1 + 1, and less than
half of that of 2 + 2, since the second book does not know in which cell of the first a coordinate
lies. Claims in circulation that two passes are needed at few bits, or reach a cosine of .97 at two
bits, count the bits of one pass only. What two passes do give, a second one that can be left out
later, nested codes of one pass give as well.

The second book is by option "residual", Lloyd-Max for what the first pass really leaves of a normal
variable; "gaussian", for a normal of the same variance; or "laplacian", which is the worst of the
three: that density is flat at its core, not peaked. A fresh rotation between the passes makes what
is left normal again, so that errors multiply (2 + 2: .0137 of the energy, not .0187).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import sqrt

import mlx.core as mx
import numpy as np

from kvcore.bitplanes import drop_in_tiles, field_widths, pack, unpack
from kvcore.codecs import Side, read_options
from kvcore.codes import Codes
from kvcore.density_codebooks import DensityCodebook, lloyd_max_of, quantise_by
from kvcore.rotation import check_rotation, rotate, rotate_back, rotation_table

STAGE_BOOKS = ("residual", "gaussian", "laplacian")


def make(side: Side) -> "TurboQuantRVQ":
    """Options: `stage_book`, one of STAGE_BOOKS; `fresh_rotation`, whether the second pass has a
    rotation of its own; `rotation`, "hadamard" or "haar"."""
    options = read_options(side, stage_book="residual", fresh_rotation=False, rotation="hadamard")
    book, fresh_rotation = options["stage_book"], options["fresh_rotation"]
    if book not in STAGE_BOOKS:
        known = ", ".join(STAGE_BOOKS)
        raise ValueError(f"option 'stage_book' must be one of {known}, not {book!r}.")
    if fresh_rotation and book == "residual":
        book = "gaussian"  # which is what the residual then is
    return TurboQuantRVQ(
        first=-(-side.bits // 2),
        second=side.bits // 2,
        stage_book=book,
        fresh_rotation=fresh_rotation,
        rotation=check_rotation(options["rotation"]),
        seed=side.seed,
    )


@dataclass(frozen=True)
class TurboQuantRVQ:
    """Keeps bit fields of both passes, named first0, ... and second0, ..., and `scale`, half
    precision [batch, kv_heads, tokens, 1]: root mean square of a vector's coordinates, which cannot
    overflow where the vector did not.

    `first`, `second`: bits of the passes when no bit is dropped. Bits are dropped from the second
    pass, until nothing is left of it, then from the first.
    """

    first: int
    second: int
    stage_book: str = "residual"
    fresh_rotation: bool = False
    rotation: str = "hadamard"
    seed: int = 0

    def tables(self, head_dim: int) -> list[mx.array]:
        seeds = (self.seed, self.seed + 1) if self.fresh_rotation else (self.seed,)
        return [rotation_table(head_dim, seed, self.rotation) for seed in seeds]

    def token_nbytes(self, head_dim: int, bits: int) -> float:
        return head_dim * bits / 8 + 2

    def bit_nbytes(self, codes: Codes) -> int:
        return codes.per_token["first0"].size

    def into_basis(self, queries: mx.array) -> mx.array:
        """With a fresh rotation, the bases of both passes, side by side."""
        rotated = rotate(queries, self.seed, self.rotation)
        if not self.fresh_rotation:
            return rotated
        return mx.concatenate([rotated, rotate(rotated, self.seed + 1, self.rotation)], axis=-1)

    def out_of_basis(self, values: mx.array) -> mx.array:
        if self.fresh_rotation:
            first, second = mx.split(values, 2, axis=-1)
            values = first + rotate_back(second, self.seed + 1, self.rotation)
        return rotate_back(values, self.seed, self.rotation)

    def encode(self, vectors: mx.array, bits: int, start: int = 0) -> Codes:
        half = mx.bfloat16 if vectors.dtype == mx.bfloat16 else mx.float16
        vectors = vectors.astype(mx.float32)
        # Squares of bfloat16's extremes are beyond float32.
        largest = mx.maximum(mx.abs(vectors).max(axis=-1, keepdims=True), 1e-37)
        vectors = vectors / largest
        deviation = mx.sqrt(mx.square(vectors).mean(axis=-1, keepdims=True))
        rotated = rotate(vectors / mx.maximum(deviation, 1e-20), self.seed, self.rotation)
        first, second = self._widths(bits)
        book = first_book(self.first)
        codes = quantise_by(book.thresholds, rotated)
        fields = _named("first", pack(codes >> (self.first - first), first))
        if second:
            residual = rotated - _look_up(book, codes)
            if self.fresh_rotation:
                residual = rotate(residual, self.seed + 1, self.rotation)
            codes = quantise_by(self._second_book().thresholds, residual)
            fields |= _named("second", pack(codes >> (self.second - second), second))
        return Codes(bits, start, fields | {"scale": (deviation * largest).astype(half)}, {})

    def lower(self, codes: Codes, bits: int) -> Codes:
        if bits >= codes.bits:
            return codes
        fields = {}
        for name, held, kept in zip(
            ("first", "second"), self._widths(codes.bits), self._widths(bits), strict=True
        ):
            if kept:
                old = _fields(codes, name, held)
                fields |= _named(name, drop_in_tiles(old, held, kept) if kept < held else old)
        return replace(codes, bits=bits, per_token=fields | {"scale": codes.per_token["scale"]})

    def decode(self, codes: Codes) -> mx.array:
        return self.out_of_basis(self._vectors(codes))

    def scores(self, queries: mx.array, tile: Codes) -> mx.array:
        return queries @ self._vectors(tile).swapaxes(-1, -2)

    def weighted_sum(self, weights: mx.array, tile: Codes) -> mx.array:
        return weights @ self._vectors(tile)

    def _widths(self, bits: int) -> tuple[int, int]:
        """Bits of each pass."""
        return min(bits, self.first), max(0, bits - self.first)

    def _second_book(self) -> DensityCodebook:
        return second_book(self.stage_book, self.first, self.second)

    def _vectors(self, codes: Codes) -> mx.array:
        """Float32 [batch, kv_heads, tokens, width of the basis]."""
        first, second = self._widths(codes.bits)
        book = first_book(self.first).merged(self.first - first)
        coarse = _look_up(book, _unpacked(_fields(codes, "first", first), first))
        fine = mx.zeros_like(coarse)
        if second:
            book = self._second_book().merged(self.second - second)
            fine = _look_up(book, _unpacked(_fields(codes, "second", second), second))
        scale = codes.per_token["scale"].astype(mx.float32)
        if self.fresh_rotation:
            return mx.concatenate([coarse, fine], axis=-1) * scale
        return (coarse + fine) * scale


@cache
def first_book(bits: int) -> DensityCodebook:
    """For a coordinate, N(0, 1)."""
    return lloyd_max_of(_GRID, _normal(_GRID), bits)


@cache
def second_book(name: str, first: int, second: int) -> DensityCodebook:
    """For what a first pass of `first` bits leaves of N(0, 1); `name`: one of STAGE_BOOKS."""
    book = first_book(first)
    deviation = sqrt(book.distortion(1.0))
    if name == "gaussian":
        density = _normal(_GRID / deviation)
    elif name == "laplacian":
        density = np.exp(-sqrt(2) * np.abs(_GRID) / deviation)
    else:
        density = np.zeros_like(_GRID)
        edges = (-np.inf, *book.thresholds, np.inf)
        for low, high, centroid in zip(edges, edges[1:], book.centroids, strict=False):
            x = _GRID + centroid
            density += np.where((low < x) & (x <= high), _normal(x), 0)
    return lloyd_max_of(_GRID, density, second)


_GRID = np.linspace(-10, 10, 40_001)


def _normal(x: np.ndarray) -> np.ndarray:
    return np.exp(-x * x / 2)


def _look_up(book: DensityCodebook, codes: mx.array) -> mx.array:
    return mx.array(book.centroids)[codes]


def _named(name: str, fields: Sequence[mx.array]) -> dict[str, mx.array]:
    return {f"{name}{i}": field for i, field in enumerate(fields)}


def _fields(codes: Codes, name: str, bits: int) -> tuple[mx.array, ...]:
    return tuple(codes.per_token[f"{name}{i}"] for i in range(len(field_widths(bits))))


def _unpacked(fields: tuple[mx.array, ...], bits: int) -> mx.array:
    codes = unpack(fields, bits)
    return codes.reshape(*codes.shape[:-2], -1)
