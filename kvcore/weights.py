"""Weights packed as the cache packs vectors: rotated, Lloyd-Max codes, a scale for each block.

W x = (W R^T)(R x) for a rotation R of the input features, and rotated weights look normal, so the
codebook of the normal fits every model. R acts on blocks of a power of two of features, 9 of 64
where there are 576, and each row has one fp16 scale a block. Only the codes are kept: a product
unpacks a tile of rows at a time.

On normal weights this has less error than `nn.quantize` (groups of 64) in fewer bytes at 2 and 3
bits a code; from 4 on nn.quantize's offsets, .5 bits a weight with its scales, buy it a little less
error, and at equal bytes it has 1.1 to 1.7 times that of this. A product takes longer, though: it
is made of MLX operations where nn.quantize has a kernel.
"""

from collections.abc import Callable
from functools import cache
from typing import cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map_with_path

from kvcore.bitplanes import pack, unpack
from kvcore.codebooks import centroid, codebook, quantise
from kvcore.rotation import rotate, rotate_back

TILE_ELEMENTS = 1 << 22
"""Weights unpacked at a time."""
_SEED = 0
_BLOCKS = (32, 1024)
_BITS = range(2, 9)


class RotatedLinear(nn.Module):
    """In the place of an nn.Linear. Its parameters, all that it keeps:

    `fields`: the codes, see kvcore.bitplanes, [out_features, in_features / 8] each;
    `scale`: fp16 [out_features, blocks]; `bias`: [out_features], where there was one.
    They are frozen; the rotation is the same for all models and is not kept.
    """

    def __init__(self, weight: mx.array, bits: int, bias: mx.array | None = None):
        """`weight`: [out_features, in_features]; packed lazily.

        Raises ValueError unless `bits` is 2 to 8 and in_features a multiple of 32.
        """
        super().__init__()
        if bits not in _BITS:
            raise ValueError(f"weights are packed at 2 to 8 bits, not {bits!r}.")
        self.bits = bits
        self.out_features, self.in_features = weight.shape
        self.block = _block(self.in_features)
        rows = max(1, TILE_ELEMENTS // self.in_features)
        parts = [
            _encode(weight[start : start + rows], bits, self.block)
            for start in range(0, self.out_features, rows)
        ]
        *self.fields, self.scale = (mx.concatenate(list(p)) for p in zip(*parts, strict=True))
        if bias is not None:
            self.bias = bias
        self.freeze()

    @property
    def nbytes(self) -> int:
        parameters = dict(tree_flatten(self.parameters()))
        return sum(array.nbytes for array in parameters.values())

    @property
    def weight(self) -> mx.array:
        """What the codes stand for, [out_features, in_features], float32, made anew each time."""
        return _rotated(self._tile(0, self.out_features), self.block, back=True)

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., in_features] -> [..., out_features]"""
        rotated = _rotated(x.astype(mx.float32), self.block).astype(x.dtype)
        rows = max(1, TILE_ELEMENTS // self.in_features)
        parts: list[mx.array] = []
        for start in range(0, self.out_features, rows):
            # Else MLX may unpack many tiles before it multiplies the first.
            first = parts[-1] if parts else None
            weight = self._tile(start, start + rows, first).astype(x.dtype)
            parts.append(rotated @ weight.T)
        output = parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=-1)
        return output + self.bias if "bias" in self else output

    def _tile(self, start: int, stop: int, after: mx.array | None = None) -> mx.array:
        """Rows of the rotated weight, float32; not before `after` is computed."""
        fields, scale = tuple(self.fields), self.scale[start:stop]
        fields = tuple(field[start:stop] for field in fields)
        if after is not None:
            scale = mx.depends(scale, after)
        return _dequantiser(self.bits, self.block)(fields, scale)

    def _extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bits={self.bits}, "
            f"block={self.block}, bias={'bias' in self}"
        )


def quantise_weights(
    model: nn.Module, bits: int = 4, predicate: Callable[[str, nn.Module], bool] | None = None
) -> None:
    """Put a RotatedLinear in the place of each nn.Linear for which predicate(path, module) holds.

    In place and lazy, like nn.quantize: to load what was saved, do the same to a fresh model, then
    `load_weights`. Raises ValueError, with the path, where a layer cannot be packed.
    """

    def packed(path: str, module: nn.Module) -> nn.Module:
        if not isinstance(module, nn.Linear) or (predicate and not predicate(path, module)):
            return module
        try:
            return RotatedLinear(module.weight, bits, module.get("bias"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    leaves = tree_map_with_path(packed, model.leaf_modules(), is_leaf=nn.Module.is_module)
    model.update_modules(cast(dict, leaves))


def _block(in_features: int) -> int:
    """The largest power of two that divides it, at most 1024, so that few scales are needed."""
    smallest, largest = _BLOCKS
    block = min(in_features & -in_features, largest)
    if block < smallest:
        raise ValueError(
            f"in_features must be a multiple of {smallest} to be packed, not {in_features}; "
            "leave the layer out by the predicate."
        )
    return block


def _rotated(x: mx.array, block: int, back: bool = False) -> mx.array:
    """x [..., features], each block of features rotated; or rotated back."""
    blocks = x.reshape(*x.shape[:-1], -1, block)
    return (rotate_back if back else rotate)(blocks, _SEED).reshape(x.shape)


def _encode(weight: mx.array, bits: int, block: int) -> tuple[mx.array, ...]:
    """Fields, and last the scales that make the squared error least."""
    rotated = _rotated(weight.astype(mx.float32), block)
    blocks = rotated.reshape(weight.shape[0], -1, block)
    deviation = mx.sqrt(mx.square(blocks).mean(axis=-1, keepdims=True))
    book = codebook(bits, bits)
    codes = quantise(blocks / mx.maximum(deviation, 1e-20), book)
    centroids = centroid(codes, book)
    scale = (blocks * centroids).sum(axis=-1) / mx.square(centroids).sum(axis=-1)
    return *pack(codes.reshape(weight.shape), bits), scale.astype(mx.float16)


@cache
def _dequantiser(bits: int, block: int) -> Callable[..., mx.array]:
    """(fields, scale) -> rotated weights, float32 [rows, in_features]."""
    book = codebook(bits, bits)

    def dequantise(fields: tuple[mx.array, ...], scale: mx.array) -> mx.array:
        rows = scale.shape[0]
        centroids = centroid(unpack(fields, bits), book).reshape(rows, -1, block)
        return (centroids * scale.astype(mx.float32)[..., None]).reshape(rows, -1)

    return mx.compile(dequantise)
