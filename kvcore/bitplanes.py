"""Codes in packed form: a few bit fields, the high bits in one and each low bit in its own.

A code of 6 bits is a nibble and two single bits; dropping the lowest bit is dropping an array.
Eight neighbouring elements make one word of a field, element i at bit i * width, so a field of
width 1, 2 or 4 is uint8, uint16 or uint32 of shape [..., head_dim / 8].
"""

import mlx.core as mx

GROUP = 8
"""Elements a word; head_dim must be a multiple of it."""

_TILES, _LEAST_TILE = 32, 128
_WORD = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}


def field_widths(bits: int) -> tuple[int, ...]:
    """Widths of the fields of a code, from the high bits down."""
    if bits >= 4:
        return (4,) + (1,) * (bits - 4)
    return {1: (1,), 2: (2,), 3: (2, 1)}[bits]


def pack(codes: mx.array, bits: int) -> tuple[mx.array, ...]:
    """Fields of codes uint32 [..., head_dim]."""
    groups = codes.reshape(*codes.shape[:-1], -1, GROUP)
    fields = []
    low = bits
    for width in field_widths(bits):
        low -= width
        shifts = mx.arange(0, GROUP * width, width, dtype=mx.uint32)
        words = (((groups >> low) & ((1 << width) - 1)) << shifts).sum(axis=-1)
        fields.append(words.astype(_WORD[width]))
    return tuple(fields)


def unpack(fields: tuple[mx.array, ...], bits: int) -> mx.array:
    """Codes, uint32 [..., head_dim / 8, 8], of fields [..., head_dim / 8].

    Only element-wise operations, so that it fuses under mx.compile with what reads the codes.
    """
    codes = mx.array(0, mx.uint32)
    for field, width in zip(fields, field_widths(bits), strict=True):
        shifts = mx.arange(0, GROUP * width, width, dtype=mx.uint32)
        part = (field[..., None].astype(mx.uint32) >> shifts) & ((1 << width) - 1)
        codes = (codes << width) | part
    return codes


def empty_fields(shape: tuple[int, ...], bits: int) -> list[mx.array]:
    """Zeroed fields of `bits` bits; `shape` as a field's, [..., head_dim / 8]."""
    return [mx.zeros(shape, _WORD[width]) for width in field_widths(bits)]


def is_prefix(kept: int, bits: int) -> bool:
    """Whether codes of `bits` bits become codes of `kept` bits by leaving out low fields."""
    widths = field_widths(kept)
    return widths == field_widths(bits)[: len(widths)]


def drop(fields: tuple[mx.array, ...], bits: int, kept: int) -> tuple[mx.array, ...]:
    """The top `kept` bits of each code, with no re-encoding."""
    if is_prefix(kept, bits):
        return fields[: len(field_widths(kept))]
    codes = unpack(fields, bits) >> (bits - kept)
    return pack(codes.reshape(*codes.shape[:-2], -1), kept)


def drop_in_tiles(fields: tuple[mx.array, ...], bits: int, kept: int) -> tuple[mx.array, ...]:
    """As `drop` for fields [batch, kv_heads, tokens, head_dim / 8], evaluated, some tokens at a
    time, so that little more than the result is ever added to what is held."""
    if is_prefix(kept, bits):
        return drop(fields, bits, kept)
    tokens = fields[0].shape[2]
    tile = max(_LEAST_TILE, tokens // _TILES)
    whole = empty_fields(fields[0].shape, kept)
    for start in range(0, tokens, tile):
        part = tuple(field[:, :, start : start + tile] for field in fields)
        for field, dropped in zip(whole, drop(part, bits, kept), strict=True):
            field[:, :, start : start + tile] = dropped
        mx.eval(whole)
    return tuple(whole)
