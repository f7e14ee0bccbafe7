"""Indices into codebooks, packed: of 8 bits a byte each, of 12 bits a byte and a nibble."""

import mlx.core as mx


def pack_indices(indices: mx.array, bits: int) -> dict[str, mx.array]:
    """Arrays uint8 of indices [..., n]: "index" [..., n], and for 12 bits their low nibbles, two
    a byte, "index_low" [..., ceil(n / 2)]. Those of the first indices are a prefix of all."""
    if bits == 8:
        return {"index": indices.astype(mx.uint8)}
    low = indices & 15
    if low.shape[-1] % 2:
        low = mx.concatenate([low, mx.zeros_like(low[..., :1])], axis=-1)
    low = low[..., ::2] | (low[..., 1::2] << 4)
    return {"index": (indices >> 4).astype(mx.uint8), "index_low": low.astype(mx.uint8)}


def unpack_indices(packed: dict[str, mx.array], bits: int) -> mx.array:
    """Indices, uint32 [..., n]."""
    index = packed["index"].astype(mx.uint32)
    if bits == 8:
        return index
    nibbles = packed["index_low"].astype(mx.uint32)
    low = mx.stack([nibbles & 15, nibbles >> 4], axis=-1)
    low = low.reshape(*nibbles.shape[:-1], -1)[..., : index.shape[-1]]
    return (index << 4) | low


def packed_nbytes(count: int, bits: int) -> int:
    """Bytes of `count` indices."""
    return count if bits == 8 else count + (count + 1) // 2
