"""Packed vectors, whatever the method that packed them."""

from dataclasses import dataclass, replace

import mlx.core as mx

BLOCK = 128
"""Tokens that are packed together; what a method keeps for a block is shared by so many."""


@dataclass(frozen=True)
class Codes:
    """Keys or values of one layer: [batch, kv_heads, tokens, head_dim] before packing.

    `per_token`: arrays [batch, kv_heads, tokens, ...]. `per_block`: arrays
    [batch, kv_heads, blocks, ...]; block i covers tokens i * 128 to (i + 1) * 128, and the last one
    may be cut. `start`: position of the first token in its sequence. `head_dim`: 0 where the method
    reads it off the arrays' shapes.
    """

    bits: int
    start: int
    per_token: dict[str, mx.array]
    per_block: dict[str, mx.array]
    head_dim: int = 0

    @property
    def tokens(self) -> int:
        return next(iter(self.per_token.values())).shape[2]

    def arrays(self) -> list[mx.array]:
        return [*self.per_token.values(), *self.per_block.values()]

    def tile(self, start: int, stop: int) -> "Codes":
        """Tokens `start` to `stop`, as views; `start` must be a multiple of 128."""
        blocks = slice(start // BLOCK, -(-stop // BLOCK))
        return Codes(
            self.bits,
            self.start + start,
            {name: array[:, :, start:stop] for name, array in self.per_token.items()},
            {name: array[:, :, blocks] for name, array in self.per_block.items()},
            self.head_dim,
        )

    def cut(self, tokens: int) -> "Codes":
        """The first `tokens` tokens, in arrays of their own."""
        first = self.tile(0, tokens)
        return replace(
            first,
            per_token={name: mx.contiguous(array) for name, array in first.per_token.items()},
            per_block={name: mx.contiguous(array) for name, array in first.per_block.items()},
        )

    def followed_by(self, other: "Codes") -> "Codes":
        """Both, in order; this one must end with a whole block."""
        return replace(
            self,
            per_token=_joined(self.per_token, other.per_token),
            per_block=_joined(self.per_block, other.per_block),
        )

    def after(self, first: mx.array) -> "Codes":
        """The same codes, not read before `first` is computed."""
        return replace(
            self,
            per_token={name: mx.depends(array, first) for name, array in self.per_token.items()},
        )


def _joined(one: dict[str, mx.array], other: dict[str, mx.array]) -> dict[str, mx.array]:
    return {name: mx.concatenate([array, other[name]], axis=2) for name, array in one.items()}
