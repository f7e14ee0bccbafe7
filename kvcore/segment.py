"""A stretch of packed tokens."""

from dataclasses import dataclass

import mlx.core as mx

from kvcore.codes import BLOCK, Codes

SEGMENT_TOKENS = 16384
"""A longer body goes on in a new segment, so that growing one never copies more than this."""


@dataclass(frozen=True)
class Segment:
    """Packed tokens of equal widths. Only a segment that was trimmed ends within a block."""

    keys: Codes
    values: Codes

    @property
    def tokens(self) -> int:
        return self.keys.tokens

    def arrays(self) -> list[mx.array]:
        return self.keys.arrays() + self.values.arrays()

    def takes(self, other: "Segment") -> bool:
        """Whether `other`'s blocks can be appended in place."""
        return (
            (self.keys.bits, self.values.bits) == (other.keys.bits, other.values.bits)
            and self.tokens % BLOCK == 0
            and self.tokens + other.tokens <= SEGMENT_TOKENS
        )

    def followed_by(self, other: "Segment") -> "Segment":
        return Segment(self.keys.followed_by(other.keys), self.values.followed_by(other.values))

    def cut(self, tokens: int) -> "Segment":
        """The first `tokens` tokens, in arrays of their own."""
        return Segment(self.keys.cut(tokens), self.values.cut(tokens))
