"""CommVQ (arXiv 2506.18879): keys before RoPE, as sums of codewords that commute with it.

A key's rotary embedding is undone, the key is divided by one length a token, and coded in residual
stages, each an index of 12 bits into 64 * 64 centroids that all pairs of channels share. At read
time the sum is turned to the token's position. Turned back and turned by the same angles, a key
changes by its quantisation alone, whatever the position; see kvcore.commuting for the codebooks.

The paper reaches 15.5 times smaller at 1.03 bits and 8 times at 2; the "64 times" in circulation
would be a quarter of a bit. It packs values by a learnt encoder that has to be trained by
backpropagation; here another method packs them.
"""

from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from kvcore.codecs import Side, read_options
from kvcore.codecs.lengths import half_of, normalised, to_half
from kvcore.codes import Codes
from kvcore.commuting import INDEX_BITS, ROWS, nearest_pair, times_i, train
from kvcore.indices import pack_indices, packed_nbytes, unpack_indices
from kvcore.layer_sample import LayerSample
from kvcore.rotary import Rotary


def learn(side: Side, sample: LayerSample) -> dict[str, mx.array]:
    """ "theta", fp16 [kv_heads, stages, 64, head_dim]; "order", "frequencies": of the layer's
    embedding, see kvcore.rotary. Raises ValueError for a layer without one."""
    read_options(side)
    if sample.rotary is None:
        raise ValueError(
            "this model has no rotary embedding that could be read; comm_vq needs one."
        )
    keys = sample.unturned_keys(sample.rotary)
    residual = _in_lengths(keys[None])[0][0]
    stages = []
    for stage in range(stage_count(residual.shape[-1], side.bits)):
        theta = train(residual, side.seed + stage).astype(mx.float16).astype(mx.float32)
        index = nearest_pair(residual, theta)
        residual = residual - _centroids(theta, index)
        mx.eval(residual)
        stages.append(theta)
    return {
        "theta": mx.stack(stages, axis=1).astype(mx.float16),
        "order": sample.rotary.order,
        "frequencies": sample.rotary.frequencies,
    }


def make(side: Side) -> "CommVQ":
    """Raises ValueError where the codebooks have fewer stages than the bits need."""
    read_options(side)
    theta = side.learnt["theta"]
    stages = stage_count(theta.shape[-1], side.bits)
    if stages > theta.shape[1]:
        raise ValueError(
            f"{side.bits} bits need {stages} stages, and the artefact has {theta.shape[1]}:"
            " calibrate for those bits."
        )
    return CommVQ(theta[:, :stages], Rotary(side.learnt["order"], side.learnt["frequencies"]))


