"""GGUF's quantised blocks in MLX's affine layout: packed codes, scales, biases.

Both store w = scale * code + bias for groups of 32 along a row, so four- and five-bit types and
Q8_0 carry over code for code, and only scales that are themselves products are rounded to half
precision. Q6_K, with a scale for every 16 elements, has no such counterpart and is quantised
anew to 8 bits.
Block structures: github.com/ggml-org/ggml, src/ggml-common.h and ggml-quants.c.
"""

from collections.abc import Callable

import mlx.core as mx
import numpy as np

from tui.engine.gguf import GGUF, Tensor

GROUP = 32

Groups = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Codes (groups, 32) uint8, scales (groups,) and biases (groups,) float32."""


def read_arrays(gguf: GGUF, tensor: Tensor) -> dict[str, mx.array]:
    """The tensor as the arrays of an MLX layer, by name: `weight`, and `scales` and `biases`
    where it is quantised."""
    content = gguf.read(tensor)
    layout = tensor.layout.name
    if layout in _FLOATS:
        return {"weight": _FLOATS[layout](content).reshape(tensor.shape)}
    blocks = content.reshape(-1, tensor.layout.nbytes)
    if layout == "Q6_K":
        weight = mx.array(_q6_k(blocks)).reshape(tensor.shape)
        packed, scales, biases = mx.quantize(weight, GROUP, 8)
        return {
            "weight": packed,
            "scales": scales.astype(mx.float16),
            "biases": biases.astype(mx.float16),
        }
    bits, unpack = _QUANTISED[layout]
    codes, scales, biases = unpack(blocks)
    rows = tensor.shape[:-1]
    return {
        "weight": mx.array(_pack(codes, bits)).reshape(*rows, -1),
        "scales": mx.array(scales.astype(np.float16)).reshape(*rows, -1),
        "biases": mx.array(biases.astype(np.float16)).reshape(*rows, -1),
    }


def _pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes (groups, 32) as one little-endian stream of bits: (groups, bits) uint32."""
    if bits == 8:
        return codes.view("<u4")
    if bits == 4:
        return (codes[:, 0::2] | codes[:, 1::2] << 4).view("<u4")
    places = np.unpackbits(codes[:, :, None], axis=2, count=bits, bitorder="little")
    stream = places.reshape(len(codes), GROUP * bits)
    return np.packbits(stream, axis=1, bitorder="little").view("<u4")


def _halves(blocks: np.ndarray, start: int) -> np.ndarray:
    """The fp16 number at byte `start` of each block, as float32."""
    return blocks[:, start : start + 2].copy().view("<f2")[:, 0].astype(np.float32)


def _nibbles(content: np.ndarray) -> np.ndarray:
    """(blocks, n) bytes -> (blocks, 2n) codes: all the low nibbles, then all the high ones."""
    return np.concatenate([content & 15, content >> 4], axis=1)


def _q4_0(blocks: np.ndarray) -> Groups:
    scale = _halves(blocks, 0)
    return _nibbles(blocks[:, 2:18]), scale, -8 * scale


def _q4_1(blocks: np.ndarray) -> Groups:
    return _nibbles(blocks[:, 4:20]), _halves(blocks, 0), _halves(blocks, 2)


def _fifth_bits(content: np.ndarray) -> np.ndarray:
    """(blocks, 4) bytes -> (blocks, 32): the fifth bit of each code, in its place."""
    return np.unpackbits(content, axis=1, bitorder="little") << 4


def _q5_0(blocks: np.ndarray) -> Groups:
    scale = _halves(blocks, 0)
    codes = _nibbles(blocks[:, 6:22]) | _fifth_bits(blocks[:, 2:6])
    return codes, scale, -16 * scale


def _q5_1(blocks: np.ndarray) -> Groups:
    codes = _nibbles(blocks[:, 8:24]) | _fifth_bits(blocks[:, 4:8])
    return codes, _halves(blocks, 0), _halves(blocks, 2)


def _q8_0(blocks: np.ndarray) -> Groups:
    scale = _halves(blocks, 0)
    # Signed codes become unsigned ones when their top bit is flipped.
    return blocks[:, 2:34] ^ 0x80, scale, -128 * scale


def _k_scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and biases (8 * blocks,) of the super-blocks of Q4_K and Q5_K.

    Their first 4 bytes are two fp16 factors; then come 8 scales and 8 minima of 6 bits each,
    in 12 bytes.
    """
    packed = blocks[:, 4:16]
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6) << 4], axis=1)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6) << 4], axis=1)
    scale = _halves(blocks, 0)[:, None] * scales
    bias = -_halves(blocks, 2)[:, None] * minima
    return scale.reshape(-1), bias.reshape(-1)


def _q4_k(blocks: np.ndarray) -> Groups:
    # Each 32 bytes hold a group of 32 in their low nibbles and the next in the high ones.
    codes = _nibbles(blocks[:, 16:144].reshape(-1, 32)).reshape(-1, GROUP)
    return codes, *_k_scales(blocks)


def _q5_k(blocks: np.ndarray) -> Groups:
    codes = _nibbles(blocks[:, 48:176].reshape(-1, 32)).reshape(-1, 8, GROUP)
    # Byte i of the 32 at 16 holds the fifth bits of element i of all eight groups.
    fifth = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little").transpose(0, 2, 1)
    return (codes | fifth << 4).reshape(-1, GROUP), *_k_scales(blocks)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    """Blocks of 210 bytes -> (blocks, 256) float32."""
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    high = (high >> np.array([0, 2, 4, 6], np.uint8).reshape(4, 1)) & 3
    codes = (low | high << 4).reshape(-1, 16, 16).astype(np.float32) - 32
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    scales *= _halves(blocks, 208)[:, None]
    return (codes * scales[:, :, None]).reshape(-1, 256)


_FLOATS: dict[str, Callable[[np.ndarray], mx.array]] = {
    "F32": lambda content: mx.array(content.view("<f4")),
    "F16": lambda content: mx.array(content.view("<f2")),
    "BF16": lambda content: mx.array(content.view("<u2")).view(mx.bfloat16),
}

_QUANTISED: dict[str, tuple[int, Callable[[np.ndarray], Groups]]] = {
    "Q4_0": (4, _q4_0),
    "Q4_1": (4, _q4_1),
    "Q5_0": (5, _q5_0),
    "Q5_1": (5, _q5_1),
    "Q8_0": (8, _q8_0),
    "Q4_K": (4, _q4_k),
    "Q5_K": (5, _q5_k),
}
