"""Codes in bytes, for counts that are no multiple of eight: see kvcore.bitplanes for the fields.

A field of width w has 8 / w codes in a byte, the first in the low bits; the last byte is filled up
with zeros.
"""

import mlx.core as mx

from kvcore.bitplanes import field_widths


def packed_nbytes(count: int, bits: int) -> int:
    """Bytes of `count` codes."""
    return sum(-(-count * width // 8) for width in field_widths(bits))


def pack_bytes(codes: mx.array, bits: int) -> tuple[mx.array, ...]:
    """Fields, uint8 [..., bytes], of codes uint32 [..., count], from the high bits down."""
    fields = []
    low = bits
    for width in field_widths(bits):
        low -= width
        part = (codes >> low) & ((1 << width) - 1)
        part = mx.pad(part, [(0, 0)] * (part.ndim - 1) + [(0, -part.shape[-1] % (8 // width))])
        groups = part.reshape(*part.shape[:-1], -1, 8 // width)
        fields.append((groups << mx.arange(0, 8, width, dtype=mx.uint32)).sum(-1).astype(mx.uint8))
    return tuple(fields)


def unpack_bytes(fields: tuple[mx.array, ...], bits: int, count: int) -> mx.array:
    """Codes, uint32 [..., count]."""
    codes = mx.array(0, mx.uint32)
    for field, width in zip(fields, field_widths(bits), strict=True):
        shifts = mx.arange(0, 8, width, dtype=mx.uint32)
        part = (field[..., None].astype(mx.uint32) >> shifts) & ((1 << width) - 1)
        codes = (codes << width) | part.reshape(*field.shape[:-1], -1)[..., :count]
    return codes
