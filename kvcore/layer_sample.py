"""What a calibrated method learns from: keys, values and queries of one layer, as attention had
them."""

from dataclasses import dataclass
from typing import Literal

import mlx.core as mx

from kvcore.codecs.conditioning import without_means
from kvcore.rotary import Rotary


@dataclass(frozen=True)
class LayerSample:
    """`keys`, `values`: [kv_heads, tokens, head_dim], in blocks of 128 tokens in a row. `starts`:
    position of each block's first token. `query_moment`: mean of q q^T over the queries of each KV
    head, float32 [kv_heads, head_dim, head_dim]. `rotary`: None where there is none."""

    keys: mx.array
    values: mx.array
    starts: tuple[int, ...]
    query_moment: mx.array
    rotary: Rotary | None = None

    def vectors(self, side: Literal["keys", "values"], conditioning: str = "none") -> mx.array:
        """Float32 [kv_heads, tokens, head_dim], as a codec gets them."""
        if side == "values":
            return self.values.astype(mx.float32)
        keys = self.keys.astype(mx.float32)
        return without_means(keys[None], mx.float32)[0][0] if conditioning == "block_mean" else keys

    def unturned_keys(self, rotary: Rotary) -> mx.array:
        """Keys before the rotary embedding, their channels in pairs: as `vectors`."""
        paired = rotary.paired(self.keys.astype(mx.float32))
        blocks = mx.split(paired, len(self.starts), axis=1)
        turned = [rotary.turn_back(*pair) for pair in zip(blocks, self.starts, strict=True)]
        return mx.concatenate(turned, axis=1)
