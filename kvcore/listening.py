"""A model reads a text, and what its attention works on is noted, layer by layer.

The model attends through the same hook as with packed caches: each layer's cache hands out handles
that note the queries they are asked with. Keys and values are kept of whole blocks of 128 tokens,
evenly spread over the text and placed as in a packed cache, after the first few tokens.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache

from kvcore.attach import hook
from kvcore.builder import attends_to_latents, replace_plain
from kvcore.codes import BLOCK
from kvcore.layer_sample import LayerSample
from kvcore.model_caches import own_caches, parts
from kvcore.rotary import Rotary, read_rotary
from kvcore.view import KVHandle

CONTEXT = 2048
"""Tokens of a sequence, by default."""
KEPT_TOKENS = 4096
"""Tokens of each layer that are kept, by default."""
SINKS = 4
"""Tokens that are read before the first block."""
FEWEST_BLOCKS = 4


def listen(
    model: nn.Module,
    tokens: Sequence[int],
    context: int = CONTEXT,
    kept_tokens: int = KEPT_TOKENS,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[LayerSample]:
    """A sample of each layer that a packed cache would pack, in their order.

    `context`: the text is read in sequences of so many tokens. `kept_tokens`: keys and values are
    kept of at most so many, which bounds the memory; queries of all count. `report`: tokens read,
    and all. Raises ValueError for a text that is too short, and for a model that cannot be heard.
    """
    if attends_to_latents(model):
        raise ValueError("this model's cache holds latents (MLA), which no method here packs.")
    hook(model)
    starts = [
        start
        for first in range(0, len(tokens), context)
        for start in range(first + SINKS, min(first + context, len(tokens)) - BLOCK + 1, BLOCK)
    ]
    if len(starts) < FEWEST_BLOCKS:
        needed = SINKS + FEWEST_BLOCKS * BLOCK
        raise ValueError(
            f"the text has {len(tokens):,} tokens, read {context:,} at a time; at least {needed:,}"
            " at a time are needed."
        )
    stride = -(-len(starts) // max(1, kept_tokens // BLOCK))
    caches: list[Any] = []
    notes: list[_Notes] = []
    for number, start in enumerate(starts):
        if start % context == SINKS:
            caches = replace_plain(own_caches(model), lambda layer, _: _NotingCache())
            _read(model, tokens[start - SINKS : start], caches)
            notes = notes or [_Notes(rotary) for rotary in _rotaries(model, caches)]
        _read(model, tokens[start : start + BLOCK], caches)
        for note, cache in zip(notes, _noting(caches), strict=True):
            note.take(cache.heard, keep=number % stride == 0)
        report(start + BLOCK, len(tokens))
    kept = tuple(start % context for start in starts[::stride])
    report(len(tokens), len(tokens))
    return [note.sample(kept) for note in notes]


class _Heard:
    """One call of attention; stands where a packed cache's view does."""

    def __init__(self, keys: mx.array, values: mx.array, whole: tuple[mx.array, mx.array]):
        self.keys, self.values = keys, values
        self.whole = whole
        self.moment: mx.array | None = None

    def attend(
        self,
        queries: mx.array,
        scale: float,
        mask: mx.array | str | None = None,
        sinks: mx.array | None = None,
    ) -> mx.array:
        kv_heads, head_dim = self.keys.shape[1], self.keys.shape[-1]
        of_heads = queries.astype(mx.float32).reshape(kv_heads, -1, head_dim)
        self.moment = of_heads.swapaxes(-1, -2) @ of_heads / of_heads.shape[1]
        return mx.fast.scaled_dot_product_attention(
            queries, *self.whole, scale=scale, mask=mask, sinks=sinks
        )


class _NotingCache(KVCache):
    """A plain cache that remembers its last call."""

    heard: _Heard | None = None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[KVHandle, KVHandle]:
        all_keys, all_values = super().update_and_fetch(keys, values)
        assert all_keys is not None and all_values is not None
        self.heard = _Heard(keys, values, (all_keys, all_values))
        return KVHandle(all_keys, self.heard, set()), KVHandle(all_values, self.heard, set())


class _Notes:
    """What is kept of one layer."""

    def __init__(self, rotary: Rotary | None):
        self._rotary = rotary
        self._keys: list[mx.array] = []
        self._values: list[mx.array] = []
        self._moments = mx.array(0.0)
        self._calls = 0

    def take(self, heard: _Heard | None, keep: bool) -> None:
        """Raises ValueError where attention did not go through the hook."""
        if heard is None or heard.moment is None:
            raise ValueError(
                "this model's attention cannot be listened to: it is not mlx-lm's own."
            )
        self._moments = self._moments + heard.moment
        self._calls += 1
        if keep:
            self._keys.append(heard.keys[0])
            self._values.append(heard.values[0])
        mx.eval(self._moments, self._keys[-1:], self._values[-1:])

    def sample(self, starts: tuple[int, ...]) -> LayerSample:
        keys, values = (mx.concatenate(parts, axis=1) for parts in (self._keys, self._values))
        mx.eval(keys, values)
        return LayerSample(keys, values, starts, self._moments / self._calls, self._rotary)


def _read(model: nn.Module, tokens: Sequence[int], caches: list[Any]) -> None:
    # The logits are not asked for, so they are never computed.
    model(mx.array([list(tokens)]), cache=caches)
    mx.eval([cache.state for cache in caches])


def _noting(caches: list[Any]) -> list[_NotingCache]:
    inner = [part for cache in caches for part in parts(cache)]
    return [cache for cache in inner if isinstance(cache, _NotingCache)]


def _rotaries(model: nn.Module, caches: list[Any]) -> list[Rotary | None]:
    """The rotary embedding of each noting cache's layer."""
    layers = getattr(model, "layers", [])
    layers = layers if len(layers) == len(caches) else [None] * len(caches)
    return [
        _rotary(layer, part)
        for layer, cache in zip(layers, caches, strict=True)
        for part in _noting([cache])
    ]


def _rotary(layer: nn.Module | None, cache: _NotingCache) -> Rotary | None:
    if layer is None or cache.heard is None:
        return None
    ropes = (getattr(module, "rope", None) for _, module in layer.named_modules())
    rope = next((rope for rope in ropes if callable(rope)), None)
    return None if rope is None else read_rotary(rope, cache.heard.keys.shape[-1])
