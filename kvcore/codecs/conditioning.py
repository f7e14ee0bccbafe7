"""Key conditioning: each block's own channel mean, removed before a codec and given back after.

Softmax does not mind what all keys share, but a codec spends its bits on it. Keys of rotary models
have large means in their slow channels, and these drift with the position, so statistics from the
start of a sequence are wrong some thousand tokens later: each block keeps its own mean, and a score
gets it back as one dot product a block.
"""

from dataclasses import dataclass, replace

import mlx.core as mx

from kvcore.codec import Codec
from kvcore.codecs.lengths import to_half
from kvcore.codes import BLOCK, Codes


def without_means(vectors: mx.array, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
    """Float32 vectors [batch, kv_heads, tokens, head_dim] of whole blocks without their blocks'
    means, and these, `dtype` [batch, kv_heads, blocks, head_dim].

    What is not finite stays where it is and does not count in the mean.
    """
    batch, heads, tokens, head_dim = vectors.shape
    blocks = vectors.reshape(batch, heads, tokens // BLOCK, BLOCK, head_dim)
    finite = mx.isfinite(blocks)
    mean = mx.where(finite, blocks, 0).sum(axis=3) / mx.maximum(finite.sum(axis=3), 1)
    mean = to_half(mean, dtype)
    return (blocks - mean[..., None, :].astype(mx.float32)).reshape(vectors.shape), mean


def scores_of_means(queries: mx.array, means: mx.array, tokens: int) -> mx.array:
    """What every one of the `tokens` keys owes to its block's mean."""
    of_block = queries @ means.astype(queries.dtype).swapaxes(-1, -2)
    return mx.repeat(of_block, BLOCK, axis=-1)[..., :tokens]


def spread(means: mx.array, tokens: int) -> mx.array:
    """Each token's mean, float32 [batch, kv_heads, tokens, head_dim]."""
    return mx.repeat(means.astype(mx.float32), BLOCK, axis=2)[:, :, :tokens]


@dataclass(frozen=True)
class BlockMean:
    """Any codec behind the removal of each block's mean.

    The mean is kept in the vectors' own half precision, so that bfloat16 keeps its range:
    [batch, kv_heads, blocks, head_dim]. Queries go on beside themselves in the inner basis.
    """

    inner: Codec

    def encode(self, vectors: mx.array, bits: int, start: int) -> Codes:
        half = mx.bfloat16 if vectors.dtype == mx.bfloat16 else mx.float16
        centred, mean = without_means(vectors.astype(mx.float32), half)
        codes = self.inner.encode(centred.astype(vectors.dtype), bits, start)
        return replace(codes, per_block=codes.per_block | {"block_mean": mean})

    def lower(self, codes: Codes, bits: int) -> Codes:
        inner, mean = _split(codes)
        lowered = self.inner.lower(inner, bits)
        if lowered is inner:
            return codes
        return replace(lowered, per_block=lowered.per_block | {"block_mean": mean})

    def decode(self, codes: Codes) -> mx.array:
        inner, mean = _split(codes)
        return self.inner.decode(inner) + spread(mean, codes.tokens)

    def into_basis(self, queries: mx.array) -> mx.array:
        return mx.concatenate([queries, self.inner.into_basis(queries)], axis=-1)

    def scores(self, queries: mx.array, tile: Codes) -> mx.array:
        inner, mean = _split(tile)
        plain, into_inner = mx.split(queries, [mean.shape[-1]], axis=-1)
        return self.inner.scores(into_inner, inner) + scores_of_means(plain, mean, tile.tokens)

    def weighted_sum(self, weights: mx.array, tile: Codes) -> mx.array:
        return weights @ self.decode(tile)

    def out_of_basis(self, values: mx.array) -> mx.array:
        return values

    def token_nbytes(self, head_dim: int, bits: int) -> float:
        return self.inner.token_nbytes(head_dim, bits) + 2 * head_dim / BLOCK

    def bit_nbytes(self, codes: Codes) -> int:
        return self.inner.bit_nbytes(_split(codes)[0])

    def tables(self, head_dim: int) -> list[mx.array]:
        return self.inner.tables(head_dim)


def _split(codes: Codes) -> tuple[Codes, mx.array]:
    """What the inner codec made, and the means."""
    per_block = dict(codes.per_block)
    mean = per_block.pop("block_mean")
    return replace(codes, per_block=per_block), mean
