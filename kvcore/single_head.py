"""One head's cache with no model around it, one token at a time: for trying a method out."""

from collections.abc import Sequence
from typing import TypeAlias

import mlx.core as mx
import numpy as np

from kvcore.cache import PackedKVCache
from kvcore.codes import BLOCK
from kvcore.config import KVCacheConfig

Vector: TypeAlias = mx.array | np.ndarray | Sequence[float]


class SingleHeadCache:
    """Keys, values and queries are [head_dim], in fp16 unless they come in bfloat16.

    Whole blocks of 128 tokens beyond the sinks and the window are packed; the rest stays as it is.
    """

    def __init__(self, config: KVCacheConfig, head_dim: int):
        self.head_dim = head_dim
        self._cache = PackedKVCache(config)
        self._waiting: list[tuple[mx.array, mx.array]] = []

    def __len__(self) -> int:
        return self._cache.offset + len(self._waiting)

    def append(self, key: Vector, value: Vector) -> None:
        """Raises ValueError unless both are [head_dim]."""
        self._waiting.append((self._checked("key", key), self._checked("value", value)))
        if len(self._waiting) == BLOCK:
            self._hand_over()

    def attend(self, query: Vector, scale: float | None = None) -> mx.array:
        """softmax(scale query . keys^T) values -> [head_dim]; `scale` is head_dim**-0.5 by default.

        Raises ValueError for an empty cache, and for a query that is not [head_dim].
        """
        row = self._checked("query", query)[None, None, None]
        if not len(self):
            raise ValueError("there is nothing to attend to: append a key and a value first.")
        self._hand_over()
        keys, _ = self._cache.keys_and_values()
        output = keys.whole.attend(row, self.head_dim**-0.5 if scale is None else scale)
        return output.reshape(-1)

    def memory_bytes(self) -> int:
        """Bytes of every array held: codes, scales, plain tokens and their room, tables."""
        self._hand_over()
        return self._cache.nbytes

    def _hand_over(self) -> None:
        if self._waiting:
            keys, values = (
                mx.stack(list(side))[None, None] for side in zip(*self._waiting, strict=True)
            )
            self._waiting.clear()
            self._cache.update_and_fetch(keys, values)
            mx.eval(self._cache.arrays())

    def _checked(self, name: str, vector: Vector) -> mx.array:
        array = vector if isinstance(vector, mx.array) else mx.array(np.asarray(vector))
        if array.shape != (self.head_dim,):
            raise ValueError(f"a {name} must be [{self.head_dim}], not {list(array.shape)}.")
        return array
