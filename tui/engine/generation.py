"""A model with its caches: a prompt goes in, tokens come out, a common beginning is used again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn

from kvcore import KVCacheBuilder, KVCacheConfig
from kvcore.attach import layer_reports
from kvcore.watchdog import CacheState
from tui.engine.outlook import at_bits_of, foreseen_nbytes, packed_part

PROBE = 64
"""Tokens that a new model is tried with: few enough for a moment, enough to judge others by."""

POOL_INTERVAL = 256
"""Decoded tokens after which MLX's pool is emptied, as mlx-lm does."""

Sampler = Callable[[mx.array], mx.array]
"""From log probabilities [1, vocabulary] to a token [1]."""


class CachedModel:
    """`tokens` are what the caches hold, at every moment at which a method has returned or
    yielded. After an exception nobody knows what they hold: call `clear`."""

    def __init__(self, model: nn.Module, config: KVCacheConfig) -> None:
        self.tokens: list[int] = []
        self.caches: list[Any] = []
        self._model = model
        self._config = config
        self.clear()
        # Before its first token a cache knows no shapes: a few are computed to see what they
        # cost, and so that what is compiled at first use does not delay the first answer.
        mx.reset_peak_memory()
        self.prefill([0] * PROBE)
        self._first = self.state().layers
        self.scratch = mx.get_peak_memory() - mx.get_active_memory()
        """Bytes that PROBE tokens of a prompt need while they are computed."""
        next(self.decode(0, lambda logprobs: mx.argmax(logprobs, axis=-1)))
        self.clear()

    def clear(self) -> None:
        """Empty caches, with the bits that a chat starts with."""
        self.tokens = []
        self.caches = []  # the old arrays go before the new ones come
        mx.clear_cache()
        self.caches = KVCacheBuilder.for_model(self._model, self._config)

    def state(self) -> CacheState:
        layers = layer_reports(self.caches)
        if not self.tokens:
            return CacheState(layers, 0, 0)
        return CacheState(layers, len(self.tokens), sum(layer.nbytes for layer in layers))

    def outlook(self, tokens: int) -> tuple[CacheState, int]:
        """The state, and the bytes by which `tokens` more make it larger at its present bits.
        Layers that are empty still tell what a token costs them."""
        state = self.state()
        if not self.tokens:
            layers = map(at_bits_of, self._first, state.layers)
            state = replace(state, layers=tuple(layers))
        after = len(self.tokens) + tokens
        foreseen = [
            foreseen_nbytes(layer, first, cache, after)
            for layer, first, cache in zip(state.layers, self._first, self.caches, strict=True)
        ]
        return state, max(0, round(sum(foreseen)) - state.nbytes)

    def lower(self, layers: Sequence[int], key_bits: int, value_bits: int) -> None:
        """Drop bits of the packed layers among `layers`; never raises any."""
        for index in layers:
            packed = packed_part(self.caches[index])
            if packed is not None:
                packed.lower(key_bits, value_bits)

    def reuse(self, prompt: Sequence[int]) -> int:
        """Cut the caches back to what `prompt` begins with; returns how many tokens that is.

        At least one token of the prompt is left to compute, for logits are not kept. Caches that
        cannot go back (recurrent state, a sliding window that has wrapped) start anew.
        """
        kept = min(common_prefix(self.tokens, prompt), len(prompt) - 1)
        surplus = len(self.tokens) - kept
        if surplus and not (
            all(cache.is_trimmable() for cache in self.caches)
            and all(cache.trim(surplus) == surplus for cache in self.caches)
        ):
            self.clear()
        del self.tokens[kept:]
        return len(self.tokens)

    def prefill(self, tokens: list[int]) -> None:
        """Put one chunk into the caches, evaluated when this returns."""
        self._model(mx.array(tokens)[None], cache=self.caches)
        mx.eval([cache.state for cache in self.caches])
        self.tokens.extend(tokens)
        # The next chunk's scratch has other shapes: what the pool holds would lie idle.
        mx.clear_cache()

    def decode(self, last: int, sampler: Sampler) -> Iterator[int]:
        """The tokens after `last`, the prompt's last one, which the caches do not hold yet.

        One step ahead, so that the device does not wait for Python: when a token is yielded, the
        step that puts it into the caches has been launched already.
        """

        def step(token: mx.array) -> mx.array:
            logits = self._model(token[None], cache=self.caches)[:, -1, :]
            sampled = sampler(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
            mx.async_eval(sampled)
            return sampled

        token = step(mx.array([last]))
        self.tokens.append(last)
        while True:
            following = step(token)
            self.tokens.append(cast(int, token.item()))
            yield self.tokens[-1]
            if len(self.tokens) % POOL_INTERVAL == 0:
                mx.clear_cache()  # buffers that grew with the cache fit nothing any more
            token = following


def common_prefix(held: Sequence[int], wanted: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    for index, (a, b) in enumerate(zip(held, wanted, strict=False)):
        if a != b:
            return index
    return min(len(held), len(wanted))
