"""PolarQuant (arXiv 2502.02617): a rotated vector's coordinates as radii and angles, recursively.

Pairs of coordinates become radius and angle, pairs of these radii again, four times: 16 coordinates
are one radius, kept in half precision, and 8 + 4 + 2 + 1 angles at 4, 2, 2 and 2 bits, 3.875 bits a
coordinate with the radius. So radii are stored; that this method keeps no norm is wrong, and so is
the paper's "4.008 times smaller" for all levels at 3 bits, which is 5.16 times.

After a rotation the angles of the first level are uniform and those of level l have the density
sin(2 psi)^(2^(l-1) - 1) on [0, pi/2], all independent, so the books are Lloyd-Max for these and
need no data; the paper runs k-means on each prompt. (arXiv 2502.00527 is another method of this
name.) On isotropic vectors `turboquant_mse` has about as much error with 3 bits as this with 3.875.
"""

from dataclasses import dataclass
from functools import cache
from math import pi

import mlx.core as mx
import numpy as np

from kvcore.bitplanes import field_widths
from kvcore.bytepack import pack_bytes, packed_nbytes, unpack_bytes
from kvcore.codecs import Side, read_options
from kvcore.codes import Codes
from kvcore.density_codebooks import DensityCodebook, lloyd_max_of, quantise_by
from kvcore.rotation import check_rotation, rotate, rotate_back, rotation_table

BITS = 4
"""What a coordinate's share of angles and radius comes to, in whole bits."""
_LARGEST_HALF = 65504.0


def make(side: Side) -> "PolarQuant":
    """Options: `angle_bits`, those of each level from the first on, as "4/2/2/2"; `rotation`,
    "hadamard" or "haar"."""
    options = read_options(side, angle_bits="4/2/2/2", rotation="hadamard")
    text = options["angle_bits"]
    parts = text.split("/")
    if len(parts) > 8 or not all(part in "12345678" and len(part) == 1 for part in parts):
        raise ValueError(
            "option 'angle_bits' must be 1 to 8 numbers from 1 to 8 with slashes between, as"
            f" '4/2/2/2', not {text!r}."
        )
    return PolarQuant(tuple(map(int, parts)), check_rotation(options["rotation"]), side.seed)


def to_polar(x: mx.array, levels: int) -> tuple[mx.array, list[mx.array]]:
    """Radii [..., head_dim / 2**levels] and, level by level, angles [..., head_dim / 2**level]: in
    (-pi, pi] at the first, in [0, pi/2] at the others."""
    angles = []
    for _ in range(levels):
        pairs = x.reshape(*x.shape[:-1], -1, 2)
        even, odd = pairs[..., 0], pairs[..., 1]
        angles.append(mx.arctan2(odd, even))
        x = mx.sqrt(even * even + odd * odd)
    return x, angles


def from_polar(radii: mx.array, cosines: list[mx.array], sines: list[mx.array]) -> mx.array:
    """The coordinates, of cosines and sines of the angles that `to_polar` gives."""
    for cosine, sine in zip(reversed(cosines), reversed(sines), strict=True):
        pairs = mx.stack([radii * cosine, radii * sine], axis=-1)
        radii = pairs.reshape(*pairs.shape[:-2], -1)
    return radii


