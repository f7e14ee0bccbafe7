"""Outlier channels: the few strongest channels of a block, kept as int8, the rest for a codec.

One strong channel enlarges the norm that all coordinates are scaled by, and so everybody's error
(it does not "contaminate" the codebook entries of others). So these channels are zeroed before a
codec sees the vectors and takes their norm. They are chosen for each block and head: which channels
are strong moves with the position, a choice for good would need calibration, and naming them costs
one bit a channel and block.

Eight channels of a vector take 8 bytes, and their scales .25, as a block shares them; the "16 extra
bytes" in circulation are those of fp16.
"""

from dataclasses import dataclass, replace

import mlx.core as mx

from kvcore.bitplanes import GROUP, pack, unpack
from kvcore.codec import Codec
from kvcore.codes import BLOCK, Codes


@dataclass(frozen=True)
class Outliers:
    """Any codec behind the removal of `channels` channels, those of largest mean square in a block:
    of largest variance, where the block's mean is gone.

    Kept beside the inner codes: `outliers`, int8 [batch, kv_heads, tokens, channels], the lowest
    channel first; `outlier_scale`, float32 [batch, kv_heads, blocks, channels], which no key can
    overflow; `outlier_mask`, a bit for each channel, uint8 [batch, kv_heads, blocks, head_dim / 8].
    What is not finite in these channels becomes zero. Queries go on beside themselves in the inner
    basis.
    """

    inner: Codec
    channels: int

    def encode(self, vectors: mx.array, bits: int, start: int) -> Codes:
        """Raises ValueError where head_dim is not above `channels`, or no multiple of 8."""
        batch, heads, tokens, head_dim = vectors.shape
        if self.channels >= head_dim or head_dim % GROUP:
            raise ValueError(
                f"outliers={self.channels} does not go with a head_dim of {head_dim}: head_dim must"
                f" be larger, and a multiple of {GROUP}."
            )
        blocks = vectors.reshape(batch, heads, tokens // BLOCK, BLOCK, head_dim)
        finite = mx.where(mx.isfinite(blocks), blocks, 0).astype(mx.float32)
        energy = mx.square(finite / _largest(finite, (3, 4))).mean(axis=3)
        index = mx.sort(mx.argsort(energy, axis=-1)[..., -self.channels :], axis=-1)
        chosen = (mx.arange(head_dim) == index[..., None]).any(axis=-2)
        strong = mx.take_along_axis(finite, index[..., None, :], axis=-1)
        scale = _largest(strong, (3,)) / 127
        steps = mx.round(strong / scale).astype(mx.int8)
        rest = mx.where(chosen[..., None, :], 0, blocks).astype(vectors.dtype)
        codes = self.inner.encode(rest.reshape(vectors.shape), bits, start)
        return _joined(
            codes,
            {"outliers": steps.reshape(batch, heads, tokens, self.channels)},
            {
                "outlier_scale": scale.squeeze(axis=3),
                "outlier_mask": pack(chosen.astype(mx.uint32), 1)[0],
            },
        )

    def lower(self, codes: Codes, bits: int) -> Codes:
        inner = _inner(codes)
        lowered = self.inner.lower(inner, bits)
        return codes if lowered is inner else _joined(lowered, codes.per_token, codes.per_block)

    def decode(self, codes: Codes) -> mx.array:
        steps, scale, index, head_dim = _strong(codes)
        strong = steps * scale[..., None, :]
        dense = mx.zeros((*strong.shape[:-1], head_dim))
        index = mx.broadcast_to(index[..., None, :], strong.shape)
        dense = mx.put_along_axis(dense, index, strong, axis=-1)
        dense = dense.reshape(*dense.shape[:2], -1, head_dim)
        return self.inner.decode(_inner(codes)) + dense[:, :, : codes.tokens]

    def into_basis(self, queries: mx.array) -> mx.array:
        return mx.concatenate([queries, self.inner.into_basis(queries)], axis=-1)

    def scores(self, queries: mx.array, tile: Codes) -> mx.array:
        steps, scale, index, head_dim = _strong(tile)
        plain, into_inner = mx.split(queries, [head_dim], axis=-1)
        batch, heads, rows, _ = plain.shape
        of_blocks = mx.take_along_axis(plain, index.reshape(batch, heads, 1, -1), axis=-1)
        of_blocks = of_blocks.reshape(batch, heads, rows, *scale.shape[2:]).swapaxes(2, 3)
        scores = (of_blocks * scale[..., None, :]) @ steps.swapaxes(-1, -2)
        scores = scores.swapaxes(2, 3).reshape(batch, heads, rows, -1)
        return self.inner.scores(into_inner, _inner(tile)) + scores[..., : tile.tokens]

    def weighted_sum(self, weights: mx.array, tile: Codes) -> mx.array:
        return weights @ self.decode(tile)

    def out_of_basis(self, values: mx.array) -> mx.array:
        return values

    def token_nbytes(self, head_dim: int, bits: int) -> float:
        of_block = 4 * self.channels + head_dim / 8
        return self.inner.token_nbytes(head_dim, bits) + self.channels + of_block / BLOCK

    def bit_nbytes(self, codes: Codes) -> int:
        return self.inner.bit_nbytes(_inner(codes))

    def tables(self, head_dim: int) -> list[mx.array]:
        return self.inner.tables(head_dim)


_OURS = {"outliers", "outlier_scale", "outlier_mask"}


def _inner(codes: Codes) -> Codes:
    """What the inner codec made."""
    return replace(
        codes,
        per_token={name: x for name, x in codes.per_token.items() if name not in _OURS},
        per_block={name: x for name, x in codes.per_block.items() if name not in _OURS},
    )


def _joined(inner: Codes, per_token: dict[str, mx.array], per_block: dict[str, mx.array]) -> Codes:
    return replace(
        inner,
        per_token=inner.per_token | {n: x for n, x in per_token.items() if n in _OURS},
        per_block=inner.per_block | {n: x for n, x in per_block.items() if n in _OURS},
    )


def _strong(codes: Codes) -> tuple[mx.array, mx.array, mx.array, int]:
    """Steps, float32 [batch, kv_heads, blocks, 128, channels], zero after the last token; their
    scales and channels, both [batch, kv_heads, blocks, channels]; head_dim."""
    steps, scale = codes.per_token["outliers"], codes.per_block["outlier_scale"]
    blocks, channels = scale.shape[2:]
    steps = mx.pad(steps, [(0, 0), (0, 0), (0, blocks * BLOCK - codes.tokens), (0, 0)])
    steps = steps.astype(mx.float32).reshape(*scale.shape[:3], BLOCK, channels)
    chosen = unpack((codes.per_block["outlier_mask"],), 1)
    chosen = chosen.reshape(*chosen.shape[:-2], -1)
    head_dim = chosen.shape[-1]
    place = mx.arange(head_dim)
    index = mx.argsort(mx.where(chosen, place, place + head_dim), axis=-1)[..., :channels]
    return steps, scale, index, head_dim


def _largest(x: mx.array, axis: tuple[int, ...]) -> mx.array:
    """Largest magnitude along `axis`, never quite zero."""
    return mx.maximum(mx.abs(x).max(axis=axis, keepdims=True), 1e-37)