def stage_count(head_dim: int, bits: int) -> int:
    """As many stages as fit into `bits` bits a channel; the length comes on top."""
    return max(1, bits * head_dim // INDEX_BITS)


@dataclass(frozen=True, eq=False)
class CommVQ:
    """Keeps the indices of the stages, see kvcore.indices, [batch, kv_heads, tokens, stages], and
    the length that a token's keys of all heads share, [batch, 1, tokens, 1] in their own half
    precision.

    `theta`: [kv_heads, stages, 64, head_dim]. Fewer bits are fewer stages.
    """

    theta: mx.array
    rotary: Rotary

    def __deepcopy__(self, memo: Any) -> "CommVQ":
        return self  # nothing in it changes, and a copy would hold its arrays twice

    def tables(self, head_dim: int) -> list[mx.array]:
        return [self.theta, self.rotary.order, self.rotary.frequencies]

    def token_nbytes(self, head_dim: int, bits: int) -> float:
        return packed_nbytes(stage_count(head_dim, bits), INDEX_BITS) + 2 / len(self.theta)

    def bit_nbytes(self, codes: Codes) -> int:
        if codes.bits == 1:
            return 0
        batch, heads, tokens, stages = codes.per_token["index"].shape
        fewer = stage_count(self.theta.shape[-1], codes.bits - 1)
        freed = packed_nbytes(stages, INDEX_BITS) - packed_nbytes(fewer, INDEX_BITS)
        return batch * heads * tokens * freed

    def into_basis(self, queries: mx.array) -> mx.array:
        return self.rotary.paired(queries)

    def out_of_basis(self, values: mx.array) -> mx.array:
        return self.rotary.unpaired(values)

    def encode(self, vectors: mx.array, bits: int, start: int = 0) -> Codes:
        batch, heads, tokens, head_dim = vectors.shape
        keys = self.rotary.turn_back(self.rotary.paired(vectors.astype(mx.float32)), start)
        residual, length = _in_lengths(keys)
        length = to_half(length, half_of(vectors))
        residual = residual.swapaxes(0, 1).reshape(heads, batch * tokens, head_dim)
        indices = []
        for stage in range(stage_count(head_dim, bits)):
            theta = self.theta[:, stage].astype(mx.float32)
            indices.append(nearest_pair(residual, theta))
            residual = residual - _centroids(theta, indices[-1])
        index = mx.stack(indices, axis=-1).reshape(heads, batch, tokens, -1).swapaxes(0, 1)
        return Codes(bits, start, pack_indices(index, INDEX_BITS) | {"length": length}, {})

    def lower(self, codes: Codes, bits: int) -> Codes:
        if bits >= codes.bits:
            return codes
        stages = stage_count(self.theta.shape[-1], bits)
        kept = {"index": stages, "index_low": (stages + 1) // 2, "length": 1}
        arrays = {
            name: mx.contiguous(array[..., : kept[name]]) for name, array in codes.per_token.items()
        }
        mx.eval(arrays)
        return replace(codes, bits=bits, per_token=arrays)

    def decode(self, codes: Codes) -> mx.array:
        return self.rotary.unpaired(self.turned_keys(codes))

    def turned_keys(self, tile: Codes) -> mx.array:
        """Float32 [batch, kv_heads, tokens, head_dim], their channels in pairs."""
        index = unpack_indices(tile.per_token, INDEX_BITS)
        heads, of_heads = self.theta.shape[0], mx.arange(self.theta.shape[0])[:, None]
        total, turned = mx.array(0.0), mx.array(0.0)
        for stage in range(index.shape[-1]):
            rows = self.theta[:, stage].astype(mx.float32).reshape(heads * ROWS, -1)
            at = index[..., stage]
            total = total + rows[of_heads * ROWS + at // ROWS]
            turned = turned + rows[of_heads * ROWS + at % ROWS]
        keys = (total + times_i(turned)) * tile.per_token["length"].astype(mx.float32)
        return self.rotary.turn(keys, tile.start)

    def scores(self, queries: mx.array, tile: Codes) -> mx.array:
        return queries @ self.turned_keys(tile).swapaxes(-1, -2)

    def weighted_sum(self, weights: mx.array, tile: Codes) -> mx.array:
        return weights @ self.turned_keys(tile)


def _in_lengths(keys: mx.array) -> tuple[mx.array, mx.array]:
    """Keys [batch, kv_heads, tokens, head_dim] over the root mean square of those of all heads,
    and this, [batch, 1, tokens, 1]. A key that is not finite is zero and does not count."""
    batch, heads, tokens, head_dim = keys.shape
    keys = mx.where(mx.isfinite(keys).all(axis=-1, keepdims=True), keys, 0)
    of_tokens = keys.swapaxes(1, 2).reshape(batch, tokens, heads * head_dim)
    unit, length = normalised(of_tokens)
    return unit.reshape(batch, tokens, heads, head_dim).swapaxes(1, 2), length[:, None]


def _centroids(theta: mx.array, index: mx.array) -> mx.array:
    """theta_A + i theta_B, [heads, n, 2 pairs], for indices [heads, n]."""
    of_a = mx.take_along_axis(theta, (index // ROWS)[..., None], axis=1)
    return of_a + times_i(mx.take_along_axis(theta, (index % ROWS)[..., None], axis=1))
