"""MLX's own affine codes: groups of neighbouring channels of a vector, each with scale and bias.

x = scale q + bias, b + 32 / group bits an element. Attention multiplies by the codes directly, with
mx.quantized_matmul. As MLX has them, codes are of the vectors as they come; a rotation before
spreads a strong channel over its whole vector, where it would else coarsen its group alone.
"""

from dataclasses import dataclass

import mlx.core as mx

from kvcore.codecs import Side, read_options
from kvcore.codes import Codes
from kvcore.rotation import check_rotation, rotate, rotate_back, rotation_table

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (64, 32)
_LARGEST_HALF = 65504.0


def make(side: Side) -> "Affine":
    """Options: `group_size`, 64 or 32; `rotation` before, "none", "hadamard" or "haar"."""
    options = read_options(side, group_size=64, rotation="none")
    if options["group_size"] not in GROUPS:
        raise ValueError(f"option 'group_size' must be 64 or 32, not {options['group_size']}.")
    if side.bits not in BITS:
        known = ", ".join(map(str, BITS[:-1]))
        raise ValueError(f"affine codes have {known} or {BITS[-1]} bits, not {side.bits}.")
    rotation = options["rotation"]
    if rotation != "none":
        check_rotation(rotation)
    return Affine(options["group_size"], rotation, side.seed)


@dataclass(frozen=True)
class Affine:
    """Keeps `codes`, uint32 [batch, kv_heads, tokens, head_dim * bits / 32], and `scale` and `bias`
    of each group, half precision [batch, kv_heads, tokens, head_dim / group].

    Groups have `group_size` channels, or 32 where head_dim is no multiple of it. Where it is no
    multiple of 32 either, zeros fill the last group up and are stored with it.
    """

    group_size: int = 64
    rotation: str = "none"
    seed: int = 0

    def tables(self, head_dim: int) -> list[mx.array]:
        if self.rotation == "none":
            return []
        return [rotation_table(head_dim, self.seed, self.rotation)]

    def token_nbytes(self, head_dim: int, bits: int) -> float:
        filled, group = self._groups(head_dim)
        return filled * (_width(bits) / 8 + 4 / group)

    def bit_nbytes(self, codes: Codes) -> int:
        return 0

    def into_basis(self, queries: mx.array) -> mx.array:
        return queries if self.rotation == "none" else rotate(queries, self.seed, self.rotation)

    def out_of_basis(self, values: mx.array) -> mx.array:
        return values if self.rotation == "none" else rotate_back(values, self.seed, self.rotation)

    def encode(self, vectors: mx.array, bits: int, start: int = 0) -> Codes:
        head_dim, width = vectors.shape[-1], _width(bits)
        half = mx.bfloat16 if vectors.dtype == mx.bfloat16 else mx.float16
        filled, group = self._groups(head_dim)
        vectors = _fill(self.into_basis(vectors.astype(mx.float32)), filled)
        codes, scale, bias = mx.quantize(vectors, group, width)
        return Codes(
            width,
            start,
            {"codes": codes, "scale": _as_half(scale, half), "bias": _as_half(bias, half)},
            {},
            head_dim,
        )

    def lower(self, codes: Codes, bits: int) -> Codes:
        return codes

    def decode(self, codes: Codes) -> mx.array:
        vectors = mx.dequantize(*_arrays(codes), _group(codes), codes.bits)
        return self.out_of_basis(vectors[..., : codes.head_dim])

    def scores(self, queries: mx.array, tile: Codes) -> mx.array:
        queries = _fill(queries, _filled(tile))
        return mx.quantized_matmul(queries, *_arrays(tile), True, _group(tile), tile.bits)

    def weighted_sum(self, weights: mx.array, tile: Codes) -> mx.array:
        values = mx.quantized_matmul(weights, *_arrays(tile), False, _group(tile), tile.bits)
        return values[..., : tile.head_dim]

    def _groups(self, head_dim: int) -> tuple[int, int]:
        """Channels, those that fill the last group up included, and how many a group has."""
        group = self.group_size if head_dim % self.group_size == 0 else min(GROUPS)
        return -(-head_dim // group) * group, group


def _width(bits: int) -> int:
    """The most bits that MLX has codes of and that are not above `bits`."""
    return max(width for width in BITS if width <= max(bits, BITS[0]))


def _as_half(x: mx.array, half: mx.Dtype) -> mx.array:
    return (mx.clip(x, -_LARGEST_HALF, _LARGEST_HALF) if half == mx.float16 else x).astype(half)


def _arrays(codes: Codes) -> tuple[mx.array, mx.array, mx.array]:
    scale, bias = (codes.per_token[name].astype(mx.float32) for name in ("scale", "bias"))
    return codes.per_token["codes"], scale, bias


def _filled(codes: Codes) -> int:
    return codes.per_token["codes"].shape[-1] * 32 // codes.bits


def _group(codes: Codes) -> int:
    return _filled(codes) // codes.per_token["scale"].shape[-1]


def _fill(x: mx.array, channels: int) -> mx.array:
    return mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, channels - x.shape[-1])])
