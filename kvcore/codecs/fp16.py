"""The reference: keys and values as they come, in half precision, nothing packed."""

from dataclasses import dataclass

import mlx.core as mx

from kvcore.codecs import Side, read_options
from kvcore.codes import Codes

BITS = 16


def make(side: Side) -> "Half":
    read_options(side)
    return Half()


@dataclass(frozen=True)
class Half:
    """Keeps the vectors: fp16, or bfloat16 where they come so. There are no fewer bits to have, so
    `bits` are 16 whatever is asked for."""

    def tables(self, head_dim: int) -> list[mx.array]:
        return []

    def token_nbytes(self, head_dim: int, bits: int) -> float:
        return head_dim * BITS / 8

    def bit_nbytes(self, codes: Codes) -> int:
        return 0

    def into_basis(self, queries: mx.array) -> mx.array:
        return queries

    def out_of_basis(self, values: mx.array) -> mx.array:
        return values

    def encode(self, vectors: mx.array, bits: int, start: int = 0) -> Codes:
        half = mx.bfloat16 if vectors.dtype == mx.bfloat16 else mx.float16
        return Codes(BITS, start, {"vectors": vectors.astype(half)}, {})

    def lower(self, codes: Codes, bits: int) -> Codes:
        return codes

    def decode(self, codes: Codes) -> mx.array:
        return codes.per_token["vectors"].astype(mx.float32)

    def scores(self, queries: mx.array, tile: Codes) -> mx.array:
        return queries @ self.decode(tile).swapaxes(-1, -2)

    def weighted_sum(self, weights: mx.array, tile: Codes) -> mx.array:
        return weights @ self.decode(tile)
