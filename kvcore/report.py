"""What one layer's cache holds, for people to read. Imports no MLX."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["packed", "full", "sliding", "state", "latent"]


@dataclass(frozen=True)
class LayerReport:
    """One layer's cache: `nbytes` is the sum over its arrays, all of them.

    `kind` is "packed" for ours and, for what stays as the model made it, "full", "sliding"
    (window), "state" (recurrent) or "latent" (MLA). `reads` says how attention reads a packed
    layer: "direct" from the codes, or "transient" through a dequantised copy; None before the
    first read and for layers that are not ours.
    """

    index: int
    kind: Kind
    tokens: int
    nbytes: int
    half_nbytes: int | None = None
    """Bytes of the same tokens as plain fp16 keys and values; None where that means nothing."""
    key_bits: int | None = None
    value_bits: int | None = None
    fewest_bits: tuple[int, int] = (1, 1)
    """That the methods have for keys and for values: lowering goes no further."""
    key_bit_nbytes: int = 0
    """Bytes that each bit dropped from the packed keys frees."""
    value_bit_nbytes: int = 0
    token_nbytes: int | None = None
    """Bytes that one more token costs once it is packed."""
    reads: Literal["direct", "transient"] | None = None