@dataclass(frozen=True)
class PolarQuant:
    """Keeps `radius`, half precision [batch, kv_heads, tokens, head_dim / 2**levels], and the codes
    of the angles in bytes, those of all levels of one width together; see kvcore.bytepack.

    `angle_bits`: of each level. Bits cannot be dropped; `bits` are 4 whatever is asked for.
    """

    angle_bits: tuple[int, ...] = (4, 2, 2, 2)
    rotation: str = "hadamard"
    seed: int = 0

    def tables(self, head_dim: int) -> list[mx.array]:
        return [rotation_table(head_dim, self.seed, self.rotation)]

    def token_nbytes(self, head_dim: int, bits: int) -> float:
        angles = sum(
            packed_nbytes(sum(head_dim >> level for level in levels), width)
            for width, levels in self._levels_of_width().items()
        )
        return angles + 2 * (head_dim >> len(self.angle_bits))

    def bit_nbytes(self, codes: Codes) -> int:
        return 0

    def into_basis(self, queries: mx.array) -> mx.array:
        return rotate(queries, self.seed, self.rotation)

    def out_of_basis(self, values: mx.array) -> mx.array:
        return rotate_back(values, self.seed, self.rotation)

    def encode(self, vectors: mx.array, bits: int, start: int = 0) -> Codes:
        """Raises ValueError where head_dim is no multiple of 2**levels."""
        levels, head_dim = len(self.angle_bits), vectors.shape[-1]
        if head_dim % (1 << levels):
            raise ValueError(
                f"polarquant with {levels} levels needs a head_dim that is a multiple of"
                f" {1 << levels}, not {head_dim}: choose another method, as 'turboquant_mse'."
            )
        half = mx.bfloat16 if vectors.dtype == mx.bfloat16 else mx.float16
        vectors = vectors.astype(mx.float32)
        # Squares of bfloat16's extremes are beyond float32.
        largest = mx.maximum(mx.abs(vectors).max(axis=-1, keepdims=True), 1e-37)
        radius, angles = to_polar(self.into_basis(vectors / largest), levels)
        radius = radius * largest
        radius = mx.minimum(radius, _LARGEST_HALF) if half == mx.float16 else radius
        codes = [
            _angle_codes(angle, level, width)
            for level, (angle, width) in enumerate(zip(angles, self.angle_bits, strict=True), 1)
        ]
        per_token = {"radius": radius.astype(half)}
        for width, of_levels in self._levels_of_width().items():
            together = mx.concatenate([codes[level - 1] for level in of_levels], axis=-1)
            for i, field in enumerate(pack_bytes(together, width)):
                per_token[f"angles{width}_{i}"] = field
        return Codes(BITS, start, per_token, {})

    def lower(self, codes: Codes, bits: int) -> Codes:
        return codes

    def decode(self, codes: Codes) -> mx.array:
        return self.out_of_basis(self._rotated(codes))

    def scores(self, queries: mx.array, tile: Codes) -> mx.array:
        return queries @ self._rotated(tile).swapaxes(-1, -2)

    def weighted_sum(self, weights: mx.array, tile: Codes) -> mx.array:
        return weights @ self._rotated(tile)

    def _levels_of_width(self) -> dict[int, list[int]]:
        levels: dict[int, list[int]] = {}
        for level, width in enumerate(self.angle_bits, 1):
            levels.setdefault(width, []).append(level)
        return levels

    def _rotated(self, codes: Codes) -> mx.array:
        radius = codes.per_token["radius"].astype(mx.float32)
        head_dim = radius.shape[-1] << len(self.angle_bits)
        cosines = [radius] * len(self.angle_bits)
        sines = list(cosines)
        for width, levels in self._levels_of_width().items():
            fields = tuple(
                codes.per_token[f"angles{width}_{i}"] for i in range(len(field_widths(width)))
            )
            counts = [head_dim >> level for level in levels]
            together = unpack_bytes(fields, width, sum(counts))
            ends = np.cumsum(counts)[:-1].tolist()
            for level, part in zip(levels, mx.split(together, ends, axis=-1), strict=True):
                angles = np.array(_centroids(level, width))
                cosines[level - 1] = mx.array(np.cos(angles).astype(np.float32))[part]
                sines[level - 1] = mx.array(np.sin(angles).astype(np.float32))[part]
        return from_polar(radius, cosines, sines)


def _angle_codes(angles: mx.array, level: int, width: int) -> mx.array:
    if level > 1:
        return quantise_by(_book(level, width).thresholds, angles)
    cells = 1 << width
    # The turn is closed: -pi and pi are in one cell, and 0 starts the first.
    turns = mx.floor(angles * (cells / (2 * pi))).astype(mx.int32)
    return (turns & (cells - 1)).astype(mx.uint32)


def _centroids(level: int, width: int) -> tuple[float, ...]:
    if level > 1:
        return _book(level, width).centroids
    cells = 1 << width
    return tuple((cell + 0.5) * 2 * pi / cells for cell in range(cells))


@cache
def _book(level: int, width: int) -> DensityCodebook:
    """Lloyd-Max for the angles of levels above the first."""
    angles = np.linspace(0, pi / 2, 20_001)
    return lloyd_max_of(angles, np.sin(2 * angles) ** (2 ** (level - 1) - 1), width)
