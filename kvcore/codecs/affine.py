"""MLX's own affine codes: groups of neighbouring channels of a vector, each with scale and bias.

x = scale q + bias, b + 32 / group bits an element. Attention multiplies by the codes directly, with
mx.quantized_matmul. As MLX has them, codes are of the vectors as they come; a rotation before
spreads a strong channel over its whole vector, where it would else coarsen its group alone.
"""

from dataclasses import dataclass

import mlx.core as mx

from kvcore.codecs import Side, read_options
from kvcore.codes import Codes
from kvcore.rotation import rotate, rotate_back, rotation_table

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (64, 32)
_LARGEST_HALF = 65504.0


def make(side: Side) -> "Affine":
    """Options: `group_size`, 64 or 32; `rotation`, whether vectors are rotated first."""
    options = read_options(side, group_size=64, rotation=False)
    if options["group_size"] not in GROUPS:
        raise ValueError(f"option 'group_size' must be 64 or 32, not {options['group_size']}.")
    if side.bits not in BITS:
        known = ", ".join(map(str, BITS[:-1]))
        raise ValueError(f"affine codes have {known} or {BITS[-1]} bits, not {side.bits}.")
    return Affine(options["group_size"], options["rotation"], side.seed)


@dataclass(frozen=True)
class Affine:
    """Keeps `codes`, uint32 [batch, kv_heads, tokens, head_dim * bits / 32], and `scale` and `bias`
    of each group, half precision [batch, kv_heads, tokens, head_dim / group].

    Groups have `group_size` channels, or 32 where head_dim is no multiple of it.
    """

    group_size: int = 64
    rotation: bool = False
    seed: int = 0

    def tables(self, head_dim: int) -> list[mx.array]:
        return [rotation_table(head_dim, self.seed)] if self.rotation else []

    def token_nbytes(self, head_dim: int, bits: int) -> float:
        return head_dim * (_width(bits) / 8 + 4 / self._group(head_dim))

    def bit_nbytes(self, codes: Codes) -> int:
        return 0

    def into_basis(self, queries: mx.array) -> mx.array:
        return rotate(queries, self.seed) if self.rotation else queries

    def out_of_basis(self, values: mx.array) -> mx.array:
        return rotate_back(values, self.seed) if self.rotation else values

    def encode(self, vectors: mx.array, bits: int, start: int = 0) -> Codes:
        """Raises ValueError where head_dim is no multiple of 32."""
        head_dim, width = vectors.shape[-1], _width(bits)
        half = mx.bfloat16 if vectors.dtype == mx.bfloat16 else mx.float16
        vectors = self.into_basis(vectors.astype(mx.float32))
        codes, scale, bias = mx.quantize(vectors, self._group(head_dim), width)
        return Codes(
            width,
            start,
            {"codes": codes, "scale": _as_half(scale, half), "bias": _as_half(bias, half)},
            {},
        )

    def lower(self, codes: Codes, bits: int) -> Codes:
        return codes

    def decode(self, codes: Codes) -> mx.array:
        packed, scale, bias = _arrays(codes)
        group, width = _shape(codes)
        return self.out_of_basis(mx.dequantize(packed, scale, bias, group, width))

    def scores(self, queries: mx.array, tile: Codes) -> mx.array:
        return mx.quantized_matmul(queries, *_arrays(tile), True, *_shape(tile))

    def weighted_sum(self, weights: mx.array, tile: Codes) -> mx.array:
        return mx.quantized_matmul(weights, *_arrays(tile), False, *_shape(tile))

    def _group(self, head_dim: int) -> int:
        for group in (self.group_size, min(GROUPS)):
            if head_dim % group == 0:
                return group
        raise ValueError(
            f"affine codes need a head_dim that is a multiple of 32, not {head_dim}: "
            "choose another method, as 'turboquant_mse' or 'kivi'."
        )


def _width(bits: int) -> int:
    """The most bits that MLX has codes of and that are not above `bits`."""
    return max(width for width in BITS if width <= max(bits, BITS[0]))


def _as_half(x: mx.array, half: mx.Dtype) -> mx.array:
    return (mx.clip(x, -_LARGEST_HALF, _LARGEST_HALF) if half == mx.float16 else x).astype(half)


def _arrays(codes: Codes) -> tuple[mx.array, mx.array, mx.array]:
    scale, bias = (codes.per_token[name].astype(mx.float32) for name in ("scale", "bias"))
    return codes.per_token["codes"], scale, bias


def _shape(codes: Codes) -> tuple[int, int]:
    """Group size and bits."""
    head_dim = codes.per_token["codes"].shape[-1] * 32 // codes.bits
    return head_dim // codes.per_token["scale"].shape[-1], codes.bits
