"""What a method of packing must be able to do, for one side, keys or values, of one layer."""

from typing import Protocol

import mlx.core as mx

from kvcore.codes import Codes


class Codec(Protocol):
    """A small frozen dataclass; arrays that it shares with other layers are its tables.

    Vectors and queries are [batch, kv_heads, n, head_dim]; queries come scaled, in float32, those
    of a group of query heads side by side in n. A basis is whatever a method computes in; queries
    are brought into it once and weighted values out of it once, however many tiles are read.
    """

    def encode(self, vectors: mx.array, bits: int, start: int) -> Codes:
        """Pack a whole number of blocks, the first vector at position `start`."""
        ...

    def lower(self, codes: Codes, bits: int) -> Codes:
        """The same vectors at fewer bits, evaluated; `codes` themselves where that is nothing."""
        ...

    def decode(self, codes: Codes) -> mx.array:
        """The vectors, float32."""
        ...

    def into_basis(self, queries: mx.array) -> mx.array:
        """Queries as `scores` wants them, [batch, kv_heads, n, anything]."""
        ...

    def scores(self, queries: mx.array, tile: Codes) -> mx.array:
        """queries . keys -> [batch, kv_heads, n, tokens]."""
        ...

    def weighted_sum(self, weights: mx.array, tile: Codes) -> mx.array:
        """weights [batch, kv_heads, n, tokens] . values -> [batch, kv_heads, n, anything]."""
        ...

    def out_of_basis(self, values: mx.array) -> mx.array:
        """What `weighted_sum` gave, as the model wants it."""
        ...

    def token_nbytes(self, head_dim: int, bits: int) -> float:
        """Bytes of one vector in a full block, with its share of what the block keeps."""
        ...

    def bit_nbytes(self, codes: Codes) -> int:
        """Bytes that dropping one bit frees; 0 where bits cannot be dropped."""
        ...

    def tables(self, head_dim: int) -> list[mx.array]:
        """Arrays that the method needs beside the codes, to be counted with them."""
        ...
